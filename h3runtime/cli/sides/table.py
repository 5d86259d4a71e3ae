"""A comparison of two sides as lines for a person: who was compared, how far apart step by step, where in the network,
and how far the clips are. The same figures as the JSON, fewer digits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

SHOWN_BLOCKS: Final = 5
SHOWN_PARTS: Final = 3


def table_of(facts: Mapping[str, Any]) -> str:
    """`facts` are the report's."""
    return "\n".join(_lines(facts))


def _lines(facts: Mapping[str, Any]) -> Iterator[str]:
    request = facts["request"]
    shape = f"{request['width']}x{request['height']}, {request['frames']} frames"
    yield f"{request['prompt']!r}, {shape}, seed {request['seed']}"
    for name in "ab":
        side = facts[name]
        steps = f"{side['forwards']} forwards" + (
            f", {spared} steps reused" if (spared := side["skipped_steps"]) else ""
        )
        ran = f"{steps}, {side['linear']}, {side['attention']}, {side['timings']['total']:.2f} s"
        yield f"  {name.upper()}  {side['words']}  ({ran})"
    yield f"engines: {facts['engines']}, {facts['why']}"
    if facts["identical"]:
        yield "identical: no step, no block, no picture and no sample differs"
        return
    yield from _steps(facts["steps"])
    yield from _blocks(facts)
    yield from _clips(facts)


def _steps(steps: Mapping[str, Any]) -> Iterator[str]:
    yield ""
    paired = "" if steps["pairing"] == "step" else " (steps paired by the nearest sigma)"
    yield f"estimate of the clean latents at each step{paired}"
    yield _row("step", "sigma", "video L2", "cosine", "max", "audio L2", "cosine", "max")
    for point in steps["denoised"]:
        name = f"{point['a']}" if point["a"] == point["b"] else f"{point['a']} / {point['b']}"
        reused = "".join(f"   {side} reused" for side in "ab" if point[f"reused_{side}"])
        yield _row(name, f"{point['sigma_a']:.4f}", *_pair(point)) + reused
    yield _row("final", "0", *_pair(steps["final"]))


def _pair(point: Mapping[str, Any]) -> Iterator[str]:
    for stream in ("video", "audio"):
        yield from (_number(point[stream][key]) for key in ("rel_l2", "cosine", "max"))


def _blocks(facts: Mapping[str, Any]) -> Iterator[str]:
    yield ""
    if facts["why_no_blocks"]:
        yield f"blocks are not compared: {facts['why_no_blocks']}"
        return
    for step in facts["blocks"]:
        entering = _number(step["entering"]["rel_l2"])
        differ = [block for block in step["blocks"] if not block["identical"] or block["worst_part"]]
        told = f"blocks at step {step['step']}, relative L2 on A's own input; before them {entering}"
        yield told if differ else f"blocks at step {step['step']}: none adds anything; before them {entering}"
        for block in sorted(differ, key=lambda block: -(block["rel_l2"] or 0.0))[:SHOWN_BLOCKS]:
            parts = sorted(block["parts"].items(), key=lambda part: -(part[1]["rel_l2"] or 0.0))[:SHOWN_PARTS]
            told = ", ".join(f"{name} {_number(part['rel_l2'])}" for name, part in parts if not part["identical"])
            yield f"  block {block['block']:<4}{_number(block['rel_l2']):>12}    {told}"
    if not facts["blocks"]:
        yield "blocks are not compared: --blocks-at none"


def _clips(facts: Mapping[str, Any]) -> Iterator[str]:
    video, audio = facts["video"], facts["audio"]
    yield ""
    yield f"pictures: SSIM {video['ssim']:.4f}, PSNR {_number(video['psnr'], 'inf')} dB"
    for point in video["worst"]:
        psnr = _number(point["psnr"], "inf")
        yield f"  frame {point['frame']:>4}  {point['seconds']:7.3f} s   SSIM {point['ssim']:.4f}, PSNR {psnr} dB"
    yield f"sound: log-mel distance {_number(audio['log_mel_db'])} dB"
    worst = sorted(audio["per_span"], key=lambda span: -span["log_mel_db"])[:SHOWN_PARTS]
    yield from (
        f"  from {span['seconds']:7.3f} s   {span['log_mel_db']:.3f} dB" for span in worst if span["log_mel_db"]
    )
    yield ""
    yield from (f"  {name}" for name in facts["files"])


def _number(value: float | None, absent: str = "-") -> str:
    return absent if value is None else f"{value:.4g}"


def _row(*cells: str) -> str:
    first, *others = cells
    return (f"{first:<10}" + "".join(f"{cell:>11}" for cell in others)).rstrip()
