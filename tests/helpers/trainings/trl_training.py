"""TRL's SFTTrainer with nothing but ropescale's callback added: ``trl_training.py CHECKPOINT OUT full|lora``."""

from __future__ import annotations

import sys
from pathlib import Path

import tiny
import training
from datasets import Dataset
from peft import LoraConfig
from trl import SFTConfig, SFTTrainer

import ropescale


def main(source: Path, out: Path, kind: str) -> None:
    tokenizer = tiny.byte_tokenizer()
    tokenizer.pad_token = tokenizer.eos_token = tokenizer.bos_token
    texts = [" ".join(str((i * 31 + j * j) % 97) for j in range(40)) for i in range(24)]
    args = SFTConfig(
        output_dir=str(out),
        max_length=64,
        max_steps=4,
        save_steps=2,
        eval_strategy="steps",
        eval_steps=2,
        per_device_train_batch_size=2,
        learning_rate=1e-2,
        bf16=False,
        use_cpu=True,
        report_to=[],
        disable_tqdm=True,
        dataloader_pin_memory=False,
    )
    adapter = {"peft_config": LoraConfig(r=2, target_modules=["q_proj", "v_proj"])} if kind == "lora" else {}
    callback = ropescale.TrainingCallback("yarn:factor=4", tiny.documents(3, 300, 256), "64,256")
    data = Dataset.from_dict({"text": texts})
    trainer = SFTTrainer(
        training.loaded(source),
        args,
        train_dataset=data,
        eval_dataset=data.select(range(4)),
        processing_class=tokenizer,
        callbacks=[callback],
        **adapter,
    )
    trainer.train()
    assert sorted(callback.measured) == [0, 2, 4]


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])
