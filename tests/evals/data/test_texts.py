"""Texts, and where a part of one begins."""

import pytest

from ropescale.errors import DataError
from ropescale.evals.data import documents
from ropescale.evals.data.documents import Text, text_of


def test_a_file_is_the_text_that_python_reads_up_to_a_size(tmp_path, monkeypatch):
    path = tmp_path / "a.txt"
    path.write_bytes(b"\xef\xbb\xbf" + "one\r\ntwo é€😀\rthree\n\r\n".encode() * 9)
    assert text_of(path).text == path.read_text(encoding="utf-8-sig")
    monkeypatch.setattr(documents, "LARGEST", 100)
    with pytest.raises(DataError, match="is longer than 100 bytes; split it"):
        text_of(path)


def test_a_part_begins_at_the_next_line_start_or_in_a_long_line_at_a_character():
    text = Text("here", "first\nsecond é\nthird\n")
    assert [text.start_at(offset) for offset in (0, 1, 5, 6, 7, 13, 15, 16)] == [0, 6, 6, 6, 16, 16, 16, 16]
    assert [Text("here", "é" * 100).start_at(offset) for offset in (1, 2, 3)] == [2, 2, 4]
