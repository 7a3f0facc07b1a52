"""The pages of `ludus view` in a real Chromium, on runs that real commands made."""

import re
import shutil
import subprocess
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.browser_kit import MODES, Look, View, look_at, needs_chromium, open_browser, serve_view
from tests.build import make_rollout, make_task
from tests.cli_kit import LUDUS
from tests.view_kit import keep_running, make_long_rollout, make_runs, write_notes, write_rollouts

from ludus.control_client import StatusRequest, ask_run
from ludus.run_events import read_events
from ludus.store import RunDir
from ludus.types import Rollout

pytestmark = needs_chromium

PAGES = {
    "runs": "/runs",
    "run": "/run/notes-b",
    "run-train": "/run/lines",
    "run-rl": "/run/letters",
    "tasks": "/run/notes-b/tasks",
    "rollouts": "/run/notes-b/rollouts?sort=-score",
    "rollout": "/run/notes-b/rollout/3",
    "rollout-failed": "/run/branches/rollout/6",
    "rollout-branches": "/run/branches/rollout/1",
    "tokens": "/run/exact/rollout/1?view=tokens&color=logprob",
    "hostile": "/run/hostile/rollout/1",
    "settings": "/run/lines/settings",
    "skill": "/run/lines/skill",
    "skill-gate": "/run/steps/skill",
    "skill-rendered": "/run/lines/skill?view=rendered",
    "skill-diff": "/run/lines/skill?view=diff",
    "skill-refused": "/run/lines/skill?view=refused",
    "rl": "/run/letters/rl",
    "compare": "/compare?run=notes-a&run=notes-b",
    "beside": "/beside?rollout=3%40notes-a&rollout=3%40notes-b",
    "environments": "/envs",
    "environment": "/env/notes.py",
    "start": "/start?command=evaluate",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("view").resolve()
    make_runs(folder)
    write_rollouts(folder / "runs/many", [make_rollout(n % 2, task=make_task(f"task-{n:05}")) for n in range(2500)])
    write_rollouts(folder / "runs/long", [make_long_rollout(700, 3_000_000)])
    return folder


@pytest.fixture(scope="module")
def view(folder: Path) -> Generator[View]:
    with serve_view(folder) as view:
        yield view


@pytest.fixture(scope="module")
def browser(folder: Path) -> Generator[Any]:
    """Opened after the runs are made: the commands that make them start a loop, and then the driver's is running."""
    with open_browser() as browser:
        yield browser


@pytest.fixture
def look(browser: Any, view: View) -> Generator[Look]:
    with look_at(browser, view) as look:
        yield look


def read_rollouts(path: Path) -> list[Rollout]:
    with RunDir.read(path) as run:
        return [rollout for _, rollout in run.read_outcomes()]


def expect(found: Any) -> Any:
    from playwright.sync_api import expect

    return expect(found)


@pytest.mark.parametrize("name", PAGES)
def test_every_page_opens_without_barriers(browser: Any, view: View, name: str):
    for mode in MODES:
        with look_at(browser, view, mode, bypass_csp=True) as look:  # axe is put in from outside
            page = look.open(PAGES[name])
            expect(page.locator("main h1")).not_to_have_text("This cannot be shown")
            expect(page.locator("tr.waiting")).to_have_count(0)
            look.keep(f"{name}-{mode}")
            assert look.find_overflow() == []
            assert look.find_barriers() == []


def test_the_content_security_policy_holds_on_every_page(look: Look):
    """Without `bypass_csp`, as users have it: a refused style or script is an error on the console."""
    for place in PAGES.values():
        look.open(place)
    assert look.problems == []


# ---- numbers ------------------------------------------------------------------------------------------------------


def test_a_run_shows_the_numbers_of_its_store(look: Look, folder: Path):
    rollouts = read_rollouts(folder / "runs/notes-b")
    means = dict[str, list[float]]()
    for rollout in rollouts:
        if rollout.score is not None:
            means.setdefault(rollout.task.id, []).append(rollout.score.value)
    mean = sum(sum(each) / len(each) for each in means.values()) / len(means)
    page = look.open("/run/notes-b")
    expect(page.get_by_label("How good is it?").locator(".big")).to_contain_text(f"{mean:.3f}")
    lost = sum(rollout.score is None for rollout in rollouts)
    assert lost
    expect(page.get_by_label("Is anything wrong?")).to_contain_text(f"{lost} rollouts without a score")
    look.open("/run/notes-b/rollouts")
    expect(page.locator(".count")).to_have_text(f"{len(rollouts)} rollouts")
    page.get_by_label("Result").select_option("passed")
    passed = sum(rollout.score is not None and rollout.score.passed for rollout in rollouts)
    expect(page.locator(".count")).to_have_text(f"{passed} rollouts")
    assert "result=passed" in page.url


def test_two_runs_are_compared_from_the_list(look: Look, folder: Path):
    page = look.open("/runs")
    page.get_by_label("Pick notes-a").check()
    page.get_by_label("Pick notes-b").check()
    page.get_by_role("button", name="Compare 2").click()
    expect(page.locator("main h1")).to_have_text("Compare 2 runs")
    pair = page.locator(".pair")
    expect(pair).to_contain_text("5 shared tasks")
    mean = {name: _mean_shared(folder, name) for name in ("notes-a", "notes-b")}
    difference = abs(mean["notes-a"] - mean["notes-b"])
    expect(pair.locator(".big")).to_contain_text(f"{difference:.3f}")
    page.locator("tr", has_text="note-2").get_by_role("link", name="both").click()
    expect(page.locator(".side")).to_have_count(2)
    expect(page.locator(".side h2 a").first).to_have_text(re.compile("notes-[ab]"))
    page.keyboard.press("n")
    expect(page.locator(".turn.current")).to_have_count(2)


def _mean_shared(folder: Path, name: str) -> float:
    """The mean over the tasks that both runs have scores for: notes-b has none for note-5."""
    tasks = dict[str, list[float]]()
    for rollout in read_rollouts(folder / "runs" / name):
        if rollout.score is not None and rollout.task.id != "note-5":
            tasks.setdefault(rollout.task.id, []).append(rollout.score.value)
    return sum(sum(each) / len(each) for each in tasks.values()) / len(tasks)


def test_tokens_are_those_of_the_record(look: Look, folder: Path):
    with RunDir.read(folder / "runs/exact") as run:
        first = next(iter(rollout for _, rollout in run.read_outcomes()))
    page = look.open(f"/run/exact/rollouts?task={first.task.id}&sort=id")
    page.get_by_role("link", name=f"{first.task.id}#{first.provenance.replicate}", exact=True).click()
    page.get_by_role("tab", name="Tokens").click()
    tokens = [turn.completion.tokens for turn in first.turns if turn.completion.tokens]
    sampled = sum(sum(each.sampled) for each in tokens)
    expect(page.locator(".tokens .t-sampled")).to_have_count(sampled)
    page.get_by_label("Colour by").select_option("logprob")
    expect(page.locator(".tokens .t-sampled")).to_have_count(0)
    page.locator(".tokens .token[class*=t-low]").first.hover()
    expect(page.locator(".tokenview .readout")).to_contain_text("logprob")
    assert "color=logprob" in page.url and "view=tokens" in page.url


# ---- walking ------------------------------------------------------------------------------------------------------


def test_keys_walk_through_rollouts_and_turns(look: Look):
    page = look.open("/run/notes-b/rollouts?result=passed&sort=id")
    first = page.locator(".rowlink").first.inner_text()
    page.keyboard.press("j")
    expect(page.locator("main h1")).to_have_text(first)
    expect(page.locator(".walk")).to_contain_text("1 of")
    page.keyboard.press("n")
    expect(page.locator("#turn-2.current, #turn-1.current")).to_have_count(1)
    before = page.locator(".turn.current").get_attribute("data-turn")
    page.keyboard.press("n")
    expect(page.locator(".turn.current")).not_to_have_attribute("data-turn", str(before))
    page.keyboard.press("j")
    expect(page.locator(".walk")).to_contain_text("2 of")
    page.keyboard.press("k")
    expect(page.locator(".walk")).to_contain_text("1 of")
    page.keyboard.press("?")
    expect(page.get_by_role("dialog")).to_contain_text("next rollout of the list")
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)
    page.keyboard.press("/")
    page.keyboard.type("I look around")
    expect(page.locator(".turn:visible")).to_have_count(1)
    page.keyboard.press("Escape")
    page.keyboard.press("u")
    expect(page.locator("main .tabs [aria-current]")).to_have_text("Rollouts")


