"""Whether a clip is what its scene says, by plain code: the judge of h3-nano.

    frames, samples -> `seeing.look`, `hearing.listen` (neither knows the scene) -> compared item by item

    colour, shape, direction   every actor has an object of its colour, shape, motion; the pairing is the best one
    count, floor               as many objects as actors, and the floor's colour
    position                   the object is at the place that the caption says; None where it says none
    presence                   there is sound, or silence where silence is asked for
    pitch                      the pitches of the actors' shapes and no others
    rhythm                     every tone's envelope is its motion's; plucks follow each other in the world's tempo
    pan                        every tone is heard where its object is seen
    sync                       impacts and onsets, or appearance and onset, are at most two frames apart, one to one
    timbre                     of a lone tone: the scene's (`pure` is what a caption means that says none)

An item is None where there is nothing to judge: pitch, rhythm, pan, sync and timbre of a scene in silence, sync of a
scene where nothing bounces or appears, timbre of two tones, presence and rhythm of a bounce too short to land. Nobody
can see an impact on the first or last frames, so neither an impact nor an onset is asked for within `BLIND` of the
clip's ends. With a wrong picture the sound is judged by what is seen, as a viewer would.

A caption doesn't tell everything: where something bounces from, when, or how far it moves is anyone's choice. `exact`
judges these too, for clips that must repeat their scene (rendered, or coded and decoded): position is the whole path,
rhythm the times within 60 ms and pan the scene's own.

Fed by the benchmarks, the training's log and the tests with decoded frames and samples; `ssim` and `objects_match` are
here for them too.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import permutations
from typing import Final

import numpy as np
from numpy.typing import NDArray

from h3runtime.core import FPS
from h3runtime.media.similarity import ssim as ssim
from h3runtime.nano.hearing import Sounds, Tone, listen
from h3runtime.nano.seeing import Sight, Sights, look
from h3runtime.nano.seeing import objects_match as objects_match
from h3runtime.nano.world import PLACES, Actor, Scene, Track, track

Verdict = dict[str, bool | None]

ITEMS: Final = (
    "colour",
    "shape",
    "direction",
    "position",
    "count",
    "floor",
    "pitch",
    "rhythm",
    "pan",
    "sync",
    "presence",
    "timbre",
)
ENVELOPES: Final = {"bounce": "plucks", "appear": "begins", "grow": "rising", "shrink": "falling"}
"""By motion; all others are steady."""
PATH_TOLERANCE: Final = 0.05
"""Mean distance from the scene's path, in shares of the canvas."""
PAN_TOLERANCE: Final = 0.08
"""Mean distance from where the object is, in shares of the width."""
RHYTHM_SECONDS: Final = 0.06
SYNC_SECONDS: Final = 2 / FPS
BLIND: Final = 2 / FPS
"""Seconds at both ends of a clip in which an impact may be missed."""
TEMPO: Final = (8 / FPS, 18 / FPS)
"""Seconds from pluck to pluck; the world's are 10 to 16 frames."""


def judge(scene: Scene, frames: NDArray[np.uint8], samples: NDArray[np.float32], *, exact: bool = False) -> Verdict:
    """One clip, uint8 [F, H, W, 3] and float32 [2, N] at 32 kHz, against its scene: True, False or None per item."""
    count, height, width, _ = frames.shape
    tracks = [track(actor, count, height / min(height, width)) for actor in scene.actors]
    return compare(scene, tracks, look(frames), listen(samples, count), exact=exact)


def compare(scene: Scene, tracks: Sequence[Track], seen: Sights, heard: Sounds, *, exact: bool = False) -> Verdict:
    """A scene and its actors' tracks against what was seen and heard."""
    partners = _partners(scene.actors, seen.objects)
    cast = list(zip(scene.actors, tracks, partners, strict=True))
    verdict: Verdict = dict.fromkeys(ITEMS)
    verdict["colour"] = all(sight is not None and sight.colour == actor.colour for actor, _, sight in cast)
    verdict["shape"] = all(sight is not None and sight.shape == actor.shape for actor, _, sight in cast)
    verdict["direction"] = all(sight is not None and sight.motion == actor.motion for actor, _, sight in cast)
    verdict["position"] = _position(scene, tracks, partners, exact)
    verdict["count"] = seen.count == len(scene.actors)
    verdict["floor"] = seen.floor == scene.floor
    return verdict | _sound(scene, tracks, partners, heard, exact)


def score(verdicts: Iterable[Verdict]) -> dict[str, tuple[float, int]]:
    """Per item the share of True among the clips where it is not None, and their number (share 0 of none)."""
    columns: dict[str, list[bool]] = {item: [] for item in ITEMS}
    for verdict in verdicts:
        for item, value in verdict.items():
            if value is not None:
                columns[item].append(value)
    return {item: (sum(column) / max(1, len(column)), len(column)) for item, column in columns.items()}


