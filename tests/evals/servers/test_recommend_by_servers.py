"""``ropescale recommend --server``: the decision among what servers compute is that of the same losses, loaded."""

import json
from contextlib import ExitStack

import pytest
import tiny
import transformers
from fake_engine import serving

from ropescale.evals import Server, perplexity, recommend

SPECS = ("linear:factor=2", "yarn:factor=2")


@pytest.fixture(scope="module")
def engines(checkpoint):
    with ExitStack() as stack:
        logprobs = [tiny.logprobs_of(checkpoint, spec) for spec in (None, *SPECS)]
        served = [stack.enter_context(serving(logprobs=each, limit=256)) for each in logprobs]
        yield list(zip(served, ("base", *SPECS), strict=True))


def served(engines):
    return [word for engine, spec in engines for word in ("--server", engine.url, "--served-as", spec)]


def test_servers_are_compared_by_the_losses_that_a_loaded_model_has(engines, checkpoint, text, tmp_path, ran):
    words = ["recommend", *served(engines), "--tokenizer", checkpoint, "--data", text, "--target-length", "128"]
    words += ["--windows", "1", "--truncation", "-o", tmp_path / "out"]
    out, _ = ran(*words)
    found = json.loads((tmp_path / "out" / "results.json").read_text())
    assert found["protocol"]["race_windows"] == 0 and found["protocol"]["held_out_windows"] == 12
    assert found["sentences"][0] in out

    model = transformers.AutoModelForCausalLM.from_pretrained(checkpoint, dtype="float32")
    tokenizer = transformers.AutoTokenizer.from_pretrained(checkpoint)
    texts = [path.read_text() for path in sorted(text.iterdir())]
    options = {"windows": 1, "short_context": False, "truncation": True}
    own = perplexity(model, texts, "64,128", SPECS, tokenizer=tokenizer, **options)
    nll = {(row.schedule, row.length): row.nll for row in own.rows}
    measured = {each["schedule"]: each for each in found["rows"]}
    assert set(measured) == {"as-is", *SPECS}
    for spec, each in measured.items():
        short, target = (nll[spec, length] - nll["as-is", length] for length in (64, 128))
        assert (each["delta_short"], each["delta_target"]) == pytest.approx((short, target), abs=1e-5)
        assert each["delta"] == pytest.approx(0.1 * short + 0.9 * target, abs=1e-5)
    positions = {len(body["prompt"]) + len(body.get("allowed_token_ids", [])) for body in engines[0][0].scored}
    assert {64, 128} <= positions  # truncation is the unchanged model's, in windows of its trained length

    scored = [len(engine.scored) for engine, _ in engines]
    _, said = ran(*words)
    assert [len(engine.scored) for engine, _ in engines] == scored and "are not measured again" in said


def test_python_takes_servers_too(engines, checkpoint, text):
    tokenizer = transformers.AutoTokenizer.from_pretrained(checkpoint)
    texts = [path.read_text() for path in sorted(text.iterdir())[:3]]
    servers = [Server(engine.url, spec) for engine, spec in engines]
    found = recommend(servers, texts, 128, tokenizer=tokenizer, path=checkpoint, windows=1)
    assert {row.schedule for row in found.rows} == {"as-is", *SPECS}


WRONG = [
    (slice(0, 1), [], "needs a server of the model as it is (--served-as base), and one per schedule"),
    (slice(1, 3), [], "needs a server of the model as it is (--served-as base), and one per schedule"),
    (slice(0, 3), ["--search"], "search applies to a loaded model, not to a server"),
    (slice(0, 3), ["--schedule", "cope"], "schedules applies to a loaded model"),
    (slice(0, 3), ["--target-length", "512"], "takes at most 256 positions, and the longest window has 512"),
]


@pytest.mark.parametrize(("which", "more", "sentence"), WRONG)
def test_what_servers_cannot_answer_is_refused(engines, checkpoint, text, refused, which, more, sentence):
    words = ["recommend", *served(engines[which]), "--tokenizer", checkpoint, "--data", text, "--concat"]
    assert sentence in refused(*words, *(more if "--target-length" in more else ["--target-length", "128", *more]))
