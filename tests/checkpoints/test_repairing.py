"""A model that was patched in memory and saved by transformers: its frequencies are live, and what else it lacks."""

import json
from pathlib import Path

import pytest
import tiny
from configurations import edit, read

import ropescale
from ropescale.errors import ScheduleError, VerificationError
from ropescale.verifying.examining import examine


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Llama under yarn as ``save_pretrained`` writes it: transformers 5's keys alone, the old limit."""
    model = tiny.llama()
    with ropescale.patch(model, "yarn:factor=4"):
        return tiny.checkpoint(tmp_path_factory.mktemp("saved") / "model", model)


def test_live_frequencies_and_a_limit_that_is_too_low_are_told_apart(saved, ran):
    report = examine(saved)
    assert report.live and report.problems == [] and report.length == 256
    assert len(report.limits) == 1 and "model_max_length is 64, below the target length of 256" in report.limits[0]
    assert any("transformers 4 ignores" in warning for warning in report.warnings)
    with pytest.raises(VerificationError, match=r"the frequencies are live.*model_max_length is 64"):
        ropescale.verify(saved)
    told = ran("verify", saved, "--json", code=1)
    assert json.loads(told.out)["live"] is True and "the frequencies are live" in told.err


def test_as_is_writes_what_is_lacking_and_what_patching_the_source_would_have_written(saved, tmp_path):
    done = ropescale.patch_checkpoint(saved, tmp_path / "out", "as-is")
    assert ropescale.verify(tmp_path / "out").limits == []
    tiny.llama().save_pretrained(tmp_path / "source")
    ropescale.patch_checkpoint(tmp_path / "source", tmp_path / "patched", "yarn:factor=4")
    assert read(tmp_path / "out" / "config.json") == read(tmp_path / "patched" / "config.json")
    assert read(tmp_path / "out" / "tokenizer_config.json")["model_max_length"] == 256
    assert set(done.changes) == {"config.json", "tokenizer_config.json", "ropescale.json"}
    with pytest.raises(ScheduleError, match="no file is written"):
        ropescale.patch_checkpoint(tmp_path / "out", tmp_path / "again", "as-is")


def test_as_is_keeps_the_record_of_a_patched_checkpoint(tmp_path):
    tiny.llama().save_pretrained(tmp_path / "source")
    ropescale.patch_checkpoint(tmp_path / "source", tmp_path / "out", "yarn:factor=4")
    tiny.byte_tokenizer().save_pretrained(tmp_path / "out")
    ropescale.patch_checkpoint(tmp_path / "out", tmp_path / "mended", "as-is")
    one, other = (read(tmp_path / name / "ropescale.json") for name in ("out", "mended"))
    assert {**one, "files": 0} == {**other, "files": 0}
    assert ropescale.verify(tmp_path / "mended").intended == "all: yarn:factor=4"


def test_a_maximum_that_stays_by_intention_is_a_remark_and_any_other_a_limit(tmp_path):
    tiny.llama().save_pretrained(tmp_path / "source")
    ropescale.patch_checkpoint(tmp_path / "source", tmp_path / "linear", "linear:factor=4")
    report = ropescale.verify(tmp_path / "linear")
    assert any("max_position_embeddings stays 64 under linear" in warning for warning in report.warnings)
    ropescale.patch_checkpoint(tmp_path / "source", tmp_path / "yarn", "yarn:factor=4")
    edit(tmp_path / "yarn", max_position_embeddings=64)
    with pytest.raises(VerificationError, match=r"frequencies are live.*max_position_embeddings is 64, below.* of 256"):
        ropescale.verify(tmp_path / "yarn")
