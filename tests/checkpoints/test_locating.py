"""A file that cannot be read is named, with what to do about it."""

from __future__ import annotations

from pathlib import Path

import pytest

from ropescale.checkpoints.locating import find_model, read_config
from ropescale.errors import RopescaleError

DOWNLOAD_AGAIN = "; restore it from where it was downloaded"


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"\x80\xff\x00", "config.json is not a text file" + DOWNLOAD_AGAIN),
        (b"[1, 2]", "config.json holds a JSON list, not an object" + DOWNLOAD_AGAIN),
        (b'{"a": ' * 100_000, "config.json nests its brackets too deeply" + DOWNLOAD_AGAIN),
        (b"{,}", "line 1, column 2: Expecting property name enclosed in double quotes)" + DOWNLOAD_AGAIN),
        (None, "config.json does not exist; complete the download, or give another folder"),
    ],
)
def test_a_configuration_that_cannot_be_read_says_where_to_get_it(tmp_path: Path, content: bytes | None, words: str):
    if content is not None:
        (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(RopescaleError) as caught:
        read_config(tmp_path)
    assert str(caught.value).endswith(words)


def test_a_folder_without_a_configuration_says_what_to_give(tmp_path: Path) -> None:
    (tmp_path / "weights.safetensors").write_bytes(b"")
    with pytest.raises(RopescaleError, match=r"no config.json.*folder"):
        find_model(tmp_path)
