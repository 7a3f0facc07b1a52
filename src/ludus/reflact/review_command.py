"""`ludus review`: decide about the changes of a trained skill, one by one, and measure what comes out.

Every decision is kept as soon as it is made, so a review can be left and continued. The result is a version of its own
in `reviewed/`; the skill that the run shipped stays as it is (`ludus.reflact.review`).
"""

import asyncio
import getpass
import shlex
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, redirect_stdout
from pathlib import Path

from ludus.arguments import make_argument
from ludus.command import CONFIG, ENGINE, JSON, ROLLOUTS, RUN, Command
from ludus.command.run_command import open_work
from ludus.command.settings import read_own_settings, read_recorded_settings
from ludus.command.terminal import count_things, make_console, print_notice
from ludus.command.text_editor import edit_text
from ludus.config import Config
from ludus.config.secrets import list_secrets
from ludus.config.tree import TRAINING
from ludus.encoding import to_json
from ludus.errors import ConfigError
from ludus.reflact.command import TrainArguments, TrainingWork, make_plan
from ludus.reflact.measure import Stopped
from ludus.reflact.report.run_files import find_tested_skills
from ludus.reflact.review import (
    OpenReview,
    ReviewAction,
    ReviewDecision,
    ReviewMeasure,
    ReviewState,
    SkillReview,
    find_result,
    keep_measure,
    open_review,
    read_review,
    read_reviews,
)
from ludus.reflact.review_changes import SHIPPED, SkillChange
from ludus.reflact.review_list import print_change, print_changes
from ludus.reflact.review_measure import measure_review, require_summary
from ludus.reflact.training_run import Resources, read_records, start_run
from ludus.reflact.training_tables import read_train_settings
from ludus.run import Run, run_to_end
from ludus.sleep.night import NIGHT
from ludus.sleep.night import RUN as TRAINING_RUN
from ludus.store import RunDir


class ReviewArguments(TrainArguments):
    env = None
    run: str
    version: str
    list: bool
    all: bool
    accept: Sequence[str]
    reject: Sequence[str]
    revert: Sequence[str]
    edit: str
    text: str
    accept_all: bool
    reason: str
    who: str
    measure: bool
    resume = True
    print_config = False
    dry_run = False
    recipe = ""

    @property
    def is_direct(self) -> bool:
        """Whether decisions are given as arguments."""
        return bool(self.accept or self.reject or self.revert or self.edit or self.accept_all)


def run(arguments: ReviewArguments) -> int:
    arguments.run = _find_training(Path(arguments.run))
    arguments.out = arguments.run
    arguments.quiet = arguments.json
    if arguments.list:
        return _list_changes(arguments)
    if arguments.is_direct:
        review = _decide_directly(arguments)
        if arguments.json and not arguments.measure:
            print(_describe_review(arguments, review))
        elif not arguments.json:
            _print_review(arguments, review)
    elif not arguments.measure:
        return _walk(arguments)
    return _measure(arguments) if arguments.measure else 0


def _find_training(path: Path) -> str:
    """The run at a path; that of a night of `ludus sleep`, if it is the folder of one."""
    runs = sorted(path.glob(f"*/{TRAINING_RUN}")) if (path / NIGHT).is_file() else []
    return str(runs[0]) if len(runs) == 1 else str(path)


def find_night_of(run: Path) -> Path | None:
    """The night of `ludus sleep` that a training run belongs to."""
    night = run.parent.parent
    return night if run.name == TRAINING_RUN and (night / NIGHT).is_file() else None


def _read_secrets(arguments: ReviewArguments, directory: RunDir) -> tuple[str, ...]:
    return list_secrets(read_recorded_settings(arguments, directory.config, ""))


def _list_changes(arguments: ReviewArguments) -> int:
    with RunDir.read(Path(arguments.run)) as directory:
        state = read_review(directory, read_train_settings(directory), arguments.version)
    if arguments.json:
        print(describe_state(arguments.run, state))
    else:
        print_changes(state, left_out=arguments.all)
    return 0


def describe_state(run: str, state: ReviewState) -> str:
    """A review as JSON."""
    listed = state.listed
    facts = {
        "run": run,
        "version": listed.version,
        "skill": listed.skill.hash,
        "changes": listed.changes,
        "decisions": state.decisions,
        "undecided": [change.id for change in state.undecided],
        "reviews": state.reviews,
        "measures": state.measures,
    }
    return to_json(facts).decode()


class _Opened:
    """The settings of a run with which its review is opened."""

    def __init__(self, arguments: ReviewArguments) -> None:
        path = Path(arguments.run)
        with RunDir.read(path) as directory:
            self.path, self.version = path, arguments.version
            read_review(directory, read_train_settings(directory), arguments.version)  # raises if it cannot be reviewed
            self.settings, self.secrets = read_train_settings(directory), _read_secrets(arguments, directory)
        self.who = arguments.who or getpass.getuser()

    def open(self) -> AbstractContextManager[OpenReview]:
        return open_review(self.path, self.settings, self.secrets, self.version)


# ---- decisions as arguments -----------------------------------------------------------------------------------------


