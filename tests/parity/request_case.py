"""A recorded layout as the request that leads to it: JSON as `POST /generate` takes it, and what its media measure.

The recorded cases are toys. A canvas, a length, guides and most references can be asked for all the same; a sound of
five latents can't, since references last 2 s at least. So the rules' own objection to that is let pass, and no other.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from h3runtime.api.inputs.opened import Inputs, OpenedClip, OpenedPicture, OpenedSound
from h3runtime.api.judging.clip import judge_clip
from h3runtime.api.judging.spec import spec_of
from h3runtime.api.request import read_body
from h3runtime.core import FPS, SAMPLE_RATE, SAMPLES_PER_LATENT, GenerateSpec, MediaFile
from h3runtime.media.intake.examine import ClipMeasure, Measured, SoundMeasure
from h3runtime.packing import geometry
from h3runtime.packing.geometry import Size

NOWHERE = Path("/nowhere")
ROOM = {"max_area": 8192 * 8192, "max_frames": 10_000}


@dataclass
class Asked:
    """json: the request. sounds: latents of each guide's and reference's sound, by field. short: references that last
    less than the rules allow."""

    json: dict[str, Any] = field(default_factory=dict)
    pictures: dict[str, OpenedPicture] = field(default_factory=dict)
    clips: dict[str, OpenedClip] = field(default_factory=dict)
    opened_sounds: dict[str, OpenedSound] = field(default_factory=dict)
    sounds: dict[str, int] = field(default_factory=dict)
    short: set[str] = field(default_factory=set)

    def picture(self, name: str, width: int, height: int) -> dict[str, str]:
        self.pictures[name] = OpenedPicture(MediaFile(NOWHERE / name, name), Size(width, height))
        return {"path": name}

    def clip(self, name: str, frames: int, width: int, height: int, sound: int = 0) -> dict[str, str]:
        measure = ClipMeasure(width, height, 0, FPS, frames, frames, frames / FPS)
        file = MediaFile(NOWHERE / name, name)
        self.clips[name] = OpenedClip(file, Measured(measure, heard(sound) if sound else None))
        return {"path": name}

    def sound(self, name: str, latents: int) -> dict[str, str]:
        self.opened_sounds[name] = OpenedSound(MediaFile(NOWHERE / name, name), Measured(None, heard(latents)))
        return {"path": name}

    def spec(self) -> GenerateSpec:
        """Read, judged and resolved as a server does it."""
        read = read_body({"prompt": "-", **self.json})
        assert not read.offences, read.offences
        judged = judge_clip(read, Inputs(self.pictures, self.clips, self.opened_sounds), **ROOM)
        refused = {offence.field: offence.message for offence in judged.verdict.offences}
        assert set(refused) == self.short, refused
        return spec_of(read.body, judged, job_id="x", output=NOWHERE, scratch=NOWHERE, words=self.json)


def heard(latents: int) -> SoundMeasure:
    samples = latents * SAMPLES_PER_LATENT
    return SoundMeasure(SAMPLE_RATE, 2, samples, samples / SAMPLE_RATE)


def asked_for(size: dict[str, int], payload: dict[str, Any], *, ends: bool) -> Asked | None:
    """size: T, latent_h, latent_w, A. None if no request leads there. ends: still guides at both ends are `first_frame`
    and `last_frame` where their order allows it; else all are `keyframes`."""
    frames = geometry.pixel_frames(size["T"])
    width, height = 16 * size["latent_w"], 16 * size["latent_h"]
    if size["T"] % 5 != 2 or size["A"] != geometry.audio_latents(frames) or width % 32 or height % 32:
        return None
    if min(width, height) < 64:
        return None
    asked = Asked({"width": width, "height": height, "frames": frames})
    guides = list(payload["keyframes"])
    if ends:
        guides = _take_ends(asked, guides, frames, width, height)
    if any(not _fits(guide, frames) for guide in guides):
        return None
    if guides:
        asked.json["keyframes"] = [_keyframe(asked, i, guide, width, height) for i, guide in enumerate(guides)]
    if payload["refs"]:
        asked.json["references"] = [
            _reference(asked, i, recorded, frames) for i, recorded in enumerate(payload["refs"])
        ]
    return asked


def _take_ends(
    asked: Asked, guides: list[dict[str, Any]], frames: int, width: int, height: int
) -> list[dict[str, Any]]:
    """In the packed sequence the first frame comes first, then the last, then keyframes."""
    for name, frame in (("first_frame", 0), ("last_frame", frames - 1)):
        if guides and guides[0]["resolved_frame_index"] == frame and _is_still(guides[0]):
            asked.json[name] = asked.picture(name, width, height)
            guides = guides[1:]
    return guides


def _is_still(guide: dict[str, Any]) -> bool:
    return "audio_latent" not in guide and "latent" in guide and guide["latent"][2] == 1


def _fits(guide: dict[str, Any], frames: int) -> bool:
    """Whether its latents are a guide's at all: 1 or 5k+2 in time, and no more sound than fits behind it."""
    latents, sounds = guide.get("latent", [0, 0, 1])[2], guide.get("audio_latent", [0])[-1]
    room = geometry.guide_audio_latents(sounds, geometry.audio_latents(frames), guide["resolved_frame_index"])
    return (latents == 1 or latents % 5 == 2) and sounds == room


