"""The nouns that stages pass to each other. No torch at import: tensors appear in annotations only.

Who fills what, in the order of a request:

    GenerateSpec      filled by `api` (or the command line) from a validated request; read by `engine`
    TextFeatures      filled by `conditioning`; read by `packing` (length, tags) and `denoiser` (hidden)
    Keyframe,         filled by `engine` from the video and audio encoders; read by `packing` (shapes) and `denoiser`
    Reference
    PackedLayout      filled by `packing`; read by `denoiser` and the attention backends
    Latents           filled by `denoiser`; read by `vae`
    Clip              filled by `engine`; read by `api` and the command line

Shapes use one alphabet: B batch, S packed rows, H heads, D head dim, T h w latent grid, C channels, A audio latents,
L text rows, F pixel frames.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

if TYPE_CHECKING:
    import numpy as np
    import torch
    from numpy.typing import NDArray

FPS = 24
"""Frames a second of every H3 clip (conditioning contract §0)."""
SAMPLE_RATE = 32_000
"""Samples a second of H3's sound (conditioning contract §0)."""
SAMPLES_PER_LATENT = 800
"""Audio samples one audio latent stands for: 2*4*4*5*5 (conditioning contract §5.1)."""
PIXELS_PER_LATENT = 16
"""Pixels that a video latent spans in each direction (conditioning contract §0)."""
CHUNK_FRAMES = 17
"""Frames that the video VAE encodes at once, and each chunk of a decode adds (conditioning contract §4.4, §4.6)."""
CHUNK_LATENTS = 5
"""Latents of one such chunk: 1 for its first frame, then one per 4 (conditioning contract §4.1)."""
MIN_FRAMES = 5
"""The shortest clip: lengths are 17n+5 frames (dit-contract §6)."""
TRAINED_FRAMES = (107, 362)
"""Lengths that H3 was trained on (conditioning contract §3.1; service-contract, `frames`)."""
SIDE_MULTIPLE = 32
"""Pixels: the VAE divides a side by 16 and the DiT's patch by 2."""
MIN_SIDE = 64
"""Pixels (service-contract, small print)."""
AREA_CAP = 1344 * 768
"""Pixels of the largest canvas that the model was trained on (conditioning contract §0)."""

MAX_STEPS = 200
"""Most model evaluations of a run (service-contract, `steps`)."""
SHIFT_RANGE = (1e-3, 1e3)
"""Sigma shifts outside lose the fp32 arithmetic of S_s and its inverse; the model's own are 12, 6 and 3."""
LATENTS_SUFFIX = ".latents.safetensors"
"""`cat.mp4` with `save_latents` also writes `cat.mp4.latents.safetensors` (service-contract)."""
STEPS_SUFFIX = ".steps.safetensors"
"""`cat.mp4` with diagnostics of latents also writes `cat.mp4.steps.safetensors`."""


class Task(StrEnum):
    """What is asked of the model; the input media decide it (conditioning contract §3)."""

    T2VA = "t2va"
    I2VA = "i2va"
    L2VA = "l2va"
    FL2VA = "fl2va"
    REF2VA = "ref2va"

    @property
    def runs_on(self) -> str:
        """The partition of the transformer that runs it, `fl2va` or `ref2va` (conditioning contract §3)."""
        return Task.REF2VA.value if self is Task.REF2VA else Task.FL2VA.value


class Modality(IntEnum):
    """Row of the AdaLN table that a packed row uses (dit-contract §2.2)."""

    VIDEO = 0
    TEXT = 1
    AUDIO = 2


class SegmentKind(StrEnum):
    """What the rows of one packed segment are. `REF_IMAGE` covers reference video rows, `REF_AUDIO` soundtracks."""

    TEXT = "text"
    COND = "cond"
    COND_AUDIO = "cond_audio"
    REF_IMAGE = "ref_img"
    REF_AUDIO = "ref_audio"
    AUDIO = "audio"
    VIDEO = "video"


