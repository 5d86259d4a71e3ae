"""Prometheus metrics of one server: its own registry, base units, no label without a bound.

`api` counts requests and asks for the text; `jobs` reports each job's end; figures that are simply true at the moment
(queue, disk, readiness) are asked for when somebody scrapes. Nothing here touches a device.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

JOB_BUCKETS = (1, 3, 10, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200)
STAGE_BUCKETS = (0.1, 0.3, 1, 3, 10, 30, 60, 120, 300, 600, 1800)
CONTENT_TYPE = CONTENT_TYPE_LATEST


class Metrics:
    """Names follow Prometheus practice: `_seconds`, `_bytes`, `_total`; labels are tasks, outcomes, stages, routes."""

    def __init__(self, version: str) -> None:
        self._registry = CollectorRegistry()
        self._info = Gauge(
            "h3runtime_build_info",
            "Constant 1; the labels tell what is running.",
            ["version", "checkpoint", "attention", "linear"],
            registry=self._registry,
        )
        self._info.labels(version, "", "", "").set(1)
        self._version = version
        self._jobs = self._counter("jobs_total", "Ended jobs.", "task", "outcome")
        self._waited = self._histogram("job_queue_seconds", "Time in the queue.", JOB_BUCKETS, "task")
        self._lasted = self._histogram("job_duration_seconds", "Time from arrival to end.", JOB_BUCKETS, "task")
        self._stages = self._histogram("stage_duration_seconds", "Time in a stage.", STAGE_BUCKETS, "stage")
        self._made = self._counter("output_seconds_total", "Seconds of video made.", "task")
        self._requests = self._counter("http_requests_total", "Answered requests.", "method", "route", "status")
        self._load = self._file_gauge("load_seconds", "Load time of a component.")
        self._load_rate = self._file_gauge("load_bytes_per_second", "Load rate of a component.")

    def watch(self, name: str, help_text: str, read: Callable[[], float]) -> None:
        """A gauge `h3runtime_<name>` whose value is asked for at each scrape."""
        Gauge(f"h3runtime_{name}", help_text, registry=self._registry).set_function(read)

    def engine_loaded(self, checkpoint: str, attention: str, linear: str) -> None:
        self._info.clear()
        self._info.labels(self._version, checkpoint, attention, linear).set(1)

    def component_loaded(self, component: str, partition: str, seconds: float, bytes_per_second: float) -> None:
        """partition: which transformer it is, empty for any other component."""
        self._load.labels(component, partition).set(seconds)
        self._load_rate.labels(component, partition).set(bytes_per_second)

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

    def request_answered(self, method: str, route: str, status: int) -> None:
        """route: the template, never the path that was asked for."""
        self._requests.labels(method, route, str(status)).inc()

    def text(self) -> bytes:
        """The exposition that a scrape gets, of `CONTENT_TYPE`."""
        return generate_latest(self._registry)

    def _counter(self, name: str, help_text: str, *labels: str) -> Counter:
        return Counter(f"h3runtime_{name}", help_text, labels, registry=self._registry)

    def _file_gauge(self, name: str, help_text: str) -> Gauge:
        return Gauge(f"h3runtime_model_{name}", help_text, ["component", "partition"], registry=self._registry)

    def _histogram(self, name: str, help_text: str, buckets: tuple[float, ...], *labels: str) -> Histogram:
        return Histogram(f"h3runtime_{name}", help_text, labels, buckets=buckets, registry=self._registry)
