"""Converts configurations without weights by llama.cpp's converter, and prints the keys and tensors of their rotation.

The first line printed has the architecture of each class. Then reads one JSON object ``{"config": ..., "length": ...}``
per line, and answers each with one line: the architecture, the keys without their prefix and the tensors by name, or
``{"error": ...}``. Its argument is llama.cpp's folder.
"""

from __future__ import annotations

import json
import logging
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path[:0] = [sys.argv[1], f"{sys.argv[1]}/gguf-py"]

import gguf  # noqa: E402
from conversion import get_model_class, load_all_models  # noqa: E402
from conversion.base import ModelBase, ModelType, get_model_architecture  # noqa: E402

_PUBLISHED = {"rotary_pct": 1.0, "mscale_all_dim": 1.0, "moe_intermediate_size": [16], "n_shared_experts": 1}
"""What files on the Hub state, and transformers 5 does not save."""


def _written(config: dict[str, Any], folder: Path) -> dict[str, Any]:
    (folder / "config.json").write_text(json.dumps(config))
    hparams = {**ModelBase.load_hparams(folder, False), **config}  # transformers drops keys of earlier versions
    cls = get_model_class(get_model_architecture(hparams, ModelType.TEXT))
    cls.index_tensors = lambda self, remote_hf_model_id=None: {}
    cls.no_mtp = True  # whose layers are counted in weights
    for _ in range(10):
        given = json.loads(json.dumps(hparams))
        model = cls(folder, gguf.LlamaFileType.ALL_F32, folder / "out.gguf", eager=True, hparams=given)
        try:
            model.set_gguf_parameters()
            break
        except KeyError as error:
            name = error.args[0].split("'")[-2] if "'" in error.args[0] else error.args[0]
            if name not in _PUBLISHED or name in hparams:
                raise
            hparams[name] = _PUBLISHED[name]
            if name == "mscale_all_dim":
                hparams["rope_parameters"] = {**hparams["rope_parameters"], name: 1.0}
    model = getattr(model, "impl", model)  # Mistral 3's class hands over to another
    keys = {key: value.value for part in model.gguf_writer.kv_data for key, value in part.items()}
    name = gguf.MODEL_ARCH_NAMES[model.model_arch]
    mine = {key.partition(".")[2]: value for key, value in keys.items() if key.startswith(f"{model.gguf_writer.arch}.")}
    tensors = {key: table.flatten().tolist() for key, table in model.generate_extra_tensors() if "rope" in key}
    return {"architecture": name, "keys": mine, "tensors": tensors}


def main() -> None:
    logging.disable(logging.CRITICAL)
    answers, sys.stdout = sys.stdout, sys.stderr
    load_all_models()
    known = ModelBase._model_classes[ModelType.TEXT].items()
    print(json.dumps({name: gguf.MODEL_ARCH_NAMES[cls.model_arch] for name, cls in known}), file=answers)
    for line in sys.stdin:
        with tempfile.TemporaryDirectory() as folder:
            try:
                answer = _written(json.loads(line)["config"], Path(folder))
            except (Exception, SystemExit) as error:  # any error of any model's code is the answer
                answer = {"error": f"{type(error).__name__}: {error}"[:300]}
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
