"""SkillOpt's configurations as our settings."""

from pathlib import Path

import msgspec
import pytest

from ludus.compat.skillopt.config_file import ADAPTER_ENV, read_config
from ludus.config import assemble
from ludus.config.reading import Layer
from ludus.errors import ConfigError

replace = msgspec.structs.replace

BASE = """
model: {backend: azure_openai, optimizer: gpt-5.5, target: gpt-5.5, optimizer_backend: openai_chat,
        target_backend: openai_chat, reasoning_effort: medium, rewrite_reasoning_effort: "",
        rewrite_max_completion_tokens: 64000, codex_trace_to_optimizer: true,
        azure_openai_endpoint: "https://x.openai.azure.com", azure_openai_api_version: "2024-12-01-preview",
        azure_openai_api_key: ""}
train: {num_epochs: 4, train_size: 0, batch_size: 40, accumulation: 1, seed: 42}
gradient: {minibatch_size: 8, merge_batch_size: 8, analyst_workers: 16, failure_only: false}
optimizer: {learning_rate: 4, min_learning_rate: 2, lr_scheduler: cosine, lr_control_mode: fixed,
            skill_update_mode: patch, use_slow_update: true, slow_update_samples: 20,
            slow_update_gate_with_selection: false, longitudinal_pair_policy: mixed, use_meta_skill: true,
            use_skill_aware_reflection: false, skill_aware_appendix_source: both,
            skill_aware_consolidate_threshold: 0}
evaluation: {use_gate: true, gate_metric: hard, gate_mixed_weight: 0.5, use_semantic_density: false,
             semantic_density_weight: 0.05, leading_words: null, sel_env_num: 0, test_env_num: 0, eval_test: true}
env: {name: terminal-test, skill_init: "", out_root: "", split_mode: ratio, split_seed: 42}
"""


def write(folder: Path, text: str, name: str = "config.yaml") -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def settings(path: Path):
    """Our settings, through every check that a file of ours goes through."""
    return assemble([Layer(str(path), read_config(path).tree)])


def test_every_setting_of_the_shipped_base_has_its_place(tmp_path: Path):
    config = settings(write(tmp_path, BASE))
    train = config.train
    assert (train.epochs, train.batch_size, train.accumulation, train.seed) == (4, 40, 1, 42)
    assert (train.minibatch_size, train.merge_batch_size, train.failure_only) == (8, 8, False)
    assert (train.edit_budget, train.min_edit_budget, train.schedule, train.control) == (4, 2, "cosine", "scheduled")
    assert (train.update_mode, train.rewrite_tokens, train.lenient_edits) == ("patch", 64_000, True)
    assert (train.slow.enabled, train.slow.samples, train.slow.gated, train.slow.pairs) == (True, 20, False, "mixed")
    assert (train.memory, train.appendix.enabled) == (True, False)
    assert (train.gate.enabled, train.gate.metric, train.test, train.selection_size) == (True, "hard", True, 0)
    assert train.sampling.extra == {"reasoning_effort": "medium"}
    assert (config.data.mode, config.data.ratio, config.data.seed) == ("ratio", "2:1:7", 42)
    for model in (config.model, config.optimizer):
        assert msgspec.to_builtins(model)["type"] == "azure"
        assert (model.name, model.api_key_var) == ("gpt-5.5", "AZURE_OPENAI_API_KEY")  # type: ignore[union-attr]
    assert config.optimizer.concurrency == 16  # type: ignore[union-attr]


def test_an_absent_key_means_what_it_means_in_their_code(tmp_path: Path):
    """Which is not what the base file says that they ship."""
    shipped = settings(write(tmp_path, BASE)).train
    silent = settings(write(tmp_path, "env: {name: gsm8k}"))
    absent = replace(shipped, schedule="constant", memory=False, slow=replace(shipped.slow, enabled=False))
    assert silent.train == replace(absent, sampling=replace(shipped.sampling, extra={}))
    assert silent.sampling.extra == {}, "no effort is sent"


def test_a_run_selects_ships_and_guards_as_theirs(tmp_path: Path):
    train = settings(write(tmp_path, "env: {name: gsm8k}\nevaluation: {sel_env_num: 3}")).train
    assert (train.selection_size, train.selection_draw) == (3, "first")
    assert (train.shipping.rule, train.guards.enabled, train.guards.refuse) == ("best", True, False)


