"""A small Ray cluster on this machine: a head that does no work, and nodes that can be killed."""

import json
import os
import signal
import sqlite3
import time
import warnings
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent


class TestCluster:
    """Starts and ends nodes."""

    __test__ = False

    def __init__(self) -> None:
        from ray.cluster_utils import Cluster

        self._cluster: Any = Cluster(
            initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False}, shutdown_at_exit=False
        )

    @property
    def address(self) -> str:
        return self._cluster.address

    def add_node(self, **options: Any) -> Any:
        return self._cluster.add_node(num_cpus=1, **options)

    def kill_node(self, node: Any) -> None:
        """End a node at once, as a power cut does."""
        self._cluster.remove_node(node, allow_graceful=False)

    def drain_node(self, node: Any) -> None:
        """Announce the end of a node, as a cloud does before it takes a machine back."""
        import ray
        from ray.core.generated import autoscaler_pb2

        raylet = ray._raylet.GcsClient(address=self.address)
        reason = autoscaler_pb2.DrainNodeReason.Value("DRAIN_NODE_REASON_PREEMPTION")
        deadline = round((time.time() + 3600) * 1000)
        accepted, why = raylet.drain_node(node.node_id, reason, "the machine is taken back", deadline)
        assert accepted, why

    def close(self) -> None:
        self._cluster.shutdown()


@contextmanager
def open_cluster(nodes: int) -> Generator[TestCluster]:
    """A cluster. What Ray leaves open while it starts processes is not a fault of a test."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
        path = os.environ.get("PYTHONPATH", "")
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT / "src"), str(ROOT), path]))
        cluster = TestCluster()
        try:
            for _ in range(nodes):
                cluster.add_node()
            yield cluster
        finally:
            cluster.close()


@pytest.fixture(scope="module")
def cluster() -> Generator[TestCluster]:
    with open_cluster(2) as opened:
        yield opened


def read_store(run: Path) -> dict[str, Any]:
    """The outcomes of a run by key, without times."""
    with sqlite3.connect(run / "store.sqlite") as db:
        rows = db.execute("SELECT key, body FROM outcomes JOIN rollouts ON id = rollout").fetchall()
    db.close()
    return {key: _drop_times(json.loads(body)) for key, body in rows}


def _drop_times(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _drop_times(each) for key, each in value.items() if key not in ("seconds", "times")}
    return [_drop_times(each) for each in value] if isinstance(value, list) else value


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
