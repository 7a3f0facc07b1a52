"""What a person decides about the changes of a training run."""

import json
import os
import signal
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.cli_kit import is_killed

from ludus.errors import ConfigError, StoreError
from ludus.reflact.ledger.settings import LedgerSettings
from ludus.reflact.records import Record
from ludus.reflact.review import (
    REVIEW_FILE,
    REVIEWED,
    OpenReview,
    ReviewAction,
    ReviewDecision,
    apply_decisions,
    open_review,
    read_review,
    read_reviews,
)
from ludus.reflact.review_changes import list_changes, trace_pieces
from ludus.reflact.train_settings import Appendix, TrainSettings
from ludus.run_events import read_events
from ludus.run_info import keep_info
from ludus.skill import parse_file
from ludus.store import RunDir

LEDGER = TrainSettings(recipe="ledger", epochs=2)


def decide(change: str, action: ReviewAction, text: str = "") -> ReviewDecision:
    return ReviewDecision(change=change, action=action, reason="as the test wants", text=text)


def train(world: SimpleNamespace, settings: TrainSettings, path: Path | None = None) -> list[Record]:
    """Train in the small world; with a path, in a run directory."""
    if path is None:
        return world.run(settings=settings)
    with RunDir.open(path, {"train": {}}) as directory, keep_info(directory, "train"):
        return world.run(settings=settings, store=directory)


# ---- pieces -------------------------------------------------------------------------------------------------------

TEXTS = st.lists(st.sampled_from(["a", "b", "c", "", "# d", "<!-- e"]), max_size=8).map("\n".join)


@given(TEXTS, st.lists(TEXTS, min_size=1, max_size=5))
def test_pieces_are_exactly_both_texts(initial: str, way: list[str]):
    pieces = trace_pieces(initial, [(f"S{number}", text) for number, text in enumerate(way)])
    assert "\n".join(line for piece in pieces for line in piece.current) == way[-1]
    assert "\n".join(line for piece in pieces for line in piece.initial) == initial
    assert all(piece.change or piece.current == piece.initial for piece in pieces)


def test_a_line_that_was_rewritten_twice_can_go_back_by_one_or_to_the_start():
    way: list[tuple[str, str | None]] = [("S1", "top\none\nend\n"), ("S2", "top\ntwo\nend\n")]
    (piece,) = [piece for piece in trace_pieces("top\nzero\nend\n", way) if piece.change]
    assert (piece.change, piece.current, piece.previous, piece.initial) == ("S2", ("two",), ("one",), ("zero",))


# ---- changes of runs ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("appendix", [False, True])
@pytest.mark.parametrize("mode", ["patch", "rewrite_from_suggestions", "full_rewrite_minibatch"])
def test_every_version_of_every_mode_can_be_taken_and_put_back(world: SimpleNamespace, mode: str, appendix: bool):
    settings = msgspec.structs.replace(world.SETTINGS, update_mode=mode, appendix=Appendix(enabled=appendix), epochs=2)
    records = world.run(settings=settings)
    for version in ("shipped", "working", "best-on-selection", "1"):
        listed = list_changes(records, settings, version)
        assert apply_decisions(listed, []) == listed.skill
        ids = [change.id for change in listed.included]
        assert len(set(ids)) == len(ids)
        assert apply_decisions(listed, [decide(id, "reject") for id in ids]) == listed.initial
        assert apply_decisions(listed, [decide(id, "accept") for id in ids]) == listed.skill


def test_an_item_of_a_step_has_its_evidence(world: SimpleNamespace):
    settings = msgspec.structs.replace(world.SETTINGS, epochs=1)
    listed = list_changes(world.run(settings=settings), settings)
    first = listed.included[0]
    assert first.id.startswith("S1.") and first.op == "add" and first.text.startswith("Obey RULE-")
    assert first.line == listed.skill.text.split("\n").index(first.text) + 1
    found = first.evidence
    assert found.source == "failure" and found.learned_from and found.step == 1 and found.support
    assert found.difference is not None and found.interval is not None and found.decision == "accept_new_best"
    assert first.tokens > 0


def test_one_item_is_rejected_and_another_edited(world: SimpleNamespace):
    settings = msgspec.structs.replace(world.SETTINGS, epochs=1)
    listed = list_changes(world.run(settings=settings), settings)
    one, two = listed.included[:2]
    skill = apply_decisions(listed, [decide(one.id, "reject"), decide(two.id, "edit", f"{two.text} Always.\n")])
    assert one.text not in skill.text and f"{two.text} Always." in skill.text
    assert skill.text.startswith("# Skill\n") and skill.text.endswith("\n")