@pytest.mark.parametrize(
    ("keys", "seed"), [("", 42), ("split_seed: 5", 5), ("split_seed: 0", 7), ("split_ratio: '1:1:1'", 42)]
)
def test_the_seed_of_the_training_does_not_move_the_splits(tmp_path: Path, keys: str, seed: int):
    config = settings(write(tmp_path, f"train: {{seed: 7}}\nenv: {{name: gsm8k, {keys}}}"))
    assert (config.train.seed, config.data.seed) == (7, seed)


def test_notes_are_kept_with_the_run(tmp_path: Path):
    path = write(tmp_path, "env: {name: gsm8k}\nsamples_per_epoch: 40\nbatches_per_epoch: 1\ntrain_size: 40")
    given = read_config(path)
    assert [note.split()[0] for note in given.notes] == [
        "train.batches_per_epoch",
        "train.samples_per_epoch",
        "train.train_size",
    ]
    assert settings(path).run.notes == tuple(f"{path}: {note}" for note in given.notes)


@pytest.mark.parametrize(
    ("keys", "variables"),
    [
        ("backend: qwen", ["QWEN_CHAT_API_KEY", "AZURE_OPENAI_API_KEY"]),
        ("target_qwen_chat_base_url: 'http://t/v1'", ["TARGET_QWEN_CHAT_API_KEY", "QWEN_CHAT_API_KEY"]),
        (
            "target_qwen_chat_base_url: 'http://t/v1', optimizer_qwen_chat_base_url: 'http://o/v1'",
            ["TARGET_QWEN_CHAT_API_KEY", "OPTIMIZER_QWEN_CHAT_API_KEY"],
        ),
        (
            "backend: azure_openai, target_azure_openai_endpoint: 'https://t', azure_openai_endpoint: 'https://o'",
            ["TARGET_AZURE_OPENAI_API_KEY", "AZURE_OPENAI_API_KEY"],
        ),
    ],
)
def test_each_server_has_a_key_of_its_own(tmp_path: Path, keys: str, variables: list[str]):
    both = "" if "backend:" in keys else "target_backend: qwen_chat, optimizer_backend: qwen_chat, "
    config = settings(write(tmp_path, f"model: {{{both}{keys}}}\nenv: {{name: gsm8k}}"))
    assert [config.model.api_key_var, config.optimizer.api_key_var] == variables  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("keys", "name", "address"),
    [
        ("backend: minimax, target: m-1", "m-1", "https://api.minimax.io/v1"),
        ("backend: minimax, target: m-1, minimax_model: m-2, minimax_base_url: 'http://m'", "m-2", "http://m"),
        ("backend: minimax", "MiniMax-M3", "https://api.minimax.io/v1"),
        ("backend: qwen, target: gpt-5.5", "Qwen/Qwen3.5-4B", "http://localhost:8000/v1"),
        ("backend: qwen, target: mine", "mine", "http://localhost:8000/v1"),
    ],
)
def test_a_vendors_model_and_address_are_those_that_they_take(tmp_path: Path, keys: str, name: str, address: str):
    config = settings(write(tmp_path, f"model: {{{keys}}}\nenv: {{name: gsm8k}}"))
    assert (config.model.name, config.model.base_url) == (name, address)  # type: ignore[union-attr]


@pytest.mark.parametrize(("key", "effort"), [(", rewrite_reasoning_effort: max", "max"), ("", "high")])
def test_an_effort_for_rewrites_reaches_them_alone(tmp_path: Path, key: str, effort: str):
    text = "optimizer: {skill_update_mode: rewrite}\nenv: {name: gsm8k}\nmodel: {reasoning_effort: low"
    train = settings(write(tmp_path, f"{text}{key}}}")).train
    assert (train.rewrite_extra, train.sampling.extra) == ({"reasoning_effort": effort}, {"reasoning_effort": "low"})
    assert settings(write(tmp_path, f"{text}, rewrite_reasoning_effort: ''}}")).train.rewrite_extra == {}


