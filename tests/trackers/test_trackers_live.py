"""Trackers with their real packages, read back with the packages' own readers (`make test-trackers`)."""

import gzip
import threading
from collections.abc import Generator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.cli_kit import script_flags, write_sums
from tests.trackers.test_genai_spans import SECRET, make_traced

from ludus.cli import main
from ludus.errors import ConfigError
from ludus.trackers import Table, TrackedRun, TrackerSet
from ludus.trackers.background import TrackerLost

pytestmark = pytest.mark.filterwarnings("ignore")  # of foreign code
VALUES = {
    "train/reward": 0.5,
    "nothing": float("nan"),
    "words": "<b>hi</b>",
    "train/rollouts": Table(("text", "score"), (("[user] a|b", 1.0),)),
}


def make_run(folder: Path, **more: Any) -> TrackedRun:
    config = {"model": {"type": "openai", "name": "m"}, "a": {"b": 1, "c": ""}}
    return TrackedRun(name="worker", project="ludus-tests", group="g", folder=folder, config=config, **more)


# ---- MLflow -------------------------------------------------------------------------------------------------------


def test_mlflow_has_metrics_settings_and_tables(tmp_path: Path):
    mlflow = pytest.importorskip("mlflow", reason="make test-trackers installs it")
    pytest.importorskip("sqlalchemy", reason="a database needs the whole package mlflow")
    from ludus.trackers.mlflow_tracker import MlflowTracker

    uri = f"sqlite:///{tmp_path}/mlflow.db"
    mlflow.MlflowClient(tracking_uri=uri).create_experiment("ludus-tests", f"file://{tmp_path}/artifacts")
    tracker = MlflowTracker(uri=uri)
    tracker.start(make_run(tmp_path))
    tracker.log(VALUES, 3)
    tracker.log({"train/reward": 0.75}, 4)
    tracker.close()
    client = mlflow.MlflowClient(tracking_uri=uri)
    (run,) = client.search_runs([client.get_experiment_by_name("ludus-tests").experiment_id])
    assert run.info.run_name == "worker" and run.info.status == "FINISHED" and run.data.tags["ludus.group"] == "g"
    assert run.data.params == {"model.type": "openai", "model.name": "m", "a.b": "1"}
    history = client.get_metric_history(run.info.run_id, "train/reward")
    assert [(metric.step, metric.value) for metric in history] == [(3, 0.5), (4, 0.75)]
    assert "nothing" not in run.data.metrics
    path = client.download_artifacts(run.info.run_id, "tables/train/rollouts/step-3.json", str(tmp_path))
    assert msgspec.json.decode(Path(path).read_bytes())["rows"] == [["[user] a|b", 1.0]]


def test_mlflow_names_an_address_that_it_cannot_use(tmp_path: Path):
    pytest.importorskip("mlflow", reason="make test-trackers installs it")
    from ludus.trackers.mlflow_tracker import MlflowTracker

    with pytest.raises(ConfigError, match=r"tracking\.options\.mlflow\.uri"):
        MlflowTracker(uri="carrier-pigeon://home")


def test_a_server_that_is_not_there_does_not_end_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    pytest.importorskip("mlflow", reason="make test-trackers installs it")
    from ludus.trackers.mlflow_tracker import MlflowTracker

    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "2")
    told: list[str] = []
    trackers = TrackerSet([("mlflow", MlflowTracker(uri="http://127.0.0.1:9"))], lambda line: None, told.append)
    trackers.start(make_run(tmp_path))
    trackers.close()
    assert len(told) == 1 and "mlflow gets no more values" in told[0]


# ---- TensorBoard --------------------------------------------------------------------------------------------------


def test_tensorboard_reads_the_event_file(tmp_path: Path):
    pytest.importorskip("tensorboardX", reason="make test-trackers installs it")
    reader = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    from ludus.trackers.tensorboard_tracker import TensorBoardTracker

    tracker = TensorBoardTracker()
    tracker.start(make_run(tmp_path))
    tracker.log(VALUES, 3)
    tracker.log({"train/reward": 0.75}, 4)
    tracker.close()
    found = reader.EventAccumulator(str(tmp_path / "tensorboard"))
    found.Reload()
    assert [(event.step, event.value) for event in found.Scalars("train/reward")] == [(3, 0.5), (4, 0.75)]
    tensors = found.Tags()["tensors"]
    texts = {tag: found.Tensors(tag)[0].tensor_proto.string_val[0].decode() for tag in tensors}
    assert "| a.b | 1 |" in texts["settings/text_summary"]
    assert "a&#124;b" in texts["train/rollouts/text_summary"] and texts["words/text_summary"] == "    <b>hi</b>"


# ---- OpenTelemetry ------------------------------------------------------------------------------------------------


