"""The video VAE, decode and encode: `vae.py [--peer diffusers] [--frames F] [--sizes small] [--output R.json]`.

Random weights at the published sizes (`small`: a look without a GPU), random latents and pixels of one clip. In every
round each way runs once, so that all share what the machine does meanwhile. Prints a table and, with `--output`, writes
JSON. Does not judge, and times nothing before its result was compared.

    batched      tiles at once as the engine runs them: one by one on a CPU
    unbatched    one tile after another
    diffusers    with `--peer`: the same weights, tiles and dtype; both with its blend of raw neighbours
    ms           median of the runs, the least and the most beside it; device clock where there is one
    chunk ms     of 17 frames
    frames/s     over the median
    peak         bytes above the weights that PyTorch's allocator handed out; nothing on a CPU, which doesn't count them
    PSNR         of 8-bit RGB against the unbatched way (decode); of an encode the relative L2 of its latents
    ratio        the peer's median over this one's
"""

from __future__ import annotations

import argparse
import json
import math
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from types import MappingProxyType
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch

from benchmarks.attention import PEERS, Call, timed
from benchmarks.script import measured_here, positive
from h3runtime.checkpoint.synthetic.layouts import VideoVaeSizes, video_vae_shapes
from h3runtime.cli.report import print_error, say
from h3runtime.core import CHUNK_FRAMES
from h3runtime.engine import determinism
from h3runtime.engine.device import choose_device, tile_room
from h3runtime.errors import H3Error, Offence, invalid
from h3runtime.observe.cores import engine_threads
from h3runtime.vae.chunks import decoded_frames, encoded_latents
from h3runtime.vae.video_config import VideoVaeConfig
from h3runtime.vae.video_pixels import PIXEL_MEAN, PIXEL_STD, denormalise, to_bytes
from h3runtime.vae.video_statistics import LATENTS_MEAN, LATENTS_STD
from h3runtime.vae.video_vae import VideoVae


@dataclass(frozen=True, slots=True)
class Size:
    """Of a VAE that diffusers can build, too: the feed-forward is four times the width."""

    encoder: tuple[int, ...]
    layers: int
    heads: int
    head_dim: int

    @property
    def width(self) -> int:
        return self.heads * self.head_dim


SIZES: Final[Mapping[str, Size]] = MappingProxyType(
    {
        "published": Size((128, 256, 256, 512, 512, 1024), layers=36, heads=32, head_dim=64),
        "small": Size((32, 32, 32, 64, 32, 32), layers=2, heads=2, head_dim=32),
    }
)
PEER_NAMES: Final = (
    (r"down\.(\d+)\.block", r"down_blocks.\1.resnets"),
    (r"down\.(\d+)\.downsample", r"down_blocks.\1.downsamplers.0"),
    (r"nin_shortcut", "conv_shortcut"),
    (r"decoder\.x_embedder", "decoder.proj_in"),
    (r"attn\.to_out", "attn.to_out.0"),
    (r"ff\.w2", "ff.net.2"),
)
"""conditioning contract §4.3."""


@dataclass(frozen=True, slots=True)
class Row:
    """One way of one half. psnr: of a decode that isn't exact; error: of an encode; peak: where it is counted."""

    half: str
    name: str
    ms: float
    least_ms: float
    most_ms: float
    chunk_ms: float
    frames_per_second: float
    peak_bytes: int | None
    psnr: float | None
    error: float | None
    ratio: float | None = None


@dataclass(frozen=True, slots=True)
class Asked:
    sizes: str
    width: int
    height: int
    frames: int
    dtype: str
    runs: int
    peer: str | None


def main(arguments: Sequence[str] | None = None) -> int:
    given = _parser().parse_args(arguments)
    try:
        report = measure(_asked(given), given.device)
    except H3Error as error:
        print_error(error)
        return 1
    print(table(report))
    if given.output is not None:
        given.output.write_text(json.dumps(report, indent=2) + "\n")
        say(f"{given.output}: written")
    return 0


@torch.no_grad()
def measure(asked: Asked, device_name: str) -> dict[str, Any]:
    """The report, ready for JSON."""
    determinism.pin()
    place = choose_device(device_name)
    if place.device.type == "cpu":
        torch.set_num_threads(engine_threads())
    torch.manual_seed(0)
    size, dtype = SIZES[asked.sizes], getattr(torch, asked.dtype)
    vae = made_vae(size, dtype, place.device)
    peer = None if asked.peer is None else peer_of(vae, size, dtype)
    latents = torch.randn(
        1, 24, encoded_latents(asked.frames), asked.height // 16, asked.width // 16, device=place.device
    )
    pixels = torch.randint(0, 256, (asked.frames, asked.height, asked.width, 3), dtype=torch.uint8, device=place.device)
    halves = (decodes(vae, peer, latents), encodes(vae, peer, pixels))
    rows = [row for calls, judge, half in halves for row in _rows(half, calls, judge, asked, place.device)]
    return _report(asked, place.name, place.device, rows)


