"""The stored runner: what the store has is not run again, and every outcome is stored before it is reported."""

import contextlib
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.build import make_rollout, make_task

from ludus.control import RunControl
from ludus.encoding import canonical
from ludus.engine import address_jobs, compute_outcome_key, find_missing, run_stored, run_streamed
from ludus.env import Env
from ludus.errors import BudgetExhausted, ConfigError, ModelError
from ludus.models.scripted import ScriptedModel, say
from ludus.policy import Policy
from ludus.runner import Job, Runner, RunOptions
from ludus.store import MemoryStore, RunDir, Store
from ludus.types import Completion, Message, Reasoning, Rollout, Sampling, Score, Task


class Echo(Env, frozen=True):
    """A task is solved when the model repeats its prompt."""

    name = "echo"
    sandbox = None

    async def verify(self, rollout: Rollout, box: object) -> Score:
        return Score.of(float(rollout.answer == rollout.task.prompt))


class Unscored(Echo, frozen=True):
    """Nothing judges."""

    @property
    def scores_rollouts(self) -> bool:
        return False


class Script:
    """A model script that repeats the prompt and keeps all prompts."""

    def __init__(self, on_call: Callable[[str], None] = lambda prompt: None) -> None:
        self.prompts: list[str] = []
        self._on_call = on_call

    def __call__(self, messages: Sequence[Message], tools: object, sampling: object) -> Message:
        self.prompts.append(messages[-1].content)
        self._on_call(messages[-1].content)
        return say(messages[-1].content)


def make_jobs(script: Script, count: int = 3) -> dict[str, Job]:
    policy = Policy(ScriptedModel(script))
    return address_jobs((Job(make_task(f"t{n}", f"say {n}"), policy) for n in range(count)), Echo())


async def run_jobs(jobs: dict[str, Job], store: Store, options: RunOptions = RunOptions(), **more: Any) -> list[str]:
    """Run the jobs. Returns the prompts of the outcomes in the order in which the callback got them."""
    got: list[str] = []

    def on_outcome(key: str, rollout: Rollout) -> None:
        assert jobs[key].task.id == rollout.task.id
        assert store.get(key) is not None, "an outcome is stored before the callback gets it"
        got.append(rollout.task.prompt)

    await run_stored(jobs, Runner(Echo(), store=store, options=options), on_outcome=on_outcome, **more)
    return got


# ---- running ------------------------------------------------------------------------------------------------------


async def test_outcomes_that_are_found_come_first_and_only_the_others_are_run():
    store, script = MemoryStore(), Script()
    jobs = make_jobs(script)
    middle = list(jobs)[1]
    await run_jobs({middle: jobs[middle]}, store)
    assert script.prompts == ["say 1"]
    assert await run_jobs(jobs, store) == ["say 1", "say 0", "say 2"]
    assert script.prompts == ["say 1", "say 0", "say 2"]
    assert await run_jobs(jobs, store) == ["say 0", "say 1", "say 2"]
    assert len(script.prompts) == 3


async def test_jobs_with_one_address_are_one_job():
    script = Script()
    policy = Policy(ScriptedModel(script))
    jobs = address_jobs([Job(make_task(), policy), Job(make_task(), policy), Job(make_task(), policy, 1)], Echo())
    assert [job.replicate for job in jobs.values()] == [0, 1]
    await run_jobs(jobs, MemoryStore())
    assert len(script.prompts) == 2


async def test_without_reading_back_no_stored_rollout_is_read():
    class WriteOnly(MemoryStore):
        def get(self, key: str) -> Rollout | None:
            raise AssertionError("a rollout was read")

    store, script = WriteOnly(), Script()
    jobs = make_jobs(script)
    store.put(next(iter(jobs)), make_rollout(0.5))
    got: list[str] = []

    def on_outcome(key: str, rollout: Rollout) -> None:
        got.append(rollout.task.prompt)

    await run_stored(jobs, Runner(Echo(), store=store), on_outcome=on_outcome, read_back=False)
    assert got == script.prompts == ["say 1", "say 2"]
    assert find_missing(jobs, store) == {}


