"""What a run keeps from step to step, counted tensor by tensor in its last block, beside what the formulas say."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from h3runtime.core import Latents, SamplerSettings, SegmentKind, StepReuse, TextFeatures
from h3runtime.denoiser.denoise import denoise
from h3runtime.denoiser.masks import Masks
from h3runtime.engine.demand import _kept
from h3runtime.engine.memory_formulas import MASK_COPIES, Computing, Steps, sampling_bytes
from h3runtime.packing.layout import pack
from tests.denoiser import tiny
from tests.engine.test_block_memory import Alive

LAYOUT = pack(7, 32, 32, 40, np.ones(9, dtype=np.int64))
VIDEO, AUDIO = (1, 6, 7, 32, 32), (1, 8, 2, 40)
VALUES = int(np.prod(VIDEO) + np.prod(AUDIO))
ROWS = tuple((segment.kind, segment.stop - segment.start) for segment in LAYOUT.segments)
HOW = Computing(torch.bfloat16, adaln_decoded=False, on_host=True)
STEPS = 5


def alive_in_the_last_block(reuse: StepReuse | None, masks: Masks | None = None) -> int:
    """Bytes, of the last step."""
    model, text = tiny.dit(), TextFeatures(tiny.noise(1, LAYOUT.text_rows, 24, seed=2), LAYOUT.text_tags)
    seen: list[int] = []
    with torch.no_grad(), Alive() as alive:
        model.blocks[-1].register_forward_pre_hook(lambda *_: seen.append(alive.now))
        named: dict[str, Any] = {"device": torch.device("cpu"), "dtype": torch.bfloat16, "reuse": reuse, "masks": masks}
        denoise(model, LAYOUT, text, [], [], SamplerSettings(STEPS, seed=3), **named)
    assert len(seen) == STEPS
    return seen[-1]


def estimated(reuse: StepReuse | None, *, masked: bool = False) -> int:
    steps = Steps(LAYOUT.rows, LAYOUT.text_rows, VALUES, STEPS, 2, ahead=not masked, **_kept(reuse, VALUES, ROWS))
    return sampling_bytes(tiny.CONFIG, HOW, steps)


@pytest.mark.parametrize(
    "reuse",
    [
        StepReuse("easycache", 0.0, 0.0, 1.0),
        StepReuse("easycache", 0.0, 0.0, 1.0, forecast="hold"),
        StepReuse("h3_cache", 0.0, 0.0, 1.0, subsample=2, forecast="delta"),
        StepReuse("first_block", 0.0, 0.0, 1.0),
        StepReuse("first_block", 0.0, 0.0, 1.0, subsample=2),
    ],
    ids=lambda reuse: f"{reuse.mode} {reuse.forecast} {reuse.subsample}",
)
def test_reuse_keeps_what_is_estimated(reuse: StepReuse) -> None:
    kept = alive_in_the_last_block(reuse) - alive_in_the_last_block(None)
    assert (estimated(reuse) - estimated(None)) / kept == pytest.approx(1, abs=0.05)


def test_masks_keep_what_is_estimated() -> None:
    content = Latents(tiny.noise(*VIDEO, seed=8), tiny.noise(*AUDIO, seed=9))
    masks = Masks(content, None, torch.zeros(1, 1, 2, AUDIO[-1]))
    before = sum(part.nbytes for part in (content.video, content.audio))
    kept = alive_in_the_last_block(None, masks) - alive_in_the_last_block(None) + before
    assert 4 * MASK_COPIES * VALUES / kept == pytest.approx(1, abs=0.05)


def test_the_target_s_rows_alone_are_kept_of_what_blocks_make() -> None:
    target = sum(rows for kind, rows in ROWS if kind in (SegmentKind.VIDEO, SegmentKind.AUDIO))
    kept = _kept(StepReuse("first_block", 0.1), VALUES, ROWS)
    assert kept == {"kept_rows": target, "compared_rows": -(-target // 8)} and target < LAYOUT.rows
