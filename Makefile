# A fresh machine needs Python 3.11 or newer and make; the environment, .venv, makes itself.

PYTHON ?= $(shell for python in python3 python3.14 python3.13 python3.12 python3.11 python; do \
	"$$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo "$$python" && break; \
	done)
# With TORCH=..., the environment is one of its own for this PyTorch and this Python.
VENV := $(if $(TORCH),.venv-torch-$(TORCH)-$(shell "$(PYTHON)" -c 'import sys; print("py%d.%d" % sys.version_info[:2])'),.venv)
CONSTRAINTS := $(if $(TORCH),$(VENV)/constraints.txt,constraints.txt)
BIN := $(VENV)/bin
WORKERS ?= 2
# Of each worker: more threads than cores wait for each other longer than they compute.
export OMP_NUM_THREADS ?= 1
# Some containers set it; here some hundred processes start, and each would compile all it imports.
unexport PYTHONDONTWRITEBYTECODE

BENCHMARKS ?= start_up against_flop_counter allocator llama70b compile_seconds

SCRIPT ?= examples/train_gpt.py
GPU ?= H100-SXM

# worksteal: an idle worker takes cases from the other one's queue, so that both finish together.
PYTEST = $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal

NOT_CORE := train sweep plan cli/test_train.py cli/test_data.py cli/test_sweep.py cli/test_plan.py \
	test_benchmarks.py test_docs.py integrations/notebook/test_examples.py lecture pictures

.DEFAULT_GOAL := help
.PHONY: help run test test-all suite test-core test-torch core lint format docs site pictures bench clean

help:
	@echo "make run        tally run $(SCRIPT) --gpu $(GPU); others with SCRIPT=... GPU=..."
	@echo "make test       what must hold: formatting, lint, types, every rule, documented commands"
	@echo "make test-all   the same with every case of every rule, and more kills and examples"
	@echo "make test-core  the same without training, sweeps, plans and the documents"
	@echo "make test-torch TORCH=2.15.0 [PYTHON=python3.13]"
	@echo "                the tests of test-core with another PyTorch or Python"
	@echo "make lint       formatting, lint and types alone"
	@echo "make format     format the code, and fix what lint can fix"
	@echo "make docs       bring the output and pictures in the documents up to date, then make site"
	@echo "make site       the documents as pages for a browser, in build/site/html; every link is checked"
	@echo "make pictures   draw the recording and the screenshots in the documents, in Chromium"
	@echo "make bench      the benchmarks, with the limits they must hold"
	@echo "make clean      remove the environment and everything generated"

run: $(VENV)/installed
	$(BIN)/tally run $(SCRIPT) --gpu $(GPU)

# Both at once: mypy has one thread.
test: $(VENV)/installed-dev
	$(MAKE) --no-print-directory --jobs=2 lint suite

# Every case, 100 examples of each property, 200 random kills of each program: more than an hour.
test-all: export TALLY_EXAMPLES ?= 100
test-all: export TALLY_KILLS ?= 200
test-all: export THOROUGH := --thorough
test-all: test

suite: $(VENV)/installed-dev
	MAKEFLAGS= $(PYTEST) $(THOROUGH)

test-core: lint core

core: $(VENV)/installed-dev
	$(PYTEST) $(addprefix --ignore=tests/,$(NOT_CORE))

test-torch:
	@test -n "$(TORCH)" || { echo "which PyTorch? make test-torch TORCH=2.15.0" >&2; exit 1; }
	$(MAKE) core

lint: $(VENV)/installed-dev
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/mypy

format: $(VENV)/installed-dev
	$(BIN)/ruff format
	$(BIN)/ruff check --fix

docs: $(VENV)/installed-dev
	$(BIN)/python -m tests.truth.compare --write docs/accuracy.md
	$(BIN)/python -m tests.plan.published.page --write docs/published.md
	$(BIN)/python -m tests.documents --write
	$(MAKE) site

site: $(VENV)/installed-dev
	$(BIN)/python -m tests.site

pictures: $(VENV)/installed-dev
	$(BIN)/python -m tests.pictures

bench: $(VENV)/installed-dev
	for benchmark in $(BENCHMARKS); do $(BIN)/python -m benchmarks.$$benchmark || exit 1; done

clean:
	rm -rf $(VENV) build dist src/*.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# The environment. torch comes by its pinned version; where pip is set up to find a build for CPUs
# alone, that build satisfies the pin, and nothing of CUDA is downloaded.

$(BIN)/python:
	@test -n "$(PYTHON)" || { echo "torchtally needs Python 3.11 or newer: install it, or make PYTHON=/path/to/python" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/constraints.txt: $(BIN)/python constraints.txt
	sed 's/^torch==.*/torch==$(TORCH)/' constraints.txt > $@

$(VENV)/installed: $(BIN)/python pyproject.toml $(CONSTRAINTS)
	$(BIN)/python -m pip install --quiet -c $(CONSTRAINTS) -e .
	touch $@

$(VENV)/installed-dev: $(BIN)/python pyproject.toml $(CONSTRAINTS)
	$(BIN)/python -m pip install --quiet -c $(CONSTRAINTS) -e ".[dev]"
	touch $@ $(VENV)/installed
