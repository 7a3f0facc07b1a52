"""One rollout on a terminal: the transcript and its score."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from ludus.command.terminal import (
    format_count,
    format_duration,
    format_money,
    format_number,
    make_console,
    make_text,
)
from ludus.encoding import to_json
from ludus.types import Call, Failure, Message, Rollout, SkillUse, ToolResult, Turn

if TYPE_CHECKING:  # importing rich takes a while, and most commands do not draw
    from rich.console import Console
    from rich.text import Text


def print_rollout(rollout: Rollout, console: "Console | None" = None, *, longest: int = 2_000) -> None:
    """Print the transcript and the score. Texts longer than `longest` characters are shortened."""
    console = console or make_console()
    provenance = rollout.provenance
    console.print(make_text(f"task {rollout.task.id}, rollout {provenance.replicate + 1}", "bold"))
    origin = f"{provenance.model} · policy {provenance.policy} · seed {provenance.seed}"
    if provenance.toolsets:
        origin += f" · toolsets {', '.join(provenance.toolsets)}"
    if provenance.skipped:
        origin += f" · not available: {', '.join(provenance.skipped)}"
    console.print(make_text(origin, "dim"))
    if (played := provenance.replayed) is not None:
        words = f"turns 1 to {played.turns} were played from {played.run}, rollout {played.outcome}"
        console.print(make_text(words, "dim"))
    for message in rollout.opening:
        _print_message(message, console, longest)
        for call in message.calls:
            _print_call(call, console, longest)
    for turn in rollout.turns:
        print_turn(turn, console, longest=longest)
    console.print()
    console.print(make_text("score ") + format_verdict(rollout) + make_text(f"  {describe_end(rollout)}", "dim"))
    if rollout.score is not None and rollout.score.feedback:
        console.print(make_text(_shorten(rollout.score.feedback, longest)))
    if rollout.score is not None and rollout.score.suspect:
        evidence = "\n".join(f"  {each}" for each in rollout.score.suspect)
        console.print(make_text(f"suspect: the agent may have changed the verdict\n{evidence}", "magenta"))
    if rollout.left_out:
        names = _shorten("\n".join(f"  {name}" for name in rollout.left_out), longest)
        console.print(make_text(f"left out for verify (out of /workspace, or no plain file):\n{names}", "magenta"))
    if rollout.skill_use is not None:
        console.print(make_text(describe_skill_use(rollout.skill_use), "dim"), soft_wrap=True)
    if rollout.library_use is not None:
        console.print(make_text(describe_library_use(rollout.library_use), "dim"), soft_wrap=True)
    if rollout.failure is not None:
        print_failure(rollout.failure, console, longest=longest)
    if rollout.exit is not None and rollout.exit.code != 0:
        console.print(make_text(f"the agent's program ended with exit code {rollout.exit.code}", "magenta"))
        console.print(make_text(_shorten(rollout.exit.output, longest), "dim"))
    for name, value in rollout.facts.items():
        if name not in _PRINTED:
            console.print(make_text(f"{name}: {_shorten(to_json(value).decode(), longest)}", "dim"))


_PRINTED = ("left_out", "exit", "files", "skill_use", "library_use")
"""Facts that have words of their own above, or that say nothing to people."""


def describe_skill_use(use: SkillUse) -> str:
    """What became of the skill's files, in one line."""
    verdict = {True: "loaded", False: "not loaded", None: "not known whether it was loaded"}[use.loaded]
    lists = {"opened": use.opened, "shown to the model": use.shown, "run": use.run, "changed by the agent": use.changed}
    parts = [f"{name} {', '.join(paths)}" for name, paths in lists.items() if paths]
    if use.unseen:
        parts.append(f"the slot did not see what was opened ({use.unseen})")
    return f"skill: {'; '.join([verdict, *parts])}"


def describe_library_use(uses: Mapping[str, SkillUse]) -> str:
    """What became of the skills of a library, in one line: those that were loaded, or of which that is not known."""
    said = [f"{name} ({describe_skill_use(use)[7:]})" for name, use in uses.items() if use.loaded is not False]
    return f"skills: {'; '.join(said)}" if said else f"skills: none of {len(uses)} was loaded"


def print_failure(failure: Failure, console: "Console", *, longest: int = 2_000) -> None:
    what = "a bug" if failure.boundary == "bug" else f"the {failure.boundary} failed"
    console.print(make_text(f"{what}: {_shorten(failure.message, longest)}", "magenta"))


def print_turn(turn: Turn, console: "Console", *, longest: int = 2_000) -> None:
    """Print what the model said in a turn, its calls and their results."""
    _print_message(turn.completion.message, console, longest)
    for result in turn.results:
        _print_call(result.call, console, longest)
        _print_result(result, console, longest)
    for message in turn.notices:
        _print_message(message, console, longest)


_ROLES = {"system": "dim", "user": "bold blue", "assistant": "bold green", "tool": "yellow"}


def _print_message(message: Message, console: "Console", longest: int) -> None:
    console.print()
    console.print(make_text(message.role, _ROLES[message.role]))
    if message.reasoning is not None:
        console.print(make_text(_shorten(message.reasoning.text, longest), "dim italic"))
    if message.content:
        console.print(make_text(_shorten(message.content, longest), "dim" if message.role == "system" else ""))


def _print_call(call: Call, console: "Console", longest: int) -> None:
    arguments = make_text(" " + _format_arguments(call, longest))
    console.print(make_text("→ ", "yellow") + make_text(call.name, "bold yellow") + arguments)


def _print_result(result: ToolResult, console: "Console", longest: int) -> None:
    style = "red" if result.error else "dim"
    for shown in _shorten(result.content, longest).splitlines() or ["(nothing)"]:
        console.print(make_text("  │ ", style) + make_text(shown, style))


def _format_arguments(call: Call, longest: int) -> str:
    """The arguments as JSON; if one of them has line breaks, one argument per line."""
    raw = call.arguments
    try:
        value = msgspec.json.decode(raw, type=dict[str, Any])
    except (ValueError, RecursionError):  # msgspec's errors are ValueErrors
        return _shorten(raw, longest)
    if not any(isinstance(v, str) and "\n" in v for v in value.values()):
        return _shorten(raw, longest)
    parts = (f"{k}: {v if isinstance(v, str) else msgspec.json.encode(v).decode()}" for k, v in value.items())
    return _shorten("\n    " + "\n".join(parts).replace("\n", "\n    "), longest)


def describe_end(rollout: Rollout) -> str:
    """Why a rollout ended, and what it took."""
    usage = rollout.usage
    words = f"ended: {rollout.stop.value} · {len(rollout.turns)} turns · {format_count(usage.tokens)} tokens"
    if usage.dollars:
        words += f" · {format_money(usage.dollars)}"
    return f"{words} · {format_duration(rollout.seconds)}"


SUSPECT = "?"
"""The mark behind the score of a suspect."""


def format_verdict(rollout: Rollout) -> "Text":
    if rollout.score is None:
        return make_text("failed", "magenta") if rollout.failure is not None else make_text("not judged", "dim")
    value, mark = rollout.score.value, SUSPECT if rollout.score.suspect else ""
    return make_text(f"{format_number(value)}{mark}", "green" if value > 0 else "red" if value < 0 else "yellow")


def _shorten(text: str, longest: int) -> str:
    """The beginning and the end of a long text: the result of a tool is often at the end."""
    if len(text) <= longest:
        return text
    head, tail = longest * 2 // 3, longest // 3
    return f"{text[:head]}\n… {len(text) - head - tail:,} characters …\n{text[len(text) - tail :]}"
