"""Prometheus metrics of one server: its own registry, base units, no label without a bound.

`api` counts requests and asks for the text; `jobs` reports each job's end and every sign of progress; figures that are
simply true at the moment (queue, disk, readiness) are asked for when somebody scrapes. Nothing here touches a device:
what it holds comes as a plain number from the engine. Names and labels are those of service-conventions §12.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.registry import Collector

from h3runtime.observe import memory
from h3runtime.observe.steps import StepClock

CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4
KEPT_SECONDS = 1.0
"""How long a scrape's text is given to whoever asks again. The library takes 20 us a line, 20 ms for a server that has
seen all its routes, in the loop that answers everybody; the end of a job is told at once all the same."""
JOB_BUCKETS = (1, 3, 10, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200)
STAGE_BUCKETS = (0.1, 0.3, 1, 3, 10, 30, 60, 120, 300, 600, 1800)
STEP_BUCKETS = (0.03, 0.1, 0.3, 1, 2, 3, 5, 10, 20, 30, 60, 120, 300)
"""A step takes from milliseconds of the embedded model to minutes of a 15 s clip on a small card."""
HTTP_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1, 10, 60, 600)
"""50 ms is what health may take; the long ones are requests that wait for their clip."""
METHODS = frozenset({"GET", "HEAD", "POST", "DELETE", "PUT", "PATCH", "OPTIONS", "any"})
"""`any` stands for all methods of a path that has no route."""


class Metrics:
    """Names follow Prometheus practice: `_seconds`, `_bytes`, `_total`; labels are tasks, outcomes, stages, routes.

    clock: seconds that never jump, for the time between steps and between scrapes.
    """

    def __init__(self, version: str, clock: Callable[[], float] = time.monotonic) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self._registry = CollectorRegistry()
        self._clock = clock
        self._text: tuple[float, bytes] | None = None
        self._version = version
        self._steps = StepClock(clock)
        labels = ("version", "checkpoint", "attention", "linear", "gemm", "quant")
        self._info = self._gauge("build_info", "Constant 1; the labels tell what is running.", *labels)
        self.engine_loaded("", "", "", ())
        self._jobs = self._counter("jobs_total", "Ended jobs.", "task", "outcome")
        self._waited = self._histogram("job_queue_seconds", "Time in the queue.", JOB_BUCKETS, "task")
        self._lasted = self._histogram("job_duration_seconds", "Time from arrival to end.", JOB_BUCKETS, "task")
        self._stages = self._histogram("stage_duration_seconds", "Time in a stage.", STAGE_BUCKETS, "stage")
        self._step = self._histogram("denoise_step_seconds", "Time of one sampler step.", STEP_BUCKETS)
        self._made = self._counter("output_seconds_total", "Seconds of video made.", "task")
        self._callbacks = self._counter("callbacks_total", "Attempts to tell a callback of a job's end.", "outcome")
        request = ("method", "route", "status")
        self._requests = self._counter("http_requests_total", "Answered requests.", *request)
        self._answers = self._histogram(
            "http_request_duration_seconds", "Time from a request to the end of its answer.", HTTP_BUCKETS, *request
        )
        part = ("component", "partition")
        self._load = self._gauge("model_load_seconds", "Load time of a component.", *part)
        self._load_rate = self._gauge("model_load_bytes_per_second", "Load rate of a component.", *part)
        self._device: Gauge | None = None
        self.watch("memory_available_bytes", "Bytes of host memory that new work can have.", _available)

    def watch(self, name: str, help_text: str, read: Callable[[], float]) -> None:
        """A gauge `h3runtime_<name>` whose value is asked for at each scrape."""
        self._registry.register(_Watched(f"h3runtime_{name}", help_text, read))

    def engine_loaded(self, checkpoint: str, attention: str, linear: str, formats: tuple[str, ...] = ()) -> None:
        """formats: of the transformers' weights."""
        self._info.clear()
        quant = ",".join(sorted(set(formats)))
        self._info.labels(self._version, checkpoint, attention, linear, linear, quant).set(1)
        self._text = None

    def component_loaded(self, component: str, partition: str, seconds: float, bytes_per_second: float) -> None:
        """partition: which transformer it is, empty for any other component."""
        self._load.labels(component, partition).set(seconds)
        self._load_rate.labels(component, partition).set(bytes_per_second)

    def device_memory(self, figures: Mapping[str, int]) -> None:
        """What the engine said it holds on its device, at its start or with a job; of no effect where there is none."""
        allocated = figures.get("device_allocated_bytes")
        if allocated is None:
            return
        if self._device is None:
            self._device = self._gauge("cuda_allocated_bytes", "Bytes that the engine holds on its device.")
        self._device.set(allocated)
        self._text = None

    def progressed(self, job_id: str, stage: str, step: int) -> None:
        """A sign of life of a job; what lies between two steps of `sampling` is a step's time."""
        for seconds in self._steps.told(job_id, stage, step):
            self._step.observe(seconds)

    def job_ended(self, task: str, outcome: str, timings: Mapping[str, float], output_seconds: float) -> None:
        """timings: seconds by stage, with `queue` and `total`. output_seconds: of video made, 0 if none was."""
        self._jobs.labels(task, outcome).inc()
        self._made.labels(task).inc(output_seconds)
        for name, seconds in timings.items():
            if name == "queue":
                self._waited.labels(task).observe(seconds)
            elif name == "total":
                self._lasted.labels(task).observe(seconds)
            else:
                self._stages.labels(name).observe(seconds)
        self._text = None

    def callback(self, outcome: str) -> None:
        """outcome: of one attempt, a word from a short list."""
        self._callbacks.labels(outcome).inc()

    def request_answered(self, method: str, route: str, status: int, seconds: float | None = None) -> None:
        """route: the template, never the path that was asked for. status: 0 of a client that left before its answer."""
        # A client may send any word for a method, and the framework finds a route for it before it refuses it.
        labels = (method if method in METHODS else "other", route, str(status))
        self._requests.labels(*labels).inc()
        if seconds is not None:
            self._answers.labels(*labels).observe(seconds)

    def text(self) -> bytes:
        """The exposition that a scrape gets, of `CONTENT_TYPE`; counts of requests may be `KEPT_SECONDS` old."""
        now = self._clock()
        if self._text is None or now - self._text[0] >= KEPT_SECONDS:
            self._text = (now, generate_latest(self._registry))
        return self._text[1]

    def _gauge(self, name: str, help_text: str, *labels: str) -> Gauge:
        return Gauge(f"h3runtime_{name}", help_text, labels, registry=self._registry)

    def _counter(self, name: str, help_text: str, *labels: str) -> Counter:
        return Counter(f"h3runtime_{name}", help_text, labels, registry=self._registry)

    def _histogram(self, name: str, help_text: str, bounds: tuple[float, ...], *labels: str) -> Histogram:
        return Histogram(f"h3runtime_{name}", help_text, labels, buckets=bounds, registry=self._registry)


class _Watched(Collector):
    """A gauge that is read at each scrape, and left out of one in which it can't be."""

    def __init__(self, name: str, help_text: str, read: Callable[[], float]) -> None:
        self._name, self._help, self._read = name, help_text, read

    def describe(self) -> Iterator[GaugeMetricFamily]:
        yield GaugeMetricFamily(self._name, self._help)

    def collect(self) -> Iterator[GaugeMetricFamily]:
        try:
            value = self._read()
        except OSError:
            return
        yield GaugeMetricFamily(self._name, self._help, value=value)


def _available() -> float:
    return float(memory.available_bytes())
