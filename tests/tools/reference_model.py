"""Makes the bundled model: ``python tests/tools/reference_model.py train OUT``, and ``teach OUT`` its adapter.

``train``: a Llama of 3.5 M parameters on the running Python's standard library, at 256 tokens with theta 10000; an hour
on two cores. ``teach``: a LoRA adapter of its attention, by which it answers ``ropescale retrieval`` within its 256
tokens: generated prompts with the loss on the answers, held on windows of its own text to what it predicted before.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import sysconfig
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from torch.nn import functional
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from ropescale.evals.reference import CHECKPOINT, HELD_OUT

BOS = "<|bos|>"


def training_documents() -> list[str]:
    """Every ``.py`` file of the library and its tests in UTF-8 but the held-out ones, in order of path."""
    root, texts = Path(sysconfig.get_path("stdlib")), []
    for path in sorted(root.rglob("*.py")):
        below = path.relative_to(root)
        if below.as_posix() in HELD_OUT or {"site-packages", "dist-packages", "__pycache__"} & set(below.parts):
            continue
        try:
            texts.append(path.read_text(encoding="utf-8"))
        except UnicodeDecodeError:
            continue
    return [text for text in texts if text]


def train_tokenizer(documents: list[str], vocabulary: int, length: int) -> PreTrainedTokenizerFast:
    """A byte-level BPE with one special token, which begins every document."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary, special_tokens=[BOS], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(documents, trainer)
    special = [(BOS, tokenizer.token_to_id(BOS))]
    tokenizer.post_processor = processors.TemplateProcessing(single=f"{BOS} $A", special_tokens=special)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token=BOS, eos_token=BOS, model_max_length=length)


def joined(documents: list[str], tokenizer: Any) -> torch.Tensor:
    """All documents end to end, each after a BOS, int64 [tokens]."""
    encoded = tokenizer.backend_tokenizer.encode_batch(documents)
    return torch.cat([torch.tensor(document.ids, dtype=torch.int64) for document in encoded])


def build(tokenizer: Any, length: int, head_dim: int, theta: float, seed: int) -> LlamaForCausalLM:
    """The untrained model: 4 layers, 4 heads of 64 over 2 KV heads (or more, narrower ones), tied embeddings."""
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=256,
        intermediate_size=704,
        num_hidden_layers=4,
        num_attention_heads=256 // head_dim,
        num_key_value_heads=128 // head_dim,
        head_dim=head_dim,
        max_position_embeddings=length,
        rope_parameters={"rope_type": "default", "rope_theta": theta},
        tie_word_embeddings=True,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.bos_token_id,
    )
    torch.manual_seed(seed)
    return LlamaForCausalLM(config)


def batches(ids: torch.Tensor, rows: int, length: int, seed: int) -> Iterator[torch.Tensor]:
    """Random windows, int64 [rows, length], forever."""
    generator = torch.Generator().manual_seed(seed)
    while True:
        starts = torch.randint(len(ids) - length + 1, (rows, 1), generator=generator)
        yield ids[starts + torch.arange(length)]


def rate(step: int, steps: int, warmup: int) -> float:
    """A linear warm-up to 2e-3, then a cosine down to a hundredth of it."""
    if step < warmup:
        return 2e-3 * (step + 1) / warmup
    return 2e-3 * (0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * (step - warmup) / max(1, steps - warmup))))


