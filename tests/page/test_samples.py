"""Sample prompts of the embedded model: sentences of its world, offered where it is loaded; and pictures of finished
clips in the list."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from playwright.sync_api import BrowserContext, Locator, Route, expect

from h3runtime.api.page import static_files
from h3runtime.core import Task
from h3runtime.nano.captions import COLOUR_WORDS, SHAPE_WORDS, VERBS
from h3runtime.nano.pictures import portrait, render
from h3runtime.nano.world import FLOORS, Actor, Scene, is_held_out
from tests.api.server import Running
from tests.page.driver import Site, shown

BALL = Actor("red", "ball", "left", 0.5, 0.5, 0.16, travel=0.46)


def prompts() -> list[str]:
    return re.findall(r'prompt: "([^"]+)"', static_files()["samples.js"].data.decode())


def meaning(words: dict[str, tuple[str, ...]], text: str) -> str | None:
    """The key whose longest words are in the text."""
    found = [(len(word), key) for key, many in words.items() for word in many if word and f" {word} " in f" {text} "]
    return max(found)[1] if found else None


@pytest.mark.parametrize("prompt", prompts())
def test_samples_are_sentences_that_were_trained(prompt: str) -> None:
    subjects, ground = re.fullmatch(r"(.+) on a (\w+) floor(?:, .+)?", prompt).groups()
    assert ground in FLOORS
    for subject in subjects.split(" and "):
        motion = meaning(VERBS, subject)
        assert motion is not None
        if "<Picture 1>" not in subject:
            colour, shape = meaning(COLOUR_WORDS, subject), meaning(SHAPE_WORDS, subject)
            assert colour != ground and not is_held_out(str(colour), str(shape), motion)


@pytest.fixture
def nano(server: Running, context: BrowserContext) -> Iterator[Site]:
    """The page of a server that says that the embedded model is loaded."""

    def named(route: Route) -> None:
        answer = route.fetch()
        body = answer.json()
        for model in body["models"]:
            model["model"] = "h3-nano"
        route.fulfill(response=answer, json=body)

    context.route("**/ready", named)
    try:
        with shown(context, server) as site:
            yield site
    finally:
        context.unroute("**/ready")


def samples(site: Site) -> Locator:
    return site.page.get_by_role("group", name="Sample prompts")


def sent_picture(path: Path) -> np.ndarray:
    return np.asarray(Image.open(path).convert("RGB")).astype(int)


@contextmanager
def occupied(server: Running) -> Iterator[None]:
    """Jobs wait, and keep what they were sent, until the block ends."""
    job = server.submit(prompt="x hold")
    try:
        yield
    finally:
        server.client.post(f"/jobs/{job}/cancel")
        server.wait(job)


def test_only_the_embedded_model_has_samples(site: Site) -> None:
    expect(samples(site)).to_be_hidden()


def test_a_sample_fills_the_form(nano: Site) -> None:
    nano.write("something else")
    samples(nano).get_by_role("button", name="Bouncing ball").click()
    expect(nano.page.get_by_role("textbox", name="Prompt", exact=True)).to_be_focused()
    words = nano.words(nano.generate())
    assert words == {"prompt": prompts()[0], "task": "t2va", "width": 192, "height": 192, "frames": 39}
    nano.ends("succeeded")


def test_a_sample_brings_its_first_frame(nano: Site) -> None:
    samples(nano).get_by_role("button", name="From a first frame").click()
    expect(nano.page.locator(".ends")).to_contain_text("first-frame.png")
    with occupied(nano.server):
        spec = nano.spec(nano.generate())
        assert spec.task is Task.I2VA and spec.guides[0].picture is not None
        drawn = sent_picture(spec.guides[0].picture.path)
    wanted = render([Scene((BALL,), "blue")], 192, 192, 39)[0, 0].numpy()
    assert abs(drawn - wanted).mean() < 1
    nano.ends("succeeded")


def test_a_sample_brings_its_reference(nano: Site) -> None:
    samples(nano).get_by_role("button", name="From a reference").click()
    expect(nano.page.get_by_role("list", name="References")).to_contain_text("red-ball.png")
    with occupied(nano.server):
        spec = nano.spec(nano.generate())
        assert spec.task is Task.REF2VA and spec.prompt.startswith("the object in <Picture 1>")
        picture = spec.references[0].picture
        assert picture is not None
        drawn = sent_picture(picture.path)
    assert abs(drawn - portrait("red", "ball", 64, 64).numpy()).mean() < 1
    nano.ends("succeeded")


def test_a_finished_clip_keeps_its_look_in_the_list(site: Site) -> None:
    site.write("A cat that is remembered")
    site.small()
    job = site.generate()
    site.ends("succeeded")
    look = site.page.locator(".card", has=site.page.locator(f"#job-{job}")).locator("img.thumb")
    expect(look).to_be_visible()
    site.page.reload()
    expect(look).to_be_visible()
    assert look.evaluate("image => image.decode().then(() => image.naturalWidth)") > 0
    look.click()
    expect(site.detail().locator("h2 .pill")).to_have_text("succeeded")


def test_what_failed_has_none(site: Site) -> None:
    site.write("A cat fail_at=video_decode")
    site.small()
    job = site.generate()
    site.ends("failed")
    expect(site.page.locator(".card", has=site.page.locator(f"#job-{job}")).locator("img.thumb")).to_be_hidden()
