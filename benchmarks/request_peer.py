"""diffusers' own pipeline for the clip that `request` asks our service for: `request_peer.py ... --output R.json`.

A process of its own, started by `request --peer diffusers`: BF16 weights of two such pipelines are more than a card
holds. Text to video as its documentation has it (`MiniMaxH3Blocks`, workflow t2va, dtype bfloat16 with its own islands
in FP32, default attention, frames as pictures, `encode_video`), all parts resident on the device. Weights are made up:
the transformer, in its full form, and the video VAE by the recipes that ours come from, the others as their libraries
initialise them. Its text encoder ends after the layer that it reads and one more, 51 of 64, without which it would not
fit beside the rest; that is in its favour. Tokens are bytes, as with our made-up sets.

    conditioning    from the call to the first forward: tokens, the text encoder, noise, position ids
    sampling        forwards and Euler steps between them
    video_decode    the VAE, tiled, blended
    frames          to 8 bits, to the host, to pictures
    audio_decode    the VAE
    mux             `encode_video`: H.264 and AAC through PyAV into an MP4

The device is waited for at each of these borders, and nowhere else. Each is told as it is passed, and the report is
written after every clip. Ahead of the first one goes a clip of one forward, of `--warm-size`.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
from torch import nn

from benchmarks import made_set, vae
from benchmarks.step_peer import peer_model, peer_weights
from h3runtime.checkpoint.partition import FL2VA
from h3runtime.checkpoint.synthetic import published
from h3runtime.checkpoint.synthetic.byte_tokenizer import tokenizer_files
from h3runtime.checkpoint.synthetic.layouts import TransformerSizes, VideoVaeSizes, video_vae_shapes
from h3runtime.checkpoint.synthetic.made_files import MadeFile
from h3runtime.checkpoint.synthetic.recipes.video_vae import video_vae
from h3runtime.checkpoint.synthetic.synthesis import FULL, TINY, Order, plan
from h3runtime.cli.report import say
from h3runtime.conditioning.tokenizer import PromptTokenizer
from h3runtime.core import FPS
from h3runtime.packing.geometry import latent_frames
from h3runtime.vae.video_statistics import LATENTS_MEAN, LATENTS_STD

if TYPE_CHECKING:
    from collections.abc import Iterator

GIB: Final = 2**30
ROW_BYTES: Final = 180_000
"""Of a packed row in a forward, above the weights: 6.3 GiB at 37,810 rows on an H200; its decoder took 3.6."""
PIXELS_OF_ROW: Final = 32 * 32
READ_LAYER: Final = 50
"""Whose result conditions; a stack that ends with it would norm it (its own text)."""
SMALL_AUDIO: Final = {"encoder_dim": 8, "latent_dim": 256, "decoder_dim": 128}
SMALL_TEXT: Final = {"intermediate_size": 512, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32}
REAL_TEXT: Final = {"intermediate_size": 25600, "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 128}


@dataclass(frozen=True, slots=True)
class Taken:
    """Bytes of a part: most while it is made, and what it keeps."""

    making: int
    kept: int


class Laps:
    """Seconds between marks, by the name of what they end; the device is done with it then."""

    def __init__(self, device: torch.device) -> None:
        self.seconds: dict[str, float] = {}
        self._device, self._last = device, 0.0

    def begin(self) -> None:
        self.seconds = {}
        self._last = self._now()

    def mark(self, name: str) -> None:
        now = self._now()
        self.seconds[name] = self.seconds.get(name, 0.0) + now - self._last
        self._last = now
        say(f"diffusers: {name} {self.seconds[name]:.2f} s")

    def _now(self) -> float:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        return time.monotonic()


class Tokenizer:
    """Ours, called as its own is."""

    def __init__(self) -> None:
        with tempfile.TemporaryDirectory(prefix="h3-peer-") as folder:
            for name, content in tokenizer_files().items():
                (Path(folder) / name).write_bytes(content)
            self._ours = PromptTokenizer.from_folder(Path(folder))

    def __call__(self, text: str, *, add_special_tokens: bool) -> dict[str, list[int]]:
        assert not add_special_tokens
        return {"input_ids": list(self._ours.encode(text))}


class Processor:
    """All of a Qwen3-VL processor that a prompt without media takes."""

    def create_mm_token_type_ids(self, ids: Sequence[Sequence[int]]) -> list[list[int]]:
        return [[0] * len(row) for row in ids]


def main(arguments: Sequence[str] | None = None) -> int:
    given = _parser().parse_args(arguments)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    began = time.monotonic()
    if device.type == "cuda":
        rows = latent_frames(given.frames) * given.width * given.height // PIXELS_OF_ROW
        say(f"diffusers: {require_room(planned(tiny=given.tiny), rows, torch.cuda.mem_get_info(device)[0])}")
    pipe, sizes = made_pipeline(device, tiny=given.tiny)
    laps = Laps(device)
    asked = _watch(pipe, laps)
    held = torch.cuda.memory_allocated(device) if device.type == "cuda" else 0
    say(f"diffusers: made in {time.monotonic() - began:.1f} s, {held / 2**30:.1f} GiB held")
    report: dict[str, Any] = {"made_seconds": time.monotonic() - began, **_versions(), "weights": sizes, "clips": []}
    with tempfile.TemporaryDirectory(prefix="h3-peer-") as folder:
        # What is initialised late is paid for here.
        report["warm_up"] = make(pipe, laps, given, given.prompt[0], 1, Path(folder), given.warm_size)
        for prompt in given.prompt:
            asked.clear()
            made = make(pipe, laps, given, prompt, given.steps, Path(folder))
            report["clips"].append({**made, "forwards": len(asked)})
            say(f"diffusers: {json.dumps(report['clips'][-1])}")
            if device.type == "cuda":
                report["peak_bytes"] = torch.cuda.max_memory_allocated(device)
            given.output.write_text(json.dumps(report, indent=2) + "\n")
    return 0


def make(
    pipe: Any,
    laps: Laps,
    given: argparse.Namespace,
    prompt: str,
    forwards: int,
    folder: Path,
    size: tuple[int, int] | None = None,
) -> dict[str, Any]:
    """One clip, as its documentation makes one. forwards: one less than the grid points that it counts as steps. size:
    width and height, if not the clip's."""
    from diffusers.utils.export_utils import encode_video

    clip = folder / "clip.mp4"
    width, height = size or (given.width, given.height)
    laps.begin()
    made = pipe(
        prompt=prompt,
        width=width,
        height=height,
        num_frames=given.frames,
        num_inference_steps=forwards + 1,
        generator=torch.Generator().manual_seed(given.seed),
        output=["videos", "audio", "sampling_rate"],
    )
    laps.mark("audio_decode")
    frames, sound = made["videos"][0], made["audio"][0]
    encode_video(frames, fps=FPS, output_path=str(clip), audio=sound, audio_sample_rate=made["sampling_rate"])
    laps.mark("mux")
    stages = dict(laps.seconds)
    finite = bool(torch.isfinite(sound).all())
    return {"total": sum(stages.values()), "stages": stages, "bytes": clip.stat().st_size, "finite": finite}


