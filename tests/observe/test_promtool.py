"""`promtool check metrics` has nothing to say about a scrape of a server whose jobs have ended in every way."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

from tests.api.server import running

HINT = "promtool is missing: it comes with Debian's package `prometheus`, or with Prometheus' own release archive"
NAMES = {
    "build_info", "ready", "model_load_seconds", "jobs_queued", "jobs_running", "jobs_total", "job_queue_seconds",
    "job_duration_seconds", "stage_duration_seconds", "denoise_step_seconds", "output_seconds_total",
    "memory_available_bytes", "disk_free_bytes", "http_requests_total", "http_request_duration_seconds",
}  # fmt: skip


def test_promtool_is_content_with_a_server_that_has_seen_everything(tmp_path: Path) -> None:
    promtool = shutil.which("promtool")
    assert promtool is not None, HINT
    with running(tmp_path) as server:
        assert server.wait(server.submit(prompt="x", steps=3))["status"] == "succeeded"
        assert server.wait(server.submit(prompt="fail_at=mux"))["status"] == "failed"
        job = server.submit(prompt="hold")
        server.wait(job, "running")
        server.client.post(f"/jobs/{job}/cancel")
        assert server.wait(job)["status"] == "cancelled"
        server.client.get("/nowhere")
        server.client.request("BREW", "/jobs")
        server.client.post("/generate", json={})
        scrape = server.client.get("/metrics")
    assert scrape.headers["content-type"].startswith("text/plain; version=0.0.4")
    families = set(re.findall(r"^# TYPE h3runtime_(\S+)", scrape.text, re.M))
    assert families >= NAMES
    for outcome in ("succeeded", "failed", "cancelled"):
        assert f'h3runtime_jobs_total{{outcome="{outcome}",task="t2va"}} 1.0' in scrape.text
    assert 'route="/jobs/{job_id}"' in scrape.text and job not in scrape.text and "BREW" not in scrape.text
    assert re.search(r"h3runtime_denoise_step_seconds_count [1-9]", scrape.text)
    checked = subprocess.run([promtool, "check", "metrics"], input=scrape.content, capture_output=True, check=False)
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, b"", b"")
