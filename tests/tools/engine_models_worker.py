"""Builds models by the model files of vLLM or SGLang, and prints the tables of the rotary layers that they ask for.

``python engine_models_worker.py ENGINE FOLDER MODULES INNER``: FOLDER has the engine's Python files, MODULES the module
and class of each architecture, INNER the architecture of each model type. The model files, the rotary layers and the
reading of configurations are the engine's; everything else of it (kernels, linear layers, platforms) is a stand-in that
does nothing. Reads one JSON object ``{"config": ...}`` per line, and answers each with one line: the tables by the path
of the layer, or ``{"error": ...}`` if a rotary layer cannot be built.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import json
import re
import sys
import types
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, Protocol

import torch
import transformers

OWN = {
    "vllm": (
        "vllm.model_executor.models vllm.models vllm.model_executor.layers.rotary_embedding "
        "vllm.transformers_utils.configs vllm.transformers_utils.config vllm.config.utils"
    ).split(),
    "sglang": "sglang.srt.models sglang.srt.layers.rotary_embedding sglang.srt.configs".split(),
}
"""The packages of which the engine's own code runs."""

STOOD_IN = ("vllm.model_executor.models.interfaces", "vllm.model_executor.models.registry")
FOREIGN = re.compile(r"vision|visual|audio|indexer|mtp|nextn", re.IGNORECASE)
"""What the names of parts have that are not the language model's layers."""


class StandInClass(type(Protocol)):
    """The class of every class that stands for one of the engine's: whatever is done with it gives another."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return stand_in(name)

    def __call__(cls, *given: Any, **named: Any) -> Any:
        if "is_stand_in" not in vars(cls):
            return super().__call__(*given, **named)
        if len(given) == 1 and not named and isinstance(given[0], type | types.FunctionType):
            return given[0]  # a decorator
        return object.__new__(cls)

    def __iter__(cls) -> Any:
        return iter(())

    def __bool__(cls) -> bool:
        return "is_stand_in" not in vars(cls)

    def __getitem__(cls, key: Any) -> Any:
        return cls

    def __or__(cls, other: Any) -> Any:
        return cls

    def __ror__(cls, other: Any) -> Any:
        return cls


class StandIn(metaclass=StandInClass):
    """An object that stands for one of the engine's."""

    is_stand_in = True

    def __init__(self, *_: Any, **__: Any) -> None:
        """Takes whatever it is given."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        found = stand_in(name)
        return found() if isinstance(found, StandInClass) and "is_stand_in" in vars(found) else found

    def __call__(self, *given: Any, **named: Any) -> Any:
        is_decorator = len(given) == 1 and not named and isinstance(given[0], type | types.FunctionType)
        return given[0] if is_decorator else StandIn()


def _same(self: Any, *_: Any, **__: Any) -> Any:
    return self


for _name in "add radd sub rsub mul rmul floordiv rfloordiv truediv rtruediv mod getitem enter neg or ror and".split():
    setattr(StandIn, f"__{_name}__", _same)
for _name, _value in {"bool": False, "int": 1, "index": 1, "len": 0, "float": 1.0}.items():
    setattr(StandIn, f"__{_name}__", lambda self, value=_value: value)
for _name in ("lt", "gt", "le", "ge", "contains"):
    setattr(StandIn, f"__{_name}__", lambda self, *_: False)
    setattr(StandInClass, f"__{_name}__", lambda self, *_: False)


def _exit(self: Any, *failed: Any) -> bool:
    """Leaves out a part that fails, such as an image encoder."""
    return True


StandIn.__exit__ = _exit
StandIn.__iter__ = lambda self: iter(())
StandIn.__setitem__ = lambda self, key, value: None


def stand_in(name: str) -> Any:
    """Returns a class that stands for one of the engine's, or what must work."""
    if name not in WORKS and name.endswith(("_size", "_rank")):
        number = int(name.endswith("_size"))
        return (lambda *_, **__: number) if name.startswith("get_") else number
    return WORKS[name] if name in WORKS else StandInClass(name, (StandIn,), {"is_stand_in": True})


class Operation(torch.nn.Module):
    """A module that may have kernels of its own; here it has none."""

    def __init__(self, *_: Any, **__: Any) -> None:
        super().__init__()

    @staticmethod
    def register(*_: Any, **__: Any) -> Any:
        return lambda cls: cls

    @staticmethod
    def enabled() -> bool:
        return False


