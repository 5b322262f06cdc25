"""The model as it is, given only its last tokens, against an independent loop over plain transformers."""

from functools import partial

import numpy as np
import pytest
from losses import index, tensors
from tiny import documents, llama, naive_truncation
from transformers import LlamaForCausalLM

import ropescale
from ropescale.errors import DataError
from ropescale.evals import Result
from ropescale.evals.scoring.executor import Executor

perplexity = partial(ropescale.evals.perplexity, windows=1)

IDS = documents(3, 160)
TRAINED = 64
YARN = "yarn:factor=2"


@pytest.mark.parametrize("bos", [None, 3])
@pytest.mark.parametrize(("stride", "length"), [(4, 128), (16, 128), (13, 150), (63, 101), (1, 70)])
def test_the_losses_are_those_of_an_independent_loop(bos, stride, length):
    model = llama()
    result = perplexity(model, IDS, [32, length], [YARN], bos="no" if bos is None else bos, truncation_stride=stride)
    last = result.truncation
    assert (last.length, last.stride) == (TRAINED, stride)
    for ours, ids in zip(last.nll, IDS, strict=True):
        theirs = naive_truncation(model, ids, length, stride, bos)
        assert len(theirs) == length - TRAINED and ours.tolist() == pytest.approx(theirs, abs=2e-5)
        assert ours.mean(dtype=np.float64) == pytest.approx(np.mean(theirs), abs=1e-6)


@pytest.mark.parametrize("bos", ["no", 3])
def test_every_window_begins_with_bos_wherever_those_of_the_schedules_do(bos):
    model, windows = llama(), []
    model.get_input_embeddings().register_forward_pre_hook(lambda _, given: windows.extend(given[0].tolist()))
    perplexity(model, IDS, [32, 128], [YARN], bos=bos, truncation_stride=16, short_context=False)
    cut = [window for window in windows if len(window) == TRAINED]
    begins = [ids[start : start + 3] for ids in IDS for start in (16, 32, 48, 64)]
    wanted = begins if bos == "no" else [[3, *each[:2]] for each in begins]
    assert sorted(window[:3] for window in cut) == sorted(wanted)
    assert {window[0] for window in windows if len(window) == 128} == ({3} if bos == 3 else {ids[0] for ids in IDS})


def means(result, schedule, length, which=slice(None)):
    """Per token, by hand: the schedule's losses, truncation's, and the documents' differences."""
    ours = [each[TRAINED - 1 : length - 1][which] for each in result.losses(schedule, length)]
    theirs = [each[: length - TRAINED][which] for each in result.truncation.nll]
    return np.concatenate(ours).astype(float), np.concatenate(theirs).astype(float)


def test_rows_are_over_the_tokens_from_the_trained_length_on_and_intervals_over_documents():
    """For five documents of one size: t(4) = 2.776445 times the standard error, the longer side longer by skewness."""
    result = perplexity(llama(), documents(5, 160), [32, 64, 100, 150], [YARN], truncation_stride=16)
    found = [(row.schedule, row.length) for row in result.against_truncation]
    assert found == [("as-is", 100), ("as-is", 150), (YARN, 100), (YARN, 150)]
    # 86 tokens each beyond 64 at stride 16: five windows of 64, and one of 54 that scores the last six.
    assert result.truncation.positions == 5 * (5 * 64 + 54)
    for row in result.against_truncation:
        ours, theirs = means(result, row.schedule, row.length)
        assert row.tokens == len(ours) == 5 * (row.length - TRAINED)
        assert row.nll == pytest.approx(ours.mean(), abs=1e-9)
        assert row.truncated_nll == pytest.approx(theirs.mean(), abs=1e-9)
        assert row.delta_nll == pytest.approx((ours - theirs).mean(), abs=1e-9)
        each = (ours - theirs).reshape(5, -1).mean(1)
        half = 2.776445 * each.std(ddof=1) / 5**0.5
        assert min(row.delta_nll - row.low, row.high - row.delta_nll) == pytest.approx(half, rel=1e-5)


def test_far_repeats_have_figures_of_their_own():
    """A document whose second half repeats its first, 80 tokens back: from position 88 on all are far repeats."""
    ids = [each[:80] * 2 for each in documents(5, 160)]
    result = perplexity(llama(), ids, [100, 150], [YARN], truncation_stride=16)
    (row,) = [each for each in result.verdicts if (each.schedule, each.tokens) == (YARN, "far repeats")]
    ours, theirs = means(result, YARN, 150, slice(87 - TRAINED, None))
    assert len(ours) == 5 * (150 - 87) and row.documents == 5
    assert row.delta_nll == pytest.approx((ours - theirs).mean(), abs=1e-9)


@pytest.mark.parametrize("spec", ["yarn:factor=4", "abf:rope_theta=80000", "dynamic:factor=4"])
def test_a_model_that_was_patched_is_cut_off_under_its_original_tables(tmp_path, spec):
    plain = perplexity(llama(), IDS, [128], truncation_stride=16).truncation
    model = llama()
    with ropescale.patch(model, spec):
        within = perplexity(model, IDS, [128], truncation_stride=16)
        assert ropescale.verify(model)
    llama().save_pretrained(tmp_path / "plain")
    ropescale.patch_checkpoint(tmp_path / "plain", tmp_path / "patched", spec)
    loaded = LlamaForCausalLM.from_pretrained(tmp_path / "patched").eval()
    for found in (within, perplexity(loaded, IDS, [128], truncation_stride=16)):
        assert found.truncation.length == TRAINED and found.truncation.table_sha256 == plain.table_sha256
        assert [each.tolist() for each in found.truncation.nll] == [each.tolist() for each in plain.nll]
        assert found.passes[-1].table_sha256 != plain.table_sha256 or "dynamic" in spec


