"""The report and the other files of a run: complete, equal for equal runs, and safe to open."""

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from ludus.reflact.records import Baseline, EpochEnd, Record, Step, Summary
from ludus.reflact.report import run_files as files
from ludus.reflact.report import training_page as report
from ludus.reflact.report.html_tags import Html, el, join_html, make_table
from ludus.reflact.report.run_files import RunRecorder
from ludus.reflact.report.score_curve import Curve, draw_curve, make_curve
from ludus.reflact.report.training_page import render_page
from ludus.reflact.train_settings import SlowUpdate, TrainSettings
from ludus.reflact.training_run import Resources
from ludus.skill import parse_file
from ludus.store import RunDir

SETTINGS = TrainSettings(
    epochs=2, batch_size=3, minibatch_size=2, edit_budget=2, min_edit_budget=1, slow=SlowUpdate(samples=3)
)
EVIL = "<script>alert(1)</script><img src=http://example.org/x onerror=y>"


def replies(world: SimpleNamespace, messages: Any) -> Any:
    """Helps, misplaces an edit, and writes markup into everything it can."""
    reply = world.optimizer(messages)
    if world.role(messages).startswith("analyst"):
        reply["items"] = [*reply["items"][:1], world.edit(EVIL, "replace", target="no such text")]
        reply["reasoning"] = f"because {EVIL}"
        reply["patterns"][0]["name"] = EVIL
    if world.role(messages) == "slow":
        reply["guidance"] = f"Keep to it. {EVIL}"
    return reply if world.role(messages) != "meta" else EVIL


@pytest.fixture
def records(world: SimpleNamespace) -> list[Record]:
    return world.run(settings=SETTINGS, optimizer=world.optimizer_model(lambda messages: replies(world, messages)))


class Page(HTMLParser):
    """What a browser would make of it."""

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


def page(records: list[Record]) -> Page:
    return Page(render_page("a <run>", {"model": EVIL}, SETTINGS, records).decode())


def test_the_report_has_the_curve_the_edits_the_differences_and_the_costs(records: list[Record]):
    shown = page(records)
    text = "\n".join(shown.words)
    steps = [record for record in records if isinstance(record, Step)]
    assert not shown.open
    assert shown.count("polyline") == 3
    assert shown.count("circle", "dot") == 1 + sum(step.verdict is not None for step in steps)
    assert shown.count("details", "group") == len(steps) + 2
    for step in steps:
        assert f"step {step.number} · epoch {step.epoch}" in text
    assert "+Obey RULE-" in text
    assert "applied_append" in text and "skipped_replace_target_not_found" in text
    assert "from 2 failure rollouts: train-" in text
    for words in ("analyst", "all stages", "No usable reply: meta", "The best skill", "initial, test", "kind-1"):
        assert words in text
    summary = records[-1]
    assert isinstance(summary, Summary)
    assert summary.best.skill.text in text


def test_what_models_wrote_is_text(records: list[Record]):
    shown = page(records)
    assert {tag for tag, _ in shown.tags}.isdisjoint({"script", "img", "link", "iframe", "a", "b><"})
    assert EVIL in "\n".join(shown.words)
    for _, attributes in shown.tags:
        assert not {name for name in attributes if name.startswith("on") or name in ("src", "href", "style")}
    (policy,) = [a["content"] for tag, a in shown.tags if tag == "meta" and "http-equiv" in a]
    assert policy is not None and policy.startswith("default-src 'none'; style-src 'sha256-")
    assert "unsafe" not in policy


def test_a_report_can_be_drawn_at_any_time(records: list[Record]):
    for number in range(len(records) + 1):
        shown = page(records[:number])
        assert not shown.open
    assert "Nothing is finished yet." in "\n".join(page([]).words)


def test_the_curve_follows_the_records(records: list[Record]):
    data = make_curve(records, SETTINGS.gate)
    steps = [record for record in records if isinstance(record, Step)]
    assert [step for step, _ in data.current] == list(range(len(steps) + 1))
    assert [value for _, value in data.best] == sorted(value for _, value in data.best)
    assert data.epochs == (2, 4)
    assert [dot.step for dot in data.dots] == [step.number for step in steps if step.verdict]
    accepted = [step.number for step in steps if step.verdict and step.verdict.decision.accepted]
    assert [dot.step for dot in data.dots if dot.accepted] == accepted != []


def test_a_drawing_stays_within_its_frame():
    data = Curve(((0, -0.5), (1, 1.5)), ((0, 1.5),), ((1, 0.2),), (), (), 1)
    numbers = [
        float(n) for points in re.findall(r'points="([^"]*)"', draw_curve(data)) for n in re.split("[ ,]", points)
    ]
    assert numbers and all(0 <= n <= 1100 for n in numbers)
    assert max(numbers[1::2]) <= 300


