"""A whole request through HTTP: `request.py [--contract NAME] [--made FORMAT] [--peer diffusers] [settings]`.

Starts `h3runtime serve` as an operator would, waits until it is ready, and asks for one clip after another, each with
its own seed. Prints a table and, with `--output`, writes JSON, again after every clip. Does not judge.

    cold       from the start of the process to its first answer that it is ready
    first      the first clip: it pays for what is initialised late
    warm       the clips after it, median, least and most; the same prompt, so its text is in the cache
    fresh      with a prompt that no cache knows
    total      from the request's first byte to the last one of the clip, as a client sees it
    stages     seconds of each as the job tells them; `rest` is what the total has beyond them: the line, HTTP, the file
    diffusers  with `--peer`: its own pipeline for the same clip and prompts of as many rows (`request_peer`), from the
               call to the MP4, in a process of its own that ends before the server starts: two sets of weights are more
               than one card holds, so the clips aren't taken in turn. One machine, one run. Ahead of what counts it
               makes a clip of one forward, of `--peer-warm-size`
    ratio      its median over that of the fresh clips, which encode their prompt as it does

`--made`: a made-up set of the published sizes in that format, whose weights are made on the device (`made_set`).
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.contract import contract_names, read_contract
from benchmarks.machine import this_runtime
from benchmarks.script import positive
from benchmarks.served import Server, until
from h3runtime.checkpoint.synthetic.published import FORMATS
from h3runtime.cli.report import say

PROMPT: Final = "a red ball bouncing on a blue floor"
FRESH: Final = "a green cube turning above a white floor"
ENDED: Final = ("succeeded", "failed", "cancelled", "expired")
SEED: Final = 440_407
PEERS: Final = ("diffusers",)
ROOT: Final = Path(__file__).resolve().parents[1]


@dataclass(frozen=True, slots=True)
class Asked:
    """first_steps: of the first clip alone. prompt_rows: of every prompt, a row a byte; None leaves it as it is."""

    width: int
    height: int
    frames: int
    steps: int
    runs: int
    fresh: int = 1
    first_steps: int | None = None
    prompt_rows: int | None = None

    def prompt(self, text: str, number: int = 0) -> str:
        """Another one for another number."""
        told = f"{number}: {text}" if number else text
        return told if self.prompt_rows is None else told.ljust(self.prompt_rows, "~")[: self.prompt_rows]


@dataclass(frozen=True, slots=True)
class Made:
    """One clip. total, stages, rest: seconds. bytes: of the file."""

    total: float
    stages: Mapping[str, float]
    rest: float
    bytes: int


def main(arguments: Sequence[str] | None = None) -> int:
    given, flags = _parser().parse_known_args(arguments)
    asked = _asked(given)
    with tempfile.TemporaryDirectory(prefix="h3-request-") as folder:
        peer = None if given.peer is None else _peer(asked, given, Path(folder))
        _keep(given.output, {"peer": peer})
        engine, settings = given.engine, _settings(flags)
        if given.made is not None:
            from benchmarks import made_set

            engine = made_set.FACTORY
            settings |= {name: str(path) for name, path in _set(given, Path(folder)).items()}
        beside = {"made": given.made, "peer": peer}
        report = measure(asked, Path(folder), engine, settings, lambda found: _keep(given.output, {**found, **beside}))
    print(table({**report, **beside}))
    return int("error" in (peer or {}))


def measure(
    asked: Asked, folder: Path, engine: str | None, settings: Mapping[str, str], keep: Callable[[dict[str, Any]], None]
) -> dict[str, Any]:
    """The report, ready for JSON; `keep` gets it as it is after every clip. engine: see `Server`."""
    began = time.monotonic()
    with Server(folder, engine, **settings) as server:
        server.ready()
        cold = time.monotonic() - began
        say(f"ready after {cold:.1f} s")
        found: dict[str, list[Made]] = {"first": [], "warm": [], "fresh": []}
        report = _report(asked, cold, found, server.ask("GET", "/ready").json)
        for name, made in clips(server, asked):
            found[name].append(made)
            report = _report(asked, cold, found, report["ready"])
            keep(report)
        return report


def _peer(asked: Asked, given: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """One that fails costs its own figures and the exit code."""
    try:
        return peer_clips(asked, given.peer_runs, folder, tiny=given.tiny, warm_size=given.peer_warm_size)
    except RuntimeError as error:
        return {"error": str(error)}


def peer_clips(asked: Asked, runs: int, folder: Path, *, tiny: bool, warm_size: str | None = None) -> dict[str, Any]:
    """What `request_peer` tells. RuntimeError for one that fails."""
    told, output = asdict(asked), folder / "peer.json"
    flags = [item for name in ("width", "height", "frames", "steps") for item in (f"--{name}", str(told[name]))]
    flags += [] if warm_size is None else ["--warm-size", warm_size]
    prompts = [asked.prompt(FRESH, number) for number in range(runs)]
    command = [sys.executable, str(ROOT / "benchmarks" / "request_peer.py"), *flags, "--seed", str(SEED)]
    command += ["--output", str(output), *(["--tiny"] if tiny else []), "--prompt", *prompts]
    # stdout is for our table: what it prints goes where progress goes.
    if subprocess.run(command, cwd=ROOT, check=False, stdout=sys.stderr.fileno()).returncode:
        raise RuntimeError("diffusers' clip could not be made")
    found: dict[str, Any] = json.loads(output.read_text())
    return found


def clips(server: Server, asked: Asked) -> Iterator[tuple[str, Made]]:
    """The first one, the warm ones, the fresh ones, each with that name, as they are made."""
    begun = replace(asked, steps=asked.first_steps or asked.steps)
    yield "first", make(server, begun, asked.prompt(PROMPT), SEED)
    for index in range(asked.runs):
        yield "warm", make(server, asked, asked.prompt(PROMPT), SEED + 1 + index)
    for number in range(asked.fresh):
        yield "fresh", make(server, asked, asked.prompt(FRESH, number), SEED)


def make(server: Server, asked: Asked, prompt: str, seed: int) -> Made:
    """RuntimeError for a request that is refused, and for a job that doesn't succeed."""
    sizes = {"width": asked.width, "height": asked.height, "frames": asked.frames, "steps": asked.steps}
    began = time.monotonic()
    path = f"/jobs/{server.submit({'prompt': prompt, 'seed': seed, **sizes})}"
    job = until(lambda: found if (found := server.ask("GET", path).json)["status"] in ENDED else None, 3600.0, 0.01)
    assert job is not None
    if job["status"] != "succeeded":
        raise RuntimeError(f"{path}: {job['status']}: {job.get('error')}")
    clip = server.ask("GET", f"{path}/content")
    total = time.monotonic() - began
    stages = {name: seconds for name, seconds in job["timings"].items() if name != "total"}
    say(f"{asked.steps} steps: {total:.2f} s, {json.dumps(stages)}")
    return Made(total, stages, total - sum(stages.values()), len(clip.body))