def test_a_long_list_has_few_rows_in_the_page(look: Look):
    page = look.open("/run/many/rollouts")
    expect(page.locator(".count")).to_have_text("2,500 rollouts")
    page.locator(".longbox").evaluate("box => { box.scrollTop = box.scrollHeight }")
    expect(page.locator(".rowlink", has_text="task-02499")).to_be_visible()
    assert page.locator("table.long tbody tr").count() < 120
    page.get_by_role("button", name="Rollout", exact=True).click()
    expect(page.locator("th[aria-sort=descending]")).to_contain_text("Rollout")
    expect(page.locator(".rowlink").first).to_contain_text("task-02499")


def test_a_long_transcript_is_read_in_pages(look: Look):
    page = look.open("/run/long/rollout/1?turn=500")
    expect(page.locator("#turn-500.current")).to_be_visible()
    assert page.locator(".turn").count() <= 320
    look.open("/run/long/rollout/1")
    page.locator("#turn-1 button.more").click()
    expect(page.locator("#turn-1 .answered pre, #turn-1 .answered .code")).to_have_count(2)
    expect(page.locator("#turn-1 button.more")).to_contain_text("of 3 M characters")


def test_hostile_texts_are_inert(look: Look):
    page = look.open("/run/hostile/rollout/1")
    expect(page.locator(".turn")).to_have_count(2)
    for summary in page.locator("main details > summary").all():
        summary.click()
    assert "owned" not in page.title()
    assert (
        page.locator("main script, main iframe, main object, main [onerror], main [onload], main svg[onload]").count()
        == 0
    )
    links = page.locator("main a").evaluate_all("all => all.map(one => one.getAttribute('href'))")
    assert not [link for link in links if re.match(r"\s*(javascript|data|vbscript):", link or "", re.IGNORECASE)]
    text = page.locator("main").inner_text()
    assert "\u202e" not in text and "U+202E" in text and "\x1b" not in text
    look.open("/run/hostile/rollouts")
    expect(page.locator(".rowlink").first).to_contain_text("hostile-0<script>")


