# raysim: the two commands are `make demo` and `make test`; both make what they need.
#
#   make demo    .venv with the light core (no torch, no ray), the main job, the report's path
#   make test    everything installed, every test: fast, slow, real, browser, and the house rules
#   make lint    the house rules alone: format, lint, types, import contracts, limits
#   make bench   speed against other ways, into tests/benchmarks/RESULTS.md and README.md;
#                ONLY="kernel planner": those of files with that in their name, the others stay
#   make clean   remove what these commands made, runs/ included
#
# Variables: PYTHON (any 3.11 or newer), VENV, TORCH (what to ask pip for), JOBS, SCENARIO, PEERS.

VENV ?= .venv
# Packages that answer the same questions, for `make bench`; they need other versions than we do.
PEERS ?= .peers
# One more than cores: tests of real clusters, one at a time, mostly wait.
JOBS ?= 3
SCENARIO ?= scenarios/llama3_8b_zero3
# The CPU build where the package index offers one; a plain `torch` may drag in gigabytes of CUDA.
TORCH ?= torch==2.13.0
PYTHON ?= $(shell for p in python3.11 python3.12 python3.13 python3.14 python3 python; do \
	"$$p" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && \
	{ echo "$$p"; break; }; done)

BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-input

.PHONY: demo test lint bench clean
.DELETE_ON_ERROR:

demo: $(VENV)/.core
	$(BIN)/raysim run $(SCENARIO) || [ $$? -eq 1 ]  # 1: done, but a target is missed
	@echo "Report: $$(ls -td "$$PWD"/runs/*/report.html | head -n 1)"

# DeepSpeed compiles an operator and waits for ever for the lock of a compilation that was killed:
# a folder of its own keeps such locks out of the tests.
# Containers that tell Python to keep no bytecode would compile raysim anew in each of a thousand
# processes.
test: export TORCH_EXTENSIONS_DIR = $(CURDIR)/$(VENV)/torch_extensions
test: export PYTHONDONTWRITEBYTECODE =
# A worker that crashes ends the run: with another in its place, loadgroup waits for ever.
test: $(VENV)/.all $(VENV)/.browser
	$(BIN)/python -m pytest -n $(JOBS) --dist loadgroup --max-worker-restart 0 \
		-m 'not benchmark and not exhaustive'

lint: $(VENV)/.all
	$(BIN)/python -m pytest -n $(JOBS) -m 'not benchmark' tests/test_tidy.py

bench: $(VENV)/.all $(PEERS)/.installed
	RAYSIM_BENCH_PEERS=$(PEERS) $(BIN)/python -m tests.benchmarks $(ONLY)

clean:
	rm -rf $(VENV) $(PEERS) runs build dist *.egg-info .benchmarks .hypothesis .import_linter_cache \
		.mypy_cache .pytest_cache .ruff_cache
	find raysim tests scenarios -name __pycache__ -type d -prune -exec rm -rf {} +

$(BIN)/python:
	@test -n "$(PYTHON)" || { echo "raysim needs Python 3.11 or newer: make PYTHON=..."; exit 1; }
	$(PYTHON) -m venv $(VENV)

# Stamps: a second run installs nothing unless pyproject.toml changed.
$(VENV)/.core: pyproject.toml | $(BIN)/python
	@echo "Installing the light core into $(VENV) (about half a minute) ..."
	$(PIP) -e .
	@touch $@

# torch goes first: deepspeed's set-up imports it, which is why it is built without isolation.
$(VENV)/.all: $(VENV)/.core
	@echo "Installing torch, ray, deepspeed, transformers and the tools (some minutes) ..."
	$(BIN)/python -c 'import torch' 2>/dev/null || $(PIP) --no-compile "$(TORCH)"
	$(PIP) --no-compile "ray[default,data,train,tune,serve]>=2.50" "transformers>=4.51" \
		"accelerate>=1.1" "setuptools>=77" wheel
	$(PIP) --no-compile --no-build-isolation "deepspeed>=0.17"
	$(PIP) --no-compile -e '.[all]'
	$(BIN)/python -m compileall -qq -j $(JOBS) $(VENV)/lib || true  # as pip does, on one core
	@touch $@

$(PEERS)/.installed: | $(BIN)/python
	@echo "Installing peers into $(PEERS) ..."
	@{ $(BIN)/python -m venv $(PEERS) && $(PEERS)/bin/python -m pip install --quiet \
		--disable-pip-version-check --no-input llm-analysis==0.2.2 ftuneai==0.4.1; } || \
		echo "They cannot be installed: benchmarks beside them are skipped."
	@mkdir -p $(PEERS) && touch $@

# Pages are tested in Debian's Chromium; where it cannot be had, those tests are skipped and say so.
$(VENV)/.browser: | $(BIN)/python
	@command -v chromium chromium-browser google-chrome >/dev/null || { \
		echo "Installing Chromium ..."; apt-get update -qq && \
		DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
			chromium fonts-dejavu-core >/dev/null; } || \
		echo "No Chromium, and none can be installed: tests of pages are skipped."
	@touch $@
