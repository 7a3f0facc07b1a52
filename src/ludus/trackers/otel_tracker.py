"""OpenTelemetry: each rollout as a trace, by the conventions for generative AI. An extra of the package.

Spans go by OTLP over HTTP to any collector, Jaeger, Langfuse, Phoenix, MLflow and others. The exporter reads its usual
variables itself: OTEL_EXPORTER_OTLP_ENDPOINT, OTEL_EXPORTER_OTLP_HEADERS (with keys: they are never settings). Spans
are made and sent in a thread, when a rollout has ended (`ludus.trackers.genai_spans`). Metrics stay in `metrics.jsonl`.
"""

import logging
import time
from typing import Any

from ludus.errors import ConfigError
from ludus.trackers import TrackedRun, Values
from ludus.trackers.background import BackgroundWork, TrackerLost
from ludus.trackers.client_trackers import import_client
from ludus.trackers.genai_spans import SpanOptions, SpanPlan, plan_spans
from ludus.types import Rollout

_BATCH = 512
"""Spans of one request."""
_WAITING = 200
"""Rollouts that may wait to be sent. Further ones are dropped and counted: they can be large."""
_NANO = 1_000_000_000


class OtelTracker:
    """Traces of rollouts. `endpoint`: where OTLP is taken, such as `http://127.0.0.1:4318/v1/traces`; empty: as
    OTEL_EXPORTER_OTLP_ENDPOINT says. `content`: send prompts, replies and tool results too. `content_chars`: how much
    of each."""

    def __init__(self, endpoint: str = "", content: bool = False, content_chars: int = 20_000) -> None:
        exporters = import_client("opentelemetry.exporter.otlp.proto.http.trace_exporter", "otel")
        self._api, self._sdk = import_client("opentelemetry.trace", "otel"), import_client("opentelemetry.sdk", "otel")
        for name in ("resources", "trace", "trace.export"):
            import_client(f"opentelemetry.sdk.{name}", "otel")
        self._context = import_client("opentelemetry.context", "otel").Context
        if endpoint and not endpoint.startswith(("http://", "https://")):
            raise ConfigError(f"tracking.options.otel.endpoint is {endpoint!r}: it must begin with http:// or https://")
        if content_chars < 1:
            raise ConfigError("tracking.options.otel.content_chars must be at least 1")
        logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)  # what fails is told once, by Ludus
        self._exporter: Any = exporters.OTLPSpanExporter(endpoint=endpoint or None)
        self._options = SpanOptions(content=content, longest=content_chars)
        self._tracer: Any = None
        self._ended: list[Any] = []
        self._work: BackgroundWork | None = None

    def start(self, run: TrackedRun) -> None:
        resource = self._sdk.resources.Resource.create(
            {"service.name": run.project, "ludus.run": run.name, **({"ludus.group": run.group} if run.group else {})}
        )
        provider = self._sdk.trace.TracerProvider(resource=resource)
        provider.add_span_processor(make_collector(self._sdk.trace.SpanProcessor, self._ended))
        self._tracer = provider.get_tracer("ludus")
        self._options = SpanOptions(
            provider=find_provider(run),
            agent=find_agent(run),
            content=self._options.content,
            longest=self._options.longest,
            mask=run.mask,
        )
        self._work = BackgroundWork("otel", _WAITING)

    def log(self, values: Values, step: int) -> None:
        """Metrics are not sent: traces are what this tracker is for."""
        if self._work is not None:
            self._work.check()

    def trace(self, key: str, rollout: Rollout) -> None:
        assert self._work is not None
        ended = time.time()
        self._work.do(lambda: self._send(key, rollout, ended))

    def _send(self, key: str, rollout: Rollout, ended: float) -> None:
        root: Any = None
        end = ended
        for plan in plan_spans(key, rollout, ended, self._options):
            span = self._start_span(plan, root)
            if root is None:
                root, end = span, plan.end
            else:
                span.end(int(plan.end * _NANO))
            if len(self._ended) >= _BATCH:
                self._export()
        if root is not None:
            root.end(int(end * _NANO))
        self._export()

    def _start_span(self, plan: SpanPlan, root: Any) -> Any:
        api, nothing = self._api, self._context()
        span = self._tracer.start_span(
            plan.name,
            context=nothing if root is None else api.set_span_in_context(root, nothing),
            kind=api.SpanKind.CLIENT if plan.client else api.SpanKind.INTERNAL,
            attributes=plan.attributes,
            start_time=int(plan.start * _NANO),
        )
        if plan.error:
            span.set_status(api.Status(api.StatusCode.ERROR, plan.error))
        return span

    def _export(self) -> None:
        """Send the spans that have ended."""
        spans = self._ended[:]
        self._ended.clear()
        if spans and self._exporter.export(spans) is not self._sdk.trace.export.SpanExportResult.SUCCESS:
            raise TrackerLost("the collector does not take spans: look at its address and at its log")

    def close(self) -> None:
        try:
            if self._work is not None:
                self._work.close()
        finally:
            self._exporter.shutdown()


def make_collector(base: Any, spans: list[Any]) -> Any:
    """A span processor of the SDK, derived from its own class: it puts spans that have ended into a list."""

    def on_end(self: Any, span: Any) -> None:
        spans.append(span)

    return type("SpanCollector", (base,), {"on_end": on_end})()


def find_provider(run: TrackedRun) -> str:
    """Whose interface the model's server has, by the settings of the run."""
    model = run.config.get("model")
    return str(model.get("type") or "openai") if isinstance(model, dict) else "openai"  # pyright: ignore


def find_agent(run: TrackedRun) -> str:
    """The name of the agent: that of its harness, or of Ludus's own loop."""
    agent = run.config.get("agent")
    return str(agent.get("harness") or "ludus") if isinstance(agent, dict) else "ludus"  # pyright: ignore
