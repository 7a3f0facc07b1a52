"""Sessions that the real programs write, with a scripted model behind the gateway. `make test-agents` runs this."""

import asyncio
import os
from collections.abc import Mapping
from pathlib import Path

import pytest
from tests.transcripts_kit import read_one

from ludus.config.secrets import find_agents_folder
from ludus.gateway.service import Gateway
from ludus.harness.known import CODEX
from ludus.models.scripted import ScriptedModel, call, say
from ludus.transcripts.past_session import PastSession

pytestmark = pytest.mark.skipif("LUDUS_TEST_AGENTS" not in os.environ, reason="make test-agents installs the agents")
SKILL = (
    "---\nname: csv-totals\ndescription: Add up columns of CSV files.\n---\n# Totals\nUse awk to add up the column.\n"
)
ASKED = "Add up the second column of a.csv."
FEEDBACK = "No, in cents please."


async def talk(program: list[str], again: list[str], steps: list, env: Mapping[str, str], shop: Path) -> None:
    """Let a program do a task, and go on with the same session."""
    replies = iter(steps)
    async with Gateway(ScriptedModel(lambda *_: next(replies, say("Done.")))) as gateway:
        session = gateway.open()
        fields = {"url": session.url, "anthropic_url": session.anthropic_url, "key": session.api_key}
        variables = {"HOME": str(shop.parent), "PATH": os.environ["PATH"]}
        variables |= {name: value.format(**fields) for name, value in env.items()}
        for words, said in ((program, ASKED), (again, FEEDBACK)):
            process = await asyncio.create_subprocess_exec(
                *(word.replace("{url}", session.url) for word in words),
                cwd=shop,
                env=variables,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
            )
            output, _ = await asyncio.wait_for(process.communicate(said.encode()), 120)
            assert process.returncode == 0, output.decode(errors="replace")[-2000:]


def make_shop(home: Path, skills: str) -> Path:
    document = home / skills / "csv-totals" / "SKILL.md"
    document.parent.mkdir(parents=True)
    document.write_text(SKILL)
    (home / "shop").mkdir()
    (home / "shop" / "a.csv").write_text("x,1\ny,2\n")
    return home / "shop"


def check(session: PastSession, shop: Path) -> None:
    assert (session.request, session.feedback) == (ASKED, (FEEDBACK,))
    assert session.project == str(shop)
    used = {skill.name: skill for skill in session.skills if skill.used}
    assert used.keys() == {"csv-totals"}
    assert {"listed", "read"} <= set(used["csv-totals"].seen)
    assert any(not skill.used for skill in session.skills), "skills of the program itself, which are only listed"
    answers = {message.call_id: message.content for message in session.messages if message.role == "tool"}
    calls = [each for message in session.messages for each in message.calls]
    assert {each.id for each in calls} == answers.keys()
    assert any("3" in answer for answer in answers.values())
    assert session.messages[-1].content == "300 cents."
    assert session.usage.tokens > 0 and session.begun and session.ended
    assert session.dropped == {}


async def test_claude_code_writes_what_is_read(tmp_path: Path):
    shop = make_shop(tmp_path, ".claude/skills")
    program = [
        str(find_agents_folder() / "claude-code/bin/claude"),
        "-p",
        "--dangerously-skip-permissions",
        "--model",
        "m",
    ]
    env = {
        "ANTHROPIC_BASE_URL": "{anthropic_url}",
        "ANTHROPIC_API_KEY": "{key}",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "DISABLE_AUTOUPDATER": "1",
        "IS_SANDBOX": "1",
    }
    steps = [
        call("Skill", skill="csv-totals"),
        call("Bash", command="awk -F, '{s+=$2} END {print s}' a.csv", description="Add up"),
        call("Read", file_path=str(shop / "a.csv")),
        say("The total is 3."),
        say("300 cents."),
    ]
    await talk(program, [*program, "-c"], steps, env, shop)
    session = read_one(tmp_path / ".claude" / "projects", headless=True)
    check(session, shop)
    assert session.format == "claude-code"
    assert session.files == (str(shop / "a.csv"),)


async def test_codex_writes_what_is_read(tmp_path: Path):
    shop = make_shop(tmp_path, ".agents/skills")
    (tmp_path / ".codex").mkdir()
    (tmp_path / ".codex" / "config.toml").write_text(CODEX.files["~/.codex/config.toml"])
    program = str(find_agents_folder() / "codex/bin/codex")
    flags = ["--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox", "-m", "m"]
    flags += ["-c", "model_providers.ludus.base_url={url}", "-"]
    steps = [
        call("exec_command", cmd=f"cat {tmp_path}/.agents/skills/csv-totals/SKILL.md"),
        call("exec_command", cmd="awk -F, '{s+=$2} END {print s}' a.csv"),
        say("The total is 3."),
        say("300 cents."),
    ]
    again = [program, "exec", "resume", "--last", *flags]
    await talk([program, "exec", *flags], again, steps, {"LUDUS_KEY": "{key}"}, shop)
    session = read_one(tmp_path / ".codex" / "sessions", headless=True)
    check(session, shop)
    assert session.format == "codex"
