# make train   train cartpole on this machine           ARGS="task=pendulum seed=3"
# make bench   what we cost ourselves; ARGS="-o docs/cost.md" writes the page
# make test    lint, types, all tests                    ARGS="-k hostlist"
# make slurm   a shell on a private Slurm cluster        ARGS="--nodes 8"
# make docs      the documentation as pages in docs/_build
# make isaaclab-env, make mjlab-env   environments for library=isaaclab and library=mjlab (docs/isaaclab.md)
# WORKERS=2 has fewer tests of Slurm and training at a time; much of what they do is waiting
# PYTHON=python3.12 chooses the interpreter of a new .venv, PYTHON312=… that of the other environments

PYTHON ?= python3
PYTHON312 ?= python3.12
ISAACLAB_ENV ?= .venv-isaaclab
MJLAB_ENV ?= .venv-mjlab
BIN := .venv/bin
TESTED := rsl_rl,rl_games,skrl,skrl_jax,accelerate,trl,deepspeed,mujoco,envpool,record,tracking,optuna,gpu,bench,docs,test
NONE_CHOSEN := 5
WORKERS ?= 4
FAST := $(BIN)/python -m pytest --numprocesses auto -m "not slurm and not train and not browser"
PIP := $(BIN)/pip install --quiet --constraint constraints.txt

unexport PYTHONDONTWRITEBYTECODE # without bytecode pytest and each command of the tests compile everything anew

.PHONY: train test fast lint slurm docs bench isaaclab-env mjlab-env clean

train: .venv/train
	@$(BIN)/python -m launcher $(ARGS)

test: lint
	@$(BIN)/python -m tests.sandbox install || echo "tests of Slurm are skipped: see above for how to get them"
	$(FAST) $(ARGS) || [ $$? = $(NONE_CHOSEN) ]
	$(BIN)/python -m pytest --numprocesses $(WORKERS) --dist loadfile --no-loadscope-reorder -m "slurm or train or browser" $(ARGS) || [ $$? = $(NONE_CHOSEN) ]

fast: lint
	$(FAST) $(ARGS)

lint: .venv/test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright --pythonpath $(BIN)/python

slurm: .venv/train
	@$(BIN)/python -m tests.sandbox install
	@$(BIN)/python -m tests.sandbox shell $(ARGS)

docs: .venv/docs
	$(BIN)/python -m sphinx -q -W -b html docs docs/_build
	@echo "open docs/_build/index.html"

bench: .venv/test
	$(BIN)/python -m tests.benchmarks $(ARGS)

# Isaac Lab pins torch, has no extra for rl_games, and needs OpenAI's old gym for it. Newton simulates: no Isaac Sim.
# The assets are for machines that cannot reach Isaac Sim's server.
isaaclab-env: $(ISAACLAB_ENV)/made
$(ISAACLAB_ENV)/made: scripts/isaaclab_assets.py
	@echo "installing Isaac Lab into $(ISAACLAB_ENV): 8 GB, some minutes"
	@$(PYTHON312) -m venv $(ISAACLAB_ENV)
	@$(ISAACLAB_ENV)/bin/python -m pip install --quiet 'isaaclab[rsl-rl,skrl]==3.0.0' rl-games==1.6.5 gym==0.26.2
	@$(ISAACLAB_ENV)/bin/python scripts/isaaclab_assets.py $(ISAACLAB_ENV)/assets
	@touch $@

# mjlab pins an older RSL-RL than the launcher uses, and its torchvision brings a CUDA build of torch.
mjlab-env: $(MJLAB_ENV)/made
$(MJLAB_ENV)/made:
	@echo "installing mjlab into $(MJLAB_ENV): 7 GB, some minutes"
	@$(PYTHON312) -m venv $(MJLAB_ENV)
	@$(MJLAB_ENV)/bin/python -m pip install --quiet mjlab==1.6.0
	@touch $@

clean:
	rm -rf .venv

.venv/train: pyproject.toml constraints.txt
	@echo "installing PyTorch, RSL-RL and Gymnasium into .venv: about a minute and 1 GB with PyTorch's CPU build, more with CUDA"
	@$(PYTHON) -m venv .venv
	@$(BIN)/python -m pip install --quiet --upgrade pip
	@$(PIP) --editable '.[rsl_rl,gpu]'
	@touch $@

.venv/docs: .venv/train
	@echo "installing Sphinx into .venv"
	@$(PIP) --editable '.[docs]'
	@touch $@

.venv/test: .venv/train
	@echo "installing all libraries that are tested, and what tests them, into .venv: some minutes, 4 GB in all"
	@$(PIP) --editable '.[$(TESTED)]'
	@touch $@
