"""Markdown in a terminal: nothing is lost, nothing is wider than the terminal, and numbers stay whole."""

import re

import pytest

from ropescale.output.formatting import Grid, Page, grid, markdown
from ropescale.output.wrapping import fitted, to_html

WORDS = grid(
    ["schedule", "what it does", "fields"],
    [["yarn", "fast pairs stay and slow ones are divided by the factor", "truncate=1,factor=1.25,beta_slow=1,024"]],
)
NUMBERS = grid(
    ["change", "256", "512", "1,024", "2,048"],
    [["yarn:factor=4", "+0.3822 ± 0.1192", "+0.3035 ± 0.0773", "+0.2252 ± 0.0687", "-0.5519 ± 0.0707"]],
    right=range(1, 5),
)
CODE = '```sh\nvllm serve /models/one --max-model-len 2048 --hf-overrides \'{"rope_type": "yarn"}\' --more\n```'
PROSE = "protocol ropescale: perplexity of the first L positions (BOS first), every token scored once, token-weighted"


@pytest.mark.parametrize("block", [WORDS, NUMBERS, PROSE])
@pytest.mark.parametrize("width", [40, 50, 60])
def test_no_line_is_wider_than_the_terminal_and_no_word_is_lost(block: Grid | str, width: int) -> None:
    shown = fitted([block], width)
    assert max(map(len, shown.splitlines())) <= width
    assert set(re.findall(r"[\w.]+", shown)) == set(re.findall(r"[\w.]+", str(block)))


@pytest.mark.parametrize("page", [[WORDS], [NUMBERS], [CODE], ["# One", NUMBERS, "two\nthree", CODE, "* four"]])
def test_what_fits_is_printed_as_it_is(page: Page) -> None:
    assert fitted(page, 200) == markdown(page) == "\n\n".join(map(str, page))


def test_columns_of_numbers_go_below_with_the_first_column_again() -> None:
    tables = [part.splitlines() for part in fitted([NUMBERS], 60).split("\n\n")]
    assert [re.findall(r"[\w,]+", table[0]) for table in tables] == [
        ["change", "256", "512"],
        ["change", "1,024", "2,048"],
    ]
    assert all(table[2].startswith("| yarn:factor=4 |") for table in tables)


@pytest.mark.parametrize("code", [CODE, CODE.replace("```", "````").replace("vllm", "```\nvllm")])
def test_code_is_never_folded(code: str) -> None:
    assert fitted([code, PROSE], 40).startswith(f"{code}\n\nprotocol")


def test_a_bar_in_a_cell_is_no_border() -> None:
    table = grid(["field", "type"], [["mscale", "float | None"]])
    assert r"| mscale | float \| None |" in str(table) and ">float | None</td>" in to_html([table])
