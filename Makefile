# One command each; every target makes its own virtual environment on a fresh machine.

PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
PY     := $(BIN)/python
MODEL  := .cache/SmolLM2-135M-Instruct.Q4_1.gguf
PYTEST := OPENBLAS_NUM_THREADS=1 EINPAGE_REQUIRE_MODEL=1 $(PY) -m pytest
# One process a core, four at most: each may hold the model. A file's tests share fixtures, so they stay together.
ALONG  := -n auto --maxprocesses 4 --dist loadfile
SOURCE := __init__.py einpage einsum_front checkpoints memplan kernels exec tests bench

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.NOTPARALLEL:
.PHONY: help run test test-all mutants check lint format types layout golden bench kernels clean

help:           ## print this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

run: $(VENV)/.base $(MODEL)  ## install, fetch SmolLM2-135M, prefill a prompt under 64 MiB, write timeline.html, go on for 24 tokens
	$(BIN)/einpage run specs/llama.yaml --weights $(MODEL) --budget 64MiB --prompt "The capital of France is" \
		--dtype fp32 --device cpu --timeline timeline.html
	$(BIN)/einpage generate specs/llama.yaml --weights $(MODEL) --budget 64MiB --prompt "The capital of France is" \
		--dtype fp32 --device cpu --max-new 24 --greedy

test: $(VENV)/.test $(MODEL)  ## every test but the long sweeps; no GPU, some eight minutes on 2 cores
	$(PYTEST) -q $(ALONG)

test-all: $(VENV)/.test $(MODEL)  ## every test, the long sweeps too (over 10,000 random plans)
	$(PYTEST) -q $(ALONG) -m "" --timeout 1800

mutants: $(VENV)/.test $(MODEL)  ## does a test fail for every slip of tests/mutation/*.yaml? under 40 minutes on 2 cores
	$(PY) tests/mutation/run.py

check: lint test  ## format check, lint, types, layering, tests: what CI runs

lint: $(VENV)/.test  ## the quick half of check: format, lint, types, layering
	$(BIN)/ruff format --check $(SOURCE)
	$(BIN)/ruff check $(SOURCE)
	$(BIN)/mypy
	$(BIN)/mypy --explicit-package-bases bench
	$(PYTEST) -q tests/test_layout.py tests/test_imports.py

format: $(VENV)/.test  ## rewrite the code in the house format
	$(BIN)/ruff format $(SOURCE)
	$(BIN)/ruff check --fix $(SOURCE)

golden: $(VENV)/.test  ## rewrite the golden texts from what the code says now; read the diff before committing
	$(PYTEST) -q -k golden --update-golden

bench: $(VENV)/.bench $(MODEL)  ## the measurements of bench/README.md, as files under bench/results/local
	$(PY) -m bench.plan_quality --out bench/results/local
	$(PY) -m bench.traces tests/data --out bench/results/local
	$(PY) -m bench.placement tests/data --out bench/results/local
	$(PY) -m bench.plan_speed --out bench/results/local
	$(PY) -m bench.robustness tests/data --out bench/results/local
	$(PY) -m bench.turnip_cases --out bench/results/local

kernels: $(VENV)/.test  ## the Triton kernels alone: interpreted against their twins, then every tile compiled for sm_80, sm_86, sm_90
	$(PYTEST) -q -m interpreter
	$(PY) -m bench.aot_table --variants

clean:          ## remove everything these targets made, the virtual environment and the model included
	rm -rf $(VENV) .cache build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .coverage htmlcov \
		timeline.html bench/results/local
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Set-up. A stamp is younger than the two files that say what is installed, so a second call is instant.

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "einpage needs Python 3.11 or newer: make PYTHON=python3.11 ..."; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.base: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(PY) -m pip install --quiet --no-input -c constraints.txt -e .
	@touch $@

$(VENV)/.test: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(PY) -m pip install --quiet --no-input -c constraints.txt -e '.[test]'
	@touch $@ $(VENV)/.base

$(VENV)/.bench: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(PY) -m pip install --quiet --no-input -c constraints.txt -e '.[test,bench]'
	@touch $@ $(VENV)/.test $(VENV)/.base

$(MODEL): | $(VENV)/.base
	$(PY) -m einpage.exec.system.fetch_model --to $(dir $(MODEL))
