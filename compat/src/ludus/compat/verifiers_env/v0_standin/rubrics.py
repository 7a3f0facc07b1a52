"""Rewards: functions with weights (`Rubric`), several rubrics (`RubricGroup`), and a judge (`JudgeRubric`).

A function gets those values that its parameters name: `prompt`, `completion`, `answer`, `state`, `info`, `task`, the
columns of the row, and the rubric's own objects. One that raises has the score 0, as in the package. One that takes
`completions`, `states` and so on, or says that it returns a list, scores all rollouts of a task.
"""

# Values of foreign code have no types.
# pyright: reportUnknownVariableType=false, reportUnknownMemberType=false, reportUnknownArgumentType=false
# pyright: reportUnknownLambdaType=false, reportUnknownParameterType=false

import asyncio
import importlib
import inspect
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, get_origin

from ludus.compat.verifiers_env.v0_standin.decorators import discover_decorated, maybe_await, pick_arguments
from ludus.compat.verifiers_env.v0_standin.parsers import (
    MaybeThinkParser,
    Parser,
    extract_boxed_answer,
    get_field,
    read_text,
)
from ludus.envs.math_answers import compare_expressions, require_math_verify
from ludus.errors import ConfigError

RewardFunc = Callable[..., Any]
_PLURALS = {"states", "prompts", "completions", "answers", "tasks", "infos"}
_ROW = ("prompt", "answer", "info", "example_id")
JUDGE_PROMPT = """\
Is the response correct? Compare it with the reference answer.

Question:
{question}

Reference answer:
{answer}

Response:
{response}

Reply with one word: "yes" or "no"."""


class Rubric:
    """Functions and their weights."""

    def __init__(
        self,
        funcs: list[RewardFunc] | None = None,
        weights: list[float] | None = None,
        parser: Parser | None = None,
    ) -> None:
        self.logger = logging.getLogger(f"verifiers.rubrics.{type(self).__name__}")
        self.funcs = funcs or []
        self.weights = weights or [1.0] * len(self.funcs)
        if len(self.weights) != len(self.funcs):
            raise ValueError(f"weights: there are {len(self.weights)} for {len(self.funcs)} functions")
        self.parser = parser or Parser()
        self.class_objects: dict[str, Any] = {"parser": self.parser}
        self._cleanup_handlers = discover_decorated(self, "cleanup")
        self._teardown_handlers = discover_decorated(self, "teardown")

    def add_reward_func(self, func: RewardFunc, weight: float = 1.0) -> None:
        self.funcs.append(func)
        self.weights.append(weight)

    def add_metric(self, func: RewardFunc, weight: float = 0.0) -> None:
        self.add_reward_func(func, weight)

    def add_class_object(self, name: str, obj: Any) -> None:
        self.class_objects[name] = obj

    def _get_reward_func_names(self) -> list[str]:
        return [_get_name(func) for func in self.funcs]

    def _get_reward_funcs(self) -> list[RewardFunc]:
        return list(self.funcs)

    def _get_reward_weights(self) -> list[float]:
        return self.weights

    @property
    def has_group_rewards(self) -> bool:
        return any(map(is_group_func, self.funcs))

    @property
    def has_advantages(self) -> bool:
        return False

    async def score_rollout(self, state: Any) -> None:
        """Score one rollout. Its reward and metrics are in the state."""
        assert self.funcs and not self.has_group_rewards, "a rubric for one rollout has functions, none of groups"
        scores = [await self._score_one(func, state) for func in self.funcs]
        state["reward"] = sum(score * weight for score, weight in zip(scores, self.weights, strict=True))
        state["metrics"] = dict(zip(self._get_reward_func_names(), scores, strict=True))

    async def score_group(self, states: Sequence[Any]) -> None:
        """Score the rollouts of a task."""
        rewards = [0.0] * len(states)
        metrics: list[dict[str, float]] = [{} for _ in states]
        for func, weight in zip(self.funcs, self.weights, strict=True):
            for number, score in enumerate(await self._score_all(func, states)):
                rewards[number] += score * weight
                metrics[number][_get_name(func)] = score
        mean = sum(rewards) / len(rewards) if rewards else 0.0
        for state, reward, values in zip(states, rewards, metrics, strict=True):
            state["reward"], state["advantage"], state["metrics"] = reward, reward - mean, values
            _fill_steps(state)

    async def dummy_score_rollout(self, state: Any) -> None:
        state["reward"], state["metrics"] = 0.0, {}

    async def dummy_score_group(self, states: Sequence[Any]) -> None:
        for state in states:
            await self.dummy_score_rollout(state)

    async def cleanup(self, state: Any) -> None:
        for handler in self._cleanup_handlers:
            await maybe_await(handler, **pick_arguments(handler, self.score_objects(state)))

    async def teardown(self) -> None:
        for handler in self._teardown_handlers:
            await maybe_await(handler)

    def score_objects(self, state: Any) -> dict[str, Any]:
        """What functions can ask for."""
        row, task = state.get("input") or {}, state.get("task")
        columns = {name: value for name, value in row.items() if name not in _ROW}
        fields = dict(task) if isinstance(task, Mapping) else {}
        own = {"prompt": state["prompt"], "completion": state["completion"], "answer": state.get("answer", "")}
        own |= {"state": state, "info": state.get("info", {})}
        return {**columns, **fields, **own, **self.class_objects, "task": task}

    def group_score_objects(self, states: Sequence[Any]) -> dict[str, Any]:
        objects = [self.score_objects(state) for state in states]
        names = ("prompt", "completion", "answer", "task", "info")
        return {
            **{f"{name}s": [one[name] for one in objects] for name in names},
            "states": states,
            **self.class_objects,
        }

    async def _score_one(self, func: RewardFunc, state: Any) -> float:
        try:
            return float(await maybe_await(func, **pick_arguments(func, self.score_objects(state))))
        except Exception as error:
            self.logger.error("the reward %s failed: %s", _get_name(func), error)
            return 0.0

    async def _score_all(self, func: RewardFunc, states: Sequence[Any]) -> Sequence[float]:
        if not is_group_func(func):
            return await asyncio.gather(*(self._score_one(func, state) for state in states))
        try:
            return await maybe_await(func, **pick_arguments(func, self.group_score_objects(states)))
        except Exception as error:
            self.logger.error("the reward %s failed: %s", _get_name(func), error)
            return [0.0] * len(states)