# ---- acting -------------------------------------------------------------------------------------------------------


COUNT_SHIFTS = """() => {
    window.shifted = 0;
    new PerformanceObserver((list) => {
        for (const entry of list.getEntries()) if (!entry.hadRecentInput) window.shifted += entry.value;
    }).observe({ type: "layout-shift" });
}"""


@contextmanager
def copy_run(folder: Path, name: str, copy: str) -> Iterator[Path]:
    target = folder / "runs" / copy
    shutil.copytree(folder / "runs" / name, target)
    try:
        yield target
    finally:
        shutil.rmtree(target)


def test_a_live_run_moves_is_paused_and_goes_on(browser: Any, tmp_path: Path):
    (tmp_path / "runs").mkdir()
    with keep_running(tmp_path) as process, serve_view(tmp_path) as view, look_at(browser, view) as look:
        path = tmp_path / "runs/running"
        page = look.open("/run/running")
        expect(page.locator(".titleline")).to_contain_text("running")
        page.evaluate(COUNT_SHIFTS)
        page.get_by_role("button", name="Pause").click()
        expect(page.locator(".titleline")).to_contain_text("paused")
        reply = ask_run(path, StatusRequest())
        assert reply.status is not None and reply.status.paused
        look.keep("live-paused")
        page.get_by_role("button", name=re.compile("At a time")).click()
        page.get_by_label("At most this many").fill("2")
        page.get_by_role("button", name="Set", exact=True).click()
        expect(page.get_by_role("button", name="At a time: 2")).to_be_visible()
        page.get_by_role("button", name="Resume").click()
        expect(page.get_by_role("button", name="Pause")).to_be_visible()
        (tmp_path / "go").touch()
        expect(page.locator(".titleline")).to_contain_text("finished")
        expect(page.get_by_label("How good is it?")).to_contain_text("18 scored rollouts")
        assert process.wait(120) == 0
        assert page.evaluate("window.shifted") < 0.1  # what browsers call good; people lose their place above it
        with RunDir.read(path) as run:
            said = [(event.text, event.who) for event in read_events(run) if event.kind == "control"]
        assert "pause" in said[0][0]
        assert all(who.startswith("ludus view") for _, who in said), said


def test_a_person_reviews_a_line(look: Look, folder: Path):
    with copy_run(folder, "lines", "reviewed") as path:
        page = look.open("/run/reviewed/skill")
        row = page.locator(".blame > li", has_text="RULE-1")
        row.locator("summary").click()
        expect(row.locator(".facts").first).to_contain_text("worth")
        row.get_by_label("Reason").fill("this rule ends soon")
        row.get_by_role("button", name="reject").click()
        review = page.locator(".review")
        expect(review).to_contain_text("this rule ends soon")
        review.get_by_label("Your name").fill("Ada")
        look.keep("skill-review")
        review.get_by_role("button", name=re.compile("Make a new version")).click()
        expect(page.locator(".versions")).to_contain_text("by Ada")
        assert "RULE-1" not in (path / "reviewed/SKILL.md").read_text()
        with RunDir.read(path) as run:
            assert any("review" in event.text.lower() for event in read_events(run))


