"""Messages name parameters as Python does; the command line spells them as its options."""

from __future__ import annotations

import pickle

import pytest

from ropescale.cli.main import translate
from ropescale.cli.spelling import spelled
from ropescale.errors import CheckpointError, ConfigError, RopescaleError


@pytest.mark.parametrize(
    ("text", "fields", "said"),
    [
        ("give layers='all'", ("layers",), "give --layers all"),
        ("give original_length=N", ("original_length",), "give --original-length N"),
        ("leave original_length out", ("original_length",), "leave --original-length out"),
        ("two layers; give layers='all'", ("layers",), "two layers; give --layers all"),
        ("force=True leaves it", ("force",), "--force leaves it"),
        ("short_context=False leaves it out", ("short_context",), "--no-short-context leaves it out"),
        ("choose out=OUT", ("out",), "choose -o OUT"),
        ("yarn:factor=4 with factor=8", ("factor",), "yarn:factor=4 with --factor 8"),
        ("a note: layers='all' reaches them", (), "a note: --layers all reaches them"),
        ("a note on layers that rotate, with factor=8", (), "a note on layers that rotate, with factor=8"),
        ("/runs/tp needs it; leave tp out", ("tp",), "/runs/tp needs it; leave --tp out"),
        ("/tp/force: exists; use force, now", ("tp", "force"), "/tp/force: exists; use --force, now"),
        ("/runs/force=1/x: give force=True", ("force",), "/runs/force=1/x: give --force"),
        ("/runs/tp=2 is full", (), "/runs/tp=2 is full"),
        (r"C:\tp: leave tp out", ("tp",), r"C:\tp: leave --tp out"),
        (
            "no file force.txt in force/; leave force out.",
            ("force",),
            "no file force.txt in force/; leave --force out.",
        ),
        ("no way of 'my link' or `link`; leave link out", ("link",), "no way of 'my link' or `link`; leave --link out"),
        (
            "the model's text has a length, not the user's",
            ("length",),
            "the model's text has a --length, not the user's",
        ),
    ],
)
def test_parameters_are_spelled_as_options(text, fields, said):
    assert spelled(text, fields) == said


@pytest.mark.parametrize("kind", [RopescaleError, ConfigError, CheckpointError])
def test_an_error_carries_the_fields_that_it_names(kind):
    error = kind("give force=True", "force")
    assert str(error) == "give force=True" and error.fields == ("force",) and error.args == ("give force=True",)
    assert translate(error) == (2, "give --force")
    again = pickle.loads(pickle.dumps(error))
    assert str(again) == str(error) and again.fields == error.fields
