"""llama.cpp as llama-cpp-python vendors it: its source, and llama-server and the libraries built of that."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import environments
import filelock

VERSION = "0.3.36"
_CMAKE = "cmake==4.1.2"

_OPTIONS = (
    "-DCMAKE_BUILD_TYPE=Release -DCMAKE_CXX_FLAGS_RELEASE=-O1 -DCMAKE_C_FLAGS_RELEASE=-O2 -DBUILD_SHARED_LIBS=ON "
    "-DCMAKE_BUILD_RPATH_USE_ORIGIN=ON -DGGML_NATIVE=OFF -DGGML_OPENMP=OFF -DGGML_LLAMAFILE=OFF -DLLAMA_OPENSSL=OFF "
    "-DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_APP=OFF -DLLAMA_USE_PREBUILT_UI=OFF"
).split()
"""The processor alone and little optimisation: what takes longest here is the compiler (ten minutes on two cores)."""


def source() -> Path:
    """llama.cpp, out of llama-cpp-python's source archive; fetched once."""
    folder = environments.CACHE / f"llama-cpp-python-{VERSION}-sdist"
    with _once(folder) as missing:
        if missing:
            words = ["download", "--no-deps", "--no-binary=llama-cpp-python", "-d", str(folder)]
            subprocess.run([sys.executable, "-m", "pip", *words, f"llama-cpp-python=={VERSION}"], check=True)
            [archive] = folder.glob("*.tar.gz")
            with tarfile.open(archive) as packed:
                packed.extractall(folder, filter="data")
            archive.unlink()
    return folder / f"llama_cpp_python-{VERSION}" / "vendor" / "llama.cpp"


def python() -> Path:
    """An interpreter with llama-cpp-python, which takes its libraries from :func:`built`, and with cmake beside it."""
    return environments.environment(
        "llama.cpp",
        f"llama-cpp-python=={VERSION}",
        _CMAKE,
        options=("--no-binary=llama-cpp-python",),
        env={"CMAKE_ARGS": "-DLLAMA_BUILD=OFF -DLLAVA_BUILD=OFF"},
    )


def built() -> Path:
    """The folder with ``llama-server`` and the libraries; built once."""
    folder = environments.CACHE / f"llama-cpp-python-{VERSION}-build"
    with _once(folder) as missing:
        if missing:
            cmake = str(python().parent / "cmake")
            making = [cmake, "--build", str(folder), "--target", "llama-server", "--parallel", str(os.cpu_count())]
            for words in ([cmake, "-S", str(source()), "-B", str(folder), *_OPTIONS], making):
                done = subprocess.run(words, capture_output=True, text=True)
                assert done.returncode == 0, f"{done.stdout[-2000:]}{done.stderr[-2000:]}"
    return folder / "bin"


_QUANTIZE = """
import sys, llama_cpp as it
given = it.llama_model_quantize_default_params()
given.nthread, given.ftype = 1, getattr(it, f"LLAMA_FTYPE_MOSTLY_{sys.argv[3]}")
sys.exit(it.llama_model_quantize(sys.argv[1].encode(), sys.argv[2].encode(), given))
"""


def quantized(file: Path, weights: str) -> Path:
    """A copy of a file in float32 beside it, with weights such as Q4_K_M as llama.cpp makes them."""
    path = file.with_name(f"{weights}.gguf")
    words = [str(python()), "-c", _QUANTIZE, str(file), str(path), weights]
    subprocess.run(words, check=True, capture_output=True, env=os.environ | {"LLAMA_CPP_LIB_PATH": str(built())})
    return path


@contextmanager
def _once(folder: Path) -> Iterator[bool]:
    """Whether a folder is yet to be made; it counts as made afterwards."""
    folder.mkdir(parents=True, exist_ok=True)
    with filelock.FileLock(f"{folder}.lock"):
        yield not (folder / ".done").exists()
        (folder / ".done").touch()