Way = Callable[[], torch.Tensor]
Judge = Callable[[torch.Tensor, torch.Tensor], float]


def decodes(vae: VideoVae, peer: Any, latents: torch.Tensor) -> tuple[dict[str, Way], Judge, str]:
    """Every way to bytes uint8 [F, H, W, 3]; how two of them compare."""
    mean, std = _per_channel(LATENTS_MEAN, latents), _per_channel(LATENTS_STD, latents)

    def ours(room: int) -> torch.Tensor:
        return torch.cat([to_bytes(part) for part in vae.decode_chunks(latents, blend="raw", room=room)])

    ways: dict[str, Way] = {"batched": lambda: ours(tile_room(latents.device)), "unbatched": lambda: ours(0)}
    if peer is not None:
        z = (latents * std + mean).to(vae.dtype)
        ways["diffusers"] = lambda: to_bytes(denormalise(peer.decode(z).sample))
    return ways, psnr, "decode"


def encodes(vae: VideoVae, peer: Any, pixels: torch.Tensor) -> tuple[dict[str, Way], Judge, str]:
    """Every way to normalised latents fp32 [1, C, T, h, w]; how two of them compare."""
    ways: dict[str, Way] = {
        "batched": lambda: vae.encode_clip(pixels, room=tile_room(pixels.device)),
        "unbatched": lambda: vae.encode_clip(pixels),
    }
    if peer is not None:
        ways["diffusers"] = lambda: _peer_latents(peer, pixels, vae.encode_dtype)
    return ways, error_of, "encode"


