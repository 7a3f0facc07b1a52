"""TRL's GRPOTrainer with rollouts of Ludus, for `make test-trainers`: skipped unless LUDUS_TEST_POLICY names the folder
of a policy that can call the tools of `parcels`, and TRL is installed."""

import pytest
from tests.rl.trainer_kit import POLICY, FirstDesk

from ludus.models.scripted import ScriptedModel
from ludus.policy import Policy
from ludus.rl.trl_rollouts import TrlRollouts, read_rewards
from ludus.runner import Runner
from ludus.tokens.codec import Codec
from ludus.types import Sampling

pytestmark = [
    pytest.mark.skipif(not POLICY, reason="LUDUS_TEST_POLICY names no policy: see scripts/test-trainers"),
    pytest.mark.filterwarnings("ignore"),
]


def test_trl_trains_on_rollouts_with_tools(tmp_path):
    pytest.importorskip("trl")
    import torch
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from trl import GRPOConfig, GRPOTrainer

    env = FirstDesk()
    tasks = list(env.tasks("train"))[:4]
    policy = Policy(ScriptedModel([]), sampling=Sampling(max_tokens=16))
    rollouts = TrlRollouts(Runner(env), tasks, Codec.open(POLICY, "pythonic"), policy, context=256)
    given = []

    def sample(prompts, trainer):
        found = rollouts(prompts, trainer)
        given.append((found, [score(trainer.model, *pair) for pair in zip_ids(found)]))
        return found

    def score(model, prompt, completion):
        """The logprobs of a completion under the model, in one pass."""
        ids = torch.tensor([prompt + completion])
        with torch.no_grad():
            values = torch.log_softmax(model(ids).logits[0].float(), -1)
        places = range(len(prompt) - 1, ids.shape[1] - 1)
        return [values[place, ids[0, place + 1]].item() for place in places]

    tokenizer = AutoTokenizer.from_pretrained(POLICY)
    tokenizer.pad_token = tokenizer.eos_token
    config = GRPOConfig(
        output_dir=str(tmp_path),
        per_device_train_batch_size=16,
        num_generations=8,
        max_steps=3,
        learning_rate=1e-3,
        max_completion_length=128,
        logging_steps=1,
        report_to=[],
        use_cpu=True,
        bf16=False,
        save_strategy="no",
    )
    model = AutoModelForCausalLM.from_pretrained(POLICY, dtype=torch.float32)
    before = {name: value.clone() for name, value in model.named_parameters()}
    trainer = GRPOTrainer(
        model=model,
        args=config,
        reward_funcs=read_rewards,
        rollout_func=sample,
        train_dataset=Dataset.from_list(rollouts.rows),
        processing_class=tokenizer,
    )
    trainer.train()
    assert trainer.state.global_step == 3
    assert any(not torch.equal(before[name], value) for name, value in model.named_parameters())
    history = [line for line in trainer.state.log_history if "reward" in line]
    for (found, scored), line in zip(given, history, strict=True):
        assert line["reward"] == pytest.approx(sum(found["reward"]) / 16)
        differences = [
            abs(old - new)
            for recorded, masks, values in zip(found["logprobs"], found["env_mask"], scored, strict=True)
            for old, mask, new in zip(recorded, masks, values, strict=True)
            if mask
        ]
        assert max(differences) < 1e-4
        print(
            f"reward {line['reward']:.3f}, largest logprob difference {max(differences):.1e}, {line['step_time']:.2f} s"
        )
    assert any(0 in masks for found, _ in given for masks in found["env_mask"]), "no rollout has a tool result"


def zip_ids(found):
    return zip(found["prompt_ids"], found["completion_ids"], strict=True)
