"""A list of requests -> the specs of a chain, all judged before the first one runs.

Each entry becomes an ordinary request of its own number of frames, judged as any other, which continues a clip that
isn't made yet: of known size, length and sound. What is wrong is told under the entry's index: `[3].prompt`.

    frames of an entry's guides    count from its own beginning, after the overlap; -1 is its last frame before the cut
    last_frame                     lies there too, not at the end of what is cut off
    canvas                         the first entry's, for all
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from h3runtime.api.inputs.opened import OpenedClip
from h3runtime.api.judging.continuation import FIELD as CONTINUE_FROM
from h3runtime.cli.generation.judging import Ruling, rule_on, settled
from h3runtime.cli.generation.links import Wish, wish_of
from h3runtime.core import FPS, MIN_FRAMES, SAMPLE_RATE, AdapterUse, EngineFacts, GenerateSpec, GuideInput, MediaFile
from h3runtime.errors import BadMedia, InvalidRequest, Offence, invalid
from h3runtime.media.intake.examine import ClipMeasure, Measured, SoundMeasure
from h3runtime.media.sound import samples_for
from h3runtime.packing.cuts import Share, shares
from h3runtime.packing.cuts import share as share_of
from h3runtime.packing.geometry import Size, frames_at_most
from h3runtime.quality.shelf import Held
from h3runtime.settings import Settings

CANVAS = ("width", "height", "aspect_ratio", "short_edge")
HARD_CUT = 'none, or "continue_from": false for a hard cut'


@dataclass(frozen=True, slots=True)
class Planned:
    """One clip. guide: the file that its overlap is read from, None for a hard cut."""

    spec: GenerateSpec
    share: Share
    guide: Path | None
    ruling: Ruling

    def fitted(self, loras: tuple[AdapterUse, ...], facts: EngineFacts, held: Held) -> Planned:
        """With its adapters and what its quality level chooses, once an engine is there that knows them."""
        return replace(self, spec=settled(replace(self.spec, loras=loras), self.ruling, facts, held))


def plan_chain(
    requests: Sequence[Mapping[str, Any]], folder: Path, scratch: Path, settings: Settings
) -> tuple[Planned, ...]:
    """requests: raw. folder: where their relative paths begin. One `InvalidRequest` or `BadMedia` for all entries."""
    wishes, faults = [], _AllFaults()
    for index, request in enumerate(requests):
        wish, offences = wish_of(request, is_first=index == 0)
        wishes.append(wish)
        faults.add(index, offences)
    planner = _Planner(folder, scratch, settings, faults)
    ends = shares([wish.seconds for wish in wishes], [wish.overlap for wish in wishes])
    planned = [planner.plan(index, wish, share) for index, (wish, share) in enumerate(zip(wishes, ends, strict=True))]
    faults.raise_any()
    return tuple(planned)


class _AllFaults:
    """Offences of all entries, under their indices."""

    def __init__(self) -> None:
        self._offences: list[tuple[int, Offence]] = []
        self._is_all_media = True

    def add(self, index: int, offences: Sequence[Offence], *, is_media: bool = False) -> None:
        self._offences += [(index, Offence(f"[{index}].{o.field}", o.message, o.legal)) for o in offences]
        self._is_all_media = self._is_all_media and (is_media or not offences)

    def add_error(self, index: int, error: InvalidRequest) -> None:
        self.add(index, error.offences, is_media=isinstance(error, BadMedia))

    def raise_any(self) -> None:
        if self._offences:
            error = invalid(offence for _, offence in sorted(self._offences, key=lambda item: item[0]))
            raise BadMedia(error.message, error.offences) if self._is_all_media else error


class _Planner:
    """Plans one entry after another; the first one's canvas holds for the others."""

    def __init__(self, folder: Path, scratch: Path, settings: Settings, faults: _AllFaults) -> None:
        self._folder, self._scratch, self._settings, self._faults = folder, scratch, settings, faults
        self._size: Size | None = None
        self._clip_size: Size | None = None
        self._asked: dict[str, Any] = {}

    def plan(self, index: int, wish: Wish, share: Share) -> Planned:
        offences = _judge_share(wish, share, self._settings.max_frames)
        if share.length < 1:
            # The rest of it is judged as if it had one frame.
            share = share_of(share.start, share.start + 1, wish.overlap)
        raw = _as_request(wish, share, self._settings.max_frames, offences)
        guide = self._scratch / f"guide-{index:04}.mkv" if share.overlap else None
        ruling = self._rule(index, wish, share, self._with_canvas(raw), guide)
        ruling.faults.offences += offences
        self._judge_canvas(raw, ruling)
        guides = _placed(ruling.judged.guides, share)
        ruling.faults.offences += _clashes(guides)
        try:
            ruling.faults.raise_any()
        except InvalidRequest as error:
            self._faults.add_error(index, error)
        spec = ruling.spec(self._scratch / f"clip-{index:04}.mp4", self._scratch)
        return Planned(replace(spec, guides=guides), share, guide, ruling)

    def _rule(self, index: int, wish: Wish, share: Share, raw: dict[str, Any], guide: Path | None) -> Ruling:
        copies = self._scratch / f"inputs-{index:04}"
        if guide is None:
            return rule_on(raw, self._folder, copies, self._settings)
        # A still is judged as the shortest clip; `_placed` makes it one frame.
        frames = max(share.overlap, MIN_FRAMES)
        raw[CONTINUE_FROM] = {"path": str(guide), "frames": frames, "audio": wish.audio}
        continued = _to_be_made(guide, self._clip_size or Size(1, 1), frames)
        return rule_on(raw, self._folder, copies, self._settings, continued)

    def _with_canvas(self, raw: Mapping[str, Any]) -> dict[str, Any]:
        """With the chain's canvas, where an entry says nothing of its own."""
        asked = {name: raw[name] for name in CANVAS if raw.get(name) is not None}
        if self._size is None:
            self._asked = asked
            return dict(raw)
        if asked and asked != self._asked:
            return dict(raw)
        rest = {name: value for name, value in raw.items() if name not in CANVAS}
        return rest | {"width": self._size.width, "height": self._size.height}

    def _judge_canvas(self, raw: Mapping[str, Any], ruling: Ruling) -> None:
        size, clip_size = ruling.judged.resolved.size, ruling.judged.resolved.clip_size
        if self._size is None:
            self._size, self._clip_size = size, clip_size
        elif size != self._size and not ruling.faults.offences:
            field = next((name for name in CANVAS if raw.get(name) is not None), "width")
            told = f"means {size.width}x{size.height}, and the chain's canvas is the first entry's"
            legal = f"{self._size.width}x{self._size.height}, or leave it out"
            ruling.faults.offences.append(Offence(field, told, legal))
        elif clip_size != self._clip_size and not ruling.faults.offences:
            told = f"makes a clip of {clip_size.width}x{clip_size.height}, unlike the first entry's"
            ruling.faults.offences.append(Offence("refine", told, "the first entry's scale, or its absence"))


