"""Spans nest as the code does, tell no text of an exception, and cost nothing where nobody asked for them."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from h3runtime.errors import SettingsError
from h3runtime.observe.spans import configure_spans, install_spans, span
from h3runtime.observe.timing import StageTimer
from tests.api.server import SMALL, running

TRACE, CALLER = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


@pytest.fixture(scope="module")
def installed() -> InMemorySpanExporter:
    exporter = InMemorySpanExporter()
    install_spans(SimpleSpanProcessor(exporter), "h3runtime-test")
    return exporter


@pytest.fixture
def exporter(installed: InMemorySpanExporter) -> Iterator[InMemorySpanExporter]:
    installed.clear()
    yield installed


def named(exporter: InMemorySpanExporter) -> dict[str, ReadableSpan]:
    return {found.name: found for found in exporter.get_finished_spans()}


def test_stages_lie_within_their_job(exporter: InMemorySpanExporter) -> None:
    timer = StageTimer()
    with span("job", job_id="01J", request_id=""):
        for stage in ("conditioning", "sampling"):
            with timer.stage(stage):
                pass
    found = named(exporter)
    assert list(found) == ["conditioning", "sampling", "job"]
    job = found["job"].context
    assert job is not None
    assert [found[name].parent.span_id for name in ("conditioning", "sampling")] == [job.span_id] * 2
    assert dict(found["job"].attributes or {}) == {"job_id": "01J"}
    assert found["job"].resource.attributes["service.name"] == "h3runtime-test"


def test_a_callers_span_is_the_parent_and_nonsense_is_none(exporter: InMemorySpanExporter) -> None:
    with span("asked", traceparent=f"00-{TRACE}-{CALLER}-01"):
        pass
    with span("alone", traceparent="00-nonsense"):
        pass
    found = named(exporter)
    parent = found["asked"].parent
    assert parent is not None and (f"{parent.trace_id:032x}", f"{parent.span_id:016x}") == (TRACE, CALLER)
    assert found["alone"].parent is None


def test_an_exception_is_told_by_its_type_alone(exporter: InMemorySpanExporter) -> None:
    with pytest.raises(ValueError, match="secret"), span("job"):
        raise ValueError("a secret cat")
    (told,) = exporter.get_finished_spans()
    assert (told.status.status_code, told.status.description) == (trace.StatusCode.ERROR, "ValueError")
    assert "secret" not in told.to_json()


def test_without_a_collector_nothing_is_imported() -> None:
    program = (
        "import sys\n"
        "from h3runtime.observe.spans import configure_spans, span\n"
        "configure_spans(None, 'h3runtime')\n"
        "with span('a', job_id='b'): pass\n"
        "assert not [name for name in sys.modules if name.startswith('opentelemetry')]\n"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", program], check=True)


def test_a_collector_without_the_library_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    with pytest.raises(SettingsError) as refused:
        configure_spans("http://127.0.0.1:4318", "h3runtime")
    (offence,) = refused.value.offences
    assert (offence.field, offence.legal) == ("H3_OTLP_ENDPOINT", "pip install 'h3runtime[otel]'")


def test_a_request_and_its_admission_are_one_trace(exporter: InMemorySpanExporter, tmp_path: Path) -> None:
    with running(tmp_path) as server:
        server.post(SMALL, headers={"traceparent": f"00-{TRACE}-{CALLER}-01", "x-request-id": "asked"})
    # Out of the server's block all of its answers are over.
    found = named(exporter)
    request, admission = found["http_request"], found["admission"]
    assert request.parent is not None and request.parent.span_id == int(CALLER, 16)
    assert admission.parent is not None and request.context is not None
    assert admission.parent.span_id == request.context.span_id
    assert {found.name for found in exporter.get_finished_spans()} == {"http_request", "admission"}
    assert (request.attributes or {})["request_id"] == "asked"
    assert "job_id" in (admission.attributes or {})
