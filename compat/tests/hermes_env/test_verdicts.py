"""The verdicts on the names of Hermes, tried for real."""

import asyncio
import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from compat.tests.file_kit import flags, read_jsonl, write_files
from tests.cli_kit import Ludus

pytest.importorskip("pydantic")

from ludus.compat.atropos_env.provided_modules import provide_modules
from ludus.compat.hermes_env.config import HermesAgentEnvConfig
from ludus.compat.hermes_env.modules import list_hermes_modules
from ludus.compat.hermes_env.slot_rollouts import SlotRolloutEnv
from ludus.compat.hermes_env.verdicts import FIELDS, LATER_FIELDS, METHODS, MODULES
from ludus.compat.verdicts import Verdict

NOMAD, MODAL = {"tool_pool_mode": "nomad"}, {"tool_pool_mode": "modal"}
SINGULARITY = {**NOMAD, "driver": "singularity"}
PUBLISHED_FIELDS = """enabled_toolsets disabled_toolsets distribution max_agent_turns system_prompt agent_temperature
terminal_backend dataset_name dataset_split prompt_field tool_call_parser tool_pool_mode allow_network require_sandbox
purge_job_on_start purge_job_on_shutdown acquire_timeout_s nomad_address sandbox_job_id sandbox_image
slots_per_container min_containers max_containers privileged driver singularity_image modal_app_name modal_image
modal_gpu modal_cpu modal_memory modal_slots_per_sandbox modal_min_sandboxes modal_max_sandboxes modal_idle_timeout
modal_max_lifetime modal_acquire_timeout modal_execution_timeout modal_secrets modal_env_vars modal_workspace_base"""
BECOMES: dict[str, tuple[dict[str, Any], Any, Any]] = {
    "terminal_backend": ({}, "ssh", "ssh"),
    "tool_pool_mode": ({}, "nomad", "nomad"),
    "tool_call_parser": ({"openai.server_type": "vllm"}, "qwen3_coder", "qwen3_coder"),
    "allow_network": ({}, False, False),
    "require_sandbox": ({}, True, True),
    "purge_job_on_start": (NOMAD, True, True),
    "acquire_timeout_s": (NOMAD, 5.0, 5.0),
    "nomad_address": (NOMAD, "http://n:1", "http://n:1"),
    "sandbox_job_id": (NOMAD, "job", "job"),
    "sandbox_image": (NOMAD, "img:1", "img:1"),
    "slots_per_container": (NOMAD, 3, 3),
    "min_containers": (NOMAD, 4, 4),
    "max_containers": (NOMAD, 2, 20),
    "privileged": (NOMAD, True, True),
    "driver": ({**NOMAD, "singularity_image": "a.sif"}, "singularity", "singularity"),
    "singularity_image": (SINGULARITY, "b.sif", "b.sif"),
    "modal_app_name": (MODAL, "app", "app"),
    "modal_image": (MODAL, "img:2", "img:2"),
    "modal_gpu": (MODAL, "T4", "T4"),
    "modal_cpu": (MODAL, 2.5, 2.5),
    "modal_memory": (MODAL, 512, 512),
    "modal_slots_per_sandbox": (MODAL, 7, 7),
    "modal_min_sandboxes": (MODAL, 3, 3),
    "modal_max_sandboxes": (MODAL, 2, 20),
    "modal_idle_timeout": (MODAL, 33, 33.0),
    "modal_max_lifetime": (MODAL, 44, 44),
    "modal_acquire_timeout": (MODAL, 11.0, 11.0),
    "modal_execution_timeout": (MODAL, 77.0, 77.0),
    "modal_secrets": (MODAL, "one,two", ["one", "two"]),
    "modal_env_vars": (MODAL, "A=1;B=2", {"A": "1", "B": "2"}),
    "terminal_timeout": (NOMAD, 299, 299.0),
    "terminal_lifetime": ({}, 77, 77.0),
}
"""For fields that become settings: what is set beside them, a value, and what it becomes."""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TERMINAL_ENV", raising=False)
    write_files(tmp_path, verdicts=ENV)
    (tmp_path / "agents.py").write_text(AGENTS)
    return tmp_path


def test_every_published_name_has_a_verdict():
    assert [each.name for each in FIELDS] == PUBLISHED_FIELDS.split() and len(FIELDS) == 41
    own = set(HermesAgentEnvConfig.model_fields) - set(HermesAgentEnvConfig.__mro__[2].model_fields)
    assert {each.name for each in (*FIELDS, *LATER_FIELDS)} == own


# ---- fields that become settings ----------------------------------------------------------------------------------


