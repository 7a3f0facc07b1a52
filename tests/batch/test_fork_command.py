"""`ludus fork`: another model goes on from a turn of a stored rollout, in a slot with the same files."""

import json
from pathlib import Path

import pytest
from tests.build import make_rollout
from tests.cli_kit import Ludus, serve_engine, token_flags, write_doubles

from ludus.batch.fork_command import make_base
from ludus.command.recorded_rollout import RecordedRollout
from ludus.rl.rows import build_rows
from ludus.store import RunDir
from ludus.types import Rollout

MODELS = """
from ludus.models.scripted import call, say

def wrong(messages, tools, sampling):
    n = sum(m.role == "assistant" for m in messages)
    if n < 2:
        return call("terminal", command=f"echo {n} >> notes.txt; cat notes.txt")
    return say("I give up.")

def right(messages, tools, sampling):
    with open("asked", "a") as file:
        file.write(f"{len(messages)} {sampling.seed}\\n")
    if messages[-1].role == "tool" and "made" in messages[-1].content:
        return say("Done.")
    return call("terminal", command="cat notes.txt; printf %s 'Hello from the sandbox' > greeting.txt; echo made")
"""


def read_rollouts(path: str) -> list[Rollout]:
    with RunDir.read(Path(path)) as directory:
        return [rollout for _, rollout in directory.read_outcomes()]


@pytest.fixture
def first(ludus: Ludus, folder: Path) -> str:
    """A run whose model gave up."""
    (folder / "models.py").write_text(MODELS)
    flags = ["--model.type", "scripted", "--model.script", "models.py:wrong", "--model.name", "wrong"]
    assert ludus("evaluate", "terminal-test", "--env.limit", "1", "--out", "first", *flags).code == 0
    return "first"


RIGHT = ["--model.script", "models.py:right", "--model.name", "right"]


def test_another_model_goes_on_with_the_same_files(ludus: Ludus, folder: Path, first: str):
    code, out, err = ludus("fork", first, "greeting", "--turn", "1", "-n", "3", "--out", "fork", *RIGHT, "--json")
    report = json.loads(out)
    assert (code, report["summary"]["overall"]["mean"], report["different"]) == (0, 1.0, {}), err
    rollouts = read_rollouts("fork")
    assert len(rollouts) == 3 and len({rollout.provenance.seed for rollout in rollouts}) == 3
    (recorded,) = read_rollouts(first)
    for rollout in rollouts:
        played = rollout.provenance.replayed
        assert played is not None and (played.run, played.turns) == (str(Path(first).resolve()), 1)
        assert (rollout.provenance.model, len(rollout.turns)) == ("right", 3)
        assert rollout.turns[0].completion == recorded.turns[0].completion
        assert rollout.turns[1].results[0].content == "0\nmade", "the files are those of the turn"
    assert report["ledger"]["agent"]["calls"] == 6, "what is played costs nothing"
    assert json.loads(Path("fork/run.json").read_text())["parent"] == str(Path(first).resolve())
    assert "One task is too few" in ludus("compare", first, "fork").out
    assert ludus("export", "fork", "--format", "openai").out.count("\n") == 3
    asked = (folder / "asked").read_text()
    assert ludus("fork", "--resume", "--out", "fork", "--quiet").code == 0
    assert (folder / "asked").read_text() == asked, "nothing is run again"


