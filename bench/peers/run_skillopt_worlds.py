"""SkillOpt 0.2.0 on the rule worlds: `ReflACTTrainer` with an adapter and a data loader.

The published package has no prompt files, so each prompt is its name. Its model clients are replaced by the simulated
optimizer. One worker reads at a time, so that the order of its results does not depend on threads.
Variants: `default` (batches of 40, 4 edits, cosine, slow update), `tuned` (batches of 12, 8 edits, constant).
"""

import contextlib
import io
import json
import re
import sys
import tempfile
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import rule_world as rw

warnings.simplefilter("ignore")

from skillopt.datasets.base import SplitDataLoader  # noqa: E402
from skillopt.engine import trainer as engine  # noqa: E402
from skillopt.envs.base import EnvAdapter  # noqa: E402

_SECTION = re.compile(r"## Current Skill\n(.*?)\n\n## ", re.DOTALL)
_POOL = re.compile(r"^\[(\d+)\]", re.MULTILINE)


class Loader(SplitDataLoader):
    def load_split_items(self, split_path: str) -> list[dict[str, Any]]:
        return json.loads(Path(split_path, "items.json").read_text())


class Adapter(EnvAdapter):
    """Runs the agent, and writes its traces where the package reads them."""

    failure_only = False
    minibatch_size = 8
    analyst_workers = 1

    def __init__(self, meter: rw.Meter, folder: str, edit_budget: int) -> None:
        self.meter, self.edit_budget = meter, edit_budget
        self.first = -1.0
        """The score of the initial skill: the first measurement of a run."""
        self.loader = Loader(split_dir=folder, split_mode="split_dir")

    def setup(self, cfg: dict[str, Any]) -> None:
        super().setup(cfg)
        self.loader.setup(cfg)

    def get_dataloader(self) -> Loader:
        return self.loader

    def build_env_from_batch(self, batch: Any, **_: Any) -> Any:
        return batch.payload

    def build_train_env(self, batch_size: int, seed: int, **_: Any) -> Any:
        return self.loader.build_train_batch(batch_size, seed).payload

    def build_eval_env(self, env_num: int, split: str, seed: int, **_: Any) -> Any:
        return self.loader.build_eval_batch(env_num, split, seed).payload

    def rollout(self, env_manager: Any, skill_content: str, out_dir: str, **_: Any) -> list[dict[str, Any]]:
        world, rows = self.meter.world, []
        for entry in env_manager:
            item = world.by_id[entry["id"]]
            trace = self.meter.buy(skill_content, item)
            place = Path(out_dir, "predictions", item.id)
            place.mkdir(parents=True, exist_ok=True)
            (place / "conversation.json").write_text(json.dumps([{"role": "agent", "content": trace}]))
            right = float(trace.endswith("right"))
            rows.append({"id": item.id, "hard": right, "soft": right, "task_type": item.kind, "n_turns": 1})
        if self.first < 0:
            self.first = sum(row["hard"] for row in rows) / len(rows)
        return rows

    def get_task_types(self) -> list[str]:
        return list(self.meter.world.kinds)


class Optimizer:
    """The simulated optimizer behind the package's `chat_optimizer`."""

    def __init__(self, world: rw.World, edits: int) -> None:
        self.world, self.edits = world, edits
        self.asked: Counter[str] = Counter()

    def __call__(self, system: str, user: str, *, stage: str, **_: Any) -> tuple[str, dict[str, int]]:
        self.asked[user] += 1
        rng = rw.make_random(self.world.key, "optimizer", stage, user, self.asked[user])
        return json.dumps(self._reply(system, user, stage, rng)), {}

    def _reply(self, system: str, user: str, stage: str, rng: Any) -> dict[str, Any]:
        found = _SECTION.search(user)
        skill = found[1] if found else ""
        if stage == "analyst":
            _, _, rest = user.partition(" Budget\n")
            history, _, shown = rest.partition("Trajectories (")
            traces = rw.read_traces(shown)
            if "analyst_error" in system:
                proposals = self.world.propose(skill, traces, self.edits, rng, rw.read_codes(history))
            else:
                proposals = self.world.praise(skill, rng)
            edits = [edit for proposal in proposals if (edit := rw.make_edit(skill, proposal))]
            return {"batch_size": len(traces), "failure_summary": [], "patch": {"reasoning": "", "edits": edits}}
        if stage == "merge":
            edits = _find_edits(user)
            merged = [{**edit, "support_count": len(places)} for edit, places in rw.merge_edits(edits)]
            return {"reasoning": "", "edits": merged}
        if stage == "ranking":
            return {"reasoning": "", "selected_indices": [int(number) for number in _POOL.findall(user)]}
        traces = rw.read_traces(user)
        lines = [proposal.text for proposal in self.world.propose("", traces, 2, rng)]
        return {"reasoning": "", "slow_update_content": "\n".join(lines) or "Go on.", "meta_skill_content": "Go on."}