def test_lines_of_a_ledger_are_changes_of_their_own(world: SimpleNamespace):
    records = train(world, LEDGER)
    listed = list_changes(records, LEDGER, "working")
    included = listed.included
    assert included and all(change.id.startswith("L") for change in included)
    line = included[0]
    assert line.evidence.situation.endswith("is missing") and line.evidence.alone
    assert line.evidence.evidence_for and line.evidence.interval is not None
    less = apply_decisions(listed, [decide(line.id, "reject")])
    assert line.text not in less.text and all(other.text in less.text for other in included[1:])
    assert apply_decisions(listed, [decide(each.id, "reject") for each in included]) == listed.initial


def test_a_passage_that_was_given_up_is_a_change_with_its_evidence(world: SimpleNamespace):
    settings = msgspec.structs.replace(LEDGER, epochs=8, ledger=LedgerSettings(batch_size=6), minibatch_size=6)
    text = f"# Skill\n\n- {world.HARM}\n- Be kind.\n"
    records = world.run(settings=settings, policy=world.policy(text))
    listed = list_changes(records, settings, "working")
    assert world.HARM not in listed.skill.text and "Be kind." in listed.skill.text
    change = listed.get("P1")
    assert change.included and (change.op, change.before) == ("remove", f"- {world.HARM}")
    assert change.evidence.passage and change.evidence.rollouts and not change.evidence.situation
    assert "rest" not in [each.id for each in listed.changes]
    assert "P2" not in [each.id for each in listed.changes], "it is in the text as it was: nothing to decide"
    back = apply_decisions(listed, [decide("P1", "reject")])
    assert world.HARM in back.text and apply_decisions(listed, [decide("P1", "accept")]) == listed.skill
    everything = [decide(each.id, "reject") for each in listed.included]
    assert apply_decisions(listed, everything) == listed.initial


def test_what_was_refused_is_listed_and_can_be_added(world: SimpleNamespace):
    settings = msgspec.structs.replace(world.SETTINGS, edit_budget=1, epochs=1)
    listed = list_changes(world.run(settings=settings), settings, "initial")
    offered = [change for change in listed.changes if not change.included]
    assert not listed.included and offered and all(change.why for change in offered)
    skill = apply_decisions(listed, [decide(offered[0].id, "accept")])
    assert skill.text == f"# Skill\n\n{offered[0].text}\n"
    with pytest.raises(ConfigError, match="nothing to revert"):
        apply_decisions(listed, [decide(offered[0].id, "revert")])


def test_guidance_is_one_change_with_its_markers(world: SimpleNamespace):
    records = world.run()
    listed = list_changes(records, world.SETTINGS, "slow_update_epoch_02")
    (guidance,) = [change for change in listed.included if change.id.startswith("E")]
    assert guidance.text.startswith("<!-- SLOW_UPDATE_START -->") and guidance.text.endswith("<!-- SLOW_UPDATE_END -->")
    assert "SLOW_UPDATE" not in apply_decisions(listed, [decide(guidance.id, "reject")]).text


@pytest.mark.parametrize(
    ("decision", "words"),
    [
        (ReviewDecision(change="S1.1", action="reject"), "give a reason to reject it"),
        (decide("S1.1", "edit", " \n"), "the new text is empty"),
        (decide("S1.1", "reject", "text"), "a text is for the action edit"),
        (decide("S1.11", "reject"), "has no change S1.11; did you mean S1.1"),
    ],
)
def test_a_decision_that_cannot_be_made_is_refused_by_name(
    world: SimpleNamespace, decision: ReviewDecision, words: str
):
    listed = list_changes(world.run(), world.SETTINGS, "working")
    with pytest.raises(ConfigError, match=words):
        apply_decisions(listed, [decision])


def test_a_version_is_found_by_name_step_and_hash(world: SimpleNamespace):
    records = world.run()
    by_step = list_changes(records, world.SETTINGS, "1")
    assert by_step.version == "step_0001"
    assert list_changes(records, world.SETTINGS, by_step.skill.hash[:8]).skill == by_step.skill
    with pytest.raises(ConfigError, match=r"--version 99: this run has no such version; it has initial"):
        list_changes(records, world.SETTINGS, "99")
    with pytest.raises(ConfigError, match="nothing is finished"):
        list_changes([], world.SETTINGS)


