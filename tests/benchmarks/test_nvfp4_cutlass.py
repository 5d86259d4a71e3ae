"""What the CUTLASS library's answers are held against, without the library."""

from __future__ import annotations

import pytest
import torch
from h3_kernels import cuda_compiler

from benchmarks.nvfp4_cutlass import main, stored_offsets


@pytest.mark.parametrize(("rows", "blocks"), [(1, 2), (129, 10), (300, 336)])
def test_offsets_are_those_of_the_format(rows: int, blocks: int) -> None:
    """checkpoint-formats §3, beyond 16 bits of offset too."""
    r, c = torch.arange(rows)[:, None], torch.arange(blocks)[None]
    across = -(-blocks // 4)
    wanted = ((r // 128) * across + c // 4) * 512 + r % 32 * 16 + r % 128 // 32 * 4 + c % 4
    assert torch.equal(stored_offsets(rows, blocks), wanted)


def test_without_headers_it_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cuda_compiler, "why_cannot_compile", lambda *_: "headers aren't installed: `pip install x`")
    assert main(["--arch", "121a"]) == 1
    assert "pip install x" in capsys.readouterr().err
