"""Clips of new captions in few forwards, with and without the pairs, beside many forwards of the teacher: judged.

The same captions and noise for each way. Batches through the training's own forward; through the runtime's engine and
its adapters the same is measured by `tests/nano/training/test_turbo_judged.py`. Judging is plain code on a CPU, which
takes longer than sampling on a GPU: processes of their own do it. Fed by `command`; a table in words.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from multiprocessing import get_context
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

from h3runtime.core import SAMPLE_RATE
from h3runtime.denoiser.dit import Dit
from h3runtime.media.log_mel import LogMelDistance
from h3runtime.nano.judge import Verdict, judge, score, ssim
from h3runtime.nano.training.audio_vae import decode_sounds
from h3runtime.nano.training.clips import Size
from h3runtime.nano.training.joint import attention
from h3runtime.nano.training.lectern import Batch
from h3runtime.nano.training.looking import asked
from h3runtime.nano.training.text import encode_batch
from h3runtime.nano.training.transformer import audio_latent, unpatchify
from h3runtime.nano.training.turbo.landing import Asked, Pair
from h3runtime.nano.training.turbo.schedule import FORWARDS, bases
from h3runtime.nano.training.turbo.student import Student
from h3runtime.nano.training.turbo.teacher import Teacher
from h3runtime.nano.training.video_vae import decode_clips
from h3runtime.nano.world import Scene, Split

MANY: Final = 20
"""Forwards of the clips that few are held against."""
AT_ONCE: Final = 16
PIXELS_AT_ONCE: Final = 40_000_000
SEED: Final = 4096
EVERY: Final = 4
"""Of so many frames one is compared."""


@dataclass(frozen=True, slots=True)
class Way:
    forwards: int
    adapted: bool = False

    @property
    def name(self) -> str:
        return f"{self.forwards} forwards" + (" with the adapter" if self.adapted else "")


def ways_of(forwards: Sequence[int]) -> tuple[Way, ...]:
    """Many forwards, then each number without the adapter and with it."""
    return Way(MANY), *(Way(count, adapted) for count in forwards for adapted in (False, True))


WAYS: Final = ways_of([FORWARDS])


@dataclass(frozen=True, slots=True)
class Row:
    """share: of all judged items; whole: of clips of which all is right; items: share of each. video_l2, audio_l2:
    relative distance of the latents from those of the first way, ssim: of their frames, log_mel: of their sounds, in
    dB; means over the clips."""

    name: str
    clips: int
    share: float
    whole: float
    items: dict[str, float]
    video_l2: float
    audio_l2: float
    ssim: float
    log_mel: float


@torch.no_grad()
def compared(
    teacher: Teacher,
    student: Student,
    size: Size,
    dtype: torch.dtype,
    ways: Sequence[Way] = WAYS,
    split: Split = "any",
    judges: Executor | None = None,
) -> list[Row]:
    """`size.clips` clips of each way, the first of which the others are held against. The student's pairs as they are
    now. judges: of `judging_in`; None for this process."""
    found: dict[Way, list[Future[_Found]]] = {way: [] for way in ways}
    judges = judges or _Here()
    student.merge()
    for start in range(0, size.clips, at_once(size, size.clips)):
        part = replace(size, clips=at_once(size, size.clips - start))
        batch = asked(student, teacher.vocabulary, part, split, SEED + start)
        noise = _noise(batch, SEED + start)
        clips = [_made(teacher, _dit(teacher, student, way), batch, noise, way.forwards, dtype) for way in ways]
        for way, own in zip(ways, clips, strict=True):
            found[way] += [judges.submit(_judged, *pair) for pair in zip(own, clips[0], strict=True)]
    return [_row(way.name, [one.result() for one in judged]) for way, judged in found.items()]


def told(rows: Sequence[Row]) -> Iterator[str]:
    """Lines of a table."""
    many = rows[0]
    for row in rows:
        apart = f"latents apart {row.video_l2:.4f} {row.audio_l2:.4f}, SSIM {row.ssim:.4f}, sound {row.log_mel:.2f} dB"
        part = (
            f"{row.share:.1%} of the items ({row.share / max(many.share, 1e-9):.1%} of many's), {row.whole:.1%} whole"
        )
        yield f"{row.name}: {part}; {apart}"


def table(rows: Sequence[Row]) -> list[dict[str, object]]:
    return [asdict(row) for row in rows]


@dataclass(frozen=True, slots=True, eq=False)
class _Clip:
    """What is judged, and its normalised latents, fp32."""

    scene: Scene
    frames: NDArray[np.uint8]
    sound: NDArray[np.float32]
    video: NDArray[np.float32]
    audio: NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class _Found:
    verdict: Verdict
    video_l2: float
    audio_l2: float
    ssim: float
    log_mel: float


class _Here(Executor):
    """Runs everything where it is asked for."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        done: Future[Any] = Future()
        done.set_result(fn(*args, **kwargs))
        return done


