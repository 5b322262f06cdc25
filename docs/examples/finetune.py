"""The short adaptation after a schedule: transformers' Trainer with ropescale's callback, LoRA if wanted.

    python finetune.py CKPT --schedule yarn:factor=8 --data book.txt --eval-data other.txt --steps 400 -o CKPT-8x

Windows of the length that the schedule is for; AdamW at 2e-5 with 20 steps of warm-up and 64 windows a step, as in the
YaRN paper (arXiv 2309.00071, section 4.1) but for the number of windows in memory. The callback proves that the
schedule is live before the first step, and measures perplexity against length before and after. CKPT is only read; a
folder that is saved over is patched with ``--link copy``, because it shares its source's weights otherwise. The same
command continues a training that was stopped; `torchrun --nproc_per_node 8 finetune.py ...` shares it out.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch
from training_parts import MixedWindows, PoseWindows, chunked_loss, pack  # the file beside this one
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    Trainer,
    TrainingArguments,
    default_data_collator,
    set_seed,
)
from transformers.trainer_utils import get_last_checkpoint

import ropescale


def with_lora(model: Any, rank: int = 8) -> Any:
    """Adds LoRA to the attention; norms and embeddings are trained whole (arXiv 2309.12307, section 3.3)."""
    from peft import LoraConfig, TaskType, get_peft_model

    linear = [name for name, module in model.named_modules() if isinstance(module, torch.nn.Linear)]
    embeddings = model.get_input_embeddings()
    whole = [n for n, m in model.named_modules() if m is embeddings or type(m).__name__.endswith("Norm")]
    settings = LoraConfig(
        r=rank,
        lora_alpha=16,
        target_modules=[name for name in linear if "attn" in name or "attention" in name],
        modules_to_save=whole,
        task_type=TaskType.CAUSAL_LM,
        ensure_weight_tying=bool(getattr(model.config, "tie_word_embeddings", False)),
    )
    return get_peft_model(model, settings)


def windows(sources: list[str], tokenizer: Any, length: int) -> Any:
    """Texts as windows of one length, documents between BOS and EOS."""
    documents = [document for source in sources for document in ropescale.evals.read_texts(source)]
    ids = [document.ids for document in ropescale.evals.tokenize(documents, tokenizer)]
    return pack(ids, length=length, bos=tokenizer.bos_token_id, eos=tokenizer.eos_token_id)


def train(options: argparse.Namespace) -> Trainer:
    """Patches, trains, measures and saves."""
    set_seed(options.seed)
    tokenizer = AutoTokenizer.from_pretrained(options.model)
    model = AutoModelForCausalLM.from_pretrained(options.model, dtype=torch.float32)
    trained = model.config.max_position_embeddings
    ropescale.patch(model, options.schedule)
    length = options.length or model.config.max_position_embeddings
    if options.lora:
        model = with_lora(model)
    measured = ropescale.evals.read_texts(options.eval_data) if options.eval_data else None
    lengths = [trained, length] if measured else None
    callback = ropescale.TrainingCallback(
        eval_documents=measured,
        lengths=lengths,
        tokenizer=tokenizer,
        progress=bool(measured),  # a bar, or a line per minute where there is no terminal
    )
    collator: Any = default_data_collator
    if options.mixed:
        collator = MixedWindows(short=trained, bos=tokenizer.bos_token_id)
    elif options.pose:
        collator, length = PoseWindows(target=length), trained
    out = Path(options.out)
    arguments = TrainingArguments(
        output_dir=f"{out}-training",
        max_steps=options.steps,
        learning_rate=options.learning_rate,
        warmup_steps=min(20, options.steps // 2),
        lr_scheduler_type="constant_with_warmup",
        adam_beta2=0.95,
        per_device_train_batch_size=1,
        gradient_accumulation_steps=options.batch,
        bf16=options.bf16,
        gradient_checkpointing=options.checkpointing,
        save_steps=max(1, options.steps // 4),
        save_total_limit=2,
        logging_steps=10,
        report_to=options.report_to,
        seed=options.seed,
        use_cpu=not torch.cuda.is_available(),
    )
    trainer = Trainer(
        model,
        arguments,
        train_dataset=windows(options.data, tokenizer, length),
        data_collator=collator,
        processing_class=tokenizer,
        callbacks=[callback],
    )
    callback.log = trainer.log
    last = get_last_checkpoint(arguments.output_dir) if Path(arguments.output_dir).is_dir() else None
    with chunked_loss(model):  # no logits of the whole vocabulary; leave it out under FSDP
        trainer.train(resume_from_checkpoint=last)
    if trainer.is_world_process_zero():
        ropescale.save(trainer.model, out)
    return trainer


def parsed(words: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="a folder or a Hub id")
    parser.add_argument("--schedule", required=True, help="such as yarn:factor=8")
    parser.add_argument("--data", action="append", required=True, help="text to train on; may be repeated")
    parser.add_argument("--eval-data", help="text to measure on, which is not trained on")
    parser.add_argument("-o", "--out", required=True, help="the folder of the result")
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--batch", type=int, default=64, help="windows of a step, of each process")
    parser.add_argument("--learning-rate", type=float, default=2e-5)
    parser.add_argument("--length", type=int, help="positions of a window (default: what the schedule is for)")
    parser.add_argument("--lora", action="store_true", help="train an adapter (pip install 'ropescale[adapters]')")
    parser.add_argument("--mixed", action="store_true", help="half of the batches in windows of the trained length")
    parser.add_argument("--pose", action="store_true", help="windows of the trained length with skipped positions")
    parser.add_argument("--bf16", action="store_true")
    parser.add_argument("--report-to", nargs="+", default=[], help="wandb, tensorboard: eval_ppl_2048 is eval/ppl_2048")
    parser.add_argument("--checkpointing", action="store_true", help="compute activations again, for memory")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args(words)


if __name__ == "__main__":
    train(parsed())
