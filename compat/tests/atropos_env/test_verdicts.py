"""Every published name of atroposlib 0.4.0 has a verdict, and the verdicts are true."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from compat.tests.file_kit import flags, write_files
from tests.cli_kit import Ludus

from ludus.compat.atropos_env import verdicts
from ludus.compat.atropos_env.base_env import BaseEnv
from ludus.compat.atropos_env.env_config import APIServerConfig, BaseEnvConfig
from ludus.compat.atropos_env.file_modules import list_atropos_modules
from ludus.compat.atropos_env.file_settings import translate
from ludus.compat.verdicts import Verdict
from ludus.config.reading import Layer, make_flag_layer
from ludus.errors import ConfigError

PUBLISHED = {
    "ENV_FIELDS": """group_size max_num_workers max_eval_workers max_num_workers_per_node steps_per_eval
        max_token_length eval_handling eval_limit_ratio inference_weight batch_size max_batches_offpolicy tokenizer_name
        use_wandb
        rollout_server_url total_steps wandb_name num_rollouts_to_keep num_rollouts_per_group_for_logging
        ensure_scores_are_not_same data_path_to_save_groups data_dir_to_save_evals min_items_sent_before_logging
        include_messages min_batch_allocation worker_timeout thinking_mode reasoning_effort max_reasoning_tokens
        custom_thinking_prompt""",
    "SERVER_FIELDS": """timeout num_max_requests_at_once num_requests_for_eval model_name rolling_buffer_length
        server_type tokenizer_name api_key base_url n_kwarg_is_ignored health_check slurm testing max_n_completions
        proxy_url""",
    "METHODS": """name env_config_cls server_cls derived_batch_size config_init collect_trajectory collect_trajectories
        postprocess_histories get_next_item evaluate load_checkpoint save_checkpoint setup setup_wandb register_env
        get_server_info perf_stats create_rollout_table add_rollouts_for_wandb wandb_log evaluate_log
        handle_send_to_api handle_env cleanup get_status env_step_checks add_train_workers env_manager process_manager
        cli get_cli_serve_config_cls get_cli_process_config_cls get_cli_evaluate_config_cls""",
    "MODULES": """atroposlib.envs.base atroposlib.envs.eval atroposlib.envs.reward_fns
        atroposlib.envs.reward_fns.combined_reward atroposlib.envs.reward_fns.registry
        atroposlib.envs.server_handling.managed_server atroposlib.envs.server_handling.openai_server
        atroposlib.envs.server_handling.server_baseline atroposlib.envs.server_handling.server_manager
        atroposlib.envs.server_handling.vllm_server atroposlib.type_definitions
        atroposlib.utils.best_of_n_selection atroposlib.utils.io atroposlib.utils.message_history_utils
        atroposlib.utils.tokenize_for_trainer atroposlib.utils.tool_call_parser""",
}
VALUES = {
    "steps_per_eval": 7,
    "eval_handling": "NONE",
    "eval_limit_ratio": 0.25,
    "inference_weight": 2.0,
    "tokenizer_name": "owner/other",
    "rollout_server_url": "http://h:1",
    "wandb_name": "other",
    "data_path_to_save_groups": "a.jsonl",
    "data_dir_to_save_evals": "evals",
    "min_batch_allocation": 0.5,
    "reasoning_effort": "low",
    "custom_thinking_prompt": "think",
    "model_name": "other",
    "server_type": "sglang",
    "api_key": "secret",
    "base_url": "http://h:2/v1",
    "n_kwarg_is_ignored": True,
    "health_check": False,
    "thinking_mode": True,
    "ensure_scores_are_not_same": False,
    "include_messages": True,
    "use_wandb": True,
}
"""A value of a setting that is not its default; else a number."""


class Plain(BaseEnv):
    @classmethod
    def config_init(cls) -> Any:
        return BaseEnvConfig(use_wandb=False), [
            APIServerConfig(base_url="http://h:1/v1", model_name="m", server_type="vllm")
        ]


def read(*layers: Layer) -> dict[str, Any]:
    found = translate(Plain, "ref", "f.py", "", "serve", layers)
    return found.tree


def look_up(tree: Any, path: str) -> Any:
    for name in path.split("."):
        tree = tree.get(name, {})
    return tree


@pytest.mark.parametrize("table", PUBLISHED)
def test_every_published_name_has_one_verdict(table: str):
    names = [each.name for each in getattr(verdicts, table)]
    assert sorted(names) == sorted(PUBLISHED[table].split())


def test_the_published_names_are_those_of_the_package():
    named = os.environ.get("LUDUS_TEST_ATROPOS", "")
    if not named:
        pytest.skip("see make test-atropos")
    code = """
