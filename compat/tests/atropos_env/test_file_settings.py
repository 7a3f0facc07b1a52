"""Settings of atroposlib, translated: which wins, which is refused, and what it becomes."""

from typing import Any, ClassVar

import pytest

from ludus.config.reading import Layer, make_flag_layer
from ludus.errors import ConfigError

pytest.importorskip("pydantic")

from pydantic import Field

from ludus.compat.atropos_env.base_env import BaseEnv
from ludus.compat.atropos_env.env_config import APIServerConfig, BaseEnvConfig, ServerBaseline
from ludus.compat.atropos_env.file_settings import (
    change_resumed,
    choose_servers,
    count_workers,
    make_model_tree,
    translate,
)


class OwnConfig(BaseEnvConfig):
    names: list[str] = Field(default=["a"])
    ratio: float = 0.5
    label: str | None = "x"
    strict: bool = False
    weights: dict[str, float] = Field(default={})


class OwnEnv(BaseEnv):
    name = "own"
    servers: ClassVar[Any] = [APIServerConfig(model_name="m", base_url="http://h:1/v1", api_key="secret", weight=2.0)]

    @classmethod
    def config_init(cls) -> Any:
        return OwnConfig(group_size=3, total_steps=7), cls.servers


class Bare(OwnEnv):
    servers = APIServerConfig(model_name="m", base_url="http://h:1/v1")


class Several(OwnEnv):
    servers: ClassVar[Any] = [
        APIServerConfig(model_name=n, base_url=f"http://h:{i}/v1") for i, n in enumerate(("a", "a", "b"))
    ]


def read(*flags: str, kind: type[BaseEnv] = OwnEnv, command: str = "process", **yaml: Any):
    pairs = [flag.split("=", 1) for flag in flags]
    layers = [Layer("a.yaml", yaml)] if yaml else []
    layers += [make_flag_layer(name, value) for name, value in pairs]
    return translate(kind, "ref", "f.py", "", command, layers)


def test_flags_win_over_yaml_over_presets_over_the_file():
    settings = read().tree["env"]["settings"]
    assert (settings["group_size"], settings["ensure_scores_are_not_same"], settings["include_messages"]) == (
        3,
        False,
        True,
    )
    yaml = {"env": {"group_size": 5, "ensure_scores_are_not_same": True, "ratio": 0.1}}
    settings = read("env.group_size=6", **yaml).tree["env"]["settings"]
    assert (settings["group_size"], settings["ensure_scores_are_not_same"], settings["ratio"]) == (6, True, 0.1)
    assert read(command="serve").tree["env"]["settings"]["ensure_scores_are_not_same"] is True
    assert read(command="train").tree["env"]["settings"]["group_size"] == 1


@pytest.mark.parametrize(("text", "value"), [("True", True), ("true", True), ("False", False), ("false", False)])
def test_booleans_as_published_commands_write_them(text: str, value: bool):
    found = read(f"env.strict={text}", f"env.use_wandb={text}", f"slurm={text}").tree["env"]
    assert found["settings"]["strict"] is value and found["slurm"] is value


def test_flags_of_lists_mappings_and_none():
    words = ('env.names=["p", "q"]', "env.weights={p: 0.5}", "env.label=None", "env.ratio=1e-3")
    settings = read(*words).tree["env"]["settings"]
    assert (settings["names"], settings["weights"], settings["label"], settings["ratio"]) == (
        ["p", "q"],
        {"p": 0.5},
        None,
        0.001,
    )


