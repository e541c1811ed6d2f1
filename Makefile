# Every verb of this project; `make help` lists them. The only thing needed beforehand is Python 3.11 with venv.

PYTHON ?= python3
DEMO ?= 1
BIN := .venv/bin
# A virtual environment works at one path and with one installation of Python: for any other, it is made anew.
PYTHON_AND_PATH := *sys.version_info[:2], os.path.realpath(sys._base_executable), os.getcwd()
VENV := .venv/.python-$(shell $(PYTHON) -c 'import os, sys, zlib; print("%x" % zlib.crc32(repr(($(PYTHON_AND_PATH))).encode()))' 2>/dev/null)
INSTALLED_UP := .venv/.installed-up
INSTALLED_DEV := .venv/.installed-dev
INSTALLED_DOCS := .venv/.installed-docs
INSTALLED_SCRIPTS := .venv/.installed-scripts
NODE_MODULES := dev/js/node_modules/.installed
NODE_TESTS := tests/predecessors/node/node_modules/.installed
NODE_CLIENT := clients/typescript/node_modules/.installed
NODE_BENCH := benchmarks/node/node_modules/.installed
NPM := PATH="$(CURDIR)/$(BIN):$$PATH" npm --prefix dev/js
export PIP_DISABLE_PIP_VERSION_CHECK := 1
unexport PYTHONDONTWRITEBYTECODE # each process would compile everything that it imports, which takes longer than the import

.PHONY: help up test test-slow test-smoke test-processes test-crash test-scale test-browser test-node test-all stress bench soak size lint lint-python lint-scripts format lock clean preflight test-deploy test-upstream dist docs clients client-types faults

.NOTPARALLEL: # several of these targets install into the same .venv

help: ## list these verbs
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1	\2/p' $(MAKEFILE_LIST) | expand -t 24

up: $(INSTALLED_UP) ## run everything here, with a live demo; DEMO=0 starts it empty; LOGS=1 shows all logs; Ctrl-C stops it
	@$(BIN)/python -m dev $(if $(filter 0,$(DEMO)),--no-demo) $(if $(filter-out 0,$(LOGS)),--logs)

test: $(INSTALLED_DEV) ## run the tests of a few minutes, against real servers on free ports
	@$(BIN)/python -m pytest

test-slow: $(INSTALLED_DEV) ## run the tests that take seconds each: every state of the protocols, every route with every key
	@$(BIN)/python -m pytest -m "slow and not stress"

test-smoke: $(INSTALLED_DEV) ## run a few of all the others
	@$(BIN)/python -m pytest -m "smoke and not node"

test-processes: $(INSTALLED_DEV) ## run the tests with real worker, beat and web processes
	@$(BIN)/python -m pytest -m "processes and not stress"

test-crash: $(INSTALLED_DEV) ## run the tests in which processes and servers fail
	@$(BIN)/python -m pytest -m "crash and not stress"

test-scale: $(INSTALLED_DEV) ## run the tests with many documents, messages and jobs
	@$(BIN)/python -m pytest -m "scale and not stress"

test-browser: $(INSTALLED_DEV) ## run the tests in a real browser
	@$(BIN)/python -m pytest -m "browser and not stress"

test-node: $(NODE_TESTS) client-types ## run the tests with Node: the TypeScript client, and programs of older applications; installs packages with npm
	@$(BIN)/python -m pytest -m "node and not stress"

test-deploy: $(INSTALLED_DEV) ## run the tests of deploy/; needs Debian packages, which a failure names
	@$(BIN)/python -m pytest -m "deploy and not stress"

test-upstream: $(INSTALLED_DEV) ## run the integration tests of kombu and Celery on our transport and on kombu's, and compare; downloads them once
	@$(BIN)/python -m tests.upstream $(TESTS)

test-all: $(INSTALLED_DEV) $(NODE_TESTS) client-types ## run all of these tests, about twenty-five minutes
	@$(BIN)/python -m pytest -m "not stress"

stress: $(INSTALLED_DEV) ## run the stress tests
	@$(BIN)/python -m pytest -m stress

faults: $(INSTALLED_DEV) ## run SCHEDULES=20 schedules of random faults, from SEED=1 on; fail if a promise is broken
	@$(BIN)/python -m tests.faults --schedules $(or $(SCHEDULES),20) --seed $(or $(SEED),1)

bench: $(NODE_BENCH) ## measure against other ways, about an hour; ONLY=rooms measures one group, QUICK=1 takes a tenth of the data
	@$(BIN)/python -m benchmarks $(if $(filter-out 0,$(QUICK)),--quick) $(if $(ONLY),--only $(ONLY))

