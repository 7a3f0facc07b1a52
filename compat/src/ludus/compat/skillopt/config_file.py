"""Reads SkillOpt's YAML configurations as settings of Ludus.

    given = read_config(Path("searchqa.yaml"))        # a tree of settings, and notes for the user

A configuration keeps its meaning: absent keys have the values of SkillOpt's code (`names`), edits are matched as there,
the first tasks of `val` select, the best skill on them is shipped, and guards warn. Unknown names are refused with the
nearest known one. A setting that cannot mean the same here is refused with the reason, or has a note, which is printed
and recorded in `run.notes`. `verdicts` says what becomes of each key.

The environment is one of Ludus (`benchmarks`), or an `EnvAdapter` of SkillOpt, which `adapters` runs.
"""

import difflib
import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from ludus.compat.skillopt.benchmarks import BENCHMARKS, convert_options, find_split_mode, list_keys
from ludus.compat.skillopt.findings import Findings
from ludus.compat.skillopt.names import (
    CONTROLS,
    DEAD,
    ENV,
    FLAT,
    MODEL,
    PAIR_POLICIES,
    SECTIONS,
    TO_FLAT,
    UPDATE_MODES,
    EvaluationSection,
    GradientSection,
    OptimizerSection,
    TrainSection,
    flatten,
    list_defaults,
)
from ludus.compat.skillopt.role_models import ROLES, RoleModels
from ludus.config.reading import Tree, describe_type, format_value, is_tree, merge_trees, read_file_layer
from ludus.config.references import load_object
from ludus.env import Env
from ludus.envs import BUILTIN
from ludus.errors import ConfigError, suggest

ADAPTER_ENV = "ludus.compat.skillopt.adapters:AdapterEnv"
ACTS_ITSELF = "ludus.compat.skillopt.adapters:acts_itself"


# ---- reading a configuration --------------------------------------------------------------------------------------


class SkillOptConfig(NamedTuple):
    """A configuration of SkillOpt as settings of Ludus."""

    tree: Tree
    """Settings of Ludus, by section, as in a YAML file."""
    notes: tuple[str, ...]
    """Messages for the user about settings that have no effect, or a different one here."""


def read_config(path: Path, env: str = "") -> SkillOptConfig:
    """Read a file of SkillOpt and the files it is based on, in sections or flat. `env` is an environment of Ludus that
    takes the place of the file's.

    Raises:
        ConfigError: unknown names, wrong values, or settings that cannot mean the same here; all problems at once.
    """
    sections = _group_sections(_read_layers(path, ()))
    given = sections.get("env")
    if env and is_tree(given):
        kept = {key: value for key, value in given.items() if key in _EVERYWHERE - {"split_dir", "data_path"}}
        sections = {**sections, "env": {**kept, "name": env}}
    return _Reading(sections, str(path), env).convert()


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
    known = {name: set(kind.__struct_fields__) for name, kind in SECTIONS.items()} | {"model": set(MODEL)}
    found: Tree = {
        name: tree[name] or {} for name in (*known, "env") if name in tree and not isinstance(tree[name], str)
    }
    flat: Tree = {}
    for key, value in tree.items():
        if key in found:
            continue
        home = next((section for section, keys in known.items() if key in keys), "env")
        section, name = FLAT.get(key, f"{home}.{key}").split(".")
        flat.setdefault(section, {})[name] = value
    return merge_trees(flat, found)