def print_config(ludus: Ludus, given: dict[str, Any]) -> Any:
    named = {name if "." in name else f"env.{name}": value for name, value in given.items()}
    words = [word for name, value in named.items() for word in (f"--{name}", str(value))]
    return ludus("process", "hermes:verdicts.py", "--print-config", *words)


def get_path(tree: Any, path: str) -> Any:
    for part in path.split("."):
        tree = tree.get(part) if isinstance(tree, dict) else None
    return tree


@pytest.mark.parametrize(
    "verdict", [each for each in (*FIELDS, *LATER_FIELDS) if each.becomes], ids=lambda each: each.name
)
def test_an_honoured_field_becomes_the_setting_that_is_named(ludus: Ludus, verdict: Verdict):
    beside, value, expected = BECOMES[verdict.name]
    done = print_config(ludus, {**beside, verdict.name: value})
    assert done.code == 0, done.err
    assert get_path(yaml.safe_load(done.out), verdict.becomes) == expected


@pytest.mark.parametrize(
    ("name", "value"),
    [("purge_job_on_shutdown", False), ("modal_workspace_base", "/w"), ("terminal_backend", "daytona")],
)
def test_a_refused_value_is_an_error_that_names_it(ludus: Ludus, name: str, value: Any):
    done = print_config(ludus, {name: value})
    assert done.code == 2 and f"env.{name}" in done.err
    assert name == "terminal_backend" or any(each.name == name and each.outcome == "refused" for each in FIELDS)


# ---- fields of the agent, and methods -----------------------------------------------------------------------------

ENV = '''
import functools, json
from pathlib import Path
from atroposlib.envs.server_handling.server_manager import APIServerConfig
from environments.hermes_base_env import HermesAgentBaseEnv, HermesAgentEnvConfig

CALLED = []


def note(name):
    CALLED.append(name)
    Path("called.json").write_text(json.dumps(sorted(set(CALLED))))


class Verdicts(HermesAgentBaseEnv):
    name = "verdicts"
    env_config_cls = HermesAgentEnvConfig

    @classmethod
    def config_init(cls):
        note("config_init")
        config = HermesAgentEnvConfig(enabled_toolsets=["terminal"], group_size=1, total_steps=1)
        return config, [APIServerConfig(model_name="m", base_url="http://h/v1")]

    async def setup(self):
        note("setup")
        self._current_group_tools = None

    async def get_next_item(self):
        note("get_next_item")
        return {}

    def format_prompt(self, item):
        note("format_prompt")
        return f"{self.config.dataset_name} {self.config.dataset_split} {self.config.prompt_field}"

    async def compute_reward(self, item, result, ctx):
        note("compute_reward")
        assert self._tool_error_buffer == []
        return 1.0

    async def evaluate(self, *args, **kwargs):
        note("evaluate")
        await self.collect_trajectory({})
        assert self._sandbox_backend is None
        await self.evaluate_log({"x": 1})


def wrap(name):
    plain = getattr(HermesAgentBaseEnv, name)

    @functools.wraps(plain)
    def method(self, *args, **kwargs):
        note(name)
        return plain(self, *args, **kwargs)

    return method


for name in """setup_trajectory_workspace verify_and_score_trajectory collect_trajectories collect_trajectory
_collect_trajectory_local _collect_trajectory_sandbox _run_agent_loop _build_scored_item _resolve_tools_for_group
_use_managed_server _use_sandbox_backend _start_sandbox_backend _stop_sandbox_backend process_manager wandb_log
add_rollouts_for_wandb""".split():
    setattr(Verdicts, name, wrap(name))


def show(messages, plain=HermesAgentBaseEnv._format_trajectory_for_display):
    note("_format_trajectory_for_display")
    return plain(messages)


Verdicts._format_trajectory_for_display = staticmethod(show)
'''
AGENTS = """
from ludus.models.scripted import call


def talk(messages, tools, sampling):
    if sampling.extra:
        return str(sampling.extra)
    turns = sum(message.role == "assistant" for message in messages)
    return call("terminal", command="seq 200") if turns < 3 else "done"
"""
ATTRIBUTES = {"_current_group_tools", "_sandbox_backend", "_tool_error_buffer"}


