# make train   train cartpole on this machine           ARGS="task=pendulum seed=3"
# make test    lint, types, all tests                    ARGS="-k hostlist"
# make slurm   a shell on a private Slurm cluster        ARGS="--nodes 8"
# PYTHON=python3.12 chooses the interpreter of a new .venv

PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/pip install --quiet --constraint constraints.txt

.PHONY: train test fast lint slurm bench clean

train: .venv/train
	@$(BIN)/python -m launcher $(ARGS)

test: lint
	@$(BIN)/python -m tests.sandbox install || echo "tests of Slurm are skipped: see above for how to get them"
	$(BIN)/python -m pytest $(ARGS)

fast: lint
	$(BIN)/python -m pytest -m "not slurm and not train" $(ARGS)

lint: .venv/test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright

slurm: .venv/train
	@$(BIN)/python -m tests.sandbox install
	@PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python -m tests.sandbox shell $(ARGS)

bench: .venv/train
	@$(BIN)/python tests/benchmarks/dry_run.py

clean:
	rm -rf .venv

.venv/train: pyproject.toml constraints.txt
	@echo "installing into .venv (the first time takes some minutes)"
	@$(PYTHON) -m venv .venv
	@$(BIN)/python -m pip install --quiet --upgrade pip
	@$(PIP) --editable '.[rsl_rl,gpu]'
	@touch $@

.venv/test: .venv/train
	@$(PIP) --editable '.[rsl_rl,gpu,test]'
	@touch $@