class _Reading:
    """One configuration, being checked and converted."""

    def __init__(self, sections: Tree, source: str, replaced: str = "") -> None:
        self.found = Findings(source)
        self.replaced = replaced
        for name, section in sections.items():
            if not is_tree(section):
                raise ConfigError(f"{source}: {name} must be a section with settings")
        self.given = sections
        self.env: Tree = sections.get("env", {})
        self.found.check_names("model", sections.get("model", {}), MODEL)
        self.models = RoleModels(sections.get("model", {}), self.found)
        self.train: TrainSection = self._read_section("train", TrainSection)
        self.gradient: GradientSection = self._read_section("gradient", GradientSection)
        self.optimizer: OptimizerSection = self._read_section("optimizer", OptimizerSection)
        self.evaluation: EvaluationSection = self._read_section("evaluation", EvaluationSection)

    def convert(self) -> SkillOptConfig:
        adapter = self._find_adapter()
        self.models.check()
        self._note_dead()
        tree: Tree = {
            "train": self._convert_training(),
            "optimizer": {**self.models.convert_model("optimizer"), "concurrency": self.gradient.analyst_workers},
            "run": {"out": self.env["out_root"]} if self.env.get("out_root") else {},
            "agent": {"skill": self.env["skill_init"]} if self.env.get("skill_init") else {},
        }
        if workers := self.env.get("workers"):
            tree["run"]["concurrency"] = workers
        tree = merge_trees(tree, self._convert_adapter(adapter) if adapter else self._convert_env())
        self.found.raise_problems()
        if self.found.notes:
            tree["run"]["notes"] = [f"{self.found.source}: {note}" for note in self.found.notes]
        return SkillOptConfig(tree, tuple(self.found.notes))

    # -- names and values

    def _read_section(self, name: str, kind: type[Any]) -> Any:
        given = self.given.get(name, {})
        self.found.check_names(name, given, kind.__struct_fields__)
        values: Tree = {}
        for field in msgspec.structs.fields(kind):
            if field.name in given:
                try:
                    values[field.name] = msgspec.convert(given[field.name], field.type, strict=False)
                except msgspec.ValidationError:
                    expected, got = describe_type(field.type), format_value(given[field.name])
                    self.found.refuse(f"{name}.{field.name}: expected {expected}, got {got}")
        return kind(**values)

    def _note_dead(self) -> None:
        for setting in DEAD:
            section, key = setting.split(".")
            if self.given.get(section, {}).get(key) is not None:
                self.found.note(f"{setting} does nothing, there or here")

    # -- the trainer's settings

    def _convert_training(self) -> Tree:
        train, gradient, optimizer, evaluation = self.train, self.gradient, self.optimizer, self.evaluation
        words = evaluation.leading_words
        words = [word.strip() for word in words.split(",") if word.strip()] if isinstance(words, str) else words
        mode = self.found.read_choice("optimizer.skill_update_mode", optimizer.skill_update_mode, UPDATE_MODES)
        settings: Tree = {
            "recipe": "reflact",
            "epochs": train.num_epochs,
            "batch_size": train.batch_size,
            "accumulation": train.accumulation,
            "seed": train.seed,
            "minibatch_size": gradient.minibatch_size,
            "merge_batch_size": gradient.merge_batch_size,
            "failure_only": gradient.failure_only,
            "update_mode": mode,
            "edit_budget": optimizer.learning_rate,
            "min_edit_budget": self._choose_least_budget(),
            "slow": {
                "enabled": optimizer.use_slow_update,
                "samples": optimizer.slow_update_samples,
                "gated": optimizer.slow_update_gate_with_selection,
                "pairs": self.found.read_choice(
                    "optimizer.longitudinal_pair_policy", optimizer.longitudinal_pair_policy, PAIR_POLICIES
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
            "selection_draw": "first",
            "shipping": {"rule": "best"},
            "guards": {"refuse": False},
            "test_size": evaluation.test_env_num,
            "test": evaluation.eval_test,
            "rewrite_tokens": self.models.rewrite_tokens,
            "lenient_edits": True,
            "show_reference": False,
            "sampling": self.models.convert_sampling("optimizer"),
        }
        if mode == "rewrite_from_suggestions":
            settings["rewrite_extra"] = self.models.convert_rewrites()
        return settings | self._convert_schedule(mode)

    def _choose_least_budget(self) -> int:
        """The lowest learning rate. It is never above the learning rate, which its default could be."""
        least, most = self.optimizer.min_learning_rate, self.optimizer.learning_rate
        if least > most and self.optimizer.lr_scheduler in ("linear", "cosine"):
            self.found.note(f"optimizer.min_learning_rate is {least}, above learning_rate; taken as {most}")
        return min(least, most)

    def _convert_schedule(self, update_mode: str) -> Tree:
        """How the learning rate is decided, and its schedule."""
        control = self.found.read_choice("optimizer.lr_control_mode", self.optimizer.lr_control_mode, CONTROLS)
        if self.optimizer.lr_scheduler == "autonomous":
            return {"control": control if control == "autonomous" else "none", "schedule": "constant"}
        if control == "none" and update_mode != "full_rewrite_minibatch":
            self.found.note("optimizer.lr_control_mode none is no limit here; there it was the same as fixed")
        return {"control": control, "schedule": self.optimizer.lr_scheduler}

    # -- the environment

    def _find_adapter(self) -> str:
        """The reference of the adapter, if the environment is one of SkillOpt's."""
        if self.replaced:
            return ""
        name = self.env.get("name")
        if not name or not isinstance(name, str):
            self.found.refuse("env.name is not set: one of SkillOpt's or of Ludus', module:Class or file.py:Class")
            return ""
        if name in BUILTIN:
            return ""
        if ":" not in name:
            self.found.refuse(f"env.name: '{name}' is not known here; {suggest(name, list(BUILTIN))} (or module:Class)")
            return ""
        found = load_object(name, "env.name")
        return "" if isinstance(found, type) and issubclass(found, Env) else name

    def _convert_adapter(self, adapter: str) -> Tree:
        """Settings for an adapter. It has its own data and model."""
        takes = list_parameters(load_adapter(adapter))
        own = {key: value for key, value in self._take_env().items() if key not in ("name", "skill_init", "out_root")}
        self._check_own_keys(own, takes)
        self.models.note_client()
        named = flatten({name: self.given.get(name, {}) for name in SECTIONS})
        flat = self._list_flat()
        settings = own | {key: flat[key] for key in named if key in takes}
        settings |= {key: flat[key] for key in _PASSED if flat[key]}
        shipped = list_defaults()
        cfg = {key: value for key, value in flat.items() if key not in settings and value != shipped.get(key, "")}
        cfg = {key: value for key, value in self._list_beside().items() if key not in settings} | cfg
        return {
            "env": {"name": ADAPTER_ENV, "adapter": adapter, "settings": settings, **({"cfg": cfg} if cfg else {})},
            "data": {"mode": "splits", "train": "train", "selection": "val", "test": "test"},
            "model": {"type": "scripted", "script": ACTS_ITSELF, "name": adapter},
        }

    def _take_env(self) -> Tree:
        """The keys of the environment. What is in no section of SkillOpt 0.2.0 is among them."""
        env = dict(self.env)
        asked = env.pop("human_feedback", None)
        if is_tree(asked) and asked.get("enabled"):
            self.found.refuse("human_feedback.enabled: a run does not wait for people; leave it out")
        return env

    def _check_own_keys(self, own: Mapping[str, Any], takes: list[str]) -> None:
        """Refuse keys that look like a misspelt parameter of the adapter. Its `setup` gets the others."""
        for key in own:
            if key in ENV or key in takes:
                continue
            if near := difflib.get_close_matches(key, [*takes, *ENV], 1, 0.8):
                self.found.refuse(f"env.{key} is not a setting of SkillOpt; did you mean '{near[0]}'?")
            else:
                self.found.note(f"env.{key} is no parameter of the adapter: only its setup() gets it")

    def _list_flat(self) -> Tree:
        groups = {
            "train": self.train,
            "gradient": self.gradient,
            "optimizer": self.optimizer,
            "evaluation": self.evaluation,
        }
        flat = flatten({name: msgspec.structs.asdict(group) for name, group in groups.items()})
        return flat | {
            "target_model": self.models.target_model,
            "target_backend": self.models.find_backend("target"),
        }

    def _list_beside(self) -> Tree:
        """What `setup` may look up beside the trainer's settings, by flat name: the models, without their keys."""
        model = {TO_FLAT.get(f"model.{key}", key): value for key, value in self.models.list_open()}
        backends = {f"{role}_backend": self.models.find_backend(role) for role in ROLES}
        own = {"env": self.env.get("name"), "skill_init": self.env.get("skill_init")}
        return {key: value for key, value in {**model, **backends, **own}.items() if value not in (None, "")}

    def _convert_env(self) -> Tree:
        """Settings for an environment of Ludus: the splits of the file, and the environment's options."""
        env = self._take_env()
        name = str(env.get("name", ""))
        options = {key: env.pop(key) for key in list(env) if key not in ENV}
        if name in BENCHMARKS and not self.replaced:
            options |= convert_options(name, env, self.train.seed, self.found)
        self._check_env_keys(name, env)
        limits = {
            "turns": env.get("max_tool_turns") or env.get("max_turns"),
            "rollout_seconds": env.get("exec_timeout"),
        }
        program = self.models.convert_program()
        return {
            "env": {"name": name, **options},
            "data": self._convert_data(name, env),
            "model": self.models.convert_model("target"),
            "sampling": self.models.convert_sampling("target", env.get("max_completion_tokens")),
            "limits": {key: value for key, value in limits.items() if value},
            **{section: tree for section, tree in program.items() if tree},
        }

    def _check_env_keys(self, name: str, env: Mapping[str, Any]) -> None:
        if self.train.train_size:
            self.found.note(
                f"train.train_size {self.train.train_size} is not used: all train tasks are (env.limit takes fewer); "
                "SkillOpt stops if there are not so many"
            )
        if env.get("split_output_dir"):
            self.found.note("env.split_output_dir is not used: splits are made in memory; the same seed makes the same")
        if env.get("data_path") and name not in BENCHMARKS:
            self.found.refuse("env.data_path: an environment of Ludus has its data, or an option for it; leave it out")
        for key in env:
            if key not in _EVERYWHERE | list_keys(name) and env[key] not in (None, ""):
                self.found.refuse(f"env.{key} belongs to a benchmark of SkillOpt, and not to {name}")

    def _convert_data(self, name: str, env: Mapping[str, Any]) -> Tree:
        """The splits. Their seed is 42 if the file does not name one, whatever the seed of the training is."""
        mode, limit = find_split_mode(env), env.get("limit", 0)
        if mode == "split_dir" and self.replaced:
            return {"limit": limit}
        if mode == "split_dir" and name in BENCHMARKS:
            return {"mode": "splits", "limit": limit}
        if mode == "split_dir":
            return {"mode": "folder", "folder": env.get("split_dir", ""), "limit": limit}
        if mode != "ratio":
            self.found.refuse(f"env.split_mode: '{mode}' is not one; {suggest(mode, ['ratio', 'split_dir'])}")
        seed = env.get("split_seed", 42) or self.train.seed  # 0 is that of the training, as there
        return {"mode": "ratio", "ratio": env.get("split_ratio") or "2:1:7", "limit": limit, "seed": seed}


_EVERYWHERE = {
    "name", "skill_init", "out_root", "split_mode", "split_ratio", "split_seed", "split_dir", "data_path",
    "split_output_dir", "limit", "workers", "exec_timeout", "max_turns", "max_completion_tokens",
}  # fmt: skip
"""Keys of the section `env` that every environment of Ludus takes."""
_PASSED = ("seed", "train_size", "sel_env_num", "test_env_num", "target_model", "target_backend")
"""Settings that every adapter gets: those of simulators, and which model it should use."""


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


def list_parameters(kind: type[Any]) -> list[str]:
    """The named parameters of the adapter's constructor. SkillOpt passes nothing else, whatever else it would take."""
    found = inspect.signature(kind).parameters.values()
    return [each.name for each in found if each.kind not in (each.VAR_KEYWORD, each.VAR_POSITIONAL)]
