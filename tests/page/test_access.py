"""For every person and every screen: keys alone, names for everything, contrast, dark and light, phone width."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.api.server import Running
from tests.page.driver import Site, opened

WAYS = ("Text", "First frame", "Last frame", "First and last", "References", "Edit", "Continue")

CONTRASTS = """() => {
    const parse = (text) => text.match(/[\\d.]+/g).map(Number);
    const light = (colour) => {
        const linear = (v) => (v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
        const [r, g, b] = colour.slice(0, 3).map((v) => linear(v / 255));
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    };
    const ground = (node) => {
        for (let at = node; at; at = at.parentElement) {
            const colour = parse(getComputedStyle(at).backgroundColor);
            if (colour.length === 3 || colour[3] === 1) return colour;
        }
        return [255, 255, 255];
    };
    const poor = [];
    for (const node of document.querySelectorAll("body *")) {
        const text = [...node.childNodes].some((child) => child.nodeType === 3 && child.textContent.trim());
        const isPlain = !node.matches("[type=file], [type=checkbox], [type=radio], [type=range]");
        const isField = node.matches("input, select, textarea") && isPlain;
        const isSeen = node.checkVisibility({ visibilityProperty: true }) && !node.closest(":disabled, .unseen, .skip");
        if ((!text && !isField) || !isSeen) continue;
        const [a, b] = [light(parse(getComputedStyle(node).color)), light(ground(node))].sort((x, y) => y - x);
        const ratio = (a + 0.05) / (b + 0.05);
        if (ratio < 4.5) poor.push(`${node.tagName}.${node.className}: ${ratio.toFixed(2)}`);
    }
    return poor;
}"""

NAMELESS = """() => [...document.querySelectorAll(
    "input, select, textarea, button, a[href], [role=slider], video, summary, progress, dialog"
)].filter((node) => !(node.labels?.length || node.getAttribute("aria-label") || node.getAttribute("aria-labelledby")
        || (node.matches("button, a, summary") && node.textContent.trim()) || node.closest("[aria-hidden=true]")))
    .map((node) => node.outerHTML.slice(0, 120))"""


FOCUSED = """() => {
    const node = document.activeElement;
    const name = node.getAttribute("aria-label") || node.labels?.[0]?.textContent || node.textContent;
    return [name, getComputedStyle(node.type === "radio" ? node.nextElementSibling : node).outlineStyle];
}"""


COVERED = """() => {
    const node = document.activeElement;
    const [foot, here] = [document.querySelector(".foot"), node].map((each) => each.getBoundingClientRect());
    const isOther = !node.closest(".foot");
    return isOther && here.bottom > foot.top && here.top < foot.bottom ? node.outerHTML.slice(0, 120) : null;
}"""


def wide(page: Page) -> int:
    return int(page.evaluate("document.documentElement.scrollWidth"))


def fill_everything(site: Site) -> None:
    """One failed and one finished job, the finished one open, and every part of the form unfolded."""
    site.server.wait(
        site.server.submit(prompt="A very long prompt without a place to break " + "x" * 80 + " fail_at=mux")
    )
    job = site.server.submit(prompt="A finished one warn", diagnostics=True)
    site.server.wait(job)
    site.page.reload()
    site.page.locator(f"#job-{job}").click()
    site.advanced()
    site.page.locator("#server > summary").click()
    for summary in site.page.locator("#detail summary").all():
        if not summary.evaluate("node => node.parentElement.open"):
            summary.click()
    site.write("A cat")
    expect(site.page.locator(".verdict")).to_be_visible()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_contrast_and_names(server: Running, browser: Browser, scheme: str) -> None:
    with opened(browser, server, color_scheme=scheme) as site:
        fill_everything(site)
        for way in ("First and last", "References", "Edit"):  # between them every part of the form
            site.way(way)
            assert site.page.evaluate(CONTRASTS) == []
        site.page.get_by_label("By its parts").check()
        for add in ("Add line", "Add span", "Add subject", "Add LoRA", "Add step range"):
            for button in site.page.get_by_role("button", name=add, include_hidden=True).all():
                button.evaluate("node => node.click()")
        assert site.page.evaluate(NAMELESS) == []
        ids = site.page.evaluate("[...document.querySelectorAll('[id]')].map((node) => node.id)")
        assert len(ids) == len(set(ids))


def test_phone_width(server: Running, browser: Browser) -> None:
    with opened(browser, server, viewport={"width": 360, "height": 740}, has_touch=True) as site:
        fill_everything(site)
        for way in WAYS:
            site.way(way)
            assert wide(site.page) == 360, way
        site.page.get_by_label("By its parts").check()
        site.page.get_by_role("button", name="Add line").first.click()
        assert wide(site.page) == 360
        site.page.get_by_role("button", name="Copy as curl").first.click()
        assert wide(site.page) == 360
        box = site.page.get_by_role("dialog").bounding_box()
        assert box is not None and box["x"] >= 0 and box["x"] + box["width"] <= 360


def test_dark_and_light_by_the_system_and_by_choice(server: Running, browser: Browser) -> None:
    ground = "getComputedStyle(document.body).backgroundColor"
    with opened(browser, server, color_scheme="dark") as site:
        assert site.page.evaluate(ground) == "rgb(19, 21, 23)"
        toggle = site.page.get_by_role("button", name=re.compile("Colours"))
        toggle.click()
        assert site.page.evaluate(ground) == "rgb(246, 246, 243)"
        site.page.reload()
        assert site.page.evaluate(ground) == "rgb(246, 246, 243)", "the choice is remembered"
        toggle.click()
        assert site.page.evaluate(ground) == "rgb(19, 21, 23)"
        toggle.click()
        expect(toggle).to_have_text("Auto")


def test_reduced_motion(server: Running, browser: Browser) -> None:
    motion = "getComputedStyle(document.documentElement).scrollBehavior"
    with opened(browser, server) as still, opened(browser, server, reduced_motion="no-preference") as moving:
        assert (still.page.evaluate(motion), moving.page.evaluate(motion)) == ("auto", "smooth")


def test_a_clip_is_made_and_looked_at_with_keys_alone(site: Site) -> None:
    page = site.page

    def tab_to(name: str) -> None:
        for _ in range(150):
            page.keyboard.press("Tab")
            label, outline = page.evaluate(FOCUSED)
            if label.strip().startswith(name):
                assert outline != "none", f"{name} has the focus, and nobody sees it"
                return
        raise AssertionError(f"{name} can't be reached")

    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "To the form"
    page.keyboard.press("Enter")
    tab_to("Text")
    page.keyboard.press("ArrowRight")
    expect(page.get_by_role("radio", name="First frame")).to_be_checked()
    page.keyboard.press("ArrowLeft")
    tab_to("Prompt")
    page.keyboard.type("A cat by keys")
    tab_to("Shape")
    page.keyboard.type("Exact")
    tab_to("Width")
    page.keyboard.press("Control+A")
    page.keyboard.type("64")
    tab_to("Height")
    page.keyboard.press("Control+A")
    page.keyboard.type("64")
    tab_to("Length")
    page.keyboard.press("Home")
    tab_to("Steps")
    page.keyboard.type("2")
    tab_to("Generate")
    job = site.generate(lambda: page.keyboard.press("Enter"))
    assert site.words(job) == {
        "prompt": "A cat by keys",
        "task": "t2va",
        "width": 64,
        "height": 64,
        "frames": 5,
        "steps": 2,
    }
    expect(page.get_by_role("button", name="Generate")).to_be_focused()
    site.ends("succeeded")
    tab_to("Copy seed")
    tab_to("A cat by keys")
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.tagName") == "H2"
    tab_to("Copy as curl")
    page.keyboard.press("Enter")
    expect(page.get_by_role("dialog")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)
    assert page.evaluate("document.activeElement.textContent") == "Copy as curl"


def test_tab_goes_through_the_whole_page_and_out_again(site: Site) -> None:
    """No trap: from the last control the focus leaves the document."""
    seen = 0
    for _ in range(200):
        site.page.keyboard.press("Tab")
        if site.page.evaluate("document.activeElement === document.body"):
            break
        seen += 1
    else:
        raise AssertionError("the focus never leaves")
    assert seen > 20


@pytest.mark.parametrize("viewport", [{"width": 1280, "height": 700}, {"width": 360, "height": 640}])
def test_the_foot_never_covers_what_has_the_focus(server: Running, browser: Browser, viewport: dict[str, int]) -> None:
    with opened(browser, server, viewport=viewport) as site:
        site.write("<Picture 1> and <Video 2> say hello there, and <Audio 3> says so too.")
        site.page.locator("#estimate summary").click()
        expect(site.page.get_by_role("list", name="Warnings")).to_be_visible()
        site.page.get_by_role("textbox", name="Prompt", exact=True).focus()
        while not site.page.evaluate("document.activeElement.closest('.foot, .side') !== null"):
            site.page.keyboard.press("Tab")
            assert site.page.evaluate(COVERED) is None
