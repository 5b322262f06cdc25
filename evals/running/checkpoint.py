"""The checkpoint of a command: its folder, its loading options, and the schedules for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from ...adapters import Adapter, attached, find_loadable, read_configs, remarks
from ...checkpoints.loading import has_tokenizer, load_model, load_tokenizer
from ...configs.configuration import trained_in
from ...files import read_given
from ...output.formatting import listed
from ...planning.plan import Plan, check_taken, lacks_factor, make_plan, refuse_unused, share_of
from ...request import Request, RequestOptions
from ...schedules import specs
from ...schedules.specs import Spec, of_several, spelled_out
from ..parallel.processes import World
from .options import Schedules
from .progress import Notes

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


_LARGEST_TEMPLATE = 1 << 20
"""The size limit of a chat template, in bytes."""


@dataclass(frozen=True)
class Checkpoint:
    """A model's or adapter's folder or Hub id, with loading options.

    A checkpoint can be used as the path of its folder, which is downloaded on demand.

    Attributes:
        name: the folder or the Hub id; ``revision`` is a branch, tag or commit.
        trust_remote_code: whether to run the checkpoint's own Python code.
        dtype, device, device_map: as for :func:`ropescale.checkpoints.loading.load_model`.
        tp: whether to shard each layer over the processes (tensor parallelism).
        chat_template: a file with a Jinja template that replaces the tokenizer's own.
        weights: whether the weights are needed; servers have their own.
    """

    name: str
    revision: str | None = None
    trust_remote_code: bool = False
    dtype: str | None = None
    device: str | None = None
    device_map: str | None = None
    tp: bool = False
    chat_template: str | None = None
    weights: bool = True

    @cached_property
    def folder(self) -> Path:
        """The checkpoint's folder, including the weights if they are needed."""
        folder, adapter = self._found
        return folder if adapter is None else adapter.folder

    def __fspath__(self) -> str:
        return str(self.folder)

    @property
    def adapter(self) -> Adapter | None:
        """The adapter and its base; None for a full model."""
        return self._found[1]

    @cached_property
    def _found(self) -> tuple[Path, Adapter | None]:
        return find_loadable(self.name, self.revision, weights=self.weights)

    def warn(self, notes: Notes) -> None:
        """Warns about an adapter's frequencies."""
        for remark in remarks(self.adapter) if self.adapter else ():
            notes.warn(f"warning: {remark}")

    def tokenizer(self) -> PreTrainedTokenizerBase:
        """Loads the tokenizer, with the requested chat template. An adapter without a tokenizer has its base's.

        Raises:
            RopescaleError: the template cannot be read.
        """
        trusted, adapter = self.trust_remote_code, self.adapter
        if adapter is None:
            tokenizer = load_tokenizer(self.folder, trust_remote_code=trusted)
        else:
            folder = adapter.folder if has_tokenizer(adapter.folder) else adapter.base_folder
            tokenizer = load_tokenizer(folder, trust_remote_code=trusted, base=adapter.base_folder)
        if self.chat_template is not None:
            tokenizer.chat_template = read_given(self.chat_template, "chat_template", _LARGEST_TEMPLATE)
        return tokenizer

    def model(self, here: World) -> PreTrainedModel:
        """Loads the model, or an adapter on its base, on this process's device."""
        adapter = self.adapter
        model = load_model(
            self.folder if adapter is None else adapter.base_folder,
            self.dtype,
            here.device(self.device),
            trust_remote_code=self.trust_remote_code,
            device_map=self.device_map,
            tensor_parallel=self.tp,
        )
        if adapter is None:
            return model
        return attached(model, adapter.folder, self.tokenizer() if has_tokenizer(adapter.folder) else None)

    @cached_property
    def configs(self) -> tuple[Mapping[str, object], Mapping[str, object]]:
        """The configuration without ropescale's scaling, and the unchanged configuration. Does not need the weights."""
        return read_configs(self.name, self.revision)

    @property
    def config(self) -> Mapping[str, object]:
        """The configuration without ropescale's scaling."""
        return self.configs[0]

    def filled(self, asked: Schedules, longest: int, notes: Notes) -> Schedules:
        """Applies the requested factor, target length and fields to several schedules, and validates them.

        Args:
            asked: the schedules and their shared ``patching`` options.
            longest: the largest measured length, which determines a factor that is not given.
            notes: receives a note on such a factor.

        Raises:
            ScheduleError, ConfigError: a schedule is unknown, does not fit, or contradicts the request; no schedule
                has a requested field; or the model is already scaled, and no option allows that.
        """
        request, given = Request.of(None, **asked.patching), list(asked.given)
        config = self.configs[request.on_top]
        named = [specs.parse(spec) for spec in [*given, *([] if asked.baseline is None else [asked.baseline])]]
        check_taken(named, request)
        plans: list[Plan] = []
        without, trained = [], 0
        for spec in named:
            share = share_of(spec, request)
            if share.target_length is None and lacks_factor(spec, share):
                trained = request.original_length or trained_in(config)
                if longest > trained:
                    share = replace(share, target_length=longest)
                    without.append(spelled_out(spec))
            with of_several(spec, len(named)):
                plans.append(make_plan(config, share))
        refuse_unused(request, {"original_length"}.union(*(plan.used for plan in plans)))
        if without:
            notes.tell(
                f"note: {listed(without)}: no factor is given; uses {longest / trained:g}, the largest length divided "
                f"by the trained length ({longest:,} / {trained:,})"
            )
        filled = [_filled(spec, plan) for spec, plan in zip(named, plans, strict=True)]
        common: RequestOptions = {**asked.patching, "factor": None, "target_length": None, "overrides": None}
        return Schedules(filled[: len(given)], None if asked.baseline is None else filled[-1], common)


def _filled(spec: Spec | Mapping[str, Spec], plan: Plan) -> Spec | Mapping[str, Spec]:
    """Returns a spec with the fields of its plan, or a spec for each layer type if the factors differ."""
    if isinstance(spec, Mapping):
        return {key: _with_fields(part, plan, key) for key, part in spec.items()}
    parts = {key: _with_fields(spec, plan, key) for key in plan.layers}
    texts = {part.text for part in parts.values()}
    return parts if len(texts) > 1 else next(iter(parts.values()), spec)


def _with_fields(spec: Spec, plan: Plan, key: str) -> Spec:
    """Returns a spec with the requested overrides and the resolved factor. Its name, such as a path, is unchanged."""
    spec = spec.with_text({name: text for name, text in plan.request.overrides.items() if spec.accepts(name)})
    factor = Spec.of(plan.layers[key].requested).get("factor") if key in plan.layers else None
    return spec if factor is None or factor == spec.get("factor") else spec.with_fields(factor=factor)
