# Each target is one plain command; `make demo` and `make test` need nothing but Python 3.11, venv and make.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
READY := $(VENV)/.installed

.PHONY: demo test slow lint types format benchmark reproduce clean

$(READY): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	touch $(READY)

demo: $(READY)
	$(BIN)/bilevax demo

test: $(READY)
	$(BIN)/python -m pytest -q -n 2 --dist loadfile

slow: $(READY)
	$(BIN)/python -m pytest -q -m slow

lint: $(READY)
	$(BIN)/ruff check . && $(BIN)/ruff format --check .

types: $(READY)
	$(BIN)/mypy

format: $(READY)
	$(BIN)/ruff format . && $(BIN)/ruff check --fix .

# Two hours; needs the data sets (`bilevax datasets list`). Give it again after an interruption: it goes on.
reproduce: $(READY)
	$(BIN)/bilevax reproduce all
	mkdir -p docs/figures
	cp reproduction/figures/*.png docs/figures/
	cp reproduction/reproduction.md docs/

benchmark: $(READY)
	$(BIN)/python benchmarks/overhead.py

clean:
	rm -rf $(VENV) runs demo
