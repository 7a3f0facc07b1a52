"""The arms of an audit: who acts in its rollouts."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from ludus.attacks.library import Attack, list_attacks
from ludus.audit.answers import CONSTANTS, NOTHING, REPLIES, say_answer
from ludus.audit.findings import ArmKind
from ludus.audit.players import play_reply, play_script
from ludus.env import Env, can_solve, make_turns
from ludus.errors import ConfigError, HarnessError, describe_error, suggest
from ludus.models.scripted import ScriptedModel
from ludus.policy import Agent, AgentResult, Scene
from ludus.types import StopReason

REFERENCE, DOING_NOTHING = "reference", "nothing"
REPLY_COUNTS_ON = "a verifier that believes the reply, or lets it run where it is judged"


@dataclass(frozen=True)
class Arm:
    """One way to behave in all tasks."""

    name: str
    kind: ArmKind
    model: ScriptedModel
    repeats: int = 1
    needs_shell: bool = False
    counts_on: str = ""
    """What it counts on."""


def list_arms(env: Env, *, slots: bool, repeats: int = 3, only: Collection[str] = ()) -> list[Arm]:
    """The arms for an environment. `slots`: its agents may have slots. `only`: the names of the attacks to try.

    Raises:
        ConfigError: there is no such attack.
    """
    attacks = [*_list_reply_attacks(), *(_make_attack(each) for each in list_attacks() if slots)]
    names = [each.name for each in attacks]
    for name in only:
        if name not in names:
            raise ConfigError(f"--attacks: there is no attack '{name}' for this environment; {suggest(name, names)}")
    return [
        *([_make_reference(repeats)] if can_solve(env) else []),
        Arm(DOING_NOTHING, "nothing", play_reply("audit: nothing", lambda prompt: NOTHING), repeats),
        *(each for each in attacks if not only or each.name in only),
        *([] if only else _list_guesses()),
    ]


def _make_reference(repeats: int) -> Arm:
    return Arm(REFERENCE, "reference", play_reply("audit: reference", lambda prompt: NOTHING), repeats)


def _list_reply_attacks() -> Iterator[Arm]:
    for name, reply in REPLIES.items():
        yield Arm(name, "attack", play_reply(f"audit: {name}", reply), counts_on=REPLY_COUNTS_ON)


def _make_attack(attack: Attack) -> Arm:
    model = play_script(f"audit: {attack.name}", attack.script)
    return Arm(attack.name, "attack", model, needs_shell=True, counts_on=attack.notes)


def _list_guesses() -> Iterator[Arm]:
    for value in CONSTANTS:
        yield Arm(value, "guess", play_reply(f"audit: guess {value}", lambda prompt, value=value: say_answer(value)))


class ReferenceAgent(Agent):
    """Does what the environment's own `solve` does."""

    def __init__(self, env: Env) -> None:
        self._env = env

    @property
    def name(self) -> str:
        return REFERENCE

    async def act(self, scene: Scene) -> StopReason:
        try:
            solution = await self._env.solve(scene.task, scene.box)
        except Exception as error:  # an environment is foreign code
            raise HarnessError(f"solve raised {describe_error(error)}", retryable=False) from error
        turns, stop = make_turns(solution), StopReason.FINISHED
        return scene.keep(AgentResult(scene.opening, (), turns, stop, exit=None, error=None))