@dataclass(frozen=True, slots=True)
class TextFeatures:
    """The prompt as the DiT reads it.

    hidden: fp32 [1, L, text_dim], residual stream after the last language layer, no final norm.
    tags:   int64 [L], `Modality.TEXT`, or `Modality.VIDEO` on whole vision blocks (conditioning contract §1.5).
    """

    hidden: torch.Tensor
    tags: NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class KeyframeShape:
    """A guide on the target's own clock: pixel frame (not negative), latent frames (0: sound only), audio latents."""

    frame: int
    latent_frames: int
    audio_latents: int = 0


@dataclass(frozen=True, slots=True)
class ReferenceShape:
    """A reference ahead of the target. `height`, `width` are its own latent grid; both 0 for a lone sound."""

    kind: Literal["image", "video", "audio"]
    latent_frames: int = 0
    height: int = 0
    width: int = 0
    audio_latents: int = 0


@dataclass(frozen=True, slots=True)
class Segment:
    """Packed rows [start, stop) of one kind. `source` indexes the keyframe or reference they come from, else -1."""

    kind: SegmentKind
    start: int
    stop: int
    source: int = -1


@dataclass(frozen=True, slots=True)
class PackedLayout:
    """Where every row of the packed sequence comes from and where it sits on the rotary clock.

    latent_frames, height, width, audio_latents: target latent grid T, h, w (even) and A.
    segments:      in packed order; text, keyframes, references, audio, video (dit-contract §2.1).
    position_ids:  float64 [S, 3] (t, h, w), dit-contract §3.4.
    text_tags:     int64 [L].
    """

    latent_frames: int
    height: int
    width: int
    audio_latents: int
    segments: tuple[Segment, ...]
    position_ids: NDArray[np.float64]
    text_tags: NDArray[np.int64]

    @property
    def rows(self) -> int:
        return self.segments[-1].stop

    @property
    def text_rows(self) -> int:
        return self.segments[0].stop

    def of_kind(self, *kinds: SegmentKind) -> tuple[Segment, ...]:
        return tuple(s for s in self.segments if s.kind in kinds)


@dataclass(frozen=True, slots=True)
class Keyframe:
    """A guide: clean, normalised latents, fp32. latent [1, 24, t, h, w] or None; audio_latent [1, 32, 2, A] or None."""

    frame: int
    latent: torch.Tensor | None
    audio_latent: torch.Tensor | None = None


@dataclass(frozen=True, slots=True)
class Reference:
    """A reference: clean, normalised latents, fp32, shaped as in `Keyframe`, on its own grid."""

    kind: Literal["image", "video", "audio"]
    latent: torch.Tensor | None
    audio_latent: torch.Tensor | None = None


@dataclass(frozen=True, slots=True)
class Latents:
    """Normalised latents of one clip. video fp32 [1, 24, T, h, w]; audio fp32 [1, 32, 2, A] (axis 2: left, right)."""

    video: torch.Tensor
    audio: torch.Tensor


@dataclass(frozen=True, slots=True)
class SamplerSettings:
    """How to walk from noise to a clip. `shift`, `audio_shift` are S_s of dit-contract §5.1."""

    steps: int
    sampler: str = "res_multistep"
    scheduler: str = "beta"
    shift: float = 12.0
    audio_shift: float = 3.0
    seed: int = 0
    denoise: float = 1.0


CacheMode = Literal["easycache", "h3_cache", "first_block"]
Forecast = Literal["hold", "delta", "taylor"]
REUSE_THRESHOLDS: Mapping[CacheMode, float] = {"easycache": 0.15, "h3_cache": 0.1, "first_block": 0.3}
"""Where a request names a mode and no threshold. Of 12 steps at 9,310 rows, h3-nano's clips of 24 prompts keep a mean
SSIM of 0.988, 0.985 and 0.997 to the exact ones with 7.3, 7.4 and 11.2 forwards, and their sound is 0.64, 0.73 and 0.44
dB off (benchmarks/LOG.md). EasyCache's own default, 0.2, gives 0.981, 6.5 and 0.90. Another checkpoint has others:
`h3runtime calibrate` finds them."""
MAX_REUSE_THRESHOLD = 3.0
"""ComfyUI's own bound of EasyCache's `reuse_threshold`."""
REUSE_WINDOW, REUSE_SUBSAMPLE = (0.15, 0.95), 8
"""`cache_start_percent`, `cache_end_percent` and `cache_subsample_factor` unless a request names them: EasyCache's
(dit-contract §9)."""