@pytest.mark.usefixtures("bwrap")
def test_every_method_is_called_where_hermes_calls_it(ludus: Ludus):
    called: set[str] = set()
    tokenizer = ["--env.tokenizer_name", "none/none", "--env.use_wandb", "true"]
    model = ["--model.type", "scripted", "--model.script", "agents.py:talk", *tokenizer]
    pool = ["--env.tool_pool_mode", "nomad", "--sandbox.backend", "bwrap"]
    for words in (["process", *pool], ["evaluate"]):
        command, *more = words
        done = ludus(command, "hermes:verdicts.py", "--out", command, *model, *more)
        assert done.code == 0, done.err
        called |= set(json.loads(Path("called.json").read_text()))
    assert called | ATTRIBUTES | {"env_manager"} == {each.name for each in METHODS}


@pytest.mark.parametrize(("command", "manager"), [("serve", "env_manager"), ("process", "process_manager")])
async def test_a_manager_holds_the_run(command: str, manager: str):
    order: list[str] = []

    class Held(SlotRolloutEnv):
        def __init__(self) -> None:
            self.services: Any = SimpleNamespace(command=command)
            self._is_set_up, self._is_over, self._manager = asyncio.Event(), asyncio.Event(), None

        async def setup(self) -> None:
            order.append("setup")

    async def hold(self: Any) -> None:
        order.append("before")
        await getattr(SlotRolloutEnv, manager)(self)
        order.append("after")

    setattr(Held, manager, hold)
    env = Held()
    await env.begin_run()
    order.append("run")
    await env.end_run()
    assert order == ["before", "setup", "run", "after"]


def read_rollout(ludus: Ludus, *words: str) -> Any:
    done = ludus("process", "hermes:verdicts.py", "--out", "run", *flags("talk", *words))
    assert done.code == 0, done.err
    (row,) = read_jsonl("run/groups.jsonl")
    return row["rollouts"][0], done.err


AGENT_FIELDS: dict[str, tuple[str, Any]] = {
    "enabled_toolsets": ("[file]", lambda r: r["provenance"]["toolsets"] == ["file"]),
    "disabled_toolsets": ("[terminal]", lambda r: not r["provenance"].get("toolsets")),
    "distribution": ("terminal_only", lambda r: r["provenance"]["toolsets"] == ["terminal", "file"]),
    "max_agent_turns": ("2", lambda r: sum(m["role"] == "assistant" for m in r["messages"]) == 2),
    "system_prompt": ("be kind", lambda r: r["messages"][0] == {"role": "system", "content": "be kind"}),
    "agent_temperature": ("0.25", lambda r: r["provenance"]["sampling"]["temperature"] == 0.25),
    "dataset_name": ("cats", lambda r: r["messages"][0]["content"].startswith("cats train")),
    "dataset_split": ("dogs", lambda r: " dogs " in r["messages"][0]["content"]),
    "prompt_field": ("ask", lambda r: r["messages"][0]["content"].endswith(" ask")),
    "default_result_size_chars": ("100", lambda r: "not shown" in r["messages"][2]["content"]),
    "turn_budget_chars": ("100", lambda r: "not shown" in r["messages"][2]["content"]),
    "preview_size_chars": ("50", lambda r: "not shown" not in r["messages"][2]["content"]),
    "tool_result_overrides": ('{"terminal": 100}', lambda r: "not shown" in r["messages"][2]["content"]),
    "extra_body": ('{"x": 1}', lambda r: r["messages"][-1]["content"] == "{'x': 1}"),
    "tool_pool_size": ("1", lambda r: r["messages"][-1]["content"] == "done"),
}


@pytest.mark.usefixtures("bwrap")
@pytest.mark.parametrize("name", AGENT_FIELDS)
def test_a_field_of_the_agent_changes_its_rollouts(ludus: Ludus, name: str):
    value, is_right = AGENT_FIELDS[name]
    rollout, _ = read_rollout(ludus, f"--env.{name}", value)
    assert is_right(rollout)


def test_every_field_is_tried():
    tried = {*BECOMES, *AGENT_FIELDS, "purge_job_on_shutdown", "modal_workspace_base"}
    assert tried == {each.name for each in (*FIELDS, *LATER_FIELDS)}


# ---- modules ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("verdict", MODULES, ids=lambda each: each.name)
def test_every_module_is_there(verdict: Verdict):
    with provide_modules(list_hermes_modules()):
        __import__(verdict.name)
        assert verdict.name in sys.modules


def belongs(part: str, whole: str) -> bool:
    return f"{part}.".startswith(f"{whole}.")


def test_every_module_of_hermes_has_a_verdict():
    """A part of a module, and a package around one, belong to it."""
    named = {each.name for each in MODULES}
    there = {name for name in list_hermes_modules() if not name.startswith("atroposlib")}
    assert named - {"dotenv"} <= there
    known = {name for name in there if any(belongs(name, each) or belongs(each, name) for each in named)}
    assert there - known == set()
