"""Transcripts in the forms of Claude Code 2.1 and Codex 0.166, as these programs write them."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ludus.transcripts.intake import IntakeOptions, IntakeReport, read_sessions
from ludus.transcripts.past_session import PastSession

PIXEL = (
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5E"
    "rkJggg=="
)
SESSION = "afc50ef8-7eba-48d0-ad39-ae6e38d96f0c"
CLAUDE = {
    "isSidechain": False,
    "userType": "external",
    "entrypoint": "cli",
    "cwd": "/home/jane/shop",
    "sessionId": SESSION,
    "version": "2.1.197",
    "gitBranch": "main",
}


def claude(id: str, parent: str | None, type: str, second: int = 0, **fields: Any) -> dict[str, Any]:
    """An entry of Claude Code."""
    time = f"2026-11-18T20:15:{second:02}.000Z"
    return {"parentUuid": parent, "type": type, "uuid": id, "timestamp": time, **CLAUDE, **fields}


def asked(id: str, parent: str | None, content: Any, **fields: Any) -> dict[str, Any]:
    return claude(id, parent, "user", message={"role": "user", "content": content}, **fields)


def replied(id: str, parent: str | None, *blocks: dict[str, Any], message: str = "", **fields: Any) -> dict[str, Any]:
    usage = {"input_tokens": 10, "cache_read_input_tokens": 5, "cache_creation_input_tokens": 2, "output_tokens": 3}
    whole = {"id": message or f"msg_{id}", "role": "assistant", "model": "m-1", "content": [*blocks], "usage": usage}
    return claude(id, parent, "assistant", message=whole, **fields)


def returned(id: str, parent: str | None, call: str, text: str) -> dict[str, Any]:
    return asked(id, parent, [{"type": "tool_result", "tool_use_id": call, "content": text}])


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


def use(id: str, name: str, **arguments: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": id, "name": name, "input": arguments}


BASE = "Base directory for this skill: /home/jane/.claude/skills/csv-totals\n\n# Totals\nUse awk.\n"
CLAUDE_SESSION = [
    {"type": "queue-operation", "operation": "enqueue", "sessionId": SESSION, "content": "Add it up."},
    asked("u1", None, "Add up the second column of a.csv."),
    claude(
        "x1",
        "u1",
        "attachment",
        attachment={"type": "skill_listing", "content": "- csv-totals: Add up columns.\n- review: Review a change.\n"},
    ),
    replied("a1", "x1", use("c1", "Skill", skill="csv-totals"), second=1),
    returned("r1", "a1", "c1", "Launching skill: csv-totals"),
    asked("s1", "r1", [text(BASE)], isMeta=True),
    replied("a2", "s1", {"type": "thinking", "thinking": "Sum.", "signature": "x" * 40}, message="msg_2"),
    replied("a3", "a2", use("c2", "Bash", command="awk ... a.csv"), message="msg_2"),
    replied("a4", "a3", use("c3", "Read", file_path="/home/jane/shop/a.csv"), message="msg_2"),
    returned("r2", "a3", "c2", "3"),
    returned("r3", "a4", "c3", "1\tx,1"),
    replied("a5", "r3", text("The total is 3."), second=5),
    asked("u2", "a5", "No, in cents please.\n<system-reminder>Be brief.</system-reminder>", second=9),
    replied("a6", "u2", text("300 cents."), second=12),
    {"type": "last-prompt", "lastPrompt": "No, in cents please.", "leafUuid": "a6", "sessionId": SESSION},
]


def codex(frame: str, second: int = 0, **payload: Any) -> dict[str, Any]:
    return {"timestamp": f"2026-11-18T20:16:{second:02}.000Z", "ordinal": 0, "type": frame, "payload": payload}


def item(type: str, **payload: Any) -> dict[str, Any]:
    return {"timestamp": "2026-11-18T20:16:30.000Z", "type": "response_item", "payload": {"type": type, **payload}}


def spoken(role: str, words: str, origin: str = "") -> dict[str, Any]:
    kind = "output_text" if role == "assistant" else "input_text"
    noted = {"content_item_metadata": [{"provenance": {"type": origin}}]} if origin else {}
    return item(
        "message",
        role=role,
        content=[{"type": kind, "text": words}],
        internal_chat_message_metadata_passthrough={"turn_id": "t1", **noted},
    )


SKILLS = """<skills_instructions>
## Skills
A skill is a set of local instructions.
### Skill roots
- `r0` = `/home/jane/.agents/skills`
### Available skills
- csv-totals: Add up columns (of CSV files). Use it for sums. (file: r0/csv-totals/SKILL.md)
- review: Review a change. (file: /opt/skills/review/SKILL.md)
</skills_instructions>"""
CODEX_SESSION = [
    codex(
        "session_meta",
        id="01a1f04d",
        timestamp="2026-11-18T20:16:20.000Z",
        cwd="/home/jane/shop",
        originator="codex_cli_rs",
        cli_version="0.166.0",
        source="cli",
        base_instructions={"text": "You are a coding agent."},
    ),
    spoken("developer", SKILLS, "harness"),
    spoken("user", "<environment_context>\n  <cwd>/home/jane/shop</cwd>\n</environment_context>", "harness"),
    codex("turn_context", cwd="/home/jane/shop", model="m-2"),
    spoken("user", "Add up the second column of a.csv.", "user"),
    item("reasoning", summary=[{"type": "summary_text", "text": "Look at the skill."}], encrypted_content="gAAA"),
    item(
        "function_call",
        name="exec_command",
        arguments='{"cmd":"cat /home/jane/.agents/skills/csv-totals/SKILL.md"}',
        call_id="c1",
    ),
    item("function_call_output", call_id="c1", output="---\nname: csv-totals\n---\n# Totals\nUse awk."),
    item(
        "custom_tool_call",
        name="apply_patch",
        input="*** Begin Patch\n*** Add File: total.txt\n+3\n*** End Patch\n",
        call_id="c2",
    ),
    item("custom_tool_call_output", call_id="c2", output="Done"),
    spoken("assistant", "The total is 3."),
    codex(
        "event_msg",
        type="token_count",
        info={"total_token_usage": {"input_tokens": 90, "cached_input_tokens": 40, "output_tokens": 7}},
    ),
    spoken("user", "No, in cents please.", "user"),
    spoken("assistant", "300 cents."),
    codex("event_msg", second=40, type="task_complete"),
]


def write_lines(path: Path, values: Iterable[Any]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(value) + "\n" for value in values))
    return path


def write_json(path: Path, value: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value))
    return path


def list_roles(session: PastSession) -> str:
    return " ".join(message.role for message in session.messages)


def read(*paths: Path, **options: Any) -> tuple[list[PastSession], IntakeReport]:
    """The sessions of paths, and the report."""
    report = IntakeReport()
    return list(read_sessions(paths, IntakeOptions(**options), report)), report


def read_one(path: Path, **options: Any) -> PastSession:
    sessions, _ = read(path, **options)
    assert len(sessions) == 1
    return sessions[0]