def _peer_latents(peer: Any, pixels: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    unit = pixels.permute(3, 0, 1, 2).unsqueeze(0).float() / 255
    given = (unit - _per_channel(PIXEL_MEAN, unit)) / _per_channel(PIXEL_STD, unit)
    mean: torch.Tensor = peer.encode(given.to(dtype)).latent_dist.mean.float()
    return (mean - _per_channel(LATENTS_MEAN, mean)) / _per_channel(LATENTS_STD, mean)


def _per_channel(values: Sequence[float], like: torch.Tensor) -> torch.Tensor:
    return torch.tensor(values, device=like.device).view(1, -1, 1, 1, 1)


def psnr(one: torch.Tensor, other: torch.Tensor) -> float:
    """dB of 8-bit RGB; infinite for the same bytes."""
    squares = sum(float((a.float() - b.float()).square().sum(dtype=torch.float64)) for a, b in zip(one, other))  # noqa: B905
    return math.inf if squares == 0 else 10 * math.log10(255**2 * one.numel() / squares)


def error_of(one: torch.Tensor, other: torch.Tensor) -> float:
    """Relative L2."""
    return float((one - other).norm() / other.norm())


def _rows(half: str, ways: dict[str, Way], judge: Judge, asked: Asked, device: torch.device) -> list[Row]:
    wanted = ways["unbatched"]()
    peaks, judged = {}, {}
    for name, way in ways.items():
        found, peaks[name] = _counted(way, device)
        if found.shape != wanted.shape:
            raise invalid([Offence("frames", f"{name} gives {list(found.shape)}", f"{list(wanted.shape)}")])
        judged[name] = judge(found, wanted)
        del found
    del wanted
    calls: dict[str, Call] = dict(ways)
    times = timed(calls, asked.runs, device)
    peer = median(times["diffusers"]) if "diffusers" in times else None
    return [_row(half, name, times[name], peaks[name], judged[name], asked, peer) for name in ways]


def _counted(way: Way, device: torch.device) -> tuple[torch.Tensor, int | None]:
    if device.type != "cuda":
        return way(), None
    before = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    return way(), torch.cuda.max_memory_allocated(device) - before


def _row(
    half: str, name: str, times: list[float], peak: int | None, judged: float, asked: Asked, peer: float | None
) -> Row:
    ms = median(times)
    frames = decoded_frames(encoded_latents(asked.frames)) if half == "decode" else asked.frames
    return Row(
        half=half,
        name=name,
        ms=ms,
        least_ms=min(times),
        most_ms=max(times),
        chunk_ms=ms / math.ceil(frames / CHUNK_FRAMES),
        frames_per_second=1e3 * frames / ms,
        peak_bytes=peak,
        psnr=judged if half == "decode" and math.isfinite(judged) else None,
        error=judged if half == "encode" else None,
        ratio=None if peer is None else peer / ms,
    )


def made_vae(size: Size, dtype: torch.dtype, device: torch.device) -> VideoVae:
    """Both halves, random weights of which every layer keeps its input's size; released statistics."""
    sizes = VideoVaeSizes(
        encoder_widths=size.encoder, width=size.width, inner=size.width, ffn=4 * size.width, layers=size.layers
    )
    shapes = {n: s for n, s in video_vae_shapes(sizes).items() if n not in ("latents_mean", "latents_std")}
    with torch.device("meta"):
        vae = VideoVae(VideoVaeConfig.from_shapes(shapes, {"vae_head_dim": size.head_dim}), dtype)
    vae.to_empty(device=device).to(dtype).requires_grad_(False)
    for name, parameter in vae.named_parameters():
        parameter.normal_()
        if parameter.ndim > 1:
            parameter.div_(parameter[0].numel() ** 0.5)
        elif name.endswith("bias"):
            parameter.mul_(0.1)
        else:
            parameter.mul_(0.1).add_(1)
    return vae


def peer_of(vae: VideoVae, size: Size, dtype: torch.dtype) -> Any:
    """diffusers' VAE with the same weights, tiled as it is by default."""
    import diffusers

    build: Any = diffusers.AutoencoderKLMiniMaxH3
    # Not on meta: it has buffers that no file fills.
    with next(vae.parameters()).device:
        peer = build(
            block_out_channels=size.encoder,
            layers_per_block=2,
            decoder_num_layers=size.layers,
            decoder_num_attention_heads=size.heads,
            decoder_attention_head_dim=size.head_dim,
        )
    peer.load_state_dict(peer_weights(vae.state_dict(), size), strict=True, assign=True)
    peer.enable_tiling()
    return peer.eval().requires_grad_(False).to(dtype)


def peer_weights(ours: Mapping[str, torch.Tensor], size: Size) -> dict[str, torch.Tensor]:
    """Under diffusers' names and in its order of rows (conditioning contract §4.3)."""
    theirs: dict[str, torch.Tensor] = {}
    for name, tensor in ours.items():
        if ".attn.to_qkv." in name:
            parts = tensor.reshape(size.heads, 3, size.head_dim, *tensor.shape[1:]).unbind(1)
            for part, rows in zip(("to_q", "to_k", "to_v"), parts, strict=True):
                theirs[name.replace("to_qkv", part)] = rows.flatten(0, 1).contiguous()
        elif ".ff.w1." in name:
            gate, value = tensor.chunk(2)
            theirs[name.replace("w1", "net.0.proj")] = torch.cat([value, gate])
        elif name != "decoder.mask_token":
            for pattern, new in PEER_NAMES:
                name = re.sub(pattern, new, name)
            theirs[name] = tensor
    return theirs


def table(report: dict[str, Any]) -> str:
    """For people, in Markdown."""
    head = ["half", "way", "ms", "least..most", "chunk ms", "frames/s", "peak MiB", "PSNR or error", "ratio"]
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for row in report["rows"]:
        peak = "" if row["peak_bytes"] is None else f"{row['peak_bytes'] / 2**20:.0f}"
        near = "same" if row["psnr"] is None else f"{row['psnr']:.1f} dB"
        cells = [row["half"], row["name"], f"{row['ms']:.1f}", f"{row['least_ms']:.1f}..{row['most_ms']:.1f}"]
        cells += [f"{row['chunk_ms']:.1f}", f"{row['frames_per_second']:.1f}", peak]
        cells += [near if row["error"] is None else f"{row['error']:.1e}"]
        lines.append("| " + " | ".join([*cells, "" if row["ratio"] is None else f"{row['ratio']:.2f}x"]) + " |")
    return "\n".join(lines)


def _report(asked: Asked, name: str, device: torch.device, rows: Sequence[Row]) -> dict[str, Any]:
    return {
        **measured_here(name, device),
        "asked": asdict(asked),
        "rows": [asdict(row) for row in rows],
    }


def _asked(given: argparse.Namespace) -> Asked:
    device = choose_device(given.device).device
    dtype = given.dtype or ("float32" if device.type == "cpu" else "float16")
    offences = [
        Offence(name, f"{side} pixels", "a multiple of 16 from 32 on")
        for name, side in (("width", given.width), ("height", given.height))
        if side < 32 or side % 16
    ]
    if given.frames < 22 or (given.frames - 5) % CHUNK_FRAMES:
        offences.append(Offence("frames", str(given.frames), "17 k + 5, 22 or more: what both decode and encode take"))
    if offences:
        raise invalid(offences)
    return Asked(given.sizes, given.width, given.height, given.frames, dtype, given.runs, given.peer)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="vae.py", description="Time the video VAE, decode and encode.")
    parser.add_argument("--width", type=int, default=1344, metavar="W", help="Default: 1344.")
    parser.add_argument("--height", type=int, default=768, metavar="H", help="Default: 768.")
    parser.add_argument("--frames", type=int, default=124, metavar="F", help="17 k + 5. Default: 124.")
    parser.add_argument("--sizes", choices=tuple(SIZES), default="published", help="Of the VAE. Default: published.")
    parser.add_argument("--dtype", choices=("float16", "float32"), help="Default: float16, on a CPU float32.")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda, cuda:N. Default: auto.")
    parser.add_argument("--runs", type=positive, default=3, metavar="N", help="Timed runs of each. Default: 3.")
    parser.add_argument("--peer", choices=PEERS, help="Time it in the same run and print ratios.")
    parser.add_argument("--output", type=Path, metavar="R.json", help="Also write JSON.")
    return parser


if __name__ == "__main__":
    sys.exit(main())
