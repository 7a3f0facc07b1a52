"""Environments as users of verifiers 0.1 write them. `vf` is the package, or what Ludus provides in its place."""

from collections.abc import Callable
from typing import Any, Literal

ROWS = [{"question": f"{n} + 2?", "answer": str(n + 2)} for n in range(3)]


def add(a: int, b: int = 1) -> int:
    """Add two numbers.

    Args:
        a: the first
        b: the second
    """
    return a + b


async def fail(word: str, times: list[int] | None = None, how: Literal["loud", "still"] = "still") -> str:
    """Fail.

    :param word: what to say
    """
    raise ValueError(f"no {word}")


def right(completion: Any, answer: str, parser: Any) -> float:
    return float(parser.parse_answer(completion) == answer)


def breaks(completion: Any, **kwargs: Any) -> float:
    raise RuntimeError("this reward is broken")


def make_single(vf: Any, data: Any) -> Any:
    parser = vf.XMLParser(["think", ("answer", "reply")])
    rubric = vf.Rubric(funcs=[right, parser.get_format_reward_func(), breaks], weights=[1.0, 0.25, 9.0], parser=parser)
    shots = [{"role": "user", "content": "1 + 1?"}, {"role": "assistant", "content": "<answer>2</answer>"}]
    return vf.SingleTurnEnv(dataset=data, system_prompt="Be exact.", few_shot=shots, parser=parser, rubric=rubric)


def make_tools(vf: Any, data: Any) -> Any:
    parser = vf.Parser(extract_fn=lambda text: vf.extract_boxed_answer(text))
    rubric = vf.Rubric(funcs=[right], parser=parser)
    return vf.ToolEnv(dataset=data, tools=[add, fail], rubric=rubric, parser=parser, max_turns=4)


def make_game(vf: Any, data: Any) -> Any:
    class Game(vf.MultiTurnEnv):
        async def setup_state(self, state: Any) -> None:
            state["tries"] = 0

        @vf.stop
        async def is_solved(self, state: Any) -> bool:
            steps = state["trajectory"]
            return bool(steps) and state["answer"] in (steps[-1]["completion"][-1].content or "")

        async def env_response(self, messages: Any, state: Any, **kwargs: Any) -> Any:
            state["tries"] += 1
            if state["tries"] == 3:
                state["final_env_response"] = [{"role": "user", "content": "You lost."}]
            return [{"role": "user", "content": f"No: {state['tries']}"}]

    def few_tries(state: Any) -> float:
        return 1.0 / (1 + state["tries"])

    def last_word(completion: Any) -> float:
        return float(completion[-1]["role"] == "user")

    return Game(dataset=data, rubric=vf.Rubric(funcs=[few_tries, last_word], weights=[1.0, 0.1]), max_turns=6)


def make_stateful(vf: Any, data: Any) -> Any:
    class Vault(vf.StatefulToolEnv):
        def __init__(self, **kwargs: Any) -> None:
            super().__init__(tools=[add], **kwargs)
            self.add_tool(self.open, args_to_skip=["state"])

        async def open(self, code: str, state: Any) -> str:
            """Open the vault."""
            state["codes"] = [*state.get("codes", []), code]
            return f"code {len(state['codes'])}"

        def update_tool_args(self, tool_name: str, tool_args: Any, messages: Any, state: Any, **kwargs: Any) -> Any:
            return {**tool_args, "state": state} if tool_name == "open" else tool_args

    def codes(state: Any) -> float:
        return float(len(state.get("codes", [])))

    return Vault(dataset=data, rubric=vf.Rubric(funcs=[codes]), max_turns=5)


def make_group(vf: Any, data: Any) -> Any:
    def longest(completions: Any) -> list[float]:
        lengths = [len(completion[-1].content or "") for completion in completions]
        return [float(length == max(lengths)) for length in lengths]

    first = vf.SingleTurnEnv(dataset=data, rubric=vf.Rubric(funcs=[longest]))
    return vf.EnvGroup([first, make_tools(vf, data)], env_names=["long", "tools"])


def make_mixture(vf: Any, data: Any) -> Any:
    return vf.EnvGroup([make_tools(vf, data), make_single(vf, data)])


def make_bare(vf: Any, data: Any) -> Any:
    return vf.SingleTurnEnv(dataset=data)


MAKERS: dict[str, Callable[[Any, Any], Any]] = {
    "single": make_single,
    "tools": make_tools,
    "game": make_game,
    "stateful": make_stateful,
    "group": make_group,
    "mixture": make_mixture,
    "bare": make_bare,
}