soak: $(INSTALLED_DEV) ## work steadily for MINUTES=30 with all processes; fail if the memory of one keeps growing; SAMPLES=file.csv keeps it over time
	@$(BIN)/python -m benchmarks.soak --minutes $(or $(MINUTES),30) $(if $(SAMPLES),--samples $(SAMPLES))

size: $(INSTALLED_DEV) ## count lines, repeated names, the lines of a new system, and the files that one request passes
	@$(BIN)/python -m benchmarks.size

dist: $(INSTALLED_DEV) ## build the wheels and source distributions of Queue Manager and its client into dist/, and check them
	@rm -rf build dist
	@$(BIN)/python -m build
	@$(BIN)/python -m build --outdir dist clients/python
	@$(BIN)/python -m twine check --strict dist/*

lint: lint-python lint-scripts ## check format, style and types

lint-python: $(INSTALLED_DEV) ## check the Python code
	@$(BIN)/ruff format --check
	@$(BIN)/ruff check
	@$(BIN)/mypy

lint-scripts: $(NODE_MODULES) client-types ## check the scripts of the pages; installs its tools with npm
	@$(NPM) run --silent lint

format: $(INSTALLED_DEV) $(NODE_MODULES) ## format the code, and repair what can be repaired
	@$(BIN)/ruff format
	@$(BIN)/ruff check --fix
	@$(NPM) run --silent fix

docs: $(INSTALLED_DOCS) ## build the documentation site in build/docs/site; a broken link is an error
	@$(BIN)/python -m dev.site

clients: client-types ## write what is generated for the clients: the reference of one, the types of the other
	@$(BIN)/python -m dev.client_reference

# Generated anew each time, because they depend on all code of the API; the scripts of the pages are checked with them.
client-types: $(NODE_CLIENT)
	@$(BIN)/python -m dev.api_description > .venv/openapi.json
	@PATH="$(CURDIR)/$(BIN):$$PATH" npm --prefix clients/typescript run --silent generate -- "$(CURDIR)/.venv/openapi.json" --output src/schema.ts

clean: ## remove .venv, all data of `make up`, and caches
	rm -rf .venv .venv.lock .devstack .upstream dev/js/node_modules tests/predecessors/node/node_modules clients/typescript/node_modules clients/typescript/src/schema.ts benchmarks/node/node_modules .pytest_cache .mypy_cache .ruff_cache .hypothesis build dist *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# The preflight is order-only: it runs every time, and makes nothing out of date.
$(VENV): | preflight
	@rm -rf .venv
	@$(PYTHON) -m venv .venv
	@touch $@

# If these files changed, but nothing in them that is installed, dev.install only touches its files.
$(INSTALLED_UP): EXTRAS := embedded
$(INSTALLED_DEV): EXTRAS := embedded,dev
$(INSTALLED_DOCS): EXTRAS := embedded,docs
$(INSTALLED_DEV) $(INSTALLED_DOCS): INCLUDED := $(INSTALLED_UP)
$(INSTALLED_SCRIPTS): EXTRAS := scripts
$(INSTALLED_UP) $(INSTALLED_DEV) $(INSTALLED_DOCS) $(INSTALLED_SCRIPTS): pyproject.toml constraints.txt $(VENV) | preflight
	@$(BIN)/python -m dev.install $(EXTRAS) $@ $(INCLUDED)

lock: | preflight ## write constraints.txt anew, with the newest versions that pyproject.toml allows
	@rm -rf .venv.lock
	@$(PYTHON) -m venv .venv.lock
	@.venv.lock/bin/python -m pip install --quiet -e ".[embedded,dev,scripts,docs]"
	@.venv.lock/bin/python -m pip freeze --exclude-editable > constraints.txt
	@rm -rf .venv.lock

# The linter and the type checker of JavaScript; node itself is a wheel in .venv.
$(NODE_MODULES): dev/js/package-lock.json | $(INSTALLED_SCRIPTS)
	@$(NPM) ci --ignore-scripts --no-audit --no-fund --loglevel=error
	@touch $@

# Not `npm ci`, which refuses a lock file without the optional packages of other operating systems.
$(NODE_TESTS) $(NODE_CLIENT) $(NODE_BENCH): %/node_modules/.installed: %/package-lock.json | $(INSTALLED_DEV) $(INSTALLED_SCRIPTS)
	@PATH="$(CURDIR)/$(BIN):$$PATH" npm --prefix $* install --no-save --ignore-scripts --no-audit --no-fund --loglevel=error
	@touch $@

preflight:
	@command -v $(PYTHON) >/dev/null || \
		{ echo "Missing: $(PYTHON). Debian, Ubuntu: apt install python3 python3-venv" >&2; exit 1; }
	@$(PYTHON) dev/preflight.py
