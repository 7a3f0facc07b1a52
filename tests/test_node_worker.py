"""The worker of an engine, without a cluster: it opens from the settings, runs a lease, and reports."""

import os
from collections.abc import Generator
from pathlib import Path

import msgspec
import pytest
from tests.cli_kit import script_flags, write_sums

from ludus.config import load
from ludus.config.build_agent import build_env, build_policy
from ludus.config.build_engine import make_order
from ludus.config.build_models import build_model
from ludus.engines.wire import (
    NodeHello,
    NodeLease,
    NodeOrder,
    NodeReport,
    NodeSlots,
    WireJob,
    WireUnit,
    Word,
    decode_report,
    encode,
    encode_lease,
    make_patch,
    name_patch,
    read_rollout,
)
from ludus.models.ledger import Ledger
from ludus.node_worker import NodeWorker
from ludus.tools.toolsets import BUILTIN


@pytest.fixture
def order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Generator[NodeOrder]:
    """What a driver in a folder of its own sends."""
    write_sums(tmp_path)
    monkeypatch.chdir(tmp_path)
    flags = script_flags()
    config = load(flags=[("env.name", "sums.py"), *zip([f[2:] for f in flags[::2]], flags[1::2], strict=True)])
    env = build_env(config)
    policy = build_policy(config, env, build_model(config.model, Ledger()), BUILTIN)
    yield make_order(config, env, policy)


async def greet(order: NodeOrder) -> tuple[NodeWorker, NodeHello]:
    worker = NodeWorker()
    return worker, msgspec.msgpack.decode(await worker.open(encode(order)), type=NodeHello)


def test_an_order_has_the_files_that_the_settings_name(order: NodeOrder):
    assert set(order.files) == set(order.digests) == {"sums.py", "models.py"}
    assert "engine" not in order.settings and order.settings["run"]["out"] == ""


async def test_a_lease_is_run_and_reported(order: NodeOrder, tmp_path: Path):
    worker, hello = await greet(order)
    assert hello.refusal == "" and hello.pid == os.getpid()
    config_env = build_env(load(flags=[("env.name", "sums.py")]))
    task = next(iter(config_env.tasks("train")))
    patch = make_patch(worker._policy)
    name = name_patch(patch)
    units = tuple(WireUnit(number, (WireJob(task, number, 5, name),)) for number in range(3))
    await worker.take(encode_lease(NodeLease(units, {name: patch}, slots=NodeSlots(0, 2))))
    ended, spent = [], 0
    reports = worker.reports(100)
    while len(ended) < 3:
        report: NodeReport = decode_report(await anext(reports))
        ended += report.ends
        spent += sum(totals.calls for totals in report.spent.values())
    rollouts = [read_rollout(end.rollouts[0], task, {}) for end in ended]
    assert spent == 3 and {rollout.provenance.replicate for rollout in rollouts} == {0, 1, 2}
    assert all(rollout.score and rollout.score.value == 1.0 and rollout.task is task for rollout in rollouts)
    await worker.close()


async def test_what_was_not_begun_is_given_back(order: NodeOrder):
    worker, _ = await greet(order)
    patch = make_patch(worker._policy)
    units = tuple(WireUnit(number, ()) for number in (7, 8))
    await worker.take(encode_lease(NodeLease(units, {name_patch(patch): patch}, slots=NodeSlots(0, 0))))
    await worker.hear(encode(Word(give_back=True)))
    assert decode_report(await anext(worker.reports(100))).returned == (7, 8)
    await worker.close()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"version": "9.9"}, "and the driver has 9.9"),
        ({"digests": {"/nowhere/data.json": "abc"}}, "/nowhere/data.json is not there: put it there"),
        ({"digests": {"large.bin": "abc"}}, "large.bin is not there"),
    ],
)
async def test_a_node_that_differs_refuses(order: NodeOrder, changes: dict[str, object], message: str):
    _, hello = await greet(msgspec.structs.replace(order, **changes))
    assert message in hello.refusal


async def test_a_node_with_another_policy_or_environment_names_the_difference(order: NodeOrder):
    proof = msgspec.structs.replace(order.proof, policy={**order.proof.policy, "model": "another"})
    _, hello = await greet(msgspec.structs.replace(order, proof=proof))
    assert hello.refusal == "its policy is not the driver's: model is 'scripted' there, and 'another' here"
    proof = msgspec.structs.replace(order.proof, env_code={"sums.py": "123"})
    _, hello = await greet(msgspec.structs.replace(order, proof=proof))
    assert hello.refusal == "the environment's code is not the driver's: sums.py"


async def test_files_that_a_node_lacks_are_those_that_were_sent(order: NodeOrder, tmp_path: Path):
    worker, hello = await greet(msgspec.structs.replace(order, folder=str(tmp_path / "elsewhere")))
    assert hello.refusal == "" and Path.cwd() != tmp_path and Path("sums.py").is_file()
    os.chdir(tmp_path)
    await worker.close()


async def test_what_was_said_earlier_and_comes_later_does_not_count(order: NodeOrder):
    worker, _ = await greet(order)
    await worker.hear(encode(Word(slots=NodeSlots(2, 4))))
    await worker.hear(encode(Word(slots=NodeSlots(1, 0))))
    assert worker._slots == NodeSlots(2, 4)
    await worker.close()
