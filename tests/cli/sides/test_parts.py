"""Where two small transformers part: in the very block and part that was changed, and nowhere else."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from h3runtime.backends.attention.base import AttentionBackend, Place
from h3runtime.backends.attention.sdpa import SdpaAttention
from h3runtime.cli.sides.attribution import StepBlocks, Walker, compared, runs_of, why_unlike
from h3runtime.cli.sides.parts import PARTS, agreement_of
from h3runtime.cli.sides.spool import read_runs, write_runs
from h3runtime.core import PackedLayout, SamplerSettings, TextFeatures
from h3runtime.denoiser.denoise import begin
from h3runtime.denoiser.dit import Dit
from h3runtime.media.agreement import Agreement
from tests.denoiser import tiny
from tests.parity.dit_case import build

LAYERS = len(tiny.dit().blocks)


class Louder:
    """Attention in one block 3 % larger than it is."""

    name, grade = "louder", "experimental"

    def attend(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, layout: PackedLayout | None, step: int
    ) -> torch.Tensor:
        return self.attend_at(q, k, v, layout=layout, step=step, place=None)

    def attend_at(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        *,
        layout: PackedLayout | None,
        step: int,
        place: Place | None,
    ) -> torch.Tensor:
        out = SdpaAttention().attend(q, k, v, layout=layout, step=step)
        return out * 1.03 if place is not None and place.block == 1 else out


def side(*changed: str, attention: AttentionBackend | None = None) -> tuple[Walker, torch.Tensor]:
    """A walk of the tiny model, some of its weights 5 % larger, and x before its first step."""
    weights, packed = tiny.weights(), tiny.layout()
    network = build(weights | {name: weights[name] * 1.05 for name in changed}, torch.bfloat16, tiny.CONFIG)
    text = TextFeatures(tiny.noise(1, packed.text_rows, network.config.text_dim, seed=2), packed.text_tags)
    settings = SamplerSettings(steps=3, seed=7)
    estimate, x = begin(
        network,
        packed,
        text,
        *tiny.conditions(packed),
        settings,
        device=torch.device("cpu"),
        dtype=torch.bfloat16,
        attention=attention,
    )

    @contextmanager
    def active() -> Iterator[Dit]:
        yield network

    return Walker(network, estimate, active, (0, 1, 2)), x


def compare(*changed: str, attention: AttentionBackend | None = None) -> StepBlocks:
    first, x = side()
    second, _ = side(*changed, attention=attention)
    return compared(second, 1, x, runs_of(first, 1, x), lambda: None)


def test_the_same_twice_is_no_difference_anywhere() -> None:
    found = compare()
    assert len(found.blocks) == LAYERS and found.worst is None and found.entering.identical
    for block in found.blocks:
        assert block.whole.identical and block.worst is None and tuple(block.parts) == PARTS
        assert all(
            (sums.largest, sums.squared, sums.rel_l2, sums.cosine) == (0, 0, 0, 1) for sums in block.parts.values()
        )


@pytest.mark.parametrize("index", range(LAYERS))
@pytest.mark.parametrize(
    ("part", "name"),
    [
        ("qkv", "attn.qkv_proj.weight"),
        ("rope", "attn.q_norm.weight"),
        ("out", "attn.out_proj.weight"),
        ("norm2", "norm2.weight"),
        ("fc1", "mlp.fc1.weight"),
        ("fc2", "mlp.fc2.weight"),
        ("modulation", "adaln_proj.linear.weight"),
    ],
)
def test_a_change_is_found_in_its_block_and_part(index: int, part: str, name: str) -> None:
    found = compare(f"blocks.{index}.{name}")
    assert found.worst == index and found.blocks[index].worst == part and found.entering.identical
    changed = {p for p, sums in found.blocks[index].parts.items() if not sums.identical}
    assert changed == {part}
    assert all(block.whole.identical and block.worst is None for i, block in enumerate(found.blocks) if i != index)
    if part in ("fc1", "fc2", "out", "qkv"):
        assert found.blocks[index].parts[part].rel_l2 == pytest.approx(0.05, abs=0.01)


def test_a_backend_that_differs_in_one_block_is_found_there() -> None:
    found = compare(attention=Louder())
    changed = [{p for p, sums in block.parts.items() if not sums.identical} for block in found.blocks]
    assert (found.worst, changed) == (1, [set(), {"attention"}])
    assert found.blocks[1].parts["attention"].rel_l2 == pytest.approx(0.03, abs=0.003)


def test_what_comes_before_the_blocks_is_told_apart() -> None:
    found = compare("video_patch_proj.weight")
    assert not found.entering.identical and found.worst is None


def test_blocks_in_files_are_what_they_were(tmp_path: Path) -> None:
    first, x = side()
    second, _ = side("blocks.1.mlp.fc1.weight")
    write_runs(tmp_path / "0", runs_of(first, 0, x))
    assert len(list((tmp_path / "0").iterdir())) == LAYERS
    spooled = compared(second, 0, x, read_runs(tmp_path / "0"), lambda: None)
    assert spooled == compared(second, 0, x, runs_of(first, 0, x), lambda: None)
    assert list((tmp_path / "0").iterdir()) == []


def test_other_sizes_are_told() -> None:
    assert why_unlike(tiny.CONFIG, tiny.CONFIG) is None and why_unlike(tiny.CONFIG, tiny.CURVE) is None
    assert why_unlike(tiny.CONFIG, replace(tiny.CONFIG, layers=3, ffn=80)) == (
        "the transformers have other sizes: layers 2 and 3, ffn 40 and 80"
    )


def test_sums_of_tensors_are_those_of_arrays() -> None:
    a, b = tiny.noise(3, 5, 7, seed=1), tiny.noise(3, 5, 7, seed=2)
    found = agreement_of(a.bfloat16(), b.bfloat16())
    wanted = Agreement.of(a.bfloat16().float().numpy(), b.bfloat16().float().numpy())
    assert found.count == wanted.count and found.largest == wanted.largest
    figures = found.rel_l2, found.cosine, found.mean
    assert figures == pytest.approx((wanted.rel_l2, wanted.cosine, wanted.mean), rel=1e-12)
