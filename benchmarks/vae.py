"""The video VAE, decode and encode: `vae.py [--peer diffusers] [--frames F] [--sizes small] [--output R.json]`.

Random weights at the published sizes (`small`: a look without a GPU), random latents and pixels of one clip. Every way
first runs on the shortest clip of that size, where it is compared with `unbatched`; then once in every round, so that
all share what the machine does meanwhile. `unbatched` runs in the first round alone. Prints every run as it ends and a
table; with `--output`, writes JSON after every round of a half. Does not judge. At the published size on an H200 a
round of decodes takes some 25 s, one of encodes 30 s; `--ways fused,diffusers` and `--encode-runs 1` make it shorter.

    fused        tiles at once and the steps between products in one pass each (`--vae-fused triton`), if they can run
    fp8          as `fused`, the linears of the decoder's blocks in FP8 (`--vae-linear fp8`); decode alone
    batched      tiles at once as the engine runs them, one by one on a CPU; plain PyTorch
    unbatched    one tile after another, plain PyTorch: the definition
    diffusers    with `--peer`: the same weights and tiles, both with its blend of raw neighbours; in that dtype as its
                 own loading leaves it, with norms, scales and the encoder in fp32, or all of it with `--peer-cast`. It
                 runs under PyTorch's own switches, not the engine's, which allow no nondeterministic convolution
    ms           median of the runs, the least and the most beside it; device clock where there is one
    chunk ms     of 17 frames
    frames/s     over the median
    peak         bytes above the weights that PyTorch's allocator handed out; nothing on a CPU, which doesn't count them
    PSNR         of 8-bit RGB against the unbatched way (decode), of an encode the relative L2 of its latents; both of
                 the shortest clip
    ratio        the peer's median over this one's
"""

from __future__ import annotations

import argparse
import json
import math
import re
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from types import MappingProxyType
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
from torch import nn

from benchmarks.attention import PEERS
from benchmarks.script import measured_here, names, positive
from h3runtime.backends.cnn.select import steps_named
from h3runtime.backends.linear.base import install
from h3runtime.backends.linear.fp8 import Fp8Linear
from h3runtime.backends.vit.select import choose_steps
from h3runtime.backends.vit.triton import TritonSteps
from h3runtime.checkpoint.synthetic.layouts import VideoVaeSizes, video_vae_shapes
from h3runtime.cli.report import print_error, say
from h3runtime.core import CHUNK_FRAMES
from h3runtime.engine import determinism
from h3runtime.engine.device import choose_device, tile_room
from h3runtime.errors import H3Error, Offence, invalid
from h3runtime.observe.cores import engine_threads
from h3runtime.quant.stored import PlainWeight
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
HALVES: Final = ("decode", "encode")
WAYS: Final = ("unbatched", "batched", "fused", "fp8", "diffusers")
SHORTEST: Final = 22
"""Frames of the clip that warms up: one piece of a decode, two of an encode."""


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
    encode_runs: int
    peer: str | None
    peer_cast: bool
    ways: tuple[str, ...]
    halves: tuple[str, ...]


def main(arguments: Sequence[str] | None = None) -> int:
    given = _parser().parse_args(arguments)
    try:
        report = measure(_asked(given), given.device, given.output)
    except H3Error as error:
        print_error(error)
        return 1
    print(table(report))
    if given.output is not None:
        say(f"{given.output}: written")
    return 0


