"""One server with the fake engine and one browser for all tests of the page, and a fresh browser context for each test.

Package fixtures, not session ones: while Playwright runs, no other test of the thread could use asyncio.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, BrowserContext, sync_playwright

from h3runtime.jobs.engine_process import EngineRecipe
from tests.api.conftest import quiet
from tests.api.server import Running, running
from tests.page.driver import PATIENCE, USUAL, Site, shown
from tests.page.engine import play_clip, sound

HINT = "these tests need Chromium: apt-get install chromium (and pip install playwright)"
ENGINE = EngineRecipe("tests.page.engine:create")

__all__ = ["quiet"]


@pytest.fixture(scope="package")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with running(tmp_path_factory.mktemp("page") / "data", recipe=ENGINE) as found:
        yield found


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    path = shutil.which("chromium")
    assert path is not None, HINT
    with sync_playwright() as playwright:
        options = {"args": ["--no-sandbox"], "headless": True, "timeout": 2 * PATIENCE}
        found = playwright.chromium.launch(executable_path=path, **options)
        yield found
        found.close()


@pytest.fixture(scope="package")
def context(browser: Browser) -> Iterator[BrowserContext]:
    """One cache for all tests that ask for nothing special, so that the page's files are read once."""
    found = browser.new_context(**USUAL)
    yield found
    found.close()


@pytest.fixture
def site(server: Running, context: BrowserContext) -> Iterator[Site]:
    """The page of the shared server, open and ready. Whatever the browser complains about fails the test."""
    with shown(context, server) as found:
        yield found


@pytest.fixture(scope="package")
def media(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`clip.mp4` (3 s, with sound), `voice.wav` (3 s)."""
    folder = tmp_path_factory.mktemp("media")
    play_clip(folder / "clip.mp4", 128, 64, 72, 0)
    sound(folder / "voice.wav", 3.0)
    return folder
