"""The page of all settings."""

from typing import Any, get_args

import msgspec
import pytest
from tests.config_kit import FULL

from ludus.config import load, to_record
from ludus.config.reading import get_entry_type, list_types
from ludus.config.settings_page import read_field_docs, render_settings_page
from ludus.config.tree import SECTIONS, ModelSettings
from ludus.reflact.gate import Gate
from ludus.reflact.train_settings import Appendix, DataSettings, SlowUpdate, TrainSettings


def test_the_page_has_every_setting():
    page = render_settings_page()
    for section, values in to_record(load([], FULL)).items():
        assert f"## {section}" in page
        for name, value in values.items():
            if name != "type" and not (isinstance(value, dict) and value):
                assert f"`{section}.{name}" in page, (section, name)
    for path in ("env.path", "tools.web.provider", "tools.mcp.<name>.command", "model.retry.retries"):
        assert f"| `{path}` |" in page


def collect_settings(kind: Any) -> set[type[msgspec.Struct]]:
    """Every group of settings that a section holds, at any depth."""
    found: set[type[msgspec.Struct]] = set()
    for info in list_types(kind):
        if isinstance(info, msgspec.inspect.StructType):
            found |= {info.cls}.union(*(collect_settings(f.type) for f in msgspec.structs.fields(info.cls)))
        elif entry := get_entry_type(info):
            found |= collect_settings(entry)
    return found


def test_every_setting_has_a_description():
    groups = set[type[msgspec.Struct]]().union(*(collect_settings(kind) for kind in SECTIONS.values()))
    assert len(groups) > 30
    for group in groups:
        missing = {f.name for f in msgspec.structs.fields(group)} - set(read_field_docs(group))
        assert not missing, (group.__name__, missing)
        assert group.__doc__, group.__name__
    assert {kind.__name__ for kind in get_args(ModelSettings)} >= {"OpenAISettings", "EmbeddedSettings"}


@pytest.mark.parametrize("recipe", [TrainSettings, DataSettings, SlowUpdate, Appendix, Gate])
def test_every_setting_of_training_has_a_description(recipe: type[msgspec.Struct]):
    assert {f.name for f in msgspec.structs.fields(recipe)} == set(read_field_docs(recipe))
