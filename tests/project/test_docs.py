"""The pages: every one is in the site, every link leads somewhere, and every public name has its entry.

`make docs` builds the site, with warnings as errors.
"""

import re
import runpy
from pathlib import Path

import pytest

import ropescale
from ropescale import evals

LINK = re.compile(r"\]\(([^)#\s]+)(?:#([^)\s]+))?\)")


@pytest.fixture(scope="module")
def docs(repository: Path) -> Path:
    return repository / "docs"


def test_every_page_is_in_the_index(docs):
    trees = re.findall(r"```\{toctree\}\n(.*?)```", (docs / "index.md").read_text(encoding="utf-8"), re.DOTALL)
    listed = {line for tree in trees for line in tree.splitlines() if line and not line.startswith(":")}
    sources = [page for kind in ("*.md", "*.ipynb") for page in docs.rglob(kind) if "_build" not in page.parts]
    pages = {page.relative_to(docs).with_suffix("").as_posix() for page in sources}
    assert listed == pages - {"index"}


def test_every_link_leads_somewhere(docs):
    pages = [docs.parent / "README.md", docs.parent / "CHANGELOG.md"]
    pages += [page for page in docs.rglob("*.md") if "_build" not in page.parts]
    for page in pages:
        for target, heading in LINK.findall(page.read_text(encoding="utf-8")):
            if not re.match(r"https?:", target):
                there = page.parent / target
                assert there.exists(), f"{page.name} links to {target}"
                assert not heading or heading in anchors(there), f"{page.name} links to {target}#{heading}"


def test_the_pages_stay_short(docs):
    """17,500 words for users, the two generated pages apart; 3,500 for the two pages about the project itself."""
    root, generated = docs.parent, {"models", "engines"}
    pages = [page for page in docs.glob("*.md") if page.stem not in generated]
    assert words([root / "README.md", *pages]) < 17_500
    assert words([root / "CONTRIBUTING.md", root / "CHANGELOG.md"]) < 3_500


def words(pages: list[Path]) -> int:
    return sum(len(page.read_text(encoding="utf-8").split()) for page in pages)


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub and the site make them."""
    heads = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


def test_every_public_name_has_an_entry(docs):
    text = (docs / "api.md").read_text(encoding="utf-8")
    wanted = {f"ropescale.{name}" for name in ropescale.__all__ if name not in ("__version__", "evals")}
    wanted |= {f"ropescale.evals.{name}" for name in evals.__all__}
    entries = set(re.findall(r"^\.\. auto\w+:: (\S+)", text, re.MULTILINE))
    modules = {name for name in wanted if name in ("ropescale.schedules", "ropescale.RopescaleError")}
    assert wanted - entries - modules == set()
    assert {"ropescale.schedules", "ropescale.errors"} <= entries


@pytest.mark.parametrize("name", ["angles", "divisors"])
def test_the_pictures_of_the_theory_can_be_drawn_again(docs, name):
    drawn = runpy.run_path(str(docs / "pictures.py"))[name]()
    assert len(drawn.axes) >= 1 and (docs / "pictures" / f"{name}.png").exists()
