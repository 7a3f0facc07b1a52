"""`ludus top`: what a run does now, in the terminal. It ends with the run, or with Ctrl-C; the run goes on."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from ludus.arguments import Arguments, make_argument
from ludus.command import JSON, RUN, Command
from ludus.command.terminal import (
    format_count,
    format_duration,
    format_money,
    format_number,
    make_console,
    make_facts_table,
    make_table,
    make_text,
)
from ludus.encoding import to_json
from ludus.errors import ConfigError
from ludus.view.changes import ChangeWatch
from ludus.view.model import RolloutCard, RunOverview
from ludus.view.overview import describe_run
from ludus.view.run_folder import RunFolder

if TYPE_CHECKING:  # importing rich takes a while
    from rich.console import Group

LOOK_SECONDS, EVERY = 0.5, 4
"""How often files are looked at, and after how many looks a run is asked although they did not change."""
RECENT, EVENTS, TOOLS = 8, 5, 6


class TopArguments(Arguments):
    run: str
    once: bool


def run(arguments: TopArguments) -> int:
    path = Path(arguments.run)
    with RunFolder([path]) as folder:
        ids = list(folder.scan())
        if len(ids) != 1:
            raise ConfigError(f"{path} has {len(ids)} runs: name one of them (ludus runs {path})")
        overview = read_overview(folder, ids[0])
        if arguments.json:
            print(to_json(overview).decode())
        elif arguments.once or overview.card.state != "running" or not make_console().is_terminal:
            make_console().print(draw(overview))
        else:
            _follow(folder, ids[0])
    return 0


def read_overview(folder: RunFolder, id: str) -> RunOverview:
    """What there is to see of a run."""
    card = folder.get_card(id)
    with folder.facts.open(folder.find(id)) as facts:
        return describe_run(facts, card)


def _follow(folder: RunFolder, id: str) -> None:
    """Draw again when something has changed, until the run ends."""
    from rich.live import Live

    watch, looks = ChangeWatch(), 0
    try:
        with Live(draw(read_overview(folder, id)), console=make_console(), auto_refresh=False, screen=True) as live:
            while True:
                time.sleep(LOOK_SECONDS)
                looks += 1
                if watch.look({id: folder.find(id)}, listed=False) is None and looks % EVERY:
                    continue
                overview = read_overview(folder, id)
                live.update(draw(overview), refresh=True)
                if overview.card.state != "running":
                    break
    except KeyboardInterrupt:
        pass  # only the look at it ends
    make_console().print(draw(read_overview(folder, id)))


def draw(overview: RunOverview) -> "Group":
    """A run as a screen."""
    from rich.console import Group

    card, live = overview.card, overview.live
    facts = make_facts_table()
    for name, words in _list_facts(overview):
        facts.add_row(name, make_text(words))
    parts = [make_text(f"{card.id}  {card.kind}  {card.state}", "bold"), facts]
    if live is not None and live.activity.phases:
        table = make_table("phase", "rollouts", "longest", "who", "node")
        for each in live.activity.phases[:12]:
            who = make_text(each.who)
            table.add_row(
                make_text(each.phase), str(each.count), format_duration(each.oldest), who, make_text(each.node)
            )
        parts.append(table)
    if overview.recent:
        table = make_table("ended last", "score", "turns", "seconds", "stop")
        for row in overview.recent[:RECENT]:
            table.add_row(make_text(f"{row.task}#{row.replicate + 1}"), *_describe_row(row))
        parts.append(table)
    for event in overview.events[-EVENTS:]:
        at = time.strftime("%H:%M:%S", time.localtime(event.time))
        parts.append(make_text(f"{at}  {event.text}" + (f" ({event.who})" if event.who else ""), "dim"))
    return Group(*parts)


def _describe_row(row: RolloutCard) -> tuple[str, str, str, str]:
    score = f"no score: {row.failure}" if row.score is None else format_number(row.score)
    return score, str(row.turns), f"{row.seconds:.1f}", row.stop


def _list_facts(overview: RunOverview) -> Iterator[tuple[str, str]]:
    card, live = overview.card, overview.live
    if card.message:
        yield "message", card.message
    of = f" of {card.planned}" if card.planned else ""
    yield (
        "rollouts",
        f"{card.rollouts}{of}, {card.scored} scored" + (f", {live.activity.running} under way" if live else ""),
    )
    if card.score is not None:
        band = f" [{format_number(card.interval.low)}, {format_number(card.interval.high)}]" if card.interval else ""
        yield card.measure or "score", f"{format_number(card.score)}{band}"
    if overview.failures.lost:
        causes = ", ".join(f"{count} {cause}" for cause, count in overview.failures.causes.items())
        yield "lost", causes
    budget = f" of {format_money(card.budget_dollars)}" if card.budget_dollars else ""
    yield "spent", f"{format_money(card.dollars)}{budget}, {format_count(card.tokens)} tokens"
    rate = next((curve.points[-1].y for curve in overview.curves if curve.name == "throughput" and curve.points), None)
    if rate is not None:
        yield "throughput", f"{rate:.1f} rollouts per minute at last"
    if live is not None:
        state = "stopping" if live.stopping else "paused" if live.paused else "running"
        yield (
            "now",
            f"{state}, at most {live.concurrency} at a time, {format_duration(live.activity.quiet)} since a move",
        )
    elif overview.live_problem:
        yield "now", overview.live_problem
    if overview.tools:
        yield (
            "tools",
            ", ".join(
                f"{tool.tool} {tool.calls}" + (f" ({tool.errors} errors)" if tool.errors else "")
                for tool in overview.tools[:TOOLS]
            ),
        )


COMMAND = Command(
    run,
    "ludus top runs/first           # until the run or Ctrl-C ends it; the run goes on\n"
    "ludus top runs/first --once    # one look; --json for scripts",
    (RUN, make_argument("--once", action="store_true", help="look once and stop"), JSON),
    TopArguments,
)
