"""Prepares a measurement from names: reads and checks everything cheap first, and the weights last."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from ...adapters import Adapter, attached, find_loadable, read_configs, remarks
from ...checkpoints.loading import has_tokenizer, load_model, load_tokenizer
from ...configs.configuration import trained_in
from ...errors import DataError, ScheduleError
from ...files import local_path, read_bytes
from ...output.formatting import listed
from ...planning.plan import Plan, check_taken, lacks_factor, make_plan, share_of
from ...schedules import specs
from ...schedules.specs import Spec, of_several, spelled_out
from ..data.sources import TextSource
from ..data.windows import check_lengths, check_stride
from ..parallel.processes import World
from .corpus_run import refuse_impossible
from .perplexity import PerplexityRun
from .progress import Notes
from .selection import Corpus, PerplexityOptions

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from ...request import Request, RequestOptions


_LARGEST_TEMPLATE = 1 << 20
"""Bytes of a chat template."""


@dataclass(frozen=True)
class Checkpoint:
    """The folder of a model, or of an adapter of one, or its name on the Hub; and how it is loaded.

    Attributes:
        name: the folder or the name; ``revision`` is a branch, tag or commit.
        trust_remote_code: run the Python code that it brings.
        dtype, device, device_map: as for :func:`ropescale.checkpoints.loading.load_model`.
        tp: the processes share each layer.
        chat_template: the file of a Jinja template, in the place of the tokenizer's own.
        weights: whether they are needed; a server has its own.
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
        """The folder, its weights included where they are needed."""
        folder, adapter = self._found
        return folder if adapter is None else adapter.folder

    @property
    def adapter(self) -> Adapter | None:
        """The adapter and its base; None for a whole model."""
        return self._found[1]

    @cached_property
    def _found(self) -> tuple[Path, Adapter | None]:
        return find_loadable(self.name, self.revision, weights=self.weights)

    def warn(self, notes: Notes) -> None:
        """Says what is to be known of the frequencies that an adapter is measured under."""
        for remark in remarks(self.adapter) if self.adapter else ():
            notes.warn(f"warning: {remark}")

    def tokenizer(self) -> PreTrainedTokenizerBase:
        """Loads the tokenizer: an adapter's own where it has one, else its base's; with the chat template asked for.

        Raises:
            RopescaleError: the template cannot be read.
        """
        tokenizer = self._own_tokenizer()
        if self.chat_template is not None:
            try:
                tokenizer.chat_template = read_bytes(local_path(self.chat_template), _LARGEST_TEMPLATE).decode()
            except UnicodeDecodeError:
                raise DataError(f"{self.chat_template} is not UTF-8; name a Jinja file", "chat_template") from None
        return tokenizer

    def _own_tokenizer(self) -> PreTrainedTokenizerBase:
        trusted, adapter = self.trust_remote_code, self.adapter
        if adapter is None:
            return load_tokenizer(self.folder, trust_remote_code=trusted)
        own = has_tokenizer(adapter.folder)
        folder = adapter.folder if own else adapter.base_folder
        return load_tokenizer(folder, trust_remote_code=trusted, base=adapter.base_folder)

    def model(self, here: World) -> PreTrainedModel:
        """Loads the model, in a process that has its own device where there are several; an adapter on its base."""
        adapter = self.adapter
        if adapter is None:
            return self._loaded(self.folder, here)
        own = self.tokenizer() if has_tokenizer(adapter.folder) else None
        return attached(self._loaded(adapter.base_folder, here), adapter.folder, own)

    def _loaded(self, folder: Path, here: World) -> PreTrainedModel:
        return load_model(
            folder,
            self.dtype,
            here.device(self.device),
            trust_remote_code=self.trust_remote_code,
            device_map=self.device_map,
            tensor_parallel=self.tp,
        )

    @cached_property
    def configs(self) -> tuple[Mapping[str, object], Mapping[str, object]]:
        """The configuration without our scaling, and as it is; no weights are needed."""
        return read_configs(self.name, self.revision)

    @property
    def config(self) -> Mapping[str, object]:
        """The configuration without our scaling."""
        return self.configs[0]

    def asked(self, wanted: Wanted, longest: int) -> FilledSchedules:
        """Fills a request into several schedules, and makes sure that each fits the configuration.

        Args:
            longest: the largest length that is measured; gives the factor where nothing else does.

        Raises:
            ScheduleError, ConfigError: a schedule that does not exist, does not fit, or contradicts the request; an
                option that no schedule takes; scaling that is there already and no word on what to do.
        """
        schedules, baseline, request = wanted
        config = self.configs[request.on_top]
        named = [specs.parse(spec) for spec in [*schedules, *([] if baseline is None else [baseline])]]
        check_taken(named, request)
        plans: list[Plan] = []
        without, note = [], ""
        for spec in named:
            share = share_of(spec, request)
            if share.target_length is None and lacks_factor(spec, share):
                trained = request.original_length or trained_in(config)
                if longest > trained:
                    share = dataclasses.replace(share, target_length=longest)
                    without.append(spelled_out(spec))
                    taken = f"{longest / trained:g} is taken, the largest length over the trained one"
                    note = f"no factor is given; {taken} ({longest:,} / {trained:,})"
            with of_several(spec, len(named)):
                plans.append(make_plan(config, share))
        if request.freeze_at and not any(layer.is_frozen for plan in plans for layer in plan.layers.values()):
            raise ScheduleError(
                "freeze_at is given, and no schedule whose tables depend on the length; name one, such as dynamic, "
                "or leave freeze_at out",
                "freeze_at",
            )
        filled = [_filled(spec, plan) for spec, plan in zip(named, plans, strict=True)]
        base = None if baseline is None else filled[-1]
        return FilledSchedules(
            filled[: len(schedules)], base, _everywhere(request), f"{listed(without)}: {note}" if without else ""
        )


