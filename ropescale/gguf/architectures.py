"""How stock llama.cpp treats RoPE, for each architecture that a GGUF file can name.

The lists were read from the source that llama-cpp-python 0.3.36 builds (llama.cpp of October 2026), and a test compares
them with that source.
"""

SOURCE = "the llama.cpp of llama-cpp-python 0.3.36"

NO_ROPE = frozenset(
    "arwkv7 bloom clip glm5-next gpt2 gptj jais jamba jina-bert-v2 kimi-k3 kimi-linear mamba mamba2 mpt nemotron_h "
    "nemotron_h_moe refact rwkv6 rwkv6qwen2 rwkv7 t5 t5encoder wavtokenizer-dec".split()
)
"""Architectures without rotary embeddings."""

ROPE = frozenset(
    "afmoe apertus arcee arctic baichuan bailingmoe bailingmoe2 bailingmoe3 bert bitnet chameleon chatglm codeshell "
    "cogvlm cohere2 cohere2moe command-r dbrx deci deepseek deepseek2 deepseek2-ocr deepseek32 deepseek4 dflash dots1 "
    "dots3note dream eagle3 ernie4_5 ernie4_5-moe eurobert exaone exaone-moe exaone4 falcon falcon-h1 gemma "
    "gemma-embedding gemma2 gemma3 gemma3n gemma4 gemma4-assistant glm-dsa glm4 glm4moe gpt-oss gptneox granite "
    "granite_swa granitehybrid granitemoe graniteswitch grok grovemoe hrm_text hunyuan-dense hunyuan-moe hunyuan_vl "
    "hy_v3 hy_v4 internlm2 jais2 jina-bert-v3 laguna lfm2 lfm2moe llada llada-moe llama llama-embed llama4 maincoder "
    "maple mellum mimo2 minicpm minicpm3 minimax-01 minimax-m2 minimax-m3 mistral3 mistral4 modern-bert muse-glimmer "
    "nanbeige nemotron neo-bert nomic-bert nomic-bert-moe olmo olmo2 olmoe openelm orion paddleocr pangu-embedded phi2 "
    "phi3 phimoe plamo plamo2 plamo3 plm pockettts qwen qwen2 qwen2moe qwen2vl qwen3 qwen35 qwen35moe qwen3moe "
    "qwen3next qwen3tts qwen3vl qwen3vlmoe qwen4exp rnd1 seed_oss smallthinker smollm3 spark2_5 stablelm starcoder "
    "starcoder2 step35 talkie xverse".split()
)
"""Architectures with rotary embeddings."""

TAKES_FREQS = frozenset(
    "apertus arcee deci exaone exaone-moe exaone4 gemma4 granite granite_swa granitehybrid granitemoe llama "
    "llama-embed llama4 minicpm mistral3 nanbeige".split()
)
"""Architectures that load ``rope_freqs.weight`` and apply it."""

TAKES_LISTS = frozenset(
    "apertus deci granite granite_swa granitemoe llama llama-embed minicpm minicpm3 mistral3 phi3 phimoe".split()
)
"""Architectures that load ``rope_factors_long.weight`` and ``rope_factors_short.weight`` and apply them."""

LISTS_OF_ANY_TYPE = frozenset("minicpm3 phi3 phimoe".split())
"""Architectures in :data:`TAKES_LISTS` that use the lists under every ``rope.scaling.type``, not only ``longrope``."""

LEFT_OUT = frozenset("dflash eagle3 gemma4-assistant step35".split())
"""Architectures that apply ``rope_freqs.weight`` but are excluded from :data:`TAKES_FREQS`: draft models, and step35,
whose layers rotate different numbers of coordinates."""

READS_BETAS = frozenset("grok mistral3".split())
"""Architectures that read ``rope.scaling.yarn_beta_fast`` and ``yarn_beta_slow``; all others use 32 and 1."""

OWN_SOFTMAX_SCALE = frozenset("deepseek2 deepseek32 glm-dsa mistral4".split())
"""Architectures that derive a softmax scale from the scaling factor under every scaling type."""

READS_LOG_MULTIPLIER = frozenset("deepseek2 deepseek32 mistral3 mistral4".split())
"""Architectures that read ``rope.scaling.yarn_log_multiplier``, in which the converter writes ``mscale_all_dim``."""

