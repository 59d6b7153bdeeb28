# GPUAlert for Airflow. `make` alone lists what there is.
SHELL := /bin/bash
.DEFAULT_GOAL := help
.ONESHELL:
.SHELLFLAGS := -euo pipefail -c

# Any Python that Airflow 3.3 supports; it is only used to make the environment.
PYTHON ?= python3
VENV ?= .venv
PY := $(VENV)/bin/python
STAMP := $(VENV)/.installed
ARGS ?=

# Without bytecode every start of Airflow compiles 1,500 files again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help setup system check test test-fast demo bench evaluate clean

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' Makefile | expand -t 20

setup: $(STAMP) ## make the environment in .venv (again only when what it is made from changed)

$(STAMP): setup.cfg pyproject.toml requirements/constraints.txt tools/make_environment.py
	@$(PYTHON) tools/make_environment.py $(VENV)

system: ## install the Debian packages that tests and demo use (root), or name them
	@tools/install-system-packages

check: setup ## format, lint, types, import contracts, unit tests, links in the docs
	@broken=""
	step() { echo "== $$1"; what=$$1; shift; "$$@" || broken="$$broken$${broken:+, }$$what"; }
	step format $(PY) -m ruff format --check --quiet --output-format concise .
	step lint $(PY) -m ruff check --quiet --output-format concise .
	step types $(PY) -m mypy
	step "contracts, links and unit tests" $(PY) -m pytest -q -n 2 --dist loadfile -m "not slow" tests/architecture tests/unit
	[ -z "$$broken" ] || { echo "make check: to mend: $$broken"; exit 1; }
	echo "make check: all of it holds."

test: setup ## set up and run all tests, fast ones first
	@tools/install-system-packages
	$(PY) -m tools.run_tests $(ARGS)

test-fast: setup ## the fast half: no Airflow is started
	@tools/install-system-packages
	$(PY) -m tools.run_tests --only fast $(ARGS)

demo: setup ## a real Airflow, a real SSH host, and trainings that fail for real reasons (ONCE=1: stop when the table is printed)
	@tools/install-system-packages openssh-server openssh-client || true
	@$(PY) -m tools.demo $(if $(ONCE),--once) $(ARGS) || { s=$$?; [ $$s = 130 ] || exit $$s; } # 130: you pressed Ctrl-C

bench: setup ## measure what the design promises and print the table
	@$(PY) -m benchmarks $(ARGS)

evaluate: setup ## score the classifier on the log corpora, and count causes that it makes up
	@$(PY) -m tests.corpus $(ARGS)

clean: ## remove what the targets above made in this folder
	@rm -rf $(VENV) .cache .demo .pytest_cache .mypy_cache .ruff_cache .hypothesis *.egg-info build
