"""The schema of an existing ``ropescale.json``: pydantic validates every part that is read.

Only :func:`ropescale.record.read_record` imports this module, and only for an existing file:
importing pydantic takes longer than a patch.
"""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat

from .configs.section import LARGEST
from .files import Data
from .output.formatting import cut
from .schedules import Frequencies

Length = Annotated[int, Field(gt=0, le=LARGEST)]
_LONGEST = 10_000
"""The largest number of characters in a schedule's text; a table of 256 pairs in full precision has half as many."""

PositiveFloat = Annotated[FiniteFloat, Field(gt=0)]


class _Stored(BaseModel):
    """A part of the record. Unknown keys are ignored."""

    model_config = ConfigDict(strict=True, frozen=True)


class StoredTable(_Stored):
    """The frequencies of one layer type."""

    inv_freq: list[FiniteFloat]
    attention_scale: PositiveFloat

    @property
    def frequencies(self) -> Frequencies:
        return Frequencies(self.inv_freq, self.attention_scale)


class StoredSide(StoredTable):
    """The frequencies of a layer type at one length."""

    length: Length


class Undo(_Stored):
    """The changes that restore the source's configuration: values to set, and keys to remove."""

    changed: Data
    added: list[str]

    def apply(self, config: Data) -> Data:
        """Returns the original configuration; existing keys keep their order."""
        return {key: value for key, value in config.items() if key not in self.added} | self.changed


class Record(_Stored):
    """The record of a patched checkpoint; all mappings are keyed by layer type.

    Attributes:
        version: the format's version, ``schema`` in the file.
        source: the source checkpoint, a folder or a Hub id.
        schedule: the schedules in JSON; older records lack them.
        spec: the schedules, as text.
        beneath: the scaling that a schedule was composed with, as text.
        frozen: the frozen schedules, each with the length of its table, as text.
        original_length: the trained lengths, in tokens.
        length: the target context in tokens.
        tables: the frequencies at ``length``.
        switch: the frequencies of length-dependent schedules at the trained length and one token past it.
        softmax_factor: the factor on the softmax scale of MLA models; records of older versions lack it.
        original_config_sha256: the SHA-256 of the source's ``config.json``.
        undo: the changes that restore the source's configuration.
        tokenizer_limit: the makers' ``model_max_length`` of the tokenizer, if patching raised it.
        files: the entries of the written files; see :func:`ropescale.record.files_in`.
    """

    version: Literal[1] = Field(alias="schema")
    source: str
    schedule: dict[str, Data] = {}
    spec: dict[str, str]
    beneath: dict[str, str] = {}
    frozen: dict[str, str] = {}
    original_length: dict[str, Length]
    length: Length
    tables: dict[str, StoredTable]
    switch: dict[str, list[StoredSide]] = {}
    softmax_factor: dict[str, PositiveFloat] = {}
    original_config_sha256: str | None = None
    undo: Undo
    tokenizer_limit: Length | None = None
    files: object = None

    @property
    def labels(self) -> dict[str, str]:
        """The schedule of each layer type as text, with the scaling that it was composed with."""
        labels = self.spec | self.frozen
        for key in labels.keys() & self.beneath.keys():
            labels[key] += f" on {self.beneath[key]}"
        return {key: cut(text, _LONGEST) for key, text in labels.items()}

    @property
    def frequencies(self) -> dict[str, Frequencies]:
        """The tables that the checkpoint should have, by layer type."""
        return {key: table.frequencies for key, table in self.tables.items()}

    @property
    def sides(self) -> dict[str, dict[int, Frequencies]]:
        """The tables in :attr:`switch`, by layer type and length."""
        return {key: {side.length: side.frequencies for side in sides} for key, sides in self.switch.items()}