OWN_LENGTH = {"chatglm", "falcon"}
"""Architectures for which the converter does not write ``max_position_embeddings`` as the context length."""

OUT_OF_REACH = frozenset("cogvlm deepseek2-ocr deepseek4".split())
"""Architectures with layers whose rotation no key determines."""

ONLY_SLIDING_ROTATES = "afmoe cohere2 cohere2moe exaone-moe exaone4 llama4 muse-glimmer smallthinker".split()
"""Architectures whose full-attention layers do not rotate if the model has sliding-window layers."""

SLIDING_UNSCALED = frozenset(
    "gemma-embedding gemma3 gemma3n gemma4 laguna mellum mimo2 modern-bert olmo2 plamo3 step35".split()
)
"""Architectures whose sliding-window layers ignore ``rope.scaling``."""

SLIDING_SHARES_THETA = frozenset("laguna mellum olmo2".split())
"""Architectures in :data:`SLIDING_UNSCALED` whose sliding-window layers use ``rope.freq_base`` (for laguna: unless the
file has a separate theta)."""

SLIDING_HAS_THETA = {"dots3note"}
"""Architectures whose sliding-window layers have a separate theta, but the same scaling as other layers."""

SLIDING_SHARES_SCALE = SLIDING_UNSCALED - SLIDING_SHARES_THETA
"""Architectures in :data:`SLIDING_UNSCALED` whose sliding-window layers still use ``rope.scaling.attn_factor``."""

_SAME_NAME = (
    "afmoe apertus arcee bitnet cohere2 dbrx dots1 ernie4_5 exaone4 falcon gemma gemma2 glm4 granite granite_swa "
    "granitemoe hrm_text hy_v3 hy_v4 jais2 laguna lfm2 llama mellum minicpm minicpm3 nemotron olmo olmo2 olmoe "
    "phi3 phimoe qwen2 qwen3 seed_oss smollm3 stablelm starcoder2"
).split()
_OTHER_NAME = (
    "bamba:granitehybrid cohere:command-r cohere2_moe:cohere2moe deepseek_v2:deepseek2 deepseek_v3:deepseek2 "
    "deepseek_v32:deepseek32 deepseek_v4:deepseek4 dots3_note_text:dots3note ernie4_5_moe:ernie4_5-moe "
    "exaone_moe:exaone-moe falcon_h1:falcon-h1 gemma3_text:gemma3 gemma3n_text:gemma3n gemma4_text:gemma4 "
    "gemma4_unified_text:gemma4 glm:chatglm glm4_moe:glm4moe glm4_moe_lite:deepseek2 glm_moe_dsa:glm-dsa "
    "gpt_neox:gptneox gpt_oss:gpt-oss granitemoe_swa:granite_swa granitemoehybrid:granitehybrid "
    "granitemoeshared:granitemoe hunyuan_v1_dense:hunyuan-dense hunyuan_v1_moe:hunyuan-moe internlm3:llama "
    "iquestcoder:llama lfm2_moe:lfm2moe llama4_text:llama4 mimo_v2_flash:mimo2 minimax_m2:minimax-m2 "
    "ministral3:mistral3 mistral:llama mixtral:llama olmo3:olmo2 phi:phi2 qwen2_moe:qwen2moe "
    "qwen3_5_moe_text:qwen35moe qwen3_5_text:qwen35 qwen3_moe:qwen3moe qwen3_next:qwen3next "
    "qwen4_exp_text:qwen4exp solar_open:glm4moe youtu:deepseek2"
).split()

OF_MODEL_TYPES = {
    **{name: name for name in _SAME_NAME},
    **{pair.partition(":")[0]: pair.partition(":")[2] for pair in _OTHER_NAME},
}
"""The architecture that the converter writes for each model type of transformers that it supports.

``minicpm`` comes with its own Python code, and the converter knows ``phimoe`` by its vendor's class name.
"""

OF_WRAPPERS = {"mistral3": {"ministral3": "mistral3", "mistral": "mistral3", "mistral4": "mistral4"}}
"""The architecture that the converter writes for a wrapped language model, by the types of wrapper and model."""

SAME_CLASS = {"DeepseekV3ForCausalLM": "deepseek_v3"}
"""The model type of transformers whose class also loads other model types, such as Kimi K2."""
