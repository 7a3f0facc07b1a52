"""`ludus export`."""

import contextlib
import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from tests.cli_kit import (
    DOUBLES,
    serve_engine,
    token_flags,
    write_doubles,
)


@pytest.fixture(autouse=True)
def _files(folder: Path) -> None:
    write_doubles(folder)


def test_chat_mode_is_refused_as_rl_data_until_rows_from_text_are_asked_for(typed, folder: Path, shipped: Path):
    with serve_engine(shipped) as url:
        chat = ["--model.base_url", f"{url}/v1", "--model.name", "toy"]
        chat += ["--sampling.max_tokens", "200"]
        assert typed("process", "doubles.py", "--out", "run", "--quiet", *chat)[0] == 0
    (group, _) = [json.loads(line) for line in Path("run/groups.jsonl").read_bytes().splitlines()]
    assert group["rollouts"][0]["mode"] == "chat"
    assert "tokens" not in group
    code, out, _ = typed("check", "run")
    assert (code, out.count("run in chat mode")) == (1, 2)
    code, out, err = typed("export", "run")
    assert (code, out) == (2, "")
    assert "run in chat mode" in err and "re-tokenized" in err
    code, out, err = typed("export", "run", "--retokenize", str(shipped), "--parser", "hermes")
    assert code == 0, err
    rows = [json.loads(line) for line in out.splitlines()]
    assert [row["retokenized"] for row in rows] == [True, True]
    assert rows[0]["inference_logprobs"] is None
    assert "double" in _decode(shipped, rows[0]["tokens"][0]).partition("<|im_start|>user")[0]  # the tools are shown
    assert typed("check", "-", stdin=out)[0] == 0
    assert "give --retokenize TOKENIZER too" in typed("export", "run", "--parser", "hermes")[2]


# ---- training runs ------------------------------------------------------------------------------------------------

SPLIT_DOUBLES = DOUBLES.replace(
    """        for n in range(2):
            yield Task(id=f"task-{n}", prompt""",
    """        first = {"train": 0, "validation": 2, "test": 4}[split]
        for n in range(first, first + 2):
            yield Task(id=f"task-{n - first}", prompt""",
)
"""Three splits whose tasks have the same ids."""

pytestmark = pytest.mark.usefixtures("folder")

OPTIMIZER = """
import json

def reply(messages, tools, sampling):
    return json.dumps({"items": [{"op": "append", "content": "Be exact."}]})
"""


@pytest.fixture
def trained(typed, folder: Path, shipped: Path) -> Path:
    """A training run in token mode, finished."""
    (folder / "doubles.py").write_text(SPLIT_DOUBLES)
    (folder / "optimizer.py").write_text(OPTIMIZER)
    words = [
        "train",
        "--recipe",
        "reflact",
        "doubles.py",
        "--out",
        "run",
        "--quiet",
        "--data.mode",
        "splits",
        "--data.selection",
        "validation",
    ]
    words += ["--optimizer.type", "scripted", "--optimizer.script", "optimizer.py:reply"]
    words += ["--train.epochs", "1", "--train.batch_size", "2"]
    with serve_engine(shipped) as url:
        code, _, err = typed(*words, *token_flags(url, shipped))
    assert code == 0, err
    return folder / "run"


def _read_rows(out: str) -> list[dict]:
    return [json.loads(line) for line in out.splitlines()]


def _forget_stages(run: Path) -> None:
    """Make the run one of an earlier version."""
    with closing(sqlite3.connect(run / "store.sqlite")) as db, db:
        assert db.execute("DELETE FROM records WHERE kind = 'stage'").rowcount


def test_of_a_training_run_only_train_rows_are_printed(typed, trained: Path):
    code, out, err = typed("export", "run")
    assert code == 0
    rows = _read_rows(out)
    assert sorted((row["task"], row["split"], row["stage"]) for row in rows) == [
        ("task-0", "train", "rollout"),
        ("task-1", "train", "rollout"),
    ]
    assert all(len(row["policy"]) == 16 and row["skill"] for row in rows)
    assert "rollouts of other splits were left out: " in err and " of selection, " in err and " of test " in err
    assert typed("check", "-", stdin=out)[0] == 0


def test_other_splits_are_printed_only_if_they_are_named(typed, trained: Path):
    both = _read_rows(typed("export", "run", "--splits", "train,selection")[1])
    assert {(row["split"], row["stage"]) for row in both} == {
        ("train", "rollout"),
        ("selection", "baseline"),
        ("selection", "evaluate"),
    }
    sealed = _read_rows(typed("export", "run", "--splits", "test")[1])
    assert {(row["split"], row["stage"]) for row in sealed} == {("test", "test")}
    assert all(len(row["tokens"]) == 1 for row in both + sealed)  # equal ids of two splits are not one group
    assert "--splits: unknown split 'validation'" in typed("export", "run", "--splits", "validation")[2]


def test_the_splits_of_an_old_training_run_are_rebuilt(typed, trained: Path):
    everything = ["export", "run", "--splits", "train,selection,test"]
    before = typed(*everything)[1]
    _forget_stages(trained)
    assert typed(*everything)[1] == before
    assert {row["split"] for row in _read_rows(typed("export", "run")[1])} == {"train"}


