# docleak: 'make audit' and 'make test' need nothing but Python 3.11 or newer; the rest is for developers.

export OMP_NUM_THREADS ?= 1
export TOKENIZERS_PARALLELISM ?= false
export HF_HUB_DISABLE_TELEMETRY ?= 1
# Compiled once, docleak and its tests are imported by hundreds of processes.
export PYTHONDONTWRITEBYTECODE :=

OUT ?= docleak-audit
ARGS ?=
BIN := .venv/bin
CODE := src tests bench examples

.DEFAULT_GOAL := help
.PHONY: help setup audit test lint types check bench site release format clean

help:  ## show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## /{printf "  make %-8s %s\n", $$1, $$2}' Makefile

setup:  ## make or refresh .venv (PYTHON=... chooses the interpreter)
	@bash scripts/setup.sh

audit: setup  ## audit the shipped model on synthetic pages; run again to resume (OUT=folder, ARGS="more options")
	$(BIN)/docleak audit --out $(OUT) $(ARGS)
	@echo "The report: $(abspath $(OUT))/report.html"

test: setup  ## run the tests, a process per core (ARGS="-k name" for some)
	@$(BIN)/python -m pytest -n auto --dist loadfile --no-loadscope-reorder $(ARGS)

lint: setup  ## formatting and lint
	$(BIN)/ruff format --check $(CODE)
	$(BIN)/ruff check $(CODE)

types: setup  ## strict type check
	$(BIN)/mypy

check: lint types test  ## everything CI runs; the documents' code blocks run as tests

bench: setup  ## measure speed on this machine, into docs/results
	$(BIN)/python -m bench $(ARGS)

site: setup  ## build the documents as a site, into build/site
	$(BIN)/python -m mkdocs build --strict

release: check  ## what must hold before a release: sdist, wheel, and an audit with the wheel alone
	$(BIN)/python scripts/release_check.py $(ARGS)

format: setup  ## format the code and mend what lint can mend
	$(BIN)/ruff format $(CODE)
	$(BIN)/ruff check --fix $(CODE)

clean:  ## remove .venv, caches and built files (not your audits)
	rm -rf .venv build dist src/*.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find src tests bench -name __pycache__ -type d -prune -exec rm -rf {} +