@pytest.mark.parametrize(
    ("flag", "words"),
    [
        ("env.group_sise=3", "env.group_sise: unknown setting; did you mean 'group_size'"),
        ("env.ratio=much", "env.ratio: .*got 'much'"),
        ("openai.base_ur=x", "openai.base_ur: unknown setting"),
        ("nothing.x=1", "unknown setting"),
        ("testing=true", "testing: canned replies"),
        ("proxy_url=http://x", "proxy_url: exact ids come from the model"),
        ("openai.server_type=trl", "TRL's server gives no logprobs"),
        ("env.max_batches_offpolicy=0", "env.max_batches_offpolicy: at least 1"),
        ("env.split=test", "env.split is not for a file"),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_name(flag: str, words: str):
    with pytest.raises(ConfigError, match=words):
        read(flag)


def test_slurm_needs_an_address():
    class Nowhere(OwnEnv):
        servers = ServerBaseline()

    with pytest.raises(ConfigError, match="slurm: servers are not searched"):
        read("slurm=true", kind=Nowhere)
    model = read(kind=Nowhere).tree["model"]
    assert model["base_url"] == "http://localhost:9004/v1" and len(model["servers"]) == 3


def test_an_unknown_section_of_a_yaml_file_is_told_and_has_no_effect():
    found = read(tinker={"lora_rank": 8}, env={"group_size": 2})
    assert found.tree["env"]["group_size"] == 2 and "tinker" not in found.tree
    assert any("'tinker' is not known" in note for note in found.notes)


@pytest.mark.parametrize("several", [False, True])
def test_a_field_of_a_server_that_atroposlib_ignores_is_told(several: bool):
    server = {"model_name": "z", "base_url": "http://z/v1", "weight": 2.0}
    found = read(openai=[server, server] if several else server)
    assert found.tree["model"]["name"] == "z" and "a.yaml: openai.weight is not known" in found.notes[0]
    with pytest.raises(ConfigError, match="a server is a mapping"):
        read(openai=["http://z/v1"])


def test_the_key_is_kept_out_of_the_settings():
    found = read()
    assert found.keys == ("secret",) and "secret" not in str(found.tree)
    assert found.tree["model"]["api_key_var"] == "LUDUS_FILE_API_KEY"


def test_openai_is_a_mapping_a_list_of_one_or_a_list_of_all_servers():
    for given in ({"model_name": "z"}, [{"model_name": "z"}]):
        (server,) = choose_servers(OwnEnv.servers, given)
        assert (server["model_name"], server["base_url"]) == ("z", "http://h:1/v1")
    both = [{"model_name": "p", "base_url": "http://p/v1"}, {"model_name": "q", "base_url": "http://q/v1"}]
    assert [each["model_name"] for each in choose_servers(OwnEnv.servers, both)] == ["p", "q"]
    with pytest.raises(ConfigError, match="the file has 3 servers"):
        choose_servers(Several.servers, {"model_name": "z"})
    assert read("openai.base_url=http://else/v1", kind=Bare).tree["model"]["base_url"] == "http://else/v1"


def test_servers_of_one_model_are_addresses_of_it():
    model = read(kind=Several).tree["model"]
    assert model["name"] == "a" and model["servers"] == ["http://h:1/v1"]


def test_server_types_with_ids_are_token_mode():
    server = {**APIServerConfig(model_name="m", base_url="http://h/v1").model_dump(), "server_type": "vllm"}
    tree = make_model_tree([server], {"tokenizer_name": "tok", "tool_call_parser": "hermes"})
    assert (tree["mode"], tree["engine"], tree["tokenizer"], tree["parser"]) == ("token", "atropos", "tok", "hermes")
    named = make_model_tree([{**server, "server_type": "sglang", "tokenizer_name": "own"}], {"tokenizer_name": "tok"})
    assert (named["engine"], named["tokenizer"], named["parser"]) == ("sglang", "own", "auto")


def test_the_users_own_sections_win_and_models_of_two_types_do_not_mix():
    found = read("model.type=scripted", "model.script=a.py:b", "run.seed=4").tree
    assert found["model"] == {"type": "scripted", "script": "a.py:b"} and found["run"]["seed"] == "4"


def test_workers_are_groups_at_once():
    assert count_workers({"max_num_workers": 5, "max_num_workers_per_node": 8}, 2) == 5
    assert count_workers({"max_num_workers": -1, "max_num_workers_per_node": 8}, 2) == 16
    assert read("env.max_num_workers=2").tree["run"]["concurrency"] == 6


def test_serve_gets_what_the_trainer_is_told():
    serve = read(
        "env.eval_handling=LIMIT_TRAIN", "env.total_steps=-1", "env.inference_weight=-1", command="serve"
    ).tree["serve"]
    assert (serve["eval_handling"], serve["steps"], serve["weight"], serve["name"]) == ("limit", None, 1.0, "own")


def test_a_resumed_run_may_change_its_groups_and_its_server_alone():
    record = read().tree
    layers = [make_flag_layer("env.total_steps", "9"), make_flag_layer("openai.base_url", "http://new/v1")]
    changed, keys = change_resumed(OwnEnv, record, layers)
    assert changed["env"]["settings"]["total_steps"] == 9 and changed["model"]["base_url"] == "http://new/v1"
    assert keys == ("secret",) and "secret" not in str(changed)
    with pytest.raises(ConfigError, match="slurm: a run that is resumed keeps it"):
        change_resumed(OwnEnv, record, [make_flag_layer("slurm", "true")])


def test_a_config_init_that_fails_or_exits_is_named():
    class Exits(OwnEnv):
        @classmethod
        def config_init(cls) -> Any:
            raise SystemExit("set KEY first")

    with pytest.raises(ConfigError, match=r"Exits\.config_init failed: SystemExit: set KEY first"):
        read(kind=Exits)