def test_markup_is_made_of_elements_only():
    assert el("p", "x", "a < b", el("b", "", "&")) == '<p class="x">a &lt; b<b>&amp;</b></p>'
    assert el("line", "", x1=1.5, text_anchor='"') == '<line x1="1.5" text-anchor="&quot;"></line>'
    assert join_html([Html("<i>"), "<i>"]) == "<i>&lt;i&gt;"
    assert make_table(("a",), []) == ""


# ---- files --------------------------------------------------------------------------------------------------------


def recorded(path: Path, records: list[Record]) -> dict[str, bytes]:
    with RunDir.open(path, {}, resume=True) as run:
        recorder = RunRecorder(run, SETTINGS, {})
        for record in records:
            recorder.add(record)
        recorder.write_report()
    return {name: (path / name).read_bytes() for name in (files.STEPS, files.BEST, files.FINAL, files.REPORT)}


def test_files_are_written_once_however_often_a_run_is_resumed(records: list[Record], tmp_path: Path):
    whole = recorded(tmp_path / "run", records)
    assert recorded(tmp_path / "run", records) == whole
    for cut in (1, 3):
        recorded(tmp_path / str(cut), records[:cut])
        assert recorded(tmp_path / str(cut), records) == whole | {files.REPORT: _named(whole, str(cut))}


def _named(whole: dict[str, bytes], name: str) -> bytes:
    return (
        whole[files.REPORT]
        .replace(b"<title>run<", f"<title>{name}<".encode())
        .replace(b"<h1>run<", f"<h1>{name}<".encode())
    )


def test_a_line_that_does_not_belong_is_replaced_with_what_follows(records: list[Record], tmp_path: Path):
    whole = recorded(tmp_path / "run", records)[files.STEPS]
    lines = whole.splitlines(keepends=True)
    (tmp_path / "run" / files.STEPS).write_bytes(b"".join([lines[0], b'{"record":"step"}\n', *lines[2:]]) + b"torn")
    assert recorded(tmp_path / "run", records)[files.STEPS] == whole


def test_lines_say_what_was_decided_and_no_times(records: list[Record], tmp_path: Path):
    lines = [json.loads(line) for line in recorded(tmp_path / "run", records)[files.STEPS].splitlines()]
    assert [line["record"] for line in lines] == ["baseline", "step", "step", "epoch", "step", "step", "epoch"]
    for line, record in zip(lines, records, strict=False):
        assert "seconds" not in line
        assert line["state"]["current"]["skill"] == record.state.current.skill.hash
    retimed = [msgspec.structs.replace(record, seconds={"x": 1.0}) for record in records]
    assert recorded(tmp_path / "other", retimed)[files.STEPS] == (tmp_path / "run" / files.STEPS).read_bytes()


def test_the_numbers_of_the_report_are_those_of_the_lines(records: list[Record], tmp_path: Path):
    lines = [json.loads(line) for line in recorded(tmp_path / "run", records)[files.STEPS].splitlines()]
    summary = json.loads((tmp_path / "run" / files.SUMMARY).read_bytes())
    text = "\n".join(page(records).words)

    def tokens(spent: list[dict[str, Any]]) -> int:
        return sum(e["usage"].get("prompt_tokens", 0) + e["usage"].get("completion_tokens", 0) for e in spent)

    tested = [entry for entry in summary["spent"] if entry["stage"] in ("test", "validate")]
    assert f"{sum(tokens(line.get('spent', [])) for line in lines) + tokens(tested):,}" in text
    for line in (line for line in lines if line.get("verdict")):
        verdict = line["verdict"]
        before, after = (report.format_number(verdict[name]) for name in ("current", "candidate"))
        assert f"{before} → {after} on {verdict['items']} tasks" in text
        assert f"{tokens(line['spent']):,} tokens" in text
    assert summary["seconds"].keys() >= {"baseline", "rollout", "evaluate", "test"}


def test_skills_of_a_resumed_run_do_not_go_back(world: SimpleNamespace, tmp_path: Path):
    """While earlier records are yielded again, the files keep what the run had come to."""
    with RunDir.open(tmp_path / "run", {}) as run:
        whole = world.run(settings=SETTINGS, resources=Resources(store=run))
    best = whole[-1].state.best.skill.text
    (tmp_path / "run" / "best").mkdir()
    (tmp_path / "run" / files.BEST).write_text(best)
    with RunDir.open(tmp_path / "run", {}, resume=True) as run:
        recorder = RunRecorder(run, SETTINGS, {})
        assert recorder.known == len(whole)
        for record in whole:
            recorder.add(record)
            assert parse_file((tmp_path / "run" / files.BEST).read_text()).text == best
    assert isinstance(whole[0], Baseline) and isinstance(whole[3], EpochEnd)
    assert best != whole[0].state.best.skill.text
