"""Rollouts in words, within a budget: what analysts read. Pure.

A transcript begins with what was asked, how it was judged and, if the run allows it, what the verifier knows; then come
the turns. When the transcripts of a prompt do not fit their budget together, the long ones are shortened in the middle,
short ones stay whole, and what is missing is counted where it is missing.
"""

from collections.abc import Sequence

from ludus.types import Rollout, Turn, to_json

CHARS_PER_TOKEN = 4
_REFERENCE = 4_000
"""How much of a reference is shown, in characters."""


def transcript(rollout: Rollout, *, reference: bool, title: str = "") -> str:
    """One rollout in words."""
    return "\n".join([heading(rollout, reference=reference, title=title), "", *turns_of(rollout)]).rstrip()


def heading(rollout: Rollout, *, reference: bool, title: str = "") -> str:
    """What was asked and how it went."""
    task = rollout.task
    lines = [f"### {title or task.id}", f"Task: {task.prompt.strip()}"]
    if task.kind:
        lines.append(f"Type: {task.kind}")
    lines.append(f"Result: {verdict(rollout)}")
    if reference and task.answer is not None:
        answer = task.answer if isinstance(task.answer, str) else to_json(task.answer).decode()
        lines.append(f"What the verifier knows (hidden from the agent): {shortened(answer.strip(), _REFERENCE)}")
    return "\n".join(lines)


def verdict(rollout: Rollout) -> str:
    """The score, its reason, and how the rollout ended."""
    score = rollout.score
    if score is None:
        return "not judged"
    feedback = f"; {score.feedback.strip()}" if score.feedback.strip() else ""
    turns = f"{len(rollout.turns)} turn{'s' if len(rollout.turns) != 1 else ''}"
    passed = "passed" if score.passed else "failed"
    return f"{passed} (partial credit {score.soft:.2f}) after {turns}, ended: {rollout.stop.value}{feedback}"


def turns_of(rollout: Rollout) -> list[str]:
    return [line for turn in rollout.turns for line in _lines(turn)]


def _lines(turn: Turn) -> list[str]:
    message = turn.completion.message
    lines: list[str] = []
    if message.reasoning is not None and message.reasoning.text.strip():
        lines.append(f"[thinks] {message.reasoning.text.strip()}")
    if message.content.strip():
        lines.append(f"[agent] {message.content.strip()}")
    for result in turn.results:
        lines.append(f"[calls {result.call.name}] {result.call.arguments}")
        lines.append(f"[result] {result.content.strip()}")
    lines += [f"[is told] {heard.content.strip()}" for heard in turn.heard]
    return lines


def fit(texts: Sequence[str], tokens: int) -> list[str]:
    """The texts within a budget together: short ones whole, the others shortened to equal shares of what is left."""
    share = _share([len(text) for text in texts], tokens * CHARS_PER_TOKEN)
    return [shortened(text, share) for text in texts]


def _share(sizes: Sequence[int], budget: int) -> int:
    """The longest that each may be so that all fit, with what short ones leave over given to the long ones."""
    left = budget
    for place, size in enumerate(sorted(sizes)):
        share = left // (len(sizes) - place)
        if size > share:
            return share
        left -= size
    return max(sizes, default=0)


def shortened(text: str, limit: int) -> str:
    """The beginning and, more of it, the end: a little over `limit` characters with the note on what is missing."""
    if len(text) <= limit:
        return text
    head = limit * 2 // 5
    tail = limit - head
    missing = len(text) - limit
    return f"{text[:head]}\n[… {missing} characters left out …]\n{text[len(text) - tail :]}"
