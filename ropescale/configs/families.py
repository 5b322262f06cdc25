"""Special cases of model types, for patching, verifying and the engines.

They are written by hand; the defaults of transformers' configuration classes are generated (:mod:`.class_defaults`).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Family:
    """The special cases of a model type.

    Attributes:
        rope_types: the rope types that the type's configuration class accepts; empty if it accepts all.
        not_native: the accepted rope types whose native form the type's code does not compute: longrope with two
            different lists and an attention factor, or proportional if the code cuts heads by the partial factor.
        derives_attention_scale: whether the type's code computes the attention factor from
            ``max_position_embeddings`` instead of reading it.
        v4_keys: for each rope type, exactly the keys that the type's code in transformers 4 accepts in
            ``rope_scaling``.
        window: the field with the window of the rotating layers, if full-attention layers do not rotate.
        null_head_dim_in_v4: whether the class left an unstated ``head_dim`` null in transformers 4.52 to 4.57.
        table_of_head_dim: whether a type with latent attention builds its table for a stated ``head_dim``.
        positions: a predicate that describes the rotation, if the configuration does not set the frequencies.
        rotates: whether the type has rotary embeddings.
        switch: the field that turns rotation on, the value that does so, and the class's default.
        trained: the trained length for each ``max_position_embeddings`` that includes room for output.
        reached: the trained length for each ``max_position_embeddings`` that the vendor's linear scaling reaches.
        rotary_dim: the field with the number of rotating coordinates, in a type that has no partial factor.
        interleaved: whether the pairs are interleaved, (0, 1), (2, 3), instead of taken from both halves of the head.
    """

    rope_types: tuple[str, ...] = ()
    not_native: tuple[str, ...] = ()
    derives_attention_scale: bool = False
    v4_keys: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    window: str = ""
    null_head_dim_in_v4: bool = False
    table_of_head_dim: bool = False
    positions: str = ""
    rotates: bool = True
    switch: tuple[str, object, object] | None = None
    trained: Mapping[int, int] = field(default_factory=dict)
    reached: Mapping[int, int] = field(default_factory=dict)
    rotary_dim: str = ""
    interleaved: bool = False

    @property
    def takes_only_theta(self) -> bool:
        """Whether the configuration class accepts no scaling."""
        return self.rope_types == ("default",)

    def takes(self, rope_type: str) -> bool:
        """Whether the model type supports the native form of a rope type."""
        return rope_type not in self.not_native and (not self.rope_types or rope_type in self.rope_types)


def family(model_type: object) -> Family:
    """Returns the special cases of a model type, or an empty record if there are none."""
    return FAMILIES.get(str(model_type), _USUAL)


_USUAL = Family()
_PHI3 = Family(
    rope_types=("default", "longrope"),
    derives_attention_scale=True,
    v4_keys={"longrope": ("short_factor", "long_factor")},
)
_DEFAULT_ALONE = Family(rope_types=("default",))
_OLMO = Family(v4_keys={"linear": ("factor",), "dynamic": ("factor",)})
_WINDOW = Family(window="sliding_window")
_QWEN3 = Family(trained={40_960: 32_768})  # its model card: 8,192 more positions for output
_TABLE_OF_HEAD_DIM = Family(table_of_head_dim=True, interleaved=True)
_SINUSOIDS = Family(
    positions="rotates by a sinusoid table that its code computes from rotary_dim and a fixed base of 10000, not by "
    "rope_parameters"
)

_OWN_KEYS = Family(positions="rotates by its checkpoint's own code, which reads keys of its own, such as rope_ratio")

_WITHOUT_ROPE = (
    "blip_text_model glm5_next_text kosmos_2_5_text_model kosmos_2_text_model musicgen musicgen_melody "
    "pix2struct_text_model pp_formulanet_text udop"
).split()
"""Types without rotary embeddings that the table of class defaults does not mark as such."""

_INTERLEAVED = (
    "axk2 bailing_hybrid cohere deepseek_v2 deepseek_v32 deepseek_v4 dots3_note dots3_note_text ernie4_5 "
    "ernie4_5_moe glm glm4 glm4_moe_lite glm_moe_dsa helium llama4"
).split()
"""Types with interleaved pairs and no other special case."""

FAMILIES: Mapping[str, Family] = {
    **dict.fromkeys(_WITHOUT_ROPE, Family(rotates=False)),
    **dict.fromkeys(_INTERLEAVED, Family(interleaved=True)),
    **dict.fromkeys(("baichuan", "chatglm", "qwen"), _OWN_KEYS),
    "afmoe": _WINDOW,
    "axk1": _TABLE_OF_HEAD_DIM,
    "blt": Family(
        positions="keeps a rotary embedding in each of its four sub-models (patcher, encoder, global, decoder), and "
        "none of its own"
    ),
    "codegen": _SINUSOIDS,
    "cohere2": Family(window="sliding_window", interleaved=True),
    "cohere2_moe": Family(window="sliding_window", interleaved=True),
    "deepseek_v3": _TABLE_OF_HEAD_DIM,
    "cosmos3_edge_text": _DEFAULT_ALONE,
    "ernie4_5_vl_moe_text": _DEFAULT_ALONE,
    "exaone4": _WINDOW,
    "exaone_moe": _WINDOW,
    "falcon": Family(switch=("alibi", False, False)),
    "flint": _WINDOW,
    "gemma3_text": Family(reached={131_072: 32_768}),  # its report; vLLM does not multiply this maximum, either
    "gpt_neox_japanese": Family(not_native=("proportional",)),
    "gptj": _SINUSOIDS,
    "granitemoehybrid": Family(switch=("position_embedding_type", "rope", None)),
    "kolibri1": _WINDOW,
    "llama4_text": Family(window="attention_chunk_size", interleaved=True),
    "longcat_flash": _TABLE_OF_HEAD_DIM,
    "minimax_m2": Family(rotary_dim="rotary_dim"),
    "mistral": Family(null_head_dim_in_v4=True),
    "mistral4": Family(not_native=("default",)),  # whose table is of the whole head, not of the slice
    "olmo": _OLMO,
    "olmo2": _OLMO,
    "phi3": _PHI3,
    "phi4_multimodal": _PHI3,
    "phimoe": Family(rope_types=("default", "longrope"), not_native=("longrope",)),
    "qwen3": _QWEN3,
    "qwen3_moe": _QWEN3,
    "recurrent_gemma": _DEFAULT_ALONE,
    "roformer": Family(
        positions="rotates by a sinusoidal position embedding with a fixed base of 10000, not by rope_parameters"
    ),
    "youtu": _TABLE_OF_HEAD_DIM,
    "zamba2": Family(switch=("use_mem_rope", True, False)),
}
