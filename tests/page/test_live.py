"""Jobs as they go: progress, previews, streams that break, cancel, delete, retry, and what a failure tells."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from playwright.sync_api import Browser, Route, expect

from tests.api.server import Running
from tests.page.driver import Site, opened

SLOW = "step_seconds=0.15 hold"


def test_progress_and_a_preview_come_while_it_samples(site: Site) -> None:
    site.write(f"A slow cat {SLOW}")
    site.small(steps=200)
    site.generate()
    detail = site.ends("running")
    expect(detail.get_by_role("status")).to_have_text(re.compile(r"sampling, step \d+ of 200, about .* left"))
    expect(detail.get_by_role("img", name=re.compile("Preview"))).to_be_visible()
    shown = detail.locator("img.preview").get_attribute("src")
    expect(detail.locator("img.preview")).not_to_have_attribute("src", shown or "")
    card = site.page.locator(".card").first
    expect(card.get_by_role("progressbar")).to_be_visible()
    detail.get_by_role("button", name="Cancel").click()
    expect(card.locator(".pill")).to_have_text("cancelled")
    expect(site.detail().get_by_role("button", name="Retry")).to_be_visible()


def test_a_stream_that_breaks_is_taken_up_where_it_was(site: Site, tmp_path: Path) -> None:
    asked: list[str | None] = []

    def cut(route: Route) -> None:
        asked.append(route.request.headers.get("last-event-id"))
        if len(asked) > 1:
            (tmp_path / "taken-up").touch()
            return route.continue_()
        events = 'id: 1\nevent: state\ndata: {"status": "running"}\nretry: 50\n\n'
        events += 'id: 2\nevent: progress\ndata: {"stage": "sampling", "step": 3, "steps": 20, "fraction": 0.2}\n\n'
        return route.fulfill(body=events, content_type="text/event-stream")

    site.page.route("**/events", cut)
    site.write(f"A cut cat until={tmp_path / 'taken-up'}")
    site.small(steps=8)
    site.generate()
    site.ends("succeeded")
    assert asked[:2] == [None, "2"]


def test_without_streams_it_asks(site: Site) -> None:
    site.page.route("**/events", lambda route: route.fulfill(status=404, body="{}"))
    site.page.route(
        "**/jobs?*", lambda route: route.abort() if site.page.locator(".card").count() else route.continue_()
    )
    site.expected = ("404", "ERR_FAILED")
    site.write("A polled cat step_seconds=0.05")
    site.small(steps=4)
    site.generate()
    site.ends("succeeded")


def test_a_waiting_job_is_cancelled_and_deleted(site: Site) -> None:
    site.write(f"The first {SLOW}")
    site.small(steps=8)
    first = site.generate()
    site.write("The second")
    second = site.generate()
    site.ends("queued").get_by_role("button", name="Cancel").click()
    site.ends("cancelled").get_by_role("button", name="Delete").click()
    dialog = site.page.get_by_role("dialog", name="Delete this job?")
    dialog.press("Escape")
    assert site.server.job(second)["status"] == "cancelled", "Escape keeps it"
    site.detail().get_by_role("button", name="Delete").click()
    dialog.get_by_role("button", name="Delete").click()
    expect(site.detail()).to_be_hidden()
    expect(site.page.locator(f"#job-{second}")).to_have_count(0)
    expect(site.page.get_by_role("heading", name="Jobs")).to_be_focused()
    assert site.server.client.get(f"/jobs/{second}").status_code == 404
    site.page.locator(f"#job-{first}").click()
    site.detail().get_by_role("button", name="Cancel").click()
    site.ends("cancelled")


def test_a_failure_tells_what_where_and_why_and_is_tried_again(site: Site) -> None:
    site.write("A cat fail_at=mux")
    site.small()
    first = site.generate()
    detail = site.ends("failed")
    why = detail.get_by_role("group", name="Why it failed")
    expect(why).to_contain_text("encoder_failed")
    expect(why).to_contain_text("Stage mux")
    expect(why).to_contain_text("the encoder ended with status 1")
    second = site.generate(lambda: detail.get_by_role("button", name="Retry").click())
    assert site.words(second) == site.words(first)
    site.ends("failed")


def test_the_list_is_newest_first_and_a_job_of_another_client_appears(site: Site) -> None:
    job = site.server.submit(prompt="From elsewhere", output="elsewhere.mp4")
    site.page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
    expect(site.page.locator(f"#job-{job}")).to_be_visible()
    expect(site.page.locator(".card").first).to_contain_text("From elsewhere")
    site.page.locator(f"#job-{job}").click()
    detail = site.ends("succeeded")
    expect(detail.get_by_role("button", name="Make again")).to_have_count(0)
    detail.get_by_role("button", name="Load settings").click()
    expect(site.page.get_by_role("textbox", name="Prompt", exact=True)).to_have_value("From elsewhere")
    expect(site.frames).to_have_value("5")


def test_what_is_wrong_stands_beside_its_field_and_is_announced(site: Site) -> None:
    site.write("A cat")
    site.small()
    site.page.get_by_label("Steps", exact=True).first.fill("999")
    site.advanced().get_by_label("File name").fill("../x.mp4")
    site.refuse()
    alert = site.page.get_by_role("alert").filter(has_text="correct")
    expect(alert).to_contain_text("2 things to correct")
    steps = site.page.get_by_label("Steps", exact=True).first
    expect(steps).to_have_attribute("aria-invalid", "true")
    expect(steps).to_have_accessible_description(re.compile("999 is too large"))
    name = site.page.get_by_label("File name")
    expect(name).to_have_accessible_description(re.compile("is a path"))
    alert.get_by_role("button", name=re.compile("output")).click()
    expect(name).to_be_focused()
    steps.fill("2")
    name.fill("")
    expect(steps).not_to_have_attribute("aria-invalid", "true")
    expect(alert).to_be_hidden()


def test_errors_of_nested_fields_find_their_place(site: Site) -> None:
    site.page.get_by_label("By its parts").check()
    parts = site.page.get_by_role("group", name="Prompt by its parts")
    parts.get_by_label("Description").fill("One")
    parts.get_by_role("button", name="Add shot").click()
    parts.get_by_role("group", name="Shot 2").get_by_label("Description").fill("Two")
    parts.get_by_role("group", name="Shot 2").get_by_label("At", exact=True).fill("99")
    site.small()
    problem = site.refuse()
    assert problem["errors"][0]["field"] == "prompt.shots[1].at"
    expect(parts.get_by_role("group", name="Shot 2").get_by_label("At", exact=True)).to_have_attribute(
        "aria-invalid", "true"
    )


def test_the_estimate_follows_the_form(site: Site) -> None:
    estimate = site.page.get_by_role("region", name="Estimate")
    expect(estimate).to_contain_text("Write a prompt")
    site.write("A cat")
    site.small(22)
    expect(estimate).to_contain_text("Would be admitted")
    estimate.get_by_text("What it takes").click()
    expect(estimate).to_contain_text("64×64, 22 frames")
    expect(estimate).to_contain_text("Forwards2")
    expect(estimate).to_contain_text("trained on")
    site.page.get_by_label("Width", exact=True).fill("65")
    expect(estimate).to_contain_text("Not admitted")
    expect(site.page.get_by_label("Width", exact=True)).to_have_accessible_description(re.compile("multiple"))


def test_a_server_that_loads_or_died_says_so(server: Running, browser: Browser) -> None:
    ready = server.client.get("/ready").json()
    loading = {
        "component": "transformer",
        "partition": None,
        "bytes_done": 2**30,
        "bytes_in_all": 2**32,
        "bytes_per_second": 1,
    }
    states = iter(
        [
            {
                "status": "loading",
                "fraction": 0.25,
                "loading": loading,
                "attention": None,
                "linear": None,
                "models": [],
            },
            {"status": "draining"},
            {"status": "dead", "reason": "dit.safetensors: blocks.0 is missing"},
        ]
    )
    with opened(browser, server, expected=("503",), ready=False) as site:
        site.page.clock.install()
        site.page.route("**/ready", lambda route: route.fulfill(status=503, json=ready | next(states)))
        site.page.reload()
        header = site.page.get_by_role("status", name="Server")
        expect(header).to_contain_text("loading")
        expect(header).to_contain_text("transformer, 1.0 GiB of 4.0 GiB")
        expect(header.get_by_role("progressbar")).to_have_attribute("max", "1")
        expect(site.page.get_by_role("button", name="Generate")).to_be_disabled()
        site.page.clock.fast_forward(2000)
        expect(header).to_contain_text("draining")
        site.page.clock.fast_forward(2000)
        expect(header).to_contain_text("dead")
        expect(site.page.locator("#reason")).to_contain_text("blocks.0 is missing")


def test_older_jobs_are_offered_until_all_are_there(site: Site) -> None:
    known = site.server.client.get("/jobs?limit=1").json()["data"] or [site.server.wait(site.server.submit())]
    facts = known[0] | {"status": "succeeded", "timings": {"queue": 60.0, "total": 63.0}}
    jobs = [facts | {"id": f"J{number:02}", "prompt": f"cat {number}"} for number in range(45, 0, -1)]

    def page_of(route: Route) -> None:
        asked = parse_qs(urlsplit(route.request.url).query)
        begin = next((i + 1 for i, job in enumerate(jobs) if [job["id"]] == asked.get("after")), 0)
        shown = jobs[begin : begin + 30]
        route.fulfill(json={"data": shown, "has_more": begin + 30 < len(jobs)})

    # Nobody made these, so nobody has a look at them.
    site.expected = ("404",)
    site.page.route("**/jobs?*", page_of)
    site.page.reload()
    again = "document.dispatchEvent(new Event('visibilitychange'))"
    older = site.page.get_by_role("button", name="Older jobs")
    expect(site.page.locator(".card")).to_have_count(30)
    older.click()
    expect(site.page.locator(".card")).to_have_count(45)
    expect(older).to_be_hidden()
    with site.page.expect_response("**/jobs?*"):
        site.page.evaluate(again)
    site.page.wait_for_timeout(50)
    expect(older).to_be_hidden()
    expect(site.page.locator(".card .where").first).to_have_text("took 3 s")
    jobs[0] |= {"status": "cancelled"}
    site.page.evaluate(again)
    expect(site.page.locator(".card .pill").first).to_have_text("cancelled")
    expect(site.page.locator(".card .where").first).to_have_text("")