def test_tags_and_notes_are_kept(look: Look, folder: Path):
    with copy_run(folder, "notes-a", "tagged"):
        page = look.open("/run/tagged")
        page.get_by_role("button", name="Tags and note").click()
        page.get_by_label("Tags, with commas between them").fill("paper, baseline")
        page.get_by_label("Note", exact=True).fill("the run of the paper")
        page.get_by_role("button", name="Save").click()
        expect(page.locator(".titleline")).to_contain_text("baseline")
        look.open("/runs?q=tagged")
        expect(page.locator("table.long tbody")).to_contain_text("paper")


def test_a_form_shows_its_command_and_starts_it(browser: Any, tmp_path: Path):
    (tmp_path / "runs").mkdir()
    write_notes(tmp_path)
    with serve_view(tmp_path) as view, look_at(browser, view) as look:
        page = look.open("/start?command=evaluate")
        expect(page.locator(".commandcard .warning")).to_be_visible()
        page.get_by_label(re.compile("environment")).first.fill("notes.py")
        page.get_by_label("run directory").fill("runs/started")
        page.locator("details", has_text=re.compile(r"^model")).locator("summary").click()
        page.get_by_label("model.type").fill("scripted")
        page.get_by_label("model.script").fill("note_models.py:good")
        line = page.locator("#command-line")
        expect(line).to_contain_text("ludus evaluate notes.py")
        expect(line).to_contain_text("--model.script note_models.py:good")
        page.get_by_role("button", name="Start", exact=True).click()
        expect(page.get_by_role("status").filter(has_text="exit code")).to_contain_text("exit code 0")
        page.get_by_role("link", name=re.compile("Open")).click()
        expect(page.locator(".titleline")).to_contain_text("finished")
        assert len(read_rollouts(tmp_path / "runs/started")) == 6


def test_read_only_pages_say_so_and_offer_nothing(browser: Any, folder: Path):
    with serve_view(folder, "--read-only") as view, look_at(browser, view) as look:
        page = look.open("/run/notes-a")
        expect(page.locator("#mode")).to_have_text("read-only")
        expect(page.locator("main .actions")).to_contain_text("Looking only")
        assert page.get_by_role("button", name="Tags and note").count() == 0
        look.open("/start")
        expect(page.locator("main")).to_contain_text("Nothing can be started")
        look.open("/run/lines/skill")
        assert page.get_by_role("button", name="reject").count() == 0


def test_an_unknown_page_and_run_are_explained(browser: Any, view: View):
    context = browser.new_context()
    page = context.new_page()
    page.goto(view.address)
    page.wait_for_selector("main h1")
    for place, words in {"/nowhere": "There is no page", "/run/none": "none"}.items():
        page.evaluate("place => { location.hash = place }", place)
        expect(page.get_by_role("alert")).to_contain_text(words)
    context.close()


def test_the_theme_is_chosen_and_kept(look: Look):
    page = look.open("/runs")
    page.get_by_role("button", name="Theme").click()
    page.get_by_role("button", name="Theme").click()
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
    page.reload()
    page.wait_for_selector("main h1")
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"


# ---- a report -----------------------------------------------------------------------------------------------------


def test_a_report_is_the_same_pages_in_one_file(browser: Any, folder: Path, tmp_path: Path):
    file = tmp_path / "lines.html"
    subprocess.run([*LUDUS, "report", "runs/lines", "-o", str(file)], cwd=folder, check=True, capture_output=True)
    asked: list[str] = []
    with look_at(browser, View("", file.as_uri(), tmp_path)) as look:
        look.page.on("request", lambda request: asked.append(request.url))
        page = look.page
        expect(page.locator("main h1")).to_have_text("lines")
        expect(page.locator("#connection")).to_have_text("report")
        assert page.get_by_role("button", name="Tags and note").count() == 0
        for place in ("/run/lines/tasks", "/run/lines/skill", "/run/lines/skill?view=diff", "/run/lines/settings"):
            look.open(place)
            expect(page.locator("main h1")).to_have_text("lines")
        look.open("/run/lines/rollouts?result=passed")
        passed = sum(
            rollout.score is not None and rollout.score.passed for rollout in read_rollouts(folder / "runs/lines")
        )
        expect(page.locator(".count")).to_have_text(f"{passed} rollouts")
        page.locator(".rowlink").first.click()
        expect(page.locator(".turn").first).to_be_visible()
    assert [url for url in asked if not url.startswith(("file:", "data:"))] == []
