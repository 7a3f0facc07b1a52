"""Transcripts: rollouts as text for the analysts, within a budget. Pure.

A transcript begins with the task, its result and, if the run allows it, the reference answer; the turns follow. If the
transcripts of a prompt exceed their budget, the long ones are shortened in the middle and the short ones stay whole. A
note in the gap gives the number of missing characters.
"""

from collections.abc import Sequence

from ludus.encoding import to_json
from ludus.types import Rollout, Turn

CHARS_PER_TOKEN = 4
_REFERENCE = 4_000
"""The number of characters of a reference that are shown."""
_LEFT_OUT = 5


def render_transcript(rollout: Rollout, *, reference: bool, title: str = "") -> str:
    """One rollout as text."""
    return "\n".join([render_heading(rollout, reference=reference, title=title), "", *render_turns(rollout)]).rstrip()


def render_heading(rollout: Rollout, *, reference: bool, title: str = "") -> str:
    """The task and its result."""
    task = rollout.task
    lines = [f"### {title or task.id}", f"Task: {task.prompt.strip()}"]
    if task.kind:
        lines.append(f"Type: {task.kind}")
    lines.append(f"Result: {describe_verdict(rollout)}")
    if reference and task.answer is not None:
        answer = task.answer if isinstance(task.answer, str) else to_json(task.answer).decode()
        lines.append(f"What the verifier knows (hidden from the agent): {shorten(answer.strip(), _REFERENCE)}")
    return "\n".join(lines)


def describe_verdict(rollout: Rollout) -> str:
    """The score, its feedback and why the rollout ended."""
    score = rollout.score
    if score is None:
        return "not judged"
    feedback = f"; {score.feedback.strip()}" if score.feedback.strip() else ""
    if rollout.left_out:
        names = ", ".join(rollout.left_out[:_LEFT_OUT])
        feedback += f"; left out for verify (out of /workspace, or no plain file): {names}"
    turns = f"{len(rollout.turns)} turn{'s' if len(rollout.turns) != 1 else ''}"
    passed = "passed" if score.passed else "failed"
    return f"{passed} (partial credit {score.soft:.2f}) after {turns}, ended: {rollout.stop.value}{feedback}"


def render_turns(rollout: Rollout) -> list[str]:
    return [line for turn in rollout.turns for line in _render_turn(turn)]


def _render_turn(turn: Turn) -> list[str]:
    message = turn.completion.message
    lines: list[str] = []
    if message.reasoning is not None and message.reasoning.text.strip():
        lines.append(f"[thinks] {message.reasoning.text.strip()}")
    if message.content.strip():
        lines.append(f"[agent] {message.content.strip()}")
    for result in turn.results:
        lines.append(f"[calls {result.call.name}] {result.call.arguments}")
        lines.append(f"[result] {result.content.strip()}")
    lines += [f"[is told] {notice.content.strip()}" for notice in turn.notices]
    return lines


def fit_texts(texts: Sequence[str], tokens: int) -> list[str]:
    """Fit the texts into a budget: short ones stay whole, the others are shortened to equal shares of the rest."""
    share = _compute_share([len(text) for text in texts], tokens * CHARS_PER_TOKEN)
    return [shorten(text, share) for text in texts]


def _compute_share(sizes: Sequence[int], budget: int) -> int:
    """The largest length of each text so that all fit. What short texts do not use goes to the long ones."""
    left = budget
    for place, size in enumerate(sorted(sizes)):
        share = left // (len(sizes) - place)
        if size > share:
            return share
        left -= size
    return max(sizes, default=0)


def shorten(text: str, limit: int) -> str:
    """The beginning and a longer part of the end: `limit` characters, plus a note on what is missing."""
    if len(text) <= limit:
        return text
    head = limit * 2 // 5
    tail = limit - head
    missing = len(text) - limit
    return f"{text[:head]}\n[… {missing} characters left out …]\n{text[len(text) - tail :]}"
