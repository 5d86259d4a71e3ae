"""A clip's latents by the engine, and how far two of them are apart, without an encoder or a file between.

Samples as the engine does for any request: its conditions, transformer, linears and attention. What is compared is
decoded by its VAEs chunk by chunk, both clips in step, and reduced on its device: no frame goes to the host and memory
doesn't grow with the clip. Of the engine's checks the latents' count here; what the others refuse (a constant sound,
one colour) is far from any exact clip. Fed by `calibrate` with an engine; read by `trials`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from h3runtime.backends.linear.switching import use
from h3runtime.cli.calibration.made import Apart, Sampled
from h3runtime.cli.calibration.prompts import Prompts
from h3runtime.cli.calibration.similarity import frame_ssims
from h3runtime.cli.calibration.size import Size
from h3runtime.cli.generation.judging import Ruling, judge_with_engine, rule_on
from h3runtime.cli.sides.engines import linear_of
from h3runtime.core import GenerateSpec, Latents, SamplerSettings, ShouldStop
from h3runtime.denoiser.schedule import forwards
from h3runtime.engine import determinism
from h3runtime.engine.clip import decode_sound, measure_latents
from h3runtime.engine.conditions.gathering import conditions_of
from h3runtime.engine.conditions.media_encoder import MediaEncoder
from h3runtime.engine.device import tile_room
from h3runtime.engine.diagnosis import Diagnosis
from h3runtime.engine.faults import give_back, job_error_of
from h3runtime.engine.resident import COMPUTE_DTYPE, ResidentEngine
from h3runtime.engine.run import FIRST_GUESS, Run
from h3runtime.engine.sampling import STAGE, Conditioned, Sampler, attention_of
from h3runtime.engine.stopping import layers_of, polled
from h3runtime.errors import InvalidRequest, Offence, OutOfMemory, invalid
from h3runtime.media import sound
from h3runtime.media.checks import check_latents, refuse
from h3runtime.quality.distances import sound_distance
from h3runtime.quality.levels import Choice
from h3runtime.settings import Settings
from h3runtime.vae.video_pixels import to_bytes

SEEDS_APART = 1_000_003
"""Noise of prompt P and seed S is that of seed P * this + S: no two clips share it."""


@dataclass(frozen=True, slots=True)
class Requests:
    """What is asked for: every prompt at one size and schedule. scratch: for media."""

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
        """JobError kinds as of `ResidentEngine.generate`, and InvalidRequest for a choice that isn't there."""
        engine, requests = self._engine, self._requests
        ruling = requests.ruling(choice, prompt, seed, engine.settings)
        judge_with_engine([ruling], engine.facts(), is_chain=False)
        spec = ruling.spec(requests.scratch / "none.mkv", requests.scratch)
        run = self._run()
        with self._told(run):
            latents = self._latents(spec, run)
        refuse({"latents": check_latents(measure_latents(latents), synthetic=False)}, STAGE)
        count = forwards(spec.sampling)
        return Sampled(latents, run.timings[STAGE], count - len(run.skipped), len(run.skipped))

    def apart(self, exact: Latents, made: Latents) -> Apart:
        """Of two clips of one size; JobError kinds."""
        run = self._run()
        with self._told(run), run.stage("video_decode"):
            both = zip(self._frames(exact, run), self._frames(made, run), strict=True)
            ssims = torch.cat([frame_ssims(*pair) for pair in both])
            return Apart(float(ssims.mean()), sound_distance(self._samples(exact), self._samples(made)))

    def _run(self) -> Run:
        return Run(lambda _: None, self._should_stop, FIRST_GUESS)

    def _latents(self, spec: GenerateSpec, run: Run) -> Latents:
        engine = self._engine
        determinism.assert_pinned()
        network = engine.models.transformer_of(spec.task)
        use(network, linear_of(engine, spec))
        attention, tally = attention_of(spec, engine.attention, engine.attentions), engine.attentions.tally
        sampler = Sampler(network, attention, engine.device, COMPUTE_DTYPE, None, tally, engine.recordings)
        with polled(layers_of(engine.models, spec.task), run.check_stop):
            conditions = conditions_of(spec, MediaEncoder(engine.models.vaes, engine.device, engine.media_cache, run))
            text = engine.conditioner.condition(conditions.pieces, run.should_stop)
            return sampler.sample(spec, Conditioned.of(spec, text, conditions), run, Diagnosis(spec))

    def _frames(self, latents: Latents, run: Run) -> Iterator[torch.Tensor]:
        """uint8 [n, H, W, 3] on the device, as an encoder would get them."""
        engine = self._engine
        chunks = engine.models.vaes.video.decode_chunks(
            latents.video.to(engine.device),
            blend=engine.settings.vae_blend,
            should_stop=run.should_stop,
            room=tile_room(engine.device),
        )
        return map(to_bytes, chunks)

    def _samples(self, latents: Latents) -> Any:
        return sound.prepare(decode_sound(latents, self._engine.models.vaes), self._requests.size.frames, "comfyui")

    @contextmanager
    def _told(self, run: Run) -> Iterator[None]:
        """A library's own exceptions as the job's end that they stand for, and memory given back after one."""
        device = self._engine.device
        try:
            yield
        except Exception as error:
            failure = job_error_of(error, device, run.stage_name, run.step_index)
            if failure is None:
                raise
        else:
            return
        # Not inside the handler: there the caught error still holds the tensors of every frame it passed.
        if isinstance(failure, OutOfMemory):
            self._engine.recordings.clear()
            give_back(device)
        raise failure
