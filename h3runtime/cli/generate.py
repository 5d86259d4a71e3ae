"""`h3runtime generate`: clips from the command line, with the rules of `POST /generate`, without a server.

Flags and a file of requests become request bodies and are judged by the same code as a client's, so that both agree in
every word. A list of requests is a chain: one clip, of which each entry continues the one before.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Collection
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from h3runtime.api import rules
from h3runtime.api.judging.spec import encode_of
from h3runtime.cli.generation.chain_plan import plan_chain
from h3runtime.cli.generation.chain_result import chain_facts
from h3runtime.cli.generation.entries import Asked, asked_of
from h3runtime.cli.generation.flags import add_request_flags
from h3runtime.cli.generation.judging import Ruling, judge_with_engine, rule_on, settled
from h3runtime.cli.generation.scratch import remove, scratch_folder
from h3runtime.cli.generation.sheets import require_free, with_sheets
from h3runtime.cli.options import (
    add_encoder_flags,
    add_run_flags,
    encode_settings,
    format_of,
    judge_with_ffmpeg,
    output_path,
    refuse_taken,
)
from h3runtime.cli.progress import ProgressBar
from h3runtime.cli.report import print_result
from h3runtime.cli.result import clip_facts
from h3runtime.cli.stopping import Stopping
from h3runtime.core import Container, EncodeSettings, Engine, GenerateSpec, variant_path
from h3runtime.errors import Offence, invalid
from h3runtime.jobs.outputs import outputs_of
from h3runtime.media.ffmpeg import find_ffmpeg
from h3runtime.media.formats import suffix_of
from h3runtime.observe.cores import engine_threads
from h3runtime.quality.shelf import Held, Shelf
from h3runtime.settings import SERVICE_ONLY, Settings, add_flags, resolve

READ_HERE = frozenset({"url_allow", "max_upload_bytes", "data_dir"})
"""Settings of the service that count here too: of a request's media, and where evidence of quality levels lies."""


def add_parser(commands: Any) -> None:
    parser: argparse.ArgumentParser = commands.add_parser(
        "generate",
        help="make one clip, or a chain of clips",
        description="Make one clip, or of a list of requests one long clip in which each continues the one before. "
        "Prints one line of JSON on stdout; progress and everything else goes to stderr.",
    )
    parser.add_argument(
        "request",
        type=Path,
        nargs="?",
        metavar="REQUEST.json",
        help="A request as POST /generate takes it, with paths from the file's folder on; or a list of them, a chain. "
        "Flags are the defaults of what it leaves out.",
    )
    add_request_flags(parser)
    parser.add_argument(
        "--output", type=Path, metavar="OUT.mp4|mov|mkv|webm", help="Default: h3-<seed>.mp4 in the current folder."
    )
    add_encoder_flags(parser)
    add_run_flags(parser)
    parser.add_argument("--profile-memory", action="store_true", help="Peak bytes of every stage in the JSON.")
    parser.add_argument(
        "--sheet",
        action="store_true",
        help="Also write OUT.png, a contact sheet: the prompt, frames with their times, the waveform. `sheet` in the "
        "JSON.",
    )
    add_flags(parser.add_argument_group("settings"), SERVICE_ONLY - READ_HERE)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    settings = resolve(vars(arguments), arguments.config)
    make(arguments, settings)
    return 0


def make(arguments: argparse.Namespace, settings: Settings) -> None:
    """Judge what was asked for, load the engine in this process, make it, print what became of it."""
    asked = asked_of(arguments)
    with (
        Stopping() as stopping,
        scratch_folder(arguments.output) as scratch,
        ProgressBar(quiet=arguments.quiet, steps=arguments.progress) as bar,
    ):
        session = _Session(arguments, settings, scratch, stopping, bar)
        facts = _make_chain(asked, session) if asked.is_chain else _make_clip(asked, session)
    print_result(facts, quiet=arguments.quiet)


@dataclass(frozen=True, slots=True)
class _Session:
    """What a command has while it runs."""

    arguments: argparse.Namespace
    settings: Settings
    scratch: Path
    stopping: Stopping
    bar: ProgressBar

    def loading(self) -> AbstractContextManager[None]:
        """For imports."""
        return self.stopping.loading(clean=partial(remove, self.scratch))

    def held(self) -> Held:
        """Evidence of quality levels, as there is now."""
        return Shelf(self.settings.data_dir).held

    def loaded_engine(self, partitions: Collection[str]) -> Engine:
        """Torch is first imported now: what is wrong with a request is told at once."""
        with self.loading():
            from h3runtime.engine.resident import ResidentEngine
        engine = ResidentEngine(
            self.settings,
            engine_threads(),
            ffmpeg_loglevel=self.arguments.ffmpeg_loglevel,
            on_ffmpeg_line=self.bar.say,
            profile_memory=self.arguments.profile_memory,
            warm_up=False,
            partitions=sorted(partitions),
        )
        engine.load(self.bar)
        return engine


