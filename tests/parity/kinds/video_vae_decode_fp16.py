"""Video VAE decode in fp16: the denormalised latents exactly, the rest within the file's own bound.

The recording machine had no oneDNN fp16 kernels, so they are switched off here. What then remains is how single sums of
the attention round on this CPU: nearly every value is bit-equal, and `tests/vae/test_video_fp16.py` counts them.

The bound is stated for frames. On the CPU the raw output keeps it too; on an accelerator it may move by what fp16 moves
raw output itself, which is nearly twice as much, since raw values lie around 0 and frames around 0.5.
"""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from h3runtime.vae.tiling import BlendRule
from tests.parity.fixture import Fixture, assert_close, assert_equal, rel_l2
from tests.parity.kinds.video_vae_decode import first_piece, load

RULES: dict[str | None, BlendRule] = {None: "blended", "blended": "blended", "raw": "raw"}


@contextmanager
def recorded_kernels() -> Iterator[None]:
    """PyTorch's own fp16 kernels on the CPU. The switch warns about a setting of Intel GPUs."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="TF32 acceleration on top of oneDNN")
        with torch.backends.mkldnn.flags(enabled=False):
            yield


def check(fixture: Fixture) -> None:
    vae = load(fixture, torch.float16)
    rule = RULES[fixture.meta.get("neighbours")]
    for index, case in enumerate(fixture.meta["cases"]):
        latents = fixture[f"in.{index}.latent"]
        expected = fixture.under(f"out.{index}.")
        measured = fixture.meta["measured"][f"{index}.fp16_run_vs_fp32_run"]
        bound = {"rel": 1.5 * measured["rel_l2"], "max_abs": 1.5 * measured["max_abs"]}
        with recorded_kernels():
            z = first_piece(vae, latents)
            piece = vae.decode_piece(z, rule)
            frames = torch.cat(list(vae.decode_chunks(latents, blend=rule)))
        assert_equal(f"{index}.z_fp16", z, expected.pop("z_fp16"))
        raw = expected.pop("raw_fp16")
        rel = bound["rel"] if fixture.device.type == "cpu" else 1.5 * raw_moved(fixture, latents, rule, raw)
        assert_close(f"{index}.raw_fp16", piece[:, :, : raw.shape[2]], raw, rel=rel)
        assert len(frames) == case["frames"]
        assert_close(f"{index}.frames_fp16", frames, expected.pop("frames_fp16"), **bound)
        assert not expected, f"outputs nobody looked at: {sorted(expected)}"


def raw_moved(fixture: Fixture, latents: torch.Tensor, rule: BlendRule, raw: torch.Tensor) -> float:
    """How far the recorded fp16 output is from our fp32 one of the same weights."""
    vae = load(fixture, torch.float32)
    piece = vae.decode_piece(first_piece(vae, latents), rule)
    return rel_l2(raw, piece[:, :, : raw.shape[2]].to(raw.device))