Wanted = tuple[Sequence[object], object, "Request"]
"""Schedules, the baseline (or None), and a request that holds for all of them."""


@dataclass(frozen=True)
class FilledSchedules:
    """The schedules to measure and the baseline, with the fields that were asked for, and how they are patched in."""

    schedules: Sequence[object]
    baseline: object
    patching: RequestOptions
    note: str = ""

    def tell(self, notes: Notes) -> None:
        """Says what was filled in that nobody gave."""
        if self.note:
            notes.tell(f"note: {self.note}")


def _everywhere(request: Request) -> RequestOptions:
    """Returns the options of a request that hold for every schedule; the others are filled into the schedules."""
    return {
        "layers": request.layers,
        "original_length": request.original_length,
        "replace_scaling": request.replace_scaling,
        "on_top": request.on_top,
        "freeze_at": request.freeze_at,
    }


def prepare(
    checkpoint: Checkpoint,
    wanted: Wanted,
    source: TextSource,
    lengths: Sequence[int],
    bos: str | int,
    options: PerplexityOptions,
    here: World,
) -> PerplexityRun:
    """Prepares a measurement of perplexity.

    Raises:
        RopescaleError: whatever cannot be read or measured.
    """
    lengths = check_lengths(lengths)
    refuse_endless(source, options.max_docs)
    check_stride(options.stride, lengths)
    texts, asked = source.texts(), checkpoint.asked(wanted, lengths[-1])
    if options.asks_truncation:
        refuse_impossible(options.asks_truncation, lengths[-1], trained_in(checkpoint.config))
    tokenizer = checkpoint.tokenizer()
    options = dataclasses.replace(options, split_special_tokens=source.split_special_tokens, source=source.name)
    corpus = Corpus(texts, lengths, tokenizer, bos, options)
    notes = Notes.of(options.progress)
    checkpoint.warn(notes)
    asked.tell(notes)
    tell_left_out(source, corpus, notes)
    model = checkpoint.model(here)
    options = dataclasses.replace(options, patching=asked.patching, path=checkpoint.folder)
    return PerplexityRun(model, corpus, asked.schedules, asked.baseline, options)


def refuse_endless(source: TextSource, max_docs: int | None) -> None:
    """Refuses to read all of a stream.

    Raises:
        DataError: nobody says how many documents are enough.
    """
    if source.streaming and not max_docs:
        raise DataError(
            "streaming is given, and a stream may have no end; say how many documents with max_docs",
            "streaming",
            "max_docs",
        )


def tell_left_out(source: TextSource, corpus: Corpus, notes: Notes) -> None:
    """Counts and names the files of folders that were no text."""
    if source.asked.left_out:
        corpus.skipped["no_text"] = len(source.asked.left_out)
        notes.tell(f"left out: {source.left_out}")


def _filled(spec: Spec | Mapping[str, Spec], plan: Plan) -> Spec | Mapping[str, Spec]:
    """Returns a spec with the fields that its plan was made with; one per layer type where their factors differ."""
    if isinstance(spec, Mapping):
        return {key: _with_fields(part, plan, key) for key, part in spec.items()}
    parts = {key: _with_fields(spec, plan, key) for key in plan.layers}
    texts = {part.text for part in parts.values()}
    return parts if len(texts) > 1 else next(iter(parts.values()), spec)


def _with_fields(spec: Spec, plan: Plan, key: str) -> Spec:
    """Returns a spec with its overrides and the factor that it was resolved to; it keeps its name, such as a path."""
    spec = spec.with_text({name: text for name, text in plan.request.overrides.items() if spec.accepts(name)})
    factor = Spec(plan.layers[key].asked).get("factor") if key in plan.layers else None
    return spec if factor is None or factor == spec.get("factor") else spec.with_fields(factor=factor)