@pytest.mark.parametrize("read_back", [True, False])
async def test_a_failed_outcome_is_run_again(read_back: bool):
    store, script = MemoryStore(), Script()
    jobs = make_jobs(script, 1)
    (key,) = jobs
    store.put(key, make_rollout(None))
    assert list(find_missing(jobs, store)) == [key]
    assert await run_jobs(jobs, store, read_back=read_back) == ["say 0"]
    assert store.read_scores() == {key: 1.0}


async def test_the_callback_gets_what_the_store_has(tmp_path: Path):
    """As after a resume: secrets are masked, and values are those that JSON has."""
    said: list[Rollout] = []
    policy = Policy(ScriptedModel(["the word is open-sesame"]))
    jobs = address_jobs([Job(make_task(answer=("a", "b")), policy)], Echo())
    with RunDir.open(tmp_path / "run", {}, secrets=["open-sesame"]) as store:
        run = run_stored(jobs, Runner(Echo(), store=store), on_outcome=lambda _, rollout: said.append(rollout))
        await run
        assert said == [store.get(key) for key in jobs]
    assert said[0].answer == "the word is [redacted]"
    assert said[0].task.answer == ["a", "b"]


# ---- stopping -----------------------------------------------------------------------------------------------------


async def test_a_stop_drains_what_runs_and_starts_nothing_new():
    control = RunControl()
    script = Script(lambda prompt: control.stop())
    store = MemoryStore()
    assert await run_jobs(make_jobs(script, 9), store, RunOptions(1, control=control)) == ["say 0"]
    assert len(store.read_scores()) == 1
    assert await run_jobs(make_jobs(script, 9), store, RunOptions(4, control=control)) == ["say 0"]
    assert len(script.prompts) == 1, "a run that was stopped before it begins runs nothing"


async def test_a_spent_budget_is_raised_after_what_runs_is_stored():
    def pay(prompt: str) -> None:
        if prompt == "say 2":
            raise BudgetExhausted("calls: 2 of 2 used")

    store = MemoryStore()
    with pytest.raises(BudgetExhausted, match="2 of 2"):
        await run_jobs(make_jobs(Script(pay), 5), store, RunOptions(1))
    assert list(store.read_scores().values()) == [1.0, 1.0]


async def test_a_bug_is_raised_as_itself_and_not_in_a_group():
    def fail(key: str, rollout: Rollout) -> None:
        raise ZeroDivisionError("bug") from KeyError("cause")

    store = MemoryStore()
    with pytest.raises(ZeroDivisionError, match="bug") as caught:
        await run_stored(make_jobs(Script()), Runner(Echo(), store=store), on_outcome=fail)
    assert isinstance(caught.value.__cause__, KeyError)
    assert len(store.read_scores()) >= 1, "what had ended is stored"


# ---- keys ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class FakePolicy:
    fingerprint: str = "f"


@dataclass(frozen=True)
class FakeJob:
    """What a key is made of; `ludus.runner.Job` has the same fields."""

    task: Task = Task(id="t", prompt="p")
    policy: FakePolicy = FakePolicy()
    replicate: int = 0
    seed: int = 0


class Toy(msgspec.Struct, frozen=True):
    name = "toy"
    version = "1"
    options: Any = None


class NewerToy(Toy, frozen=True):
    version = "2"


def key(job: Any = FakeJob(), env: Any = Toy()) -> str:
    return compute_outcome_key(job, env)


def test_a_key_changes_with_everything_that_decides_the_outcome():
    task = Task(id="t", prompt="p")
    variants = [
        key(),
        key(env=NewerToy()),
        key(env=Toy({"hard": True})),
        key(FakeJob(replicate=1)),
        key(FakeJob(seed=1)),
        key(FakeJob(policy=FakePolicy("g"))),
        key(FakeJob(msgspec.structs.replace(task, id="u"))),
        key(FakeJob(msgspec.structs.replace(task, prompt="q"))),
        key(FakeJob(msgspec.structs.replace(task, answer=1))),
        key(FakeJob(msgspec.structs.replace(task, files={"a": "b"}))),
    ]
    assert len(set(variants)) == len(variants)


