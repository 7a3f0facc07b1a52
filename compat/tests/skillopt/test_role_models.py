"""SkillOpt's backends as models and agents of Ludus."""

from typing import Any

import pytest

from ludus.compat.skillopt.findings import Findings
from ludus.compat.skillopt.role_models import RoleModels


def make_models(**model: Any) -> tuple[RoleModels, Findings]:
    found = Findings("theirs.yaml")
    return RoleModels(model, found), found


def test_an_agent_runs_in_a_slot_with_the_model_of_the_run():
    models, found = make_models(
        target_backend="codex_exec", target="gpt-t", codex_exec_network_access=True, codex_exec_reasoning_effort="high"
    )
    assert models.convert_program() == {"agent": {"harness": "codex"}, "sandbox": {"network": True}}
    assert models.convert_model("target")["name"] == "gpt-t"
    assert models.convert_sampling("target")["extra"] == {"reasoning_effort": "high"}
    models, _ = make_models(target_backend="claude_code_exec", claude_code_exec_profile="it's {mine}")
    (command,) = [each["command"] for each in models.convert_program()["agent"]["harnesses"].values()]
    assert command.endswith("""--append-system-prompt 'Profile: it'"'"'s {mine}'""")
    assert models.convert_model("target") == {"type": "anthropic", "name": "claude-sonnet-4-6"}
    assert found.problems == found.notes == []


def test_thinking_of_claude_code_counts_as_reply_and_has_their_defaults():
    models, _ = make_models(target_backend="claude_code_exec")
    sampling = models.convert_sampling("target")
    assert sampling["extra"] == {
        "output_config": {"effort": "medium"},
        "thinking": {"type": "enabled", "budget_tokens": 16_384},
    }
    assert sampling["max_tokens"] == 2 * 16_384
    models, _ = make_models(
        target_backend="claude_code_exec", claude_code_exec_effort="off", claude_code_exec_max_thinking_tokens=0
    )
    assert models.convert_sampling("target", 500) == {"temperature": None, "max_tokens": 500, "extra": {}}


@pytest.mark.parametrize(
    ("key", "value", "refused", "noted"),
    [
        ("codex_exec_sandbox", "workspace-write", 0, 0),
        ("codex_exec_sandbox", "danger-full-access", 0, 1),
        ("codex_sandbox", "read-only", 1, 0),
        ("codex_bin", "/opt/codex", 0, 1),
        ("codex_exec_path", "codex", 0, 0),
        ("codex_exec_approval_policy", "never", 0, 0),
        ("codex_exec_use_sdk", "auto", 0, 0),
        ("codex_exec_full_auto", False, 0, 0),
        ("codex_exec_web_search", False, 0, 0),
        ("claude_code_exec_path", "/opt/claude", 0, 0),
    ],
)
def test_values_of_the_base_file_say_nothing_and_keys_of_other_agents_do_not_count(
    key: str, value: Any, refused: int, noted: int
):
    models, found = make_models(target_backend="codex_exec", **{key: value})
    models.convert_program()
    assert (len(found.problems), len(found.notes)) == (refused, noted)
    models, found = make_models(**{key: value})
    assert models.convert_program() == {}
    assert found.problems == found.notes == []
