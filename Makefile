# make demo: set everything up and do the main job.   make test: set everything up, lint and run the tests.
# make test-fast: two minutes.   make test-all: also the long versions.   make coverage: lines that the tests reach.
SUITABLE := import sys, venv; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))
PYTHON ?= $(shell for p in python3.11 python3.12 python3.13 python3; do \
            $$p -c '$(SUITABLE)' 2>/dev/null && echo $$p && break; done)
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.ready
# Python compiles a module when it is first imported; pip would compile several times as many, on one core.
PIP    := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-compile
ROOT   ?= demo
# Worlds and learners are small: threads inside BLAS only get in each other's way.
export OMP_NUM_THREADS ?= 1
# Commands and tests start many processes: without compiled modules each would spend seconds on imports.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: setup demo browser test pytest test-fast test-all coverage lint lock audit bench docs clean

setup: $(STAMP)

# In parts, two at a time: pip uses one core. The order does not matter, since no dependencies are looked up.
$(STAMP): requirements.lock pyproject.toml setup.py
	@[ -n "$(PYTHON)" ] || { echo "Needs Python 3.11, 3.12 or 3.13 with venv and pip: on Debian, apt-get install python3 python3-venv"; exit 2; }
	$(PYTHON) -m venv $(VENV)
	rm -f $(VENV)/lock-*
	split -l 20 requirements.lock $(VENV)/lock-
	ls $(VENV)/lock-* | xargs -P 2 -n 1 $(PIP) --require-hashes -r
	$(PIP) --no-build-isolation -e .
	@touch $@

demo: setup
	$(BIN)/because collect unlock-medium --root $(ROOT)
	$(BIN)/because datasets --root $(ROOT)
	$(BIN)/because show unlock-I-medium --root $(ROOT) -o $(ROOT)/unlock-I-medium.png
	$(BIN)/because discover unlock-medium --root $(ROOT) -o $(ROOT)/graph
	$(BIN)/because train because --data unlock-medium --root $(ROOT) --seeds 2 --chunk 250 -o $(ROOT)/run --resume
	$(BIN)/because evaluate $(ROOT)/run --split IO --root $(ROOT)
	$(BIN)/because oracle --world unlock --episodes 100 -o $(ROOT)/oracle.json
	$(BIN)/because report $(ROOT)/run --oracle $(ROOT)/oracle.json --root $(ROOT) -o $(ROOT)/report

lint: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

# The tests of the report open it in Chromium; where there is none, and nobody may install it, they are skipped.
browser:
	@command -v chromium >/dev/null || command -v google-chrome >/dev/null || { \
	  [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && echo "Installing Chromium for the tests of the report" && \
	  { apt-get update && apt-get install -y --no-install-recommends chromium; } >/dev/null 2>&1; } || \
	  echo "No Chromium: the tests of the report in a browser are skipped (on Debian, apt-get install chromium)"

# The hashes in the lock, after a pin was changed: from the index that pip is configured with.
lock:
	$(BIN)/python -m benchmarks.lock

# Known vulnerabilities of the locked versions, where pip-audit is installed and its services can be reached.
audit:
	pip-audit -r requirements.lock --disable-pip --no-deps --progress-spinner off

# Chromium is installed beside the Python packages, and linters run beside the tests: each would leave a core idle.
test:
	@$(MAKE) --no-print-directory -j2 setup browser
	@$(MAKE) --no-print-directory -j2 lint pytest

pytest: setup
	$(BIN)/pytest -n 2 --dist worksteal --durations=10

test-fast: setup
	$(BIN)/pytest -n 2 --dist worksteal -m "not slow and not long"

test-all: lint browser
	$(BIN)/pytest -n 2 --dist worksteal -m ""

coverage: setup browser
	$(BIN)/pytest -n 2 --dist worksteal --cov=because_rl --cov-report=term:skip-covered

bench: setup
	$(BIN)/python -m benchmarks worlds -o results/worlds/speed.json

# A site that works from disk. The variable silences the theme's notice that its support ends in May 2027.
docs: setup
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo "Open site/index.html"

clean:
	rm -rf $(VENV) demo site .pytest_cache .mypy_cache .ruff_cache