@torch.no_grad()
def measure(asked: Asked, device_name: str, output: Path | None = None) -> dict[str, Any]:
    """The report, ready for JSON; `output` is written after every round."""
    determinism.pin()
    place = choose_device(device_name)
    device = place.device
    if device.type == "cpu":
        torch.set_num_threads(engine_threads())
    torch.manual_seed(0)
    size, dtype = SIZES[asked.sizes], getattr(torch, asked.dtype)
    vae = made_vae(size, dtype, device)
    peer = None if asked.peer is None else peer_of(vae, size, dtype, cast=asked.peer_cast)
    coded = in_fp8(vae) if "fp8" in asked.ways and _multiplies_fp8(device) else None
    say(f"made the VAE{'' if peer is None else ' and the peer of it'}")
    latents = torch.randn(1, 24, encoded_latents(asked.frames), asked.height // 16, asked.width // 16, device=device)
    pixels = torch.randint(0, 256, (asked.frames, asked.height, asked.width, 3), dtype=torch.uint8, device=device)
    halves = []
    if "decode" in asked.halves:
        halves.append(Half("decode", decodes(vae, peer, latents, coded), asked.ways, asked.runs))
        halves[-1].compare(decodes(vae, peer, latents[:, :, : encoded_latents(SHORTEST)], coded)[0])
    if "encode" in asked.halves:
        halves.append(Half("encode", encodes(vae, peer, pixels), asked.ways, asked.encode_runs))
        halves[-1].compare(encodes(vae, peer, pixels[:SHORTEST])[0])
    report: dict[str, Any] = {}
    for number, half in ((n, half) for n in range(1, 1 + max(asked.runs, asked.encode_runs)) for half in halves):
        if number > half.runs:
            continue
        half.time(number, device)
        report = _report(asked, place.name, device, [row for part in halves for row in part.rows(asked)])
        if output is not None:
            output.write_text(json.dumps(report, indent=2) + "\n")
    return report


Way = Callable[[], torch.Tensor]
Judge = Callable[[torch.Tensor, torch.Tensor], float]


def decodes(
    vae: VideoVae, peer: Any, latents: torch.Tensor, coded: VideoVae | None = None
) -> tuple[dict[str, Way], Judge, str]:
    """Every way to bytes uint8 [F, H, W, 3]; how two of them compare. coded: `in_fp8`."""
    mean, std = _per_channel(LATENTS_MEAN, latents), _per_channel(LATENTS_STD, latents)

    def ours(name: str, room: int, by: VideoVae = vae) -> torch.Tensor:
        _use(by, name)
        return torch.cat([to_bytes(part) for part in by.decode_chunks(latents, blend="raw", room=room)])

    ways = _our_ways(ours, latents.device)
    if coded is not None:
        ways["fp8"] = lambda: ours("triton", tile_room(latents.device), coded)
    if peer is not None:
        z = (latents * std + mean).to(vae.dtype)
        ways["diffusers"] = lambda: _by_peer(lambda: to_bytes(denormalise(peer.decode(z).sample)))
    return ways, psnr, "decode"


def encodes(vae: VideoVae, peer: Any, pixels: torch.Tensor) -> tuple[dict[str, Way], Judge, str]:
    """Every way to normalised latents fp32 [1, C, T, h, w]; how two of them compare."""

    def ours(name: str, room: int) -> torch.Tensor:
        _use(vae, name)
        return vae.encode_clip(pixels, room=room)

    ways = _our_ways(ours, pixels.device)
    if peer is not None:
        ways["diffusers"] = lambda: _by_peer(lambda: _peer_latents(peer, pixels, vae.encode_dtype))
    return ways, error_of, "encode"


def _our_ways(ours: Callable[[str, int], torch.Tensor], device: torch.device) -> dict[str, Way]:
    """`ours` takes a family's name and the room that tiles may take together."""
    room = tile_room(device)
    ways: dict[str, Way] = {"unbatched": lambda: ours("torch", 0), "batched": lambda: ours("torch", room)}
    if TritonSteps().why_unavailable(device) is None:
        ways["fused"] = lambda: ours("triton", room)
    return ways


def _use(vae: VideoVae, name: str) -> None:
    steps, _ = choose_steps(name, next(vae.parameters()).device)
    vae.take_steps(steps, steps_named(name))


def _by_peer(way: Way) -> torch.Tensor:
    """The peer's call as a program without the engine's switches makes it."""
    with torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=False, allow_tf32=True):
        return way()


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


@dataclass(slots=True)
class Measured:
    """One way so far. judged: against the unbatched result, of the shortest clip."""

    times: list[float] = field(default_factory=list)
    peak: int | None = None
    judged: float = math.nan


class Half:
    """Decode or encode: its ways and what was found of each. ways: as `decodes` gives them; names: of those asked for;
    runs: rounds."""

    def __init__(self, name: str, given: tuple[dict[str, Way], Judge, str], names: Sequence[str], runs: int) -> None:
        every, self._judge, _ = given
        self.name, self.runs = name, runs
        self._ways = {name: way for name, way in every.items() if name in names}
        self._found = {name: Measured() for name in self._ways}

    def compare(self, short: Mapping[str, Way]) -> None:
        """short: the same ways of the shortest clip."""
        wanted = short["unbatched"]()
        for name, found in self._found.items():
            made = short[name]()
            if made.shape != wanted.shape:
                raise invalid([Offence("frames", f"{name} gives {list(made.shape)}", f"{list(wanted.shape)}")])
            found.judged = self._judge(made, wanted)
            print(f"{self.name} {name}: compared, {found.judged:.3g}", flush=True)

    def time(self, number: int, device: torch.device) -> None:
        """Round `number`, from 1 on."""
        for name, way in self._ways.items():
            if name != "unbatched" or number == 1:
                _timed(way, self._found[name], device)
                print(f"{self.name} {name} {number}: {self._found[name].times[-1]:.1f} ms", flush=True)

    def rows(self, asked: Asked) -> list[Row]:
        """Of every way that ran."""
        peer = self._found.get("diffusers")
        base = median(peer.times) if peer is not None and peer.times else None
        return [_row(self.name, name, one, asked, base) for name, one in self._found.items() if one.times]


