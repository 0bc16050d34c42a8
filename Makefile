# `make demo` and `make test` do all set-up themselves, on a machine with Python 3.11 and no more.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
TYPES := build/types
# Models come from packages; nothing is fetched from a hub.
export HF_HUB_OFFLINE = 1

.PHONY: build/types demo test check lint types layers fix install clean

demo: install
	$(BIN)/python examples/demo.py

test: install
	$(BIN)/python -m pytest --cov --cov-report=term

check: lint types layers test

install: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

fix: install
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# The three source folders are one package only once installed, so the checkers read an install.
$(TYPES): install
	rm -rf $(TYPES) build/lib build/bdist*
	$(BIN)/python -m pip install --quiet --no-deps --target $(TYPES) .

types: $(TYPES)
	MYPYPATH=$(TYPES) $(BIN)/mypy --package descsim_tools

layers: $(TYPES)
	cd $(TYPES) && PYTHONPATH=. $(abspath $(BIN))/lint-imports ../../pyproject.toml

clean:
	rm -rf build dist demo-store .coverage *.egg-info
