"""Keys, hostile texts, and the command that is copied."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

from playwright.sync_api import Browser, expect

from tests.api.server import running
from tests.page.conftest import ENGINE
from tests.page.driver import Site, opened, picture

KEY = "a-key-that-nobody-else-has"
EVIL = "<img src=x onerror=alert(1)><script>alert(2)</script>"


def test_a_key_is_asked_for_kept_in_the_tab_and_never_shown(tmp_path: Path, browser: Browser) -> None:
    with running(tmp_path / "data", recipe=ENGINE, ready=False, api_key=KEY) as server:
        server.wait_ready("ready")
        with opened(browser, server, expected=("401",)) as site:
            page = site.page
            dialog = page.get_by_role("dialog", name="Key needed")
            expect(dialog.get_by_label("Key", exact=True)).to_be_focused()
            dialog.get_by_label("Key", exact=True).fill("wrong")
            dialog.get_by_label("Key", exact=True).press("Enter")
            expect(dialog).to_contain_text("does not accept")
            dialog.press("Escape")
            expect(page.get_by_role("button", name="Enter key")).to_be_visible()
            page.get_by_role("button", name="Enter key").click()
            dialog.get_by_label("Key", exact=True).fill(KEY)
            dialog.get_by_label("Key", exact=True).press("Enter")
            expect(page.get_by_role("button", name="Enter key")).to_be_hidden()
            site.write("A cat")
            site.small(22)
            site.generate()
            assert site.ends("succeeded").locator("video").evaluate("video => video.play().then(() => true)") is True
            expect(site.detail().locator("video")).to_have_attribute("src", re.compile("^blob:"))
            assert page.evaluate("JSON.stringify(localStorage)").find(KEY) < 0
            assert page.evaluate("JSON.stringify(sessionStorage)").find(KEY) > 0
            site.detail().get_by_role("button", name="Copy as curl").click()
            command = page.get_by_role("dialog", name="Copy as curl").get_by_role("textbox").input_value()
            assert "Bearer $H3_API_KEY" in command and KEY not in command
            page.keyboard.press("Escape")
            assert KEY not in page.content()


def test_hostile_texts_are_text(site: Site) -> None:
    site.page.on("dialog", lambda dialog: (site.complaints.append(dialog.message), dialog.dismiss()))
    site.way("References")
    site.upload("Add references", picture(f"{EVIL.replace('/', '')}.png"))
    expect(site.page.get_by_role("list", name="References")).to_contain_text("<img src=x")
    site.write(EVIL)
    site.small(22)
    job = site.generate()
    detail = site.ends("succeeded")
    assert site.spec(job).prompt == EVIL
    detail.get_by_text("Prompt", exact=True).click()
    expect(detail.locator("pre.prompt")).to_have_text(EVIL)
    expect(site.page.locator(".card").first).to_contain_text("<img src=x")
    assert site.page.locator("img[src=x], main script").count() == 0


def test_the_copied_command_does_what_the_form_does(site: Site, tmp_path: Path) -> None:
    site.way("First frame")
    cat = picture("it's a; cat, really.png")
    site.upload("First frame", cat)
    site.write('It\'s "quoted"; $HOME `x` \\ and\nnew lines ✓')
    site.small(22)
    job = site.generate()
    wanted = site.words(job)
    site.ends("succeeded")
    site.page.get_by_role("button", name="Copy as curl").last.click()
    for place in ("#form", "#detail"):
        site.page.keyboard.press("Escape")
        site.page.locator(place).get_by_role("button", name="Copy as curl").click()
        command = site.page.get_by_role("dialog", name="Copy as curl").get_by_role("textbox").input_value()
        (tmp_path / cat["name"]).write_bytes(cat["buffer"])
        assert shutil.which("curl"), "the command is tried with curl itself: apt-get install curl"
        done = subprocess.run(
            ["sh", "-c", command], cwd=tmp_path, capture_output=True, text=True, check=True, env=os.environ
        )
        made = re.search(r'"id": ?"([0-9A-Z]{26})"', done.stdout)
        assert made is not None, done.stdout
        assert site.words(made[1]) == wanted
        first, second = site.spec(job).guides[0].picture, site.spec(made[1]).guides[0].picture
        assert first is not None and second is not None and first.sha256 == second.sha256


def test_json_is_copied_where_there_are_no_files(site: Site) -> None:
    site.write("It's plain")
    site.small()
    site.page.locator("#form").get_by_role("button", name="Copy as curl").click()
    box = site.page.get_by_role("dialog", name="Copy as curl")
    done = subprocess.run(
        ["sh", "-c", box.get_by_role("textbox").input_value()], capture_output=True, text=True, check=True
    )
    assert '"succeeded"' in done.stdout
    site.page.keyboard.press("Escape")
    job = site.server.client.get("/jobs?limit=1").json()["data"][0]["id"]
    assert site.words(job) == {
        "prompt": "It's plain",
        "task": "t2va",
        "width": 64,
        "height": 64,
        "frames": 5,
        "steps": 2,
    }


def test_nothing_comes_from_elsewhere(site: Site) -> None:
    loaded = site.page.evaluate("performance.getEntriesByType('resource').map((entry) => entry.name)")
    assert loaded and all(name.startswith((site.server.url, "blob:")) for name in loaded)