from atroposlib.envs.base import BaseEnv, BaseEnvConfig
from atroposlib.envs.server_handling.server_manager import APIServerConfig, ServerManagerConfig
print(*BaseEnvConfig.model_fields, sep=",")
print(*APIServerConfig.model_fields, *ServerManagerConfig.model_fields, sep=",")
print(*[name for name in vars(BaseEnv) if not name.startswith("_")], sep=",")
"""
    done = subprocess.run([f"{named}/bin/python", "-c", code], capture_output=True, text=True, check=True)
    for table, line in zip(PUBLISHED, done.stdout.splitlines()[-3:], strict=False):
        assert sorted(line.split(",")) == sorted(PUBLISHED[table].split())


@pytest.mark.parametrize("verdict", verdicts.ENV_FIELDS, ids=lambda each: each.name)
def test_a_field_of_the_environment_becomes_what_its_verdict_says(verdict: Verdict, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("ludus.compat.atropos_env.file_settings.is_installed", lambda name: True)
    value = VALUES.get(verdict.name, 1234)
    before, after = read(), read(make_flag_layer(f"env.{verdict.name}", str(value)))
    assert after["env"]["settings"][verdict.name] == value != before["env"]["settings"][verdict.name]  # the file has it
    assert all(look_up(before, path) != look_up(after, path) for path in verdict.becomes.split())
    others = {name: tree for name, tree in after.items() if name != "env"}
    if not verdict.becomes:
        assert others == {name: tree for name, tree in before.items() if name != "env"}


SERVER_NAMES = [each for each in verdicts.SERVER_FIELDS if each.name in APIServerConfig.model_fields]
MANAGER_NAMES = [each for each in verdicts.SERVER_FIELDS if each not in SERVER_NAMES]


@pytest.mark.parametrize("verdict", SERVER_NAMES, ids=lambda each: each.name)
def test_a_field_of_a_server_becomes_what_its_verdict_says(verdict: Verdict):
    value = VALUES.get(verdict.name, 1234)
    first = make_flag_layer("openai.server_type", "openai")
    base = (first,) if verdict.name == "server_type" else ()
    before, after = read(*base), read(make_flag_layer(f"openai.{verdict.name}", str(value)))
    assert all(look_up(before, path) != look_up(after, path) for path in verdict.becomes.split())
    if not verdict.becomes:
        assert after["model"] == before["model"] and after["env"]["servers"][0][verdict.name] == value


@pytest.mark.parametrize("verdict", MANAGER_NAMES, ids=lambda each: each.name)
def test_an_option_of_all_servers_is_refused_by_name_or_has_no_harm(verdict: Verdict):
    value = {"max_n_completions": "2", "proxy_url": "http://h"}.get(verdict.name, "True")
    layers = [make_flag_layer(verdict.name, value), make_flag_layer("openai.base_url", "")]
    if verdict.outcome == "refused":
        with pytest.raises(ConfigError, match=verdict.name):
            read(*layers)
    else:
        assert read(*layers)["model"] == read(layers[1])["model"]


METHODS_FILE = """
from atroposlib.envs.base import BaseEnv, BaseEnvConfig


class Methods(BaseEnv):
    async def setup(self):
        self.called = set()

    async def get_next_item(self):
        self.called.add("get_next_item")
        return 1

    async def collect_trajectories(self, item):
        return {"tokens": [[1, 2]] * 2, "masks": [[1, 2]] * 2, "scores": [0.0, 1.0]}, []

    async def wandb_log(self, metrics=None):
        await super().wandb_log(self.perf_stats(metrics or {}))
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write_files(tmp_path, methods=METHODS_FILE)
    return tmp_path


@pytest.mark.usefixtures("folder")
def test_methods_that_are_not_called_are_told_and_recorded_by_name(ludus: Ludus):
    more = "".join(f"\n    async def {name}(self, *args):\n        1 / 0\n" for name in sorted(verdicts.NOT_CALLED))
    Path("methods.py").write_text(METHODS_FILE + more)
    words = flags("empty", "--env.total_steps", "1", "--env.group_size", "2")
    done = ludus("process", "atropos:methods.py", "--out", "run", "--json", *words)
    assert done.code == 0, done.err
    assert all(f"the file defines {name}, which is not called here" in done.err for name in verdicts.NOT_CALLED)
    recorded = json.loads(Path("run/summary.json").read_text())["groups"]["not_called"]
    assert set(recorded) == verdicts.NOT_CALLED
    plain = ludus("process", "atropos:methods.py:Methods", "--out", "two", "--json", *words)
    assert plain.code == 0


@pytest.mark.parametrize("verdict", [each for each in verdicts.METHODS if each.outcome == "honoured"])
def test_methods_that_are_honoured_are_there(verdict: Verdict):
    assert hasattr(BaseEnv, verdict.name) and list(verdicts.list_not_called(Plain)) == []


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("verdict", verdicts.MODULES, ids=lambda each: each.name)
def test_modules_are_provided_or_refused_by_name(ludus: Ludus, verdict: Verdict):
    if verdict.outcome == "honoured":
        assert list_atropos_modules()[verdict.name]
        return
    Path("methods.py").write_text(f"import {verdict.name}\n{METHODS_FILE}")
    done = ludus("process", "atropos:methods.py", "--out", "run", *flags("empty"))
    assert done.code == 2 and "atroposlib.envs." in done.err and "pip install atroposlib" in done.err