def _watch(pipe: Any, laps: Laps) -> list[None]:
    """Marks at the borders of its stages, by hooks: nothing of the pipeline is replaced. An item for each forward."""
    sampling, forwards = [False], list[None]()

    def before_forward(*_: object) -> None:
        forwards.append(None)
        if not sampling[0]:
            sampling[0] = True
            laps.mark("conditioning")

    def decode(z: torch.Tensor, *, return_dict: bool = True) -> Any:
        sampling[0] = False
        laps.mark("sampling")
        found = plain(z, return_dict=return_dict)
        laps.mark("video_decode")
        return found

    def hear(latents: torch.Tensor, *, return_dict: bool = True) -> Any:
        laps.mark("frames")
        return plain_sound(latents, return_dict=return_dict)

    plain, plain_sound = pipe.vae.decode, pipe.audio_vae.decode
    pipe.transformer.register_forward_pre_hook(before_forward)
    pipe.vae.decode, pipe.audio_vae.decode = decode, hear
    return forwards


def planned(*, tiny: bool) -> dict[str, Taken]:
    """Of every part, counted on the meta device, in the order in which they are made."""
    meta = torch.device("meta")
    vae_, audio, text = (make(meta, tiny=tiny) for make in (_empty_video, _audio, _text_encoder))
    layout = _transformer_file(tiny=tiny).layout()
    sizes = {name: math.prod(shape) * dtype.itemsize for name, (dtype, shape) in layout.items()}
    whole, turned = sum(sizes.values()), sum(size for name, size in sizes.items() if name.endswith("fc1.weight"))
    numbers = sum(parameter.numel() for parameter in vae_.parameters())
    narrow = sum(parameter.numel() * _kept_as(vae_, name).itemsize for name, parameter in vae_.named_parameters())
    heard, read = (sum(parameter.nbytes for parameter in part.parameters()) for part in (audio, text))
    return {
        # As it builds itself in FP32, our weights in FP16, and the copies of those whose rows stand otherwise there.
        "vae": Taken(numbers * (4 + 2 + 2), narrow),
        "audio_vae": Taken(2 * heard, heard),
        "transformer": Taken(whole + turned, whole),
        "text_encoder": Taken(read, read),
    }


