"""The finished clip: it plays, its variants, its facts; and two of them side by side."""

from __future__ import annotations

import re

from playwright.sync_api import Locator, expect

from tests.page.driver import Site

PLAYS = """video => video.play().then(() => new Promise((done) => {
    video.addEventListener("timeupdate", () => video.currentTime > 0.05 && done(true));
}))"""


def make(site: Site, prompt: str, **settings: str) -> str:
    site.write(prompt)
    site.small(22)
    for label, value in settings.items():
        site.page.get_by_label(label.replace("_", " "), exact=True).first.fill(value)
    job = site.generate()
    site.ends("succeeded")
    return job


def times(videos: Locator) -> list[float]:
    return [float(time) for time in videos.evaluate_all("all => all.map((video) => video.currentTime)")]


def test_a_clip_plays_by_ranges_and_tells_its_facts(site: Site) -> None:
    ranges: list[str] = []
    site.page.on(
        "request", lambda asked: ranges.append(asked.headers.get("range", "")) if "/content" in asked.url else None
    )
    job = make(site, "A cat warn", Seed="7")
    detail = site.detail()
    assert detail.locator("video").evaluate(PLAYS) is True
    assert ranges and all(one.startswith("bytes=") for one in ranges)
    expect(detail.get_by_role("list", name="Warnings")).to_contain_text("odd")
    expect(detail.get_by_role("list", name="Timings")).to_contain_text("sampling")
    expect(detail.locator(".stack .part.sampling")).to_be_visible()
    expect(detail.locator("dl.settings").first).to_contain_text("Seed7")
    detail.get_by_text("Checks").click()
    expect(detail.get_by_text("warn: quiet")).to_be_visible()
    with site.page.expect_download() as found:
        detail.get_by_role("link", name=re.compile("Download")).click()
    assert found.value.suggested_filename == site.server.job(job)["output"]


def test_variants_are_tabs(site: Site) -> None:
    job = make(site, "Three cats", Number_of_clips="3", Seed="10")
    tabs = site.detail().get_by_role("tab")
    expect(tabs).to_have_count(3)
    tabs.nth(0).press("ArrowRight")
    expect(tabs.nth(1)).to_be_focused()
    expect(tabs.nth(1)).to_have_attribute("aria-selected", "true")
    expect(site.detail().locator("video")).to_have_attribute("src", site.server.job(job)["outputs"][1]["url"])
    expect(site.detail().get_by_role("tabpanel")).to_contain_text("seed 11")
    tabs.nth(1).press("End")
    expect(site.detail().get_by_role("tabpanel")).to_contain_text("seed 12")
    assert [tab.get_attribute("tabindex") for tab in tabs.all()] == ["-1", "-1", "0"]


def test_two_jobs_side_by_side(site: Site) -> None:
    jobs = [make(site, "The left", Seed="1"), make(site, "The right", Seed="2")]
    for job in jobs:
        site.page.locator(f"#job-{job}-compare").check()
    compare = site.page.get_by_role("button", name="Compare side by side")
    compare.click()
    dialog = site.page.get_by_role("dialog", name="Side by side")
    rows = dialog.get_by_role("row")
    expect(rows.filter(has_text="Seed")).to_contain_text("differs")
    expect(rows.filter(has_text="Prompt")).to_contain_text("differs")
    expect(rows.filter(has_text="Frames")).not_to_contain_text("differs")
    videos = dialog.locator("video")
    expect(videos).to_have_count(2)
    for video in videos.all():
        video.evaluate(
            "video => video.readyState >= 2 || new Promise((done) => video.addEventListener('loadeddata', done))"
        )
    play = dialog.get_by_role("button", name="Play both")
    play.press("Enter")
    expect(dialog.get_by_role("button", name="Pause both")).to_be_visible()
    videos.first.evaluate(
        "video => new Promise((done) => video.addEventListener('timeupdate', () => video.currentTime > 0.1 && done()))"
    )
    assert videos.evaluate_all("all => all.map((video) => video.paused)") == [False, False]
    videos.nth(1).evaluate("video => video.pause()")
    expect(dialog.get_by_role("button", name="Play both")).to_be_visible()
    assert videos.evaluate_all("all => all.map((video) => video.paused)") == [True, True]
    videos.nth(1).evaluate(
        "video => { video.currentTime = 0.5; return new Promise((done) => video.addEventListener('seeked', done)); }"
    )
    site.page.wait_for_function("Math.abs(document.querySelectorAll('#compare video')[0].currentTime - 0.5) < 0.1")
    dialog.get_by_role("button", name="To the start").click()
    site.page.wait_for_function(
        "[...document.querySelectorAll('#compare video')].every((video) => video.currentTime === 0)"
    )
    assert times(videos) == [0, 0]
    dialog.press("Escape")
    expect(dialog).to_be_hidden()
    expect(compare).to_be_focused()
