# The commands for users and CI. Each target installs what it needs, and does nothing if that is up to date.
#   make demo    set up, then train a skill on the embedded model: no key, no account
#   make test    set up, then lint, types and tests
#   make backends   install the programs for the tests of remote sandboxes (Debian, root); else these tests are skipped
#   make test-vllm  token mode against a real vLLM on the CPU (fetches 3 GB once)
#   make test-agents  mini-swe-agent, Codex and Claude Code in slots (fetches 1.4 GB once; needs npm, no account)
#   make lint    formatting, lint rules and types only
#   make bench   measure speed and compare it with other tools (downloads them; takes a while)

PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
RUN    ?= runs/demo

.PHONY: demo test test-vllm test-agents backends lint bench setup setup-dev clean

demo: setup
	@LUDUS=$(BIN)/ludus scripts/demo $(RUN)

test: lint
	@$(BIN)/python -m pytest

backends:
	@scripts/setup-backends

test-vllm: setup-dev
	@scripts/test-vllm $(BIN)/python

test-agents: setup-dev
	@PYTHON=$(BIN)/python scripts/setup-agents
	@LUDUS_TEST_AGENTS=1 $(BIN)/python -m pytest tests/harness/test_harness.py tests/sandbox/remote/test_remote_agents.py -k real_agent

lint: setup-dev
	@$(BIN)/ruff format --check
	@$(BIN)/ruff check
	@$(BIN)/pyright --pythonpath $(BIN)/python

bench: setup-dev
	@$(BIN)/python bench/footprint.py; a=$$?; \
	 $(BIN)/python bench/exec.py --peers; b=$$?; \
	 $(BIN)/python bench/loop.py --peers; c=$$?; \
	 $(BIN)/python bench/tokens.py --peers; d=$$?; \
	 $(BIN)/python bench/parsers.py --peers; e=$$?; \
	 $(BIN)/python bench/pool.py; f=$$?; \
	 $(BIN)/python bench/containers.py; g=$$?; \
	 $(BIN)/python bench/reflact.py --peers; h=$$?; \
	 $(BIN)/python bench/gateway.py --peers; i=$$?; \
	 exit $$((a + b + c + d + e + f + g + h + i > 0))

setup: $(VENV)/.setup
setup-dev: $(VENV)/.setup-dev

$(VENV)/.setup: pyproject.toml constraints.txt scripts/setup
	@PYTHON="$(PYTHON)" scripts/setup "$(VENV)" local
	@touch $@

$(VENV)/.setup-dev: pyproject.toml constraints.txt scripts/setup
	@PYTHON="$(PYTHON)" scripts/setup "$(VENV)" local,mcp,tokens,modal,fast,dev
	@touch $@ $(VENV)/.setup

clean:
	rm -rf $(VENV) runs build dist .pytest_cache .ruff_cache .hypothesis
