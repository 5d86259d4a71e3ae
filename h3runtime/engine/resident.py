"""The engine: everything loaded once, then one request after another.

`generate` reads as the request's table of contents; each line is a stage of another package. Nothing below it knows of
jobs: it polls for a stop and reports progress between the lines and between sampler steps. Runs in a process of its own
under `jobs.supervisor`, or inside a command of the command line.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from h3runtime.backends.attention.options import AttentionOptions
from h3runtime.backends.attention.select import Attentions
from h3runtime.backends.cnn.select import steps_named
from h3runtime.backends.fused.select import choose_producers, producers_choice
from h3runtime.backends.linear.adapted import adapted
from h3runtime.backends.linear.base import LinearBackend
from h3runtime.backends.linear.dequant import DequantLinear
from h3runtime.backends.linear.fc2_schedule import SETTING, schedule_in, schedule_of, told_since
from h3runtime.backends.linear.nvfp4_options import Nvfp4Options
from h3runtime.backends.linear.select import (
    choose_linear,
    linear_backends,
    native_linear,
    spare_linear,
    vae_linear_choice,
)
from h3runtime.backends.linear.switching import LoadedLinears, told_layers, use
from h3runtime.backends.vit.select import choose_steps, steps_choice
from h3runtime.checkpoint.embedded.adapters import own_adapters
from h3runtime.conditioning.conditioner import Conditioner
from h3runtime.conditioning.prompt_cache import PromptCache
from h3runtime.conditioning.tokenizer import PromptTokenizer
from h3runtime.core import (
    Clip,
    EngineFacts,
    Estimate,
    GenerateSpec,
    OnProgress,
    Progress,
    Refined,
    SelfTest,
    ShouldStop,
    Task,
    Work,
)
from h3runtime.denoiser.dit import Dit
from h3runtime.denoiser.recordings import Recordings
from h3runtime.engine import determinism
from h3runtime.engine.adapters import AdapterShelf, Taken
from h3runtime.engine.clip import ClipTarget, DecodedClip, clip_writer, sampled_shape, write_clip
from h3runtime.engine.conditions.gathering import conditions_of, steps_of
from h3runtime.engine.conditions.media_cache import MediaCache
from h3runtime.engine.conditions.media_encoder import MediaEncoder
from h3runtime.engine.demand import rows_of
from h3runtime.engine.device import DeviceChoice, PeakMeter, choose_device, memory_facts
from h3runtime.engine.diagnosis import Diagnosis
from h3runtime.engine.estimating import Estimator
from h3runtime.engine.extras import Extras
from h3runtime.engine.faults import give_back, job_error_of
from h3runtime.engine.gates import why_no_gates
from h3runtime.engine.heap import map_large_blocks, trim
from h3runtime.engine.load import Loader, Models, OnComponent, checkpoint_name
from h3runtime.engine.memory_budget import kind_of
from h3runtime.engine.nvfp4_path import idle, looked, packed_since, told_packer, told_producers
from h3runtime.engine.paths import ALL_PARTITIONS, ModelPaths, model_paths
from h3runtime.engine.preview import ColourMap
from h3runtime.engine.refine import Refiner, parts_of
from h3runtime.engine.refine_passes import forwards_of, passes_of
from h3runtime.engine.refine_upscaler import UpscalerShelf
from h3runtime.engine.residency import ALL, require_legal
from h3runtime.engine.run import FIRST_GUESS, Run
from h3runtime.engine.sampling import Conditioned, Sampler, attention_of
from h3runtime.engine.self_test.enabled import Enabled
from h3runtime.engine.self_test.identity import identity_of
from h3runtime.engine.self_test.proving import prove
from h3runtime.engine.self_test.record import Record
from h3runtime.engine.self_test.verdict import (
    failed_linears,
    failed_of,
    next_linear,
    require_encoder,
    require_fusions,
    require_packer,
    warnings_of,
    without_schedule,
)
from h3runtime.engine.stopping import layers_of, polled
from h3runtime.engine.variants import variants_of
from h3runtime.engine.warmup import timed_apart, warm_up_specs
from h3runtime.errors import BackendUnavailable, DegenerateOutput, JobError, NumericalError, OutOfMemory
from h3runtime.media.ffmpeg import FFmpeg, find_ffmpeg
from h3runtime.settings import ATTENTION_ONLY, TRAINED_TILE, Settings, default_cache_dir

COMPUTE_DTYPE = torch.bfloat16
"""The transformer's; ComfyUI allows bf16 and fp32, and runs the published files in bf16 (dit-contract §1.1)."""

