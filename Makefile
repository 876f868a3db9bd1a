# make demo: set up and train the demo.   make test: set up and run the whole suite.   make check: lint and types.
PYTHON ?= python3
VENV := .venv
BIN := $(CURDIR)/$(VENV)/bin
export TORCH_EXTENSIONS_DIR ?= $(CURDIR)/.cache/torch_extensions

.PHONY: demo test test-grid check ops clean

demo: $(VENV)/installed
	$(BIN)/orchestrator launch experiment=demo

test: $(VENV)/installed-dev ops
	# The same ninja as for the ops: another version would compile them again, in the middle of a test.
	OMP_NUM_THREADS=1 PATH="$(BIN):$$PATH" $(BIN)/python -m pytest -n 2 --no-loadscope-reorder

# trains 150 combinations of layout, ZeRO, offload, schedule and recomputation, and writes the table of them
test-grid: $(VENV)/installed-dev ops
	DS_ACCELERATOR=cpu OMP_NUM_THREADS=1 PATH="$(BIN):$$PATH" $(BIN)/python -m tests.grid_table tests/grid.md

check: $(VENV)/installed-dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

# DeepSpeed compiles its ops on first use; tests that started at once would all wait for the same build
ops: $(VENV)/installed
	DS_ACCELERATOR=cpu PATH="$(BIN):$$PATH" $(BIN)/python -m tests.build_ops

$(VENV)/installed: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --constraint constraints.txt torch
	$(BIN)/pip install --constraint constraints.txt --editable '.[train]'
	touch $@

$(VENV)/installed-dev: $(VENV)/installed
	$(BIN)/pip install --constraint constraints.txt --editable '.[train,dev]'
	touch $@

clean:
	rm -rf $(VENV) .cache build dist *.egg-info
