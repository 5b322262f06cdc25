"""The outcome of a patch for every causal language model type.

``coverage.json`` holds what the sweep measured and asserts (see ``coverage_measuring.measure``);
``tests/tools/models_page.py`` measures again, and writes docs/models.md from it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

PATH = Path(__file__).with_name("coverage.json")

_REFUSED = {
    "rotates by a sinusoid table that its code computes from rotary_dim and a fixed base": "gptj codegen",
    "rotates by a sinusoidal position embedding with a fixed base": "roformer",
    "keeps a rotary embedding in each of its four sub-models": "blt",
    "no rotary position embeddings": """
        bart bert bert-generation big_bird bigbird_pegasus biogpt blenderbot blenderbot-small blip blip-2 bloom
        camembert cpmant ctrl data2vec-text electra ernie falcon_mamba florence2 git glm5_next gpt-sw3 gpt2
        gpt_bigcode gpt_neo inkling2 inkling2_text inkling_text instructblip instructblipvideo jamba kimi_linear
        kosmos-2 kosmos-2.5 mamba mamba2 marian mbart megatron-bert mpt musicgen musicgen_melody mvp nemotron_h
        nemotron_h_omni openai-gpt opt pegasus pix2struct plbart pp_formulanet prophetnet reformer rembert roberta
        roberta-prelayernorm roc_bert rwkv trocr udop whisper xglm xlm xlm-roberta xlm-roberta-xl xlnet xlstm xmod
        zamba""",
    "describes a language model in": "pi0",
    "bert has no rotary position embeddings": "vision-encoder-decoder",
}  # fmt: skip
"""The types that no schedule can be given, by the words that say so."""

REASONS = {name: words for words, names in _REFUSED.items() for name in names.split()}
ROTATING_BUT_REFUSED = {name for name, words in REASONS.items() if not words.startswith("no rotary")}

THETA_ONLY = dict.fromkeys(
    ("cosmos3_edge", "ernie4_5_vl_moe", "recurrent_gemma"),
    "supports only another rope_theta, and {} changes more; use ntk",
)
"""Types that refuse all four schedules and take another theta."""

UNMEASURED = {
    "diffusion_gemma": "no tiny model of it could be built",
    "evolla": "transformers lists it without a class that loads it",
    "hunyuan_vl": "no tiny model of it could be built: its default states no head_dim and no sections",
    "idefics": "takes no text without an image",
    "inkling_mm_model": "needs scipy",
    "mistral4": "its shrunk default states another share of a head than its slice, and does not run",
    "molmo2": "keeps a second table, for the layers outside `rope_scaling_layers`",
    "perception_lm": "needs timm",
    "t5gemma2": "an encoder and a decoder",
}
"""Types that no sweep can measure, and why."""


def load() -> dict[str, dict[str, Any]]:
    """Returns the outcomes: model type -> what ``coverage_measuring.measure`` gives."""
    return json.loads(PATH.read_text(encoding="utf-8"))
