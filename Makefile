# make setup | test | test-all | lint | demo | bench | docs | coverage | mutation | fuzz | lock | clean

PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed

# Two test workers with one thread each: more threads than cores only get in each other's way.
PYTEST := OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 $(BIN)/python -m pytest -n 2

.PHONY: setup setup-locked lock test test-all coverage mutation fuzz lint demo bench docs clean

setup: $(STAMP)

# pip is asked first for the pinned torch, so that nothing else decides which build of it is taken.
$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --disable-pip-version-check -q -c constraints.txt torch
	$(BIN)/python -m pip install --disable-pip-version-check -q -c constraints.txt -e '.[dev]'
	touch $(STAMP)

# The same, from files whose hashes are known, all but torch (tools/lock.py says why).
setup-locked:
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --disable-pip-version-check -q -c constraints.txt torch
	$(BIN)/python -m pip install --disable-pip-version-check -q --no-deps --require-hashes -r requirements-dev.lock
	$(BIN)/python -m pip install --disable-pip-version-check -q --no-deps --no-build-isolation -e .
	touch $(STAMP)

lock: setup
	$(BIN)/python tools/lock.py

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

# Lines and branches of src that the quick tests run; fails below 95% and 90%.
coverage: setup
	mkdir -p build
	$(BIN)/coverage erase
	$(PYTEST) -m "not slow and not gpu" --cov --cov-report=
	$(BIN)/coverage json -q -o build/coverage.json
	$(BIN)/coverage report --skip-covered --sort=cover
	$(BIN)/python tools/check_coverage.py build/coverage.json

# A sample of small faults, each of which the tests should notice; hours of one core, and it goes on where it stopped.
mutation: setup
	$(BIN)/python tests/mutation/run.py

# 10^5 mutated tables, models and checkpoints; goes on from the counts in tests/fuzz/campaign.csv.
fuzz: setup
	OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 $(BIN)/python tests/fuzz/campaign.py

demo: setup
	$(BIN)/rtgp demo

bench: setup
	set -e; for file in benchmarks/bench_*.py; do echo "$$file"; $(BIN)/python "$$file"; done

# -W -n: a warning, or a reference to a name that is not there, is an error.
docs: setup
	$(BIN)/python -m sphinx -W -n --keep-going -q -b html docs build/docs
	@echo "build/docs/index.html"

clean:
	rm -rf .venv build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache demo-output
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
	rm -rf src/*.egg-info
