"""Loads the lines printed for a trainer as it does, run by an interpreter that has it, without ropescale.

``python trainer_loading.py TRAINER CASES OUT`` reads ``{case: {"lines": YAML, "length": tokens}}`` and writes for each
``before`` and ``after`` (the frequencies of every rotary module, and its scale, when the model is built and when it has
seen so many positions), ``length`` (that of the trainer's own configuration), ``theta``, or ``stopped``, the error.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

os.environ |= {"HF_HUB_OFFLINE": "1", "AXOLOTL_DO_NOT_TRACK": "1", "DO_NOT_TRACK": "1", "WANDB_DISABLED": "true"}

Built = tuple[Any, int]
"""A model, and the length of sequences that the trainer's configuration says."""


def by_trl(told: dict[str, Any], room: Path) -> Built:
    """Runs ``trl sft --config`` for a step, and returns the model that it trained."""
    import trl
    import yaml
    from trl.scripts.sft import main, make_parser

    own = {"dataset_name": str(room / "data"), "output_dir": str(room / "out"), "max_steps": 1, "pad_token": "<s>"}
    own |= {"eos_token": "<s>", "use_cpu": True, "bf16": False, "report_to": "none", "gradient_checkpointing": False}
    (room / "sft.yaml").write_text(yaml.safe_dump(told | own))
    sys.argv = ["sft", "--config", str(room / "sft.yaml")]
    script, arguments, model, data, *_ = make_parser().parse_args_and_config(return_remaining_strings=True)
    with mock.patch.object(trl.SFTTrainer, "train", autospec=True, side_effect=trl.SFTTrainer.train) as train:
        main(script, arguments, model, data)
    return train.call_args.args[0].model, arguments.max_length


def by_axolotl(told: dict[str, Any], room: Path) -> Built:
    """Validates a configuration as ``axolotl train`` does, and returns the model of its loader."""
    from axolotl.loaders import ModelLoader, load_tokenizer
    from axolotl.utils.config import normalize_config, validate_config
    from axolotl.utils.dict import DictDefault

    data = {"path": str(room / "data" / "train.jsonl"), "type": "completion", "ds_type": "json"}
    own = {"datasets": [data], "output_dir": str(room / "out"), "micro_batch_size": 1, "num_epochs": 1}
    own |= {"gradient_accumulation_steps": 1, "learning_rate": 1e-4, "optimizer": "adamw_torch"}
    machine = {"bf16": False, "fp8": False, "n_gpu": 0, "n_node": 1, "compute_capability": "sm_00"}
    libraries = {"torch_version": "2.11.0"}
    config = validate_config(DictDefault(told | own), capabilities=machine, env_capabilities=libraries)
    normalize_config(config)
    model, _ = ModelLoader(config, load_tokenizer(config)).load()
    return model, config.sequence_len


def by_llama_factory(told: dict[str, Any], room: Path) -> Built:
    """Reads a configuration as ``llamafactory-cli train`` does, and returns the model of its loader."""
    from llamafactory.hparams import get_train_args
    from llamafactory.model import load_model, load_tokenizer

    columns = {"own": {"file_name": "train.jsonl", "columns": {"prompt": "text"}}}
    (room / "data" / "dataset_info.json").write_text(json.dumps(columns))
    own = {"stage": "pt", "do_train": True, "finetuning_type": "full", "template": "default", "use_cpu": True}
    own |= {"dataset": "own", "dataset_dir": str(room / "data"), "output_dir": str(room / "out")}
    model, data, _, tuning, _ = get_train_args(told | own)
    tokenizer = load_tokenizer(model)["tokenizer"]
    return load_model(tokenizer, model, tuning, is_trainable=True), data.cutoff_len


TRAINERS: dict[str, Callable[[dict[str, Any], Path], Built]] = {
    "trl": by_trl,
    "axolotl": by_axolotl,
    "llama-factory": by_llama_factory,
}


def main(trainer: str, cases: Path, out: Path) -> None:
    import yaml

    found = {}
    for name, case in json.loads(cases.read_text()).items():
        with tempfile.TemporaryDirectory() as folder:
            room = Path(folder)
            (room / "data").mkdir()
            (room / "data" / "train.jsonl").write_text(f"{json.dumps({'text': 'some text'})}\n" * 4)
            try:
                model, length = TRAINERS[trainer](yaml.safe_load(case["lines"]), room)
                found[name] = {"length": length, **_tables(model, case["length"])}
            except Exception as error:
                traceback.print_exc()
                found[name] = {"stopped": f"{type(error).__name__}: {error}"}
    out.write_text(json.dumps(found))


def _tables(model: Any, length: int) -> dict[str, Any]:
    import torch

    modules = [module for module in model.modules() if "inv_freq" in module._buffers]
    before = [_table(module) for module in modules]
    for module in modules:
        module(torch.zeros(1, length, 8), torch.arange(length)[None])
    return {"before": before, "after": [_table(module) for module in modules]}


def _table(module: Any) -> tuple[list[float], float]:
    return module.inv_freq.tolist(), float(module.attention_scaling)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]))