def train(out: Path, given: argparse.Namespace, documents: list[str] | None = None) -> None:
    """Trains from scratch, and saves bf16 safetensors with the tokenizer."""
    documents = documents or training_documents()
    tokenizer = train_tokenizer(documents, given.vocabulary, given.length)
    ids, model = joined(documents, tokenizer), build(tokenizer, given.length, given.head_dim, given.theta, given.seed)
    groups: list[dict[str, Any]] = [
        {"params": [p for p in model.parameters() if p.dim() >= 2], "weight_decay": 0.1},
        {"params": [p for p in model.parameters() if p.dim() < 2], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=2e-3, betas=(0.9, 0.95))
    windows = batches(ids, 8192 // given.length, given.length, given.seed)
    for step, batch in enumerate(islice(windows, given.steps)):
        for group in optimizer.param_groups:
            group["lr"] = rate(step, given.steps, 100)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = model(input_ids=batch, labels=batch, use_cache=False).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % 100 == 0:
            print(f"step {step:5d}  loss {loss.item():.4f}", flush=True)
    model.bfloat16().save_pretrained(out)
    tokenizer.save_pretrained(out)


def lesson(tokenizer: Any, texts: list[str], dice: random.Random, longest: int) -> tuple[list[int], list[int]]:
    """Ids and labels of a prompt that hides a key in a text and asks for it; no key is a multiple of 3."""
    key = 3 * dice.randrange(3334, 33333) + dice.choice([1, 2])
    hidden, question = f" The pass key is {key}.", " The pass key is"
    head, tail, answer = (tokenizer(t, add_special_tokens=False)["input_ids"] for t in (hidden, question, f" {key}"))
    text = dice.choice(texts)
    start, room = dice.randrange(max(1, len(text) - 2000)), longest - 1 - len(head) - len(tail) - len(answer)
    filler = tokenizer(text[start : start + 2000], add_special_tokens=False)["input_ids"][: max(0, room)]
    cut = dice.randrange(len(filler) + 1)
    ids = [tokenizer.bos_token_id, *filler[:cut], *head, *filler[cut:], *tail, *answer]
    return ids, [-100] * (len(ids) - len(answer)) + answer


def teach(out: Path, given: argparse.Namespace, texts: list[str] | None = None) -> None:
    """Trains the adapter, and saves it under the name of its base alone."""
    from peft import LoraConfig, get_peft_model

    torch.manual_seed(given.seed)
    tokenizer = AutoTokenizer.from_pretrained(CHECKPOINT)
    settings = LoraConfig(
        r=8, lora_alpha=16, target_modules=["q_proj", "k_proj", "v_proj", "o_proj"], task_type="CAUSAL_LM"
    )
    model: Any = get_peft_model(AutoModelForCausalLM.from_pretrained(CHECKPOINT, dtype=torch.float32), settings)
    texts, dice = texts or training_documents()[::8], random.Random(given.seed)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=2e-3, betas=(0.9, 0.95), weight_decay=0.0)
    for step, batch in enumerate(islice(batches(joined(texts, tokenizer), 4, 256, given.seed), given.steps)):
        for group in optimizer.param_groups:
            group["lr"] = rate(step, given.steps, 20)
        optimizer.zero_grad()
        longest = min(256, 64 + 192 * step // 80)
        for _ in range(6):
            ids, labels = (torch.tensor([each]) for each in lesson(tokenizer, texts, dice, dice.randint(64, longest)))
            (model(input_ids=ids, labels=labels, use_cache=False).loss / 6).backward()
        with torch.no_grad(), model.disable_adapter():
            before = model(input_ids=batch, use_cache=False).logits.log_softmax(-1)
        after = model(input_ids=batch, use_cache=False).logits.log_softmax(-1)
        (functional.kl_div(after, before, reduction="sum", log_target=True) / batch.numel()).backward()
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
    model.save_pretrained(str(out))
    config = out / "adapter_config.json"
    named = {**json.loads(config.read_text(encoding="utf-8")), "base_model_name_or_path": CHECKPOINT.name}
    config.write_text(json.dumps(named, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def parsed(words: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=("train", "teach"))
    parser.add_argument("out", type=Path)
    parser.add_argument("--steps", type=int, help="3,000, or 240 to teach")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--length", type=int, default=256)
    parser.add_argument("--head-dim", type=int, default=64)
    parser.add_argument("--theta", type=float, default=10000.0)
    parser.add_argument("--vocabulary", type=int, default=2048)
    given = parser.parse_args(words)
    given.steps = given.steps or (3000 if given.action == "train" else 240)
    return given


if __name__ == "__main__":
    asked = parsed()
    (train if asked.action == "train" else teach)(asked.out, asked)