@dataclass(frozen=True, slots=True)
class StepReuse:
    """Which steps of a run are made from earlier ones instead of being computed (service-contract, `cache_mode`).

    mode: what must stay below `threshold`, for picture and sound each: the relative change of the velocities that the
    latents' change foretells, summed since the last computed step (`easycache`) or of this step alone (`h3_cache`), or
    that of the first block's residual since the last computed step (`first_block`).
    start, end: shares of the run between which steps may be reused, 0 where it begins and 1 where it is clean: S_s(1 -
    share) is the sigma (dit-contract §9). subsample: each how many-th latent of a row and line, or packed row, is
    compared. forecast: what a reused step is made of, unless it is `first_block`'s: the straight line through the last
    two computed velocities, the last one held, or the last denoised delta as it was.
    """

    mode: CacheMode
    threshold: float
    start: float = REUSE_WINDOW[0]
    end: float = REUSE_WINDOW[1]
    subsample: int = REUSE_SUBSAMPLE
    forecast: Forecast = "taylor"


@dataclass(frozen=True, slots=True)
class LoadProgress:
    """Which component is being read, how many bytes of all files lie behind, and bytes a second of this component.

    partition: of a transformer, as in `ComponentFacts`.
    """

    component: str
    bytes_done: int
    bytes_in_all: int
    bytes_per_second: float
    partition: str | None = None


@dataclass(frozen=True, slots=True)
class Progress:
    """One sign of life. `stage` is `loading`, `self_test`, `warming`, `conditioning`, `sampling`, `audio_decode`,
    `video_decode`, `mux` or `done`, and `queued` before any engine has the job; `step` of `steps` counts within the
    stage; `fraction` 0..1 is of the whole and never falls. `loading` is given in that stage. `preview`: a cheap look at
    the clip, a PNG, at most once a step while sampling, and its middle frame while decoding. `skipped`: of the
    sampling's steps so far, those that were reused, counted from 0."""

    stage: str
    step: int = 0
    steps: int = 0
    fraction: float = 0.0
    eta_seconds: float | None = None
    loading: LoadProgress | None = None
    preview: bytes | None = field(default=None, repr=False)
    skipped: tuple[int, ...] = ()


OnProgress = Callable[[Progress], None]
ShouldStop = Callable[[], bool]


@dataclass(frozen=True, slots=True)
class MediaFile:
    """A judged input on this machine's disk. field: its name in the request. sha256: of its bytes, in hex digits."""

    path: Path
    field: str
    sha256: str = ""


@dataclass(frozen=True, slots=True)
class ClipInput:
    """Pictures [first, first + frames) of a clip, counted on a 24 fps clock that starts at its first picture."""

    file: MediaFile
    first: int
    frames: int


@dataclass(frozen=True, slots=True)
class SoundInput:
    """The sound of a file from `start` on: seconds after the file's first picture, or after the first sample of a file
    that has none. `seconds`: how much of it, None for all there is."""

    file: MediaFile
    start: float = 0.0
    seconds: float | None = None


Fit = Literal["stretch", "cover"]
"""How a picture gets to another size: aspect ignored, or its middle cut out first (conditioning contract §3.2)."""


@dataclass(frozen=True, slots=True)
class GuideInput:
    """What is anchored at pixel frame `frame` of the target, 0..F-1 (dit-contract §8): a picture or a clip on the
    target's canvas, a sound from there on, or both. First and last frame are guides too.

    field: its name in the request, `first_frame` or `keyframes[1]`. shown: the text encoder sees it as well, as the
    next `<Picture i>`; a clip is never shown.
    """

    field: str
    frame: int
    picture: MediaFile | None = None
    clip: ClipInput | None = None
    sound: SoundInput | None = None
    fit: Fit = "cover"
    shown: bool = False


