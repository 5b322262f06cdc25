"""Reads GGUF files, and writes copies in which only some keys and tensors differ.

ggml's docs/gguf.md describes the format. Files are read with gguf-py (the ``gguf`` extra), but written here, because
gguf-py's writer decodes and encodes data that only need copying.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from ..errors import CheckpointError, ConfigError, RopescaleError
from ..files import atomic_path, local_path, open_regular, translated
from ..output.formatting import first_line
from ..rope import LARGEST_HEAD

if TYPE_CHECKING:
    import numpy as np
    from gguf import GGUFReader, ReaderTensor

MAGIC = b"GGUF"
BLOCK = 64 * 2**20
"""The largest amount of tensor data in memory at once, in bytes."""

_FLOAT32_TENSOR = 0
_HEADER = ("GGUF.version", "GGUF.tensor_count", "GGUF.kv_count")  # gguf-py lists header fields among the keys


@dataclass(frozen=True)
class Value:
    """The value of a key, and the name of its type in the file (in ``gguf.GGUFValueType``)."""

    kind: str
    value: str | int | float | bool

    def encoded(self) -> bytes:
        """Returns the bytes of the type and the value, as in a file."""
        from gguf import GGUFReader, GGUFValueType

        kind = GGUFValueType[self.kind]
        if kind is GGUFValueType.STRING:
            content = _string(str(self.value))
        else:
            content = GGUFReader.gguf_scalar_to_np[kind](self.value).tobytes()
        return struct.pack("<I", kind) + content


class GgufFile:
    """An open GGUF file, whose tensors remain on disk.

    Attributes:
        path: the file's path.
        keys: the scalar keys and their values, in the file's order; arrays are not decoded (see :meth:`is_array`).
        tensors: the names of the tensors, in the file's order.
    """

    def __init__(self, path: Path, reader: GGUFReader) -> None:
        self.path = path
        self._reader = reader
        self._alignment = int(reader.alignment)
        sizes = (int(tensor.n_bytes) for tensor in reader.tensors)
        if max(self._alignment, sum(map(self._padded, sizes))) > len(reader.data):
            raise ValueError("the alignment or the tensors are larger than the file")
        self._tensors = {tensor.name: tensor for tensor in reader.tensors}
        self._fields = {name: field for name, field in reader.fields.items() if name not in _HEADER}
        self.tensors = list(self._tensors)
        self.keys = {
            name: Value(field.types[0].name, field.contents())
            for name, field in self._fields.items()
            if field.types[0].name != "ARRAY"
        }

    def _padded(self, size: int) -> int:
        return size + -size % self._alignment

    def is_array(self, key: str) -> bool:
        """Whether the value of a key is an array."""
        return key in self._fields and key not in self.keys

    def floats(self, tensor: str) -> list[float] | None:
        """Returns the numbers of a small float tensor, or None if the tensor does not exist.

        Raises:
            ConfigError: the tensor is large, or not a float tensor.
        """
        found = self._tensors.get(tensor)
        if found is None:
            return None
        if found.tensor_type.name not in ("F32", "F16", "F64"):
            raise ConfigError(f"{tensor} in {self.path} is {found.tensor_type.name}; it should be float32")
        if found.n_elements > LARGEST_HEAD:
            raise ConfigError(
                f"{tensor} in {self.path} has {found.n_elements} numbers, which exceeds the pairs of any model"
            )
        return [float(value) for value in found.data.reshape(-1).tolist()]

    def rewrite(
        self,
        target: Path,
        keys: Mapping[str, Value | None],
        tensors: Mapping[str, Sequence[float] | None],
        progress: Callable[[int], object] = lambda copied: None,
    ) -> None:
        """Writes a copy of the file with some keys and tensors set or removed.

        All other keys and tensors keep their bytes, type and order. New keys and tensors are put last.

        Args:
            target: the path of the copy, which must not exist.
            keys: the new value of each changed key; None removes the key.
            tensors: the numbers of each changed tensor, which is written as one-dimensional float32; None removes the
                tensor.
            progress: called after every copied block, with the number of bytes in the block.

        Raises:
            CheckpointError: reading or writing failed, or the target exists; no partial file is left.
        """
        with translated(target), atomic_path(target, new=True) as temporary, temporary.open("wb") as file:
            kept = [tensor for tensor in self._reader.tensors if tensor.name not in tensors]
            added = {name: struct.pack(f"<{len(x)}f", *x) for name, x in tensors.items() if x is not None}
            file.write(self._header(keys, kept, added))
            self._pad(file)
            with self.path.open("rb") as source:
                for tensor in kept:
                    source.seek(int(tensor.data_offset))
                    size = int(tensor.n_bytes)
                    while size:
                        block = source.read(min(BLOCK, size))
                        if not block:
                            raise CheckpointError(f"{self.path} became shorter while it was read; try again")
                        file.write(block)
                        size -= len(block)
                        progress(len(block))
                    self._pad(file)
            for data in added.values():
                file.write(data)
                self._pad(file)

    def _pad(self, file: BinaryIO) -> None:
        file.write(bytes(-file.tell() % self._alignment))

    def _header(
        self, keys: Mapping[str, Value | None], kept: Sequence[ReaderTensor], added: Mapping[str, bytes]
    ) -> bytes:
        """Returns the new file's header, up to the tensor data."""
        pairs = []
        for name, there in {**self._fields, **keys}.items():
            if isinstance(there, Value):
                pairs.append(_string(name) + there.encoded())
            elif there is not None:
                pairs.append(_joined(there.parts))
        sizes = [int(tensor.n_bytes) for tensor in kept] + [len(data) for data in added.values()]
        infos = [_joined(tensor.field.parts[:-1]) for tensor in kept]
        infos += [
            _string(name) + struct.pack("<IQI", 1, len(data) // 4, _FLOAT32_TENSOR) for name, data in added.items()
        ]
        version = int(self._reader.fields["GGUF.version"].parts[0][0])
        start = MAGIC + struct.pack("<IQQ", version, len(infos), len(pairs))
        offsets = accumulate(map(self._padded, sizes), initial=0)
        placed = [info + struct.pack("<Q", offset) for info, offset in zip(infos, offsets)]
        return b"".join([start, *pairs, *placed])


def open_gguf(path: str | Path) -> GgufFile:
    """Opens a GGUF file without reading its tensors.

    Raises:
        CheckpointError: the file does not exist, or cannot be read.
        ConfigError: the file is not a GGUF file, or is truncated, damaged, big-endian or of an unknown version.
        RopescaleError: gguf-py is not installed.
    """
    path = local_path(path)
    if path.is_dir():
        raise CheckpointError(f"{path} is a folder; give the GGUF file itself")
    if not os.path.lexists(path):
        raise CheckpointError(f"file {path} does not exist; give a GGUF file")
    reader_of = _reader_class()
    import numpy

    with translated(path, "read"):
        with open_regular(path) as file:
            start = file.read(24)
        if start[:4] != MAGIC:
            raise ConfigError(f"{path} is not a GGUF file (it does not start with GGUF)")
        if len(start) >= 8 and struct.unpack_from("<I", start, 4)[0] & 0xFFFF == 0:
            raise ConfigError(f"{path} is big-endian; convert it with gguf-py's gguf-convert-endian first")
        try:
            if max(struct.unpack_from("<QQ", start, 8)) > _MOST_ENTRIES:
                raise ValueError("too many tensors or keys")
            with numpy.errstate(over="raise"):  # numpy would only print a warning
                return GgufFile(path, reader_of(path))
        except Exception as error:  # a damaged file makes the reader fail in many ways
            raise ConfigError(
                f"{path} cannot be read as GGUF; is the download complete? ({first_line(error)})"
            ) from error


def _reader_class() -> type[GGUFReader]:
    """Returns a subclass of gguf-py's reader that does not decode arrays; a vocabulary would take tens of seconds.

    Raises:
        RopescaleError: gguf-py is not installed.
    """
    try:
        from gguf import GGUFReader, GGUFValueType
    except ImportError:
        raise RopescaleError("GGUF files need gguf-py, which is not installed; pip install 'ropescale[gguf]'") from None

    class Reader(GGUFReader):
        def _get_str(self, offset: int) -> tuple[np.ndarray, np.ndarray]:
            length, text = super()._get_str(offset)
            if len(text) < length[0]:
                raise ValueError("a string goes beyond the end of the file")
            return length, text

        def _get_field_parts(
            self, orig_offs: int, raw_type: int
        ) -> tuple[int, list[np.ndarray], list[int], list[GGUFValueType]]:
            if raw_type != GGUFValueType.ARRAY:
                return super()._get_field_parts(orig_offs, raw_type)
            size = _array_size(self.data.data, orig_offs)
            return size, [self.data[orig_offs : orig_offs + size]], [0], [GGUFValueType.ARRAY]

    return Reader


_MOST_ENTRIES = 2**16
"""The largest accepted number of tensors or keys, above any model's, because gguf-py reads thousands a second."""

_MOST_ITEMS = 2**24
"""The largest accepted number of strings in an array, above any vocabulary's, because measuring them takes time."""


def _array_size(data: memoryview, start: int) -> int:
    """Returns the size in bytes of an array, which consists of the items' type, their number and the items.

    Raises:
        ValueError, struct.error: the array does not end inside the data, or the items' type is unknown.
    """
    from gguf import GGUFReader, GGUFValueType

    number, count = struct.unpack_from("<IQ", data, start)
    kind = GGUFValueType(number)
    end = start + 12
    if kind in GGUFReader.gguf_scalar_to_np:
        end += count * GGUFReader.gguf_scalar_to_np[kind]().itemsize
    elif kind == GGUFValueType.STRING and count <= _MOST_ITEMS:
        for _ in range(count):
            end += 8 + struct.unpack_from("<Q", data, end)[0]
    else:
        raise ValueError(f"an array of {count} items of type {kind.name}")
    if end > len(data):
        raise ValueError("an array goes beyond the end of the file")
    return end - start


def _string(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def _joined(parts: Sequence[np.ndarray]) -> bytes:
    """Joins the parts that gguf-py split."""
    return b"".join(part.tobytes() for part in parts)
