# One command for each thing a newcomer wants to do. `make` alone lists them.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := -m pip install --quiet --disable-pip-version-check
LOCKED := $(PIP) --no-deps --require-hashes --requirement
ARGS ?=

.DEFAULT_GOAL := help
.NOTPARALLEL:
.DELETE_ON_ERROR:
.PHONY: help demo test check fmt lock sbom bench prove house clean components

help: ## list the targets
	@sed -n 's/^\([a-z]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 12

demo: $(VENV)/.base ## see it work on this machine; installs only what that needs
	@$(BIN)/holdfast demo $(ARGS)

test: check components ## everything: checks, then the tests against real servers (ARGS=... goes to pytest)
	@# compiled files are kept whatever the machine says: the tests start hundreds of processes
	@# what failed runs once more, alone: who passes then fails only beside others, which is told and wants mending
	PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest --numprocesses=3 --dist=worksteal $(ARGS) || { \
	    echo "FAILED BESIDE OTHERS: these run once more, alone; what fails again fails the run"; \
	    $(BIN)/python -m pytest --last-failed --last-failed-no-failures=none --maxfail=5 $(ARGS); }

check: $(VENV)/.dev ## lint, formatting, types, layers
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

fmt: $(VENV)/.dev ## format and fix what can be fixed
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(VENV)/.dev components ## measure
	$(BIN)/python -m bench $(ARGS)

prove: $(VENV)/.dev components ## the long runs: crashes, partitions and restarts for minutes
	$(BIN)/python -m pytest -m prove --timeout=7200 $(ARGS)

house: $(VENV)/.dev ## figures of the source: size, imports, types, costs (ARGS="--against COMMIT" sets another beside it)
	@$(BIN)/python tools/house.py $(ARGS)

lock: ## choose the newest versions that pyproject.toml and package.json allow, with their hashes
	@tools/venv.sh $(PYTHON) .venv-lock
	@.venv-lock/bin/python $(LOCKED) requirements/uv.lock
	@tools/lock.sh .venv-lock/bin/uv
	@cd tests/components && npm install --package-lock-only --ignore-scripts --no-audit --no-fund
	@.venv-lock/bin/python tools/strip_npm_lock.py tests/components/package-lock.json

sbom: $(VENV)/.dev ## write dist/sbom/*.cdx.json: every locked package, with its hashes (CycloneDX)
	@tools/sbom.sh $(BIN)/cyclonedx-py dist/sbom requirements/base.lock requirements/dev.lock

clean: ## remove everything that was made here
	rm -rf $(VENV) .venv-lock .components dist build
	rm -rf .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
	find src tests tools -name __pycache__ -type d -prune -exec rm -rf {} +

components: $(VENV)/.dev
	@tools/components.sh $(BIN)/python

$(VENV)/.base: requirements/base.lock pyproject.toml
	@tools/venv.sh $(PYTHON) $(VENV)
	@echo "installing what Holdfast needs into $(VENV)"
	@$(BIN)/python $(LOCKED) requirements/base.lock
	@$(BIN)/python $(PIP) --no-deps --no-build-isolation --editable .
	@touch $@

$(VENV)/.dev: $(VENV)/.base requirements/dev.lock
	@echo "installing what the tests need into $(VENV)"
	@$(BIN)/python $(LOCKED) requirements/dev.lock
	@touch $@
