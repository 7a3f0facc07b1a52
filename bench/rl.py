"""Show that a policy learns from the rows of Ludus, and that tokens, masks and scores carry the signal.

    $ python bench/rl.py                  three seeds × three arms, two processes at a time (about 6 minutes)
    $ python bench/rl.py --seeds 11       one seed
    $ python bench/rl.py --short          a few steps, as a test of the script: nothing is judged
    $ python bench/rl.py --demo 400 401   the settings of `make rl-demo` on these seeds (a minute each)

The tiny policy (0.3 million weights, all of them trained) learns `parcels` by GRPO: which of four tools is right for
which of eight colors. Each seed is another environment with another assignment, and other random numbers. The arms:

    real      rows as they are
    shuffled  the advantages of a step are exchanged between its rollouts at random: nothing can be learned
    shifted   masks and logprobs are moved by one token, as a trainer with an off-by-one error would see them

Settings were chosen on seeds from 100 on. The seeds that are reported were not used before. Every arm of a seed begins
with the same policy. The reward is that of training rollouts, which are sampled at temperature 1. The policy is
also measured on the test split, which training never sees. PyTorch is installed into the cache if it is not there.
"""

import argparse
import asyncio
import json
import random
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import fmean
from tempfile import mkdtemp
from typing import Any

from common import CACHE, ROOT, Check, describe_machine, make_venv, print_verdict, render_table

SEEDS = (11, 12, 13)
STEPS, GROUPS, GROUP_SIZE = 60, 24, 8
LEARNING_RATE, MAX_GRADIENT = 1e-3, 0.5
FIRST, LAST = 3, 5
"""The first and last steps over which rewards are averaged: the policy learns fast."""
BELOW, ABOVE = 0.3, 0.8
FLAT = 0.1
"""By how much the reward of the arm with shuffled scores may rise. It may fall: noise damages a policy."""
ARMS = ("real", "shuffled", "shifted")
REQUIREMENTS = ("torch==2.13.0", "numpy", "safetensors", "tokenizers", "jinja2", "-e", str(ROOT))


# ---- one run, in a process with PyTorch -----------------------------------------------------------------------------


class SpoiledTrainer:
    """A trainer that gets rows in which something is wrong."""

    def __init__(self, trainer: Any, arm: str, seed: int) -> None:
        self._trainer = trainer
        self._arm = arm
        self._seed = seed

    def __getattr__(self, name: str) -> Any:
        return getattr(self._trainer, name)

    async def update(self, rows: Sequence[Any]) -> Any:
        return await self._trainer.update(spoil_rows(rows, self._arm, f"{self._seed}/{self._trainer.version}"))


def spoil_rows(rows: Sequence[Any], arm: str, seed: str) -> list[Any]:
    """The rows of an arm."""
    import msgspec

    from ludus.types import Tokens

    if arm == "shuffled":
        advantages = [row.advantage for row in rows]
        random.Random(seed).shuffle(advantages)
        return [msgspec.structs.replace(row, advantage=value) for row, value in zip(rows, advantages, strict=True)]
    if arm == "shifted":
        return [
            msgspec.structs.replace(
                row,
                tokens=Tokens(row.tokens.ids, (False, *row.tokens.sampled[:-1]), (None, *row.tokens.logprobs[:-1])),
            )
            for row in rows
        ]
    return list(rows)


async def run_arm(arm: str, seed: int, steps: int) -> dict[str, Any]:
    """Train one policy. Returns its rewards, its scores on the test split, and the time that it took."""
    from ludus.config.secrets import find_weights_folder
    from ludus.envs.parcels import Parcels
    from ludus.models.scripted import ScriptedModel
    from ludus.policy import Limits, Policy
    from ludus.rl.grpo_settings import GrpoSettings
    from ludus.rl.loop import RlRun, run_rl
    from ludus.rl.settings import RlSettings
    from ludus.rl.torch_trainer import open_trainer
    from ludus.runner import Runner, RunOptions
    from ludus.types import Sampling

    env = Parcels(seed=seed)
    settings = GrpoSettings(
        learning_rate=LEARNING_RATE, max_gradient=MAX_GRADIENT, threads=1, slots=96, context=160, seed=seed
    )
    trainer = open_trainer(settings, find_weights_folder())
    run = RlRun(
        policy=Policy(ScriptedModel([]), sampling=Sampling(max_tokens=20), limits=Limits(turns=3)),
        trainer=SpoiledTrainer(trainer, arm, seed),  # pyright: ignore[reportArgumentType]
        settings=RlSettings(
            steps=steps, groups=GROUPS, group_size=GROUP_SIZE, seed=seed, eval_every=steps, eval_split="test"
        ),
        tasks=tuple(env.tasks("train")),
        held_out=tuple(env.tasks("test")),
        runner=Runner(env, options=RunOptions(concurrency=GROUPS * GROUP_SIZE)),
    )
    started, cpu = time.monotonic(), time.process_time()
    records = [record async for record in run_rl(run)]
    return {
        "arm": arm,
        "seed": seed,
        "rewards": [record.reward for record in records if record.step],
        "test": [record.held_out.mean for record in records if record.held_out is not None],
        "seconds": time.monotonic() - started,
        "cpu": time.process_time() - cpu,
    }


# ---- the demo -------------------------------------------------------------------------------------------------------

DEMO_ABOVE = 0.9
LUDUS = "import sys; from ludus.cli import main; sys.exit(main())"