@dataclass(frozen=True, slots=True)
class ReferenceInput:
    """One reference of Ref2VA, in the caller's order (conditioning contract §3.3). `sound` beside a clip is the
    soundtrack that is used with it. width, height: pixels to which its pictures are stretched; 0 for a lone sound."""

    field: str
    kind: Literal["image", "video", "audio"]
    width: int = 0
    height: int = 0
    picture: MediaFile | None = None
    clip: ClipInput | None = None
    sound: SoundInput | None = None


@dataclass(frozen=True, slots=True)
class MaskSpan:
    """Seconds [start, end) of the target's sound and their mask: 1 generates, 0 keeps."""

    start: float
    end: float
    value: float


@dataclass(frozen=True, slots=True)
class SourceInput:
    """A clip to edit and what of it is kept (dit-contract §8, masks).

    clip: as many frames as the target has. sound: its own sound, None if it has none or all of it is generated.
    video_mask: a picture for all frames, or a clip; white generates; None generates everything. audio_mask: spans in
    order; what lies in none is generated; None generates everything.
    """

    clip: ClipInput
    sound: SoundInput | None = None
    video_mask: MediaFile | ClipInput | None = None
    audio_mask: tuple[MaskSpan, ...] | None = None


TAIL_FRAMES = 56
"""Frames of each clip that a server keeps for `continue_from`: 17n+5, a little over two seconds."""


@dataclass(frozen=True, slots=True)
class TailRequest:
    """Where the last `frames` frames of the clip and their sound are kept without loss, for a clip that continues."""

    path: Path
    frames: int


@dataclass(frozen=True, slots=True)
class AdapterUse:
    """An adapter of a request. strength: 0 leaves it off. sha256: of the file that it was admitted with. alpha, rank:
    of most of its layers; None and 0 where layers differ, or for one that has no pairs. alpha_given: of the request,
    for the layers that the file has none for. scale: strength * alpha / rank, what its products are multiplied with;
    None where layers differ. matched of total: its layers that the transformer has."""

    name: str
    strength: float
    sha256: str
    alpha: float | None
    rank: int
    scale: float | None
    matched: int
    total: int
    alpha_given: float | None = None


@dataclass(frozen=True, slots=True)
class RefinePass:
    """A second pass over the upscaled latents of a first one (service-contract, `refine`; dit-contract §9).

    width, height: the first pass's canvas in pixels; the spec's own are the clip's. scale: as it was asked for, before
    the clip's sides were rounded. steps, denoise: the second pass's, as in `SamplerSettings`. upscaler: SHA-256 of the
    file that it was admitted with; "" takes the one that is there.
    """

    width: int
    height: int
    scale: float
    steps: int
    denoise: float
    upscaler: str = ""


Container = Literal["mp4", "mov", "mkv", "webm"]
VideoCodec = Literal["h264", "hevc", "vp9", "av1"]
PixelFormat = Literal["yuv420p", "yuv444p", "yuv420p10le"]
AudioCodec = Literal["aac", "opus", "flac", "pcm_s16le"]


@dataclass(frozen=True, slots=True)
class EncodeSettings:
    """How the clip is written (service-contract, `format`); a combination that its container holds.

    audio_bitrate: bits a second. sample_rate: Hz. fps: pictures a second; another than 24 drops or repeats pictures by
    their time and keeps the duration. loudness: the rule of conditioning contract §5.6, or none.
    """

    container: Container = "mp4"
    video_codec: VideoCodec = "h264"
    crf: int | None = None
    pixel_format: PixelFormat = "yuv420p"
    audio_codec: AudioCodec = "aac"
    audio_bitrate: int | None = None
    sample_rate: Literal[32_000, 44_100, 48_000] = 32_000
    fps: float = FPS
    loudness: Literal["comfyui", "none"] = "comfyui"