# ---- the record ---------------------------------------------------------------------------------------------------


def test_a_review_is_a_new_version_with_its_record(world: SimpleNamespace, tmp_path: Path):
    path = tmp_path / "run"
    train(world, world.SETTINGS, path)
    with open_review(path, world.SETTINGS) as review:
        one, *rest = review.state.undecided
        for change in rest:
            review.decide(decide(change.id, "accept"))
        review.decide(decide(one.id, "reject"))
        done = review.finish("ada")
        shipped = review.state.listed.skill
    assert done.number == 1 and done.parent == shipped.hash and done.chosen_by == "person" and done.who == "ada"
    assert one.text not in done.skill.text and not done.undecided
    assert parse_file((path / REVIEWED).read_text()) == done.skill
    assert json.loads((path / REVIEW_FILE).read_text())["decisions"][0]["reason"] == "as the test wants"
    with RunDir.read(path) as directory:
        (event,) = [event for event in read_events(directory) if event.kind == "review"]
        assert event.who == "ada" and event.facts["skill"] == done.skill.hash and "1 rejected" in event.text
        assert read_reviews(directory) == (done,)
        assert read_review(directory, world.SETTINGS).undecided == ()


def test_a_review_goes_on_later_and_a_later_decision_counts(world: SimpleNamespace, tmp_path: Path):
    path = tmp_path / "run"
    train(world, world.SETTINGS, path)
    with open_review(path, world.SETTINGS) as review:
        first = review.state.listed.included[0]
        review.decide(decide(first.id, "reject"))
    with open_review(path, world.SETTINGS) as review:
        assert review.state.decisions[first.id].action == "reject"
        review.decide(decide(first.id, "accept"))
        done = review.finish("ada")
        assert review.finish("ada") == done, "the same decisions make no second version"
        assert done.skill == review.state.listed.skill
        review.decide(decide(first.id, "edit", "Something else."))
        assert review.finish("bob").number == 2
    assert "Something else." in (path / REVIEWED).read_text()


def test_nothing_is_lost_when_the_process_is_killed(
    world: SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    path = tmp_path / "run"
    train(world, world.SETTINGS, path)

    def die(*_: object) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def review_and_die() -> None:
        with open_review(path, world.SETTINGS) as review:
            review.decide(decide(review.state.listed.included[0].id, "reject"))
            monkeypatch.setattr("ludus.reflact.review.write_review_files", die)
            review.finish("ada")

    assert is_killed(review_and_die)
    assert not (path / REVIEWED).exists()
    with open_review(path, world.SETTINGS) as review:
        (done,) = review.state.reviews
        assert parse_file((path / REVIEWED).read_text()) == done.skill
    with RunDir.read(path) as directory:
        assert [event.who for event in read_events(directory) if event.kind == "review"] == ["ada"]


def test_a_run_that_is_in_use_is_refused(world: SimpleNamespace, tmp_path: Path):
    path = tmp_path / "run"
    train(world, world.SETTINGS, path)
    with open_review(path, world.SETTINGS) as review:
        assert isinstance(review, OpenReview)
        with pytest.raises(StoreError, match="in use by another process"), open_review(path, world.SETTINGS):
            pass
        with pytest.raises(ConfigError, match="nothing was decided yet"):
            review.finish("ada")
    with (
        RunDir.open(path, {"train": {}}, resume=True) as directory,
        keep_info(directory, "train"),
        pytest.raises(StoreError, match="is running"),
        open_review(path, world.SETTINGS),
    ):
        pass


def test_another_kind_of_run_has_no_changes(world: SimpleNamespace, tmp_path: Path):
    with RunDir.open(tmp_path / "run", {}) as directory, keep_info(directory, "evaluate"):
        pass
    with (
        pytest.raises(ConfigError, match="only a run of `ludus train` has changes"),
        open_review(tmp_path / "run", world.SETTINGS),
    ):
        pass


def test_a_bad_choice_is_not_stored(world: SimpleNamespace, tmp_path: Path):
    path = tmp_path / "run"
    train(world, world.SETTINGS, path)
    with open_review(path, world.SETTINGS) as review:
        with pytest.raises(ConfigError):
            review.decide(decide(review.state.listed.included[0].id, "edit"))
        assert not review.state.decisions
