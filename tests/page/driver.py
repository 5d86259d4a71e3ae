"""The page as a person uses it: by labels, roles and keys. What arrives is read at the server, not in the browser."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from PIL import Image
from playwright.sync_api import Browser, BrowserContext, Locator, Page, expect

from h3runtime.core import GenerateSpec
from tests.api.server import Running

PATIENCE = 60_000
SMALL = {"Width": "64", "Height": "64"}
USUAL: dict[str, Any] = {"viewport": {"width": 1280, "height": 900}, "reduced_motion": "reduce"}
expect.set_options(timeout=PATIENCE)


def picture(name: str = "cat.png", colour: str = "orange", size: tuple[int, int] = (64, 64)) -> dict[str, Any]:
    file = io.BytesIO()
    Image.new("RGB", size, colour).save(file, "PNG")
    return {"name": name, "mimeType": "image/png", "buffer": file.getvalue()}


@dataclass
class Site:
    """One open page of one server. complaints: what the browser wrote to its console, and uncaught errors."""

    page: Page
    server: Running
    complaints: list[str] = field(default_factory=list)
    expected: tuple[str, ...] = ()

    def way(self, name: str) -> None:
        self.page.get_by_role("radio", name=name, exact=True).check(force=True)

    def write(self, prompt: str) -> None:
        self.page.get_by_role("textbox", name="Prompt", exact=True).fill(prompt)

    def small(self, frames: int = 5, steps: int = 2) -> None:
        """A canvas, length and number of steps that take no time."""
        self.page.get_by_label("Shape").select_option("exact")
        for label, value in SMALL.items():
            self.page.get_by_label(label, exact=True).fill(value)
        self.frames.fill(str(frames))
        self.frames.press("Tab")
        self.page.get_by_label("Steps", exact=True).first.fill(str(steps))

    @property
    def frames(self) -> Locator:
        return self.page.get_by_role("group", name="Length").get_by_label("Frames", exact=True)

    def advanced(self) -> Locator:
        """Open what isn't asked for every time."""
        block = self.page.locator("#advanced")
        if block.get_attribute("open") is None:
            block.locator("> summary").click()
        return block

    def upload(self, label: str, *files: Any) -> None:
        self.page.locator(".drop", has_text=label).locator("input").set_input_files(list(files))

    def generate(self, press: Callable[[], Any] | None = None) -> str:
        """Press the button; the job's id."""
        button = self.page.get_by_role("button", name="Generate")
        with self.page.expect_response(lambda answer: answer.url.endswith("/generate")) as found:
            (press or button.click)()
        assert found.value.status == 202, found.value.text()
        return str(found.value.json()["id"])

    def refuse(self) -> Mapping[str, Any]:
        """Press the button; the server's problem."""
        with self.page.expect_response(lambda answer: answer.url.endswith("/generate")) as found:
            self.page.get_by_role("button", name="Generate").click()
        return dict(found.value.json())

    def spec(self, job_id: str) -> GenerateSpec:
        """What the server understood."""
        return self.server.service.table.get(job_id).spec

    def words(self, job_id: str) -> dict[str, Any]:
        """The request as it arrived."""
        return dict(self.spec(job_id).request)

    def detail(self) -> Locator:
        return self.page.locator("#detail")

    def ends(self, status: str) -> Locator:
        """The open job, once it has this state."""
        expect(self.detail().locator("h2 .pill")).to_have_text(status)
        return self.detail()


@contextmanager
def opened(browser: Browser, server: Running, *, expected: tuple[str, ...] = (), **options: Any) -> Iterator[Site]:
    """The page in a browser context of its own. options: of that context, and of `shown`."""
    ready = options.pop("ready", True)
    context = browser.new_context(**(USUAL | options))
    try:
        with shown(context, server, expected=expected, ready=ready) as site:
            yield site
    finally:
        context.close()


@contextmanager
def shown(
    context: BrowserContext, server: Running, *, expected: tuple[str, ...] = (), ready: bool = True
) -> Iterator[Site]:
    """expected: pieces of complaints that the test provokes, such as `401`; a 422 is always one. ready: wait for it."""
    context.set_default_timeout(PATIENCE)
    site = Site(context.new_page(), server, expected=expected)
    site.page.on("console", lambda said: site.complaints.append(said.text) if said.type == "error" else None)
    site.page.on("pageerror", lambda error: site.complaints.append(str(error)))
    try:
        site.page.goto(server.url)
        if ready:
            expect(site.page.get_by_role("button", name="Generate")).to_be_enabled()
        yield site
        assert site.page.url.split("#")[0].rstrip("/") == server.url, "nothing that is written goes into the address"
        unexpected = [said for said in site.complaints if not any(word in said for word in (*site.expected, "422"))]
        assert not unexpected, unexpected
    finally:
        site.page.close()
