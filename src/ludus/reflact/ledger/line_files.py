"""Lines of a package's files: each line of the ledger has a path, and is on trial like a line of the document.

What a proposal would do to a package is tried out before it is admitted. It is refused if the edit cannot be made, if
it takes a level of the package above its budget, or if a script that it writes fails its check in a slot. The reason is
in its fate. A skill that is one document has no lines of files.
"""

from collections.abc import Sequence

from msgspec.structs import replace

from ludus.reflact.disclosure import OVER_BUDGET, find_excess
from ludus.reflact.ledger.line_analyst import LineReflection
from ludus.reflact.ledger.line_records import LineLedger, LineProposal, add_pointer, compose_text
from ludus.reflact.proposers import View
from ludus.reflact.records import Fate
from ludus.reflact.script_checks import FAILED_CHECK, NO_PACKAGE, check_scripts, find_refused_paths
from ludus.runner import Runner
from ludus.skill import Skill, apply_edits


async def refuse_file_lines(
    runner: Runner, view: View, ledger: LineLedger, base: Skill, reflections: Sequence[LineReflection]
) -> tuple[list[LineReflection], tuple[Fate, ...]]:
    """The reflections without proposals that a package cannot take, and what became of these."""
    kept: list[LineReflection] = []
    fates: list[Fate] = []
    for reflection in reflections:
        allowed: list[LineProposal] = []
        for proposal in reflection.proposals:
            fate = await _find_refusal(runner, view, ledger, base, proposal)
            if fate is None:
                allowed.append(proposal)
            else:
                fates.append(fate)
        kept.append(replace(reflection, proposals=tuple(allowed)))
    return kept, tuple(fates)


async def _find_refusal(
    runner: Runner, view: View, ledger: LineLedger, base: Skill, proposal: LineProposal
) -> Fate | None:
    edit, settings = proposal.edit, view.settings.package
    if not view.is_package:
        return Fate(edit, NO_PACKAGE) if edit.path else None
    lines = [line for line in ledger.alive if line.id != proposal.replaces]
    before, _ = compose_text(base, lines)
    after, (report,) = apply_edits(before, [edit])
    if edit.path and not report.applied:
        return Fate(edit, report.status)
    after = add_pointer(after, edit.path, proposal.pointer)
    if level := find_excess(before, after, settings):
        return Fate(edit, OVER_BUDGET, f"{level} would be above its budget")
    refused = find_refused_paths(await check_scripts(before, after, runner, settings))
    reason = next(iter(refused.values()), "")
    return Fate(edit, FAILED_CHECK, reason) if reason else None