def _as_request(wish: Wish, share: Share, max_frames: int, offences: list[Offence]) -> dict[str, Any]:
    """The entry as a request of its own frames; what of it doesn't go with its place in the chain is an offence."""
    raw = dict(wish.request)
    if share.overlap:
        strangers = [name for name in ("first_frame", "source") if raw.pop(name, None) is not None]
        told = "stands where the end of the clip before is continued"
        offences += [Offence(name, told, HARD_CUT) for name in strangers]
        if "source" in strangers:
            raw.pop("masks", None)
    if isinstance(raw.get("keyframes"), list):
        raw["keyframes"] = [_shifted(index, item, share, offences) for index, item in enumerate(raw["keyframes"])]
    longest = frames_at_most(max_frames) or MIN_FRAMES
    return raw | {"frames": min(share.frames, longest)}


def _judge_share(wish: Wish, share: Share, max_frames: int) -> list[Offence]:
    if share.length < 1:
        return [Offence(wish.field, "no frame lies between its cuts", f"at least {1 / FPS:.3f} s")]
    longest = (frames_at_most(max_frames) or MIN_FRAMES) - share.overlap
    if share.length <= longest:
        return []
    overlap = f" and an overlap of {share.overlap}" if share.overlap else ""
    told = f"{share.length} frames{overlap} are more than this machine may make at once"
    return [Offence(wish.field, told, f"at most {longest} frames, {longest / FPS:.3f} s")]


def _shifted(index: int, keyframe: Any, share: Share, offences: list[Offence]) -> Any:
    """A keyframe of the entry as one of its clip."""
    frame = keyframe.get("frame") if isinstance(keyframe, dict) else None
    if isinstance(frame, bool) or not isinstance(frame, int):
        return keyframe
    if not -share.length <= frame < share.length:
        told = f"{frame} is outside the {share.length} frames of the clip"
        offences.append(Offence(f"keyframes[{index}].frame", told, f"{-share.length}..{share.length - 1}"))
    return {**keyframe, "frame": share.overlap + frame % share.length}


def _placed(guides: tuple[GuideInput, ...], share: Share) -> tuple[GuideInput, ...]:
    """The last frame to the last one before the cut, and a continuation of one frame to what it is."""
    placed = []
    for guide in guides:
        if guide.field == "last_frame":
            guide = replace(guide, frame=share.overlap + share.length - 1)
        if guide.field == CONTINUE_FROM and guide.clip is not None and share.overlap == 1:
            guide = replace(guide, clip=replace(guide.clip, frames=1), sound=None)
        placed.append(guide)
    return tuple(placed)


def _clashes(guides: tuple[GuideInput, ...]) -> list[Offence]:
    """Guides where the last frame has been put: the rules have judged them where it was."""
    last = next((guide.frame for guide in guides if guide.field == "last_frame"), None)
    others = [guide.field for guide in guides if guide.frame == last and guide.field != "last_frame"]
    return [Offence(name, "is where last_frame is too", "one guide a frame") for name in others]


def _to_be_made(path: Path, size: Size, frames: int) -> OpenedClip:
    """What the chain will have written there by then."""
    samples = samples_for(frames)
    clip = ClipMeasure(size.width, size.height, 0, FPS, frames, frames, frames / FPS)
    sound = SoundMeasure(SAMPLE_RATE, 2, samples, samples / SAMPLE_RATE)
    return OpenedClip(MediaFile(path, CONTINUE_FROM), Measured(clip, sound))
