"""Environments of verifiers 0.1 without the package: they run, and as with the package where that is installed."""

import random
import sys
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from compat.tests import verifiers_v0_kit
from compat.tests.verifiers_kit import roll_group
from compat.tests.verifiers_v0_kit import MAKERS, ROWS

from ludus.compat.verifiers_env import VerifiersEnv
from ludus.compat.verifiers_env.v0_environments import EnvironmentRelease
from ludus.compat.verifiers_env.v0_standin.modules import MODULES, provide_v0
from ludus.compat.verifiers_env.v0_standin.rows import Rows
from ludus.compat.verifiers_env.v0_standin.session_client import SessionClient
from ludus.errors import ConfigError
from ludus.models.scripted import call
from ludus.types import Message, Rollout


class Ours:
    """The names that are provided."""

    def __getattr__(self, name: str) -> Any:
        return MODULES["verifiers"][name]


def load_package() -> tuple[Any, Any]:
    """The package and its class of datasets."""
    pytest.importorskip("verifiers.rubrics", reason="verifiers 0.1.14 is not installed")
    return pytest.importorskip("verifiers"), pytest.importorskip("datasets").Dataset


@pytest.fixture
def provided() -> Iterator[None]:
    """The modules are provided, and taken away at the end."""
    before = dict(sys.modules)
    for name in [name for name in sys.modules if name.partition(".")[0] == "verifiers"]:
        del sys.modules[name]
    provide_v0()
    yield
    for name in set(sys.modules) - set(before):
        if name.partition(".")[0] in ("verifiers", "datasets"):
            del sys.modules[name]
    sys.modules.update(before)


def play(environment: Any, make_client: Callable[[str], Any] | None, script: Any, size: int) -> list[Rollout]:
    """Rollouts of the first task of an environment that is made already."""
    env = VerifiersEnv(id="given")
    more = {} if make_client is None else {"make_client": make_client}
    sys.modules["given"] = types.ModuleType("given")
    vars(sys.modules["given"])["load_environment"] = lambda: environment
    try:
        vars(env)["live"] = EnvironmentRelease("given", {}, **more)
    finally:
        del sys.modules["given"]
    return roll_group(env, script, size, concurrency=1)


def make_script(seed: int) -> Callable[..., Message | str]:
    """A model that answers and calls at random: the same in the same rollout and turn."""

    def answer(messages: Sequence[Message], tools: Sequence[Any], sampling: Any) -> Message | str:
        dice = random.Random(f"{seed} {sampling.seed} {len(messages)}")
        names = [tool.name for tool in tools]
        if names and dice.random() < 0.7:
            made = [
                call("add", a=dice.randint(0, 3)),
                call("add", a="x", b=2),
                call("fail", word="way"),
                call("open", code="1"),
                call("nothing"),
            ]
            return dice.choice(made)
        return dice.choice(
            ["2", "\\boxed{2}", "<answer>2</answer>", "<think>a</think>\n<reply> 2 </reply>", "<answer>", "long words"]
        )

    return answer


def summarize(rollouts: Sequence[Rollout]) -> list[Any]:
    """What can be compared. `nothing` is a tool that is not there: words of a KeyError are the same."""
    return [
        (
            rollout.opening,
            rollout.provenance.tools,
            rollout.turns and [(turn.completion.message, turn.results, turn.notices) for turn in rollout.turns],
            rollout.stop,
            rollout.score and (round(rollout.score.value, 9), rollout.score.parts),
            rollout.failure and rollout.failure.boundary,
        )
        for rollout in rollouts
    ]


@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize("seed", range(5))
def test_rollouts_are_those_of_the_package(name: str, seed: int):
    package, dataset = load_package()
    theirs = play(MAKERS[name](package, dataset.from_list(ROWS)), None, make_script(seed), 2)
    ours = play(MAKERS[name](Ours(), Rows.from_list(ROWS)), SessionClient, make_script(seed), 2)
    assert summarize(ours) == summarize(theirs)
    assert not any(rollout.failure for rollout in ours)


