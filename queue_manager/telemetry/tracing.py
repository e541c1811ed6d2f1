"""Traces by OpenTelemetry: from the tick of the beat through scan, dispatch, item and database to the event.

Guarantee: without `QM_TRACING` nothing is started, and each function costs a comparison. Spans are exported in another
thread. They have names and numbers, never documents, arguments or payloads.

Names follow the semantic conventions for messaging and databases. A message carries the context of its publisher in the
header `traceparent`. One message continues that trace; a batch is a trace of its own, with a link to each publisher.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from queue_manager.core.process import PerProcess
from queue_manager.core.settings import settings

if TYPE_CHECKING:
    from opentelemetry.trace import Span, Tracer

SPAN_FLUSH_TIMEOUT_MS = 2_000
TRACE_HEADER = "traceparent"
SERVICE_NAME = "queue-manager"  # unless OTEL_SERVICE_NAME names another
Attributes = Mapping[str, str | int]


def _make_provider() -> Any:
    """Return the provider that the program has set, or one that exports as the variables `OTEL_*` say."""
    from opentelemetry import trace
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    provider = trace.get_tracer_provider()
    if isinstance(provider, trace.ProxyTracerProvider):  # the program has set none
        defaults = {"service.name": SERVICE_NAME, "service.version": version(SERVICE_NAME)}
        provider = TracerProvider(resource=Resource(defaults).merge(Resource.create()))
        provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return provider


_provider = PerProcess(_make_provider)
tracer: PerProcess[Tracer] = PerProcess(lambda: _provider().get_tracer(SERVICE_NAME, version(SERVICE_NAME)))


def flush() -> None:
    """Export what is left, before the process ends."""
    if (provider := _provider.take()) is not None and hasattr(provider, "force_flush"):
        provider.force_flush(SPAN_FLUSH_TIMEOUT_MS)


def publishing(
    destination: str, *, system: str = "celery", count: int = 1, attributes: Attributes
) -> AbstractContextManager[object]:
    """Return a span for sending `count` messages to `destination`."""
    if not settings().qm_tracing:
        return nullcontext()
    from opentelemetry.trace import SpanKind

    about = _messaging("send", "publish", destination, system, count)
    return _span(f"publish {destination}", SpanKind.PRODUCER, {**about, **attributes})


def processing(
    destination: str,
    headers: Sequence[Mapping[str, Any]],
    *,
    attributes: Attributes,
    not_errors: tuple[type[BaseException], ...] = (),
) -> AbstractContextManager[object]:
    """Return a span for handling messages with these headers: a child of the publisher of one, linked to those of many.

    Exceptions of the types `not_errors` end the span without an error.
    """
    if not settings().qm_tracing:
        return nullcontext()
    from opentelemetry import trace
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    propagator = TraceContextTextMapPropagator()
    found = dict.fromkeys(one[TRACE_HEADER] for one in headers if isinstance(one.get(TRACE_HEADER), str))
    contexts = [propagator.extract({TRACE_HEADER: traceparent}) for traceparent in found]
    about = {**_messaging("process", "process", destination, "celery", len(headers)), **attributes}
    if len(headers) == 1 and contexts:
        return _span(f"process {destination}", trace.SpanKind.CONSUMER, about, not_errors, context=contexts[0])
    links = [trace.Link(trace.get_current_span(one).get_span_context()) for one in contexts]
    return _span(f"process {destination}", trace.SpanKind.CONSUMER, about, not_errors, links=links)


def message_headers() -> dict[str, str]:
    """Return the headers by which a message continues the current trace; empty if there is none."""
    if not settings().qm_tracing:
        return {}
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    found: dict[str, str] = {}
    TraceContextTextMapPropagator().inject(found)
    return found


def annotate(**numbers: int) -> None:
    """Add numbers to the current span, as `queue_manager.<name>`."""
    if settings().qm_tracing:
        from opentelemetry import trace

        trace.get_current_span().set_attributes({f"queue_manager.{name}": value for name, value in numbers.items()})


def _messaging(kind: str, name: str, destination: str, system: str, count: int) -> dict[str, str | int]:
    about: dict[str, str | int] = {
        "messaging.system": system,
        "messaging.operation.type": kind,
        "messaging.operation.name": name,
        "messaging.destination.name": destination,
    }
    return about if count == 1 else {**about, "messaging.batch.message_count": count}


@contextmanager
def _span(
    name: str, kind: Any, attributes: Attributes, not_errors: tuple[type[BaseException], ...] = (), **options: Any
) -> Iterator[Span]:
    with tracer().start_as_current_span(
        name, kind=kind, attributes=attributes, record_exception=False, set_status_on_exception=False, **options
    ) as span:
        try:
            yield span
        except BaseException as error:
            if not isinstance(error, not_errors):
                _set_error(span, error)
            raise


def _set_error(span: Span, error: BaseException) -> None:
    from opentelemetry.trace import Status, StatusCode

    # No text of the error: it may contain data.
    span.set_attribute("error.type", type(error).__qualname__)
    span.set_status(Status(StatusCode.ERROR))