def table(report: dict[str, Any]) -> str:
    """For people, in Markdown; seconds."""
    stages = list(report["clips"]["first"][0]["stages"])
    head = ["", "clips", "total", "least..most", *stages, "rest"]
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for name, made in report["clips"].items():
        if made:
            lines.append(_row(name, made, stages))
    lines += ["", f"cold start: {report['cold_seconds']:.2f} s"]
    return "\n".join([*lines, *_beside(report)])


def _row(name: str, made: Sequence[Mapping[str, Any]], stages: Sequence[str]) -> str:
    totals = [clip["total"] for clip in made]
    cells = [name, str(len(made)), f"{median(totals):.3f}", f"{min(totals):.3f}..{max(totals):.3f}"]
    cells += [f"{median(clip['stages'].get(stage, 0.0) for clip in made):.3f}" for stage in stages]
    return "| " + " | ".join([*cells, f"{median(clip.get('rest', 0.0) for clip in made):.3f}"]) + " |"


def _beside(report: Mapping[str, Any]) -> list[str]:
    """The peer's own table and the ratio."""
    peer = report.get("peer")
    if peer is None:
        return []
    if "error" in peer:
        return ["", f"diffusers: {peer['error']}"]
    stages = list(peer["clips"][0]["stages"])
    head = ["", "clips", "total", "least..most", *stages, "rest"]
    lines = ["", "| " + " | ".join(head) + " |", "|" + "---|" * len(head), _row("diffusers", peer["clips"], stages)]
    ours, theirs = ([clip["total"] for clip in made] for made in (report["clips"]["fresh"], peer["clips"]))
    if not ours:
        return lines
    least, most = min(theirs) / max(ours), max(theirs) / min(ours)
    return [*lines, "", f"ratio of a fresh clip: {median(theirs) / median(ours):.2f}x ({least:.2f}..{most:.2f})"]


