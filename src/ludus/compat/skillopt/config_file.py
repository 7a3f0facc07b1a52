"""Reads SkillOpt's YAML configurations as settings of Ludus.

    given = read_config(Path("searchqa.yaml"))        # a tree of settings, and notes for the user

A configuration keeps its meaning, with the defaults that SkillOpt ships and its way to match edits. Unknown names are
refused with the nearest known one. A setting that cannot mean the same here is refused with the reason. A key in a file
is refused, and the message names the environment variable that should hold it.

The environment is one of Ludus, or an `EnvAdapter` of SkillOpt, which `adapters` runs.
"""

import inspect
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

import msgspec
from msgspec import Struct

from ludus.config.reading import Tree, describe_type, format_value, is_tree, merge_trees, read_file_layer
from ludus.config.references import load_object
from ludus.env import Env
from ludus.envs import BUILTIN
from ludus.errors import ConfigError, suggest

# ---- SkillOpt's names and defaults---------------------------------------------------------------------------------


class _Section(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A section of their files."""


class _Train(_Section, frozen=True):
    num_epochs: int = 4
    train_size: int = 0
    steps_per_epoch: int | None = None
    batch_size: int = 40
    accumulation: int = 1
    seed: int = 42


class _Gradient(_Section, frozen=True):
    minibatch_size: int = 8
    merge_batch_size: int = 8
    analyst_workers: int = 16
    failure_only: bool = False
    max_analyst_rounds: int | None = None


class _Optimizer(_Section, frozen=True):
    learning_rate: int = 4
    min_learning_rate: int = 2
    lr_scheduler: Literal["constant", "linear", "cosine", "autonomous"] = "cosine"
    lr_control_mode: str = "fixed"
    skill_update_mode: str = "patch"
    meta_learning_rate: int | None = None
    use_slow_update: bool = True
    slow_update_samples: int = 20
    slow_update_gate_with_selection: bool = False
    longitudinal_pair_policy: str = "mixed"
    use_meta_skill: bool = True
    use_skill_aware_reflection: bool = False
    skill_aware_appendix_source: Literal["both", "failure_only"] = "both"
    skill_aware_consolidate_threshold: int = 0


class _Evaluation(_Section, frozen=True):
    use_gate: bool = True
    gate_metric: Literal["hard", "soft", "mixed"] = "hard"
    gate_mixed_weight: float = 0.5
    use_semantic_density: bool = False
    semantic_density_weight: float = 0.05
    leading_words: str | list[str] | None = None
    sel_env_num: int = 0
    test_env_num: int = 0
    eval_test: bool = True


_SECTIONS: Mapping[str, type[_Section]] = {
    "train": _Train,
    "gradient": _Gradient,
    "optimizer": _Optimizer,
    "evaluation": _Evaluation,
}

_FLAT = {
    "model_backend": "model.backend",
    "optimizer_model": "model.optimizer",
    "target_model": "model.target",
    "edit_budget": "optimizer.learning_rate",
    "min_edit_budget": "optimizer.min_learning_rate",
    "meta_edit_budget": "optimizer.meta_learning_rate",
    "env": "env.name",
}
"""Names in the flat form that differ from those in sections."""

_ROLES = ("", "optimizer_", "target_")
_AZURE = "endpoint api_version api_key auth_mode ad_scope managed_identity_client_id"
_QWEN = "base_url api_key temperature timeout_seconds max_tokens enable_thinking thinking_mode"
_MINIMAX = "region base_url api_key model temperature max_tokens enable_thinking"
_PROGRAMS = """
    codex_exec_path codex_exec_sandbox codex_exec_profile codex_exec_reasoning_effort codex_exec_use_sdk
    codex_exec_network_access codex_exec_web_search codex_exec_approval_policy codex_exec_full_auto codex_path
    codex_cli_bin codex_bin codex_sandbox sandbox claude_code_exec_path claude_code_exec_profile
    claude_code_exec_use_sdk claude_code_exec_effort claude_code_exec_max_thinking_tokens cursor_exec_path
    cursor_exec_sandbox copilot_exec_path
    copilot_exec_home copilot_exec_allow_all_tools copilot_chat_optimizer_model copilot_chat_target_model
    copilot_chat_timeout
"""
_ALWAYS = """
    backend optimizer target optimizer_backend target_backend reasoning_effort rewrite_reasoning_effort
    rewrite_max_completion_tokens codex_trace_to_optimizer azure_endpoint azure_api_version azure_api_key
"""
_MODEL = (
    frozenset(_ALWAYS.split())
    | {f"{role}azure_openai_{key}" for role in _ROLES for key in _AZURE.split()}
    | {f"{role}qwen_chat_{key}" for role in _ROLES for key in _QWEN.split()}
    | {f"{role}minimax_{key}" for role in _ROLES for key in _MINIMAX.split()}
    | set(_PROGRAMS.split())
)
_BENCHMARKS = """
    name skill_init out_root split_mode split_ratio split_seed split_dir data_path split_output_dir limit exec_timeout
    workers max_turns max_steps max_api_workers max_completion_tokens image_detail shuffle_choices use_theorem
    use_sketch data_root mode data_dirs docs_dirs max_tool_turns search_mode max_queries_per_turn search_api_url
    search_auth_env search_provider search_max_num_results search_timeout_seconds use_local_tools judge_model
    judge_max_completion_tokens judge_retries
"""
_ENV = frozenset(_BENCHMARKS.split())

ADAPTER_ENV = "ludus.compat.skillopt.adapters:AdapterEnv"
ACTS_ITSELF = "ludus.compat.skillopt.adapters:acts_itself"
_ADAPTERS = {
    "searchqa": "SearchQAAdapter",
    "alfworld": "ALFWorldAdapter",
    "docvqa": "DocVQAAdapter",
    "livemathematicianbench": "LiveMathematicianBenchAdapter",
    "officeqa": "OfficeQAAdapter",
    "spreadsheetbench": "SpreadsheetBenchAdapter",
}


# ---- reading a configuration --------------------------------------------------------------------------------------


class SkillOptConfig(NamedTuple):
    """A configuration of SkillOpt as settings of Ludus."""

    tree: Tree
    """Settings of Ludus, by section, as in a YAML file."""
    notes: tuple[str, ...]
    """Messages for the user about settings that have no effect, or a different one here."""


def read_config(path: Path) -> SkillOptConfig:
    """Read a file of SkillOpt and the files it is based on, in sections or flat.

    Raises:
        ConfigError: unknown names, wrong values, or settings that cannot mean the same here; all problems at once.
    """
    return _Reading(_group_sections(_read_layers(path, ())), str(path)).convert()


def _read_layers(path: Path, above: tuple[Path, ...]) -> Tree:
    """The file, merged over the one that it is based on."""
    path = path.resolve()
    if path in above:
        names = " → ".join(p.name for p in (*above, path))
        raise ConfigError(f"{path}: the files are based on each other in a circle ({names}); change _base_ in one")
    tree = dict(read_file_layer(path).tree)
    base = tree.pop("_base_", None)
    if base is None:
        return _group_sections(tree)
    if not isinstance(base, str):
        raise ConfigError(f"{path}: _base_ must be the path of one file")
    return merge_trees(_read_layers(path.parent / base, (*above, path)), _group_sections(tree))


def _group_sections(tree: Mapping[str, Any]) -> Tree:
    """The flat form in sections. A name that is in no section goes to the environment, as in SkillOpt."""
    known = {name: set(kind.__struct_fields__) for name, kind in _SECTIONS.items()} | {"model": set(_MODEL)}
    found: Tree = {
        name: tree[name] or {} for name in (*known, "env") if name in tree and not isinstance(tree[name], str)
    }
    flat: Tree = {}
    for key, value in tree.items():
        if key in found:
            continue
        home = next((section for section, keys in known.items() if key in keys), "env")
        section, name = _FLAT.get(key, f"{home}.{key}").split(".")
        flat.setdefault(section, {})[name] = value
    return merge_trees(flat, found)


class _Reading:
    """One configuration, being checked and converted."""

    def __init__(self, sections: Tree, source: str) -> None:
        self.source = source
        self.problems: list[str] = []
        self.notes: list[str] = []
        for name, section in sections.items():
            if not is_tree(section):
                raise ConfigError(f"{source}: {name} must be a section with settings")
        self.model: Tree = sections.get("model", {})
        self.env: Tree = sections.get("env", {})
        self._check_names("model", self.model, _MODEL)
        self.train = self._read_section("train", sections, _Train)
        self.gradient = self._read_section("gradient", sections, _Gradient)
        self.optimizer = self._read_section("optimizer", sections, _Optimizer)
        self.evaluation = self._read_section("evaluation", sections, _Evaluation)

    def convert(self) -> SkillOptConfig:
        adapter = self._find_adapter()
        self._check_model()
        self._note_unused()
        tree: Tree = {
            "train": self._convert_training(),
            "optimizer": {**self._convert_model("optimizer"), "concurrency": self.gradient.analyst_workers},
            "run": {"out": self.env["out_root"]} if self.env.get("out_root") else {},
            "agent": {"skill": self.env["skill_init"]} if self.env.get("skill_init") else {},
        }
        if workers := self.env.get("workers"):
            tree["run"]["concurrency"] = workers
        tree |= self._convert_adapter(adapter) if adapter else self._convert_env()
        if self.problems:
            raise ConfigError("\n".join(f"{self.source}: {problem}" for problem in dict.fromkeys(self.problems)))
        return SkillOptConfig(tree, tuple(self.notes))

    # -- names and values

    def _check_names(self, section: str, given: Iterable[str], known: Iterable[str]) -> None:
        names = list(known)
        self.problems += [
            f"{section}.{key} is not a setting of SkillOpt; {suggest(str(key), names)}"
            for key in given
            if key not in names
        ]

    def _read_section(self, name: str, sections: Tree, kind: type[Any]) -> Any:
        given = sections.get(name, {})
        self._check_names(name, given, kind.__struct_fields__)
        values: Tree = {}
        for field in msgspec.structs.fields(kind):
            if field.name in given:
                try:
                    values[field.name] = msgspec.convert(given[field.name], field.type, strict=False)
                except msgspec.ValidationError:
                    expected, got = describe_type(field.type), format_value(given[field.name])
                    self.problems.append(f"{name}.{field.name}: expected {expected}, got {got}")
        return kind(**values)

    def _read_choice(self, setting: str, value: str, names: Mapping[str, str]) -> str:
        found = names.get(str(value).strip().lower())
        if found is None:
            self.problems.append(f"{setting}: '{value}' is not one; {suggest(str(value), list(names))}")
            return next(iter(names.values()))
        return found

    def _note_unused(self) -> None:
        dead = {
            "train.steps_per_epoch": self.train.steps_per_epoch,
            "gradient.max_analyst_rounds": self.gradient.max_analyst_rounds,
            "optimizer.meta_learning_rate": self.optimizer.meta_learning_rate,
        } | {f"model.{key}": value for key, value in self.model.items() if re.match("(optimizer|target)_minimax_", key)}
        self.notes += [f"{key} does nothing, there or here" for key, value in dead.items() if value is not None]

    # -- the trainer's settings

    def _convert_training(self) -> Tree:
        train, gradient, optimizer, evaluation = self.train, self.gradient, self.optimizer, self.evaluation
        words = evaluation.leading_words
        words = [word.strip() for word in words.split(",") if word.strip()] if isinstance(words, str) else words
        settings: Tree = {
            "recipe": "reflact",
            "epochs": train.num_epochs,
            "batch_size": train.batch_size,
            "accumulation": train.accumulation,
            "seed": train.seed,
            "minibatch_size": gradient.minibatch_size,
            "merge_batch_size": gradient.merge_batch_size,
            "failure_only": gradient.failure_only,
            "update_mode": self._read_choice("optimizer.skill_update_mode", optimizer.skill_update_mode, _UPDATE_MODES),
            "edit_budget": optimizer.learning_rate,
            "min_edit_budget": self._choose_least_budget(),
            "slow": {
                "enabled": optimizer.use_slow_update,
                "samples": optimizer.slow_update_samples,
                "gated": optimizer.slow_update_gate_with_selection,
                "pairs": self._read_choice(
                    "optimizer.longitudinal_pair_policy", optimizer.longitudinal_pair_policy, _PAIR_POLICIES
                ),
            },
            "memory": optimizer.use_meta_skill,
            "appendix": {
                "enabled": optimizer.use_skill_aware_reflection,
                "sources": optimizer.skill_aware_appendix_source,
                "consolidate_above": optimizer.skill_aware_consolidate_threshold,
            },
            "gate": {
                "enabled": evaluation.use_gate,
                "metric": evaluation.gate_metric,
                "mixed_weight": evaluation.gate_mixed_weight,
                "density": evaluation.use_semantic_density,
                "density_weight": evaluation.semantic_density_weight,
                **({"leading_words": [word.lower() for word in words]} if words else {}),
            },
            "selection_size": evaluation.sel_env_num,
            "test_size": evaluation.test_env_num,
            "test": evaluation.eval_test,
            "rewrite_tokens": self.model.get("rewrite_max_completion_tokens", 64_000),
            "lenient_edits": True,
            "show_reference": False,
            "sampling": self._convert_sampling("optimizer"),
        }
        return settings | self._convert_schedule(settings["update_mode"])

    def _choose_least_budget(self) -> int:
        """The lowest learning rate. It is never above the learning rate, which its default could be."""
        least, most = self.optimizer.min_learning_rate, self.optimizer.learning_rate
        if least > most and self.optimizer.lr_scheduler in ("linear", "cosine"):
            self.notes.append(f"optimizer.min_learning_rate is {least}, above learning_rate; taken as {most}")
        return min(least, most)

    def _convert_schedule(self, update_mode: str) -> Tree:
        """How the learning rate is decided, and its schedule."""
        control = self._read_choice("optimizer.lr_control_mode", self.optimizer.lr_control_mode, _CONTROLS)
        if self.optimizer.lr_scheduler == "autonomous":
            return {"control": control if control == "autonomous" else "none", "schedule": "constant"}
        if control == "none" and update_mode != "full_rewrite_minibatch":
            self.notes.append("optimizer.lr_control_mode none is no limit here; there it was the same as fixed")
        return {"control": control, "schedule": self.optimizer.lr_scheduler}

    # -- models

    def _check_model(self) -> None:
        for key, value in self.model.items():
            if key.endswith("api_key") and value:
                self.problems.append(
                    f"model.{key}: keys are not settings, because settings are recorded; put it in the environment "
                    f"variable {self._find_key_variable(key)} and take it out of the file"
                )
        rewrite, every = self.model.get("rewrite_reasoning_effort"), self.model.get("reasoning_effort", "medium")
        if rewrite and rewrite != every:
            self.problems.append(
                f"model.rewrite_reasoning_effort: the optimizer thinks equally hard about everything here "
                f"(model.reasoning_effort is {every!r}); leave it out"
            )
        if self.model.get("codex_trace_to_optimizer") is False:
            self.notes.append("model.codex_trace_to_optimizer: analysts see what the agent did, whatever it is")

    def _find_key_variable(self, key: str) -> str:
        """The variable that is read instead of a key in the file."""
        role, _, server = key.removesuffix("_api_key").partition("_")
        if role not in ("optimizer", "target"):
            role, server = "", key.removesuffix("_api_key")
        prefix = "azure_openai" if server == "azure" else server
        return self._name_key_variable(role, prefix) if role else f"{prefix.upper()}_API_KEY"

    def _name_key_variable(self, role: str, prefix: str) -> str:
        """The variable with the key of a role's server. An endpoint of the role's own has a key of its own."""
        own = prefix == "azure_openai" and self.model.get(f"{role}_azure_openai_endpoint")
        return f"{role.upper()}_{prefix.upper()}_API_KEY" if own else f"{prefix.upper()}_API_KEY"

    def _find_backend(self, role: str) -> str:
        """The backend of a role: its own, or the one of `model.backend`."""
        own = self._read_choice(f"model.{role}_backend", self.model.get(f"{role}_backend") or "openai_chat", _BACKENDS)
        label = self._read_choice("model.backend", self.model.get("backend") or "azure_openai", _BACKENDS)
        if own != "openai_chat":
            return own
        if role == "optimizer" and label in _TARGETS_ONLY:
            return "openai_chat"
        return label

    def _get_of_role(self, role: str, key: str, default: Any = "") -> Any:
        """A setting of a role's server: the role's own, or the one for both roles."""
        own = "" if key.startswith("minimax") else self.model.get(f"{role}_{key}")
        given = (value for value in (own, self.model.get(key)) if value not in (None, ""))
        return next(given, default)

    def _convert_model(self, role: str) -> Tree:
        """The model of a role, as settings of Ludus."""
        backend, name = self._find_backend(role), self.model.get(role, "gpt-5.5")
        if backend == "openai_chat":
            return self._convert_openai(role, name)
        if backend == "openai_compatible":
            key = f"{role.upper()}_OPENAI_COMPATIBLE_API_KEY"
            return {"type": "openai", "name": name, "api_key_var": key}
        if backend in _VENDORS:
            name = name if backend == "qwen_chat" else self.model.get("minimax_model", "MiniMax-M3")
            return self._convert_vendor(role, _VENDORS[backend], name)
        if backend in ("claude_chat", "claude_code_exec"):
            return {"type": "anthropic", "name": _CLAUDE if name in _SENTINELS else name}
        if backend == "codex_exec" and role == "target":
            return self._convert_openai(role, name)
        self.problems.append(
            f"model: the {role}'s backend is {backend}, a program that SkillOpt starts with your login. Name a model "
            "server in settings of Ludus, and leave the backend out"
        )
        return {}

    def _convert_harness(self) -> Tree:
        """The command-line agent that acts, if the target's backend is one."""
        harness = _HARNESSES.get(self._find_backend("target"))
        return {"harness": harness} if harness else {}

    def _convert_openai(self, role: str, name: str) -> Tree:
        endpoint = self._get_of_role(role, "azure_openai_endpoint", self.model.get("azure_endpoint", ""))
        variable = self._name_key_variable(role, "azure_openai")
        auth = str(self._get_of_role(role, "azure_openai_auth_mode")).lower()
        server = {"name": name, "base_url": endpoint, "max_tokens_field": "max_completion_tokens"}
        if auth in ("openai_compatible", "compat", "openai"):
            return {"type": "openai", **server, "api_key_var": variable}
        if auth not in ("", "api_key", "key"):
            self.problems.append(
                f"model.azure_openai_auth_mode: {auth} asks a cloud login for tokens, which is not done here; use "
                f"api_key, with the key in {variable}"
            )
        version = self._get_of_role(
            role, "azure_openai_api_version", self.model.get("azure_api_version", "2024-12-01-preview")
        )
        return {"type": "azure", **server, "api_version": version, "api_key_var": variable}

    def _convert_vendor(self, role: str, prefix: str, name: str) -> Tree:
        """A vendor's server that speaks OpenAI's API."""
        if self.model.get("minimax_region"):
            self.problems.append("model.minimax_region: give the address itself, model.minimax_base_url")
        server: Tree = {"type": "openai", "name": name, "api_key_var": self._name_key_variable(role, prefix)}
        if seconds := self._get_of_role(role, f"{prefix}_timeout_seconds", None):
            server["timeouts"] = {"silence": seconds, "total": seconds}
        return server | {"base_url": self._get_of_role(role, f"{prefix}_base_url")}

    def _convert_sampling(self, role: str) -> Tree:
        backend = self._find_backend(role)
        if prefix := _VENDORS.get(backend):
            sampling: Tree = {"temperature": float(self._get_of_role(role, f"{prefix}_temperature", 0.7))}
            if role == "target":
                sampling["max_tokens"] = int(self._get_of_role(role, f"{prefix}_max_tokens", 8000))
            elif self.model.get(f"optimizer_{prefix}_max_tokens") and prefix != "minimax":
                self.notes.append(
                    f"model.optimizer_{prefix}_max_tokens is not used: replies of the optimizer are limited by what is "
                    "asked (train.reply_tokens, train.rewrite_tokens)"
                )
            thinking = str(
                self._get_of_role(role, f"{prefix}_thinking_mode")
                or self._get_of_role(role, f"{prefix}_enable_thinking")
            )
            enabled = {"enabled": True, "true": True, "disabled": False, "false": False}.get(thinking.lower())
            if enabled is not None:
                sampling["extra"] = {"chat_template_kwargs": {"enable_thinking": enabled}}
            return sampling
        effort = self.model.get("reasoning_effort", "medium")
        thinks = backend == "openai_chat" and effort
        return {"temperature": None, "extra": {"reasoning_effort": effort} if thinks else {}}

    # -- the environment

    def _find_adapter(self) -> str:
        """The reference of the adapter, if the environment is one of SkillOpt's."""
        name = self.env.get("name")
        if not name or not isinstance(name, str):
            self.problems.append("env.name is not set: one of SkillOpt's or of Ludus', module:Class or file.py:Class")
            return ""
        if name in _ADAPTERS:
            return f"skillopt.envs.{name}.adapter:{_ADAPTERS[name]}"
        if name in BUILTIN:
            return ""
        if ":" not in name:
            known = [*_ADAPTERS, *BUILTIN]
            self.problems.append(f"env.name: '{name}' is not known here; {suggest(name, known)} (or module:Class)")
            return ""
        found = load_object(name, "env.name")
        return "" if isinstance(found, type) and issubclass(found, Env) else name

    def _convert_adapter(self, adapter: str) -> Tree:
        """Settings for an adapter. It has its own data and model."""
        kind = load_adapter(adapter)
        own = {key: value for key, value in self.env.items() if key not in ("name", "skill_init", "out_root")}
        takes = list_parameters(kind)
        if takes is not None:
            self._check_names("env", own, [*_ENV, *takes])
        self._note_client()
        given = self._list_flat()
        settings = own | {key: value for key, value in given.items() if takes is None or key in takes}
        settings |= {key: given[key] for key in _PASSED if given[key]}
        shipped = list_defaults()
        cfg = {key: value for key, value in given.items() if key not in settings and value != shipped.get(key, "")}
        cfg = {key: value for key, value in self._list_beside().items() if key not in settings} | cfg
        return {
            "env": {"name": ADAPTER_ENV, "adapter": adapter, "settings": settings, **({"cfg": cfg} if cfg else {})},
            "data": {"mode": "splits", "train": "train", "selection": "val", "test": "test"},
            "model": {"type": "scripted", "script": ACTS_ITSELF, "name": adapter},
        }

    def _note_client(self) -> None:
        """Note settings of the model that the adapter does not get: its own client reads variables."""
        prefix = {"openai_chat": "azure_openai", **_VENDORS}.get(self._find_backend("target"))
        self.notes += [
            f"model.{key} does not reach the adapter: its own client reads the variable {key.upper()}"
            for key, value in self.model.items()
            if prefix and re.match(f"(target_)?{prefix}_", key) and str(value or "").lower() not in _AS_SHIPPED
        ]

    def _list_flat(self) -> Tree:
        names = {home: flat for flat, home in _FLAT.items()}
        flat = {
            names.get(f"{section}.{key}", key): value
            for section, group in (
                ("train", self.train),
                ("gradient", self.gradient),
                ("optimizer", self.optimizer),
                ("evaluation", self.evaluation),
            )
            for key, value in msgspec.structs.asdict(group).items()
        }
        return flat | {"target_model": self.model.get("target", ""), "target_backend": self._find_backend("target")}

    def _list_beside(self) -> Tree:
        """What `setup` may look up beside the trainer's settings, by flat name: the models, without their keys."""
        names = {home: flat for flat, home in _FLAT.items()}
        model = {names.get(f"model.{key}", key): value for key, value in self.model.items() if "api_key" not in key}
        backends = {f"{role}_backend": self._find_backend(role) for role in ("optimizer", "target")}
        own = {"env": self.env.get("name"), "skill_init": self.env.get("skill_init")}
        return {key: value for key, value in {**model, **backends, **own}.items() if value not in (None, "")}

    def _convert_env(self) -> Tree:
        """Settings for an environment of Ludus: the splits of the file, and the environment's options."""
        env = dict(self.env)
        options = {key: env.pop(key) for key in list(env) if key not in _ENV}
        mode = env.get("split_mode", "ratio")
        data: Tree = {"mode": "ratio", "ratio": env.get("split_ratio", "2:1:7"), "limit": env.get("limit", 0)}
        data["seed"] = env.get("split_seed") or self.train.seed
        if mode == "split_dir":
            data = {"mode": "folder", "folder": env.get("split_dir", ""), "limit": data["limit"]}
        elif mode != "ratio":
            self.problems.append(f"env.split_mode: '{mode}' is not one; {suggest(str(mode), ['ratio', 'split_dir'])}")
        if self.train.train_size:
            self.problems.append("train.train_size: the data says how many there are; env.limit takes fewer")
        refused = {
            "data_path": "an environment of Ludus has its data, or an option for it",
            "split_output_dir": "splits are made in memory; the same seed makes the same",
        }
        self.problems += [f"env.{key}: {why}; leave it out" for key, why in refused.items() if env.get(key)]
        used = {"name", "skill_init", "out_root", "split_mode", "split_ratio", "split_seed", "split_dir", "limit"}
        used |= {"workers", "exec_timeout", "max_turns", "max_completion_tokens", *refused}
        self.problems += [
            f"env.{key} belongs to a benchmark of SkillOpt, and {env['name']} is not one"
            for key in env
            if key not in used
        ]
        sampling = self._convert_sampling("target")
        sampling |= {"max_tokens": env["max_completion_tokens"]} if env.get("max_completion_tokens") else {}
        limits = {"turns": env.get("max_turns"), "rollout_seconds": env.get("exec_timeout")}
        return {
            "env": {"name": env.get("name", ""), **options},
            "data": data,
            "model": self._convert_model("target"),
            "sampling": sampling,
            "agent": {**({"skill": env["skill_init"]} if env.get("skill_init") else {}), **self._convert_harness()},
            "limits": {key: value for key, value in limits.items() if value},
        }


def _make_spellings(**names: str) -> dict[str, str]:
    """Every accepted spelling, with the name it stands for."""
    return {spelling: name for name, others in names.items() for spelling in (name, *others.split())}


_UPDATE_MODES = _make_spellings(
    patch="edits",
    rewrite_from_suggestions="rewrite suggestions rewrite_suggestions",
    full_rewrite_minibatch="full_rewrite minibatch_full_rewrite skill_rewrite_minibatch",
)
_CONTROLS = _make_spellings(scheduled="fixed manual scheduler", autonomous="auto optimizer", none="off no_lr")
_PAIR_POLICIES = _make_spellings(
    mixed="default random all", changed="change delta 10_01 01_10", unchanged="stable same 00_11"
)
_BACKENDS = _make_spellings(
    openai_chat="azure_openai",
    openai_compatible="compat openai-compatible",
    claude_chat="claude anthropic",
    qwen_chat="qwen",
    minimax_chat="minimax",
    copilot_chat="copilot copilot_cli github_copilot",
    codex_exec="codex openai",
    cursor_exec="cursor cursor_agent",
    claude_code_exec="",
    copilot_exec="",
)
_TARGETS_ONLY = ("codex_exec", "claude_code_exec", "cursor_exec", "copilot_exec", "qwen_chat", "minimax_chat")
_HARNESSES = {"codex_exec": "codex", "claude_code_exec": "claude-code"}
"""Backends that are command-line agents, and their names here."""
_SENTINELS = ("gpt-5.4", "gpt-5.5")
"""Names of models that SkillOpt replaces by the backend's own."""
_CLAUDE = "claude-sonnet-4-6"
_PASSED = ("seed", "train_size", "sel_env_num", "test_env_num", "target_model", "target_backend")
"""Settings that every adapter gets: those of simulators, and which model it should use."""
_AS_SHIPPED = (
    "",
    "2024-12-01-preview",
    "https://cognitiveservices.azure.com/.default",
    "minimax-m3",
    "0.7",
    "8000",
    "false",
)
"""Values in SkillOpt's base file that name no server."""
_VENDORS = {"qwen_chat": "qwen_chat", "minimax_chat": "minimax"}


# ---- the constructors of adapters ------------------------------------------------------------------------------------


def load_adapter(reference: str) -> type[Any]:
    """The adapter class of `module:Class` or `file.py:Class`."""
    kind = load_object(reference, "env.adapter")
    builders = ("build_train_env", "build_eval_env")
    own = builders if all(callable(getattr(kind, name, None)) for name in builders) else ("build_env_from_batch",)
    needed = ("setup", "get_dataloader", *own, "rollout")
    missing = [name for name in needed if not callable(getattr(kind, name, None))]
    if not isinstance(kind, type) or missing:
        raise ConfigError(f"env.adapter: {reference} is no EnvAdapter: it has no {', '.join(missing) or 'class'}")
    return kind


def list_parameters(kind: type[Any]) -> list[str] | None:
    """The parameters of the adapter's constructor; None if it takes any."""
    found = list(inspect.signature(kind).parameters.values())
    return None if any(p.kind is p.VAR_KEYWORD for p in found) else [p.name for p in found]


def list_defaults() -> Tree:
    """SkillOpt's defaults by flat name, for an adapter that looks them up."""
    names = {home: flat for flat, home in _FLAT.items()}
    return {
        names.get(f"{section}.{key}", key): value
        for section, kind in _SECTIONS.items()
        for key, value in msgspec.structs.asdict(kind()).items()
    }