@dataclass(frozen=True, slots=True)
class GenerateSpec:
    """One request, every value resolved; nothing in it needs judging again.

    prompt: the assembled text, as the text encoder reads it. guides: in the order of the packed sequence. n: clips to
    make of the same conditions, with seeds seed + i; where there are several, clip i goes to `variant_path(output, i)`.
    output: where the finished file goes, absolute. scratch: a folder for temporary files on the same file system. tail:
    of the first clip. attention_plan: the attention backend of each step of `sampling.steps`, from the first; empty
    where `attention` runs them all. loras: adapters, all active at once. refine: a second pass, whose canvas `width`
    and `height` are.
    reuse: which steps are spared; None computes them all.
    evidence: what speaks for the quality level that chose attention, linear and reuse; None without such a level.
    request: the client's own words, echoed into saved latents; never logged.
    """

    job_id: str
    task: Task
    prompt: str
    width: int
    height: int
    frames: int
    sampling: SamplerSettings
    output: Path
    scratch: Path
    n: int = 1
    guides: tuple[GuideInput, ...] = ()
    references: tuple[ReferenceInput, ...] = ()
    source: SourceInput | None = None
    tail: TailRequest | None = None
    attention: str | None = None
    attention_plan: tuple[str, ...] = ()
    linear: str | None = None
    reuse: StepReuse | None = None
    loras: tuple[AdapterUse, ...] = ()
    refine: RefinePass | None = None
    encode: EncodeSettings = EncodeSettings()
    overwrite: bool = False
    save_latents: bool = False
    diagnostics: bool = False
    diagnostic_latents: bool = False
    evidence: Mapping[str, Any] | None = None
    request: Mapping[str, Any] = field(default_factory=dict)


def variant_path(output: Path, index: int, n: int) -> Path:
    """Where clip `index` of `n` goes: `cat.mp4`, or `cat-0.mp4`, `cat-1.mp4` of several (service-contract, `n`)."""
    return output if n == 1 else output.with_name(f"{output.stem}-{index}{output.suffix}")


@dataclass(frozen=True, slots=True)
class Check:
    """What one look at the result found: figures, and findings of level `warn` or `fail`."""

    figures: Mapping[str, float | bool]
    findings: tuple[tuple[Literal["warn", "fail"], str], ...] = ()


@dataclass(frozen=True, slots=True)
class Refined:
    """What a clip's second pass took: of its `forwards`, and of its seconds of sampling, those for the upscaler and
    those for the model."""

    forwards: int
    upscaling_seconds: float
    sampling_seconds: float


@dataclass(frozen=True, slots=True)
class Clip:
    """A finished clip and the facts about it; what `Engine.generate` returns. variants: the further clips of a request
    that asked for several, in order; figures of time and memory are the whole request's and stand in the first.
    skipped_steps: of all steps, those that were reused; `forwards` counts the others, of
    both passes if it was refined."""

    output: Path
    sha256: str
    bytes: int
    width: int
    height: int
    frames: int
    samples: int
    seed: int
    forwards: int
    attention: str
    linear: str
    timings: Mapping[str, float]
    memory: Mapping[str, int]
    checks: Mapping[str, Check]
    warnings: tuple[str, ...] = ()
    latents_output: Path | None = None
    diagnostics: Mapping[str, Any] | None = None
    variants: tuple[Clip, ...] = ()
    skipped_steps: int = 0
    refined: Refined | None = None