def _partners(actors: Sequence[Actor], objects: Sequence[Sight]) -> tuple[Sight | None, ...]:
    """An object for each actor, so that as much as possible agrees; None where there are too few."""
    padded: list[Sight | None] = [*objects, *[None] * max(0, len(actors) - len(objects))]
    return max(permutations(padded, len(actors)), key=lambda some: sum(map(_agreement, actors, some)))


def _agreement(actor: Actor, sight: Sight | None) -> float:
    if sight is None:
        return 0.0
    near = 1 - abs(float(np.nanmean(sight.x)) - actor.x)
    agree = (sight.colour == actor.colour) + (sight.shape == actor.shape) + (sight.motion == actor.motion)
    return agree + 0.1 * near


def _position(scene: Scene, tracks: Sequence[Track], partners: Sequence[Sight | None], exact: bool) -> bool | None:
    if exact:
        return all(
            sight is not None and _way_off(sight, seen) < PATH_TOLERANCE
            for seen, sight in zip(tracks, partners, strict=True)
        )
    if scene.place is None:
        return None
    if partners[0] is None:
        return False
    x = float(np.nanmean(partners[0].x))
    return min(PLACES, key=lambda place: abs(PLACES[place] - x)) == scene.place


def _way_off(sight: Sight, truth: Track) -> float:
    """Mean distance of the seen path from the true one, over the frames where it is seen."""
    return float(np.nanmean(np.hypot(sight.x - truth.x, sight.y - truth.y)))


def _sound(
    scene: Scene, tracks: Sequence[Track], partners: Sequence[Sight | None], heard: Sounds, exact: bool
) -> Verdict:
    frames = len(tracks[0].x)
    audible = any(actor.motion != "bounce" or seen.impacts for actor, seen in zip(scene.actors, tracks, strict=True))
    if not scene.sound:
        return {"presence": not heard.present}
    if not audible:
        return {}
    tones = _tones(scene.actors, heard)
    cast = list(zip(scene.actors, tracks, partners, tones, strict=True))
    synced = [_synced(a.motion, sight, tone, frames) for a, _, sight, tone in cast if a.motion in ("bounce", "appear")]
    return {
        "presence": heard.present,
        "pitch": {tone.shape for tone in heard.tones} == {actor.shape for actor in scene.actors},
        "rhythm": all(_in_rhythm(actor, seen, tone, exact) for actor, seen, _, tone in cast),
        "pan": all(_panned(seen if exact else sight, tone) for _, seen, sight, tone in cast),
        "sync": all(synced) if synced else None,
        "timbre": heard.timbre == scene.timbre if len(scene.actors) == 1 else None,
    }


def _tones(actors: Sequence[Actor], heard: Sounds) -> list[Tone | None]:
    """Each actor's tone: the one of its shape, else one that is nobody's, so that a wrong pitch is one mistake."""
    own = {tone.shape: tone for tone in heard.tones}
    stray = [tone for tone in heard.tones if tone.shape not in {actor.shape for actor in actors}]
    return [own.get(actor.shape) or (stray.pop(0) if stray else None) for actor in actors]


def _in_rhythm(actor: Actor, truth: Track, tone: Tone | None, exact: bool) -> bool:
    frames = len(truth.x)
    if actor.motion == "bounce" and not truth.impacts:
        return True
    if tone is None or tone.envelope != ENVELOPES.get(actor.motion, "steady"):
        return False
    if exact and actor.motion in ("bounce", "appear"):
        begins = (float(np.argmax(truth.visible)) / FPS,)
        return _one_to_one(truth.impacts or begins, tone.onsets, frames, RHYTHM_SECONDS)
    gaps = np.diff(tone.onsets) if actor.motion == "bounce" else np.zeros(0)
    return bool(((gaps > TEMPO[0]) & (gaps < TEMPO[1])).all())


def _panned(place: Track | Sight | None, tone: Tone | None) -> bool:
    """Whether a tone is heard where something is, weighed by the tone's level."""
    if place is None or tone is None:
        return False
    x = place.x
    known = ~np.isnan(x) & ~np.isnan(tone.x)
    if not known.any():
        return False
    return float(np.average(np.abs(x - tone.x)[known], weights=tone.level[known])) < PAN_TOLERANCE


def _synced(motion: str, sight: Sight | None, tone: Tone | None, frames: int) -> bool:
    if sight is None or tone is None:
        return False
    if motion == "appear":
        seen = float(np.flatnonzero(~np.isnan(sight.x))[0]) / FPS
        return bool(tone.onsets) and abs(tone.onsets[0] - seen) <= SYNC_SECONDS
    return bool(sight.impacts) and _one_to_one(sight.impacts, tone.onsets, frames, SYNC_SECONDS)


def _one_to_one(wanted: Sequence[float], found: Sequence[float], frames: int, tolerance: float) -> bool:
    """Whether each time that must be met has a partner and no other is there, the clip's blind ends apart."""
    end = (frames - 1) / FPS

    def all_met(some: Sequence[float], by: Sequence[float]) -> bool:
        due = [t for t in some if BLIND < t < end - BLIND]
        return all(any(abs(t - other) <= tolerance for other in by) for t in due)

    return all_met(wanted, found) and all_met(found, wanted)
