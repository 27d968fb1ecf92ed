# `make demo` shows everything; `make test` proves it. Both install what they need into .venv first.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
DEV := $(VENV)/.installed-dev
# Tests that run side by side. Each process holds torch; many tests wait for children, so that there are more processes than cores.
JOBS ?= 4
# A process that dies, or is ended since a test hangs (tests/hanging.py), ends the run: another would begin with the same test.
XDIST := --dist loadfile --no-loadscope-reorder --max-worker-restart 0
export HF_HUB_OFFLINE := 1
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: help install install-dev demo test test-changed test-slow test-cluster test-clients soak lint messages bench release clean

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | while IFS="$$(printf '\t')" read -r name what; do printf '%-13s %s\n' "$$name" "$$what"; done

install: $(STAMP) ## make .venv with everything pinned: 1.8 GB

install-dev: $(DEV) ## the same with what tests and checks need

# torch goes first and pinned, so that nothing that comes after it can pull another build of it.
$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "ckptd needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) --version). Name another: make PYTHON=python3.12 ..."; exit 2; }
	@$(PYTHON) -c 'import ensurepip, venv' || { echo "Python's venv module is missing. On Debian and Ubuntu: apt-get install python3-venv"; exit 2; }
	@echo "Installing into $(VENV): 1.8 GB with torch's CPU build, most of it torch; it takes some minutes."
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --constraint constraints.txt torch
	$(BIN)/pip install --constraint constraints.txt --editable .
	@touch $(STAMP)

$(DEV): $(STAMP)
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[dev]'
	@touch $(DEV)

demo: install ## train a small model here and export it; DEMO="--keep DIR"
	$(BIN)/ckptd demo $(DEMO)

test: install-dev lint ## lint and the quick tests; JOBS=N side by side, PYTEST="tests/onnx -k name"
	$(BIN)/python -m pytest -n $(JOBS) $(XDIST) $(PYTEST)

test-changed: install-dev ## what the edits since SINCE=HEAD can touch, as far as two minutes suffice
	@files=$$($(BIN)/python -m tests.changed $(or $(SINCE),HEAD)); echo "$$files" | wc -l | xargs -I N echo "N files of tests"; \
	$(BIN)/python -m pytest -n $(JOBS) $(XDIST) --seconds 90 $(PYTEST) $$files

# One after the other: children have the lowest priority, and what kills them at random times should meet them at work.
test-slow: install-dev ## all tests, one after the other
	$(BIN)/python -m pytest -m "slow or not slow" $(PYTEST)

test-cluster: install-dev ## a real Slurm and a real Ray are fetched and started; exports, failures and a storm of 1,000 stages
	$(BIN)/python -m pytest -m "slow or not slow" $(PYTEST) tests/cluster

# Toolchains and environments are kept in .clients: 3 GB, and llama.cpp is compiled.
test-clients: install-dev ## whether stock clients read what is published, each in its own environment
	TOOLCHAINS_TEST_STATE=$(CURDIR)/.clients/state CLIENTS_TEST_ENVIRONMENTS=$(CURDIR)/.clients \
	$(BIN)/python -m pytest -m "slow or not slow" $(or $(PYTEST),tests/clients tests/older)

soak: install-dev ## half an hour of everything that can go wrong, against one daemon; SOAK="--minutes 5 --seed 1"
	$(BIN)/python -m tests.soak $(SOAK)

lint: install-dev ## ruff, mypy, the import law
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

messages: install-dev ## the catalogue of translated sentences anew from the code, and what it lacks
	$(BIN)/python -m tests.words.messages
	$(BIN)/python -m tests.words.recorded

bench: install-dev ## every benchmark, into bench-output/
	@mkdir -p bench-output
	@for name in $$(ls benchmarks/*.py | xargs -n1 basename | sed 's/\.py$$//' | grep -v '^_'); do \
		echo "== $$name"; $(BIN)/python benchmarks/$$name.py --json bench-output/$$name.json || exit 1; done

release: install-dev ## build wheel and sources into dist/, and try them in a clean environment
	$(BIN)/python -m tests.release dist

clean: ## remove .venv and what demo, bench and release made
	rm -rf $(VENV) .clients bench-output demo-output dist