@pytest.mark.parametrize("name", MAKERS)
def test_tools_and_prompts_are_those_of_the_package(name: str):
    package, dataset = load_package()
    theirs = MAKERS[name](package, dataset.from_list(ROWS))
    ours = MAKERS[name](Ours(), Rows.from_list(ROWS))
    own, known = ([tool.model_dump() for tool in env.tool_defs or ()] for env in (ours, theirs))
    assert own == known
    assert list(map(strip_empty, ours.get_eval_dataset())) == list(map(strip_empty, theirs.get_eval_dataset()))


def strip_empty(value: Any) -> Any:
    """Without what is None: a table has the same columns in every row."""
    if isinstance(value, dict):
        return {name: strip_empty(each) for name, each in value.items() if each is not None}
    return [strip_empty(each) for each in value] if isinstance(value, list) else value


def test_a_conversation_with_its_own_end():
    (rollout,) = play(MAKERS["game"](Ours(), ROWS), SessionClient, lambda *_: "7", 1)
    assert rollout.score is not None
    assert rollout.score.parts == {"few_tries": 0.25, "last_word": 1.0, "num_turns": 3.0}
    assert [turn.notices[0].content for turn in rollout.turns[:2]] == ["No: 1", "No: 2"]


def test_calls_and_their_errors_are_seen_by_the_model():
    replies = [call("add", a=1), call("fail", word="way"), "It is \\boxed{2}"]
    (rollout,) = play(MAKERS["tools"](Ours(), ROWS), SessionClient, replies, 1)
    assert rollout.score is not None and rollout.score.passed
    assert [result.content for turn in rollout.turns for result in turn.results] == ["2", "no way"]
    assert rollout.score.parts["total_tool_calls"] == 2.0 and rollout.provenance.tools == ("add", "fail")


def test_a_group_of_environments_scores_each_as_its_own():
    left = ["a", "aaa"]
    found = play(MAKERS["group"](Ours(), ROWS), SessionClient, lambda *_: left.pop(0), 2)
    assert sorted((r.answer, r.score.value) for r in found if r.score) == [("a", 0.0), ("aaa", 1.0)]


def test_an_environment_that_is_installed_runs_without_the_package(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch, provided: None
):
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "kit_env_x.py").write_text(
        "import verifiers as vf\nfrom verifiers.types import Messages, State\n"
        f"from {verifiers_v0_kit.__name__} import ROWS, make_tools\n"
        "def load_environment(few: bool = False):\n    return make_tools(vf, ROWS[:1] if few else ROWS)\n"
    )
    monkeypatch.setattr("ludus.compat.verifiers_env._read_version", lambda: "")
    env = VerifiersEnv(id="kit-env-x", args={"few": True})
    assert [task.prompt for task in env.tasks("train")] == ["0 + 2?"]
    (rollout,) = roll_group(env, ["2"], 1)
    assert rollout.score is not None and rollout.score.passed


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ("from verifiers import SandboxEnv", r"SandboxEnv is not provided.*in a slot.*verifiers\.md"),
        ("class E(vf.GymEnv): ...", r"verifiers\.GymEnv is not provided.*verifiers==0\.1\.14"),
        ("import verifiers.absent", r"No module named 'verifiers\.absent'.*verifiers\.md"),
        ("def load_environment(): return vf.JudgeRubric()", r"JudgeRubric has no judge.*OPENAI_API_KEY"),
        ("from datasets import load_dataset\ndef load_environment(): load_dataset('x')", "pip install datasets"),
    ],
)
def test_what_is_not_provided_is_named_with_the_way_on(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch, provided: None, lines: str, words: str
):
    name = f"lacking_{abs(hash(lines))}"
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr("ludus.compat.verifiers_env._read_version", lambda: "")
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    if "datasets" in lines and not hasattr(sys.modules.get("datasets"), "PROVIDED_BY_LUDUS"):
        pytest.skip("datasets is installed")
    (tmp_path / f"{name}.py").write_text(f"import verifiers as vf\n{lines}\ndef load_environment_(): ...\n")
    with pytest.raises(ConfigError, match=words):
        list(VerifiersEnv(id=name).tasks("test"))