def is_group_func(func: RewardFunc) -> bool:
    """Whether a function scores all rollouts of a task."""
    signature = inspect.signature(func)
    returns = signature.return_annotation
    return bool(_PLURALS & set(signature.parameters)) or returns is list or get_origin(returns) is list


def _get_name(func: RewardFunc) -> str:
    return getattr(func, "__name__", repr(func))


def _fill_steps(state: Any) -> None:
    for step in state["trajectory"]:
        for name in ("advantage", "reward"):
            if step[name] is None:
                step[name] = state[name]


class RubricGroup(Rubric):
    """Several rubrics: rewards and metrics of one name are added up."""

    def __init__(self, rubrics: list[Rubric], **kwargs: Any) -> None:
        if not rubrics:
            raise ValueError("RubricGroup: there are no rubrics")
        super().__init__(**kwargs)
        self.rubrics = rubrics

    def _get_reward_func_names(self) -> list[str]:
        return [name for rubric in self.rubrics for name in rubric._get_reward_func_names()]

    def _get_reward_funcs(self) -> list[RewardFunc]:
        return [func for rubric in self.rubrics for func in rubric._get_reward_funcs()]

    def _get_reward_weights(self) -> list[float]:
        return [weight for rubric in self.rubrics for weight in rubric._get_reward_weights()]

    @property
    def has_group_rewards(self) -> bool:
        return any(rubric.has_group_rewards for rubric in self.rubrics)

    def add_reward_func(self, func: RewardFunc, weight: float = 1.0) -> None:
        self.rubrics[0].add_reward_func(func, weight)

    def add_metric(self, func: RewardFunc, weight: float = 0.0) -> None:
        self.rubrics[0].add_metric(func, weight)

    def add_class_object(self, name: str, obj: Any) -> None:
        self.rubrics[0].add_class_object(name, obj)

    async def score_rollout(self, state: Any) -> None:
        await self._add_up([state], lambda rubric: rubric.score_rollout(state))

    async def score_group(self, states: Sequence[Any]) -> None:
        await self._add_up(states, lambda rubric: rubric.score_group(states))

    async def _add_up(self, states: Sequence[Any], score: Callable[[Rubric], Any]) -> None:
        before = [(state.get("reward"), state.get("metrics")) for state in states]
        rewards = [0.0] * len(states)
        metrics: list[dict[str, float]] = [{} for _ in states]
        for rubric in self.rubrics:
            await score(rubric)
            for number, state in enumerate(states):
                rewards[number] += state.get("reward") or 0.0
                for name, value in (state.get("metrics") or {}).items():
                    metrics[number][name] = metrics[number].get(name, 0.0) + value
                state["reward"], state["metrics"] = before[number]
        for state, reward, values in zip(states, rewards, metrics, strict=True):
            state["reward"], state["metrics"] = reward, values

    async def cleanup(self, state: Any) -> None:
        await super().cleanup(state)
        for rubric in self.rubrics:
            await rubric.cleanup(state)

    async def teardown(self) -> None:
        await super().teardown()
        for rubric in self.rubrics:
            await rubric.teardown()


