"""SkillOpt's six benchmarks as environments of Ludus.

`env.name: searchqa` is Ludus's own environment of that name, with SkillOpt's data: a folder with the splits
(`split_dir`), or a file that is divided (`data_path`). The package `skillopt` is not needed. Its own adapter has
another name: `skillopt.envs.searchqa.adapter:SearchQAAdapter`.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from ludus.compat.skillopt.findings import Findings
from ludus.config.reading import Tree


class Benchmark(NamedTuple):
    """How the keys of a benchmark are read."""

    split_mode: str = "ratio"
    """What SkillOpt takes if the file does not say it."""
    options: Mapping[str, str] = {}
    """Keys that are options of the environment, and their names here."""
    unused: tuple[str, ...] = ()
    """Keys without an effect here."""


BENCHMARKS: Mapping[str, Benchmark] = {
    "searchqa": Benchmark(),
    "alfworld": Benchmark("split_dir", {"max_steps": "max_steps"}, ("max_api_workers",)),
    "docvqa": Benchmark("split_dir", unused=("image_detail",)),
    "livemathematicianbench": Benchmark(
        options={"shuffle_choices": "shuffle_choices", "use_theorem": "use_theorem", "use_sketch": "use_sketch"}
    ),
    "officeqa": Benchmark("split_dir", {"data_dirs": "docs", "docs_dirs": "docs"}),
    "spreadsheetbench": Benchmark(options={"data_root": "data"}, unused=("mode",)),
}
_LEFTOVERS = ("judge_model", "judge_max_completion_tokens", "judge_retries")
"""Options of SkillOpt's command that nothing reads."""
_ONLINE = "max_queries_per_turn search_api_url search_auth_env search_provider search_max_num_results"
_ONLINE_ONLY = (*_ONLINE.split(), "search_timeout_seconds")
"""Keys of OfficeQA that have an effect only with a search service."""


def convert_options(name: str, env: Mapping[str, Any], seed: int, found: Findings) -> Tree:
    """The options of a benchmark's environment."""
    benchmark = BENCHMARKS[name]
    options: Tree = {"path": env.get("split_dir" if find_split_mode(env) == "split_dir" else "data_path") or ""}
    for key, option in benchmark.options.items():
        if env.get(key) is not None:
            options[option] = _take_one(key, env[key], found) if option == "docs" else env[key]
    if name == "livemathematicianbench":
        options["seed"] = seed
    for key in (*benchmark.unused, *_LEFTOVERS):
        if env.get(key) not in (None, "", "auto"):
            found.note(f"env.{key} is not used by Ludus's own environment {name}")
    if name == "officeqa":
        _check_search(env, found)
    return options


def find_split_mode(env: Mapping[str, Any]) -> str:
    """How the splits of a benchmark are made."""
    own = BENCHMARKS.get(str(env.get("name")), Benchmark()).split_mode
    return str(env.get("split_mode") or own).strip().lower()


def list_keys(name: str) -> frozenset[str]:
    """The keys that a benchmark has beside those of all environments."""
    benchmark = BENCHMARKS.get(name)
    if benchmark is None:
        return frozenset()
    more = (*_ONLINE_ONLY, "search_mode", "use_local_tools", "max_tool_turns") if name == "officeqa" else ()
    return frozenset((*benchmark.options, *benchmark.unused, *_LEFTOVERS, *more))


def _take_one(key: str, folders: Any, found: Findings) -> str:
    """The only folder of a list."""
    given: list[Any] = [folders] if isinstance(folders, str) else list(folders)
    if len(given) != 1:
        found.refuse(f"env.{key}: the documents must be in one folder, not in {len(given)}")
    return str(given[0]) if given else ""


def _check_search(env: Mapping[str, Any], found: Findings) -> None:
    if str(env.get("search_mode") or "offline") != "offline" or env.get("use_local_tools") is False:
        found.refuse("env.search_mode: the agent searches the documents itself (offline); there is no search service")