YES, NO = (lambda *_, **__: True), (lambda *_, **__: False)


class Served(StandIn):
    """An object of the engine's of which some attributes are known."""

    def __init__(self, **known: Any) -> None:
        vars(self).update(known)

    def with_hf_config(self, hf_config: Any, architectures: list[str] | None = None) -> Served:
        """Returns the configuration of a model inside this one."""
        stated = architectures or getattr(hf_config, "architectures", None)
        return _served(hf_config, stated or [INNER[hf_config.model_type]])


GROUP = Served(is_first_rank=True, is_last_rank=True, world_size=1, rank_in_group=0, rank=0)
SERVED = Served()


class Device(str):
    """A device by name; SGLang has two functions of one name, and one of them returns an object that has it."""

    device = "cpu"


WORKS: dict[str, Any] = {
    **dict.fromkeys(("CustomOp", "PluggableLayer", "BaseFusedOp", "MultiPlatformOp"), Operation),
    **dict.fromkeys(("get_pp_group", "get_tp_group", "get_ep_group", "get_dcp_group"), lambda: GROUP),
    "make_layers": lambda number, build, *_, **named: _layers(number, build, **named),
    "initialize_model": lambda **named: _initialize(**named),
    "get_rope_config": lambda read: _stated(read),
    "get_hf_text_config": lambda read: read.get_text_config(),
    "divide": lambda a, b: a // b,
    "get_pp_indices": lambda layers, rank, size: (0, layers),
    "wrap_modules": list,
    "resolve_linear_parallel_group": lambda *_, **__: (0, 1),
    "is_cpu": YES,
    "add_prefix": lambda name, prefix: f"{prefix}.{name}" if prefix else name,
    **dict.fromkeys("is_cuda is_hip is_mps is_musa is_npu is_xpu has_flashinfer get_bool_env_var".split(), NO),
    "get_device": lambda: Device("cpu"),
    **dict.fromkeys(("device", "device_type"), "cpu"),
    **dict.fromkeys(("dtype", "params_dtype"), torch.float32),
    "register_customized_processor": lambda *_, **__: lambda cls: cls,
    "append_stages": lambda *_, **__: (StandIn(), StandIn()),
    "publish_role": lambda: None,
    "get_current_vllm_config": lambda: SERVED,
    **dict.fromkeys(("get_video_pruning_spec", "get_multimodal_pruning_spec"), lambda *_, **__: None),
    "is_torch_equal_or_newer": YES,
    "init_logger": lambda *_: StandIn(),
    **dict.fromkeys(("pp_group", "tp_group", "attn_tp_group"), GROUP),
    "make_pp_layers": lambda number, build, *_, **__: _layers(number, build, pp_size=1),
}


LENGTH = 1024


def _layers(number: int, build: Callable[..., Any], *_: Any, **named: Any) -> Any:
    """Returns what SGLang's ``make_layers`` does: the layers, and their bounds where these are asked for."""
    layers = torch.nn.ModuleList([build(idx=idx, prefix=f"layers.{idx}") for idx in range(number)])
    return (layers, 0, number) if named.get("pp_size") is not None else layers


def _stated(read: Any) -> tuple[float, Any]:
    """Returns theta and scaling of a configuration of transformers 5, as SGLang's model files ask for them."""
    parameters = getattr(read, "rope_parameters", None)
    theta = getattr(read, "rope_theta", 10000)
    return (theta, None) if parameters is None else (parameters.get("rope_theta", theta), parameters)


