"""The report: whole, the same replies as the server, bounded, and nothing in it runs but its own script."""

import base64
import hashlib
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from tests.build import make_rollout, make_task, make_turn
from tests.export_kit import PICTURE, PNG, make_seen
from tests.view_kit import make_hostile_rollout, make_odd, make_training, write_rollouts

from ludus.errors import ConfigError
from ludus.store import RunDir
from ludus.types import StopReason
from ludus.view.env_pages import list_environment_tasks, list_environments
from ludus.view.paging import Parameters
from ludus.view.report import join_modules, write_report
from ludus.view.run_folder import RunFolder


class PageReader(HTMLParser):
    """The elements of a page, and the texts of scripts and styles."""

    def __init__(self) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: dict[str, str] = {}
        self._open = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self._open = f"{tag} {dict(attrs).get('id') or ''}".strip() if tag in ("script", "style") else ""

    def handle_data(self, data: str) -> None:
        if self._open:
            self.texts[self._open] = self.texts.get(self._open, "") + data

    def handle_endtag(self, tag: str) -> None:
        self._open = ""


def read(path: Path) -> tuple[PageReader, dict[str, Any]]:
    reader = PageReader()
    reader.feed(path.read_text("utf-8"))
    return reader, json.loads(reader.texts["script snapshot"])


def test_a_report_is_one_file_that_runs_only_its_own_script(tmp_path: Path):
    run = write_rollouts(tmp_path / "hostile", [make_hostile_rollout(n) for n in range(2)])
    reader, snapshot = read(write_report(run, tmp_path / "a.html"))
    assert {tag for tag, _ in reader.elements} <= {
        *(
            "html",
            "head",
            "meta",
            "title",
            "style",
            "body",
            "a",
            "header",
            "nav",
            "span",
            "main",
            "noscript",
            "div",
            "script",
        )
    }
    for tag, attributes in reader.elements:
        assert "src" not in attributes and not [name for name in attributes if name.startswith("on")]
        assert tag != "a" or (attributes["href"] or "").startswith("#")
    (policy,) = [a["content"] or "" for t, a in reader.elements if a.get("http-equiv") == "Content-Security-Policy"]
    assert "default-src 'none'" in policy and "unsafe" not in policy
    for kind, text in (("script-src", reader.texts["script"]), ("style-src", reader.texts["style"])):
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"{kind} 'sha256-{digest}'" in policy
    assert snapshot["/api/session"]["static"] and snapshot["/api/session"]["single"] == "hostile"
    assert snapshot["/api/runs/hostile/rollouts"]["total"] == 2
    assert "/api/runs/hostile/rollouts/2" in snapshot


def test_a_training_run_has_its_skill_in_the_report(tmp_path: Path):
    make_training(tmp_path)
    made = tmp_path / "runs" / "lines" / "report.html"
    assert made.exists(), "it is written when the run ends"
    _, snapshot = read(made)
    listed = snapshot["/api/runs/lines/skills"]
    assert not listed["can_review"]
    for version in listed["versions"]:
        assert snapshot[f"/api/runs/lines/skills/{version['hash']}"]["text"] is not None
        assert f"/api/runs/lines/skills/{version['hash']}/blame" in snapshot
    assert f"/api/runs/lines/skills/diff?left={listed['initial']}&right={listed['shipped']}" in snapshot
    overview = snapshot["/api/runs/lines"]
    assert overview["card"]["state"] == "finished" and overview["warning"] == ""


def test_what_does_not_fit_is_left_out_and_said(tmp_path: Path):
    words = "word " * 20_000
    rollouts = [
        make_rollout(1.0, make_turn(words, stop=StopReason.FINISHED), task=make_task(f"t{n}")) for n in range(40)
    ]
    run = write_rollouts(tmp_path / "large", rollouts)
    made = write_report(run, tmp_path / "a.html", 200_000)
    _, snapshot = read(made)
    held = [path for path in snapshot if re.fullmatch(r"/api/runs/large/rollouts/\d+", path)]
    assert 0 < len(held) < 40 and made.stat().st_size < 1_500_000
    assert f"holds {len(held)} of 40 transcripts" in snapshot["/api/runs/large"]["warning"]
    assert snapshot["/api/runs/large/rollouts"]["total"] == 40


