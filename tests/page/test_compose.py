"""Every task is composed by hand, and what arrives at the server is what was composed."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import expect

from h3runtime.core import Task
from h3runtime.packing import geometry
from tests.page.driver import Site, picture


def digest(file: dict[str, Any]) -> str:
    return hashlib.sha256(file["buffer"]).hexdigest()


def test_a_clip_from_a_prompt_with_every_kind_of_setting(site: Site) -> None:
    site.write("A cat on a windowsill")
    site.small(frames=22, steps=3)
    site.page.get_by_label("Seed").fill("18446744073709551615")
    advanced = site.advanced()
    advanced.get_by_label("Sampler").select_option("euler")
    advanced.get_by_label("Shift", exact=True).fill("6.5")
    advanced.get_by_label("Attention", exact=True).select_option("exact")
    advanced.get_by_label("File name").fill("all-settings.mp4")
    advanced.get_by_label("Overwrite").check()
    advanced.get_by_label("Priority").fill("3")
    advanced.get_by_label("CRF").fill("20")
    advanced.get_by_label("Quality", exact=True).scroll_into_view_if_needed()
    job = site.generate()
    assert site.words(job) == {
        "prompt": "A cat on a windowsill",
        "task": "t2va",
        "width": 64,
        "height": 64,
        "frames": 22,
        "steps": 3,
        "seed": "18446744073709551615",
        "sampler": "euler",
        "shift": 6.5,
        "attention": "exact",
        "output": "all-settings.mp4",
        "overwrite": True,
        "priority": 3,
        "format": {"crf": 20},
    }


def test_nothing_is_sent_that_was_not_chosen(site: Site) -> None:
    site.write("A dog")
    site.page.get_by_label("Shape").select_option("9:16")
    site.page.get_by_label("Short edge").select_option("256")
    job = site.generate()
    wanted = {"prompt": "A dog", "task": "t2va", "aspect_ratio": "9:16", "short_edge": 256, "frames": 124}
    assert site.words(job) == wanted
    site.page.get_by_role("button", name="Cancel").click()


def test_lengths_snap_to_the_grid(site: Site) -> None:
    seconds, frames = site.page.get_by_label("Seconds", exact=True), site.frames
    for typed, length, shown in (("3", "73", "3.042"), ("0.1", "5", "0.208"), ("99", "362", "15.083")):
        seconds.fill(typed)
        seconds.press("Tab")
        expect(frames).to_have_value(length)
        expect(seconds).to_have_value(shown)
    frames.fill("81")
    frames.press("Tab")
    expect(frames).to_have_value("73")
    slider = site.page.get_by_role("slider", name="Length")
    slider.press("ArrowRight")
    expect(frames).to_have_value("90")
    expect(slider).to_have_attribute("aria-valuetext", "3.75 seconds, 90 frames")


def test_a_prompt_by_its_parts(site: Site) -> None:
    page = site.page
    page.get_by_label("By its parts").check()
    parts = page.get_by_role("group", name="Prompt by its parts")
    parts.get_by_label("Style").fill("Live-action.")
    parts.get_by_label("Description").fill("A baker (S1) lifts a loaf.")
    parts.get_by_role("button", name="Add shot").click()
    second = parts.get_by_role("group", name="Shot 2")
    second.get_by_label("Description").fill("a close-up of the loaf.")
    second.get_by_label("At", exact=True).fill("0.1")
    second.get_by_role("button", name="Add line").click()
    second.get_by_label("Speaker").fill("The baker (S1)")
    second.get_by_label("Line", exact=True).fill("Listen.")
    second.get_by_label("Off screen").check()
    parts.get_by_label("Music").fill("A guitar.")
    site.small(22)
    job = site.generate()
    line = {"speaker": "The baker (S1)", "line": "Listen.", "off_screen": True}
    assert site.words(job)["prompt"] == {
        "style": "Live-action.",
        "shots": [
            {"description": "A baker (S1) lifts a loaf."},
            {"description": "a close-up of the loaf.", "at": 0.1, "dialogue": [line]},
        ],
        "music": "A guitar.",
    }


def test_a_first_frame_and_guides_moved_by_keys(site: Site, media: Path) -> None:
    site.way("First frame")
    cat, dog = picture(), picture("dog.png", "brown")
    site.upload("First frame", cat)
    expect(site.page.locator(".ends")).to_contain_text("cat.png")
    site.small(124)
    site.upload("Add a guide", dog)
    guide = site.page.get_by_role("slider", name="Guide dog.png")
    expect(guide).to_have_attribute("aria-valuenow", "62")
    guide.press("Shift+ArrowLeft")
    guide.press("ArrowLeft")
    expect(guide).to_have_attribute("aria-valuetext", "frame 44, 1.833 s")
    site.upload("Add a guide", media / "voice.wav")
    site.upload("Add a guide", media / "clip.mp4")
    site.page.get_by_label("With its sound").check()
    rows = site.page.get_by_role("list", name="Guides").get_by_role("listitem")
    rows.filter(has_text="clip.mp4").get_by_label("Frame").fill("45")
    rows.filter(has_text="clip.mp4").get_by_label("Frame").press("Tab")
    rows.filter(has_text="voice.wav").get_by_label("Frame").fill("10")
    rows.filter(has_text="voice.wav").get_by_label("Frame").press("Tab")
    site.write("The cat jumps")
    job = site.generate()
    spec = site.spec(job)
    assert spec.task is Task.I2VA
    found = {guide.field: guide for guide in spec.guides}
    assert [(name, guide.frame) for name, guide in found.items()] == [
        ("first_frame", 0),
        ("keyframes[0]", 44),
        ("keyframes[1]", 10),
        ("keyframes[2]", 45),
    ]
    first, kept = found["first_frame"].picture, found["keyframes[0]"].picture
    assert first is not None and first.sha256 == digest(cat)
    assert kept is not None and kept.sha256 == digest(dog)
    assert found["keyframes[1]"].sound is not None and found["keyframes[1]"].clip is None
    assert found["keyframes[2]"].sound is not None and found["keyframes[2]"].clip is not None


def test_a_guide_is_dragged(site: Site) -> None:
    site.way("First frame")
    site.upload("Add a guide", picture())
    guide = site.page.get_by_role("slider", name="Guide cat.png")
    guide.scroll_into_view_if_needed()
    box = guide.bounding_box()
    track = site.page.locator(".track").bounding_box()
    assert box is not None and track is not None
    site.page.mouse.move(box["x"] + 5, box["y"] + 5)
    site.page.mouse.down()
    site.page.mouse.move(box["x"] + 5 + track["width"] / 4, box["y"] + 5, steps=4)
    site.page.mouse.up()
    assert 90 <= int(guide.get_attribute("aria-valuenow") or 0) <= 96
    site.page.mouse.move(box["x"] - 200, box["y"] + 5)
    assert 90 <= int(guide.get_attribute("aria-valuenow") or 0) <= 96, "let go of, it stays"


@pytest.mark.parametrize(
    ("way", "task", "places"),
    [("Last frame", Task.L2VA, ["Last frame"]), ("First and last", Task.FL2VA, ["First frame", "Last frame"])],
)
def test_ends(site: Site, way: str, task: Task, places: list[str]) -> None:
    site.way(way)
    for place in places:
        site.upload(place, picture(f"{place}.png", "blue" if "Last" in place else "red"))
        expect(site.page.locator(".ends")).to_contain_text(f"{place}.png")
    for index, _ in enumerate(places, 1):
        site.page.get_by_role("button", name=f"Insert <Picture {index}>").click()
    site.small(22)
    job = site.generate()
    spec = site.spec(job)
    assert spec.task is task
    assert [guide.field for guide in spec.guides] == [place.lower().replace(" ", "_") for place in places]
    assert spec.prompt == "".join(f"<Picture {index}>" for index, _ in enumerate(places, 1))


def test_references_in_the_order_that_was_chosen(site: Site, media: Path) -> None:
    site.way("References")
    files = [picture(), picture("room.png", "purple")]
    site.upload("Add references", *files)
    rows = site.page.get_by_role("list", name="References").get_by_role("listitem")
    expect(rows).to_have_count(2)
    site.upload("Add references", media / "clip.mp4")
    expect(rows).to_have_count(3)
    site.upload("Add references", media / "voice.wav")
    expect(rows).to_have_count(4)
    expect(rows.nth(2).locator("code")).to_have_text(["<Video 1>", "<Audio 1>"])
    expect(rows.nth(3).locator("code")).to_have_text(["<Audio 2>"])
    rows.nth(2).get_by_label("Its sound").select_option("off")
    expect(rows.nth(3).locator("code")).to_have_text(["<Audio 1>"])
    rows.nth(2).get_by_label("From second").fill("0.5")
    site.page.get_by_role("button", name="Move room.png up").click()
    expect(rows.nth(0).locator("code")).to_have_text(["<Picture 1>"])
    expect(rows.nth(0)).to_contain_text("room.png")
    rows.nth(0).get_by_label("Size").select_option("max")
    site.write("See  and ")
    site.page.get_by_role("textbox", name="Prompt", exact=True).evaluate("area => area.setSelectionRange(4, 4)")
    site.page.get_by_role("button", name="Insert <Picture 1> into the prompt").click()
    site.page.get_by_role("textbox", name="Prompt", exact=True).press("End")
    site.page.get_by_role("button", name="Insert <Audio 1> into the prompt").click()
    site.small(22)
    job = site.generate()
    spec = site.spec(job)
    assert spec.task is Task.REF2VA
    assert spec.prompt == "See <Picture 1> and <Audio 1>"
    assert [(one.kind, one.sound is not None) for one in spec.references] == [
        ("image", False),
        ("image", False),
        ("video", False),
        ("audio", True),
    ]
    shown = [one.picture.sha256 for one in spec.references if one.picture is not None]
    assert shown == [digest(files[1]), digest(files[0])]
    asked = site.words(job)["references"]
    assert asked[0]["size"] == "max" and asked[2] == {
        "type": "video",
        "source": asked[2]["source"],
        "audio": "off",
        "start": 0.5,
    }


def test_an_edit_with_masks(site: Site, media: Path) -> None:
    site.way("Edit")
    mask = picture("mask.png", "white")
    site.upload("Source", media / "clip.mp4")
    expect(site.page.get_by_role("region", name="Edit")).to_contain_text("clip.mp4")
    site.upload("Picture mask", mask)
    site.page.get_by_role("button", name="Add span").click()
    span = site.page.get_by_role("group", name="Span 1")
    span.get_by_label("Start").fill("0")
    span.get_by_label("End").fill("0.5")
    span.get_by_label("Value").fill("1")
    site.page.get_by_label("As long as the source").check()
    site.write("Make it night")
    site.page.get_by_label("Shape").select_option("exact")
    site.page.get_by_label("Width", exact=True).fill("64")
    site.page.get_by_label("Height", exact=True).fill("64")
    job = site.generate()
    spec = site.spec(job)
    assert spec.frames == 56, "the longest legal length within 72 frames"
    assert spec.source is not None and spec.source.video_mask is not None
    assert [(one.start, one.end, one.value) for one in spec.source.audio_mask or ()] == [(0, 0.5, 1)]
    assert set(site.words(job)) == {"prompt", "source", "masks", "width", "height"}


def test_a_clip_goes_on(site: Site, media: Path) -> None:
    site.way("Continue")
    site.upload("Clip to continue", media / "clip.mp4")
    expect(site.page.get_by_role("region", name="Continue")).to_contain_text("clip.mp4")
    group = site.page.get_by_role("group", name="How much of its end")
    group.get_by_label("Frames").fill("5")
    group.get_by_label("Audio").uncheck()
    site.write("It goes on")
    site.small(22)
    job = site.generate()
    assert site.words(job)["continue_from"] == {"upload": "clip", "frames": 5, "audio": False}
    assert site.spec(job).guides[0].clip is not None


def test_a_finished_job_is_continued_and_edited(site: Site) -> None:
    site.write("The first part")
    site.small(22)
    first = site.generate()
    site.ends("succeeded").get_by_role("button", name="Continue this").click()
    expect(site.page.get_by_role("radio", name="Continue")).to_be_checked()
    site.page.get_by_role("group", name="How much of its end").get_by_label("Frames").fill("5")
    site.write("The second part")
    second = site.generate()
    assert site.words(second)["continue_from"] == {"job": first, "frames": 5}
    site.ends("succeeded").get_by_role("button", name="Use as source").click()
    site.write("Something else of it")
    site.small(22)
    third = site.generate()
    assert site.words(third)["source"] == {"job": second}


def test_pasted_and_dropped_files_find_their_place(site: Site) -> None:
    give = """([kind, where, bytes]) => {
        const data = new DataTransfer();
        data.items.add(new File([new Uint8Array(bytes)], `${kind}.png`, { type: "image/png" }));
        const event = kind === "paste"
            ? new ClipboardEvent("paste", { clipboardData: data, bubbles: true, cancelable: true })
            : new DragEvent("drop", { dataTransfer: data, bubbles: true, cancelable: true });
        document.querySelector(where).dispatchEvent(event);
    }"""
    bytes_ = list(picture()["buffer"])
    site.page.evaluate(give, ["paste", "body", bytes_])
    expect(site.page.get_by_role("radio", name="First frame")).to_be_checked()
    expect(site.page.locator(".ends")).to_contain_text("paste.png")
    site.page.evaluate(give, ["drop", ".track", bytes_])
    expect(site.page.get_by_role("list", name="Guides")).to_contain_text("drop.png")


def test_the_form_has_every_field_that_the_server_describes(site: Site) -> None:
    described = site.server.client.get("/openapi.json").json()["components"]["schemas"]
    own = {"prompt", "task", "first_frame", "last_frame", "continue_from", "keyframes", "references", "source", "masks"}
    own |= {"width", "height", "aspect_ratio", "short_edge", "frames", "seconds"}
    assert own <= set(described["Ref2vaBody"]["properties"]), "the page has parts for fields that are gone"
    labels = set(
        site.page.locator("#fields label, #fields legend, #fields [role=group]").evaluate_all(
            "nodes => nodes.map((node) => node.getAttribute('aria-label') || node.textContent.trim())"
        )
    )
    names = {"n": "Number of clips", "output": "File name", "callback_url": "Callback URL", "loras": "LoRAs"}
    for name in set(described["Ref2vaBody"]["properties"]) - own:
        assert names.get(name, name.replace("_", " ").capitalize()) in labels, name


def test_the_grid_is_the_servers(site: Site) -> None:
    wanted = [round(0.01 + 0.0173 * index, 4) for index in range(860)]
    told = site.page.evaluate(
        """async (wanted) => {
            const { framesFor, nearestFrames } = await import("/page/grid.js");
            const all = [...Array(400).keys()];
            return [wanted.map((seconds) => framesFor(seconds, 362)), all.map((count) => nearestFrames(count, 362))];
        }""",
        wanted,
    )
    assert told[0] == [geometry.frames_for_seconds(seconds) for seconds in wanted]
    for frames, nearest in enumerate(told[1]):
        assert nearest in geometry.legal_neighbours(frames, 362) or nearest == frames