def test_an_old_training_run_whose_tasks_have_changed_is_refused(typed, trained: Path, folder: Path):
    _forget_stages(trained)
    settings = json.loads((trained / "config.json").read_text())
    settings["content"]["tasks"] = "the hash of other tasks"
    (trained / "config.json").write_text(json.dumps(settings))
    code, out, err = typed("export", "run")
    assert (code, out) == (2, "")
    assert "did not record the split of each rollout, and the tasks have changed since" in err
    (folder / "doubles.py").unlink()
    code, out, err = typed("export", "run")
    assert (code, out) == (2, "")
    assert "and the tasks cannot be divided again: " in err


def test_rows_of_a_batch_have_their_split_policy_and_skill_too(typed, folder: Path, shipped: Path):
    with serve_engine(shipped) as url:
        assert typed("process", "doubles.py", "--out", "run", "--quiet", *token_flags(url, shipped))[0] == 0
    rows = _read_rows(typed("export", "run")[1])
    assert [(row["split"], row["stage"], row["skill"]) for row in rows] == [("train", "", "")] * 2
    assert "--splits is for training runs" in typed("export", "run", "--splits", "train")[2]


def _decode(folder: Path, ids: list[int]) -> str:
    from ludus.tokens.tokenizer import load_tokenizer

    return load_tokenizer(folder).tokenizer.decode(ids)


def test_a_run_is_printed_in_the_order_of_its_tasks_whatever_ended_first(typed, folder: Path, shipped: Path):
    with serve_engine(shipped) as url:
        model = ["--model.base_url", f"{url}/v1", "--model.name", "toy", "--model.mode", "token"]
        model += ["--model.tokenizer", str(shipped), "--model.parser", "hermes", "--sampling.max_tokens", "200"]
        code, _, err = typed("process", "doubles.py", "--out", "run", "--quiet", "--env.group_size", "2", *model)
        assert code == 0, err
    code, whole, err = typed("export", "run")
    assert (code, whole.count("\n")) == (0, 2), err
    with contextlib.closing(sqlite3.connect("run/store.sqlite")) as db:
        db.execute("UPDATE rollouts SET id = -id")
        db.execute("UPDATE outcomes SET rollout = -rollout")
        db.commit()
    assert typed("export", "run")[1] == whole
    assert [json.loads(line)["task"] for line in whole.splitlines()] == ["task-0", "task-1"]


# ---- conversations ------------------------------------------------------------------------------------------------

SCRIPT = """
from ludus.models.scripted import call

def doubling(messages, tools, sampling):
    if messages[-1].role == "tool":
        return messages[-1].content
    return call("double", number=int(messages[-1].content.split()[1]))

def wrong(messages, tools, sampling):
    return "I do not know."
"""


@pytest.fixture
def scripted(typed, folder: Path):
    """Runs `doubles.py` with a scripted model: a run of two rollouts for each task."""
    (folder / "agents.py").write_text(SCRIPT)

    def run(function: str) -> None:
        words = ["--model.type", "scripted", "--model.script", f"agents.py:{function}", "--env.group_size", "2"]
        assert typed("evaluate", "doubles.py", "--out", "run", "--quiet", *words)[0] == 0

    return run


@pytest.mark.parametrize("format", ["openai", "sharegpt"])
def test_conversations_have_the_definitions_of_their_tools(typed, scripted, format: str):
    scripted("doubling")
    code, out, err = typed("export", "run", "--format", format)
    assert code == 0, err
    rows = _read_rows(out)
    tools = rows[0]["tools"] if format == "openai" else json.loads(rows[0]["tools"])
    assert [tool["function"]["name"] for tool in tools] == ["double"] and "number" in str(tools[0]["function"])


def test_an_export_of_nothing_says_why_and_makes_no_file(typed, scripted):
    scripted("wrong")
    code, out, err = typed("export", "run", "--format", "openai", "--to", "rows.jsonl")
    assert (code, out) == (1, "") and not Path("rows.jsonl").exists()
    assert "nothing to export of 4 rollouts; left out: 4 did not pass" in err
    code, _, err = typed("export", "run", "--format", "preference")
    assert code == 1 and "2 group whose scores are all equal" in err


def test_rollouts_are_chosen_by_options(typed, scripted):
    scripted("doubling")
    count = {
        words: len(_read_rows(typed("export", "run", "--format", "openai", *words.split())[1]))
        for words in ("", "--best 1", "--duplicates drop", "--threshold 1.5")
    }
    assert count == {"": 4, "--best 1": 2, "--duplicates drop": 2, "--threshold 1.5": 0}
    assert "--best chooses rollouts to imitate" in typed("export", "run", "--format", "verl", "--best", "1")[2]
    assert "at least 1 rollout" in typed("export", "run", "--format", "openai", "--best", "0")[2]


def test_tools_that_cannot_be_made_again_are_named(typed, scripted, folder: Path):
    scripted("doubling")
    (folder / "doubles.py").unlink()
    code, out, err = typed("export", "run", "--format", "openai")
    assert code == 0 and "tools" not in _read_rows(out)[0]
    assert "do not give the definitions of these tools: double (" in err