def test_a_key_is_the_hash_of_the_canonical_values_whatever_was_addressed_before():
    tasks = [make_task("t1", "ä", answer={"b": 1, "a": [2]}), make_task("t2", "q")]
    policy = Policy(ScriptedModel(["x"]))
    jobs = [Job(task, policy, replicate, seed=7 * replicate) for task in (*tasks, tasks[0]) for replicate in range(2)]
    env = Echo()
    values = [(env.name, env.version, env, j.task, j.replicate, j.seed, policy.fingerprint) for j in jobs]
    expected = [hashlib.sha256(canonical(each)).hexdigest()[:32] for each in values]
    assert [compute_outcome_key(job, env) for job in jobs] == expected
    assert list(address_jobs(jobs, env)) == list(dict.fromkeys(expected))


def test_a_key_does_not_change_with_the_order_of_a_mapping():
    one = key(env=Toy(MappingProxyType({"a": 1, "b": 2})))
    assert one == key(env=Toy({"b": 2, "a": 1}))


def test_what_cannot_be_addressed_is_a_config_error():
    with pytest.raises(ConfigError, match=r"toy, task 't'.*plain JSON"):
        key(env=Toy(object()))


@pytest.mark.parametrize("read_back", [True, False])
async def test_an_outcome_that_cannot_be_stored_is_a_failure_and_the_others_are_stored(tmp_path: Path, read_back: bool):
    """What an agent of the user's own returns, or a server's own structures, may be nested deeper than JSON can be."""

    def answer(messages: Sequence[Message], tools: object, sampling: object) -> Message:
        raw: Any = 1
        for _ in range(100_000 if messages[-1].content == "say 1" else 3):
            raw = [raw]
        return Message("assistant", messages[-1].content, reasoning=Reasoning("so", "reasoning_details", raw))

    policy = Policy(ScriptedModel(answer))
    jobs = address_jobs((Job(make_task(f"t{n}", f"say {n}"), policy) for n in range(3)), Echo())
    with RunDir.open(tmp_path, {}) as run:
        got = await run_jobs(jobs, run, RunOptions(concurrency=1), read_back=read_back)
        assert got == ["say 0", "say 1", "say 2"]
        assert list(run.read_scores().values()).count(None) == 1
        (failure,) = run.read_failures()
        assert failure.boundary == "bug" and failure.message.startswith("RecursionError")


@given(levels=st.integers(930, 1_000))
@settings(max_examples=20)
def test_what_was_stored_can_be_read_however_deep_the_stack_is(tmp_path_factory: pytest.TempPathFactory, levels: int):
    raw: Any = 1
    for _ in range(levels):
        raw = [raw]
    rollout = make_rollout(1.0, Completion(Message("assistant", "", reasoning=Reasoning("", "reasoning_details", raw))))

    def read_deep(frames: int) -> Rollout | None:
        return read_deep(frames - 1) if frames else run.get("key")

    with RunDir.open(tmp_path_factory.mktemp("run"), {}) as run, contextlib.suppress(RecursionError):
        run.put("key", rollout)
        assert read_deep(100) is not None


def test_a_task_that_is_nested_too_deeply_is_the_users_error():
    answer: Any = 1
    for _ in range(100_000):
        answer = [answer]
    with pytest.raises(ConfigError, match="plain JSON"):
        compute_outcome_key(Job(make_task(answer=answer), Policy(ScriptedModel(["x"]))), Echo())


# ---- groups that are judged together --------------------------------------------------------------------------------


class Longest(Env, frozen=True):
    """The longest reply of a group gets the point."""

    name = "longest"
    sandbox = None

    @property
    def judges_groups(self) -> bool:
        return True

    async def verify_group(self, rollouts: Sequence[Rollout]) -> Sequence[Score]:
        if any(rollout.answer == "broken" for rollout in rollouts):
            raise RuntimeError("the judge is gone")
        most = max(len(rollout.answer) for rollout in rollouts)
        parts = {"judged": float(len(rollouts))}
        return [Score.of(float(len(rollout.answer) == most), parts=parts) for rollout in rollouts]


