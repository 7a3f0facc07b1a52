"""The list of commands, as `ludus --help` shows it.

A command is one line here and one module, which is with the part that it runs. The module is imported when its command
is used, so that help stays fast.
"""

import importlib
from collections.abc import Iterator
from typing import Any, Literal, NamedTuple

from ludus.command import Command

Group = Literal["run", "train", "serve", "look", "check", "make"]

GROUPS: dict[Group, str] = {
    "run": "run an agent",
    "train": "train a skill or weights",
    "serve": "serve rollouts to trainers, or a model to agents",
    "look": "look at runs, environments, tools and settings",
    "check": "check that things work",
    "make": "make environments, scores and training data",
}


class Listing(NamedTuple):
    """A command in the list."""

    group: Group
    name: str
    summary: str
    place: str
    """The module that defines it as `COMMAND`, or `module:NAME`."""

    def load(self) -> Command[Any]:
        module, _, name = self.place.partition(":")
        return getattr(importlib.import_module(module), name or "COMMAND")


COMMANDS = (
    Listing(
        "run",
        "evaluate",
        "measure a model on an environment: mean, pass@k, interval, cost",
        "ludus.batch.command:EVALUATE_COMMAND",
    ),
    Listing(
        "run", "run", "let an agent work on one prompt in a slot, and print what it does", "ludus.batch.prompt_command"
    ),
    Listing(
        "run",
        "process",
        "write groups of scored rollouts as JSONL",
        "ludus.batch.command:PROCESS_COMMAND",
    ),
    Listing(
        "run",
        "batch",
        "run an agent on every prompt of a file, and write its trajectories",
        "ludus.trajectories.command",
    ),
    Listing(
        "run",
        "plan",
        "forecast a run on N nodes: rollouts per hour, bottleneck, cost, memory",
        "ludus.planning.command",
    ),
    Listing(
        "train",
        "train",
        "train the skill of an agent: propose changes from rollouts, keep what scores higher",
        "ludus.reflact.command",
    ),
    Listing(
        "train",
        "audit-skill",
        "tell which passages of a skill earn their tokens, by leaving them out at random",
        "ludus.reflact.audit_command",
    ),
    Listing(
        "train",
        "headroom",
        "measure, before training, whether it is worth it: noise, room for a gain, cost",
        "ludus.reflact.headroom_command",
    ),
    Listing(
        "train",
        "review",
        "decide about each change of a trained skill, with its evidence; measure the result",
        "ludus.reflact.review_command",
    ),
    Listing(
        "train",
        "triggers",
        "measure which skill an agent loads for which request; train descriptions",
        "ludus.triggers.command",
    ),
    Listing(
        "train",
        "library",
        "measure what each skill of a library is worth; propose to retire, merge, split, trim",
        "ludus.library.command",
    ),
    Listing(
        "train",
        "curate",
        "decide about the proposals for a library, and write the library that comes out",
        "ludus.library.curate_command",
    ),
    Listing(
        "train",
        "sleep",
        "train a skill on past sessions, and stage what comes out, on this machine",
        "ludus.sleep.command",
    ),
    Listing(
        "train",
        "adopt",
        "put what ludus sleep has staged in place of the live skill, or take it back",
        "ludus.sleep.adopt_command",
    ),
    Listing(
        "serve",
        "serve",
        "send groups of scored rollouts to a trajectory server, for a trainer of weights",
        "ludus.rl.serve_command",
    ),
    Listing("train", "rl", "train the weights of a policy by reinforcement learning", "ludus.rl.command"),
    Listing(
        "serve",
        "api",
        "take scored groups from environments and give batches to trainers, as Atropos does",
        "ludus.rl.api.command",
    ),
    Listing(
        "serve", "gateway", "serve the model to any agent, and record its requests and replies", "ludus.gateway.command"
    ),
    Listing("look", "runs", "list the runs of a folder: what each is, how it goes, its score", "ludus.cli.runs"),
    Listing(
        "look",
        "view",
        "look at runs in a browser, live: scores, transcripts, skills, tokens; act on them",
        "ludus.cli.view",
    ),
    Listing("look", "top", "show what a run does now, in the terminal", "ludus.cli.top"),
    Listing("look", "report", "write the pages of a run as one file that needs no server", "ludus.cli.report"),
    Listing(
        "look",
        "show",
        "print the numbers of a run, the steps of training, or a transcript",
        "ludus.cli.show",
    ),
    Listing(
        "look",
        "ctl",
        "look at a run while it runs; pause or stop it, change how many rollouts run at a time",
        "ludus.cli.ctl",
    ),
    Listing(
        "look",
        "regate",
        "apply another gate to the decisions of a training run, without a rollout",
        "ludus.reflact.regate_command",
    ),
    Listing(
        "look",
        "compare",
        "compare runs on the tasks that they share: difference, tasks won and lost, verdict",
        "ludus.batch.comparison_command",
    ),
    Listing(
        "look",
        "transcripts",
        "look at past sessions of agents: skills in use, what is left out, what is masked",
        "ludus.cli.transcripts",
    ),
    Listing("look", "envs", "list the environments that come with Ludus", "ludus.cli.envs"),
    Listing("look", "tools", "list toolsets, their tools, and distributions", "ludus.cli.tools"),
    Listing("look", "config", "print every setting, as Markdown", "ludus.cli.config"),
    Listing(
        "check", "doctor", "check what works on this machine, and print how to fix what does not", "ludus.cli.doctor"
    ),
    Listing("check", "validate", "check without a model that an environment scores correctly", "ludus.cli.validate"),
    Listing(
        "check",
        "audit",
        "attack an environment with agents that solve nothing: what passes unsolved",
        "ludus.audit.command",
    ),
    Listing(
        "check",
        "sandbox",
        "list sandbox backends, run a command in a slot, or remove what is left over",
        "ludus.cli.sandbox",
    ),
    Listing(
        "check",
        "check",
        "check training rows before a trainer uses them: a run, or JSONL of Atropos",
        "ludus.rl.check_command",
    ),
    Listing(
        "make",
        "new",
        "create a package for an environment of your own; it passes ludus validate as it is",
        "ludus.cli.new",
    ),
    Listing(
        "run",
        "fork",
        "go on from a turn of a stored rollout, with its files and a model of your choice",
        "ludus.batch.fork_command",
    ),
    Listing(
        "check",
        "replay",
        "run a stored rollout again with its recorded replies, and compare every tool result",
        "ludus.batch.replay_command",
    ),
    Listing(
        "make",
        "rescore",
        "judge the rollouts of a run again with a corrected verifier, without the model",
        "ludus.batch.rescore_command",
    ),
    Listing("make", "score", "judge the sessions of a gateway run with an environment", "ludus.gateway.score_command"),
    Listing(
        "make",
        "export",
        "write the training data of a run: rows for RL, conversations, preferences",
        "ludus.rl.exporters.command",
    ),
    Listing(
        "make",
        "compress",
        "cut trajectories to a number of tokens: a summary takes the place of the middle",
        "ludus.trajectories.compress_command",
    ),
    Listing("make", "parse", "read tool calls from a model's text on stdin", "ludus.cli.parse"),
)


def format_commands() -> str:
    """The commands by group, one per line."""
    return "\n\n".join("\n".join(_format_group(group)) for group in GROUPS)


def _format_group(group: Group) -> Iterator[str]:
    width = max(len(each.name) for each in COMMANDS)
    yield f"{GROUPS[group]}:"
    for each in COMMANDS:
        if each.group == group:
            yield f"  {each.name:<{width}}  {each.summary}"