def test_every_other_value_has_its_place_too(tmp_path: Path):
    config = settings(
        write(
            tmp_path,
            """
model: {target_backend: qwen_chat, target: Qwen/Qwen3.5-4B, target_qwen_chat_base_url: "http://127.0.0.1:8000/v1",
        target_qwen_chat_temperature: 0, target_qwen_chat_timeout_seconds: 30, target_qwen_chat_thinking_mode: disabled,
        optimizer_azure_openai_endpoint: "https://o.openai.azure.com",
        reasoning_effort: high}
train: {num_epochs: "3", batch_size: 10, accumulation: 2, seed: 7}
gradient: {failure_only: true, analyst_workers: 4}
optimizer: {learning_rate: 8, lr_scheduler: linear, lr_control_mode: auto, skill_update_mode: rewrite,
            longitudinal_pair_policy: delta, slow_update_gate_with_selection: true, use_meta_skill: false,
            use_skill_aware_reflection: true, skill_aware_appendix_source: failure_only,
            skill_aware_consolidate_threshold: 20}
evaluation: {gate_metric: mixed, gate_mixed_weight: 0.25, use_semantic_density: true,
             leading_words: "MUST, Never", sel_env_num: 5, test_env_num: 6, eval_test: false}
env: {name: gsm8k, out_root: runs/x, split_dir: data, split_mode: split_dir, limit: 9, workers: 24,
      exec_timeout: 60, max_turns: 3, max_completion_tokens: 512}
""",
        )
    )
    train = config.train
    assert (train.epochs, train.batch_size, train.accumulation, train.seed, train.failure_only) == (3, 10, 2, 7, True)
    assert (train.edit_budget, train.schedule, train.control) == (8, "linear", "autonomous")
    assert (train.update_mode, train.slow.pairs, train.slow.gated) == ("rewrite_from_suggestions", "changed", True)
    assert (train.memory, train.appendix.sources, train.appendix.consolidate_above) == (False, "failure_only", 20)
    gate = train.gate
    assert (gate.metric, gate.mixed_weight, gate.density, gate.leading_words) == (
        "mixed",
        0.25,
        True,
        ("must", "never"),
    )
    assert (train.selection_size, train.test_size, train.test) == (5, 6, False)
    assert (config.data.mode, config.data.folder, config.data.limit) == ("folder", "data", 9)
    assert (config.run.out, config.run.concurrency) == ("runs/x", 24)
    assert (config.limits.turns, config.limits.rollout_seconds, config.sampling.max_tokens) == (3, 60.0, 512)
    assert (config.model.base_url, config.model.api_key_var) == ("http://127.0.0.1:8000/v1", "TARGET_QWEN_CHAT_API_KEY")  # type: ignore[union-attr]
    assert (config.sampling.temperature, config.model.timeouts.total) == (0.0, 30.0)  # type: ignore[union-attr]
    assert config.sampling.extra == {"chat_template_kwargs": {"enable_thinking": False}}
    assert config.optimizer.api_key_var == "OPTIMIZER_AZURE_OPENAI_API_KEY"  # type: ignore[union-attr]
    assert config.train.sampling.extra == {"reasoning_effort": "high"}


def test_a_file_stands_on_its_base_in_either_form(tmp_path: Path):
    write(tmp_path, BASE, "_base_/default.yaml")
    child = write(tmp_path, "_base_: ../_base_/default.yaml\nedit_budget: 6\ntrain: {batch_size: 5}\n", "b/child.yaml")
    config = settings(child)
    assert (config.train.edit_budget, config.train.batch_size, config.train.epochs) == (6, 5, 4)
    flat = write(tmp_path, "env: gsm8k\nnum_epochs: 2\noptimizer_model: gpt-o\nuse_gate: 'false'\n", "flat.yaml")
    config = settings(flat)
    assert (config.env.name, config.train.epochs, config.train.gate.enabled) == ("gsm8k", 2, False)
    assert config.optimizer.name == "gpt-o"  # type: ignore[union-attr]


