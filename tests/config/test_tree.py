"""The tree of settings."""

import msgspec

from ludus.config import MAY_CHANGE, load, to_record
from ludus.config.reading import list_types
from ludus.config.tree import SECTIONS, Config


def test_every_setting_that_may_change_on_resume_exists():
    record = to_record(
        load(
            [],
            [
                ("model.name", "x"),
                ("optimizer.name", "x"),
                ("claim_model.name", "x"),
                ("judge.name", "x"),
                ("second_judge.name", "x"),
                ("vision.name", "x"),
            ],
        )
    )
    for path in MAY_CHANGE:
        section, _, name = path.partition(".")
        kinds = [kind.cls for kind in list_types(SECTIONS[section]) if isinstance(kind, msgspec.inspect.StructType)]
        known = {*record[section], *(field.name for kind in kinds for field in msgspec.structs.fields(kind))}
        assert section in record and (not name or name in known), path


def test_nothing_given_is_the_defaults():
    assert load() == Config()
