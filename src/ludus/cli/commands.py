"""The list of commands, as `ludus --help` shows it.

A command is one line here and one module of its name in this folder, which defines `COMMAND`. The module is imported
when its command is used, so that help stays fast.
"""

import importlib
from collections.abc import Iterator
from typing import Any, Literal, NamedTuple

from ludus.cli.command import Command

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

    def load(self) -> Command[Any]:
        return importlib.import_module(f"ludus.cli.{self.name}").COMMAND


COMMANDS = (
    Listing("run", "evaluate", "measure a model on an environment: mean, pass@k, interval, cost"),
    Listing("run", "run", "let an agent work on one prompt in a slot, and print what it does"),
    Listing("run", "process", "write groups of scored rollouts as JSONL, and a page to read them"),
    Listing(
        "train", "train", "train the skill of an agent: propose changes from rollouts, keep those that score higher"
    ),
    Listing("train", "headroom", "measure, before training, whether it is worth it: noise, room for a gain, cost"),
    Listing("serve", "serve", "send groups of scored rollouts to a trajectory server, for a trainer of weights"),
    Listing("train", "rl", "train the weights of a policy by reinforcement learning"),
    Listing("serve", "api", "take scored groups from environments and give batches to trainers, as Atropos does"),
    Listing("serve", "gateway", "serve the model to any agent, and record its requests and replies"),
    Listing("look", "show", "print the numbers of a run, the steps of a training run, or one transcript"),
    Listing("look", "regate", "apply another gate to the decisions of a training run, without a rollout"),
    Listing("look", "compare", "compare runs on the tasks that they share: difference with interval, won, lost, cost"),
    Listing("look", "envs", "list the environments that come with Ludus"),
    Listing("look", "tools", "list toolsets, their tools, and distributions"),
    Listing("look", "config", "print every setting, as Markdown"),
    Listing("check", "doctor", "check what works on this machine, and print how to fix what does not"),
    Listing("check", "validate", "check without a model that an environment scores correctly"),
    Listing(
        "check",
        "sandbox",
        "list sandbox backends, run a command in a slot, or remove what is left over",
    ),
    Listing("check", "check", "check training rows before a trainer uses them: a run, or any JSONL in Atropos' format"),
    Listing("make", "new", "create a package for an environment of your own; it passes ludus validate as it is"),
    Listing("make", "rescore", "judge the rollouts of a run again with a corrected verifier, without the model"),
    Listing("make", "score", "judge the sessions of a gateway run with an environment"),
    Listing("make", "export", "write the training data of a run: rows for RL, conversations, preferences"),
    Listing("make", "parse", "read tool calls from a model's text on stdin"),
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
