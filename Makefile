# Two commands set everything up on a fresh machine: `make train` trains, `make test` passes the tests.
# Both create .venv if it is missing or out of date.

.DEFAULT_GOAL := help
.PHONY: help train test test-slow test-processors soak coverage check format docs constraints clean

VENV    := .venv
PYTHON  := $(VENV)/bin/python
EXTRAS  := dev,atari,board,box2d,export,metta,minatar,mujoco,pettingzoo,sweep,trackio,wandb

# The interpreter: the first that runs, can make a virtual environment, and that the pins in constraints.txt have wheels for.
# Python 3.13 comes last, as there is no MettaGrid for it: its tests are skipped there.
PYTHONS   := python3.11 python3.12 python3.13 python3
SUPPORTED := import sys, venv, ensurepip; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))
INTERPRETER = $(shell for name in $(PYTHONS); do \
	if $$name -c '$(SUPPORTED)' >/dev/null 2>&1; then echo $$name; break; fi; done)

# What an installation depends on. A change of any of these, or of the folder, makes .venv stale.
STAMP = $$( { $(INTERPRETER) --version; pwd; cat pyproject.toml constraints.txt; } | cksum | tr ' ' '-')

help:  ## show this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-16s %s\n", $$1, $$2}'

train: base  ## train the default recipe on the built-in environment
	$(VENV)/bin/millpond train grid

test: full check  ## the checks and all quick tests
	$(PYTHON) -m pytest -n 2 --dist loadfile

test-slow: full check  ## all tests, also the slow ones, and the numerical ones as on other processors
	$(PYTHON) -m pytest -n 2 --dist loadfile -m 'slow or not slow'
	$(PYTHON) tests/processors.py generic avx2 avx512 avx512-bf16

test-processors: full  ## numerical tests (fast, policies, trainers, kernels, rollout, planner) as on other processors
	$(PYTHON) tests/processors.py

coverage: full  ## the quick tests with line coverage, by package
	$(PYTHON) -m pytest -n 2 --dist loadfile --cov --cov-report=
	$(PYTHON) tests/coverage_report.py

soak: full  ## train, kill, resume and verify for an hour, or MINUTES=5; prints counts
	$(PYTHON) benchmarks/soak.py --minutes $(or $(MINUTES),60)

check: full  ## linter, formatter, type checker, import directions
	$(PYTHON) -m ruff check --no-cache .
	$(PYTHON) -m ruff format --no-cache --check .
	$(PYTHON) -m mypy
	$(PYTHON) -m pytest tests/test_imports.py

format: full  ## format the code
	$(PYTHON) -m ruff check --fix .
	$(PYTHON) -m ruff format .

docs: full  ## generate the generated pages of docs/
	$(PYTHON) -c 'from millpond.config.keys import configuration_page as page; print(page(), end="")' > docs/configuration.md

constraints: full  ## pin the installed versions, after a change of dependencies
	$(PYTHON) -m pip freeze --exclude-editable --exclude millpond | sed 's/+cpu$$//' | LC_ALL=C sort -f > constraints.txt

clean:  ## remove the virtual environment and all caches
	rm -rf $(VENV) .coverage build dist .pytest_cache .hypothesis .mypy_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

.PHONY: interpreter base full
interpreter:
	@if [ -z "$(INTERPRETER)" ]; then \
		echo "make needs Python 3.11, 3.12 or 3.13 with its venv module."; \
		for name in $(PYTHONS); do \
			if ! command -v $$name >/dev/null 2>&1; then echo "  $$name: not found"; \
			elif ! $$name --version >/dev/null 2>&1; then echo "  $$name: found, but it does not run"; \
			elif ! $$name -c 'import venv, ensurepip' 2>/dev/null; then echo "  $$name: $$($$name --version), without venv (Debian: apt install $$name-venv)"; \
			else echo "  $$name: $$($$name --version), not supported"; fi; \
		done; exit 1; fi

base: interpreter
	@if [ "$$(cat $(VENV)/installed-base 2>/dev/null)" != "$(STAMP)" ] || ! $(PYTHON) -c '' 2>/dev/null; then \
		set -e; echo "Making $(VENV) with $$($(INTERPRETER) --version); this takes a minute or two."; \
		rm -rf $(VENV); $(INTERPRETER) -m venv $(VENV); \
		$(PYTHON) -m pip install --quiet --no-warn-script-location -c constraints.txt -e .; \
		echo "$(STAMP)" > $(VENV)/installed-base; fi

full: base
	@if [ "$$(cat $(VENV)/installed-full 2>/dev/null)" != "$(STAMP)" ]; then \
		set -e; echo "Adding what the tests need to $(VENV)."; \
		$(PYTHON) -m pip install --quiet --no-warn-script-location -c constraints.txt -e '.[$(EXTRAS)]'; \
		echo "$(STAMP)" > $(VENV)/installed-full; fi