def most(parts: Iterable[Taken]) -> int:
    """Bytes at the worst moment while they are made one after another."""
    held, worst = 0, 0
    for part in parts:
        worst, held = max(worst, held + part.making), held + part.kept
    return worst


def require_room(parts: Mapping[str, Taken], rows: int, free: int) -> str:
    """What it will take, for people; RuntimeError, before a minute is spent, where that is more than is free."""
    making, kept = most(parts.values()), sum(part.kept for part in parts.values())
    running = kept + rows * ROW_BYTES
    told = f"{making / GIB:.1f} GiB at most while made, {kept / GIB:.1f} held, {running / GIB:.1f} while it runs"
    if max(making, running) > free:
        raise RuntimeError(f"diffusers takes {told}, and {free / GIB:.1f} are free")
    return told


def made_pipeline(device: torch.device, *, tiny: bool) -> tuple[Any, dict[str, int]]:
    """Ready to be called, and the bytes of its parts."""
    import diffusers

    built: Any = diffusers
    parts = {}
    for name, maker in MAKERS.items():
        parts[name] = maker(device, tiny=tiny)
        if device.type == "cuda":
            # What was spent on making it is too much to keep beside the next one.
            torch.cuda.empty_cache()
    pipe = built.MiniMaxH3ModularPipeline(built.MiniMaxH3Blocks(), workflow="t2va")
    schedulers = {"scheduler": built.MiniMaxH3Scheduler(12.0), "audio_scheduler": built.MiniMaxH3Scheduler(3.0)}
    pipe.update_components(**parts, **schedulers, tokenizer=Tokenizer(), processor=Processor())
    pipe.set_progress_bar_config(disable=True)
    return pipe, {name: sum(t.nbytes for t in part.parameters()) for name, part in parts.items()}


def _transformer_file(*, tiny: bool) -> MadeFile:
    return plan(Order("bf16", pruned=False, full_size=not tiny, partitions=(FL2VA,)))[0]


def _transformer(device: torch.device, *, tiny: bool) -> Any:
    weights = made_set.values(_transformer_file(tiny=tiny), device)
    sizes = TransformerSizes(**{**_fields(TINY.transformer if tiny else FULL.transformer), "curve": None})
    return peer_model(sizes, peer_weights(weights), weights["rope.inv_freq"])


def _fields(sizes: TransformerSizes) -> dict[str, Any]:
    return {name: getattr(sizes, name) for name in sizes.__dataclass_fields__}


def _video(device: torch.device, *, tiny: bool) -> Any:
    """BF16, but for what it keeps in FP32 itself."""
    size = _video_size(tiny=tiny)
    ours = VideoVaeSizes(
        encoder_widths=size.encoder, width=size.width, inner=size.width, ffn=4 * size.width, layers=size.layers
    )
    recipe = video_vae(0, size.layers)
    file = MadeFile("video", video_vae_shapes(ours), recipe, published.VIDEO_VAE_FP16, {})
    model, weights = _empty_video(device, tiny=tiny), made_set.values(file, device)
    theirs = vae.peer_weights({n: t for n, t in weights.items() if not n.startswith("latents_")}, size)
    model.load_state_dict(theirs, strict=True, assign=True)
    return _narrowed(model)


def _video_size(*, tiny: bool) -> vae.Size:
    return vae.SIZES["small" if tiny else "published"]


