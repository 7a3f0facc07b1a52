"""The page of a run: complete, true to the records, and safe to open."""

import json
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tests.reflact_kit import EVIL, REPORT_SETTINGS, write_run_files

from ludus.reflact.ledger.settings import LedgerSettings
from ludus.reflact.records import Record, Step, Summary
from ludus.reflact.report import run_files as files
from ludus.reflact.report import training_page as report
from ludus.reflact.report.training_page import render_page
from ludus.reflact.train_settings import TrainSettings


class Page(HTMLParser):
    """A parsed page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.open: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag != "meta":
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)

    def count(self, tag: str, name: str = "") -> int:
        return sum(t == tag and name in (a.get("class") or "") for t, a in self.tags)


def parse_page(records: list[Record]) -> Page:
    return Page(render_page("a <run>", {"model": EVIL}, REPORT_SETTINGS, records).decode())


def test_the_report_has_the_curve_the_edits_the_differences_and_the_costs(records: list[Record]):
    shown = parse_page(records)
    text = "\n".join(shown.words)
    steps = [record for record in records if isinstance(record, Step)]
    assert not shown.open
    assert shown.count("svg", "plot") == 2, "for wide and for narrow screens"
    assert shown.count("polyline") == 2 * 3
    dots = 1 + sum(step.verdict is not None for step in steps)
    assert shown.count("circle", "dot") == 2 * dots + 2, "with those of the legend"
    assert shown.count("details", "group") == len(steps) + 2
    for step in steps:
        assert f"step {step.number} · epoch {step.epoch}" in text
    assert "+Obey RULE-" in text
    assert "applied_append" in text and "skipped_replace_target_not_found" in text
    assert "from 2 failure rollouts: train-" in text
    for words in (
        "analyst",
        "all stages",
        "No usable reply: meta",
        "The skill: initial and shipped",
        "initial, test",
        "kind-1",
    ):
        assert words in text
    summary = records[-1]
    assert isinstance(summary, Summary)
    assert [line for line in summary.best.skill.text.splitlines() if line] == [
        line for line in text.partition("\nshipped\n")[2].splitlines() if line
    ]


def test_what_models_wrote_is_text(records: list[Record]):
    shown = parse_page(records)
    assert {tag for tag, _ in shown.tags}.isdisjoint({"script", "img", "link", "iframe", "a", "b><"})
    assert EVIL in "\n".join(shown.words)
    for _, attributes in shown.tags:
        assert not {name for name in attributes if name.startswith("on") or name in ("src", "href", "style")}
    (policy,) = [a["content"] for tag, a in shown.tags if tag == "meta" and "http-equiv" in a]
    assert policy is not None and policy.startswith("default-src 'none'; style-src 'sha256-")
    assert "unsafe" not in policy


def test_steps_and_tasks_link_to_their_transcripts(records: list[Record]):
    shown = Page(render_page("run", {}, REPORT_SETTINGS, records, linked=True).decode())
    links = [attributes["href"] for tag, attributes in shown.tags if tag == "a"]
    assert all(link and link.startswith("trajectories.html#") for link in links)
    for name in ("baseline", "step%201", "end%20of%20epoch%201", "end", "step%201/train-"):
        assert any(link.startswith(f"trajectories.html#{name}") for link in links if link)


def test_the_legend_has_a_sample_of_every_line_of_the_curve(records: list[Record]):
    shown = parse_page(records)
    drawn = {a["class"] for tag, a in shown.tags if tag == "polyline"}
    assert drawn <= {a["class"] for tag, a in shown.tags if tag == "line"}
    state = records[-1].state
    assert state.best.measure is not None
    assert f"best so far ({report.format_number(state.best.measure.hard)}), behind it" in "\n".join(shown.words)


def test_the_cells_of_a_table_know_their_column_for_narrow_screens(records: list[Record]):
    shown = parse_page(records)
    assert all(attributes.get("data-name") for tag, attributes in shown.tags if tag == "td")


def test_a_report_can_be_drawn_at_any_time(records: list[Record]):
    for number in range(len(records) + 1):
        shown = parse_page(records[:number])
        assert not shown.open
    assert "Nothing is finished yet." in "\n".join(parse_page([]).words)


def test_the_numbers_of_the_report_are_those_of_the_lines(records: list[Record], tmp_path: Path):
    lines = [json.loads(line) for line in write_run_files(tmp_path / "run", records)[files.STEPS].splitlines()]
    summary = json.loads((tmp_path / "run" / files.SUMMARY).read_bytes())
    text = "\n".join(parse_page(records).words)

    def tokens(spent: list[dict[str, Any]]) -> int:
        return sum(e["usage"].get("prompt_tokens", 0) + e["usage"].get("completion_tokens", 0) for e in spent)

    tested = [entry for entry in summary["spent"] if entry["stage"] in ("test", "ship")]
    assert f"{sum(tokens(line.get('spent', [])) for line in lines) + tokens(tested):,}" in text
    for line in (line for line in lines if line.get("verdict")):
        verdict = line["verdict"]
        before, after = (report.format_number(verdict[name]) for name in ("current", "candidate"))
        assert f"{before} → {after} on {verdict['items']} tasks" in text
        assert f"{tokens(line['spent']):,} tokens" in text
    assert summary["seconds"].keys() >= {"baseline", "rollout", "evaluate", "test"}


def test_the_ledgers_page_has_the_initial_and_the_shipped_skill_side_by_side(world: SimpleNamespace):
    settings = TrainSettings(recipe="ledger", epochs=6, ledger=LedgerSettings(batch_size=6), optimizer_tries=1)
    records = world.run(settings=settings, splits=world.splits(12, 12, 6))
    page = render_page("run", {}, settings, records).decode()
    beside = page.partition('class="beside"')[2]
    assert beside.index(">initial<") < beside.index("# Skill") < beside.index(">shipped<")
    assert '<div class="added">Obey RULE-' in beside
    assert "What the text that would ship should score" in page and "by all evidence so far" in page
    unfinished = render_page("run", {}, settings, records[:-1]).decode()
    assert "initial and would ship now" in unfinished and "Obey RULE-" in unfinished.partition('class="beside"')[2]
