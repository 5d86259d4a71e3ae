"""One clip of a request as arrays: what the engine delivers, without what an encoder does to it.

The engine makes it as it makes any other, to a scratch file that is thrown away; pictures and sound come from its
latents, decoded once more, so that two clips differ by what made them and by nothing else. Fed by `calibrate` with an
engine; read by `trials`.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from h3runtime.cli.calibration.arrays import Sampled, Shown
from h3runtime.cli.calibration.prompts import Prompts
from h3runtime.cli.calibration.size import Size
from h3runtime.cli.generation.judging import Ruling, judge_with_engine, rule_on
from h3runtime.core import EncodeSettings, Latents, SamplerSettings, ShouldStop
from h3runtime.engine.clip import decode_frames, decode_sound
from h3runtime.engine.latents_file import read_latents
from h3runtime.engine.resident import ResidentEngine
from h3runtime.engine.run import FIRST_GUESS, Run
from h3runtime.errors import InvalidRequest, Offence, invalid
from h3runtime.media import sound
from h3runtime.quality.levels import Choice
from h3runtime.settings import Settings

CHEAP = EncodeSettings(container="mkv", audio_codec="pcm_s16le", crf=51)
"""Nobody looks at the file."""
SEEDS_APART = 1_000_003
"""Noise of prompt P and seed S is that of seed P * this + S: no two clips share it."""


@dataclass(frozen=True, slots=True)
class Requests:
    """What is asked for: every prompt at one size and schedule. scratch: for media and files that nobody looks at."""

    prompts: Prompts
    size: Size
    sampling: SamplerSettings
    scratch: Path

    def ruling(self, choice: Choice | None, prompt: int, seed: int, settings: Settings) -> Ruling:
        """Judged as a client's; InvalidRequest or BadMedia."""
        schedule = asdict(self.sampling)
        own = {name: schedule[name] for name in ("steps", "sampler", "scheduler", "shift", "audio_shift")}
        raw: dict[str, Any] = {
            **self.prompts.requests[prompt],
            **asdict(self.size),
            **own,
            "seed": str(prompt * SEEDS_APART + seed),
            **(choice.fields() if choice else {}),
        }
        ruling = rule_on(raw, self.prompts.folder, self.scratch / f"inputs-{prompt}", settings)
        ruling.faults.raise_any()
        return ruling

    def partition(self, settings: Settings) -> str:
        """The transformer that all prompts run on. InvalidRequest naming every prompt that is wrong, or that they
        aren't of one."""
        found, offences = set(), []
        for index in range(len(self.prompts.requests)):
            try:
                found.add(self.ruling(None, index, 0, settings).judged.resolved.task.runs_on)
            except InvalidRequest as error:
                offences += [Offence(f"prompts[{index}].{o.field}", o.message, o.legal) for o in error.offences]
        if len(found) > 1:
            offences.append(Offence("prompts", "some run on one transformer, some on the other", "a file for each"))
        if offences:
            raise invalid(offences)
        return found.pop()


class EngineMaker:
    """A `trials.Maker`."""

    def __init__(self, engine: ResidentEngine, requests: Requests, should_stop: ShouldStop) -> None:
        self._engine, self._requests, self._should_stop = engine, requests, should_stop

    def sampled(self, choice: Choice, prompt: int, seed: int) -> Sampled:
        """The errors of `ResidentEngine.generate`, and InvalidRequest for a choice that isn't there."""
        engine, requests = self._engine, self._requests
        ruling = requests.ruling(choice, prompt, seed, engine.settings)
        judge_with_engine([ruling], engine.facts(), is_chain=False)
        with TemporaryDirectory(dir=requests.scratch) as folder:
            spec = replace(ruling.spec(Path(folder) / "clip.mkv", Path(folder)), encode=CHEAP, save_latents=True)
            clip = engine.generate(spec, lambda _: None, self._should_stop)
            assert clip.latents_output is not None
            latents, _ = read_latents(clip.latents_output)
        return Sampled(latents, clip.timings["sampling"], clip.forwards, clip.skipped_steps)

    def shown(self, latents: Latents) -> Shown:
        run = Run(lambda _: None, self._should_stop, FIRST_GUESS)
        vaes = self._engine.models.vaes
        samples = sound.prepare(decode_sound(latents, vaes), self._requests.size.frames, "comfyui")
        with run.stage("video_decode"):
            blend = self._engine.settings.vae_blend
            chunks = [chunk.pixels.copy() for chunk in decode_frames(latents, vaes, blend, run)]
        return Shown(np.concatenate(chunks), samples)
