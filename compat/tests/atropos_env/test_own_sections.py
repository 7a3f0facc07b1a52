"""Sections of Ludus beside a file: each setting has an effect or is refused by name."""

import json
from pathlib import Path
from typing import Any

import pytest
from compat.tests.file_kit import AGENTS, flags, write_files
from tests.cli_kit import Ludus

from ludus.compat.atropos_env.own_sections import FIELDS, list_sampling, move_sections
from ludus.config.reading import Layer, Tree, make_flag_layer
from ludus.config.tree import SECTIONS
from ludus.errors import ConfigError

pytest.importorskip("pydantic")

from ludus.compat.hermes_env.config import HermesAgentEnvConfig

HERMES = HermesAgentEnvConfig.model_fields

SPY = """
import json

def spy(messages, tools, sampling):
    first = messages[0].content if messages[0].role == "system" else ""
    with open("seen.jsonl", "a") as file:
        file.write(json.dumps({"system": first, "temperature": sampling.temperature, "tokens": sampling.max_tokens,
                               "extra": dict(sampling.extra)}) + "\\n")
    return sums(messages, tools, sampling) if "*" in messages[-1].content else "done"
"""


def move(*flags: str, fields: Any = HERMES, training: bool = False, leases: bool = True) -> tuple[Tree, Tree]:
    layers = [make_flag_layer(*flag.split("=", 1)) for flag in flags]
    kept, moved = move_sections(layers, fields, training, leases)
    return {name: section for layer in kept for name, section in layer.tree.items()}, moved


def test_a_setting_becomes_the_field_that_means_the_same():
    kept, moved = move("limits.turns=5", "tools.enabled=file,terminal", "limits.tool_seconds=9", "run.seed=3")
    assert moved == {"max_agent_turns": "5", "enabled_toolsets": "file,terminal", "terminal_timeout": "9"}
    assert kept == {"run": {"seed": "3"}}


def test_what_reaches_the_calls_of_a_file_stays():
    kept, moved = move("sampling.temperature=0.1", "agent.skill=S.md", "agent.system=x", leases=False)
    assert (set(kept), moved) == ({"sampling", "agent"}, {})
    assert list_sampling([Layer("a", {"sampling": {"top_p": 1, "temperature": 2}}), Layer("b", {})]) == [
        "top_p",
        "temperature",
    ]


def test_every_setting_of_the_loop_has_an_effect_or_is_refused():
    """The settings of `limits` and `agent`, by their published names."""
    for section in ("limits", "agent"):
        for name in SECTIONS[section].__struct_fields__:
            path = f"{section}.{name}"
            try:
                kept, moved = move(f"{path}=1")
            except ConfigError as error:
                assert path in str(error)
            else:
                assert moved if path in FIELDS else kept in ({"agent": {"skill": "1"}}, {"agent": {"system": "1"}})


@pytest.mark.parametrize("path", ["limits.turns", "tools.disabled", "tools.web", "sandbox.backend", "agent.harness"])
def test_a_file_without_such_a_part_refuses_the_setting(path: str):
    with pytest.raises(ConfigError, match=path):
        move(f"{path}=x", fields={"total_steps"}, leases=False)


def test_limits_of_rollouts_hold_where_items_are_tasks():
    assert move("limits.rollout_seconds=3", training=True)[0]
    with pytest.raises(ConfigError, match="worker_timeout"):
        move("limits.rollout_seconds=3")


# ---- commands -----------------------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    write_files(tmp_path, "atropos_arithmetic_env.py", "hermes_notes_env.py")
    (tmp_path / "agents.py").write_text(AGENTS + SPY)
    (tmp_path / "SKILL.md").write_text("Box the result.\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def read_calls(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "seen.jsonl").read_text().splitlines()]


def run(ludus: Ludus, command: str, name: str, *words: str) -> Any:
    return ludus(command, name, *flags("spy"), "--out", "run", *words)


def test_a_skill_is_sent_and_recorded(ludus: Ludus, folder: Path):
    done = run(ludus, "evaluate", "hermes:hermes_notes_env.py", "--agent.skill", "SKILL.md", "--agent.system", "Terse.")
    assert done.code == 0, done.err
    assert all(call["system"].endswith("Terse.\n\nBox the result.") for call in read_calls(folder))


def test_sampling_beside_a_file_wins_over_its_calls(ludus: Ludus, folder: Path):
    words = ("--sampling.temperature", "0.25", "--sampling.max_tokens", "9", "--sampling.extra", '{"top_k": 3}')
    run(ludus, "process", "hermes:hermes_notes_env.py", "--env.total_steps", "1", *words)
    calls = read_calls(folder)
    assert calls and all((c["temperature"], c["tokens"], c["extra"]) == (0.25, 9, {"top_k": 3}) for c in calls)


def test_a_file_that_says_no_temperature_gets_none(ludus: Ludus, folder: Path):
    run(ludus, "evaluate", "atropos:atropos_arithmetic_env.py")
    assert {call["temperature"] for call in read_calls(folder)} <= {None, 0.0}


def test_a_setting_without_effect_is_refused(ludus: Ludus, folder: Path):
    done = run(ludus, "process", "atropos:atropos_arithmetic_env.py", "--env.total_steps", "1", "--limits.turns", "3")
    assert done.code == 2 and "limits.turns" in done.err
    twice = ("--limits.turns", "3", "--env.max_agent_turns", "4")
    done = run(ludus, "process", "hermes:hermes_notes_env.py", "--env.total_steps", "1", *twice)
    assert done.code == 2 and "set twice" in done.err