def _make_clip(asked: Asked, session: _Session) -> dict[str, Any]:
    ruling = rule_on(asked.requests[0], asked.folder, session.scratch / "inputs", session.settings)
    spec = _clip_spec(ruling, session.arguments, session.scratch)
    if session.arguments.sheet:
        clips = [variant_path(spec.output, index, spec.n) for index in range(spec.n)]
        require_free(clips, asked, overwrite=spec.overwrite)
    engine = session.loaded_engine({spec.task.runs_on})
    held = session.held()
    (loras,) = judge_with_engine([ruling], engine.facts(), is_chain=False, held=held)
    spec = settled(replace(spec, loras=loras), ruling, engine.facts(), held)
    with session.stopping.gently():
        clip = engine.generate(spec, session.bar, session.stopping)
    facts = clip_facts(spec, clip, tuple(ruling.judged.verdict.warnings), engine.facts())
    return with_sheets(facts, overwrite=spec.overwrite) if session.arguments.sheet else facts


def _make_chain(asked: Asked, session: _Session) -> dict[str, Any]:
    arguments, bar = session.arguments, session.bar
    encode = _chain_encode(arguments)
    planned = plan_chain(asked.requests, asked.folder, session.scratch, session.settings)
    named = _output(arguments, planned[0].spec, encode.container, None)
    output = output_path(named, encode.container, overwrite=arguments.overwrite)
    if arguments.sheet:
        require_free([output], asked, overwrite=arguments.overwrite)
    with session.loading():
        from h3runtime.engine.chain import Chain, ChainMaker, Link
    engine = session.loaded_engine({plan.spec.task.runs_on for plan in planned})
    loaded, held = engine.facts(), session.held()
    adapters = judge_with_engine([plan.ruling for plan in planned], loaded, is_chain=True, held=held)
    planned = tuple(plan.fitted(loras, loaded, held) for plan, loras in zip(planned, adapters, strict=True))
    maker = ChainMaker(
        engine,
        find_ffmpeg(),
        bar,
        session.stopping,
        on_clip=lambda index: bar.begin_part(f"clip {index + 1}/{len(planned)}"),
        stall_seconds=session.settings.timeout_mux,
        loglevel=arguments.ffmpeg_loglevel,
        on_line=bar.say,
    )
    links = tuple(Link(plan.spec, plan.share, plan.guide) for plan in planned)
    began = time.monotonic()
    with session.stopping.gently():
        result = maker.make(Chain(links, output, session.scratch, encode, arguments.overwrite))
    seconds = time.monotonic() - began
    facts = chain_facts(planned, result.clips, result.written, engine.facts(), seconds, encode)
    return with_sheets(facts, overwrite=arguments.overwrite) if arguments.sheet else facts


def _clip_spec(ruling: Ruling, arguments: argparse.Namespace, scratch: Path) -> GenerateSpec:
    """One error lists everything wrong with the request; then the output's name is looked at."""
    body = ruling.read.body
    container = encode_of(body.format).container
    if arguments.output is None:
        verdict = rules.Verdict(ruling.read)
        rules.judge_output(body.output, Path.cwd(), verdict, container)
        ruling.faults.offences += verdict.offences
    ruling.faults.offences += judge_with_ffmpeg(ruling.raw.get("format"))
    ruling.faults.raise_any()
    spec = ruling.spec(Path(), scratch)
    output = output_path(_output(arguments, spec, container, body.output), container, overwrite=spec.overwrite)
    spec = replace(spec, output=output)
    for path in sorted(outputs_of(spec)):
        refuse_taken(path, overwrite=spec.overwrite)
    return spec


def _output(arguments: argparse.Namespace, spec: GenerateSpec, container: Container, named: str | None) -> Path:
    return arguments.output or Path(named or f"h3-{spec.sampling.seed}{suffix_of(container)}")


def _chain_encode(arguments: argparse.Namespace) -> EncodeSettings:
    offences: list[Offence] = []
    encode = encode_settings(format_of(arguments, arguments.output), offences)
    if arguments.save_latents:
        offences.append(Offence("save_latents", "is not of a chain, of which no clip is kept by itself", "left out"))
    if arguments.n not in (None, 1):
        offences.append(Offence("n", "is more than one clip, and a chain is made of one after another", "1"))
    if offences:
        raise invalid(offences)
    return encode
