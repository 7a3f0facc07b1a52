"""One HTML page about an RL run: the curve of rewards, and a table of its steps. It has the style of the page about the
training of a skill, and makes no network requests."""

from collections.abc import Mapping, Sequence

from ludus.reflact.report.html_tags import Html, el, make_table
from ludus.reflact.report.score_curve import Curve, Dot, draw_curve, draw_legend
from ludus.reflact.report.training_page import fill_template, format_duration, render_tile
from ludus.rl.records import STEP_COLUMNS, RlStep
from ludus.rl.rl_tables import format_optional

_ROWS = 200
"""The number of steps in the table."""


def render_rl_page(title: str, facts: Mapping[str, str], records: Sequence[RlStep]) -> bytes:
    """The page of a run, which may still be going on."""
    return fill_template(title, facts, list(_render_tiles(records)), list(_render_body(records)))


def make_reward_curve(records: Sequence[RlStep]) -> Curve:
    """The rewards as the line of training, and the evaluations as dots with their intervals."""
    held = [(r.step, r.held_out) for r in records if r.held_out is not None]
    return Curve(
        current=tuple((step, score.mean) for step, score in held if score.mean is not None),
        best=(),
        train=tuple((r.step, r.reward) for r in records if r.reward is not None),
        dots=tuple(
            Dot(step, score.mean, score.interval, score.split, True) for step, score in held if score.mean is not None
        ),
        epochs=(),
        steps=max([1, *(r.step for r in records)]),
    )


def _render_tiles(records: Sequence[RlStep]) -> "list[Html]":
    updates = [record for record in records if record.step]
    held = [record.held_out for record in records if record.held_out is not None]
    tiles = [render_tile("steps", str(len(updates)), "")]
    if updates:
        first, last = updates[0].reward, updates[-1].reward
        tiles.append(render_tile("reward", format_optional(last), f"at first {format_optional(first)}"))
    if held:
        note = f"at first {format_optional(held[0].mean)}"
        tiles.append(render_tile(f"held out: {held[-1].split}", format_optional(held[-1].mean), note))
    tiles.append(render_tile("rollouts", f"{sum(record.rollouts for record in updates):,}", ""))
    tiles.append(render_tile("time", format_duration(sum(r.seconds.get("whole", 0.0) for r in records)), ""))
    return tiles


def _render_body(records: Sequence[RlStep]) -> "list[Html]":
    legend = draw_legend({"train": "mean reward of a step", "current": "held-out tasks", "whisker": "95 % interval"})
    head = ("step", "version", *(column.name for column in STEP_COLUMNS))
    rows = [_make_row(record) for record in records[-_ROWS:]]
    return [
        el("h2", "", "Reward by step"),
        draw_curve(make_reward_curve(records)),
        legend,
        el("h2", "", "Steps"),
        el("div", "card", make_table(head, rows)),
    ]


def _make_row(record: RlStep) -> tuple[str, ...]:
    return (str(record.step), str(record.version), *(column.format(record) for column in STEP_COLUMNS))
