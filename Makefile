# The commands for users and CI. Each target installs what it needs, and does nothing if that is up to date.
#   make demo    set up, then train a skill on the embedded model: no key, no account
#   make rl-demo  set up PyTorch, then train the weights of a tiny policy: no GPU, no account
#   make test    set up, then lint, types and tests
#   make test-fast  the tests without the slowest ones
#   make backends   install the programs for the tests of remote sandboxes (Debian, root); else these tests are skipped
#   make test-hostile  hostile agents on real docker, podman and ssh (needs `make backends`; about 10 minutes on two cores)
#   make test-vllm  token mode against a real vLLM on the CPU (fetches 3 GB once)
#   make test-trainers  the built-in trainer, TRL, Tinker and vLLM with real packages (in .venv-rl; fetches 5 GB once)
#   make test-consumers  exported rows and metrics, loaded by the code they are for: verl, SkyRL, TRL, … (fetches 4 GB once)
#   make test-trackers  metrics and spans, read back with MLflow's, TensorBoard's and OpenTelemetry's own code (fetches 900 MB once; a minute)
#   make test-viewers  exported trajectories and logs, read by Harbor's and Inspect's own code (fetches 300 MB once; a minute)
#   make test-atropos  the tests of atroposlib against `ludus api`, and our worker against its server (fetches 1 GB once)
#   make test-swe  bugs of SWE-smith's generators in repositories of published packages (fetches 150 MB once; about 5 minutes)
#   make test-agents  mini-swe-agent, Codex and Claude Code in slots (fetches 1.4 GB once; needs npm, no account)
#   make test-envs  environments with the packages they need: reasoning-gym, … (fetches 100 MB once; about 5 minutes)
#   make test-harbor  terminal tasks on a real Debian, in bwrap, docker and podman: apt, pip, uv (root, debootstrap; fetches 250 MB; 5 to 10 minutes)
#   make docs    make the generated parts of docs/ again: settings, commands, environments (after a change of one)
#   make test-clients  client libraries (litellm, LangChain, AI SDK, …) at the gateway (fetches 0.7 GB once; needs npm)
#   make test-scale  faults of Ray clusters: 200 kills, cut networks, wrong clocks, full disks; two machines (root; half an hour)
#   make test-browser  the toolset `browser` and the pages of `ludus view` with a real Chromium (needs Debian's chromium: make backends; two minutes)
#   make test-verifiers  environments of verifiers 0.1.14, with and without the package, and tasksets of 0.4.0 (fetches 1.5 GB once; three minutes)
#   make test-openenv    servers of the package openenv-core 0.3.0 (fetches 0.5 GB once)
#   make lint    formatting, lint rules and types only; the pages of `ludus view` too, where npm is
#   make bench   measure speed and compare it with other tools (downloads them; takes a while)

PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
RUN    ?= runs/demo
RL_VENV ?= .venv-rl
RL_RUN  ?= runs/rl-demo
PARALLEL := -n auto --maxprocesses 8 --dist loadscope --no-loadscope-reorder --durations 40 --durations-min 5

.PHONY: demo rl-demo test test-fast test-hostile test-harbor test-vllm test-trainers test-consumers test-trackers test-viewers test-atropos test-swe test-agents test-envs \
        test-clients test-scale test-browser test-verifiers test-openenv backends docs lint bench setup setup-dev clean

demo: setup
	@LUDUS=$(BIN)/ludus scripts/demo $(RUN)

rl-demo: $(RL_VENV)/.setup
	@LUDUS=$(RL_VENV)/bin/ludus scripts/rl-demo $(RL_RUN)

test: lint
	@$(BIN)/python -m pytest $(PARALLEL)

test-fast: setup-dev
	@$(BIN)/python -m pytest $(PARALLEL) -m "not slow"

backends:
	@scripts/setup-backends

test-hostile: setup-dev
	@LUDUS_TEST_HOSTILE=1 $(BIN)/python -m pytest tests/envs/test_attacks_on_tasks.py tests/sandbox/remote/test_hostile_remote.py tests/sandbox/remote/test_image_slots.py

