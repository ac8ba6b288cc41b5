# The whole developer interface. `make help` lists it.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
SOURCES := agent server dashboard trainer benchmarks tests examples
# A third and fourth use what the others wait; each costs 15 CPU seconds of imports and databases.
WORKERS ?= 4
BESIDE   = --numprocesses $(WORKERS) --dist loadfile --no-loadscope-reorder
# Folders of which test-fast does not even read the files, whose imports take seconds.
ALL_SLOW := agent/integrations end_to_end server

# Tests start hundreds of processes: compiling the sources anew in each costs more than a second.
unexport PYTHONDONTWRITEBYTECODE

# An identity provider that tests sign people in at; without node and npm those tests skip.
PROVIDER := tests/server/oidc/node_modules/oidc-provider

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-fast check docs format clean

help: ## list the commands
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-9s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "spikeguard needs Python 3.11 or newer: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[dev]'
	@touch $@

setup: $(STAMP) ## make .venv with everything installed

demo: $(STAMP) ## the whole story, train to post-mortem (EXIT=1 ends by itself, APPROVE=manual waits for you, FAULT=bad_batch is another)
	@exec $(BIN)/spikeguard demo $(if $(EXIT),--exit) $(if $(filter manual,$(APPROVE)),--approve manual) $(if $(FAULT),--fault '$(FAULT)')

$(PROVIDER): tests/server/oidc/package.json
	@if command -v node >/dev/null && command -v npm >/dev/null; then cd tests/server/oidc \
	  && timeout 120 npm install --no-package-lock --no-audit --no-fund --silent --fetch-retries 1 \
	  && touch node_modules/oidc-provider || echo "npm fetched no oidc-provider: its tests skip"; fi

test: $(STAMP) $(PROVIDER) ## the whole test suite
	$(BIN)/python -m pytest $(BESIDE)

test-fast: WORKERS := 3
test-fast: $(STAMP) ## the tests that start no process: no database, browser, ranks or programs
	$(BIN)/python -m pytest $(BESIDE) -m 'not slow' $(addprefix --ignore=tests/,$(ALL_SLOW))

check: $(STAMP) ## format, lint, types, architecture, reference
	$(BIN)/ruff format --check $(SOURCES)
	$(BIN)/ruff check $(SOURCES)
	$(BIN)/mypy
	$(BIN)/python -m pytest tests/test_architecture.py tests/test_reference.py

docs: ## build the site into site/, strictly; it needs no network to be read
	test -x .venv-docs/bin/sphinx-build || { $(PYTHON) -m venv .venv-docs \
	  && .venv-docs/bin/pip install --quiet --constraint constraints.txt '.[docs]'; }
	.venv-docs/bin/sphinx-build -q -W --keep-going -b html -c docs/site . site
	@echo site/index.html

format: $(STAMP) ## put the sources in their form
	$(BIN)/ruff format $(SOURCES)
	$(BIN)/ruff check --fix $(SOURCES)

clean: ## remove what was built
	rm -rf $(VENV) .venv-docs site build dist .mypy_cache .pytest_cache .ruff_cache