def test_settings_without_effect_are_noted(tmp_path: Path):
    given = read_config(
        write(
            tmp_path,
            "train: {steps_per_epoch: 10}\noptimizer: {meta_learning_rate: 2, lr_control_mode: none}\n"
            "model: {optimizer_minimax_model: x}\nenv: {name: gsm8k}",
        )
    )
    assert sorted(note.split()[0] for note in given.notes) == [
        "model.optimizer_minimax_model",
        "optimizer.lr_control_mode",
        "optimizer.meta_learning_rate",
        "train.steps_per_epoch",
    ]
    assert given.tree["train"]["control"] == "none"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("train: {num_epoch: 4}", r"train\.num_epoch is not .* did you mean 'num_epochs'"),
        ("model: {target_modell: x}", r"model\.target_modell is not a setting"),
        ("optimizer: {learning_rat: 4}", "did you mean 'learning_rate'"),
        ("train: {batch_size: many}", r"train\.batch_size: expected a whole number, got"),
        ("evaluation: {gate_metric: softt}", r"evaluation\.gate_metric: expected one of hard, mixed, soft"),
        ("optimizer: {skill_update_mode: pach}", "did you mean 'patch'"),
        ("optimizer: {lr_control_mode: never}", r"optimizer\.lr_control_mode: 'never' is not one"),
        ("optimizer: {longitudinal_pair_policy: x}", "longitudinal_pair_policy"),
        ("model: {azure_openai_api_key: sk-12345678}", "environment variable AZURE_OPENAI_API_KEY"),
        ("model: {target_qwen_chat_api_key: sk-12345678}", "environment variable QWEN_CHAT_API_KEY"),
        (
            "model: {target_azure_openai_endpoint: e, target_azure_openai_api_key: k}",
            "environment variable TARGET_AZURE_OPENAI_API_KEY",
        ),
        ("model: {azure_openai_auth_mode: azure_cli}", "cloud login"),
        ("model: {optimizer_backend: codex}", "backend is codex_exec, a program"),
        ("model: {backend: cursor}", "backend is cursor_exec, a program"),
        ("model: {backend: minimax, minimax_region: cn}", "minimax_base_url"),
        ("env: {name: gsm8k, data_path: x}", "data_path: an environment of Ludus has its data"),
        ("human_feedback: {enabled: true}", r"human_feedback\.enabled: a run does not wait"),
        ("env: {name: gsm8k, search_mode: offline}", "belongs to a benchmark of SkillOpt"),
        ("env: {name: gsm8k, split_mode: rato}", "did you mean 'ratio'"),
        ("env: {name: gsm9k}", "did you mean 'gsm8k'"),
        ("env: {skill_init: x}", r"env\.name is not set"),
        ("train: 4", "train must be a section"),
    ],
)
def test_what_cannot_be_meant_is_refused(tmp_path: Path, text: str, words: str):
    if "env:" not in text:
        text += "\nenv: {name: gsm8k}"
    with pytest.raises(ConfigError, match=words):
        read_config(write(tmp_path, text))


def test_a_learning_rate_below_the_shipped_least_is_its_own_least(tmp_path: Path):
    given = read_config(write(tmp_path, "optimizer: {learning_rate: 1, lr_scheduler: cosine}\nenv: {name: gsm8k}\n"))
    assert (given.tree["train"]["edit_budget"], given.tree["train"]["min_edit_budget"]) == (1, 1)
    assert "min_learning_rate is 2" in given.notes[0]
    text = "optimizer: {learning_rate: 1, lr_scheduler: constant}\nenv: {name: gsm8k}\n"
    assert read_config(write(tmp_path, text)).notes == ()


def test_an_unused_limit_on_the_optimizers_replies_is_noted(tmp_path: Path):
    text = "model: {optimizer_backend: qwen, optimizer_qwen_chat_max_tokens: 5}\nenv: {name: gsm8k}\n"
    assert "optimizer_qwen_chat_max_tokens is not used" in read_config(write(tmp_path, text)).notes[0]


def test_all_problems_are_reported_at_once(tmp_path: Path):
    with pytest.raises(ConfigError) as caught:
        read_config(write(tmp_path, "train: {num_epoch: 4}\ngradient: {minibatch: 2}\nenv: {name: gsm8k}"))
    assert len(str(caught.value).splitlines()) == 2


def test_an_option_of_our_environment_is_checked_by_it(tmp_path: Path):
    path = write(tmp_path, "env: {name: gsm8k, pathh: x}")
    with pytest.raises(ConfigError, match=r"env\.pathh: unknown setting; did you mean 'env\.path'"):
        settings(path)


def test_files_may_not_be_based_on_each_other(tmp_path: Path):
    write(tmp_path, "_base_: b.yaml", "a.yaml")
    write(tmp_path, "_base_: a.yaml", "b.yaml")
    with pytest.raises(ConfigError, match="circle"):
        read_config(tmp_path / "a.yaml")