class JudgeRubric(Rubric):
    """A rubric whose functions can ask a model: `judge(prompt, completion, answer, state)`."""

    def __init__(
        self,
        parser: Parser | None = None,
        parallelize_scoring: bool = False,
        judge_client: Any = None,
        judge_model: str = "gpt-4.1-nano",
        judge_sampling_args: Mapping[str, Any] | None = None,
        judge_prompt: str = JUDGE_PROMPT,
    ) -> None:
        super().__init__(parser=parser)
        self.judge_client = _make_judge_client() if judge_client is None else judge_client
        self.judge_model = judge_model
        self.judge_prompt = judge_prompt
        self.judge_sampling_args = dict(judge_sampling_args or {})
        names = ("parser", "judge", "judge_client", "judge_model", "judge_prompt", "judge_sampling_args")
        self.class_objects = {name: getattr(self, name) for name in names}

    async def judge(self, prompt: Any, completion: Any, answer: Any, state: Any = None) -> str:
        """What the model says about a reply. It is asked once for each text."""
        text = self.judge_prompt.format(
            question=_read_question(prompt), answer=answer, response=self.parser.parse_answer(completion)
        )
        known = dict((state or {}).get("judge_response") or {})
        if text not in known:
            known[text] = await self._ask(text)
        if state is not None:
            state["judge_response"] = known
        return known[text]

    async def _ask(self, text: str) -> str:
        messages = [{"role": "user", "content": text}]
        args = {name: value for name, value in self.judge_sampling_args.items() if value is not None}
        if "max_tokens" in args:
            args["max_completion_tokens"] = args.pop("max_tokens")
        create = self.judge_client.chat.completions.create
        try:
            reply = await maybe_await(create, model=self.judge_model, messages=messages, **args)
        except Exception as error:
            raise RuntimeError(f"the judge {self.judge_model} cannot be asked: {error}") from error
        return str(reply.choices[0].message.content)


def _read_question(prompt: Any) -> str:
    return read_text(get_field(prompt[-1], "content", "")) if isinstance(prompt, list) and prompt else str(prompt)


def _make_judge_client() -> Any:
    try:
        openai: Any = importlib.import_module("openai")
        return openai.AsyncOpenAI()
    except Exception as error:
        raise ConfigError(
            f"env.id: verifiers.JudgeRubric has no judge ({error}): give it a judge_client, or install the package "
            "openai and set OPENAI_API_KEY (and OPENAI_BASE_URL)"
        ) from error


class MathRubric(Rubric):
    """Compares an expression in a box with the answer."""

    def __init__(
        self,
        funcs: list[RewardFunc] | None = None,
        weights: list[float] | None = None,
        parser: Parser | None = None,
        max_verify_chars: int = 50_000,
        **_: Any,
    ) -> None:
        require_math_verify()
        parser = parser or MaybeThinkParser(lambda text: extract_boxed_answer(text, strict=True))
        super().__init__(funcs=funcs, weights=weights, parser=parser)
        self.max_verify_chars = max_verify_chars
        self.add_reward_func(self.correct_answer)

    async def correct_answer(self, parser: Parser, completion: Any, answer: Any, **kwargs: Any) -> float:
        response = parser.parse_answer(completion) or ""
        if not response or len(response) > self.max_verify_chars:
            return 0.0
        return (await compare_expressions(str(answer), f"\\boxed{{{response}}}")).value
