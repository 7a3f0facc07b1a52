"""Settings are read by one rule, and what is wrong with them is reported in words."""

from pathlib import Path

import pytest
from tests.config_kit import find_problem, write_text

from ludus.config import load
from ludus.config.reading import describe_type
from ludus.errors import ConfigError


def test_mappings_merge_and_lists_replace(tmp_path: Path):
    first = write_text(tmp_path, "tools: {enabled: [file, todo], web: {provider: brave}}", "1.yaml")
    second = write_text(tmp_path, "tools: {enabled: [code], web: {api_key_var: BRAVE}}", "2.yaml")
    tools = load([first, second]).tools
    assert tools.enabled == ("code",)
    assert (tools.web.provider, tools.web.api_key_var) == ("brave", "BRAVE")


def test_an_empty_file_and_an_empty_section_change_nothing(tmp_path: Path):
    first = write_text(tmp_path, "run: {seed: 1}", "1.yaml")
    second = write_text(tmp_path, "run:\n  # seed: 7\n", "2.yaml")
    assert load([first, second, write_text(tmp_path, "# nothing\n", "3.yaml")]).run.seed == 1


@pytest.mark.parametrize(
    ("path", "words", "expected"),
    [
        ("env.group_size", "4", 4),
        ("env.limit", "null", None),
        ("env.split", "no", "no"),
        ("env.split", "2024-01-01", "2024-01-01"),
        ("env.split", "a: b", "a: b"),
        ("env.split", "", ""),
        ("env.ids", "a, b", ("a", "b")),
        ("env.ids", "[a, 'b,c']", ("a", "b,c")),
        ("env.ids", "7", ("7",)),
        ("env.ids", "null", None),
        ("sampling.temperature", "1e-3", 0.001),
        ("sampling.temperature", "1", 1.0),
        ("sampling.tool_choice", "required", "required"),
        ("sampling.tool_choice", "null", None),
        ("sampling.extra", "{top_k: 3}", {"top_k": 3}),
        ("sampling.extra.chat.deep", "true", {"chat": {"deep": True}}),
        ("sandbox.network", "true", True),
        ("run.resume", "yes", True),
        ("agent.system", "{not: yaml", "{not: yaml"),
        ("tools.distributions.mine.file", "50", {"mine": {"file": 50.0}}),
    ],
)
def test_a_flag_is_read_as_its_field_takes_it(path: str, words: str, expected: object):
    section, name = path.split(".")[:2]
    assert getattr(getattr(load([], [(path, words)]), section), name) == expected


def test_a_flag_goes_into_what_an_earlier_flag_set():
    flags = [("sampling.extra", "{a: 1}"), ("sampling.extra.b", "2")]
    assert load([], flags).sampling.extra == {"a": 1, "b": 2}


@pytest.mark.parametrize(
    ("path", "near"),
    [
        ("run.sed", "did you mean 'run.seed'?"),
        ("env.groop_size", "did you mean 'env.group_size'?"),
        ("run.group_size", "did you mean 'env.group_size'?"),
        ("group_size", "did you mean 'env.group_size'?"),
        ("modle.name", "did you mean 'model'?"),
        ("tools.web.providr", "did you mean 'tools.web.provider'?"),
        ("tools.mcp.x.comand", "did you mean 'tools.mcp.x.command'?"),
        ("budget.zzz", "known in 'budget': agent, calls, dollars, optimizer, rollouts, tokens"),
        ("model.retry.firsst", "did you mean 'model.retry.first'?"),
    ],
)
def test_an_unknown_setting_is_refused_with_the_nearest_name(path: str, near: str):
    with pytest.raises(ConfigError) as caught:
        load([], [(path, "1"), ("model.name", "x")])
    unknown = path.split(".")[0] if path.startswith("modle") else path
    assert str(caught.value) == f"{unknown}: unknown setting; {near}"


