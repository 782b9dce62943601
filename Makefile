# `make` lists what can be asked for. Everything is installed into .venv, nothing outside it but the
# Horovod wheel's cache (tools/install_horovod.sh).

SHELL := /bin/bash
.SHELLFLAGS := -o pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

PYTHON ?= python3
NP ?= 2
ENGINE ?= horovod
ARGS ?=

VENV := .venv
BIN := $(VENV)/bin
LOG := $(VENV)/setup.log
CONFIGS := configs/digits/cnn.py configs/dgc/wm5.py configs/dgc/fp16.py configs/dgc/int32.py
TRAIN := train.py --configs $(CONFIGS) --devices cpu --suffix .$(ENGINE) $(ARGS)
# pip is run again when what is listed or pinned changes, not when a checkout touches the files.
REQUIREMENTS := $(VENV)/.requirements-$(shell cat requirements.txt requirements.lock | cksum | cut -d' ' -f1)

ifeq ($(filter $(ENGINE),horovod torch),)
$(error ENGINE is horovod or torch, not '$(ENGINE)')
endif

# OpenMPI refuses root otherwise, and in containers people are root.
ifeq ($(shell id -u),0)
export OMPI_ALLOW_RUN_AS_ROOT := 1
export OMPI_ALLOW_RUN_AS_ROOT_CONFIRM := 1
endif

.PHONY: help setup requirements ops horovod run test worlds gpu sanitize faults parity compare lint format docs figures wheel check-wheel matrix lock clean distclean

help: ## list the targets
	@echo 'make TARGET [VARIABLE=value ...]'
	@sed -nE 's/^([a-z-]+):[^#]*## (.*)/  \1\t\2/p' $(MAKEFILE_LIST) | expand -t 14
	@echo 'Variables:'
	@echo '  ENGINE      horovod (default) or torch: who carries the gradients'
	@echo '  NP          how many workers `make run` starts (2)'
	@echo '  ARGS        more arguments for train.py (run), pytest (test), bench.parity, bench.compare or tools.matrix, such as ARGS="--configs.train.num_epochs 5"'
	@echo '  PARALLEL    how pytest shares the tests among processes (three); empty: one process'
	@echo '  PYTHON      the Python, 3.10 or newer, that .venv is made with (python3)'

setup: requirements ops $(if $(filter horovod,$(ENGINE)),horovod) ## create .venv, install the pinned requirements, build the kernels and Horovod

requirements: $(REQUIREMENTS)

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null || \
	  { echo '$(PYTHON) is missing or older than 3.10: install Python 3.10 or newer, or name it with PYTHON=...' >&2; exit 1; }
	@echo 'Creating $(VENV)'
	@rm -rf $(VENV) && $(PYTHON) -m venv $(VENV) >/dev/null 2>&1 || \
	  { rm -rf $(VENV); echo '$(PYTHON) cannot create $(VENV): install its venv module (Debian: python3-venv)' >&2; exit 1; }

$(REQUIREMENTS): | $(BIN)/python
	@echo 'Installing requirements.txt as pinned in requirements.lock: some minutes the first time (log: $(LOG))'
	@$(BIN)/python -m pip install --disable-pip-version-check -r requirements.txt -c requirements.lock >$(LOG) 2>&1 </dev/null || \
	  { grep -E '^ERROR' $(LOG) | tail -n 3; echo 'The requirements could not be installed, see $(LOG)' >&2; exit 1; }
	@rm -f $(VENV)/.requirements-* && touch $@

ops: requirements ## compile the fused kernels, or find them in the cache
	@$(BIN)/python -m dgc.ops.build || true # without a compiler all works, more slowly

horovod: requirements ## build Horovod against the installed torch, or take the cached wheel
	@tools/install_horovod.sh $(BIN)/python

# With a few cores, one thread a worker: the workers would otherwise fight over them.
run: export PATH := $(CURDIR)/$(BIN):$(PATH)
run: export OMP_NUM_THREADS ?= $(shell n=$$(($$(nproc) / $(NP))); echo $$((n > 0 ? n : 1)))
run: setup ## train a small CNN on the digits with compressed gradients and NP workers
ifeq ($(ENGINE),horovod)
	horovodrun --gloo -np $(NP) python $(TRAIN)
else
	torchrun --standalone --nproc-per-node $(NP) $(TRAIN)
endif

# Without Horovod the tests that need it skip, and say so. Three processes share the tests by groups
# (tests/grouping.py): two run those that start processes or wait, one those that compute.
test: PARALLEL ?= -n 3 --dist loadgroup --no-loadscope-reorder
test: export PATH := $(CURDIR)/$(BIN):$(PATH)
test: requirements ops ## run the whole test suite
ifeq ($(ENGINE),horovod)
	@tools/install_horovod.sh --no-retry $(BIN)/python || echo 'Going on without it: the tests that need Horovod skip.'