class Collector:
    """A stand-in for a collector: takes OTLP over HTTP on loopback, and decodes it with the protocol's own classes."""

    def __init__(self) -> None:
        self.requests: list[Any] = []
        self.headers: list[dict[str, str]] = []
        self.status = 200
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                body = gzip.decompress(body) if self.headers.get("Content-Encoding") == "gzip" else body
                collector.take(self.path, {name.lower(): text for name, text in self.headers.items()}, body)
                self.send_response(collector.status)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None: ...

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.endpoint = f"http://127.0.0.1:{self.server.server_port}/v1/traces"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def take(self, path: str, headers: dict[str, str], body: bytes) -> None:
        from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

        assert path == "/v1/traces" and headers["content-type"] == "application/x-protobuf"
        self.headers.append(headers)
        self.requests.append(ExportTraceServiceRequest.FromString(body))

    def list_spans(self) -> list[Any]:
        parts = (part for each in self.requests for resource in each.resource_spans for part in resource.scope_spans)
        return [span for part in parts for span in part.spans]


@pytest.fixture
def collector() -> Generator[Collector]:
    pytest.importorskip("opentelemetry.proto", reason="make test-trackers installs it")
    made = Collector()
    yield made
    made.server.shutdown()
    made.server.server_close()


def read_attributes(span: Any) -> dict[str, Any]:
    return {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in span.attributes}


def test_rollouts_are_traces_at_a_collector(collector: Collector, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    from ludus.trackers.otel_tracker import OtelTracker

    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "authorization=Bearer%20abc")
    told: list[str] = []
    trackers = TrackerSet([("otel", OtelTracker(endpoint=collector.endpoint))], lambda line: None, told.append)
    assert trackers.takes_rollouts
    trackers.start(make_run(tmp_path))
    trackers.log({"train/reward": 1.0}, 1)
    for number in range(3):
        trackers.trace(f"key-{number}", make_traced())
    trackers.close()
    assert not told
    spans = collector.list_spans()
    assert len(spans) == 12 and len({span.trace_id for span in spans}) == 3
    assert collector.headers[0]["authorization"] == "Bearer abc"
    roots = {span.trace_id: span for span in spans if not span.parent_span_id}
    assert all(span.parent_span_id == roots[span.trace_id].span_id for span in spans if span.parent_span_id)
    root = next(iter(roots.values()))
    facts = read_attributes(root)
    assert (
        root.name == "invoke_agent ludus" and facts["gen_ai.provider.name"] == "openai" and facts["ludus.score"] == 1.0
    )
    assert root.start_time_unix_nano == 1000 * 10**9 and root.end_time_unix_nano == 1009 * 10**9
    assert {read_attributes(span)["gen_ai.operation.name"] for span in spans} == {
        "invoke_agent",
        "chat",
        "execute_tool",
    }
    (resource, *_) = collector.requests[0].resource_spans
    assert {each.key: each.value.string_value for each in resource.resource.attributes}["ludus.run"] == "worker"
    assert SECRET not in str(collector.requests) and "do it" not in str(collector.requests)


def test_content_goes_along_on_request_without_secrets(collector: Collector, tmp_path: Path):
    from ludus.trackers.otel_tracker import OtelTracker

    tracker = OtelTracker(endpoint=collector.endpoint, content=True)
    tracker.start(make_run(tmp_path, mask=lambda text: text.replace(SECRET, "[redacted]")))
    tracker.trace("key", make_traced())
    tracker.close()
    sent = str(collector.requests)
    assert "do it" in sent and "[redacted]" in sent and SECRET not in sent


def test_a_long_rollout_goes_in_several_requests(collector: Collector, tmp_path: Path):
    from ludus.trackers.otel_tracker import OtelTracker

    rollout = make_traced()
    tracker = OtelTracker(endpoint=collector.endpoint)
    tracker.start(make_run(tmp_path))
    tracker.trace("key", msgspec.structs.replace(rollout, turns=rollout.turns[:1] * 600))
    tracker.close()
    assert len(collector.list_spans()) == 1201 and len(collector.requests) == 3


def test_a_collector_that_refuses_is_told_once(collector: Collector, tmp_path: Path):
    from ludus.trackers.otel_tracker import OtelTracker

    collector.status = 400
    tracker = OtelTracker(endpoint=collector.endpoint)
    tracker.start(make_run(tmp_path))
    tracker.trace("key", make_traced())
    with pytest.raises(TrackerLost, match="does not take spans"):
        tracker.close()


def test_wrong_options_are_named():
    pytest.importorskip("opentelemetry.sdk", reason="make test-trackers installs it")
    from ludus.trackers.otel_tracker import OtelTracker

    with pytest.raises(ConfigError, match=r"otel\.endpoint is '127"):
        OtelTracker(endpoint="127.0.0.1:4318")
    with pytest.raises(ConfigError, match="content_chars"):
        OtelTracker(content_chars=0)


def test_a_run_of_the_command_sends_its_rollouts(
    collector: Collector, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.chdir(tmp_path)
    write_sums(tmp_path)
    words = ["evaluate", "sums.py", *script_flags(), "--out", "run", "--quiet", "--tracking.use", "otel,tensorboard"]
    assert main([*words, "--tracking.options.otel.endpoint", collector.endpoint]) == 0, capsys.readouterr().err
    roots = [span for span in collector.list_spans() if not span.parent_span_id]
    assert {read_attributes(span)["ludus.task.id"] for span in roots} == {f"sum-{n}" for n in range(4)}
    assert list((tmp_path / "run/tensorboard").iterdir())
