# Each target is one plain command; `make demo` and `make test` need nothing but Python 3.11, venv and make.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
READY := $(VENV)/.installed
PYTEST := $(BIN)/python -m pytest -q -n 2 --dist worksteal

.PHONY: demo test test-all slow coverage lint types format docs benchmark reproduce dist clean

$(READY): pyproject.toml src/bilevax/__init__.py
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	touch $(READY)

demo: $(READY)
	$(BIN)/bilevax demo

test: $(READY)
	$(PYTEST)

# Everything, the slow tests included.
test-all: $(READY)
	$(PYTEST) -m ""

slow: $(READY)
	$(PYTEST) -m slow

coverage: $(READY)
	$(PYTEST) --cov --cov-report=term:skip-covered

lint: $(READY)
	$(BIN)/ruff check . && $(BIN)/ruff format --check .

types: $(READY)
	$(BIN)/mypy

format: $(READY)
	$(BIN)/ruff format . && $(BIN)/ruff check --fix .

# The code and the links of README, docs and examples.
docs: $(READY)
	$(BIN)/python -m pytest -q tests/integration/test_readme.py

# Every claim about speed and accuracy; hours. Needs the data sets. `make benchmark ONLY="overhead methods"` runs some.
benchmark: $(READY)
	$(BIN)/python -m pip install --quiet --editable '.[dev,bench]'
	$(BIN)/python benchmarks/all.py $(ONLY)

# Two hours; needs the data sets (`bilevax datasets list`). Run it again to continue after an interruption.
reproduce: $(READY)
	$(BIN)/bilevax reproduce all
	mkdir -p docs/figures
	cp reproduction/figures/*.png docs/figures/
	cp reproduction/reproduction.md docs/

dist: $(READY)
	$(BIN)/python -m pip install --quiet build
	$(BIN)/python -m build

clean:
	rm -rf $(VENV) .cache runs demo dist