@pytest.mark.parametrize("kind", ["llama3", "dynamic"])
def test_scaling_of_the_makers_stays_held_at_the_trained_length(kind):
    fields = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 16}
    scaling = {"rope_type": kind, "rope_theta": 10000.0, "factor": 4.0, **(fields if kind == "llama3" else {})}
    result = perplexity(llama(rope_parameters=scaling), IDS, [128], truncation_stride=16)
    for ours, ids in zip(result.truncation.nll, IDS, strict=True):
        assert ours.tolist() == pytest.approx(naive_truncation(llama(rope_parameters=scaling), ids, 128, 16), abs=2e-5)


def test_it_runs_by_itself_where_it_costs_no_more_than_the_rest():
    """At 128: 128 positions a schedule and document; truncation at stride 32 feeds 2 x 64, at 16 4 x 64."""
    one, two, three = (perplexity(llama(), IDS, [128], [f"yarn:factor={n}" for n in range(2, 2 + more)])
                       for more in (0, 1, 7))  # fmt: skip
    assert [each.truncation.stride for each in (one, two, three)] == [32, 16, 4]
    assert perplexity(llama(), IDS, [150]).truncation is None
    assert perplexity(llama(), IDS, [150], truncation=True).truncation.stride == 32
    assert perplexity(llama(), IDS, [150], [YARN], truncation=False).truncation is None
    assert perplexity(llama(), IDS, [64], [YARN]).truncation is None
    assert perplexity(llama(), IDS, [128], [YARN], stride=16, windows=None).truncation is None


ZERO, WHOLE = "truncation_stride must be 1 or more, not 0", "leaves a token without context .* use 1 to 63"
WRONG = [({"truncation_stride": 8, "truncation": False}, "truncation is False")]
WRONG += [({"truncation_stride": 0}, ZERO), ({"truncation_stride": 64}, WHOLE)]


@pytest.mark.parametrize(("options", "said"), WRONG)
def test_what_cannot_be_is_refused(options, said):
    with pytest.raises(DataError, match=said):
        perplexity(llama(), IDS, [128], **options)


def test_it_is_written_read_and_continued(tmp_path, monkeypatch):
    told = []
    monkeypatch.setattr("ropescale.evals.progress.Notes.tell", lambda self, line, level=0: told.append(line))
    result = perplexity(llama(), IDS, [64, 150], [YARN], truncation_stride=16, out=tmp_path)
    stored = index(tmp_path)["truncation"]
    assert (stored["length"], stored["stride"]) == (64, 16)
    assert tensors(tmp_path)["truncation @ 64"].tolist() == [each.tolist() for each in result.truncation.nll]
    loaded = Result.load(tmp_path)
    assert loaded.against_truncation == result.against_truncation
    assert [each.tolist() for each in loaded.truncation.nll] == [each.tolist() for each in result.truncation.nll]
    assert (loaded.truncation.stride, loaded.truncation.table_sha256) == (16, result.truncation.table_sha256)
    assert loaded.to_dict() == result.to_dict() and loaded.to_markdown() == result.to_markdown()
    ran = []
    score = Executor.score
    monkeypatch.setattr(Executor, "score", lambda self, batch: ran.append(self.bos) or score(self, batch))
    again = perplexity(llama(), IDS, [64, 150], [YARN], truncation_stride=16, out=tmp_path)
    assert ran == [] and again.to_dict() == result.to_dict()
    assert [line[:23] for line in told if line.startswith("truncation")] == ["truncation at stride 16"]  # once
    finer = perplexity(llama(), IDS, [64, 150], [YARN], truncation_stride=8, out=tmp_path)
    assert ran == [None] * len(ran) and ran and finer.truncation.stride == 8
    without = perplexity(llama(), IDS, [64, 150], [YARN], truncation=False, out=tmp_path, force=True)
    assert without.truncation is None and Result.load(tmp_path).truncation is None
    assert "truncation @ 64" not in tensors(tmp_path)


# --- in the table of the answer ---


def test_the_table_of_the_answer_has_the_perplexity_of_truncation():
    """Up to the trained 64 tokens it is as-is; beyond them it has the losses there and those of its windows."""
    result = perplexity(llama(), documents(12, 128), [32, 64, 128], ["linear:factor=2"], truncation_stride=16)
    line = next(each for each in result.summary().splitlines() if each.startswith("| truncation"))
    *within, shown = [float(cell) for cell in line.split("|")[2:5]]
    losses = np.array(result.losses("as-is", 128))
    whole = np.hstack([losses[:, :63], np.array(result.truncation.nll)])
    assert within == pytest.approx([row.ppl for row in result.rows[:2]], rel=1e-3) and whole.shape == (12, 127)
    assert shown == pytest.approx(np.exp(whole.mean(dtype=float)), rel=1e-3)
    assert "truncation" not in perplexity(llama(), documents(12, 128), [32, 64], ["linear:factor=2"]).summary()