def _empty_video(device: torch.device, *, tiny: bool) -> Any:
    """As it builds itself, in FP32. Not on meta to be used: it has buffers that no file fills."""
    import diffusers

    size = _video_size(tiny=tiny)
    build: Any = diffusers.AutoencoderKLMiniMaxH3
    with device:
        return build(
            block_out_channels=size.encoder,
            decoder_num_layers=size.layers,
            decoder_num_attention_heads=size.heads,
            decoder_attention_head_dim=size.head_dim,
            latents_mean=tuple(LATENTS_MEAN),
            latents_std=tuple(LATENTS_STD),
        )


def _audio(device: torch.device, *, tiny: bool) -> Any:
    """FP32, as it keeps itself."""
    import diffusers

    build: Any = diffusers.AutoencoderKLMiniMaxH3Audio
    with device:
        model = build(**(SMALL_AUDIO if tiny else {}), latents_mean=[0.0] * 32, latents_std=[1.0] * 32)
    return _narrowed(model)


def _narrowed(model: Any) -> Any:
    """As `from_pretrained(dtype=torch.bfloat16)` leaves it."""
    for name, parameter in model.named_parameters():
        parameter.data = parameter.data.to(_kept_as(model, name))
    return model.eval().requires_grad_(False)


def _kept_as(model: Any, name: str) -> torch.dtype:
    return torch.float32 if set(name.split(".")) & set(model._keep_in_fp32_modules) else torch.bfloat16


def _text_encoder(device: torch.device, *, tiny: bool) -> nn.Module:
    from transformers import Qwen3VLConfig, Qwen3VLForConditionalGeneration

    sizes = TINY.text_encoder if tiny else FULL.text_encoder
    head = (SMALL_TEXT if tiny else REAL_TEXT)["head_dim"]
    text = {
        "vocab_size": sizes.vocab,
        "hidden_size": sizes.hidden,
        "num_hidden_layers": READ_LAYER + 1,
        "rope_theta": 5_000_000.0,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 5_000_000.0,
            "mrope_section": _axes(head),
            "mrope_interleaved": True,
        },
        **(SMALL_TEXT if tiny else REAL_TEXT),
    }
    vision = {
        "hidden_size": sizes.vision_hidden,
        "intermediate_size": sizes.vision_intermediate,
        "depth": sizes.vision_depth,
        "num_heads": 4 if tiny else 16,
        "out_hidden_size": sizes.hidden,
        "num_position_embeddings": sizes.positions,
        "deepstack_visual_indexes": [0, 1, 2] if tiny else [8, 16, 24],
    }
    config = Qwen3VLConfig(text_config=text, vision_config=vision)
    with _of_dtype(torch.bfloat16), device:
        model: nn.Module = Qwen3VLForConditionalGeneration(config)
    return model.eval().requires_grad_(False)


def _axes(head: int) -> list[int]:
    """Frequencies of t, h and w: 24, 20, 20 of the released one's 64."""
    half = head // 2
    side = 5 * half // 16
    return [half - 2 * side, side, side]


@contextmanager
def _of_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def _versions() -> Mapping[str, str]:
    return {name: version(name) for name in ("diffusers", "transformers", "torch")}


MAKERS: Final[Mapping[str, Callable[..., Any]]] = {
    "vae": _video,
    "audio_vae": _audio,
    "transformer": _transformer,
    "text_encoder": _text_encoder,
}
"""The more a part takes while it is made, and the less it keeps, the sooner."""


def size(text: str) -> tuple[int, int]:
    """`WxH`. ValueError for anything else."""
    width, height = map(int, text.split("x"))
    return width, height


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="request_peer.py", description="Time diffusers' own pipeline for one clip.")
    parser.add_argument("--width", type=int, required=True)
    parser.add_argument("--height", type=int, required=True)
    parser.add_argument("--frames", type=int, required=True)
    parser.add_argument("--steps", type=int, required=True, metavar="N", help="Forwards.")
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--prompt", nargs="+", required=True, metavar="TEXT", help="One clip for each.")
    parser.add_argument(
        "--warm-size", type=size, metavar="WxH", help="Of the clip before the first. Default: the same."
    )
    parser.add_argument("--tiny", action="store_true", help="Small models.")
    parser.add_argument("--output", type=Path, required=True, metavar="R.json")
    return parser


if __name__ == "__main__":
    sys.exit(main())
