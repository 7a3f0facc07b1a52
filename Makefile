# Everything a newcomer or CI needs. Each target sets up what it needs and is quick when there is nothing to do.
#   make demo    set up, then run an agent on the embedded model: no key, no account
#   make test    set up, then lint, types and tests
#   make test-backends   the remote sandboxes, against real daemons and stand-ins (minutes)
#   make lint    formatting, lint rules and types only
#   make bench   speed, beside other tools of the field (downloads them; takes a while)

PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
RUN    ?= runs/demo

.PHONY: demo test test-backends lint bench setup setup-dev clean

demo: setup
	@LUDUS=$(BIN)/ludus scripts/demo $(RUN)

test: lint
	@$(BIN)/python -m pytest

test-backends: setup-dev
	@LUDUS_BACKENDS=1 $(BIN)/python -m pytest tests/sandbox/backends

lint: setup-dev
	@$(BIN)/ruff format --check
	@$(BIN)/ruff check
	@$(BIN)/pyright --pythonpath $(BIN)/python

bench: setup-dev
	@$(BIN)/python bench/footprint.py; a=$$?; \
	 $(BIN)/python bench/exec.py --peers; b=$$?; \
	 $(BIN)/python bench/loop.py --peers; c=$$?; \
	 exit $$((a + b + c > 0))

setup: $(VENV)/.setup
setup-dev: $(VENV)/.setup-dev

$(VENV)/.setup: pyproject.toml scripts/setup
	@PYTHON="$(PYTHON)" scripts/setup "$(VENV)" local
	@touch $@

$(VENV)/.setup-dev: pyproject.toml scripts/setup
	@PYTHON="$(PYTHON)" scripts/setup "$(VENV)" local,mcp,tokens,modal,dev
	@touch $@ $(VENV)/.setup

clean:
	rm -rf $(VENV) runs build dist .pytest_cache .ruff_cache .hypothesis
