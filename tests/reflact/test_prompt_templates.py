"""Prompts: strict fields, overrides with the same fields, and examples that the code accepts."""

import re
from pathlib import Path

import msgspec
import pytest

from ludus.errors import ConfigError
from ludus.reflact.items import Document, Suggestion
from ludus.reflact.ledger.line_analyst import LineItem, LineReply
from ludus.reflact.prompt_templates import Prompts, find_fields
from ludus.reflact.proposers.plain import RuleReply
from ludus.reflact.stages import aggregate, appendix, reflect, select, update
from ludus.reflact.stages import optimizer_memory as meta
from ludus.reflact.stages import slow_update as slow
from ludus.skill import Edit

OURS = Prompts.load()
PARTS = {"item_edit", "item_suggestion", "item_document", "item_files", "line_pointer", "notes", "origins", "reask"}


@pytest.mark.parametrize("name", OURS.names)
def test_a_prompt_renders_with_exactly_its_fields(name: str):
    values = {field: f"<{field}>" for field in find_fields(OURS.get_text(name))}
    if name in PARTS:
        rendered = OURS.render_part(name, **values)
    else:
        system, message = OURS.render_messages(name, values)
        assert (system.role, message.role) == ("system", "user")
        rendered = system.content + message.content
    assert "{{" not in rendered
    assert all(value in rendered for value in values.values())


def test_a_missing_or_unused_field_is_an_error():
    with pytest.raises(ValueError, match=r"missing \['problem'\]"):
        OURS.render_part("reask")
    with pytest.raises(ValueError, match=r"does not use \['colour'\]"):
        OURS.render_part("reask", problem="x", colour="red")
    values = dict.fromkeys(find_fields(OURS.get_text("rank")), "")
    with pytest.raises(ValueError, match="does not use"):
        OURS.render_messages("rank", {**values, "more": ""})
    del values["skill"]
    with pytest.raises(ValueError, match=r"missing \['skill'\]"):
        OURS.render_messages("rank", values)


def test_values_are_never_read_as_templates():
    assert OURS.render_part("reask", problem="{{problem}} {{other}}").startswith(
        "Your reply cannot be used: {{problem}} {{o"
    )


def test_a_folder_overrides_prompts_by_name(tmp_path: Path):
    (tmp_path / "reask.md").write_text("No: {{problem}}")
    changed = Prompts.load(tmp_path)
    assert changed.render_part("reask", problem="x") == "No: x"
    assert changed.get_text("rank") == OURS.get_text("rank")
    assert changed.get_hash("reask") != OURS.get_hash("reask")
    assert changed.compute_digest() != OURS.compute_digest() == Prompts.load().compute_digest()


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("reasc.md", "{{problem}}", "did you mean 'reask'"),
        ("reask.md", "No.", r"exactly these fields: \{\{problem\}\}"),
        ("reask.md", "{{problem}} {{skill}}", "exactly these fields"),
        ("consolidate.md", "{{notes}} {{count}}", "and the line '<!-- message -->'"),
    ],
)
def test_an_override_that_does_not_fit_is_refused(tmp_path: Path, name: str, text: str, says: str):
    (tmp_path / name).write_text(text)
    with pytest.raises(ConfigError, match=says):
        Prompts.load(tmp_path)


def test_a_folder_within_it_is_for_one_environment(tmp_path: Path):
    (tmp_path / "reask.md").write_text("For all: {{problem}}")
    (tmp_path / "orders").mkdir()
    (tmp_path / "orders" / "reask.md").write_text("For orders: {{problem}}")
    said = {env: Prompts.load(tmp_path, env).render_part("reask", problem="no") for env in ("", "orders", "gsm8k")}
    assert said == {"": "For all: no", "orders": "For orders: no", "gsm8k": "For all: no"}


def test_a_folder_that_is_not_there_is_refused(tmp_path: Path):
    with pytest.raises(ConfigError, match="is not a folder"):
        Prompts.load(tmp_path / "no")


REPLIES = {
    "analyst_failure": reflect.REPLIES["patch"],
    "analyst_success": reflect.REPLIES["patch"],
    "merge_failure": aggregate.REPLIES["patch"],
    "merge_success": aggregate.REPLIES["patch"],
    "analyst_lines": LineReply,
    "merge_final": aggregate.REPLIES["patch"],
    "rank": select.RankReply,
    "budget": select.BudgetReply,
    "rewrite": update.RewriteReply,
    "slow": slow.SlowReply,
    "meta": meta.MemoryReply,
    "consolidate": appendix.NotesReply,
    "item_edit": Edit,
    "item_suggestion": Suggestion,
    "item_document": Document,
    "item_files": Edit,
    "line_pointer": LineItem,
    "plain_rule": RuleReply,
}


def test_runs_of_the_first_version_find_their_prompts_unchanged():
    """A change of these prompts makes such runs impossible to resume."""
    assert OURS.compute_digest("reflact", "minibatch") == "83a21e415e1be269"
    assert OURS.compute_digest("reflact", "named") != OURS.compute_digest("reflact", "minibatch")


@pytest.mark.parametrize("name", REPLIES)
def test_the_examples_in_a_prompt_are_replies_that_the_code_accepts(name: str):
    if name == "plain_rule":  # a small model copies the fences of a block
        lines = re.findall(r'^{"rule.*}$', OURS.get_text(name), re.MULTILINE)
        assert len(lines) == 2
    else:
        (example,) = re.findall(r"```json\n(.*?)```", OURS.get_text(name), re.DOTALL)
        lines = example.splitlines() if name in ("item_edit", "item_files") else [example]
    for line in lines:
        value = msgspec.json.decode(line, type=REPLIES[name])
        assert set(msgspec.json.decode(line)) <= set(value.__struct_fields__)


def test_every_prompt_is_used_and_tested():
    assert set(OURS.names) == set(REPLIES) | PARTS
