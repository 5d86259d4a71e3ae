"""Clips of new captions in few forwards, with and without the pairs, beside many forwards of the teacher: judged.

The same captions and noise for each. Batches through the training's own forward; through the runtime's engine and its
adapters the same is measured by `tests/nano/training/test_turbo_judged.py`. Fed by `command`; a table in words.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from h3runtime.nano.judge import Verdict, judge, score, ssim
from h3runtime.nano.training.audio_vae import decode_sounds
from h3runtime.nano.training.clips import Size
from h3runtime.nano.training.lectern import Batch
from h3runtime.nano.training.looking import asked
from h3runtime.nano.training.text import encode_batch
from h3runtime.nano.training.transformer import audio_latent, unpatchify
from h3runtime.nano.training.turbo.landing import Asked, Pair
from h3runtime.nano.training.turbo.schedule import FORWARDS, bases
from h3runtime.nano.training.turbo.student import Student
from h3runtime.nano.training.turbo.teacher import Teacher
from h3runtime.nano.training.video_vae import decode_clips

MANY = 20
"""Forwards of the clips that few are held against."""
AT_ONCE = 16
SEED = 4096


@dataclass(frozen=True, slots=True)
class Row:
    """share: of all judged items; whole: of clips of which all is right; items: share of each. video_l2, audio_l2:
    relative distance of the latents from those of many forwards, ssim: of their frames."""

    name: str
    share: float
    whole: float
    items: dict[str, float]
    video_l2: float
    audio_l2: float
    ssim: float


@torch.no_grad()
def compared(teacher: Teacher, student: Student, size: Size, dtype: torch.dtype) -> list[Row]:
    """`size.clips` clips of each kind, those of many forwards first. The student's pairs as they are now."""
    ways = (
        (f"{MANY} forwards", teacher.dit, MANY),
        (f"{FORWARDS} forwards without the adapter", teacher.dit, FORWARDS),
        (f"{FORWARDS} forwards with the adapter", student.dit, FORWARDS),
    )
    made: dict[str, list[_Made]] = {label: [] for label, _, _ in ways}
    student.merge()
    for start in range(0, size.clips, AT_ONCE):
        count = min(AT_ONCE, size.clips - start)
        batch = asked(
            student, teacher.vocabulary, Size(size.width, size.height, size.frames, count), "any", SEED + start
        )
        noise = _noise(batch, SEED + start)
        for label, dit, forwards in ways:
            with torch.autocast(student.dit.device.type, dtype, enabled=dtype is not torch.float32):
                walk = Asked.of(dit, encode_batch(teacher.encoder, batch.text), batch)
                ends = walk.walked(noise, bases(forwards))
            made[label] += _decoded(teacher, batch, ends)
    first = next(iter(made.values()))
    return [_row(label, clips, first) for label, clips in made.items()]


def told(rows: Sequence[Row]) -> Iterator[str]:
    """Lines of a table."""
    many = rows[0]
    for row in rows:
        apart = f"latents apart {row.video_l2:.3f} {row.audio_l2:.3f}, SSIM {row.ssim:.3f}"
        part = (
            f"{row.share:.1%} of the items ({row.share / max(many.share, 1e-9):.1%} of many's), {row.whole:.1%} whole"
        )
        yield f"{row.name}: {part}; {apart}"


def table(rows: Sequence[Row]) -> list[dict[str, object]]:
    return [asdict(row) for row in rows]


@dataclass(frozen=True, slots=True, eq=False)
class _Made:
    verdict: Verdict
    frames: NDArray[np.uint8]
    video: torch.Tensor
    audio: torch.Tensor


def _noise(batch: Batch, seed: int) -> Pair:
    """The same on every device."""
    generator = torch.Generator().manual_seed(seed)
    device = batch.video.device
    audio = torch.randn(batch.audio.shape, generator=generator).to(device)
    return audio, torch.randn(batch.video.shape, generator=generator).to(device)


def _decoded(teacher: Teacher, batch: Batch, ends: Pair) -> list[_Made]:
    t, h, w = batch.bucket.shelf.video.shape[2:]
    audio, video = audio_latent(ends[0]), unpatchify(ends[1], t, h, w)
    frames = decode_clips(teacher.video_vae, video).cpu().numpy()
    sounds = decode_sounds(teacher.audio_vae, audio).cpu().numpy()
    clips = zip(batch.asked(), frames, sounds, video, audio, strict=True)
    return [_Made(judge(scene, seen, heard), seen, v, a) for (_, scene), seen, heard, v, a in clips]


def _row(name: str, clips: Sequence[_Made], many: Sequence[_Made]) -> Row:
    items = {item: share for item, (share, count) in score(clip.verdict for clip in clips).items() if count}
    verdicts = [[value for value in clip.verdict.values() if value is not None] for clip in clips]
    pairs = list(zip(clips, many, strict=True))
    seen = [ssim(a.frames[i], b.frames[i]) for a, b in pairs for i in range(0, len(a.frames), 7)]
    return Row(
        name,
        float(np.mean([value for verdict in verdicts for value in verdict])),
        float(np.mean([all(verdict) for verdict in verdicts])),
        items,
        _apart([(a.video, b.video) for a, b in pairs]),
        _apart([(a.audio, b.audio) for a, b in pairs]),
        float(np.mean(seen)),
    )


def _apart(pairs: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> float:
    return float(np.mean([float((a - b).norm() / b.norm()) for a, b in pairs]))
