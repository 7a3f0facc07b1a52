"""`ludus run`: let an agent work on one prompt in a slot, and print what it does while it does it.

The agent is that of every other command: the same model, tools, skill, limits and sandbox, by the same settings.
Nothing is scored and nothing is stored. `--files` copies a folder into the slot's /workspace before the agent begins,
`--out` copies /workspace out when it has ended.
"""

import asyncio
import sys
from dataclasses import replace
from pathlib import Path
from typing import ClassVar, Literal

from ludus.arguments import Arguments, make_argument
from ludus.command import CONFIG, JSON, ROLLOUTS, Command
from ludus.command.rollout_text import describe_end, print_failure, print_turn
from ludus.command.settings import print_model_hint
from ludus.command.terminal import make_console, make_text, print_notice
from ludus.config import Config, load
from ludus.encoding import to_json
from ludus.env import Env
from ludus.errors import ConfigError
from ludus.rollout import run_retrying
from ludus.run import open_parts
from ludus.runner import Job
from ludus.sandbox import WORKSPACE, Sandbox
from ludus.types import Rollout, Score, Task, Turn


class PromptArguments(Arguments):
    prompt: str
    files: str | None
    out: str | None


class OnePrompt(Env, frozen=True):
    """One prompt of the user's, without a verdict."""

    name: ClassVar[str] = "prompt"
    toolsets: ClassVar[tuple[str, ...]] = ("terminal", "file")
    verify_in: ClassVar[Literal["fresh", "same"]] = "same"

    files: str = ""
    """A folder that is copied into the slot."""
    out: str = ""
    """Where /workspace is copied to in the end."""

    async def setup(self, task: Task, box: Sandbox) -> None:
        if self.files:
            await box.upload(Path(self.files), WORKSPACE)

    async def verify(self, rollout: Rollout, box: Sandbox | None) -> Score:
        """No verdict: what the agent left is copied out."""
        if self.out and box is not None:
            await box.download(WORKSPACE, Path(self.out))
        return Score.of(0.0)


def run(arguments: PromptArguments) -> int:
    prompt = sys.stdin.read() if arguments.prompt == "-" else arguments.prompt
    if not prompt.strip():
        raise ConfigError('what should the agent do? For example: ludus run "Write a poem about the sea into sea.txt"')
    config = load([Path(path) for path in arguments.config], arguments.flags)
    if config.env.name:
        raise ConfigError("env: `ludus run` works on the prompt; for the tasks of an environment: ludus evaluate ENV")
    if config.tools.distribution:
        raise ConfigError("tools.distribution: name the toolsets with tools.enabled")
    _check_folders(arguments)
    if not arguments.json:
        print_model_hint(config)
    return asyncio.run(_run(prompt, config, arguments))


def _check_folders(arguments: PromptArguments) -> None:
    if arguments.files and not Path(arguments.files).is_dir():
        raise ConfigError(f"--files: there is no folder {arguments.files}")
    out = Path(arguments.out) if arguments.out else None
    if out is not None and out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ConfigError(f"--out: {out} is not an empty folder: name another one")


async def _run(prompt: str, config: Config, arguments: PromptArguments) -> int:
    env = OnePrompt(files=arguments.files or "", out=arguments.out or "")
    console = make_console()

    def show(turn: Turn) -> None:
        if not arguments.json:
            print_turn(turn, console)

    async with open_parts(config, env, tell=print_notice) as parts:
        job = Job(Task(id="prompt", prompt=prompt), parts.policy, seed=config.run.seed)
        rollout = await run_retrying(job, replace(parts.runner, on_turn=show))
    if arguments.json:
        print(to_json(rollout).decode())
    else:
        console.print()
        console.print(make_text(describe_end(rollout), "dim"))
        if rollout.failure is not None:
            print_failure(rollout.failure, console)
        elif arguments.out:
            console.print(make_text(f"what it left: {arguments.out}", "dim"))
    return 1 if rollout.failure is not None else 0


COMMAND = Command(
    run,
    'ludus run "Write the first ten primes into primes.txt"\n'
    'ludus run "Fix the failing test" --files ./project --out ./fixed \\\n'
    "    --model.name gpt-5-mini --model.base_url https://api.openai.com/v1 --model.api_key_var OPENAI_API_KEY",
    (
        make_argument("prompt", metavar="PROMPT", help="what the agent should do; - reads it from stdin"),
        make_argument("--files", metavar="DIR", help="a folder that is copied into the slot's /workspace first"),
        make_argument("--out", metavar="DIR", help="a folder that gets the content of /workspace at the end"),
        CONFIG,
        JSON,
    ),
    PromptArguments,
    """\
settings (list them: ludus config):
  --tools.enabled terminal,file,code,todo                  which tools; default: terminal, file
  --model.base_url URL --model.name NAME --model.api_key_var VARIABLE
  --limits.turns 20 --budget.dollars 2 --sandbox.network true""",
    ROLLOUTS,
)
