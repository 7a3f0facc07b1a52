"""The settings of the recipe `ledger`."""

import pytest

from ludus.errors import ConfigError
from ludus.reflact.ledger.settings import LedgerSettings, LedgerTuning
from ludus.reflact.train_settings import TrainSettings, check_settings


def test_values_are_checked():
    with pytest.raises(ConfigError, match=r"train: .*leave_out"):
        check_settings(TrainSettings(ledger=LedgerSettings(tuning=LedgerTuning(leave_out=2.0))))
    with pytest.raises(ConfigError, match="works with lines"):
        check_settings(TrainSettings(recipe="ledger", update_mode="rewrite_from_suggestions"))


def test_a_run_of_reflact_has_the_identity_that_it_had_before_there_were_recipes():
    assert not {"recipe", "ledger", "shipping"} & TrainSettings(recipe="reflact").identity.keys()
    assert TrainSettings(recipe="ledger").identity["recipe"] == "ledger"
