"""`h3runtime profile block [PATH]`: where the time of a transformer's blocks goes, in nine parts."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from h3runtime.cli.report import print_result
from h3runtime.cli.report_files import require_free, write_report
from h3runtime.cli.stopping import Stopping
from h3runtime.core import MIN_SIDE, SIDE_MULTIPLE
from h3runtime.errors import Offence, invalid
from h3runtime.observe.cores import engine_threads
from h3runtime.packing.geometry import is_legal_frames
from h3runtime.settings import ATTENTION_ONLY, PARTITION_PATHS, Settings, add_flags, resolve

if TYPE_CHECKING:
    from h3runtime.checkpoint.synthetic.layouts import TransformerSizes
    from h3runtime.engine.block_profile import Shape

NVFP4 = frozenset(name for name in Settings.model_fields if name.startswith("nvfp4_"))
READ = frozenset({"qkv_order", "device", "linear", "fused", "mlp_chunks"}) | ATTENTION_ONLY | NVFP4
"""Settings that decide how a block runs."""
SMALL, LARGE = (192, 192, 39), (1344, 768, 124)
"""Default width, height, frames: the demo's on a CPU, the canonical clip's on a GPU."""
TITLES: Final[Mapping[str, str]] = {
    "qkv": "QKV",
    "rope_rms": "RoPE/RMS",
    "attention": "attention kernel",
    "output": "output projection",
    "fc1": "fc1",
    "activation": "activation",
    "fc2": "fc2",
    "modulation_gating": "modulation/gating",
    "total": "total",
}
DESCRIPTION = """\
Time blocks of a transformer on made-up numbers: QKV, RoPE/RMS, the attention kernel, the output projection, fc1, the
activation, fc2, modulation and gating, and the whole block. Milliseconds by the device's own clock, the median of the
runs, with the least and the most. PATH is a transformer's checkpoint; without it, the embedded model's. With --made-up
no file is read: those blocks of a transformer of the published sizes get random BF16 weights on the device."""


def add_parser(commands: Any) -> None:
    parser: argparse.ArgumentParser = commands.add_parser("profile", help="tell where the time goes")
    subjects = parser.add_subparsers(dest="subject", required=True, metavar="SUBJECT")
    block: argparse.ArgumentParser = subjects.add_parser(
        "block", help="the parts of a transformer's blocks", description=DESCRIPTION
    )
    block.add_argument("checkpoint", type=Path, nargs="?", metavar="PATH", help="A .safetensors file or a folder.")
    block.add_argument(
        "--made-up", action="store_true", help="The published sizes with random weights, in place of a PATH."
    )
    block.add_argument(
        "--blocks", default="", metavar="N,N,..", help="Which, from 0. Default: the first, the middle, the last."
    )
    default = "Default: 192x192x39 on a CPU, 1344x768x124 on a GPU."
    block.add_argument("--width", type=int, help=f"Of the clip whose sequence is taken, in pixels. {default}")
    block.add_argument("--height", type=int, help="Pixels.")
    block.add_argument("--frames", type=int, help="5, 22, 39, 56...")
    block.add_argument("--text-rows", type=int, default=100, help="Rows of the prompt. Default: 100.")
    block.add_argument("--runs", type=int, default=5, help="Timed runs, after one to warm up. Default: 5.")
    block.add_argument("--json", action="store_true", help="One JSON object on stdout.")
    block.add_argument("--output", type=Path, metavar="PATH", help="Also write the JSON to a file.")
    block.add_argument("--overwrite", action="store_true", help="Replace an existing file at --output.")
    block.add_argument("--quiet", action="store_true", help="Nothing on stdout.")
    add_flags(block.add_argument_group("settings"), frozenset(Settings.model_fields) - READ)
    block.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    settings = resolve(vars(arguments), arguments.config)
    if arguments.output is not None:
        require_free("output", arguments.output, overwrite=arguments.overwrite)
    blocks = _blocks(arguments.blocks)
    with Stopping() as stopping:
        with stopping.loading():
            from h3runtime.engine.block_profile import profile
        shape = _shape(arguments, settings)
        source = _source(arguments, settings)
        report = profile(source, settings, shape, blocks, arguments.runs, engine_threads())
    if arguments.output is not None:
        write_report(arguments.output, report, overwrite=arguments.overwrite)
    if arguments.json:
        print_result(report, quiet=arguments.quiet)
    elif not arguments.quiet:
        print(table(report), flush=True)
    return 0


def table(report: Mapping[str, Any]) -> str:
    """A line for each part, a column for each block: median milliseconds (least, most) and share of the block."""
    head = (
        f"{report['checkpoint']} on {report['device']}, {report['width']}x{report['height']}x{report['frames']}: "
        f"{report['packed_rows']} rows; attention {report['attention']}, linear {report['linear']}, "
        f"fused {report['fused']}; median of {report['runs']}, ms"
    )
    names = [f"block {found['block']}" for found in report["blocks"]]
    lines = [head, " " * 18 + "".join(f"{name:>32}" for name in names)]
    for part, title in TITLES.items():
        cells = [_cell(found["parts"][part]) for found in report["blocks"]]
        lines.append(f"{title:<18}" + "".join(f"{cell:>32}" for cell in cells))
    return "\n".join(lines)


def _cell(part: Mapping[str, float]) -> str:
    return f"{part['ms']:.3f} ({part['least_ms']:.3f}, {part['most_ms']:.3f}) {part['share']:5.1%}"


def _source(arguments: argparse.Namespace, settings: Settings) -> Path | TransformerSizes:
    path: Path | None = arguments.checkpoint
    if not arguments.made_up:
        return (path or _embedded(settings)).absolute()
    if path is not None:
        raise invalid([Offence("made-up", f"{path} is a checkpoint", "a PATH, or --made-up")])
    from h3runtime.checkpoint.synthetic.layouts import TransformerSizes

    return TransformerSizes()


def _embedded(settings: Settings) -> Path:
    from h3runtime.engine.paths import model_paths

    (partition,) = list(PARTITION_PATHS)[:1]
    return model_paths(settings, (partition,)).transformers[partition]


def _shape(arguments: argparse.Namespace, settings: Settings) -> Shape:
    """InvalidRequest naming every number that no clip can have."""
    from h3runtime.engine.block_profile import Shape
    from h3runtime.engine.device import choose_device

    given = arguments.width, arguments.height, arguments.frames
    default = LARGE if choose_device(settings.device).device.type == "cuda" else SMALL
    width, height, frames = (own if asked is None else asked for asked, own in zip(given, default, strict=True))
    sides = {"width": width, "height": height}
    legal = f"multiples of {SIDE_MULTIPLE} from {MIN_SIDE}"
    offences = [
        Offence(name, f"{side} is no side of a clip", legal)
        for name, side in sides.items()
        if side < MIN_SIDE or side % SIDE_MULTIPLE
    ]
    if not is_legal_frames(frames):
        offences.append(Offence("frames", f"no clip has {frames} frames", "5 and 17 more each: 5, 22, 39.."))
    counts = {"text-rows": arguments.text_rows, "runs": arguments.runs}
    offences += [Offence(name, f"{count} is too few", "1 or more") for name, count in counts.items() if count < 1]
    if offences:
        raise invalid(offences)
    return Shape(width, height, frames, arguments.text_rows)


def _blocks(text: str) -> list[int]:
    try:
        return [int(number) for number in text.split(",")] if text else []
    except ValueError:
        raise invalid([Offence("blocks", f"{text!r} is no list of numbers", "such as 0,24,49")]) from None
