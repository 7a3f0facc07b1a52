"""Exported rows, loaded by the code of the trainers that they are for. `make test-consumers` installs them.

Each test is skipped where its consumer is not installed.
"""

import importlib.util
import json
import sys
import types
import typing
from pathlib import Path
from typing import Any

import pytest
from tests.export_kit import SOURCE, collect_sums, make_sum, make_sums

from ludus.rl.exporters.chat_data import export_openai, export_preference, export_sharegpt
from ludus.rl.exporters.export_files import write_rows
from ludus.rl.exporters.trainer_rows import (
    export_openrlhf,
    export_skyrl,
    export_tinker,
    export_trl,
    export_verl,
)

IDS, SAMPLED = [1, 2, 10, 11, 3, 4, 12], [False, False, True, True, False, False, True]
pytestmark = pytest.mark.filterwarnings("ignore")  # of foreign code


def needs(module: str):
    found = importlib.util.find_spec(module) is not None
    return pytest.mark.skipif(not found, reason=f"{module} is not installed (make test-consumers)")


@pytest.fixture(params=["jsonl", "parquet"])
def load(request: pytest.FixtureRequest, tmp_path: Path):
    """Writes rows to a file and loads them with Hugging Face's datasets, as trainers do."""

    def load_file(rows: Any) -> Any:
        datasets = pytest.importorskip("datasets", reason="make test-consumers installs it")
        path = tmp_path / f"rows.{request.param}"
        write_rows(path, rows)
        kind = "json" if request.param == "jsonl" else "parquet"
        return datasets.load_dataset(kind, data_files=str(path), split="train", cache_dir=str(tmp_path / "cache"))

    return load_file


@needs("datasets")
def test_rows_for_trl_are_a_dataset(load):
    found = load(export_trl(collect_sums(branch=True)))
    assert found.num_rows == 3
    for row in found:
        assert len(row["completion_ids"]) == len(row["logprobs"]) == len(row["env_mask"])
        assert row["env_mask"][0] == 1 and row["prompt_ids"][:2] == [1, 2]


@needs("datasets")
def test_conversations_are_datasets(load):
    (chat,) = load([export_openai(make_sum(1.0, 0), (), SOURCE)])
    assert [message["role"] for message in chat["messages"]] == ["system", "user", "assistant", "tool", "assistant"]
    (shared,) = load([export_sharegpt(make_sum(1.0, 0), (), SOURCE)])
    assert [turn["from"] for turn in shared["conversations"]] == ["system", "human", "gpt", "tool", "gpt"]


@needs("trl")
def test_pairs_are_what_trl_calls_conversational_preferences(load):
    from trl.data_utils import extract_prompt, is_conversational  # noqa: F401  # of the supported version

    (row,) = load([export_preference(make_sums(), (), SOURCE)])
    assert is_conversational(row)
    assert {"prompt", "chosen", "rejected"} <= row.keys()
    assert row["chosen"][-1]["content"] == "It is 4." and row["rejected"][-1]["content"] == "It is 5."


@needs("tinker")
def test_rows_for_tinker_are_datums():
    from tinker import types as tinker

    for row in map(_copy, export_tinker(collect_sums())):
        chunks = [tinker.EncodedTextChunk(tokens=chunk["tokens"]) for chunk in row["model_input"]["chunks"]]
        inputs = {name: tinker.TensorData(**tensor) for name, tensor in row["loss_fn_inputs"].items()}
        datum = tinker.Datum(model_input=tinker.ModelInput(chunks=chunks), loss_fn_inputs=inputs)
        assert datum.model_input.length == len(IDS) - 1
        targets = list(datum.loss_fn_inputs["target_tokens"].tolist())
        advantages = list(datum.loss_fn_inputs["advantages"].tolist())
        assert targets == IDS[1:]
        assert [value != 0 for value in advantages] == SAMPLED[1:]


@needs("verl")
def test_rows_for_verl_are_agent_loop_outputs():
    from verl.experimental.agent_loop.agent_loop import AgentLoopOutput

    for row in map(_copy, export_verl(collect_sums())):
        output = AgentLoopOutput(**row)
        assert output.prompt_ids + output.response_ids == IDS
        assert output.response_mask == [int(sampled) for sampled in SAMPLED[2:]]
        assert len(output.response_logprobs) == len(output.response_ids)
        assert output.reward_score in (0.0, 1.0) and output.extra_fields["task"] == "sum-1"


@needs("skyrl")
def test_groups_for_skyrl_are_valid_generator_outputs(monkeypatch):
    import typing_extensions

    monkeypatch.setattr(typing, "TypedDict", typing_extensions.TypedDict)  # pydantic wants it below Python 3.12
    from skyrl.train.utils.trainer_utils import validate_generator_output

    (output,) = map(_copy, export_skyrl(collect_sums()))
    validate_generator_output(2, output)
    from skyrl.train.generators.base import TrajectoryID

    (branched,) = map(_copy, export_skyrl(collect_sums(branch=True)))
    branched["trajectory_ids"] = [TrajectoryID(**each) for each in branched["trajectory_ids"]]
    validate_generator_output(2, branched, step_wise=True)
    with pytest.raises((AssertionError, RuntimeError, ValueError)):
        validate_generator_output(2, {**output, "loss_masks": [mask[1:] for mask in output["loss_masks"]]})


@needs("openrlhf")
def test_rows_for_openrlhf_are_experiences(monkeypatch):
    missing = [name for name in ("vllm", "deepspeed") if importlib.util.find_spec(name) is None]
    for name in ("vllm", "vllm.inputs", "vllm.utils", "deepspeed"):
        if name.partition(".")[0] in missing:
            monkeypatch.setitem(sys.modules, name, _AnyModule(name))
    from openrlhf.trainer.ppo_utils.samples_generator import SamplesGenerator

    for row in map(_copy, export_openrlhf(collect_sums())):
        made = SamplesGenerator._process_response_into_experience(None, row, max_len=64)
        assert made.sequences.tolist() == [IDS]
        assert made.action_mask.bool().tolist() == [SAMPLED[1:]]
        expected = [0.0, -0.5, -0.25, 0.0, 0.0, -0.125]
        assert made.rollout_log_probs.tolist() == [expected]
        assert made.rewards.tolist() == [row["reward"]]


class _AnyModule(types.ModuleType):
    """A module that has every name, for imports that the test does not use."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {})


def _copy(row: Any) -> Any:
    """The row as it is in a file."""
    return json.loads(json.dumps(row))
