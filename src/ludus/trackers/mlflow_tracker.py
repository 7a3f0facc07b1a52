"""MLflow: metrics, settings and tables of a run as a run of an experiment. An extra of the package.

`mlflow-skinny` is enough to talk to a server (`mlflow server`). With the whole package `mlflow`, a database works too:
`--tracking.options.mlflow.uri sqlite:///mlflow.db`. The user's name and password or token are read from the environment
by MLflow itself (`MLFLOW_TRACKING_USERNAME`, `MLFLOW_TRACKING_TOKEN`, …).
"""

import math
import time
from collections.abc import Iterator, Mapping
from typing import Any

from ludus.encoding import to_json
from ludus.errors import ConfigError
from ludus.trackers import Table, TrackedRun, Values
from ludus.trackers.background import BackgroundWork
from ludus.trackers.client_trackers import import_client

_LONGEST = 500
"""Characters of a setting that are sent. Old servers take no more."""
_BATCH = 100
"""Settings of one request: MLflow's limit."""


class MlflowTracker:
    """A run of MLflow. `uri`: the server or database; empty: MLFLOW_TRACKING_URI, or what MLflow takes by default."""

    def __init__(self, uri: str = "") -> None:
        client = import_client("mlflow", "mlflow").MlflowClient
        self._entities = import_client("mlflow.entities", "mlflow")
        try:
            self._client: Any = client(tracking_uri=uri or None)
        except Exception as error:  # MLflow's own, which names the scheme that it does not know
            raise ConfigError(
                f"tracking.options.mlflow.uri: MLflow cannot use {uri or 'its default'} ({error}). Name a server "
                "(http://HOST:PORT); for a database install the whole package: pip install mlflow"
            ) from None
        self._run = ""
        self._work: BackgroundWork | None = None

    def start(self, run: TrackedRun) -> None:
        self._work = BackgroundWork("mlflow")
        self._work.do(lambda: self._open(run))

    def _open(self, run: TrackedRun) -> None:
        client = self._client
        found = client.get_experiment_by_name(run.project)
        experiment = found.experiment_id if found else client.create_experiment(run.project)
        tags = {"ludus.folder": str(run.folder), **({"ludus.group": run.group} if run.group else {})}
        self._run = client.create_run(experiment, run_name=run.name, tags=tags).info.run_id
        make = self._entities.Param
        settings = [make(name[:250], text[:_LONGEST]) for name, text in list_setting_texts(run.config)]
        for at in range(0, len(settings), _BATCH):
            client.log_batch(self._run, params=settings[at : at + _BATCH])

    def log(self, values: Values, step: int) -> None:
        assert self._work is not None
        now = int(time.time() * 1000)
        self._work.do(lambda: self._send(values, step, now))

    def _send(self, values: Values, step: int, now: int) -> None:
        make = self._entities.Metric
        numbers = {name: value for name, value in values.items() if isinstance(value, int | float)}
        metrics = [make(name, float(value), now, step) for name, value in numbers.items() if math.isfinite(value)]
        if metrics:
            self._client.log_batch(self._run, metrics=metrics)
        for name, value in values.items():
            if isinstance(value, Table):
                self._client.log_text(self._run, to_json(value).decode(), f"tables/{name}/step-{step}.json")
            elif isinstance(value, str):
                self._client.log_text(self._run, value, f"texts/{name}/step-{step}.txt")

    def close(self) -> None:
        if self._work is None:
            return
        self._work.do(lambda: self._client.set_terminated(self._run))
        self._work.close()


def list_setting_texts(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Settings by their dotted names, as texts. Those that are empty are left out."""
    for name, value in tree.items():
        if isinstance(value, Mapping):
            yield from list_setting_texts(value, f"{prefix}{name}.")  # pyright: ignore[reportUnknownArgumentType]
        elif value not in (None, "", (), []):
            yield f"{prefix}{name}", value if isinstance(value, str) else to_json(value).decode()
