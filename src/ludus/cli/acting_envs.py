"""Environments that act themselves, in place of our loop: adapters of SkillOpt, environments of verifiers.

`ludus.compat` is imported only for runs with such an environment.
"""

import sys
from collections.abc import Generator
from contextlib import contextmanager, nullcontext, redirect_stdout

from ludus.agent import Actor
from ludus.env import Env
from ludus.models import Model

_ADAPTER = "skillopt-adapter"
_VERIFIERS = "verifiers"
_CLASSES = (":AdapterEnv", ":VerifiersEnv")


@contextmanager
def redirect_prints(env: str) -> Generator[None]:
    """Send what such an environment prints to stderr: stdout is for the output of the command."""
    with redirect_stdout(sys.stderr) if env.endswith(_CLASSES) else nullcontext():
        yield


def make_actor(env: Env, model: Model) -> Actor | None:
    """The agent that acts in place of the loop; None for other environments."""
    if env.name == _VERIFIERS:
        from ludus.compat.verifiers_env import VerifiersActor, VerifiersEnv

        return VerifiersActor(env, model) if isinstance(env, VerifiersEnv) else None
    if env.name != _ADAPTER:
        return None
    from ludus.compat.skillopt.adapters import AdapterActor, AdapterEnv

    return AdapterActor(env) if isinstance(env, AdapterEnv) else None
