"""Training with a schedule: the callback for transformers' Trainer, collators, packing, the chunked loss.

For custom scripts::

    from ropescale.evals.training import MixedWindows, PoseWindows, chunked_loss, pack

    windows = pack(documents, length=8192, bos=tokenizer.bos_token_id, eos=tokenizer.eos_token_id)
    trainer = Trainer(model, args, train_dataset=windows, data_collator=PoseWindows(target=65536))
    with chunked_loss(model):
        trainer.train()

Importing this package is cheap; accessing one of its names imports torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...lazy import names_of

if TYPE_CHECKING:
    from .collators import MixedWindows as MixedWindows
    from .collators import Packed as Packed
    from .collators import PoseWindows as PoseWindows
    from .collators import pack as pack
    from .losses import chunked_loss as chunked_loss

_HOMES = {
    "MixedWindows": "collators",
    "PoseWindows": "collators",
    "chunked_loss": "losses",
    "Packed": "collators",
    "pack": "collators",
}

__getattr__, __dir__, __all__ = names_of(__name__, _HOMES)