test-harbor: setup-dev
	@$(BIN)/python -m pip install --quiet uv
	@LUDUS_TEST_HARBOR=1 $(BIN)/python -m pytest tests/envs/test_harbor_debian.py tests/envs/test_hundred_tasks.py tests/sandbox/remote/test_debian_images.py

test-vllm: setup-dev
	@scripts/test-vllm $(BIN)/python

test-trainers: $(RL_VENV)/.setup
	@scripts/test-trainers $(RL_VENV)/bin/python

test-consumers: setup-dev
	@scripts/test-consumers $(BIN)/python

test-trackers: setup-dev
	@scripts/test-trackers $(BIN)/python

test-viewers: setup-dev
	@scripts/test-viewers $(BIN)/python

test-atropos: setup-dev
	@scripts/test-atropos $(BIN)/python

test-swe: setup-dev
	@scripts/test-swe $(BIN)/python

test-agents: setup-dev
	@PYTHON=$(BIN)/python scripts/setup-agents
	@LUDUS_TEST_AGENTS=1 $(BIN)/python -m pytest tests/harness/test_harness.py tests/sandbox/remote/test_remote_agents.py tests/transcripts/test_real_agents.py -k real_agent

test-envs:
	@PYTHON="$(PYTHON)" scripts/test-envs

docs: setup-dev
	@$(BIN)/python scripts/update-docs
	@$(BIN)/python scripts/update-web-types

test-clients: setup-dev
	@scripts/test-clients $(BIN)/python

test-scale: setup-dev
	@$(BIN)/python -m pip install --quiet 'ray[default]'
	@LUDUS_TEST_SCALE=1 $(BIN)/python -m pytest -s tests/engines/test_ray_faults.py tests/engines/test_slurm_engine.py tests/engines/test_two_machines.py

test-browser: setup-dev
	@scripts/check-web $(VENV)/node
	@$(BIN)/python -m pytest tests/tools/test_browser.py tests/view/browser

test-verifiers: setup-dev
	@scripts/test-verifiers $(BIN)/python

test-openenv: setup-dev
	@scripts/test-openenv $(BIN)/python

lint: setup-dev
	@$(BIN)/ruff format --check
	@$(BIN)/ruff check
	@$(BIN)/pyright --pythonpath $(BIN)/python
	@scripts/check-web $(VENV)/node

BENCHES := footprint "exec --peers" "loop --peers" "tokens --peers" templates "parsers --peers" pool stall keep_files controls containers \
           "reflact --peers" "optimizer --peers" "gateway --peers" "api --peers" "view --peers" rl_loop rl scale

bench: setup-dev
	@failed=0; \
	 for each in $(BENCHES); do \
	     set -- $$each; name=$$1; shift; \
	     $(BIN)/python bench/$$name.py "$$@" || failed=1; \
	 done; \
	 LUDUS_TEST_TIMES=1 $(BIN)/python -m pytest tests/parsers/test_stream.py -k linear || failed=1; \
	 exit $$failed

setup: $(VENV)/.setup
setup-dev: $(VENV)/.setup-dev

$(VENV)/.setup: pyproject.toml constraints.txt scripts/setup
	@PYTHON="$(PYTHON)" scripts/setup "$(VENV)" local
	@touch $@

$(RL_VENV)/.setup: pyproject.toml constraints.txt scripts/setup
	@PYTHON="$(PYTHON)" scripts/setup "$(RL_VENV)" rl
	@touch $@

$(VENV)/.setup-dev: pyproject.toml compat/pyproject.toml constraints.txt scripts/setup
	@PYTHON="$(PYTHON)" scripts/setup "$(VENV)" local,mcp,tokens,modal,fast,dev compat
	@touch $@ $(VENV)/.setup

clean:
	rm -rf $(VENV) $(RL_VENV) .venv-envs runs build dist .pytest_cache .ruff_cache .hypothesis
