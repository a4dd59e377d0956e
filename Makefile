# make setup | test | test-all | lint | demo | bench | clean

PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed

# Two test workers with one thread each: more threads than cores only get in each other's way.
PYTEST := OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 $(BIN)/python -m pytest -n 2

.PHONY: setup test test-all lint demo bench clean

setup: $(STAMP)

# pip is asked first for the pinned torch, so that nothing else decides which build of it is taken.
$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --disable-pip-version-check -q -c constraints.txt torch
	$(BIN)/python -m pip install --disable-pip-version-check -q -c constraints.txt -e '.[dev]'
	touch $(STAMP)

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

test: lint
	$(PYTEST) -m "not slow and not gpu"

# GPU tests skip themselves where there is no device.
test-all: lint
	$(PYTEST)

demo: setup
	$(BIN)/rtgp demo

bench: setup
	set -e; for file in benchmarks/bench_*.py; do echo "$$file"; $(BIN)/python "$$file"; done

clean:
	rm -rf .venv build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache demo-output
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
	rm -rf src/*.egg-info
