"""`python -m h3runtime.nano.training.turbo OUT --seconds N`: distil h3-nano into 4 forwards, or go on with it.

    1  the masters read; captions of new scenes, on a GPU with clips whose pictures keyframes show
    2  the pairs trained for N seconds; pieces and the adapter in OUT now and then
    3  OUT/h3_nano_turbo_4step.safetensors; each step's error, and clips with and without it judged, OUT/judged.json

`--resume` goes on from the pieces in OUT, `--start` from an adapter, the package's own too; `--span` says which part of
a longer training this run is. On a CPU one thread, and small lessons on text alone that are learnt from several times;
on a GPU fresh ones, recorded. The package's own adapter is there for the embedded model without any setting; to use
another one, name its folder in H3_LORA_DIR. In a request: `--lora h3_nano_turbo_4step --steps 4 --sampler euler
--scheduler simple`.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import asdict, replace
from itertools import product
from pathlib import Path

import torch

from h3runtime.checkpoint.embedded.packaged import FOLDER
from h3runtime.nano.training import clips, joint
from h3runtime.nano.training.choosing import choose
from h3runtime.nano.training.curriculum import Sizes
from h3runtime.nano.training.turbo import judging, stepping
from h3runtime.nano.training.turbo.adapter import FILE, write_adapter
from h3runtime.nano.training.turbo.captions import lectern
from h3runtime.nano.training.turbo.distilling import TurboRecipe, TurboTrainer
from h3runtime.nano.training.turbo.judging import at_once
from h3runtime.nano.training.turbo.schedule import FORWARDS
from h3runtime.nano.training.turbo.student import PIECES, Student
from h3runtime.nano.training.turbo.teacher import Teacher, read_teacher

RANK = 48
"""Of every pair; a fused q, k, v has three times that. As published it would be 128 (checkpoint-formats §6), 20 times
fewer than the model is wide; here half the width, and the adapter as large as the model."""
SPLITS = ("any", "trained", "held_out")
ON_CPU = {"rows": 900, "rate": 2e-4, "repeats": 2, "sizes": Sizes((clips.Size(128, 128, 22, 2048),), (1.0,))}
"""Where a forward is dear: few sequences at a time, whose gradients are mostly noise. At a rate of 1e-3 and four
updates a lesson, 120 updates made three of the four steps worse than without pairs, on captions that were new."""


def main(given: list[str] | None = None) -> int:
    arguments = _parser().parse_args(given)
    arguments.out.mkdir(parents=True, exist_ok=True)
    say = _teller(arguments.out / "turbo.log")
    device = torch.device(arguments.device)
    if device.type == "cpu":
        torch.set_num_threads(arguments.threads)
    recipe = _recipe(arguments, device)
    teacher = read_teacher(arguments.masters, device)
    start = arguments.out if arguments.resume and list(arguments.out.glob(f"{PIECES}-*")) else arguments.start
    student = Student.beside(
        teacher.dit, teacher.encoder, arguments.rank, arguments.seed, start, masters=teacher.masters
    )
    say(f"rank {student.rank}, {'going on' if start else 'from the start'}, {device.type}")
    keyframes = device.type == "cuda" if arguments.keyframes is None else arguments.keyframes
    seed = recipe.seed * 31 + 7
    asked = lectern(teacher, recipe.sizes, seed, arguments.workers, keyframes=keyframes, say=say)
    trainer = TurboTrainer(teacher.dit, student, asked, recipe, say)
    if arguments.seconds > 0:
        joint.train(trainer, seconds=arguments.seconds, out=arguments.out, choose=choose)
    write_adapter(student.pairs, arguments.out / FILE, student.masters)
    if arguments.judged:
        _judge(arguments, teacher, student, recipe, trainer.dtype, say)
    return 0


def _judge(
    arguments: argparse.Namespace,
    teacher: Teacher,
    student: Student,
    recipe: TurboRecipe,
    dtype: torch.dtype,
    say: joint.Say,
) -> None:
    """Of each size and split; kept after each, for it takes a while."""
    kept: dict[str, object] = {}
    ways = judging.ways_of(arguments.forwards)
    with judging.judging_in(arguments.workers) as judges:
        for each, split in product(recipe.sizes.sizes[: arguments.judged_sizes], arguments.splits):
            size, few = (replace(each, clips=count) for count in (arguments.judged, at_once(each, arguments.judged)))
            name = f"{size.width}x{size.height}x{size.frames} {split}"
            steps = stepping.step_errors(teacher, student, few, dtype, recipe.parts)
            rows = judging.compared(teacher, student, size, dtype, ways, split, judges)
            kept[name] = {"steps": [asdict(step) for step in steps], "clips": judging.table(rows)}
            (arguments.out / "judged.json").write_text(json.dumps(kept, indent=1))
            for line in (*stepping.told(steps), *judging.told(rows)):
                say(f"{name} {line}")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m h3runtime.nano.training.turbo", description="Distil h3-nano.")
    recipe = TurboRecipe()
    parser.add_argument("out", type=Path, help="Folder for pieces, adapter, figures and log.")
    parser.add_argument("--seconds", type=float, default=240.0, help="Of training; 0 writes and judges what is there.")
    parser.add_argument("--resume", action="store_true", help="Go on from the pieces in OUT.")
    parser.add_argument("--start", type=Path, help="Go on from this adapter's pairs.")
    parser.add_argument("--span", type=float, nargs=2, default=[0.0, 1.0], help="Part of the whole training.")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", help="cuda or cpu.")
    parser.add_argument("--threads", type=int, default=1, help="On a CPU.")
    parser.add_argument("--rank", type=int, default=RANK, help="Of every pair.")
    parser.add_argument("--rate", type=float, help="Learning rate.")
    parser.add_argument("--rows", type=int, help="Packed rows of a lesson.")
    parser.add_argument("--parts", type=int, default=recipe.parts, help="The teacher's steps for one of the student's.")
    parser.add_argument("--own", type=float, default=recipe.own, help="Share of states that the student came to.")
    parser.add_argument(
        "--home",
        action=argparse.BooleanOptionalAction,
        default=recipe.home,
        help="Lead these back to the teacher's way from the noise.",
    )
    parser.add_argument("--repeats", type=int, help="Updates from a lesson; above 1 none is recorded.")
    parser.add_argument("--sizes", help="Of clips: WIDTHxHEIGHTxFRAMESxCLIPS,...")
    parser.add_argument("--weights", help="How often each size comes in the end. Default: all as often.")
    parser.add_argument(
        "--keyframes",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="Render clips, for tasks with keyframes. Default: on a GPU.",
    )
    parser.add_argument("--workers", type=int, default=0, help="Processes that plan clips, and that judge.")
    parser.add_argument("--judged", type=int, default=48, help="Clips of each size judged at the end.")
    parser.add_argument("--judged-sizes", type=int, default=1, help="Of how many of the sizes.")
    parser.add_argument("--forwards", type=int, nargs="+", default=[FORWARDS], help="Of the clips that are judged.")
    parser.add_argument("--splits", nargs="+", choices=SPLITS, default=["any"], help="Scenes of the clips judged.")
    parser.add_argument("--masters", type=Path, default=FOLDER, help="Trained weights; default: the package's.")
    parser.add_argument(
        "--seed", type=int, default=0, help="Of scenes and noise; one of its own for a run that goes on."
    )
    return parser


def _recipe(arguments: argparse.Namespace, device: torch.device) -> TurboRecipe:
    named = {name: getattr(arguments, name) for name in ("rows", "rate", "repeats")}
    asked = {name: value for name, value in named.items() if value is not None}
    if arguments.sizes:
        sizes = tuple(clips.Size(*map(int, size.split("x"))) for size in arguments.sizes.split(","))
        weights = map(float, arguments.weights.split(",")) if arguments.weights else (1.0,) * len(sizes)
        asked["sizes"] = Sizes(sizes, tuple(weights))
    told = {name: getattr(arguments, name) for name in ("parts", "own", "home", "seed")}
    made = TurboRecipe(**told, span=(arguments.span[0], arguments.span[1]))
    made = replace(made, **{**(ON_CPU if device.type == "cpu" else {}), **asked})
    return replace(made, graph=made.repeats == 1)


def _teller(path: Path) -> joint.Say:
    """Prints and keeps lines, each with the time."""
    begin = time.monotonic()

    def say(line: str) -> None:
        text = f"{time.monotonic() - begin:7.1f} {line}"
        print(text, flush=True)
        with path.open("a") as file:
            file.write(text + "\n")

    return say