NVFP4_OPTIONS = frozenset(name for name in Settings.model_fields if name.startswith("nvfp4_"))
TESTED_OPTIONS = (ATTENTION_ONLY - {"attention"}) | NVFP4_OPTIONS
"""Settings that change what a kernel is asked to do."""


class ResidentEngine:
    """Implements `core.Engine`. One thread at a time; `load` before anything else.

    threads: of PyTorch on the CPU; None leaves its own choice. on_ffmpeg_line: gets what ffmpeg says from
    `ffmpeg_loglevel` on, from a thread. profile_memory: peaks of every stage, not of sampling alone. warm_up: run the
    warm-up shapes at load; of no use to a process that makes a single clip. on_component: told of each one that is
    loaded. partitions: load the transformers of no others; `load` refuses those that the settings leave out. previews:
    report a picture of the clip while it is sampled, for whoever shows them. own_upscaler: see `refine_upscaler`.
    """

    def __init__(
        self,
        settings: Settings,
        threads: int | None = None,
        *,
        ffmpeg_loglevel: str = "error",
        on_ffmpeg_line: Callable[[str], None] | None = None,
        profile_memory: bool = False,
        warm_up: bool = True,
        on_component: OnComponent = lambda _: None,
        partitions: Sequence[str] = ALL_PARTITIONS,
        previews: bool = False,
        own_upscaler: bool = True,
    ) -> None:
        if threads is not None:
            torch.set_num_threads(threads)
        determinism.pin()
        self.settings = settings
        self.place: DeviceChoice = choose_device(settings.device)
        self.device = self.place.device
        require_legal(settings.residency, self.device, is_integrated=kind_of(self.device) == "integrated")
        if self.device.type == "cpu":
            map_large_blocks()
        self.attentions = Attentions(self.device, AttentionOptions.of(settings))
        self.attention, self.attention_why = self.attentions.resolve(settings.attention)
        self.linear: LinearBackend[Any]
        self.nvfp4 = Nvfp4Options.of(settings)
        self.linears = linear_backends(self.nvfp4)
        self.linear, self.linear_why = choose_linear(settings.linear, self.device, self.linears)
        self.producers, self.producers_why = choose_producers(settings.fused, self.device, options=self.nvfp4)
        self.tool: FFmpeg = find_ffmpeg()
        self._ffmpeg_loglevel, self._on_ffmpeg_line = ffmpeg_loglevel, on_ffmpeg_line
        self._profile_memory, self._on_component = profile_memory, on_component
        self._partitions = partitions
        self._previews = previews
        self._colours: ColourMap | None = None
        self.adapters = AdapterShelf(settings.lora_dir, settings.lora_cache_bytes, self.device)
        self.upscaler = UpscalerShelf(settings, self.device, own=own_upscaler)
        self.recordings = Recordings(settings.cuda_graphs, settings.cuda_graph_bytes, self.device)
        self._warm_up_shapes = settings.warmup_shapes if warm_up else ()
        self._shares: Mapping[str, float] = FIRST_GUESS
        self._startup: dict[str, float] = {}
        self._warm_up_fault = ""
        self.self_test = SelfTest(why_off="nothing is loaded")
        self._warmed: list[Work] = []

    def load(self, on_progress: OnProgress) -> None:
        """Read all weights and run the warm-up shapes. CheckpointError or SettingsError says what can't be loaded.

        OutOfMemory and EngineDead are no fault of the files: another process may fare better.
        """
        try:
            self._load(on_progress)
        except Exception as error:
            failure = job_error_of(error, self.device, "loading")
            if failure is None:
                raise
            raise failure from error

    def _load(self, on_progress: OnProgress) -> None:
        began = time.monotonic()
        on_progress(Progress("loading"))
        self.paths: ModelPaths = model_paths(self.settings, self._partitions)
        tokenizer = PromptTokenizer.from_folder(self.paths.tokenizer)
        loader = Loader(
            self.settings,
            self.paths,
            self.device,
            self.linear,
            on_progress,
            self._on_component,
            spare_linear(self.settings.linear),
            native_linear(self.settings.linear, self.device, self.linears),
        )
        self.models: Models = loader.models(COMPUTE_DTYPE)
        self._vae_steps = loader.vae_steps, loader.why_vae_steps
        self._vae_linear = loader.vae_linear, loader.why_vae_linear
        channels = self.models.vaes.video.config.latent_channels
        self.upscaler.judge(self.paths.video_vae, channels, lambda _: on_progress(Progress("loading")))
        self.linear = loader.linear
        self.linear_why = "; ".join(filter(None, [loader.why_form or self.linear_why, loader.passed]))
        for network in self.models.transformers.values():
            network.producers = self.producers
        building = time.monotonic()
        networks = self.models.transformers.values()
        self.attentions.fit({network.config.head_dim for network in networks}, why_no_gates(networks))
        # Its first call compiles what it needs; the reference needs nothing.
        self.attention, self.attention_why = self.attentions.choose(self.settings.attention)
        self.models.vaes.video.build_encoder()
        self._startup["kernel_build_seconds"] = time.monotonic() - building
        encoder_hash = self.models.facts_of("text_encoder").sha256
        cache = PromptCache(self.settings.prompt_cache_bytes)
        self.conditioner = Conditioner(tokenizer, self.models.text_encoder, encoder_hash, cache)
        self._self_test(on_progress, tokenizer)
        self.media_cache = MediaCache(self.settings.prompt_cache_bytes)
        if self._previews:
            self._colours = ColourMap.of(self.models.vaes.video)
        own = own_adapters(self.paths.transformers.values())
        self.adapters.list(self.models.transformers, lambda _: on_progress(Progress("loading")), own)
        self.estimator = Estimator(
            self.models,
            tokenizer,
            self.device,
            self.adapters,
            self.attentions,
            self.attention.name,
            self.upscaler,
            self.recordings,
            self.settings.system_reserve_bytes,
        )
        self._warm_up(on_progress, loader)
        give_back(self.device)
        self.estimator.begin()
        self._startup["cold_start_seconds"] = time.monotonic() - began

    def generate(self, spec: GenerateSpec, on_progress: OnProgress, should_stop: ShouldStop) -> Clip:
        """One clip, or `spec.n` of the same conditions. Raises JobError kinds with stage and step, BadMedia for a file
        that changed since admission, InvalidRequest for a task whose transformer isn't loaded.

        EngineDead among them means that this process is of no more use.
        """
        determinism.assert_pinned()
        use(self.models.transformer_of(spec.task), self._linears().named(spec.linear))
        meter = PeakMeter(self.device, every_stage=self._profile_memory)
        run = Run(on_progress, should_stop, self._shares, meter, spec.n)
        try:
            clip = self._generate(spec, run)
        except Exception as error:
            failure = job_error_of(error, self.device, run.stage_name, run.step_index)
            if failure is None:
                raise
        else:
            self._settle()
            return clip
        # Not inside the handler: there the caught error still holds the tensors of every frame it passed.
        if isinstance(failure, OutOfMemory):
            self.recordings.clear()
            # Read again in a moment where the next request is refined, and no use to the others.
            self.upscaler.clear()
            give_back(self.device)
        raise failure

    def _settle(self) -> None:
        """A process keeps some of what its requests made it load and compile: on the CPU the next one comes on top."""
        self.adapters.settle()
        if self.device.type == "cpu":
            trim()
            self.estimator.begin()

    def _generate(self, spec: GenerateSpec, run: Run) -> Clip:
        network = self.models.transformer_of(spec.task)
        samplers = [self._sampler(each, network) for each in passes_of(spec)]
        with variants_of(spec) as variants, polled(layers_of(self.models, spec.task), run.check_stop):
            diagnoses = [Diagnosis(variant) for variant in variants.each]
            given, taken = self._condition(spec, run, diagnoses[0])
            with adapted(network, taken.changes):
                made = [
                    self._make(variant, given, samplers, run, diagnosis, taken.warnings)
                    for variant, diagnosis in zip(variants.each, diagnoses, strict=True)
                ]
            first, *others = variants.publish(made, run.check_stop)
        run.finish()
        self._shares = run.shares()
        return replace(first, timings=run.timings, memory=run.peaks, variants=tuple(others))

    def _sampler(self, spec: GenerateSpec, network: Dit) -> Sampler:
        attention = attention_of(spec, self.attention, self.attentions)
        tally = self.attentions.tally
        return Sampler(network, attention, self.device, COMPUTE_DTYPE, self._colours, tally, self.recordings)

    def _condition(self, spec: GenerateSpec, run: Run, diagnosis: Diagnosis) -> tuple[list[Conditioned], Taken]:
        """What conditions each pass, and the adapters of them all."""
        passes = passes_of(spec)
        with run.stage("conditioning", sum(map(steps_of, passes))):
            given = [self._conditioned(each, run, diagnosis) for each in passes]
            if spec.refine is not None:
                # Read now at the latest: a file that isn't the admitted one any more costs nobody a first pass.
                self.upscaler.take(spec.refine, run.look)
            network = self.models.transformer_of(spec.task)
            return given, self.adapters.take(spec.loras, spec.task.runs_on, network, run.look)

    def _conditioned(self, spec: GenerateSpec, run: Run, diagnosis: Diagnosis) -> Conditioned:
        with diagnosis.conditioning("media", self.media_cache):
            conditions = conditions_of(spec, MediaEncoder(self.models.vaes, self.device, self.media_cache, run))
        with diagnosis.conditioning("text", self.conditioner.cache):
            moved = self.models.residency != ALL
            text = self.conditioner.condition(conditions.pieces, run.asked if moved else run.should_stop)
            run.advance()
        return Conditioned.of(spec, text, conditions)

    def _make(
        self,
        spec: GenerateSpec,
        given: Sequence[Conditioned],
        samplers: Sequence[Sampler],
        run: Run,
        diagnosis: Diagnosis,
        warnings: tuple[str, ...],
    ) -> Clip:
        """One clip under the name that its spec has. given, samplers: of each pass. warnings: of its adapters."""
        first, *_ = passes = passes_of(spec)
        parts = parts_of(spec, [each.layout.rows for each in given], samplers[0].network.config)
        target = self._target(spec)
        refined: Refined | None = None
        schedule = schedule_of(samplers[0].network)
        before, packings = None if schedule is None else schedule.calls.look(), looked(samplers[0].network)
        # ffmpeg starts now, and not when somebody waits for it: it takes as long as two steps of a small clip.
        with clip_writer(target, sampled_shape(given[-1].layout), self.tool, run) as writer:
            latents = samplers[0].sample(first, given[0], run, diagnosis, part=parts[0])
            if spec.refine is not None:
                model = self.upscaler.take(spec.refine, run.look)
                refiner = Refiner(spec.refine, model, self.models.vaes.video, given[1], samplers[1], parts[1])
                latents, refined = refiner.refined(latents, passes[1], run, diagnosis)
            extras = Extras.of(spec, latents, diagnosis.latents)
            decoded = write_clip(latents, target, self.models.vaes, self.tool, run, writer)
            extras.publish()
        estimated = partial(self.estimator.memory, spec, [rows_of(each.layout) for each in given])
        diagnostics = diagnosis.report(latents, given[0].layout, given[0].conditions.inputs, run.peaks, estimated)
        if diagnostics is not None:
            products = told_since(schedule, before) | packed_since(packings)
            diagnostics["linear"] = told_layers(samplers[0].network) | products
            diagnostics["fused"] = told_producers(samplers[0].network)
            diagnostics["cuda_graphs"] = self.recordings.told()
        clip = self._clip(spec, decoded, samplers[0].attention.name, extras.latents, diagnostics)
        skipped = len(run.skipped)
        clip = replace(clip, forwards=clip.forwards - skipped, skipped_steps=skipped)
        return replace(clip, refined=refined, warnings=(*clip.warnings, *warnings))

    def facts(self) -> EngineFacts:
        return EngineFacts(
            device=self.place.name,
            checkpoint=checkpoint_name(self.models.facts),
            components=self.models.facts,
            attention=self.attentions.listing(self.attention.name, self.attention_why),
            linear=self._linears().choice(),
            startup=dict(self._startup),
            memory=memory_facts(self.device, self.settings.system_reserve_bytes) | self.models.host_facts(),
            warnings=(*self.models.warnings, *self._warnings(), *filter(None, [self._warm_up_fault])),
            # The first clip of a process pays for what the others find done, as the first job of a server does.
            warm_up=tuple(self._warmed[1:] or self._warmed),
            adapters=self.adapters.facts,
            fused=producers_choice(
                self.producers, self.producers_why, self.device, failed_of(self.self_test, "fused"), self.nvfp4
            ),
            vae_fused=steps_choice(*self._vae_steps, self.device, failed_of(self.self_test, "vae_fused")),
            vae_linear=vae_linear_choice(*self._vae_linear, self.device),
            upscaler=self.upscaler.facts,
            residency=self.models.residency,
            self_test=self.self_test,
        )

    def estimate(self, spec: GenerateSpec) -> Estimate:
        """See `estimating`: from any thread, no work on the device."""
        return self.estimator.estimate(spec)

    def close(self) -> None:
        """Give the device's memory back."""
        self.adapters.clear()
        self.upscaler.clear()
        self.recordings.clear()
        if hasattr(self, "models"):
            self.models.close()
        for name in ("models", "conditioner", "media_cache", "estimator"):
            if hasattr(self, name):
                delattr(self, name)
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    def _linears(self) -> LoadedLinears:
        networks = self.models.transformers.values()
        failed = failed_linears(self.self_test, self.linears)
        why = "; ".join(filter(None, [self.linear_why, told_packer(self.linear, self.device)]))
        return LoadedLinears(self.linear, why, self.linears, networks, self.device, failed)

    def _target(self, spec: GenerateSpec) -> ClipTarget:
        return ClipTarget(
            output=spec.output,
            scratch=spec.scratch,
            encode=spec.encode,
            overwrite=spec.overwrite,
            synthetic=self.models.made_up(spec.task) or self._is_upscaled_by_made_up(spec),
            blend=self.settings.vae_blend,
            mux_stall_seconds=self.settings.timeout_mux,
            ffmpeg_loglevel=self._ffmpeg_loglevel,
            on_ffmpeg_line=self._on_ffmpeg_line,
            tail=spec.tail,
            shown=self._colours is not None,
        )

    def _clip(
        self,
        spec: GenerateSpec,
        decoded: DecodedClip,
        attention: str,
        latents_output: Path | None,
        diagnostics: dict[str, Any] | None,
    ) -> Clip:
        written, shape = decoded.written, decoded.shape
        return Clip(
            output=written.output,
            sha256=written.sha256,
            bytes=written.bytes,
            width=shape.width,
            height=shape.height,
            frames=written.frames,
            samples=written.samples,
            seed=spec.sampling.seed,
            forwards=sum(forwards_of(spec)),
            attention=attention,
            linear=spec.linear or self.linear.name,
            timings={},
            memory={},
            checks=decoded.checks,
            warnings=(*self._warnings(spec.task), *decoded.warnings),
            latents_output=latents_output,
            diagnostics=diagnostics,
        )

    def _is_upscaled_by_made_up(self, spec: GenerateSpec) -> bool:
        facts = self.upscaler.facts
        return spec.refine is not None and facts is not None and facts.synthetic

    def _warnings(self, task: Task | None = None) -> tuple[str, ...]:
        """Of a clip of that task; without one, of everything that is loaded."""
        found = []
        if self.models.text_encoder.config.assumed and not self.models.facts_of("text_encoder").synthetic:
            assumed = ", ".join(self.models.text_encoder.config.assumed)
            found.append(f"the text encoder's file can't tell these sizes, which are assumed: {assumed}")
        if self.models.made_up(task):
            found.append("the loaded checkpoint is made up: it shows that the pipeline works, not what H3 can do")
        if task is None and (names := dict.fromkeys(part.model for part in self.models.facts if part.model)):
            found.append(f"{', '.join(names)} is loaded, a trained miniature that knows moving shapes: it is not H3")
        if self.settings.vae_tile_size != TRAINED_TILE:
            size = f"video VAE tiles of {self.settings.vae_tile_size} px"
            found.append(f"{size}: only {TRAINED_TILE} was trained, expect a grid")
        if (name := self._vae_linear[0].name) != DequantLinear.name:
            found.append(f"the video decoder multiplies in {name}: its pictures are near those of FP16, not the same")
        if task is None:
            found += [
                f"the adapter {facts.file} can't be used: {facts.fault}" for facts in self.adapters.facts if facts.fault
            ]
            found += self.upscaler.facts.warnings if self.upscaler.facts is not None else ()
            found += warnings_of(self.self_test)
            found += idle(tuple(self.models.transformers.values()), self.producers, self.nvfp4.scale_backend)
            schedule = schedule_in(self.linears)
            if schedule is not None and schedule.why_not is not None:
                found.append(f"{SETTING} has nothing to do: {schedule.why_not}")
        return tuple(found)

    def _self_test(self, on_progress: OnProgress, tokenizer: PromptTokenizer) -> None:
        """Ask every enabled kernel known answers; what fails isn't used, see `self_test`. BackendUnavailable where
        nothing may take its place."""
        if self.settings.self_test == "off":
            self.self_test = SelfTest(why_off="H3_SELF_TEST=off")
            return
        options = {name: str(getattr(self.settings, name)) for name in sorted(TESTED_OPTIONS)}
        enabled = Enabled(
            self.device,
            self.models,
            tokenizer,
            self.attentions,
            self.attention.name,
            self._linears(),
            self.producers,
            self._vae_steps[0],
            options,
        )
        record = Record(default_cache_dir(), identity_of(self.attentions.facts, enabled.told()))
        told = lambda done, of: on_progress(Progress("self_test", done, of, done / of))  # noqa: E731
        self.self_test = found = prove(enabled.checks(), record, self.device, told)
        self._startup["self_test_seconds"] = found.seconds
        if not all(check.cached for check in found.checks):
            give_back(self.device)
        if found.failed:
            self._do_without(found)

    def _do_without(self, found: SelfTest) -> None:
        """Choose anew in every family that has a kernel that failed."""
        require_encoder(found)
        require_packer(found, self.settings.nvfp4_scale_backend)
        require_fusions(found, self.producers.packs)
        without_schedule(found, schedule_in(self.linears))
        self.attentions.fail(failed_of(found, "attention"))
        self.attention, self.attention_why = self.attentions.choose(self.settings.attention)
        loaded, asked = self._linears(), self.settings.linear
        failed = failed_linears(found, loaded.candidates)
        self.linear, self.linear_why = next_linear(loaded, self.linear_why, asked, failed)
        if failed := failed_of(found, "fused"):
            self.producers, self.producers_why = choose_producers(self.settings.fused, self.device, failed, self.nvfp4)
        if failed := failed_of(found, "vae_fused"):
            self._vae_steps = steps, _ = choose_steps(self.settings.vae_fused, self.device, failed)
            self.models.vaes.video.take_steps(steps, steps_named(steps.name))
        for network in self.models.transformers.values():
            network.producers = self.producers
            use(network, self.linear)

    def _warm_up(self, on_progress: OnProgress, loader: Loader) -> None:
        """Run the listed shapes once on each transformer, so that the first request meets no lazy initialisation.

        An encoder that fails is told and no more: it is a program of its own, started anew for every clip, and can be
        put right without loading the weights again. So is a shape that H3_SOL_STRICT refuses to fall back for.
        """
        began = time.monotonic()
        with warm_up_specs(self._warm_up_shapes, self.models.transformers, self.settings.data_dir) as specs:
            for index, spec in enumerate(specs):
                on_progress(Progress("warming", index, len(specs), index / len(specs)))
                try:
                    with timed_apart(self.recordings) as measured:
                        clip = self.generate(spec, lambda _: None, lambda: False)
                    self._warmed.append(self.estimator.done(spec, measured.taken_from(clip.timings)))
                except (NumericalError, DegenerateOutput):
                    loader.require_finite(COMPUTE_DTYPE)
                    raise
                except BackendUnavailable as error:
                    self._warm_up_fault = f"a clip of the warm-up could not be made: {error.message}"
                except JobError as error:
                    if error.stage != "mux":
                        raise
                    self._warm_up_fault = f"the clip of the warm-up could not be written: {error.message}"
        self.conditioner.cache.clear()
        self._shares = FIRST_GUESS
        self._startup["warmup_seconds"] = time.monotonic() - began