def judging_in(workers: int) -> Executor:
    """So many processes, or this one; a context that ends them."""
    return ProcessPoolExecutor(workers, mp_context=get_context("spawn")) if workers else _Here()


def at_once(size: Size, clips: int) -> int:
    """Of so many clips."""
    return min(clips, max(1, min(AT_ONCE, PIXELS_AT_ONCE // (size.width * size.height * size.frames))))


def _dit(teacher: Teacher, student: Student, way: Way) -> Dit:
    return student.dit if way.adapted else teacher.dit


def _noise(batch: Batch, seed: int) -> Pair:
    """The same on every device."""
    generator = torch.Generator().manual_seed(seed)
    device = batch.video.device
    audio = torch.randn(batch.audio.shape, generator=generator).to(device)
    return audio, torch.randn(batch.video.shape, generator=generator).to(device)


def _made(teacher: Teacher, dit: Dit, batch: Batch, noise: Pair, forwards: int, dtype: torch.dtype) -> list[_Clip]:
    device = dit.device
    with attention(device), torch.autocast(device.type, dtype, enabled=dtype is not torch.float32):
        ends = Asked.of(dit, encode_batch(teacher.encoder, batch.text), batch).walked(noise, bases(forwards))
    audio, video = audio_latent(ends[0]), unpatchify(ends[1], *batch.bucket.shelf.video.shape[2:])
    frames, sounds = decode_clips(teacher.video_vae, video), decode_sounds(teacher.audio_vae, audio)
    arrays = (made.cpu().numpy() for made in (frames, sounds, video, audio))
    return [_Clip(scene, *own) for (_, scene), *own in zip(batch.asked(), *arrays, strict=True)]


def _judged(clip: _Clip, many: _Clip) -> _Found:
    sounds = LogMelDistance(SAMPLE_RATE)
    sounds.feed(many.sound, clip.sound)
    seen = [ssim(a, b) for a, b in zip(many.frames[::EVERY], clip.frames[::EVERY], strict=True)]
    return _Found(
        judge(clip.scene, clip.frames, clip.sound),
        _apart(clip.video, many.video),
        _apart(clip.audio, many.audio),
        float(np.mean(seen)),
        sounds.finish(),
    )


def _row(name: str, found: Sequence[_Found]) -> Row:
    items = {item: share for item, (share, count) in score(one.verdict for one in found).items() if count}
    verdicts = [[value for value in one.verdict.values() if value is not None] for one in found]
    means = [float(np.mean([getattr(one, f) for one in found])) for f in ("video_l2", "audio_l2", "ssim", "log_mel")]
    share = float(np.mean([value for verdict in verdicts for value in verdict]))
    return Row(name, len(found), share, float(np.mean([all(verdict) for verdict in verdicts])), items, *means)


def _apart(a: NDArray[np.float32], b: NDArray[np.float32]) -> float:
    return float(np.linalg.norm(a - b) / np.linalg.norm(b))