async def run_longest(replies: Sequence[str], store: Store, **options: Any) -> dict[int, Rollout]:
    """The rollouts of one task by replicate. The model says a reply for each; "-" is a server that fails."""

    def answer(messages: object, tools: object, sampling: Any) -> Message:
        said = replies[sampling.seed % len(replies)]
        if said == "-":
            raise ModelError("no server", retryable=False)
        return say(said)

    policy = Policy(ScriptedModel(answer), sampling=Sampling(temperature=0.0))
    task, found = make_task("t", "Say much."), dict[int, Rollout]()
    shift = -1_000_003 % len(replies)  # what the first turn adds to a seed
    jobs = address_jobs([Job(task, policy, n, seed=n + shift) for n in range(len(replies))], Longest())

    def keep(_: str, rollout: Rollout) -> None:
        found[rollout.provenance.replicate] = rollout

    await run_stored(jobs, Runner(Longest(), store=store, options=RunOptions(**options)), on_outcome=keep)
    return found


@pytest.mark.parametrize("concurrency", [1, 16])
async def test_rollouts_of_a_group_are_judged_together(concurrency: int):
    found = await run_longest(["a", "abc", "ab"], MemoryStore(), concurrency=concurrency)
    scores = [found[n].score for n in range(3)]
    assert [(score.value, score.parts) for score in scores if score] == [(v, {"judged": 3.0}) for v in (0.0, 1.0, 0.0)]


async def test_a_failed_rollout_is_left_out_of_its_group_and_is_run_again_with_the_others():
    store = MemoryStore()
    found = await run_longest(["a", "-", "ab"], store)
    assert found[1].failure is not None and found[1].failure.message == "no server"
    assert [found[n].score for n in (0, 2)] == [
        Score.of(value, parts={"judged": 2.0}) for value in (0.0, 1.0)
    ]  # fmt: skip
    again = await run_longest(["a", "abc", "ab"], store)
    assert again[1].score == Score.of(1.0, parts={"judged": 3.0})
    assert [again[n].score for n in (0, 2)] == [found[n].score for n in (0, 2)]  # what was scored stays
    assert (await run_longest(["-", "-", "-"], store)) == again


async def test_a_group_that_cannot_be_judged_has_no_scores():
    found = await run_longest(["a", "broken"], MemoryStore())
    for rollout in found.values():
        assert rollout.score is None and rollout.failure is not None and len(rollout.turns) == 1
        assert "the judge is gone" in rollout.failure.message and not rollout.failure.retryable


# ---- streamed -----------------------------------------------------------------------------------------------------


async def test_streamed_jobs_are_taken_as_rollouts_begin_and_not_run_again():
    taken: list[int] = []
    script, store, env = Script(), MemoryStore(), Unscored()
    policy = Policy(ScriptedModel(script))

    def list_jobs(count: int):
        for n in range(count):
            taken.append(n)
            yield Job(make_task(f"t{n}", f"say {n}"), policy)

    ahead: list[int] = []
    runner = Runner(env, store=store, options=RunOptions(concurrency=2))
    await run_streamed(lambda: list_jobs(6), runner, on_outcome=lambda key, rollout: ahead.append(len(taken)))
    assert max(ahead[:3]) <= 5, "no more are taken than can begin"
    assert [(r.score, r.failure) for r in store.outcomes.values()] == [(None, None)] * 6

    got: list[str] = []
    await run_streamed(lambda: list_jobs(8), runner, on_outcome=lambda key, rollout: got.append(rollout.task.id))
    assert (sorted(got), len(script.prompts)) == (["t6", "t7"], 8)


async def test_a_streamed_job_that_failed_is_run_again():
    script, store = Script(), MemoryStore()
    job = Job(make_task("t", "say"), Policy(ScriptedModel(script)))
    store.put(compute_outcome_key(job, Unscored()), make_rollout(None))
    await run_streamed(lambda: [job], Runner(Unscored(), store=store), on_outcome=lambda key, rollout: None)
    assert [r.failure for r in store.outcomes.values()] == [None]


async def test_a_streamed_job_that_is_asked_for_again_is_run_again():
    script, store, control = Script(), MemoryStore(), RunControl()
    jobs = [Job(make_task(f"t{n}", f"say {n}"), Policy(ScriptedModel(script))) for n in range(3)]
    control.requeue([compute_outcome_key(jobs[1], Unscored())])
    runner = Runner(Unscored(), store=store, options=RunOptions(control=control))
    await run_streamed(lambda: jobs, runner, on_outcome=lambda key, rollout: None)
    assert (script.prompts.count("say 1"), len(script.prompts)) == (2, 4)
