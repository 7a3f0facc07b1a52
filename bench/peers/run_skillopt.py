"""SkillOpt 0.2.0: `ReflACTTrainer` with the package's SearchQA adapter. Its models are replaced by functions.

The published package has no prompt files, so each prompt is replaced by one line, which is shorter than the original.
Its model clients are not used. Its output goes to /dev/null, so that the terminal does not slow it down.
"""

import contextlib
import json
import os
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import skill_world as world

warnings.simplefilter("ignore")

import skillopt.envs.searchqa.rollout as searchqa  # noqa: E402
from skillopt.engine.trainer import ReflACTTrainer  # noqa: E402
from skillopt.envs.searchqa.adapter import SearchQAAdapter  # noqa: E402


class Models:
    """The models of the agent and the optimizer, with a delay."""

    def __init__(self, delay: float) -> None:
        self.delay = delay

    def target(self, system: str, user: str, **_: Any) -> tuple[str, dict[str, int]]:
        self._wait()
        return world.make_reply(system, user), {}

    def optimizer(self, system: str, user: str, *, stage: str, **_: Any) -> tuple[str, dict[str, int]]:
        self._wait()
        return json.dumps(self._build_reply(system, user, stage)), {}

    def _build_reply(self, system: str, user: str, stage: str) -> dict[str, Any]:
        if stage == "analyst":
            rules = world.find_needed_rules(user)[:4] if "analyst_error" in system else ["Stay brief."]
            edits = [{"op": "append", "content": text, "target": ""} for text in rules]
            return {"batch_size": 8, "failure_summary": [], "patch": {"reasoning": "", "edits": edits}}
        if stage == "merge":
            found = dict.fromkeys(part.split('"')[0] for part in user.split('"content": "')[1:])
            return {"reasoning": "", "edits": [{"op": "append", "content": text, "target": ""} for text in found]}
        if stage == "ranking":
            return {"reasoning": "", "selected_indices": [0, 1, 2, 3]}
        return {"reasoning": "", "slow_update_content": "Keep going.", "meta_skill_content": "Rules help."}

    def _wait(self) -> None:
        if self.delay:
            time.sleep(self.delay)


def install_models(models: Models) -> None:
    """Replace the models and prompts in the modules of the package."""
    searchqa.chat_target = models.target
    for name, module in list(sys.modules.items()):
        if name.startswith("skillopt."):
            if hasattr(module, "chat_optimizer"):
                module.chat_optimizer = models.optimizer
            if hasattr(module, "load_prompt"):
                module.load_prompt = lambda name, env=None: f"{name} {{skill_section}}"


def train(plan: world.Plan) -> tuple[int, int, float]:
    with tempfile.TemporaryDirectory() as folder:
        for split in world.SPLITS:
            Path(folder, "data", split).mkdir(parents=True)
            Path(folder, "data", split, "items.json").write_text(json.dumps(world.make_items(split)))
        Path(folder, "skill.md").write_text(world.SKILL)
        config = {
            "env": "searchqa", "out_root": f"{folder}/out", "skill_init": f"{folder}/skill.md",
            "split_mode": "split_dir", "split_dir": f"{folder}/data", "seed": 42, "num_epochs": plan.epochs,
            "batch_size": world.PER_STEP // plan.batches, "accumulation": plan.batches, "merge_batch_size": 8,
            "edit_budget": 4, "min_edit_budget": 2, "lr_scheduler": "cosine",
            "use_slow_update": True, "slow_update_samples": 20,
            "slow_update_gate_with_selection": True, "use_meta_skill": True, "eval_test": True,
            "optimizer_backend": "openai_chat", "target_backend": "openai_chat", "optimizer_model": "scripted",
            "target_model": "scripted", "azure_openai_endpoint": "http://127.0.0.1:9", "azure_openai_api_key": "none",
            "azure_openai_auth_mode": "api_key", "sel_env_num": 0, "test_env_num": 0, "train_size": 0,
            "analyst_workers": 16, "minibatch_size": 8, "failure_only": False,
        }  # fmt: skip
        adapter = SearchQAAdapter(
            split_dir=f"{folder}/data", split_mode="split_dir", workers=world.WORKERS, analyst_workers=16
        )
        with Path(os.devnull).open("w") as null, contextlib.redirect_stdout(null), contextlib.redirect_stderr(null):
            install_models(Models(plan.delay))
            summary = ReflACTTrainer(config, adapter).train()
    return summary["total_steps"], summary["total_accepts"], summary["test_hard"]


if __name__ == "__main__":
    world.measure("SkillOpt 0.2.0", train)