def _decide_directly(arguments: ReviewArguments) -> SkillReview:
    opened = _Opened(arguments)
    with opened.open() as review:
        for decision in list_given(arguments, review.state, opened.who):
            review.decide(decision)
        return review.finish(opened.who)


def list_given(arguments: ReviewArguments, state: ReviewState, who: str) -> list[ReviewDecision]:
    """The decisions that the arguments name. `--accept-all` accepts what they leave undecided."""
    named: dict[str, ReviewAction] = {}
    given: tuple[tuple[ReviewAction, Sequence[str]], ...] = (
        ("accept", arguments.accept),
        ("reject", arguments.reject),
        ("revert", arguments.revert),
        ("edit", [arguments.edit] if arguments.edit else []),
    )
    for action, ids in given:
        for id in ids:
            if id in named:
                raise ConfigError(f"review: {id} is given twice, to {named[id]} and to {action} it")
            named[id] = action
    if arguments.text and not arguments.edit:
        raise ConfigError("--text is the new text of a change: name the change with --edit ID")
    if arguments.accept_all:
        named |= {change.id: "accept" for change in state.undecided if change.id not in named}
    return [
        ReviewDecision(
            change=id,
            action=action,
            reason=arguments.reason,
            text=arguments.text if action == "edit" else "",
            who=who,
        )
        for id, action in named.items()
    ]


def _describe_review(arguments: ReviewArguments, review: SkillReview, measure: ReviewMeasure | None = None) -> str:
    path = find_result(Path(arguments.run), review)
    return to_json({"run": arguments.run, "file": str(path), "review": review, "measure": measure}).decode()


def _print_review(arguments: ReviewArguments, review: SkillReview) -> None:
    left = f", {len(review.undecided)} undecided and left as they are" if review.undecided else ""
    print(
        f"review {review.number}: {count_things(len(review.decisions), 'decision')}{left} → "
        f"{find_result(Path(arguments.run), review)}"
    )
    if not arguments.measure:
        print(f"  {shlex.join(['ludus', 'review', arguments.run, '--measure'])}   measure it on the test tasks")
    if night := find_night_of(Path(arguments.run)):
        print(f"  {shlex.join(['ludus', 'adopt', str(night), '--reviewed'])}   put it in place of the live skill")


# ---- one by one -----------------------------------------------------------------------------------------------------

_KEYS: dict[str, ReviewAction] = {"a": "accept", "r": "reject", "e": "edit", "v": "revert"}
_PROMPT = "[a]ccept [r]eject [e]dit re[v]ert [s]kip [b]ack [f]inish [q]uit > "


def _walk(arguments: ReviewArguments) -> int:
    """Ask about one change after the other."""
    if arguments.json:
        raise ConfigError("--json prints what was decided: add --list, or decide with --accept, --reject, --accept-all")
    opened = _Opened(arguments)
    with opened.open() as review:
        listed = review.state.listed
        changes = listed.changes if arguments.all else listed.included
        if not changes:
            print_notice(_explain_nothing(review.state, arguments.run))
            return 0
        is_done = walk_changes(review, changes, opened.who, _ask)
        if not is_done or not review.state.decisions:
            left = len(review.state.undecided)
            kept = count_things(len(review.state.decisions), "decision")
            print(f"kept: {kept}, {left} to go. Go on: {shlex.join(['ludus', 'review', arguments.run])}")
            return 0
        done = review.finish(opened.who)
    _print_review(arguments, done)
    return 0


def _explain_nothing(state: ReviewState, run: str) -> str:
    name = state.listed.version
    if state.listed.skill != state.listed.initial:
        return f"'{name}' has no change that could be decided"
    others = len(state.listed.changes)
    more = f"; {others} changes were proposed and are not in it: --all" if others else ""
    look = f" Look at the working text: ludus review {run} --version working." if name == SHIPPED else ""
    return f"'{name}' is the initial skill: it has no changes{more}.{look}"


def _ask(prompt: str) -> str:
    """What the user types; `q` at the end of the input."""
    print(prompt, end="", flush=True)
    line = sys.stdin.readline()
    if not line:
        print()
        return "q"
    return line.strip()


def walk_changes(review: OpenReview, changes: Sequence[SkillChange], who: str, ask: Callable[[str], str]) -> bool:
    """Ask about each change that has no decision, then about finishing. Returns whether the user wants to finish."""
    console = make_console()
    place = next((at for at, each in enumerate(changes) if each.id not in review.state.decisions), len(changes))
    while place < len(changes):
        change = changes[place]
        print_change(console, change, review.state.decisions.get(change.id), f"{place + 1} of {len(changes)}  ")
        key = ask(_PROMPT)[:1].lower()
        if key in ("q", "f"):
            return key == "f"
        if key == "b":
            place = max(0, place - 1)
        elif key == "s":
            place += 1
        elif key in _KEYS:
            place += _decide_one(review, change, _KEYS[key], who, ask)
        else:
            print("one of a, r, e, v, s, b, f, q")
    return ask("all changes were shown. [f]inish the review, or [q]uit and go on later > ")[:1].lower() == "f"


