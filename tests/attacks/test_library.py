"""The library of attacks: names, aims, and that every script can be run where what it looks for is missing."""

import subprocess

import pytest

from ludus.attacks.library import Attack, list_attacks
from ludus.sandbox import SandboxSpec
from ludus.sandbox.pool import Pool


def test_names_are_unique_and_begin_with_the_aim():
    attacks = list_attacks()
    assert len({attack.name for attack in attacks}) == len(attacks) >= 35
    assert [attack.name for attack in attacks if not attack.name.startswith(f"{attack.aim}-")] == []
    assert [attack.name for attack in attacks if not attack.notes] == []


def test_attacks_are_chosen_by_aim():
    assert {attack.aim for attack in list_attacks("reward", "pytest")} == {"reward", "pytest"}


@pytest.mark.parametrize("attack", list_attacks(), ids=lambda attack: attack.name)
def test_scripts_are_shell(attack: Attack):
    done = subprocess.run(["bash", "-n"], input=attack.script.encode(), capture_output=True, check=False)
    assert done.stderr == b""


async def test_scripts_end_well_in_a_plain_slot(pool: Pool):
    async with pool.lease(SandboxSpec(disk_mb=64)) as box:
        codes = {a.name: (await box.exec(a.script, timeout=30)).exit_code for a in list_attacks()}
    assert {name: code for name, code in codes.items() if code != 0} == {}