@dataclass(frozen=True, slots=True)
class Work:
    """What a request asks of each stage, in operations (multiply and add count as two; of `mux`, pixels). The same
    work takes the same time on one machine, whatever the request looks like: what predictions are made of."""

    stages: Mapping[str, float]
    seconds: Mapping[str, float] = field(default_factory=dict)
    """How long each stage took, where that is known."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """What a request would take, by its sizes alone: nothing is computed or allocated.

    rows: packed rows by `SegmentKind`. memory: bytes by part, for people. peak_bytes: of them all at the worst moment,
    weights included. capacity_bytes: what this engine may have where it computes: what it holds plus what is free
    (a discrete card's own memory, else MemAvailable). would_fit: what to ask for instead, "" if it fits.
    """

    rows: Mapping[str, int]
    forwards: int
    work: Work
    memory: Mapping[str, int]
    peak_bytes: int
    capacity_bytes: int
    would_fit: str = ""

    @property
    def fits(self) -> bool:
        return self.peak_bytes <= self.capacity_bytes


@dataclass(frozen=True, slots=True)
class BackendChoice:
    """A family of interchangeable backends as `/ready` shows it.

    exact: of the available ones, best first, those that `quality: exact` takes beside the ones of grade `reference`.
    notes: what else is to be known of one, such as the backend that it hands calls to.
    """

    default: str
    why: str
    available: tuple[str, ...]
    grades: Mapping[str, str]
    unavailable: Mapping[str, str]
    exact: tuple[str, ...] = ()
    notes: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ComponentFacts:
    """One loaded checkpoint. `component` is `transformer`, `text_encoder`, `video_vae` or `audio_vae`.

    sha256: of the file; for several files, of their names and digests (`checkpoint.hashing.sha256_of_parts`).
    bytes: of its tensors. bytes_per_second: these, over the seconds it took to load; hashing, if any, included.
    partition: what a transformer is used for, as the settings say; its file can't tell (dit-contract §1.3).
    qkv: the stored row order of a transformer's q, k and v and what told it. adaln: its form, `pruned` or `full`.
    warnings: what is odd about the files and no reason to refuse them.
    model: the name of a trained model that isn't H3 itself, such as the embedded h3-nano; None for H3.
    trained_frames: shortest and longest clip that a transformer other than H3's was trained on; None: H3's own.
    """

    component: str
    file: str
    sha256: str
    format: str
    bytes: int
    load_seconds: float
    synthetic: bool
    partition: str | None = None
    bytes_per_second: float = 0.0
    qkv: str | None = None
    warnings: tuple[str, ...] = ()
    adaln: str | None = None
    model: str | None = None
    trained_frames: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class AdapterContract:
    """What a published adapter was trained for; an empty tuple leaves a value open.

    name: of the publication. told_by: how it was recognised. source: where the values come from. steps: forwards.
    advised: schedulers without which it runs, but not as it was trained. alpha: at the rank it was published with,
    where its file has none.
    """

    name: str
    told_by: str
    source: str
    steps: tuple[int, ...] = ()
    shift: tuple[float, ...] = ()
    audio_shift: tuple[float, ...] = ()
    samplers: tuple[str, ...] = ()
    schedulers: tuple[str, ...] = ()
    tasks: tuple[str, ...] = ()
    alpha: float | None = None
    advised: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class AdapterFit:
    """How an adapter fits one transformer. matched of total: its layers that the transformer has. fault: why it can't
    be applied there, "" if it can. skipped: AdaLN layers of another width, which are left out. unmatched: other layers
    that the transformer hasn't."""

    matched: int
    total: int
    fault: str = ""
    skipped: tuple[str, ...] = ()
    unmatched: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class AdapterFacts:
    """An adapter that requests may name. fault: why nobody can use it, "" if it is sound. layout: see
    `checkpoint.lora.layout`. rank, alpha, ratio: as in `AdapterUse`, at strength 1, as far as the file tells.
    needs_alpha: some of its layers have none, so that a request must name one; mixed_alpha: others have one of their
    own. fits: by partition."""

    name: str
    file: str
    sha256: str
    bytes: int
    layout: str = ""
    rank: int = 0
    ranks: tuple[int, ...] = ()
    alpha: float | None = None
    ratio: float | None = None
    needs_alpha: bool = False
    mixed_alpha: bool = False
    fits: Mapping[str, AdapterFit] = field(default_factory=dict)
    contract: AdapterContract | None = None
    fault: str = ""


@dataclass(frozen=True, slots=True)
class UpscalerFacts:
    """The latent upscaler of requests that ask to be refined. sha256: as in `ComponentFacts`. bytes: resident, from the
    first such request on. embedded: it came with the embedded model."""

    file: str
    sha256: str
    format: str
    bytes: int
    synthetic: bool
    embedded: bool
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class KernelCheck:
    """One known answer, asked of one kernel on this machine.

    family: of interchangeable backends, or `text_encoder` and `nvfp4_packing`. kernel: a name of the family. asked: of
    what shape. error: what `tolerance` bounds, relative L2 of the worst row unless `asked` says another; None where
    nothing came back. reason: why it failed, "" if it passed. cached: it passed at an earlier start.
    """

    family: str
    kernel: str
    asked: str
    error: float | None
    tolerance: float
    seconds: float
    reason: str = ""
    cached: bool = False

    @property
    def passed(self) -> bool:
        return not self.reason


@dataclass(frozen=True, slots=True)
class SelfTest:
    """What an engine asked of its kernels before it said ready. seconds: of this start. why_off: why nothing was asked,
    "" where it was. kept: the file of the cache folder in which passed checks are remembered, "" where nothing is."""

    checks: tuple[KernelCheck, ...] = ()
    seconds: float = 0.0
    why_off: str = ""
    kept: str = ""

    @property
    def failed(self) -> Mapping[tuple[str, str], str]:
        """Why, by family and kernel."""
        first = reversed([check for check in self.checks if check.reason])
        return {(check.family, check.kernel): f"failed the self-test: {check.asked}: {check.reason}" for check in first}


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """What a loaded engine says of itself, once; plain values, so that the API can show them without torch.

    checkpoint: names all that is loaded, `<transformer's file>:<12 hex digits over every component's SHA-256>`, by the
    FL2VA transformer where there are both. warm_up: how long the warm-up clips took, a first history. fused: who makes
    what lies between a block's matrix products, vae_fused: of the video decoder's, vae_linear: for these; None where
    nobody asked. upscaler: None where there is none, and no request can be refined. self_test: None where nobody asked.
    residency: where the text encoder's weights are (`H3_RESIDENCY`).
    """

    device: str
    checkpoint: str
    components: tuple[ComponentFacts, ...]
    attention: BackendChoice
    linear: BackendChoice
    startup: Mapping[str, float]
    memory: Mapping[str, int]
    warnings: tuple[str, ...] = ()
    warm_up: tuple[Work, ...] = ()
    adapters: tuple[AdapterFacts, ...] = ()
    fused: BackendChoice | None = None
    upscaler: UpscalerFacts | None = None
    vae_fused: BackendChoice | None = None
    vae_linear: BackendChoice | None = None
    self_test: SelfTest | None = None
    residency: str = "all"

    @property
    def trained_frames(self) -> tuple[int, int]:
        """Shortest and longest clip that the model was trained on; transformers with one encoder are one model."""
        told = (part.trained_frames for part in self.components if part.component == "transformer")
        return next((lengths for lengths in told if lengths is not None), TRAINED_FRAMES)

    def loads(self) -> dict[str, dict[str, float]]:
        """`load_seconds` and `load_bytes_per_second` by component; two transformers count together."""
        seconds: dict[str, float] = {}
        sizes: dict[str, int] = {}
        for part in self.components:
            seconds[part.component] = seconds.get(part.component, 0.0) + part.load_seconds
            sizes[part.component] = sizes.get(part.component, 0) + part.bytes
        rates = {name: sizes[name] / max(seconds[name], 1e-9) for name in seconds}
        return {"load_seconds": seconds, "load_bytes_per_second": rates}


class Engine(Protocol):
    """Loaded once, asked many times, from one process. `should_stop` is polled between steps: then JobCancelled."""

    def load(self, on_progress: OnProgress) -> None: ...

    def generate(self, spec: GenerateSpec, on_progress: OnProgress, should_stop: ShouldStop) -> Clip: ...

    def facts(self) -> EngineFacts: ...

    def estimate(self, spec: GenerateSpec) -> Estimate:
        """From any thread, also while `generate` runs; no work on the device. BadMedia for a file that is gone."""
        ...

    def close(self) -> None: ...
