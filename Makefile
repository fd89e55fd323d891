# One door for people and for CI. Every target sets up what it needs first; a second run does nothing.
#
#   make setup                .venv with everything, and .venv/bin/bench
#   make demo [ANSWER=wrong]  the main job, end to end: no key, no Docker, no network
#   make check                the fast gate: lint, format, types, import contracts, budgets, fast tests
#   make test                 every test, the slow ones too
#   make clean                remove the venv, caches and build output

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

# Some shells switch bytecode off; every start of `bench` would then compile its imports again.
unexport PYTHONDONTWRITEBYTECODE

PYTHON ?= python3
VENV := .venv/bin
# The name of the stamp says what the venv was made for: this folder, this Python, this pyproject.
# A copied checkout, another Python or an edited pyproject therefore never runs a stale venv.
STAMP = .venv/.ready-$(shell .ci/setup --key '$(PYTHON)')
PYTEST := $(VENV)/python -m pytest -n 2 --dist loadfile -q

.PHONY: help setup demo check test clean

help:
	@sed -n 's/^#   //p' Makefile

setup:
	@test -e "$(STAMP)" || .ci/setup '$(PYTHON)'

demo: setup
	@$(VENV)/bench demo $${ANSWER:+--answer "$$ANSWER"}

check: setup
	@.ci/check

test: setup
	@$(PYTEST) --durations 10

clean:
	rm -rf .venv dist build .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
