"""``ropescale.TrainingCallback`` in two processes: under data parallelism and under FSDP2."""

import json
import re
from pathlib import Path

import pytest
import tiny
import training
import training_together
from launching import finished

import ropescale
from ropescale.errors import VerificationError
from ropescale.evals.training.proving import first_problem, settle


def test_the_line_names_the_first_rank_with_a_problem_and_the_others():
    fine, wrong = ("", "a"), ("the table is wrong", None)
    assert first_problem([fine, fine]) == ""
    assert first_problem([wrong]) == "the table is wrong"
    assert first_problem([fine, wrong]) == "rank 1 of 2: the table is wrong"
    assert first_problem([fine, wrong, wrong]) == "rank 1 of 3: the table is wrong"
    assert first_problem([fine, ("", "b")]) == "rank 1 of 2 carries b, and rank 0 a"


def test_an_error_of_any_kind_is_a_problem_that_the_others_hear_of():
    with pytest.raises(VerificationError, match=r"^ZeroDivisionError: division by zero$"):
        settle(lambda: 1 / 0)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["data", "fsdp"])
def test_two_processes_train_with_the_schedule_live_or_stop_with_the_same_line(tmp_path, kind):
    source = training.checkpoint(tmp_path / "source")
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", 2]
    script = Path(training_together.__file__)
    finished([*launcher, script, source, tmp_path, kind], script.parent, script.parent.parent)
    one, two = (json.loads((tmp_path / f"{rank}.json").read_text()) for rank in (0, 1))
    where = r"rank 1 of 2: model\.rotary_emb \(all layers\) does not have the intended table: it differs by 5.*"
    assert one["line"] == two["line"] and re.fullmatch(where, one["line"])
    assert one["spoilt"] == two["spoilt"] and not list((tmp_path / "spoilt").glob("checkpoint-*"))
    assert re.match(r"rank 1 of 2: 1 of \d+ trained tensors are not finite, .*embed_tokens", one["spoilt"])
    assert max(one["seconds"], two["seconds"]) < 60
    assert one["live"] and two["live"] and one["sharded"] == two["sharded"] == (kind == "fsdp")

    folder = tmp_path / "live" / "checkpoint-4"
    assert ropescale.verify(folder).live
    texts = tiny.documents(3, 300, 256)
    oracle = ropescale.evals.perplexity(training.loaded(folder), texts, "64,256", tokenizer=tiny.byte_tokenizer())
    assert one["measured"] == two["measured"] and one["rows"] == two["rows"] == training_together.ROWS
    for row in oracle.rows:
        assert one["measured"]["4"][f"eval_ppl_{row.length}"] == pytest.approx(row.ppl, rel=1e-6)
    assert training.same(folder, tmp_path / "unmeasured" / "checkpoint-4")
