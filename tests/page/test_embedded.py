"""`h3runtime serve` with the embedded model, from the page to a clip that plays: from text, and from a picture."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import httpx2
import pytest
from playwright.sync_api import Browser, expect

from tests.api.server import Running
from tests.e2e.test_serve import PATIENCE, start, wait_until_ready
from tests.page.driver import opened, picture

PLAYS = """video => video.play().then(() => new Promise((done) => {
    video.addEventListener("timeupdate", () => video.currentTime > 0.1 && done(video.currentTime));
}))"""


@pytest.fixture
def served(tmp_path: Path) -> Iterator[tuple[str, httpx2.Client]]:
    running = start(tmp_path / "data")
    try:
        wait_until_ready(running)
        yield str(running.client.base_url).rstrip("/"), running.client
    finally:
        running.process.send_signal(signal.SIGTERM)
        assert running.process.wait(PATIENCE) == 0
        running.client.close()


def test_from_the_page_to_a_playing_clip(served: tuple[str, httpx2.Client], browser: Browser) -> None:
    url, client = served
    # A job this short may be over before a look at it is fetched.
    with opened(browser, cast(Running, SimpleNamespace(url=url, client=client)), expected=("404",)) as site:
        site.write("A red ball on a blue floor")
        site.small(22)
        first = site.generate()
        expect(site.detail().locator("h2 .pill")).to_have_text("succeeded", timeout=PATIENCE * 1000)
        assert site.detail().locator("video").evaluate(PLAYS) > 0.1
        site.way("First frame")
        site.upload("First frame", picture("floor.png", "navy"))
        expect(site.page.locator(".ends")).to_contain_text("floor.png")
        second = site.generate()
        assert second != first
        expect(site.page.locator(f"#job-{second} + .row .pill")).to_have_text("succeeded", timeout=PATIENCE * 1000)
        assert site.detail().locator("video").evaluate(PLAYS) > 0.1
        told = [client.get(f"/jobs/{job}").json() for job in (first, second)]
        assert [job["task"] for job in told] == ["t2va", "i2va"]
        expect(site.detail().get_by_role("list", name="Timings")).to_contain_text("video decode")
