"""Makes the corpus of the experiment from Python source code: ``python -m experiment.make_corpus --out DIR``.

Half an hour on one thread, nearly all of it in the tokenizer; about 4 GB of memory. Sources are wheels in pinned
versions, fetched by ``pip download --no-deps``, and packages of the running environment. Whole packages are held out:
some are measured, others are for ``recommend``, ``search`` and validation. None of their files is in the training
stream or the tokenizer's text, and a held-out document with more than 5% of its 32-grams in the training stream
(vendored or copied code) is dropped. ``--tiny`` takes the standard library instead, in seconds.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from dataclasses import replace
from importlib.metadata import PackageNotFoundError
from pathlib import Path

from .building import Recipe, build, learn_tokenizer, stream_of
from .corpus import CHOSEN_BY, MEASURED, Corpus, packed, write
from .sources import TINY, TRAIN, Collected, Files, of_installed, of_wheel, standard_library

# Wheels that PyPI served in November 2026.
PINNED = {
    "scipy": "1.17.1", "django": "5.2.19", "nova": "34.0.0", "cinder": "29.0.0", "neutron": "29.0.0",
    "homeassistant": "2024.3.3", "jax": "0.10.2", "diffusers": "0.42.1", "ray": "2.60.0", "scikit-learn": "1.9.1",
    "statsmodels": "0.15.0", "mlflow": "3.18.0", "moto": "5.2.5", "breezy": "3.3.23", "ironic": "39.0.0",
    "keras": "3.15.1", "numba": "0.68.1", "langchain-community": "0.4.2", "mne": "1.13.2", "obspy": "1.5.1",
    "qiskit": "2.6.2", "spyder": "6.1.8", "apache-airflow-core": "3.3.2", "yt": "4.4.3", "nilearn": "0.14.1",
    "sphinx": "9.0.4", "bokeh": "3.9.2", "ansible": "12.3.0", "twisted": "26.10.0", "sqlalchemy": "2.1.9",
    "biopython": "1.88", "mypy": "2.4.1", "nltk": "3.10.4", "yt-dlp": "2026.10.26", "astropy": "8.0.2",
    "pyomo": "6.10.1", "dask": "2026.8.0", "distributed": "2026.8.0", "sqlglot": "30.30.0", "docutils": "0.23",
}  # fmt: skip
DISTRIBUTIONS = {"fontTools": "fonttools"}
# In the order in which they are taken until there are enough tokens; what is not pinned is of the environment.
PACKAGES = {
    MEASURED: "sympy twisted sqlalchemy matplotlib biopython mypy networkx fontTools nltk yt-dlp".split(),
    CHOSEN_BY: "astropy pyomo dask distributed sqlglot docutils numpy".split(),
    TRAIN: (
        "torch transformers pandas scipy django nova cinder neutron homeassistant jax diffusers ray scikit-learn "
        "statsmodels mlflow moto breezy ironic keras numba langchain-community mne obspy qiskit spyder "
        "apache-airflow-core yt nilearn sphinx bokeh plotly huggingface_hub trl peft ansible"
    ).split(),
}
CHARACTERS_PER_TOKEN = 4.9
"""More than there are: so much text is enough."""


def main() -> int:
    """Makes the corpus, and returns 0."""
    parser = argparse.ArgumentParser("experiment.make_corpus", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--out", type=Path, required=True, help="the folder for the corpus")
    parser.add_argument("--wheels", type=Path, help="the folder for wheels, which are kept (default: OUT/wheels)")
    parser.add_argument("--tokens", type=int, help="training tokens at most")
    parser.add_argument("--mib", type=float, default=45, help="compressed size of everything at most")
    parser.add_argument("--tiny", action="store_true", help="of the standard library, for --tiny of the experiment")
    given = parser.parse_args()
    recipe = TINY if given.tiny else Recipe()
    recipe = replace(recipe, tokens=given.tokens or recipe.tokens)
    collected = standard_library() if given.tiny else collect(recipe, given.wheels or given.out / "wheels")
    if lacking := [role for role, texts in collected.texts.items() if not texts]:
        parser.error(f"no package has text to {lacking[0]}; see above which are absent")
    corpus = assembled(collected, recipe, given.mib)
    write(corpus, given.out)
    held = corpus.manifest["held"]
    say(f"{len(corpus.stream):,} training tokens, {corpus.manifest['in_long_files']:,} in files of {recipe.length:,}")
    say(f"{len(held[MEASURED])} documents to measure, {len(held[CHOSEN_BY])} to choose by")
    say(f"dropped as copied: {corpus.manifest['dropped']}")
    return 0


def say(*words: object) -> None:
    """Prints at once."""
    print(*words, flush=True)


def collect(recipe: Recipe, wheels: Path) -> Collected:
    """Collects the texts of all packages; one that cannot be had is left out, and the manifest says so."""
    collected, most = Collected(), recipe.tokens * CHARACTERS_PER_TOKEN
    for role, packages in PACKAGES.items():
        least, size = (3000 if role == TRAIN else 2 * recipe.length), 0
        for package in packages:
            if role == TRAIN and size > most:
                break
            try:
                version, files = files_of(package, wheels)
            except (PackageNotFoundError, subprocess.CalledProcessError) as error:
                collected.versions[package] = f"absent: {type(error).__name__}"
                say(f"{package}: absent: {error}")
                continue
            size += collected.add(role, package, version, files, least)
            say(f"{role} {package} {version}: {size / 1e6:.1f} MB in all")
    return collected


def files_of(package: str, wheels: Path) -> tuple[str, Files]:
    """Returns the version and the files of a package."""
    if package in PINNED:
        return PINNED[package], of_wheel(package, PINNED[package], wheels)
    return of_installed(package, DISTRIBUTIONS.get(package, package))


def assembled(collected: Collected, recipe: Recipe, mib: float | None = None) -> Corpus:
    """Makes a corpus of collected texts, whose stream is cut so that its files have at most so many MiB."""
    texts = collected.texts
    tokenizer = learn_tokenizer(texts[TRAIN], recipe)
    stream = stream_of(tokenizer, texts[TRAIN], recipe.tokens)
    whole = build(tokenizer, stream, texts, recipe, collected.versions)
    if mib is None:
        return whole
    room = (mib - 1.4) * 2**20 - len(packed(whole.held))  # 1.4: the tokenizer and the manifest
    while (size := len(packed(stream.ids))) > room:
        stream = stream.first(int(len(stream.ids) * 0.995 * room / size))
    return build(tokenizer, stream, texts, recipe, collected.versions)


def tiny_corpus() -> Corpus:
    """Makes a corpus of the standard library, in seconds."""
    return assembled(standard_library(), TINY)


if __name__ == "__main__":
    sys.exit(main())