def _report(asked: Asked, cold: float, made: dict[str, list[Made]], ready: dict[str, Any]) -> dict[str, Any]:
    return {
        "recorded_at": datetime.now(UTC).isoformat(),
        "runtime": this_runtime().model_dump(),
        "asked": asdict(asked),
        "cold_seconds": cold,
        "ready": ready,
        "clips": {name: [asdict(clip) for clip in each] for name, each in made.items()},
    }


def _keep(output: Path | None, report: Mapping[str, Any]) -> None:
    """Also between the two halves and after every clip: they take minutes."""
    if output is not None:
        output.write_text(json.dumps(report, indent=2) + "\n")
        say(f"{output}: written")


def _set(given: argparse.Namespace, folder: Path) -> Mapping[str, Path]:
    from benchmarks import made_set

    return made_set.holes(folder / "set", given.made, tiny=given.tiny)


def _asked(given: argparse.Namespace) -> Asked:
    asked = Asked(given.width, given.height, given.frames, given.steps, given.runs, given.fresh, given.first_steps)
    if given.contract is None:
        return asked
    told = read_contract(given.contract).contract
    sizes = {"width": told.width, "height": told.height, "frames": told.frames, "steps": told.sampling.forwards}
    return replace(asked, **sizes, prompt_rows=told.rows.text if given.made else None)


def _settings(flags: Sequence[str]) -> dict[str, str]:
    """`--name value` pairs of `h3runtime serve`, by field name."""
    if len(flags) % 2 or not all(flag.startswith("--") for flag in flags[::2]):
        raise SystemExit(f"settings are pairs of --name and value, not {' '.join(flags)}")
    return {flag[2:].replace("-", "_"): value for flag, value in zip(flags[::2], flags[1::2], strict=True)}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="request.py",
        description="Time whole requests through HTTP. Any setting of `h3runtime serve` may follow as --name value.",
    )
    names = ", ".join(contract_names())
    parser.add_argument("--contract", metavar="NAME", help=f"Sizes and forwards of one of {names}.")
    parser.add_argument("--width", type=int, default=192, metavar="W", help="Default: 192, as the demo's clip.")
    parser.add_argument("--height", type=int, default=192, metavar="H", help="Default: 192.")
    parser.add_argument("--frames", type=int, default=39, metavar="F", help="Default: 39.")
    parser.add_argument("--steps", type=int, default=12, metavar="N", help="Default: 12.")
    parser.add_argument("--runs", type=int, default=3, metavar="N", help="Warm clips. Default: 3.")
    parser.add_argument("--fresh", type=int, default=1, metavar="N", help="Clips of new prompts. Default: 1.")
    parser.add_argument("--first-steps", type=positive, metavar="N", help="Of the first clip. Default: as the others.")
    parser.add_argument("--made", choices=FORMATS, help="Serve a made-up set of the published sizes in this format.")
    parser.add_argument("--peer", choices=PEERS, help="Make the same clip with it, before the server starts.")
    parser.add_argument("--peer-runs", type=positive, default=1, metavar="N", help="Its clips. Default: 1.")
    parser.add_argument(
        "--peer-warm-size", metavar="WxH", help="Of its clip before the first. Default: the clip's own."
    )
    parser.add_argument("--tiny", action="store_true", help="Small models in place of the published sizes.")
    parser.add_argument("--engine", help=argparse.SUPPRESS)
    parser.add_argument("--output", type=Path, metavar="R.json", help="Also write JSON.")
    return parser


if __name__ == "__main__":
    sys.exit(main())
