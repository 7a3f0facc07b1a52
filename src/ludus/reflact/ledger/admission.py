"""Admission: what becomes of proposals. Pure.

A proposal about a situation that does not come back is dropped, and so is one while an untried line about the same
situation waits. A text that was proposed before revives its line. Everything else becomes a new line. Of too many lines
about one situation the least likely one is retired.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache

from msgspec.structs import replace

from ludus.reflact.ledger.line_records import Line, LineChange, LineLedger, LineProposal, Situation, compute_logit
from ludus.reflact.ledger.placement import has_free_place
from ludus.reflact.ledger.settings import LedgerTuning
from ludus.reflact.ledger.situations import find_label
from ludus.skill import Edit, Skill


def admit_proposals(
    ledger: LineLedger, proposals: Sequence[LineProposal], step: int, tuning: LedgerTuning
) -> tuple[LineLedger, tuple[LineChange, ...]]:
    """The ledger with the proposals of a step, and what became of each."""
    changes: list[LineChange] = []
    for proposal in proposals:
        label = find_label(proposal.situation, [each.label for each in ledger.situations], ledger.merged)
        ledger = merge_by_line(ledger, replace(proposal, situation=label))
        label = _get_replaced_label(ledger, proposal) or ledger.merged.get(label, label)
        ledger, change = _admit(ledger, replace(proposal, situation=label), step, tuning)
        changes.append(change)
        if change.change in ("new", "revived"):
            ledger, dropped = _limit_lines(ledger, label, step, tuning)
            changes += dropped
    return ledger, tuple(changes)


def _admit(
    ledger: LineLedger, proposal: LineProposal, step: int, tuning: LedgerTuning
) -> tuple[LineLedger, LineChange]:
    text = proposal.edit.content or proposal.edit.target
    if proposal.edit.op != "delete" and not proposal.edit.content.strip():
        return ledger, LineChange("", "dropped", "it says nothing", text)
    situation = next((s for s in ledger.situations if s.label == proposal.situation), None)
    if situation is not None and situation.is_refuted:
        return ledger, LineChange("", "dropped", "its situation does not come back", text)
    same = find_same(ledger.lines, proposal.edit)
    ledger = _add_called(ledger, proposal)
    waiting = [
        line for line in ledger.lines if line.situation == proposal.situation and line.is_alive and line.is_untried
    ]
    if waiting and same not in waiting:
        return ledger, LineChange("", "dropped", f"{waiting[0].id} about the same situation was not tried yet", text)
    if same is not None:
        if same.is_alive:
            return ledger, LineChange("", "dropped", f"{same.id} has the same text", text)
        lines = tuple(_revive(line, ledger, tuning) if line.id == same.id else line for line in ledger.lines)
        return replace(ledger, lines=lines), LineChange(same.id, "revived")
    old = next((line for line in ledger.lines if line.id == proposal.replaces), None)
    weight = old.weight if old is not None else compute_logit(compute_prior(ledger, tuning))
    line = Line(
        id=f"L{len(ledger.lines) - len(ledger.passages) + 1}",
        edit=proposal.edit,
        situation=proposal.situation,
        born=step,
        weight=weight,
        birth_weight=weight,
        replaces=proposal.replaces,
        by_outcome=proposal.by_outcome,
        pointer=proposal.pointer,
    )
    return replace(ledger, lines=(*ledger.lines, line)), LineChange(line.id, "new")


def merge_by_line(ledger: LineLedger, proposal: LineProposal) -> LineLedger:
    """The ledger in which the proposal's situation and that of a known line are one, if they spoiled a task in common:
    the line that the proposal is a better version of, or one with the same text. Two names for one cause lead to the
    same advice. The text alone could be general advice."""
    for same in _list_kin(ledger, proposal):
        label = ledger.merged.get(proposal.situation, proposal.situation)
        if same.passage or same.by_outcome or same.situation == label:
            continue
        known = {situation.label: situation for situation in ledger.situations}
        one, other = known.get(same.situation), known.get(label)
        tasks = {*proposal.edit.evidence, *(other.called if other else ())}
        if one is not None and tasks & set(one.called):
            ledger = merge_situations(ledger, one, other or Situation(label=label))
    return ledger


def _list_kin(ledger: LineLedger, proposal: LineProposal) -> list[Line]:
    """The line that a proposal replaces, and one with its text."""
    same = find_same(ledger.lines, proposal.edit)
    return [line for line in ledger.lines if line is same or line.id == proposal.replaces]


def _get_replaced_label(ledger: LineLedger, proposal: LineProposal) -> str:
    """The situation of the line that a proposal is a better version of: both compete for its place."""
    old = next((line for line in ledger.lines if line.id == proposal.replaces), None)
    return old.situation if old is not None and not old.passage and not old.by_outcome else ""


def merge_situations(ledger: LineLedger, one: Situation, other: Situation) -> LineLedger:
    """The ledger with the second situation counted as the first."""
    returns = _join_returns(one.returns, other.returns)
    twice = sum(min(tries, other.returns.get(task, (0, 0))[0]) for task, (tries, _) in one.returns.items())
    both = replace(
        one,
        called=tuple(dict.fromkeys((*one.called, *other.called))),
        tries=one.tries + other.tries - twice,
        named=one.named + other.named,
        returns=returns,
    )
    situations = [both if each.label == one.label else each for each in ledger.situations if each.label != other.label]
    lines = [replace(line, situation=one.label) if line.situation == other.label else line for line in ledger.lines]
    merged = {label: one.label if known == other.label else known for label, known in ledger.merged.items()}
    return replace(ledger, situations=tuple(situations), lines=tuple(lines), merged={**merged, other.label: one.label})


def _join_returns(
    one: Mapping[str, tuple[int, int]], other: Mapping[str, tuple[int, int]]
) -> dict[str, tuple[int, int]]:
    """The returns of one cause that had two names: rollouts of a task that were counted for both names are the same."""
    found = dict(one)
    for task, (tries, named) in other.items():
        before = found.get(task, (0, 0))
        most = max(before[0], tries)
        found[task] = (most, min(most, before[1] + named))
    return found


def _revive(line: Line, ledger: LineLedger, tuning: LedgerTuning) -> Line:
    """A retired line that was proposed again. One that seemed not to work starts from the prior: that may have been
    chance. What it was suspected of stays."""
    prior = compute_logit(compute_prior(ledger, tuning))
    weight = prior if line.works < tuning.retire_works else line.weight
    return replace(line, retired=0, reason="", weight=weight, birth_weight=weight)


def find_same(lines: Iterable[Line], edit: Edit) -> Line | None:
    """The first line that changes the document in the same way, up to spacing."""
    op, path, content, target = edit.op, edit.path, _squeeze(edit.content), _squeeze(edit.target)
    for line in lines:
        own = line.edit
        near = own.path == path or (has_free_place(edit) and has_free_place(own) and not line.passage)
        if own.op == op and near and _squeeze(own.content) == content and _squeeze(own.target) == target:
            return line
    return None


@lru_cache(maxsize=4096)  # each proposal is compared with all lines
def _squeeze(text: str) -> str:
    return " ".join(text.split())


def compute_prior(ledger: LineLedger, tuning: LedgerTuning) -> float:
    """The probability that a new line works, by how many of the settled lines do."""
    settled = [line.works for line in ledger.lines if line.is_settled]
    share = (tuning.prior_weight * tuning.prior + sum(settled)) / (tuning.prior_weight + len(settled))
    return min(0.85, max(0.1, share))


def _add_called(ledger: LineLedger, proposal: LineProposal) -> LineLedger:
    """Count the tasks that the proposal came from as tasks that call for its situation."""
    known = {situation.label: situation for situation in ledger.situations}
    situation = known.get(proposal.situation, Situation(label=proposal.situation))
    new = tuple(task for task in dict.fromkeys(proposal.edit.evidence) if task not in situation.called)
    known[proposal.situation] = replace(situation, called=(*situation.called, *new))
    return replace(ledger, situations=tuple(known.values()))


def _limit_lines(
    ledger: LineLedger, label: str, step: int, tuning: LedgerTuning
) -> tuple[LineLedger, list[LineChange]]:
    """Retire the line about a situation that is least likely to work, if there are too many."""
    rivals = [line for line in ledger.lines if line.situation == label and line.is_alive]
    if len(rivals) <= tuning.per_situation:
        return ledger, []
    lowest = min(rivals, key=lambda line: line.weight)
    reason = "other lines about its situation are more likely to work"
    lines = tuple(replace(line, retired=step, reason=reason) if line.id == lowest.id else line for line in ledger.lines)
    working = tuple(id for id in ledger.working if id != lowest.id)
    return replace(ledger, lines=lines, working=working), [LineChange(lowest.id, "retired", reason)]


# ---- edits of the working text --------------------------------------------------------------------------------------


def place_edit(edit: Edit, initial: Skill, lines: Sequence[Line]) -> tuple[Edit, str]:
    """An edit of the working text as an edit of the initial skill, and the id of the line that it replaces.

    An edit whose target is in one of the lines becomes a new version of that line. One whose target is in the initial
    skill stays as it is.
    """
    if edit.op == "append" or not edit.target or edit.target in (initial.read(edit.path) or ""):
        return edit, ""
    found = [line for line in lines if line.edit.path == edit.path and edit.target in line.edit.content]
    if not found:
        return edit, ""
    old = found[0]
    if edit.op == "insert_after":
        return replace(edit, op="append", target=""), ""
    content = old.edit.content.replace(edit.target, edit.content, 1).strip()
    return replace(edit, op=old.edit.op, target=old.edit.target, content=content), old.id
