"""The lines of a run in its report."""

from html.parser import HTMLParser

from msgspec.structs import replace
from tests.ledger_kit import make_line, make_situation
from tests.reflact_kit import EVIL

from ludus.reflact.report.line_cards import list_places, render_lines
from ludus.reflact.report.line_histories import LineEvent, LineHistory, RolloutPlace

HISTORY = LineHistory(
    line=make_line("L7", EVIL, text=EVIL),
    situation=make_situation(EVIL, ["t1"], 4, 3),
    working=True,
    assessment=None,
    evidence_for=(RolloutPlace(3, "t1"), RolloutPlace(4, "t/2")),
    evidence_against=(),
    suspected=(RolloutPlace(5, EVIL),),
    rollouts=9,
    passed=6,
    events=(LineEvent(2, "new"), LineEvent(6, "retired", EVIL)),
)


class Page(HTMLParser):
    """A parsed page: its tags, its links and its words."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.links: list[str] = []
        self.words = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.links += [value or "" for name, value in attrs if name == "href"]

    def handle_data(self, data: str) -> None:
        self.words += data


def test_a_card_has_the_line_its_evidence_as_links_and_its_history():
    page = Page("".join(render_lines([HISTORY])))
    for words in (
        "L7",
        "working",
        "2 for, 0 against, 1 suspicions",
        "6 of 9 rollouts with it passed",
        "step 2: proposed",
    ):
        assert words in page.words
    assert "came back in 3 of 4 rollouts" in page.words and "none" in page.words
    assert page.links[:2] == ["trajectories.html#step%203/t1", "trajectories.html#step%204/t%2F2"]


def test_what_models_wrote_is_text():
    page = Page("".join(render_lines([HISTORY])))
    assert page.tags.isdisjoint({"script", "img"}) and EVIL in page.words
    assert all(link.startswith("trajectories.html#") for link in page.links)


def test_a_deletion_shows_what_it_deletes_and_long_lists_are_cut():
    line = replace(HISTORY.line, edit=replace(HISTORY.line.edit, op="delete", content="", target="Old rule."))
    assert "(delete) Old rule." in Page("".join(render_lines([replace(HISTORY, line=line)]))).words
    assert "and 10 more" in Page(list_places([RolloutPlace(1, f"t{n}") for n in range(50)])).words