@pytest.mark.parametrize(
    ("path", "words", "message"),
    [
        ("run.seed", "abc", "run.seed: expected a whole number, got 'abc'"),
        ("run.seed", "1.5", "run.seed: expected a whole number, got 1.5"),
        ("run.seed", "true", "run.seed: expected a whole number, got true"),
        ("env.group_size", "0", "env.group_size: expected a whole number of at least 1, got 0"),
        ("env.limit", "-3", "env.limit: expected a whole number of at least 1 or null, got -3"),
        ("limits.turns", "0", "limits.turns: expected a whole number of at least 1, got 0"),
        ("limits.tool_seconds", "-1", "limits.tool_seconds: expected a number above 0, got -1"),
        ("run.resume", "maybe", "run.resume: expected true or false, got 'maybe'"),
        ("budget.dollars", "0", "budget.dollars: expected a number above 0 or null, got 0"),
        ("sampling.temperature", ".inf", "sampling.temperature: expected a number or null, got inf"),
        ("tools.web.provider", "x", "tools.web.provider: expected one of (empty), brave, searxng, tavily, got 'x'"),
        ("sampling.extra", "5", "sampling.extra: expected a mapping, got 5"),
        ("run", "5", "run: expected a mapping, got 5"),
        ("env", "gsm8k", "env: expected a mapping, got 'gsm8k'"),
        ("tools.mcp.x.command.y", "1", "tools.mcp.x.command: expected a list of texts, got {'y': 1}"),
        (
            "model.type",
            "openay",
            "model.type: unknown model type 'openay'; did you mean 'openai'? "
            "(your own: module:Class, or a file such as my_model.py)",
        ),
    ],
)
def test_a_wrong_value_names_the_setting_what_was_expected_and_what_was_given(path: str, words: str, message: str):
    with pytest.raises(ConfigError) as caught:
        load([], [(path, words)])
    assert str(caught.value) == message


def test_a_problem_in_a_file_names_the_file(tmp_path: Path):
    path = write_text(tmp_path, "run: {sed: 1}\nmodel: {name: 4}")
    assert find_problem(path).splitlines() == [
        f'{path}: model.name: expected text, got 4 (put it in quotes: "…")',
        f"{path}: run.sed: unknown setting; did you mean 'run.seed'?",
    ]


def test_all_problems_are_reported_at_once():
    assert len(find_problem(run__seed="x", run__sed="1", budget__calls="-1").splitlines()) == 3


@pytest.mark.parametrize(
    ("text", "line", "why"),
    [
        ("run:\n  seed: [1", 2, "expected"),
        ("run:\n  seed: 1\n  seed: 2\n", 3, "the key 'seed' is there twice"),
        ("run:\n\tseed: 1\n", 2, "cannot start any token"),
        ("run:\n  [seed]: 1\n", 2, "a key must be a word"),
        ("a: !!python/object:os.system x\n", 1, "could not determine a constructor"),
    ],
)
def test_bad_yaml_names_file_and_line(tmp_path: Path, text: str, line: int, why: str):
    path = tmp_path / "bad.yaml"
    path.write_text(text)
    message = find_problem(path)
    assert message.startswith(f"{path}, line {line}: not valid YAML: ")
    assert why in message


def test_a_file_that_is_not_settings_is_refused(tmp_path: Path):
    assert "expected settings in sections" in find_problem(write_text(tmp_path, "- a\n- b\n"))
    assert find_problem(tmp_path / "none.yaml") == f"--config: there is no file {tmp_path / 'none.yaml'}"
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00")
    assert "not UTF-8" in find_problem(tmp_path / "binary.yaml")


def test_types_in_words():
    assert describe_type(int | None) == "a whole number or null"
    assert describe_type(tuple[str, ...]) == "a list of texts"
    assert describe_type(Path) == "Path (which only code can give)"


@pytest.mark.parametrize("text", ["env: [1, 2]", "model: gpt-5", "train: {slow: 3}", "env: []", "model: ''"])
def test_a_malformed_section_is_an_error_even_if_a_flag_names_it(tmp_path: Path, text: str):
    file = tmp_path / "c.yaml"
    file.write_text(text)
    flags = [("env.name", "gsm8k"), ("model.base_url", "http://host/v1"), ("train.slow.enabled", "true")]
    for given in (flags, []):
        with pytest.raises(ConfigError, match=rf"c.yaml: ({text.partition(':')[0]}|train.slow): expected a mapping"):
            load([file], given)