endif
	OMP_NUM_THREADS=1 python -m pytest $(PARALLEL) $(ARGS)

# In `make test` each row meets one number of ranks of some launchers. Takes 3 to 6 minutes.
worlds: export PATH := $(CURDIR)/$(BIN):$(PATH)
worlds: setup ## train every row of the property table with 2 and 4 real ranks under every launcher
	EVERY_WORLD=1 OMP_NUM_THREADS=1 python -m pytest tests/dgc/test_real_processes.py $(ARGS)

# On a machine with a GPU. In the second line all parameters of the tests lie on it.
gpu: export PATH := $(CURDIR)/$(BIN):$(PATH)
gpu: requirements ops ## on a machine with a GPU: the tests that need one, and the laws of all compositions there
	python -m pytest tests/dgc/test_ops_triton.py tests/dgc/test_gpu.py $(ARGS)
	DGC_TEST_DEVICE=cuda python -m pytest tests/dgc/test_properties.py $(ARGS)

# Two more builds of the kernels, compiled once, then their tests and a minute of random calls.
sanitize: requirements ## test and fuzz the C++ kernels under AddressSanitizer and UndefinedBehaviorSanitizer
	@$(BIN)/python -m tools.sanitize $(ARGS)

# A short form of about five minutes. All of it, about an hour: ELASTIC_ARGS="--results elastic.jsonl"
ELASTIC_ARGS ?= --kinds dgc --rounds 1 --kills 4 --mean 10 --results build/faults/elastic.jsonl

faults: requirements ## damage checkpoints and kill runs, and compare what comes out
	@$(BIN)/python -m tools.faults $(ARGS)
	@$(BIN)/python -m tools.faults.server $(SERVER_ARGS)
	@$(BIN)/python -m tools.faults.elastic $(ELASTIC_ARGS)

# It can be interrupted: the same command goes on. ARGS="--workload resnet20 --data FOLDER"
parity: requirements ## compare the accuracy of algorithms at equal epochs (ARGS="--workload NAME")
	@$(BIN)/python -m bench.parity $(ARGS)

# It can be interrupted, too. ARGS="--rows low-communication --data FOLDER", COMPARE=digits
COMPARE ?= digits gpt-adamw

compare: requirements ## compare all methods on a link, by bytes and by seconds (COMPARE="NAMES")
	@for name in $(COMPARE); do $(BIN)/python -m bench.compare --workload $$name $(ARGS) || exit; done

lint: requirements ## check style (ruff), types (mypy) and the direction of imports
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m tools.imports

format: requirements ## rewrite the code in the project's style
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# Any warning fails: a broken link, a page outside the navigation, a docstring that cannot be read.
docs: export NO_MKDOCS_2_WARNING := 1
docs: requirements ## build the documentation as a site, in build/site
	@$(BIN)/mkdocs build --strict -q
	@echo 'build/site/index.html is the start; python -m http.server -d build/site serves it with its search'

# From the measured numbers in docs/data; nothing is measured here.
figures: requirements ## redraw the figures of the documents, and their table of methods
	@$(BIN)/python -m tools.picture
	@$(BIN)/python -m bench.time_to_accuracy
	@$(BIN)/python -m tools.figures

wheel: requirements ## build the wheel into dist
	@$(BIN)/python -m tools.wheel --build

check-wheel: requirements ## install the wheel into an empty environment, and run the README there
	@$(BIN)/python -m tools.wheel

matrix: requirements ## try every Python of this machine with the oldest and the newest torch
	@$(BIN)/python -m tools.matrix $(ARGS)

# Resolved for every Python at once. NVIDIA's packages are pinned by torch itself, differently in each
# of its builds, so that naming them here would exclude the other builds.
lock: requirements ## renew requirements.lock
	@$(BIN)/python -m pip install --disable-pip-version-check -q uv
	@{ sed -n '/^#/p; /^[^#]/q' requirements.lock; \
	  $(BIN)/uv pip compile -q --upgrade --universal --python-version 3.10 --no-header --no-annotate requirements.txt | \
	  grep -vE '^(nvidia|cuda)-'; } >requirements.lock.new && mv requirements.lock.new requirements.lock

clean: ## remove what tools leave behind; runs/ and .venv stay
	@rm -rf build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	@find . -name __pycache__ -not -path './$(VENV)/*' -prune -exec rm -rf {} +

distclean: clean ## ... and .venv
	@rm -rf $(VENV)
