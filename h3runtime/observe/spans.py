"""Traces: `with span("sampling", job_id=...)`, which does nothing unless an operator asked for traces.

Does: spans around whatever is wrapped, nested as the code is, for OpenTelemetry. Does not: carry a context from the
server to the engine process; spans of both have `job_id` and `request_id` to be found by. No prompt, path or key is an
attribute.
Fed by: `api` (a request, its admission) and the engine process (a job, its stages, by `timing`). Read by: a collector.

The library is an optional extra and keeps the process's one provider itself, so there is no state here: what isn't
imported wasn't configured.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from h3runtime import __version__
from h3runtime.errors import Offence, SettingsError

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import SpanProcessor

SCOPE = "h3runtime"
TRACES_PATH = "/v1/traces"
"""Below the collector's URL (OTLP/HTTP)."""


@contextmanager
def span(name: str, *, traceparent: str = "", **attributes: str | int | float | bool) -> Iterator[None]:
    """A span until the block is left; an exception that leaves it is recorded by its type alone, since its text may
    hold a client's words. traceparent: of a caller's own span (W3C Trace Context), taken as the parent if it is one."""
    trace = sys.modules.get("opentelemetry.trace")
    if trace is None:
        yield
        return
    tracer = trace.get_tracer(SCOPE, __version__)
    parent = _parent(traceparent) if traceparent else None
    shown = {key: value for key, value in attributes.items() if value != ""}
    with tracer.start_as_current_span(
        name, context=parent, attributes=shown, record_exception=False, set_status_on_exception=False
    ) as current:
        try:
            yield
        except BaseException as error:
            current.set_status(trace.Status(trace.StatusCode.ERROR, type(error).__name__))
            raise


def configure_spans(endpoint: str | None, service: str) -> None:
    """Send the spans of this process to the collector at `endpoint`; without one, do nothing. Once a process.

    service: `h3runtime` or `h3runtime-engine`. SettingsError if the library isn't installed.
    """
    if endpoint is None:
        return
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        message = f"traces need a package that is not installed: {error.name}"
        raise SettingsError(message, [Offence("H3_OTLP_ENDPOINT", message, "pip install 'h3runtime[otel]'")]) from error
    install_spans(BatchSpanProcessor(OTLPSpanExporter(endpoint.rstrip("/") + TRACES_PATH)), service)


def install_spans(processor: SpanProcessor, service: str) -> None:
    """Hand all spans of this process to `processor`, which is ended with the process."""
    from opentelemetry import trace
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider

    provider = TracerProvider(resource=Resource({"service.name": service, "service.version": __version__}))
    provider.add_span_processor(processor)
    trace.set_tracer_provider(provider)


def _parent(traceparent: str) -> object:
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    return TraceContextTextMapPropagator().extract({"traceparent": traceparent})