def _timed(way: Way, into: Measured, device: torch.device) -> None:
    if device.type != "cuda":
        begun = time.perf_counter()
        way()
        into.times.append(1e3 * (time.perf_counter() - begun))
        return
    before = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    start.record()
    way()
    end.record()
    torch.cuda.synchronize(device)
    into.times.append(float(start.elapsed_time(end)))
    into.peak = max(into.peak or 0, torch.cuda.max_memory_allocated(device) - before)


def _row(half: str, name: str, found: Measured, asked: Asked, peer: float | None) -> Row:
    ms, judged = median(found.times), found.judged
    frames = decoded_frames(encoded_latents(asked.frames)) if half == "decode" else asked.frames
    return Row(
        half=half,
        name=name,
        ms=ms,
        least_ms=min(found.times),
        most_ms=max(found.times),
        chunk_ms=ms / math.ceil(frames / CHUNK_FRAMES),
        frames_per_second=1e3 * frames / ms,
        peak_bytes=found.peak,
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


def _multiplies_fp8(device: torch.device) -> bool:
    return not TritonSteps().why_unavailable(device) and not Fp8Linear().why_unavailable(device)


def in_fp8(vae: VideoVae) -> VideoVae:
    """The same VAE, of the same tensors but for the linears of the decoder's blocks."""
    with torch.device("meta"):
        coded = VideoVae(vae.config, vae.dtype, vae.tiling)
    coded.load_state_dict(vae.state_dict(), assign=True)
    assert coded.decoder is not None
    blocks, device = coded.decoder.transformer_blocks, next(vae.parameters()).device
    for name, linear in list(blocks.named_modules()):
        if isinstance(linear, nn.Linear):
            install(blocks, name, Fp8Linear(), PlainWeight(linear.weight.data, linear.bias.data), device)
    return coded


def peer_of(vae: VideoVae, size: Size, dtype: torch.dtype, *, cast: bool = False) -> Any:
    """diffusers' VAE with the same weights, tiled as it is by default, as `from_pretrained(torch_dtype=dtype)` leaves
    it. cast: all of it in that dtype, which it warns of."""
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
    kept = set() if cast else set(peer._keep_in_fp32_modules)
    for name, parameter in peer.named_parameters():
        parameter.data = parameter.data.to(torch.float32 if kept & set(name.split(".")) else dtype)
    return peer.eval().requires_grad_(False)


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
    strange = [name for name in given.ways if name not in WAYS]
    if not given.halves or set(given.halves) - set(HALVES):
        offences.append(Offence("halves", ", ".join(given.halves), f"some of {', '.join(HALVES)}"))
    if strange or not given.ways:
        offences.append(Offence("ways", ", ".join(given.ways), f"some of {', '.join(WAYS)}"))
    if offences:
        raise invalid(offences)
    return Asked(
        given.sizes,
        given.width,
        given.height,
        given.frames,
        dtype,
        given.runs,
        given.encode_runs or given.runs,
        given.peer,
        given.peer_cast,
        given.ways,
        given.halves,
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="vae.py", description="Time the video VAE, decode and encode.")
    parser.add_argument("--width", type=int, default=1344, metavar="W", help="Default: 1344.")
    parser.add_argument("--height", type=int, default=768, metavar="H", help="Default: 768.")
    parser.add_argument("--frames", type=int, default=124, metavar="F", help="17 k + 5. Default: 124.")
    parser.add_argument("--sizes", choices=tuple(SIZES), default="published", help="Of the VAE. Default: published.")
    parser.add_argument("--dtype", choices=("float16", "float32"), help="Default: float16, on a CPU float32.")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda, cuda:N. Default: auto.")
    parser.add_argument("--runs", type=positive, default=3, metavar="N", help="Timed runs of each. Default: 3.")
    parser.add_argument("--encode-runs", type=positive, metavar="N", help="Timed runs of encodes. Default: as --runs.")
    parser.add_argument("--ways", type=names, default=WAYS, metavar="W,..", help=f"Default: {','.join(WAYS)}.")
    parser.add_argument("--peer", choices=PEERS, help="Time it in the same run and print ratios.")
    parser.add_argument("--peer-cast", action="store_true", help="Cast all of the peer, also what it keeps in fp32.")
    parser.add_argument("--halves", type=names, default=HALVES, metavar="H,..", help=f"Default: {','.join(HALVES)}.")
    parser.add_argument("--output", type=Path, metavar="R.json", help="Also write JSON.")
    return parser


if __name__ == "__main__":
    sys.exit(main())
