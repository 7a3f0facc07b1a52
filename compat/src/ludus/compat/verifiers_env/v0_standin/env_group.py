"""Several environments as one. Each row says in `info["env_id"]` which of them plays it."""

# Values of foreign code have no types.
# pyright: reportUnknownVariableType=false, reportUnknownMemberType=false, reportUnknownArgumentType=false
# pyright: reportUnknownLambdaType=false, reportUnknownParameterType=false

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ludus.compat.verifiers_env.v0_standin.environments import Environment
from ludus.compat.verifiers_env.v0_standin.rows import Rows
from ludus.compat.verifiers_env.v0_standin.rubrics import Rubric
from ludus.compat.verifiers_env.v0_standin.values import State

KEY = "env_id"


class EnvGroup(Environment):
    """A mixture of environments."""

    def __init__(self, envs: Sequence[Environment], env_names: Sequence[str] | None = None, **kwargs: Any) -> None:
        if not envs:
            raise ValueError("EnvGroup: there are no environments")
        self.envs = list(envs)
        self.env_names = list(env_names or (f"env_{number}" for number in range(len(envs))))
        if len(self.env_names) != len(self.envs):
            raise ValueError("EnvGroup: there must be a name for each environment")
        self.env_map = dict(zip(self.env_names, self.envs, strict=True))
        tables = [_join_rows(self.env_map, kind) for kind in ("build_dataset", "build_eval_dataset")]
        super().__init__(dataset=tables[0], eval_dataset=tables[1], rubric=GroupRubric(self.env_map), **kwargs)

    async def rollout(self, input: Mapping[str, Any], client: Any, model: str, sampling_args: Any = None) -> State:
        route = self._find_route(input)
        row = {**input, "info": _set_route(input.get("info"), route[1:])}
        state = await self.get_env_for_name(route[0]).rollout(row, client, model, sampling_args)
        state["info"] = _set_route(state.get("info"), route)
        return state

    async def run_rollout(
        self, input: Mapping[str, Any], client: Any, model: str, sampling_args: Any, **_: Any
    ) -> dict[str, Any]:
        """A rollout of its environment, with the metrics of that alone."""
        route = self._find_route(input)
        row = {**input, "info": _set_route(input.get("info"), route[1:])}
        return await self.get_env_for_name(route[0]).run_rollout(row, client, model, sampling_args)

    def get_env_for_name(self, name: str) -> Environment:
        if name not in self.env_map:
            raise ValueError(f"info['env_id']: there is no environment {name!r}")
        return self.env_map[name]

    def set_score_rollouts(self, score_rollouts: bool) -> None:
        self.score_rollouts = score_rollouts
        for env in self.envs:
            env.set_score_rollouts(score_rollouts)

    async def _teardown(self) -> None:
        for env in self.envs:
            await env._teardown()

    def _find_route(self, row: Mapping[str, Any]) -> list[str]:
        route = _read_route(row.get("info"))
        if not route and len(self.envs) > 1:
            raise ValueError("info['env_id'] is missing: it names the environment of the row")
        return route or [self.env_names[0]]


class GroupRubric(Rubric):
    """Has each rollout scored by its environment. Metrics of the others are 0."""

    def __init__(self, env_map: Mapping[str, Environment]) -> None:
        super().__init__()
        self.env_map = env_map

    def _get_reward_func_names(self) -> list[str]:
        rubrics: list[Any] = [env.rubric for env in self.env_map.values()]
        return sorted({name for rubric in rubrics for name in rubric._get_reward_func_names()})

    @property
    def has_group_rewards(self) -> bool:
        return any(env.rubric.has_group_rewards for env in self.env_map.values())

    async def score_rollout(self, state: Any) -> None:
        await self._find(state).rubric.score_rollout(state)
        self._complete(state)

    async def score_group(self, states: Sequence[Any]) -> None:
        await self._find(states[0]).rubric.score_group(states)
        for state in states:
            self._complete(state)

    async def cleanup(self, state: Any) -> None:
        await self._find(state).rubric.cleanup(state)
        await super().cleanup(state)

    def _find(self, state: Any) -> Environment:
        route = _read_route(state.get("info"))
        return self.env_map[route[0]] if route else next(iter(self.env_map.values()))

    def _complete(self, state: Any) -> None:
        state["metrics"] = {**dict.fromkeys(self._get_reward_func_names(), 0.0), **(state.get("metrics") or {})}


def _join_rows(env_map: Mapping[str, Environment], kind: str) -> Rows | None:
    """The rows of all environments, each with its route and a number of its own."""
    tables = [(name, getattr(env, kind)()) for name, env in env_map.items()]
    rows = list(_add_routes((name, table) for name, table in tables if table is not None))
    return Rows.from_list({**row, "example_id": number} for number, row in enumerate(rows)) if rows else None


def _add_routes(tables: Iterator[tuple[str, Any]]) -> Iterator[dict[str, Any]]:
    for name, table in tables:
        for row in table:
            given = {key: value for key, value in dict(row).items() if key != KEY}
            yield {**given, "info": _set_route(given.get("info"), [name, *_read_route(given.get("info"))])}


def _read_info(info: Any) -> dict[str, Any]:
    return dict(json.loads(info) if isinstance(info, str) else info or {})


def _read_route(info: Any) -> list[str]:
    route = _read_info(info).get(KEY)
    return [route] if isinstance(route, str) else list(route or ())


def _set_route(info: Any, route: Sequence[str]) -> dict[str, Any]:
    kept = {name: value for name, value in _read_info(info).items() if name != KEY}
    return {**kept, KEY: route[0] if len(route) == 1 else list(route)} if route else kept
