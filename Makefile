# Everything here sets itself up: `make demo` and `make test` work on a machine that has only Python, with or without a GPU.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:

PYTHON ?= python3
VENV ?= .venv
# For example --system-site-packages, to use a torch that the machine already has.
VENV_FLAGS ?=
PYTEST_FLAGS ?=

GPU := $(shell if [ -e /dev/nvidiactl ] || nvidia-smi -L >/dev/null 2>&1; then echo gpu; else echo cpu; fi)
# Without a GPU every pip line is held to the versions of the CPU constraint file.
CONSTRAINT := $(if $(filter cpu,$(GPU)),--constraint constraints-cpu.txt)

BIN := $(VENV)/bin
STAMP := $(VENV)/.set-up-$(GPU)

.PHONY: help setup demo test test-fast gpu-test lint format types imports check clean

help:
	@echo "make demo       judge three kernels through an MCP client: honest, wrong, cheat"
	@echo "make test       every test that this machine can run"
	@echo "make test-fast  the same without those that take more than ten seconds each"
	@echo "make gpu-test   the tests that need a GPU"
	@echo "make check      ruff, format, mypy, import-linter (no tests)"
	@echo "make clean      remove $(VENV) and caches"

$(STAMP): pyproject.toml constraints-cpu.txt
	@echo "== setting up $(VENV) for a machine with: $(GPU)"
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV_FLAGS) $(VENV)
	$(BIN)/python -m pip install $(CONSTRAINT) --editable '.[dev]'
	touch $@

setup: $(STAMP)

demo: $(STAMP)
	$(BIN)/fk demo

test: $(STAMP)
	$(BIN)/python -m pytest $(PYTEST_FLAGS)

test-fast: $(STAMP)
	$(BIN)/python -m pytest -m "not slow" $(PYTEST_FLAGS)

gpu-test: $(STAMP)
	@test $(GPU) = gpu || { echo "there is no GPU on this machine: nothing would be tested" >&2; exit 1; }
	$(BIN)/python -m pytest tests/gpu $(PYTEST_FLAGS)

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

types: $(STAMP)
	$(BIN)/mypy

imports: $(STAMP)
	$(BIN)/lint-imports

check: lint types imports

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .import_linter_cache build dist *.egg-info
	find fk_core fk_server tests tasks benchmarks examples -name __pycache__ -type d -prune -exec rm -rf {} +
