# `make demo` shows everything; `make test` proves it. Both install what they need into .venv first.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# Tests that run side by side. Each process holds torch, and its tests' children want cores too.
JOBS ?= 2
export HF_HUB_OFFLINE := 1
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: install demo test test-slow lint bench clean

install: $(STAMP)

# torch goes first and pinned, so that nothing that comes after it can pull another build of it.
$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "ckptd needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) --version). Name another: make PYTHON=python3.12 ..."; exit 2; }
	@$(PYTHON) -c 'import ensurepip, venv' || { echo "Python's venv module is missing. On Debian and Ubuntu: apt-get install python3-venv"; exit 2; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --constraint constraints.txt torch
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[dev]'
	@touch $(STAMP)

demo: install
	$(BIN)/ckptd demo $(DEMO)

test: install lint
	$(BIN)/python -m pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder $(PYTEST)

# One after the other: children have the lowest priority, and what kills them at random times should meet them at work.
test-slow: install
	$(BIN)/python -m pytest -m "slow or not slow" $(PYTEST)

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

bench: install
	@mkdir -p bench-output
	@for name in $$(ls benchmarks/*.py | xargs -n1 basename | sed 's/\.py$$//' | grep -v '^_'); do \
		echo "== $$name"; $(BIN)/python benchmarks/$$name.py --json bench-output/$$name.json || exit 1; done

clean:
	rm -rf $(VENV) bench-output demo-output