def _decide_one(
    review: OpenReview, change: SkillChange, action: ReviewAction, who: str, ask: Callable[[str], str]
) -> bool:
    """Make one decision. Returns whether it was made; what is wrong with it is printed."""
    try:
        text = edit_text(change.text or change.before) if action == "edit" else ""
        if action == "edit" and text == change.text:
            print("the text is as it was: nothing was decided")
            return False
        reason = ask("reason > " if action != "accept" else "reason (or Enter) > ")
        review.decide(ReviewDecision(change=change.id, action=action, reason=reason, text=text, who=who))
    except ConfigError as error:
        print(error)
        return False
    return True


# ---- the measure ----------------------------------------------------------------------------------------------------


class ReviewMeasureWork(TrainingWork):
    """Tests the reviewed skill of a finished training run, in its own run directory."""

    measure: ReviewMeasure | None = None

    async def work(self, run: Run) -> bool:
        plan, records = self.plan, list(read_records(run.directory))
        tested = find_tested_skills(run.directory.path, plan.splits.test.digest)
        training = start_run(
            run.runner,
            run.policy,
            plan.splits,
            plan.settings,
            optimizer=self.optimizer,
            proposer=plan.proposer,
            prompts=plan.prompts,
            rule=plan.rule,
            resources=Resources(optimizer_concurrency=run.config.run.concurrency, tested_before=tested),
        )
        review = read_reviews(run.directory)[-1]
        try:
            self.measure = await measure_review(training, require_summary(records[-1] if records else None), review)
        except Stopped:
            return False
        keep_measure(run.directory, self.measure)
        return True


def _measure(arguments: ReviewArguments) -> int:
    """Measure the last review of a run."""
    path = Path(arguments.run)
    with RunDir.read(path) as directory:
        read_review(directory, read_train_settings(directory), arguments.version)  # raises if it is no training run
        reviews, records = read_reviews(directory), list(read_records(directory))
    if not reviews:
        raise ConfigError(f"--measure: {path} has no finished review; make one: ludus review {path}")
    require_summary(records[-1] if records else None)
    arguments.command = "train"  # which made the run, and whose settings it has
    config = read_own_settings(arguments)
    with redirect_stdout(sys.stderr):
        work = ReviewMeasureWork(config, make_plan(config), arguments)
        outcome = asyncio.run(_run_measure(config, work, arguments))
    if work.measure is None:
        again = shlex.join(["ludus", "review", arguments.run, "--measure"])
        print_notice(f"{outcome}\nwhat was measured is kept; go on with: {again}")
        return 1
    if arguments.json:
        print(_describe_review(arguments, reviews[-1], work.measure))
    else:
        _print_measure(work.measure)
    return 0


async def _run_measure(config: Config, work: ReviewMeasureWork, arguments: ReviewArguments) -> str:
    async with open_work(config, work, arguments) as run:
        return (await run_to_end(run, work.work)).message


def _print_measure(measure: ReviewMeasure) -> None:
    print(measure.sentence)
    for name, share in measure.passed.items():
        print(f"  {name:<9} {'not scored' if share is None else f'{share:.1%} of the test tasks passed'}")
    if measure.scripts:
        print(f"  scripts whose checks passed in slots: {', '.join(measure.scripts)}")
    if measure.failed:
        print(f"  {measure.failed} rollouts without a score are left out")


COMMAND = Command(
    run,
    "ludus review runs/skill                                        # decide about each change, with its evidence\n"
    "ludus review runs/skill --list --json\n"
    'ludus review runs/skill --reject L4 --reason "true for one customer only" --accept-all\n'
    "ludus review runs/skill --measure                              # on the test tasks, beside initial and shipped",
    (
        RUN,
        make_argument(
            "--version",
            metavar="NAME",
            default=SHIPPED,
            help="what to review: shipped (default), working, best-on-selection, a step, or a hash",
        ),
        make_argument("--list", action="store_true", help="print the changes and what was decided, and stop"),
        make_argument("--all", action="store_true", help="also what was proposed and is not in the text"),
        make_argument("--accept", metavar="ID", action="append", default=[], help="take a change; can be repeated"),
        make_argument(
            "--reject", metavar="ID", action="append", default=[], help="put back what the initial skill says there"
        ),
        make_argument(
            "--revert", metavar="ID", action="append", default=[], help="put back what was there before this change"
        ),
        make_argument("--edit", metavar="ID", default="", help="replace the text of a change with --text"),
        make_argument("--text", metavar="TEXT", default="", help="the new text, for --edit"),
        make_argument("--accept-all", action="store_true", help="accept every change that is left"),
        make_argument("--reason", metavar="WORDS", default="", help="why; kept with the decisions"),
        make_argument("--who", metavar="NAME", default="", help="who decides; default: your user name"),
        make_argument(
            "--measure", action="store_true", help="run the reviewed skill on the test tasks of the run, and compare"
        ),
        CONFIG,
        ENGINE,
        JSON,
    ),
    ReviewArguments,
    "settings, for --measure: --run.concurrency 8 --budget.dollars 2 (list them: ludus config); the rest are the run's",
    ROLLOUTS | TRAINING | {"engine", "budget"},
)