ADAPTER = """
class Mine:
    def __init__(self, split_dir="", workers=4, edit_budget=4, flavour="plain"): ...
    def setup(self, cfg): ...
    def get_dataloader(self): ...
    def requires_ray(self): return False
    def build_env_from_batch(self, batch): return batch.payload
    def rollout(self, env, skill, out_dir, **more): return []
"""


def test_an_adapter_gets_its_own_settings(tmp_path: Path):
    adapter = write(tmp_path, ADAPTER, "mine.py")
    path = write(
        tmp_path,
        f"env: {{name: '{adapter}:Mine', split_dir: data, flavour: salty, exec_timeout: 9}}\n"
        "optimizer: {learning_rate: 6}\nmodel: {target: gpt-t}\ntrain: {train_size: 40}",
    )
    config = settings(path)
    assert config.env.name == ADAPTER_ENV
    assert config.options["adapter"] == f"{adapter}:Mine"
    told = config.options["settings"]
    assert (told["split_dir"], told["flavour"], told["edit_budget"]) == ("data", "salty", 6)
    assert (told["target_model"], told["train_size"]) == ("gpt-t", 40)
    assert (config.data.mode, config.data.selection) == ("splits", "val")
    assert read_config(path).notes == ()
    path = write(
        tmp_path,
        f"env: {{name: '{adapter}:Mine'}}\n"
        "model: {target_backend: qwen, target_qwen_chat_base_url: 'http://x', qwen_chat_temperature: 0.3}",
    )
    assert [note.split()[-1] for note in read_config(path).notes] == [
        "TARGET_QWEN_CHAT_BASE_URL",
        "QWEN_CHAT_TEMPERATURE",
    ]
    path = write(tmp_path, f"env: {{name: '{adapter}:Mine', flavor: salty}}")
    with pytest.raises(ConfigError, match="did you mean 'flavour'"):
        read_config(path)


@pytest.mark.filterwarnings("ignore")
def test_every_name_that_the_package_knows_is_known_here(tmp_path: Path):
    pytest.importorskip("skillopt", reason="compares with the original, if it is installed", exc_type=ImportError)
    from skillopt.config import _FLATTEN_MAP, flatten_config, load_config

    for name, flat in _FLATTEN_MAP.items():
        section, key = name.split(".")
        for text in (f"{section}: {{{key}: null}}", f"{flat}: null"):
            try:
                read_config(write(tmp_path, text))
            except ConfigError as error:  # null is no value for most of them, but each is a name
                assert "is not a setting of SkillOpt" not in str(error), name
    theirs = flatten_config(load_config(str(write(tmp_path, BASE))))
    ours = read_config(write(tmp_path, BASE)).tree["train"]
    pairs = {"epochs": "num_epochs", "batch_size": "batch_size", "edit_budget": "edit_budget"}
    pairs |= {"min_edit_budget": "min_edit_budget", "schedule": "lr_scheduler", "memory": "use_meta_skill"}
    assert {key: ours[key] for key in pairs} == {key: theirs[name] for key, name in pairs.items()}


@pytest.mark.parametrize(
    ("backend", "harness", "target", "optimizer"),
    [
        ("codex", "codex", "azure", "azure"),
        ("claude_code_exec", "claude-code", "anthropic", "azure"),
        ("claude", "", "anthropic", "anthropic"),
    ],
)
def test_backends_that_are_agents_become_harnesses(tmp_path: Path, backend, harness, target, optimizer):
    text = f"model: {{backend: {backend}, codex_trace_to_optimizer: false}}\nenv: {{name: terminal-test}}"
    tree = read_config(write(tmp_path, text)).tree
    assert tree["agent"].get("harness", "") == harness
    assert (tree["model"]["type"], tree["optimizer"]["type"]) == (target, optimizer)
    if target == "anthropic":
        assert tree["model"]["name"] == "claude-sonnet-4-6"


@pytest.mark.parametrize(("mode", "control"), [("autonomous", "autonomous"), ("fixed", "none")])
def test_an_autonomous_schedule_is_autonomous_if_the_mode_says_so_too(tmp_path: Path, mode, control):
    text = f"optimizer: {{lr_scheduler: autonomous, lr_control_mode: {mode}}}\nenv: {{name: gsm8k}}"
    assert settings(write(tmp_path, text)).train.control == control