def test_the_answer_of_a_task_is_not_in_the_report(tmp_path: Path):
    run = write_rollouts(tmp_path / "run", [make_rollout(1.0, task=make_task("t", answer="THE-ANSWER"))])
    assert b"THE-ANSWER" not in write_report(run, tmp_path / "a.html").read_bytes()


def test_pictures_are_in_the_file(tmp_path: Path):
    run = write_rollouts(tmp_path / "seen", make_seen())
    (run / "images").mkdir(exist_ok=True)
    (run / PICTURE).write_bytes(PNG)
    _, snapshot = read(write_report(run, tmp_path / "a.html"))
    opening = snapshot["/api/runs/seen/rollouts/1"]["opening"][-1]
    shown, web = opening["images"]
    assert shown["src"] == f"data:image/png;base64,{base64.b64encode(PNG).decode()}"
    assert web["src"] == "" and web["note"].startswith("https://example.com/")


def test_only_a_run_has_a_report(tmp_path: Path, ludus: Any):
    make_odd(tmp_path)
    with pytest.raises(ConfigError, match="is not a run"):
        write_report(tmp_path / "runs", tmp_path / "a.html")
    done = ludus("report", str(tmp_path / "runs" / "damaged"))
    assert done.code != 0 and "damaged" in done.err
    done = ludus("report", str(tmp_path / "runs" / "branches"), "-o", str(tmp_path / "b.html"), "--json")
    assert json.loads(done.out)["bytes"] == (tmp_path / "b.html").stat().st_size


def test_modules_are_joined_after_those_that_they_import(tmp_path: Path):
    (tmp_path / "main.js").write_text('import { a } from "./x.js";\nimport { b } from "./y.js";\na(b);\n')
    (tmp_path / "x.js").write_text('import { b } from "./y.js";\nexport function a(x) {}\n')
    (tmp_path / "y.js").write_text("export const b = 1;\n")
    assert join_modules(tmp_path) == "// y.js\nconst b = 1;\n\n// x.js\nfunction a(x) {}\n\n// main.js\na(b);\n"
    (tmp_path / "y.js").write_text('import { a } from "./x.js";\nexport const b = 1;\n')
    with pytest.raises(ConfigError, match="circle"):
        join_modules(tmp_path)


def test_environments_are_sums_over_runs(tmp_path: Path):
    for name, score in (("a", 1.0), ("b", 0.0)):
        write_rollouts(tmp_path / "runs" / name, [make_rollout(score, task=make_task(f"t{n}")) for n in range(3)])
    with RunFolder([tmp_path / "runs"]) as folder:
        folder.list_runs(wait=600)
        (card,) = list_environments(folder, Parameters()).rows
        assert (card.name, len(card.runs), card.tasks, card.scored, card.passed) == ("made", 2, 3, 6, 3)
        page = list_environment_tasks(folder, "made", Parameters({"limit": ["2"]}))
        assert page.total == 3 and page.rows[0].runs == 2 and page.rows[0].flaky and page.rows[0].rate == 0.5


def test_top_prints_a_run(tmp_path: Path, ludus: Any):
    write_rollouts(tmp_path / "run", [make_rollout(1.0)])
    done = ludus("top", str(tmp_path / "run"))
    assert done.code == 0 and "evaluate" in done.out and "1 scored" in done.out
    assert json.loads(ludus("top", str(tmp_path / "run"), "--json").out)["card"]["rollouts"] == 1
    with RunDir.read(tmp_path / "run") as run:
        assert run.measure_scores()[0] == 1
