"""One process of a training in several: run by torchrun, writes what it saw into ``OUT/RANK.json``.

Arguments: the checkpoint, OUT, then ``data`` (DistributedDataParallel) or ``fsdp`` (FSDP2 by accelerate).
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import tiny
import torch
import training
from transformers import Trainer, TrainerCallback

import ropescale
from ropescale.errors import VerificationError
from ropescale.evals.scoring import scorer

SHARDED = {
    "fsdp": True,
    "fsdp_config": {
        "version": 2,
        "transformer_layer_cls_to_wrap": ["LlamaDecoderLayer"],
        "state_dict_type": "FULL_STATE_DICT",
    },
}


class BreakingOne(TrainerCallback):
    """Breaks the table of one rank, after the model was wrapped."""

    def on_train_begin(self, args, state, control, **kwargs) -> None:
        if os.environ["RANK"] == "1":
            for module in kwargs["model"].modules():
                if "inv_freq" in module._buffers:
                    module.inv_freq.mul_(1.5)


class SpoilingOne(TrainerCallback):
    """Spoils a weight of one rank after its second step, before ropescale looks."""

    def on_optimizer_step(self, args, state, control, **kwargs) -> None:
        if os.environ["RANK"] == "1" and state.global_step == 1:
            weight = next(iter(kwargs["model"].parameters())).data
            getattr(weight, "_local_tensor", weight).fill_(torch.inf)


def shard_on_the_cpu() -> None:
    """Lets accelerate wrap with FSDP2 on the CPU, which it does on accelerators alone; the rest is its own code."""
    from accelerate import PartialState
    from accelerate.utils import DistributedType

    made = Trainer.create_accelerator_and_postprocess

    def make(self: Trainer) -> None:
        PartialState._shared_state["distributed_type"] = DistributedType.MULTI_GPU
        made(self)

    Trainer.create_accelerator_and_postprocess = make  # type: ignore[method-assign]


ROWS = 64
"""The most rows of logits in a block of a measurement."""

computed = [0]
"""The rows of logits that were computed at once while one text was measured."""


def note_rows(module: Any, given: Any, logits: torch.Tensor) -> None:
    if not torch.is_grad_enabled() and len(logits) == 1:  # Trainer's own evaluation has batches
        computed.append(logits.shape[1])


def trained(source: Path, out: Path, kind: str, *callbacks: Any) -> Trainer:
    model = training.loaded(source)
    model.lm_head.register_forward_hook(note_rows)
    settings = SHARDED if kind == "fsdp" else {"ddp_find_unused_parameters": False}
    made = training.trainer(model, out, *callbacks, evaluate=True, ddp_backend="gloo", **settings)
    made.train()
    return made


def main(source: Path, out: Path, kind: str) -> None:
    torch.set_num_threads(1)
    scorer.LOGITS_BYTES["cpu"] = 4 * training.VOCABULARY * ROWS
    seen: dict[str, Any] = {}
    if kind == "fsdp":
        shard_on_the_cpu()
    try:
        started = time.monotonic()
        trained(source, out / "broken", kind, BreakingOne(), ropescale.TrainingCallback("yarn:factor=4"))
    except VerificationError as error:
        seen |= {"line": str(error), "seconds": time.monotonic() - started}
    try:
        trained(source, out / "spoilt", kind, SpoilingOne(), ropescale.TrainingCallback("yarn:factor=4"))
    except VerificationError as error:
        seen["spoilt"] = str(error)
    callback = ropescale.TrainingCallback("yarn:factor=4", tiny.documents(3, 300, 256), "64,256")
    made = trained(source, out / "live", kind, callback)
    seen |= {
        "live": ropescale.verify(made.model).live,
        "sharded": any(hasattr(each, "full_tensor") for each in made.model.parameters()),
        "measured": callback.measured,
        "rows": max(computed),
    }
    trained(source, out / "unmeasured", kind, ropescale.TrainingCallback("yarn:factor=4"))
    (out / f"{os.environ['RANK']}.json").write_text(json.dumps(seen))
    torch.distributed.barrier()
    os._exit(0)  # gloo's threads now and then abort a process that ends by itself, after all is done


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])
