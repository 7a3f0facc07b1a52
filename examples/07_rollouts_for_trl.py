"""Train a policy with TRL on rollouts of Ludus: its `rollout_func` has our environment, tools and verifier inside.

The policy is the tiny one and the environment `parcels`, so it runs on a CPU: a few steps, which show the loop and not
that anything is learned. Needs `pip install 'ludus-train[rl,trl]'`.
    python examples/07_rollouts_for_trl.py [STEPS]
"""

import sys
import tempfile
from importlib import import_module
from typing import Any

from ludus.config.secrets import find_weights_folder
from ludus.envs.parcels import Parcels
from ludus.models.scripted import ScriptedModel
from ludus.policy import Policy
from ludus.rl.tiny_policy import PARSER, find_tiny_policy
from ludus.rl.trl_rollouts import TrlRollouts, read_rewards
from ludus.runner import Runner
from ludus.tokens.codec import Codec
from ludus.types import Sampling

datasets, transformers, trl = (import_module(name) for name in ("datasets", "transformers", "trl"))


def main(steps: int) -> None:
    folder = find_tiny_policy(find_weights_folder(), tell=print)
    env = Parcels()
    # The model of the policy is replaced by the one that TRL trains.
    policy = Policy(ScriptedModel([]), sampling=Sampling(max_tokens=16))
    rollouts = TrlRollouts(Runner(env), list(env.tasks("train")), Codec.open(folder, PARSER), policy, context=256)
    tokenizer: Any = transformers.AutoTokenizer.from_pretrained(folder)
    tokenizer.pad_token = tokenizer.eos_token
    trainer: Any = trl.GRPOTrainer(
        model=transformers.AutoModelForCausalLM.from_pretrained(folder),
        args=trl.GRPOConfig(
            output_dir=tempfile.mkdtemp(),
            max_steps=steps,
            per_device_train_batch_size=64,
            num_generations=16,
            learning_rate=5e-4,
            logging_steps=1,
            report_to=[],
            save_strategy="no",
            bf16=False,
        ),
        reward_funcs=read_rewards,
        rollout_func=rollouts,
        train_dataset=datasets.Dataset.from_list(rollouts.rows),
        processing_class=tokenizer,
    )
    trainer.train()
    rewards = [line["reward"] for line in trainer.state.log_history if "reward" in line]
    print("reward of each step:", ", ".join(f"{reward:.2f}" for reward in rewards))


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 5)
