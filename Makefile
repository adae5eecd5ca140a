# Everything runs from here, the root of the repository. The environment in .venv is made on first use.

PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready

# a developer's own setting must not leak in; the builds of pip and of `build` are pinned too
unexport PYTHONPATH
export PIP_CONSTRAINT := constraints.txt
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.DEFAULT_GOAL := help
.PHONY: help demo test lint types bench docs mutants wheel clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-8s %s\n", $$1, $$2 }' Makefile

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "arht needs Python 3.11 or newer; got $(PYTHON), $$($(PYTHON) -V 2>&1). Try: make PYTHON=python3.12" >&2; exit 1; }
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[dev]'
	@touch $@

demo: $(READY) ## a worked example on real images
	@$(BIN)/python -m arht demo

test: $(READY) ## the tests, on two cores
	$(BIN)/python -m pytest -n 2

lint: $(READY) ## style and formatting
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(READY) ## mypy, strict
	$(BIN)/mypy

bench: $(READY) ## speed and memory of scoring, as JSON
	@$(BIN)/python -m benchmarks.scoring --json

docs: $(READY) ## the documentation, in docs/_build/html; a warning is an error
	$(BIN)/sphinx-build -q -W --keep-going -b html docs docs/_build/html

mutants: $(READY) ## break the library on purpose and see that the tests notice
	$(BIN)/python -m tests.mutants

wheel: $(READY) ## source distribution and wheel, in dist/
	rm -rf dist
	$(BIN)/python -m build

clean: ## remove what was built, but not .venv
	rm -rf build dist docs/_build .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find src tests benchmarks docs -name __pycache__ -type d -prune -exec rm -rf {} +