def run_demo(python: Path, seed: int, folder: Path) -> dict[int, float]:
    """Train with the demo's settings, another assignment of desks and other random numbers. Returns the score on the
    held-out tasks by step. A run that is in the folder already is read, or resumed."""
    out = folder / f"demo-{seed}"
    how = ["--resume"] if out.exists() else ["--config", str(ROOT / "configs/rl-demo.yaml")]
    seeds = (
        [] if out.exists() else [part for name in ("env", "rl", "trainer") for part in (f"--{name}.seed", str(seed))]
    )
    if not (out / "summary.json").exists():
        command = [str(python), "-c", LUDUS, "rl", *how, *seeds, "--quiet", "--out", str(out)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    steps = map(json.loads, (out / "steps.jsonl").read_text().splitlines())
    return {step["step"]: step["held_out"]["mean"] for step in steps if "held_out" in step}


def compare_demos(seeds: Sequence[int], folder: Path) -> int:
    """Print the table of the demo's settings on several seeds."""
    python = find_python()
    make_tiny(python)
    found = {seed: run_demo(python, seed, folder) for seed in seeds}
    steps = sorted({step for scores in found.values() for step in scores})
    rows: list[Sequence[object]] = [("seed", *(f"step {step}" for step in steps))]
    rows += [(str(seed), *(scores.get(step, "") for step in steps)) for seed, scores in found.items()]
    print(f"{describe_machine()}; configs/rl-demo.yaml: score on the held-out tasks")
    print(render_table(rows))
    ends = [
        Check(f"seed {seed} ends at", scores[max(scores)], DEMO_ABOVE, at_least=True) for seed, scores in found.items()
    ]
    return print_verdict("rl-demo", ends)


# ---- all runs -------------------------------------------------------------------------------------------------------


def start_arm(python: Path, arm: str, seed: int, steps: int) -> dict[str, Any]:
    command = [str(python), __file__, "--arm", arm, "--seeds", str(seed), "--steps", str(steps)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{arm}, seed {seed}: exit {done.returncode}\n{done.stderr.strip()}")
    print(f"  {arm}, seed {seed}: done", file=sys.stderr, flush=True)
    return json.loads(done.stdout.splitlines()[-1])


def find_python() -> Path:
    """A Python with PyTorch: this one, or one in the cache."""
    probe = "import torch, numpy, safetensors, tokenizers, jinja2, ludus"
    if subprocess.run([sys.executable, "-c", probe], capture_output=True).returncode == 0:
        return Path(sys.executable)
    return make_venv(CACHE / "rl", REQUIREMENTS)


def make_tiny(python: Path) -> None:
    """Make the tiny policy before several processes want it."""
    code = (
        "from ludus.config.secrets import find_weights_folder; from ludus.rl.tiny_policy import find_tiny_policy; "
        "find_tiny_policy(find_weights_folder(), tell=print)"
    )
    subprocess.run([str(python), "-c", code], check=True)


def judge(found: Sequence[dict[str, Any]]) -> list[Check]:
    checks: list[Check] = []
    by_arm = {arm: [one for one in found if one["arm"] == arm] for arm in ARMS}
    begin = fmean(fmean(one["rewards"][:FIRST]) for one in by_arm["real"])
    checks.append(Check("mean over seeds begins at", begin, BELOW))
    for one in by_arm["real"]:
        checks.append(Check(f"seed {one['seed']} ends at", fmean(one["rewards"][-LAST:]), ABOVE, at_least=True))
    rise = max(fmean(one["rewards"][-LAST:]) - fmean(one["rewards"][:FIRST]) for one in by_arm["shuffled"])
    checks.append(Check("shuffled scores: largest rise", rise, FLAT))
    pairs = zip(by_arm["real"], by_arm["shifted"], strict=True)
    lead = min(fmean(one["rewards"][-LAST:]) - fmean(other["rewards"][-LAST:]) for one, other in pairs)
    checks.append(Check("shifted masks: at least this much worse", lead, FLAT, at_least=True))
    return checks


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=list(SEEDS))
    parser.add_argument("--arm", choices=ARMS, help="run one arm in this process and print JSON")
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--short", action="store_true", help="a few steps, as a test of the script")
    parser.add_argument("--demo", type=int, nargs="+", metavar="SEED", help="train with the demo's settings instead")
    parser.add_argument("--keep", type=Path, help="where --demo keeps its runs; default: a new folder")
    arguments = parser.parse_args()
    if arguments.demo:
        return compare_demos(arguments.demo, arguments.keep or Path(mkdtemp(prefix="ludus-rl-demo-")))
    if arguments.arm:
        print(json.dumps(asyncio.run(run_arm(arguments.arm, arguments.seeds[0], arguments.steps))))
        return 0
    steps = 2 if arguments.short else arguments.steps
    seeds = arguments.seeds[:1] if arguments.short else arguments.seeds
    started, python = time.monotonic(), find_python()
    make_tiny(python)
    with ThreadPoolExecutor(2) as pool:
        jobs = [pool.submit(start_arm, python, arm, seed, steps) for seed in seeds for arm in ARMS]
        found = [job.result() for job in jobs]
    rows: list[Sequence[object]] = [("arm", "seed", "first steps", "last steps", "test: first", "test: last", "CPU s")]
    for one in sorted(found, key=lambda one: (ARMS.index(one["arm"]), one["seed"])):
        first, last = fmean(one["rewards"][:FIRST]), fmean(one["rewards"][-LAST:])
        rows.append((one["arm"], str(one["seed"]), first, last, one["test"][0], one["test"][-1], one["cpu"]))
    print(f"{describe_machine()}; {steps} steps of {GROUPS} × {GROUP_SIZE} rollouts, learning rate {LEARNING_RATE}")
    print(render_table(rows))
    minutes = (time.monotonic() - started) / 60
    return print_verdict("rl", [*([] if arguments.short else judge(found)), Check("minutes", minutes, 35.0)])


if __name__ == "__main__":
    sys.exit(main())