def _find_edits(text: str) -> list[dict[str, str]]:
    """The edits in the JSON of a prompt, whatever is around them."""
    found: list[dict[str, str]] = []
    decoder = json.JSONDecoder()
    for match in re.finditer(r"\{", text):
        with contextlib.suppress(ValueError):
            value, _ = decoder.raw_decode(text, match.start())
            if isinstance(value, dict) and "op" in value:
                found.append(value)
    return found


def install(optimizer: Optimizer) -> None:
    """Replace the model and the prompts in the modules of the package."""
    for name, module in list(sys.modules.items()):
        if name.startswith("skillopt."):
            if hasattr(module, "chat_optimizer"):
                module.chat_optimizer = optimizer
            if hasattr(module, "load_prompt"):
                module.load_prompt = lambda name, env=None: f"{name} {{skill_section}}"


def run(world: rw.World, variant: str) -> dict[str, object]:
    tuned = variant == "tuned"
    batch, edits = (12, 8) if tuned else (40, 4)
    setting, meter = world.setting, rw.Meter(world)
    epochs = rw.count_epochs(setting, batch, slow=not tuned)
    decide = engine.evaluate_gate
    best: dict[str, Any] = {"score": None, "text": world.skill}

    def watch_gate(*args: Any, **kwargs: Any) -> Any:
        result = decide(*args, **kwargs)
        meter.decide(kwargs["candidate_skill"], kwargs["current_skill"], result.action != "reject")
        best["text"], best["score"] = result.best_skill, result.best_score
        meter.deploy(result.best_skill)
        return result

    with tempfile.TemporaryDirectory(dir=_find_memory()) as folder:
        for split, name in (("train", "train"), ("selection", "val"), ("test", "test")):
            Path(folder, name).mkdir()
            Path(folder, name, "items.json").write_text(json.dumps([{"id": item.id} for item in world.items[split]]))
        Path(folder, "skill.md").write_text(world.skill)
        config = {
            "env": "rules", "out_root": f"{folder}/out", "skill_init": f"{folder}/skill.md",
            "split_mode": "split_dir", "split_dir": folder, "seed": 42 + world.seed, "num_epochs": epochs,
            "batch_size": batch, "accumulation": 1, "merge_batch_size": 8,
            "edit_budget": edits, "min_edit_budget": edits if tuned else 2,
            "lr_scheduler": "constant" if tuned else "cosine",
            "use_slow_update": not tuned, "slow_update_samples": 20, "slow_update_gate_with_selection": False,
            "use_meta_skill": not tuned, "eval_test": False, "use_gate": True,
            "optimizer_backend": "openai_chat", "target_backend": "openai_chat", "optimizer_model": "scripted",
            "target_model": "scripted", "azure_openai_endpoint": "http://127.0.0.1:9", "azure_openai_api_key": "none",
            "azure_openai_auth_mode": "api_key", "sel_env_num": 0, "test_env_num": 0, "train_size": 0,
            "analyst_workers": 1, "minibatch_size": 8, "failure_only": False,
        }  # fmt: skip
        optimizer = Optimizer(world, edits)
        adapter = Adapter(meter, folder, edits)
        install(optimizer)
        engine.evaluate_gate = watch_gate
        try:
            silence, end = contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(rw.BudgetSpent)
            with silence, end:
                engine.ReflACTTrainer(config, adapter).train()
        finally:
            engine.evaluate_gate = decide
    claim = 0.0 if best["score"] is None else best["score"] - adapter.first
    return meter.report(best["text"], claim, calls=sum(optimizer.asked.values()))


def _find_memory() -> str | None:
    """A folder in memory: the package writes hundreds of small files, whose time is not of interest here."""
    return "/dev/shm" if Path("/dev/shm").is_dir() else None


if __name__ == "__main__":
    rw.serve(run)
