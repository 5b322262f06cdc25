"""Texts that are read piece by piece, and only where they are asked for."""

import pytest

from ropescale.evals.data import texts
from ropescale.evals.data.texts import Text, TextFile


def big(path, content):
    path.write_bytes(content)
    return TextFile(str(path), path)


def test_a_file_read_in_pieces_is_the_text_that_python_reads(tmp_path, monkeypatch):
    monkeypatch.setattr(texts, "BLOCK", 7)
    file = big(tmp_path / "a.txt", b"\xef\xbb\xbf" + "one\r\ntwo é€😀\rthree\n\r\n".encode() * 9)
    assert file.text == (tmp_path / "a.txt").read_text(encoding="utf-8-sig") == "".join(file.reading())
    assert len(list(file.reading())) > 30


def test_reading_from_a_byte_begins_at_the_next_line_start(tmp_path):
    content = "first\nsecond é\nthird\n".encode()
    for text in (big(tmp_path / "a.txt", content), Text("here", content.decode())):
        found = {offset: text.reading(offset) for offset in (0, 1, 5, 6, 7, 13, 15, 16)}
        assert [each.start for each in found.values()] == [0, 6, 6, 6, 16, 16, 16, 16]
        assert "".join(found[6]) == "second é\nthird\n"


def test_a_text_of_one_line_begins_at_a_character(tmp_path):
    file = big(tmp_path / "a.txt", "é".encode() * 100)
    assert [file.reading(offset).start for offset in (1, 2, 3)] == [2, 2, 4]
    assert "".join(file.reading(3)) == "é" * 98


@pytest.mark.parametrize("text", ["\ufeffa\r\nb", "a\0b" * 30_000])
def test_a_text_in_memory_stays_as_it_is(text):
    assert "".join(Text("here", text).reading()) == text


@pytest.mark.parametrize("block", [1, 7, 2**16])
def test_places_in_the_file_are_exact(tmp_path, monkeypatch, block):
    monkeypatch.setattr(texts, "BLOCK", block)
    raw = b"\xef\xbb\xbf" + "one\r\n\r\ntwo é\rthree\nfour\n\r€\r\r\nfive\r".encode()
    reading = big(tmp_path / "a.txt", raw).reading()
    text = "".join(reading).encode()
    for size in range(len(text) + 1):
        taken = reading.taken(size)
        assert raw[3 : 3 + taken].replace(b"\r\n", b"\n").replace(b"\r", b"\n") == text[:size]