class StandIns(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds every module of the engine that is not in OWN, and the missing ones of others, and makes an empty one."""

    def __init__(self, engine: str) -> None:
        self.engine, self.missing = engine, set[str]()

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        top = name.partition(".")[0]
        if top == self.engine:
            if name not in STOOD_IN and any(f"{name}.".startswith(f"{own}.") for own in OWN[self.engine]):
                folder = "/".join([sys.argv[2], *name.split(".")[:-1]])
                return importlib.machinery.PathFinder.find_spec(name, [folder])
        elif top not in self.missing:
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return _Empty(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        """An empty module has nothing to run."""


class _Empty(types.ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return stand_in(name)


# ---------------------------------------------------------------------------------------------------------


FOUND: dict[str, Any] = {}
"""The rotary layers of the model under construction."""

ASKING: set[str] = set()
"""The model files that asked for them."""


def _where() -> str | None:
    """Returns the path of the layer that asks for a table, or None if it is not the language model's."""
    path, frame = "", sys._getframe(2)
    while frame is not None and frame.f_code.co_name not in ("_tables", "<module>"):
        own, seen = type(frame.f_locals.get("self")).__name__, frame.f_locals
        prefix = seen.get("prefix")
        if FOREIGN.search(own) or (isinstance(prefix, str) and FOREIGN.search(prefix)):
            return None
        number = next((seen[name] for name in ("layer_id", "layer_idx", "idx") if type(seen.get(name)) is int), None)
        if not path and isinstance(prefix, str) and re.search(r"layers?\.\d+", prefix):
            path = f"{prefix}."
        elif not path and number is not None:
            path = f"layers.{number}."
        frame = frame.f_back
    return path


def _recorded(get_rope: Callable[..., Any]) -> Callable[..., Any]:
    def recording(*given: Any, **named: Any) -> Any:
        path = _where()
        if path is not None:
            ASKING.add(sys._getframe(1).f_globals["__name__"])
        try:
            layer = get_rope(*given, **named)
        except Exception as error:
            if path is not None:
                FOUND["error"] = f"{type(error).__name__}: {error}"
            raise
        if path is not None:
            FOUND[f"{path}{len(FOUND)}"] = layer
        return layer

    return recording


def _table(layer: Any) -> dict[str, Any]:
    """Returns the frequencies of a layer, by the angles of position 1, and whether its pairs are halves."""
    both = getattr(layer, "long_short_cos_sin_cache", None)  # the short list first
    cache = layer.cos_sin_cache if both is None else both[layer.original_max_position_embeddings :]
    cos, sin = cache[1].double().chunk(2)
    return {"halves": bool(getattr(layer, "is_neox_style", True)), "inv_freq": torch.atan2(sin, cos).tolist()}


def _served(read: Any, architectures: list[str]) -> Served:
    read.architectures = architectures
    text = read.get_text_config()
    latent = hasattr(text, "kv_lora_rank")
    model = Served(hf_config=read, hf_text_config=text, max_model_len=LENGTH, dtype=torch.float32, use_mla=latent)
    model.get_hidden_size = lambda: text.hidden_size
    known = dict.fromkeys(("quant_config", "lora_config", "speculative_config"))
    return Served(model_config=model, cache_config=Served(block_size=16), **known)


def _initialize(vllm_config: Any, prefix: str = "", **_: Any) -> Any:
    cls = _class(vllm_config.model_config.hf_config.architectures[0])
    return cls(vllm_config=vllm_config, prefix=prefix)


def _tables(config: dict[str, Any]) -> dict[str, Any]:
    """Returns what the rotary layers were built from, even if another part of the model cannot be built."""
    config = {key: value for key, value in config.items() if "__float__" not in str(value)}
    [architecture] = config.pop("architectures")
    tables = _built(architecture, config)
    if sys.argv[1] == "sglang" and "text_config" in config and tables == {"tables": {}}:
        again = _built(architecture, config, whole=True)
        return {**again, "whole": True} if again != tables else tables
    return tables


def _built(architecture: str, config: dict[str, Any], whole: bool = False) -> dict[str, Any]:
    """Builds a model; ``whole`` gives its whole configuration what the inner one has, as SGLang's loading does."""
    added: dict[str, Any] = {}
    for _ in range(20):
        FOUND.clear()
        ASKING.clear()
        CACHED.clear()  # a model may change the layers that it is given
        try:
            _build(architecture, config, added, whole)
        except (Exception, SystemExit) as error:
            name = re.search(r"Config' object has no attribute '(\w+)'", str(error))
            if name and name[1] not in added and not re.search("pattern|rope|theta|swa|layer_types", name[1]):
                added[name[1]] = _published(config, name[1])
                continue
            # a part without rotary layers
        break
    if "error" in FOUND:
        return {"error": FOUND["error"]}
    if any(map(_rotates_itself, ASKING)):
        FOUND.clear()
    return {"tables": {path: _table(layer) for path, layer in FOUND.items()}}


def _rotates_itself(module: str) -> bool:
    """Whether a model file has rotary layers of its own, so that those that it asks for may be unused."""
    own = (name for name, value in vars(sys.modules[module]).items() if getattr(value, "__module__", "") == module)
    return any("RotaryEmb" in name and not FOREIGN.search(name) for name in own)


def _build(architecture: str, config: dict[str, Any], added: dict[str, Any], whole: bool) -> None:
    read = transformers.AutoConfig.for_model(**config)
    if whole:
        inner = vars(read.get_text_config()).items()
        vars(read).update({key: value for key, value in inner if not hasattr(read, key) and value is not None})
    for section in (read, read.get_text_config()):
        vars(section).update({key: value for key, value in added.items() if not hasattr(section, key)})
    served = _served(read, [architecture])
    SERVED.model_config = served.model_config
    if sys.argv[1] == "vllm":
        importlib.import_module("vllm.transformers_utils.config").patch_rope_parameters(read.get_text_config())
        _class(architecture)(vllm_config=served, prefix="")
    else:
        _class(architecture)(read)


def _published(config: dict[str, Any], name: str) -> Any:
    """Returns what files on the Hub state, and transformers 5 derives or does not save."""
    section = config.get("text_config") or config
    head = section.get("head_dim") or section["hidden_size"] // section["num_attention_heads"]
    share = (section.get("rope_parameters") or {}).get("partial_rotary_factor") or 1
    known = {"head_dim": head, "rotary_dim": int(head * share), "partial_rotary_factor": share}
    kinds = section.get("layer_types") or ()
    if sys.argv[1] == "sglang" and "qwen3_5" in str(section.get("model_type")):  # whose configuration there is its own
        known["layers_block_type"] = ["attention" if kind == "full_attention" else kind for kind in kinds]
    return known.get(name, StandIn())


def _leave_out_seeing(module: types.ModuleType) -> None:
    """Replaces the image and sound encoders of a model file, so that the language model after them is built."""
    for name, value in list(vars(module).items()):
        is_layer = isinstance(value, type) and issubclass(value, torch.nn.Module)
        if is_layer and FOREIGN.search(name) and "For" not in name:
            setattr(module, name, stand_in(name))


@cache
def _class(architecture: str) -> Any:
    """Returns the class of the engine that runs an architecture."""
    module, name = MODULES[architecture]
    while True:
        try:
            found = getattr(importlib.import_module(module), name)
            for base in getattr(found, "__mro__", ()) if sys.argv[1] == "sglang" else ():
                if base.__module__.startswith(OWN["sglang"][0]):
                    _leave_out_seeing(sys.modules[base.__module__])
            return found
        except ModuleNotFoundError as error:
            top = str(error.name).partition(".")[0]
            if top in (*FINDER.missing, sys.argv[1]):
                raise
            FINDER.missing.add(top)


def main() -> None:
    answers, sys.stdout = sys.stdout, sys.stderr
    for line in sys.stdin:
        try:
            answer = _tables(json.loads(line)["config"])
        except (Exception, SystemExit) as error:  # any error of any model's code is the answer
            answer = {"error": f"{type(error).__name__}: {error}"[:300]}
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    MODULES, INNER = json.loads(sys.argv[3]), json.loads(sys.argv[4])
    FINDER = StandIns(sys.argv[1])
    sys.meta_path.insert(0, FINDER)
    torch.nn.Module.add_module = lambda self, name, module: self._modules.update({name: module})
    missing = torch.nn.Module.__getattr__
    torch.nn.Module.__getattr__ = lambda self, name: (
        StandIn() if name.startswith(("_mark_", "configure_")) else missing(self, name)
    )
    package = importlib.import_module(OWN[sys.argv[1]][2 if sys.argv[1] == "vllm" else 1])
    inside = importlib.import_module(f"{package.__name__}.factory") if sys.argv[1] == "sglang" else package
    CACHED = inside._ROPE_DICT
    if sys.argv[1] == "sglang":
        torch.ops.sgl_kernel = StandIn()
        registry = Served(resolve_model_cls=lambda name: (_class(name), name))
        importlib.import_module("sglang.srt.models").registry = Served(ModelRegistry=registry)
    package.get_rope = _recorded(package.get_rope)
    package.get_rope_wrapper = lambda *given, device=None, **named: package.get_rope(*given, **named)
    main()
