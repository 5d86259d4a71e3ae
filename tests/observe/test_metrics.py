"""What a scrape gets: the names that dashboards know, no series without a bound, and soon."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from h3runtime.observe.metrics import KEPT_SECONDS, Metrics
from h3runtime.observe.steps import StepClock

TIMINGS = {"queue": 2.0, "conditioning": 0.2, "sampling": 40.0, "video_decode": 2.0, "total": 45.0}
NAMES = {
    "build_info", "ready", "model_load_seconds", "jobs_queued", "jobs_running", "jobs_total", "job_queue_seconds",
    "job_duration_seconds", "stage_duration_seconds", "denoise_step_seconds", "output_seconds_total",
    "memory_available_bytes", "disk_free_bytes", "http_requests_total", "http_request_duration_seconds",
}  # fmt: skip
"""service-conventions §12, but for the device's, which a CPU has none of."""


@pytest.fixture
def metrics() -> Metrics:
    return busy()


def busy() -> Metrics:
    """One of everything."""
    metrics = Metrics("1.2")
    for name in ("ready", "jobs_queued", "jobs_running", "disk_free_bytes"):
        metrics.watch(name, "Said by the service.", lambda: 1.0)
    metrics.engine_loaded("dit:ab", "sdpa", "dequant", ("nvfp4", "nvfp4"))
    metrics.component_loaded("transformer", "fl2va", 2.5, 1e9)
    metrics.job_ended("t2va", "succeeded", TIMINGS, 5.125)
    metrics.progressed("a", "sampling", 0)
    metrics.progressed("a", "sampling", 1)
    metrics.callback("delivered")
    metrics.request_answered("GET", "/jobs/{job_id}", 200, 0.002)
    return metrics


def samples(metrics: Metrics) -> dict[str, float]:
    """By the line's head, labels in the order of the alphabet; read by the library that everybody reads them with."""
    found = {}
    for family in text_string_to_metric_families(metrics.text().decode()):
        for sample in family.samples:
            labels = ",".join(f'{name}="{value}"' for name, value in sorted(sample.labels.items()))
            found[f"{sample.name}{{{labels}}}" if labels else sample.name] = sample.value
    return found


def families(metrics: Metrics) -> set[str]:
    return set(re.findall(r"^# TYPE h3runtime_(\S+)", metrics.text().decode(), re.M))


def test_the_listed_names_are_there_and_no_times_of_creation(metrics):
    assert families(metrics) >= NAMES
    assert not [name for name in samples(metrics) if "_created" in name]


def test_what_is_running_is_told_once(metrics):
    info = [name for name in samples(metrics) if name.startswith("h3runtime_build_info")]
    assert info == [
        'h3runtime_build_info{attention="sdpa",checkpoint="dit:ab",gemm="dequant",linear="dequant",quant="nvfp4",'
        'version="1.2"}'
    ]


def test_a_job_counts_in_every_stage_and_by_its_end(metrics):
    found = samples(metrics)
    assert found['h3runtime_jobs_total{outcome="succeeded",task="t2va"}'] == 1
    assert found['h3runtime_output_seconds_total{task="t2va"}'] == 5.125
    assert found['h3runtime_stage_duration_seconds_sum{stage="sampling"}'] == 40
    assert found['h3runtime_job_queue_seconds_sum{task="t2va"}'] == 2
    assert found['h3runtime_job_duration_seconds_bucket{le="30.0",task="t2va"}'] == 0
    assert found['h3runtime_job_duration_seconds_bucket{le="60.0",task="t2va"}'] == 1
    assert not [name for name in found if 'stage="queue"' in name or 'stage="total"' in name]


def test_device_memory_is_absent_without_a_device_and_the_newest_with_one(metrics):
    metrics.device_memory({"host_resident_bytes": 3})
    assert "cuda_allocated_bytes" not in families(metrics)
    metrics.device_memory({"device_allocated_bytes": 3})
    metrics.device_memory({"device_allocated_bytes": 5})
    assert samples(metrics)["h3runtime_cuda_allocated_bytes"] == 5


def test_a_method_that_nobody_knows_makes_no_series_of_its_own(metrics):
    for number in range(50):
        metrics.request_answered(f"BREW{number}", "/jobs", 405, 0.001)
    told = [name for name in samples(metrics) if 'route="/jobs"' in name and "_requests_total" in name]
    assert told == ['h3runtime_http_requests_total{method="other",route="/jobs",status="405"}']


def test_scrapes_of_one_second_share_a_text_and_a_job_that_ended_shows_at_once():
    clock = Clock()
    metrics = Metrics("1.2", clock)
    asked = []
    metrics.watch("asked", "How often it was asked.", lambda: float(asked.append(0) or len(asked)))
    for _ in range(100):
        metrics.request_answered("GET", "/live", 200, 0.001)
        metrics.text()
    assert len(asked) == 1
    metrics.job_ended("t2va", "succeeded", TIMINGS, 5.0)
    assert samples(metrics)['h3runtime_jobs_total{outcome="succeeded",task="t2va"}'] == 1
    clock.now += KEPT_SECONDS
    route = 'h3runtime_http_requests_total{method="GET",route="/live",status="200"}'
    assert samples(metrics)[route] == 100 and len(asked) == 3


def test_a_figure_that_cannot_be_read_is_left_out(metrics):
    def gone() -> float:
        raise FileNotFoundError

    metrics.watch("gone_bytes", "Nobody knows.", gone)
    assert "h3runtime_gone_bytes" not in samples(metrics) and "ready" in families(metrics)


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@given(st.lists(st.tuples(st.integers(0, 1), st.integers(0, 3), st.floats(0, 9)), max_size=30))
def test_steps_share_the_time_between_their_reports(reports):
    clock = Clock()
    steps, done, job = StepClock(clock), 0, ""
    for other, more, pause in reports:
        clock.now += pause
        if (name := f"job {other}") != job:
            job, done = name, 0
        done += more
        found = steps.told(job, "sampling", done)
        assert len(found) in (0, more)
        assert all(seconds >= 0 for seconds in found)


def test_a_step_begins_where_the_last_one_was_reported():
    clock = Clock()
    steps = StepClock(clock)
    told = []
    for moment, stage, step in ((0, "conditioning", 0), (1, "sampling", 0), (3, "sampling", 1), (4, "sampling", 1),
                                (9, "sampling", 3), (10, "video_decode", 0), (20, "sampling", 4)):  # fmt: skip
        clock.now = float(moment)
        told += steps.told("a", stage, step)
    assert told == [2, 3, 3]
