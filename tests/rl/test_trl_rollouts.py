import types

import msgspec
import pytest
from tests.build import make_rollout, make_token_rollout
from tests.cli_kit import make_tokenizer

from ludus.envs.parcels import Parcels
from ludus.errors import ConfigError, ModelError
from ludus.models.scripted import ScriptedModel
from ludus.policy import Policy
from ludus.rl.rows import NotExact
from ludus.rl.trl_rollouts import TrlRollouts, build_trl_row, read_rewards
from ludus.runner import Runner, RunOptions
from ludus.tokens.codec import Codec
from ludus.tokens.toy_engine import ToyEngine
from ludus.types import Splice, Tokens

ENV = Parcels()
TASKS = list(ENV.tasks("train"))[:2]


@pytest.fixture(scope="module")
def codec(tmp_path_factory):
    return Codec.open(make_tokenizer(tmp_path_factory.mktemp("tokenizer"), "send parcels north"), "hermes")


def make_trainer(step=0, process=0):
    """What a rollout function reads of TRL's trainer."""
    return types.SimpleNamespace(
        state=types.SimpleNamespace(global_step=step), accelerator=types.SimpleNamespace(process_index=process)
    )


def act(prompt):
    """Sends a parcel to the right desk of the first task, then says what it was told."""
    _, told, after = prompt.rpartition("<tool_response>\n")
    if told:
        return after.partition("\n")[0]
    task = next(task for task in TASKS if task.prompt in prompt)
    desk = task.answer["desk"] if task is TASKS[0] else "nowhere"
    return f'<tool_call>\n{{"name": "{desk}", "arguments": {{"number": {task.answer["number"]}}}}}\n</tool_call>'


def make_rollouts(codec, replies=act, options=None, **fields):
    made = {"engines": []}

    def make_engine(trainer):
        made["engines"].append(ToyEngine(codec.tokenizer, replies))
        return made["engines"][-1]

    policy = Policy(ScriptedModel([]))
    runner = Runner(ENV, options=options or RunOptions())
    return TrlRollouts(runner, TASKS, codec, policy, make_engine=make_engine, **fields), made["engines"]


def test_a_rollout_with_a_tool_is_a_prompt_a_masked_completion_and_the_verifiers_reward(codec):
    rollouts, engines = make_rollouts(codec)
    prompts = [row["prompt"] for row in rollouts.rows for _ in range(2)]
    found = rollouts(prompts, make_trainer())
    assert found["reward"] == [1.0, 1.0, 0.0, 0.0]
    assert found["rows_left_out"] == [0] * 4
    sampled = {(sample.prompt, sample.ids): sample for sample in engines[0].log}
    for row in range(4):
        ids, mask = found["completion_ids"][row], found["env_mask"][row]
        assert len(ids) == len(mask) == len(found["logprobs"][row])
        size = mask.index(0)
        first = sampled[tuple(found["prompt_ids"][row]), tuple(ids[:size])]
        assert tuple(found["logprobs"][row][:size]) == first.logprobs
        told = codec.tokenizer.decode([number for number, own in zip(ids, mask, strict=True) if not own])
        assert "<tool_response>" in told


def test_the_rewards_go_to_trl_by_its_reward_function():
    assert read_rewards(completions=["a", "b"], reward=[1.0, None], prompts=["x", "y"]) == [1.0, None]


def test_replicates_and_seeds_differ_within_a_step_and_between_steps_and_processes(codec):
    rollouts, _ = make_rollouts(codec)
    prompts = [TASKS[0].id, TASKS[1].id, TASKS[0].id]
    planned = [rollouts._plan(prompts, make_trainer(step, process)) for step in (0, 1) for process in (0, 1)]
    assert [(task.id, replicate) for task, replicate, _ in planned[0]] == [
        (TASKS[0].id, 0),
        (TASKS[1].id, 0),
        (TASKS[0].id, 1),
    ]
    assert len({seed for plan in planned for *_, seed in plan}) == 12
    assert planned[0] == rollouts._plan(prompts, make_trainer())


def test_a_rollout_that_failed_has_no_reward(codec):
    def fail(prompt):
        raise ModelError("the engine is gone", retryable=False)

    rollouts, _ = make_rollouts(codec, fail, options=RunOptions(retries=0))
    found = rollouts([TASKS[0].id], make_trainer())
    assert (found["reward"], found["env_mask"]) == ([None], [[0]])
    assert len(found["prompt_ids"][0]) == len(found["completion_ids"][0]) == 1


def test_a_prompt_that_is_no_task_is_refused(codec):
    rollouts, _ = make_rollouts(codec)
    for prompt in ("Send it.", [{"role": "user", "content": "Send it."}]):
        with pytest.raises(ConfigError, match=r"is no task id; make the dataset from TrlRollouts\.rows"):
            rollouts([prompt], make_trainer())


def test_of_a_branched_rollout_the_row_with_most_sampled_ids_is_used():
    first = Tokens((1, 2, 3), (False, True, True), (None, -0.1, -0.2))
    other = Tokens((1, 7), (False, True), (None, -0.3))
    rollout = make_token_rollout(first, other, splices={1: Splice(0, 0)}, score=0.5)
    made = build_trl_row(rollout, 9)
    assert (made.prompt_ids, made.completion_ids, made.reward, made.rows_left_out) == ([1], [2, 3], 0.5, 1)


def test_a_rollout_in_chat_mode_is_refused():
    with pytest.raises(NotExact):
        build_trl_row(make_rollout(1.0, "hello"), 9)


def test_the_fields_have_trls_names():
    row = build_trl_row(make_token_rollout(Tokens((1, 2), (False, True), (None, -0.1)), score=1.0), 9)
    names = list(msgspec.structs.asdict(row))
    assert names == ["prompt_ids", "completion_ids", "logprobs", "env_mask", "reward", "rows_left_out"]
