"""Parts of `bench/packages.py` and its worlds. Figures of arms are not asserted."""

import json
import sys
from dataclasses import replace
from pathlib import Path
from statistics import fmean

import pytest

BENCH = Path(__file__).resolve().parents[2] / "bench"
sys.path[:0] = [str(BENCH), str(BENCH / "peers")]  # the benchmarks are scripts, not a package

import package_worlds as pw  # noqa: E402
import packages as bench  # noqa: E402
import rule_world as rw  # noqa: E402
import run_package_worlds as ours  # noqa: E402


def make_world(family: str = "routed", *, whole: bool = True, **changes: object) -> pw.PackageWorld:
    setting = replace(pw.DEVELOPMENT[family], train=24, selection=12, test=60, **changes)  # pyright: ignore
    return pw.PackageWorld(setting, 7, whole=whole)


def test_a_package_is_split_and_joined():
    world = make_world("existing")
    assert pw.join_package(pw.split_package(world.skill)) == world.skill
    assert set(world.split(world.skill)) == {"", *(pw.name_reference(kind) for kind in world.kinds)}


@pytest.mark.parametrize("family", ["existing", "scripts"])
def test_the_true_accuracy_is_that_of_many_rollouts(family: str):
    world = make_world(family)
    files = dict(world.split(world.skill))
    files[""] += "- For K0 tasks: read references/k0.md\n"
    for rule, name in enumerate(world.situations[: world.setting.rules]):
        path = pw.name_script(rule) if rule in world.scripted else "references/k0.md" if rule % 2 else ""
        files[path] = files.get(path, "") + f"- When {name}: do it (r{rule:02d}.{'h51' if rule % 5 == 0 else 'x1'})\n"
        files[""] += f"- When {name}: run {path}\n" if path.startswith("scripts/") else ""
    text = pw.join_package(files)
    rollouts = [
        world.run_agent(text, item, seed).endswith("right") for item in world.items["test"] for seed in range(60)
    ]
    assert fmean(rollouts) == pytest.approx(world.compute_accuracy(text), abs=0.03)


def test_a_reference_acts_only_where_the_document_sends_the_agent():
    world = make_world(follow=1.0)
    rule, kind = next((rule, kind) for rule, kind in world.home.items())
    item = rw.Item("test-0", kind, (rule,))
    line = f"- When {world.situations[rule]}: do it (r{rule:02d}.x1)\n"
    there = {**world.files, pw.name_reference(kind): line}
    read = world.read_as(pw.join_package(there), world.find_use(pw.join_package(there), item, 1))
    lost = pw.join_package({**there, "": pw.BODY})
    assert line.strip() in read + ")" or "x1" in read
    assert world.find_use(lost, item, 1) == pw.Use() and "x1" not in world.read_as(lost, pw.Use())


def test_packages_are_trained_with_real_checks_of_scripts_and_alike_each_time(
    bwrap: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(pw, "BUDGET", 200)
    runs = [ours.run(make_world("scripts", script_quality=(0.4, 0.3, 0.2, 0.1)), "package") for _ in range(2)]
    assert runs[0] == runs[1]
    scripts = runs[0]["scripts"]
    assert isinstance(scripts, dict) and scripts["refused"] > 0 and scripts["admitted"] > 0


def make_row(family: str, arm: str, seed: int, accuracy: float, lies: int = 0) -> bench.Row:
    scripts = {"refused": 3, "admitted": 4, "lies admitted": 1, "shipped": 4, "lies shipped": lies}
    return {
        "family": family, "variant": arm, "seed": seed, "start": 0.1, "ceiling": 0.8, "accuracy": accuracy, "lines": 0,
        "in_files": 1, "claim": accuracy - 0.1 + 0.05 * lies, "covers": not lies, "first_lines": lies,
        "scripts": scripts,
    }  # fmt: skip


def test_the_targets_are_checked_and_the_table_is_made():
    def make_rows(package: float, lies: int) -> list[bench.Row]:
        arms = {"package": package, "document": 0.5}
        return [
            make_row(family, arm, seed, accuracy, lies)
            for family in bench.FAMILIES for arm, accuracy in arms.items() for seed in range(3)
        ]  # fmt: skip

    good, bad = make_rows(0.6, 0), make_rows(0.4, 1)
    assert all(check.passed for check in bench.make_checks(good))
    assert not any(check.passed for check in bench.make_checks(bad))
    table = bench.render_rows(good, bench.FAMILIES, ("package", "document"))
    assert "+0.100 [+0.100, +0.100]" in table and "3 of 3" in table
    assert "4 became lines" not in bench.describe_scripts([]) and "12 became lines" in bench.describe_scripts(good)
    json.dumps(bench.make_jobs(["flat"], [1], ["package"], held_out=True))