def test_a_result_that_is_not_as_recorded_is_said(ludus: Ludus, folder: Path):
    changed = MODELS.replace("cat notes.txt", "echo $RANDOM$RANDOM", 1)
    (folder / "models.py").write_text(changed)
    flags = ["--model.type", "scripted", "--model.script", "models.py:wrong"]
    assert ludus("evaluate", "terminal-test", "--env.limit", "1", "--out", "r", *flags).code == 0
    code, out, err = ludus("fork", "r", "greeting", "--turn", "2", "--out", "fork", *RIGHT, "--json")
    assert code == 0 and json.loads(out)["different"] == {"1": ["turn 1", "turn 2"]}
    assert "rollout 1: in turn 1, terminal returned something else than in the record, and 1 more" in err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["greeting", "--turn", "3"], "after one of its turns 1 to 2; turn 3 ended it (finished)"),
        (["greeting", "--turn", "0"], "after one of its turns 1 to 2"),
        (["greeting"], "which rollout, and after which turn?"),
        (["greeting", "--turn", "2", "--limits.turns", "2"], "limits.turns is 2, and 2 turns are played"),
        (["greeting", "--turn", "1", "-n", "0"], "env.group_size: expected a whole number of at least 1"),
        (["greeting", "--turn", "1", "--env.limit", "2"], "--env.limit has no effect on `ludus fork`"),
        (["greeting", "--turn", "1", "--agent.harness", "codex"], "agent.harness: the record has decided it"),
        (["greeting", "--turn", "1", "--agent.system", "Hi."], "agent.system: the record has decided it"),
        (["greeting", "--turn", "1", "--agent.skill", "models.py"], "agent.skill: the rollout had no skill"),
        (["greeting", "--turn", "1", "--tools.enabled", "file"], "tools.enabled: the record has decided it"),
        (["--resume", "--out", "first"], "there is no run of fork to resume"),
    ],
)
def test_what_cannot_be_continued_is_refused_in_words(ludus: Ludus, first: str, words: list[str], message: str):
    given = [] if "--resume" in words else [first]
    code, _, err = ludus("fork", *given, *words)
    assert code == 2 and message in err


@pytest.mark.parametrize("engine", ["vllm", "vllm_chat"])
def test_exact_ids_of_the_played_turns_are_kept_as_context(ludus: Ludus, folder: Path, shipped: Path, engine: str):
    write_doubles(folder)
    with serve_engine(shipped) as url:
        flags = ["--sampling.max_tokens", "200", *token_flags(url, shipped, engine)]
        assert ludus("evaluate", "doubles.py", "--out", "r", "--quiet", *flags).code == 0
        code, _, err = ludus("fork", "r", "task-1", "--turn", "1", "--out", "fork", "--quiet")
    assert code == 0, err
    recorded = next(rollout for rollout in read_rollouts("r") if rollout.task.id == "task-1")
    (rollout,) = read_rollouts("fork")
    first, last = (turn.completion for turn in rollout.turns)
    assert first.tokens == recorded.turns[0].completion.tokens and first.guided and not last.guided
    rows, before = build_rows(rollout), build_rows(recorded)
    assert [row.tokens.ids for row in rows] == [row.tokens.ids for row in before]
    trained = [step for row in rows for step in row.steps]
    assert trained == [1], "the policy did not sample the played turn"


def test_ids_of_another_tokenizer_are_dropped(ludus: Ludus, folder: Path, shipped: Path):
    from tests.cli_kit import make_tokenizer

    write_doubles(folder)
    (folder / "other").mkdir()
    other = make_tokenizer(folder / "other", "entirely other words are in this vocabulary, and so are its numbers 123")
    with serve_engine(shipped) as url:
        assert ludus("evaluate", "doubles.py", "--out", "r", "--quiet", *token_flags(url, shipped)).code == 0
    with serve_engine(other) as url:
        words = ["fork", "r", "task-1", "--turn", "1", "--out", "fork", "--quiet", *token_flags(url, other)]
        assert ludus(*words).code == 0
    (rollout,) = read_rollouts("fork")
    assert [turn.completion.tokens is None for turn in rollout.turns] == [True, False]
    assert "chat mode in part" in ludus("export", "fork").err


@pytest.mark.parametrize(
    ("recorded", "given", "kept"),
    [
        ({"type": "scripted", "script": "a.py"}, {"name": "x"}, True),
        ({"type": "scripted", "script": "a.py"}, {"base_url": "http://x"}, False),
        ({"type": "openai", "base_url": "http://y"}, {"base_url": "http://x"}, True),
        ({"type": "openai", "base_url": "http://y"}, {"type": "anthropic"}, False),
        ({"type": "openai", "base_url": "http://y"}, {}, True),
    ],
)
def test_the_runs_model_is_the_base_unless_it_is_of_another_type(
    recorded: dict[str, str], given: dict[str, str], kept: bool
):
    record = RecordedRollout(Path("r"), "k", make_rollout(1.0, "x"), {"model": recorded})
    assert ("model" in make_base(record, given).tree) is kept
