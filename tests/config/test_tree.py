"""The tree of settings."""

from ludus.config import MAY_CHANGE, load, to_record
from ludus.config.tree import Config


def test_every_setting_that_may_change_on_resume_exists():
    record = to_record(load([], [("model.name", "x"), ("optimizer.name", "x")]))
    for path in MAY_CHANGE:
        section, _, name = path.partition(".")
        assert section in record and (not name or name in record[section]), path


def test_nothing_given_is_the_defaults():
    assert load() == Config()
