"""The engine: loads every model once and turns requests into clips.

    resident              the engine itself: load, generate
    load, paths           which files, and how they become models
    components            which model each checkpoint fills, and by which rule
    load_meter            how far loading is
    inspection            a checkpoint judged as for loading, and what it would cost here
    conditions            a request's media -> keyframes, references, masks and what the text encoder sees
    sampling, preview     what conditions a clip -> latents, and a cheap look at it meanwhile
    variants              several clips of one request, published together
    clip, host_frames     latents -> MP4, while decoding goes on
    tail, chain           the end of a clip kept for the next one; a list of clips as one
    decode                saved latents -> clip, sound or pictures, without the transformer
    latents_file, extras  what may lie beside a clip
    run, stopping         stages, progress; stops, also between the layers of a model
    diagnosis             what a request may ask about its own run
    room                  whether the weights fit into the device's memory
    estimating            what a request would take: rows (sound_lengths), demand, work, memory; what would fit
    memory_estimate       what a request takes of memory beside the weights, by memory_formulas
    memory_budget         what there is of it, by the kind of device, and what the system keeps
    block_allocator       how PyTorch's allocator rounds it
    planning              all of these for a machine that isn't at hand (machines, places, planned_set, planned_linear),
                          asked of models that aren't loaded (unfilled)
    model_files           the public files that a machine needs, and whether they are there
    faults                what a library's exception means for the job and for the process
    device, determinism   where it runs, and the numeric switches of the process
    self_test             known answers that its kernels are asked before that
    warmup                what it runs before it says ready

Asked by `jobs.child`, which knows it by name only, and by the command line.
"""

from h3runtime.core import ComponentFacts, Engine
from h3runtime.engine.resident import ResidentEngine
from h3runtime.observe.spans import configure_spans
from h3runtime.settings import Settings


def create(settings: Settings, threads: int | None = None) -> Engine:
    """The engine of these settings, not loaded yet; `jobs.child` calls it by name in the engine's process."""
    configure_spans(settings.otlp_endpoint, "h3runtime-engine")
    return ResidentEngine(settings, threads, on_component=_log_component, previews=True, own_upscaler=False)


def _log_component(facts: ComponentFacts) -> None:
    # Logs are a server's: a command that makes one clip need not wait for this import.
    import structlog

    structlog.get_logger("h3runtime.engine").info(
        "component_loaded",
        component=facts.component,
        partition=facts.partition,
        file=facts.file,
        sha256=facts.sha256,
        format=facts.format,
        bytes=facts.bytes,
        load_seconds=facts.load_seconds,
        bytes_per_second=facts.bytes_per_second,
        qkv=facts.qkv,
        adaln=facts.adaln,
        warnings=facts.warnings,
    )