def _keyframe(asked: Asked, index: int, guide: dict[str, Any], width: int, height: int) -> dict[str, Any]:
    at, frame = f"keyframes[{index}]", guide["resolved_frame_index"]
    made: dict[str, Any] = {"frame": frame}
    latents = guide["latent"][2] if "latent" in guide else 0
    if latents == 1:
        made["image"] = asked.picture(f"{at}.image", width, height)
    elif latents:
        made["video"] = asked.clip(f"{at}.video", geometry.pixel_frames(latents), width, height)
    if "audio_latent" in guide:
        asked.sounds[at] = guide["audio_latent"][-1]
        made["audio"] = asked.sound(f"{at}.audio", asked.sounds[at])
    return made


def _reference(asked: Asked, index: int, recorded: dict[str, Any], frames: int) -> dict[str, Any]:
    """A clip is as long as its latents, or longer where the target cuts it to them anyway. A soundtrack is its own."""
    at, source = f"references[{index}]", f"references[{index}].source"
    sounds = recorded.get("ref_audio_t", 0)
    if sounds:
        asked.sounds[at] = sounds
    if recorded["kind"] == "audio":
        if sounds < 80:
            asked.short.add(source)
        return {"type": "audio", "source": asked.sound(source, sounds)}
    width, height = 16 * recorded["latent_w"], 16 * recorded["latent_h"]
    if recorded["kind"] == "image":
        return {"type": "image", "source": asked.picture(source, width, height), "size": "max"}
    own = geometry.pixel_frames(recorded["latent_t"])
    shown = max(own, 2 * FPS) if own == frames else own
    if shown < 2 * FPS:
        asked.short.add(source)
    return {"type": "video", "source": asked.clip(source, shown, width, height, sounds)}


def cases_of(meta: dict[str, Any], shapes: dict[str, tuple[int, ...]]) -> Iterator[tuple[str, dict[str, int], Any]]:
    """(name, size, payload) of each recorded layout in a file: many in `positions_and_tags`, one in a DiT's."""
    if "cases" in meta:
        for name, case in meta["cases"].items():
            yield name, case["geometry"], case["payload"]
    elif "payload" in meta:
        video = next(s for name, s in shapes.items() if name in ("in.video", "in.noise_video"))
        audio = next(s for name, s in shapes.items() if name in ("in.audio", "in.noise_audio"))
        yield "", {"T": video[2], "latent_h": video[3], "latent_w": video[4], "A": audio[3]}, meta["payload"]
