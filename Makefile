# `make demo` and `make test` do all their own set-up in .venv; the second run starts at once.
# PYTHON=python3.12 chooses the interpreter; ARGS="-k yarn" goes to pytest or to the demo.
PYTHON ?= python3
ARGS ?=
VENV := .venv
BIN := $(VENV)/bin
NEEDED := pyproject.toml constraints.txt

.PHONY: demo test slow engines fuzz kill gpu mutants bench docs lint format wheel release clean help

help:
	@echo "make demo    the main job on the bundled model, half a minute once installed"
	@echo "make test    the test suite, two at a time (about two and a half minutes on two idle cores)"
	@echo "make slow    the tests marked slow"
	@echo "make engines the tests that run other versions of transformers and other engines, each in its own environment"
	@echo "make fuzz    mutated input, for SECONDS=600 from SEED=0 in PROCESSES=1; REPLAY=FOLDER runs one kept case again"
	@echo "make kill    every command that writes, killed KILLS=50 times by each of three signals (half an hour)"
	@echo "make gpu     speed, memory and equality on this machine's accelerator, without a network; ARGS=--tiny anywhere"
	@echo "make mutants  changes one operator or number of the source at a time, and shows which test notices"
	@echo "make bench   measure what everything costs, in MINUTES=25 (half an hour at most), into docs/benchmarks.md"
	@echo "make docs    write the site to docs/_build/html; a broken link is an error"
	@echo "make lint    ruff, as the continuous integration runs it"
	@echo "make format  ruff's formatter and safe fixes"
	@echo "make wheel   build dist/ropescale-*.whl"
	@echo "make release build the sdist and the wheel of this commit into dist/, and check them as an index does"
	@echo "make clean   remove .venv and everything built"

demo: $(VENV)/.for-demo
	$(BIN)/ropescale demo $(ARGS)

# Two tests at a time, one thread each: nearly twice as fast on two cores. ARGS="-n 0" runs one after the other (for --pdb).
# Compiled tests are kept, whatever the shell says: compiling them takes each process ten seconds.
BOTH_CORES := -n 2 --dist worksteal
PYTEST := PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest
# A test that hangs ends its process with the tracebacks of all threads.
NO_HANG := -o faulthandler_timeout=900 -o faulthandler_exit_on_timeout=true

test: $(VENV)/.for-test
	OMP_NUM_THREADS=1 $(PYTEST) -m "not slow and not engines" $(BOTH_CORES) $(NO_HANG) $(ARGS)

# pytest's exit code 5 says that no test is marked slow.
slow: $(VENV)/.for-test
	OMP_NUM_THREADS=1 $(PYTEST) -m "slow and not engines" $(BOTH_CORES) $(NO_HANG) $(ARGS) || [ $$? -eq 5 ]

# What they install is kept in ~/.cache/ropescale-tests (ROPESCALE_TEST_CACHE names another place).
engines: $(VENV)/.for-test
	$(PYTEST) -m engines $(ARGS)

SECONDS ?= 600
SEED ?= 0
PROCESSES ?= 1
KILLS ?= 50
REPLAY ?=

fuzz: $(VENV)/.for-test
	PYTHONPATH=tests/helpers:tests/tools $(BIN)/python -m fuzzing $(if $(REPLAY),--replay "$(REPLAY)",--seconds $(SECONDS) --seed "$(SEED)" \
	  --processes $(PROCESSES)) $(ARGS)

kill: $(VENV)/.for-test
	PYTHONPATH=tests/helpers:tests/tools $(BIN)/python -m killing --kills $(KILLS) --seed "$(SEED)" $(ARGS)

# With any Python that has torch and transformers: a machine with an accelerator is often bare otherwise.
gpu:
	PYTHONPATH=.:tests/tools $(if $(wildcard $(BIN)/python),$(BIN)/python,$(PYTHON)) -m gpu $(ARGS)

mutants: $(VENV)/.for-test
	OMP_NUM_THREADS=1 $(BIN)/python tests/tools/mutants.py $(ARGS)

MINUTES ?= 25

bench: $(VENV)/.for-test
	$(BIN)/python tests/tools/benchmarks/bench --minutes $(MINUTES) --page docs/benchmarks.md $(ARGS)

docs: $(VENV)/.for-docs
	$(BIN)/python -m sphinx -q -W --keep-going -b html docs docs/_build/html

lint: $(VENV)/.for-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: $(VENV)/.for-test
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# build/ is removed first: setuptools would pack the files that an earlier build left there.
wheel: $(VENV)/.for-test
	rm -rf build dist
	$(BIN)/python -m build --wheel --outdir dist .

release: $(VENV)/.for-release
	.ci/release

clean:
	rm -rf $(VENV) $(VENV)-wheel build dist docs/_build *.egg-info .pytest_cache .ruff_cache ropescale-demo

$(VENV)/.for-demo: $(NEEDED) | $(BIN)/python
	$(BIN)/python -m pip install -c constraints.txt -e '.[plot]'
	@touch $@

# What the tests need includes what the demo needs, so a `make demo` after `make test` installs nothing.
$(VENV)/.for-test: $(NEEDED) | $(BIN)/python
	$(BIN)/python -m pip install -c constraints.txt -e '.[plot,dev]'
	@touch $(VENV)/.for-demo $@

$(VENV)/.for-docs: $(NEEDED) | $(BIN)/python
	$(BIN)/python -m pip install -c constraints.txt -e '.[plot,docs]'
	@touch $(VENV)/.for-demo $@

$(VENV)/.for-release: $(NEEDED) | $(BIN)/python
	$(BIN)/python -m pip install -c constraints.txt -e '.[release]'
	@touch $@

$(BIN)/python:
	@command -v $(PYTHON) >/dev/null || \
	  { echo "error: there is no $(PYTHON) here; install Python 3.11 or newer, or name it: make PYTHON=python3.12" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "error: $(PYTHON) is $$($(PYTHON) -V 2>&1); ropescale needs Python 3.11 or newer: make PYTHON=python3.12" >&2; exit 1; }
	$(PYTHON) -m venv --clear $(VENV)
