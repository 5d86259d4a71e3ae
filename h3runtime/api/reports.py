"""What happens in a service, told to its metrics and to whoever asked to be called back.

`service` hands these to the queue and the supervisor. What is simply true at the moment is asked for at each scrape.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from h3runtime import __version__
from h3runtime.api.answers import output_seconds
from h3runtime.api.callbacks import Callbacks
from h3runtime.core import EngineFacts
from h3runtime.jobs.engine_state import EngineStatus
from h3runtime.jobs.log_lines import job_timings
from h3runtime.jobs.table import Job
from h3runtime.observe.metrics import Metrics

if TYPE_CHECKING:
    from h3runtime.api.service import Service


class Reports:
    """Of one service. Called from the threads of the queue and the supervisor."""

    def __init__(self, metrics: Metrics, callbacks: Callbacks) -> None:
        self._metrics = metrics
        self._callbacks = callbacks

    def job_ended(self, job: Job) -> None:
        self._metrics.job_ended(job.spec.task.value, job.status.value, job_timings(job), output_seconds(job))
        if job.clip is not None:
            self._metrics.device_memory(job.clip.memory)
        self._callbacks.job_ended(job)

    def progressed(self, job: Job) -> None:
        self._metrics.progressed(job.id, job.progress.stage, job.progress.step)

    def engine_loaded(self, facts: EngineFacts) -> None:
        transformers = tuple(part.format for part in facts.components if part.component == "transformer")
        self._metrics.engine_loaded(facts.checkpoint, facts.attention.default, facts.linear.default, transformers)
        self._metrics.device_memory(facts.memory)
        for part in facts.components:
            self._metrics.component_loaded(
                part.component, part.partition or "", part.load_seconds, part.bytes_per_second
            )


def metrics_of(service: Service) -> Metrics:
    """With the figures that are asked for at each scrape."""
    metrics = Metrics(__version__)
    metrics.watch("ready", "1 if jobs are taken.", lambda: float(service.state.status is EngineStatus.READY))
    metrics.watch("jobs_queued", "Jobs that wait.", lambda: float(service.queue.waiting))
    metrics.watch("jobs_running", "Jobs that compute.", lambda: float(service.queue.running is not None))
    metrics.watch("engine_restarts", "Times the engine was started again.", lambda: float(service.state.restarts))
    metrics.watch("disk_free_bytes", "Free bytes where jobs write.", lambda: float(service.free_bytes()))
    return metrics
