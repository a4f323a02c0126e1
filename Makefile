# make train   a real model learns on this machine        make test   everything is checked
#
# Settings, on the command line or in the environment:
#   PYTHON       interpreter, 3.11 to 3.13                 (default: the first such on PATH)
#   EXTRAS       extras of pyproject.toml to install       (default below)
#   TORCH_INDEX  URL of a package index to take torch from (default: none; plain PyPI, which on Linux is the CUDA build.
#                On a machine without a GPU give the CPU index that pytorch.org names: 200 MB instead of several GB)
#   WORKERS      processes that run the tests                  (default 2)
#   VENV_CACHE   folder outside the checkout where installed dependencies are kept by digest (default: none)
#   PYTEST       further arguments for pytest, as in  make test PYTEST='tests/trainers -k clip'

PYTHON ?=
WORKERS ?= 2
EXTRAS ?= train,lora,ray,demo,api,postgres,plot,dev
TORCH_INDEX ?=
VENV_CACHE ?=
PYTEST ?=
RECIPE ?= quickstart

VENV := .venv
PY := $(VENV)/bin/python

.PHONY: help train test setup lint contracts bench soak release-check sizes clean
.DELETE_ON_ERROR:

help:  ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1\t/' | expand -t 16

train: setup  ## set up, fetch SmolLM2 and train it by RL on generated problems (RECIPE=quickstart)
	$(VENV)/bin/jurat models fetch smollm2
	$(VENV)/bin/jurat train $(RECIPE)

test: setup  ## set up and run the tests
	OMP_NUM_THREADS=1 $(PY) -m pytest -m 'not soak' -n $(WORKERS) --dist loadscope --no-loadscope-reorder --durations=12 $(PYTEST)

soak: setup  ## the long tests: kill tests, endurance
	OMP_NUM_THREADS=1 $(PY) -m pytest -m soak --durations=12 $(PYTEST)

lint: setup contracts  ## ruff, mypy (strict on platform and trainers), import contracts
	$(PY) -m ruff check .
	$(PY) -m mypy

contracts: setup  ## who may import whom
	$(PY) -c 'from importlinter.cli import lint_imports_command as main; main()' --no-logo

bench: EXTRAS := $(EXTRAS),bench
bench:  ## seconds per step beside TRL's GRPOTrainer
	@$(MAKE) setup EXTRAS='$(EXTRAS)'
	$(PY) benchmarks/step.py

sizes: setup  ## the ten longest functions, for conversation
	@$(PY) tests/architecture/sizes.py

setup:  ## the environment alone, in .venv; at once while the requirements stay the same
	@PYTHON='$(PYTHON)' EXTRAS='$(EXTRAS)' TORCH_INDEX='$(TORCH_INDEX)' VENV_CACHE='$(VENV_CACHE)' .ci/setup

release-check: setup  ## the wheel, built from the source archive, runs `jurat train tiny` in a clean environment
	@PYTHON='$(PYTHON)' TORCH_INDEX='$(TORCH_INDEX)' .ci/release

clean:  ## what was built; not .jurat, which holds your runs
	rm -rf .venv build dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
