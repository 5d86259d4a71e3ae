"""The latent upscaler of an engine: judged when the engine loads, read when a request first asks to be refined.

    H3_UPSCALER_PATH=file         that file
    H3_UPSCALER_PATH=embedded     the upscaler that was trained beside the embedded video VAE, and no other one's: an
                                  upscaler belongs to the latents of one video VAE
    nothing named                 likewise for a command; none for a server, which offers what its operator configured
    none                          requests that ask to be refined are refused

Names, shapes, widths and the SHA-256 are judged at the start, so that a wrong file is told then and a request can be
held to the file that it was admitted with; the weights come with the first refined request and stay. Most servers never
get one, and the published file's weights are 1.3 GiB as they are kept: fp32, since the published halves were never
measured here. Both are counted by `estimating` where they are due. Nothing is quantised, no backend is chosen.

Fed by `resident`; the module itself is `vae.upscaler`. Another thread may ask for bytes.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import torch

from h3runtime.backends.linear.dequant import DequantLinear
from h3runtime.checkpoint.embedded.listing import REMEDY, read_listing
from h3runtime.checkpoint.embedded.masters import UPSCALER
from h3runtime.checkpoint.embedded.packaged import FOLDER
from h3runtime.checkpoint.embedded.sets import is_embedded
from h3runtime.checkpoint.file import CheckpointFile
from h3runtime.checkpoint.hashing import sha256_of
from h3runtime.checkpoint.header import FILE
from h3runtime.checkpoint.load import judge, load_module, storage_format
from h3runtime.checkpoint.rules import LoadRule
from h3runtime.checkpoint.sources import open_source
from h3runtime.checkpoint.tensor_file import checkpoint_error
from h3runtime.checkpoint.verify import Verification
from h3runtime.core import RefinePass, UpscalerFacts
from h3runtime.errors import CheckpointChanged, CheckpointError, Offence, encodable
from h3runtime.settings import Settings, default_cache_dir
from h3runtime.vae.upscaler import LatentUpscaler
from h3runtime.vae.upscaler_config import PREFIX, UpscalerConfig

RULE = LoadRule(cast=torch.float32)
PREFIXES = (PREFIX, f"model.{PREFIX}", "model.")
"""What may stand before every name (checkpoint-formats §6, last lines)."""
OnBytes = Callable[[int], None]


def upscaler_path(settings: Settings, video_vae: Path, masters: Path = FOLDER, *, own: bool = True) -> Path | None:
    """The file, if there is one. masters: folder of the embedded model's. own: use it where nothing is named.

    CheckpointError where it is asked for beside another video VAE.
    """
    named = settings.upscaler_path
    if isinstance(named, Path):
        return named
    if named is None and not (own and (masters / UPSCALER).is_file()):
        return None
    with CheckpointFile(video_vae) as file:
        if is_embedded(file.metadata):
            return masters / UPSCALER
    if named is None:
        return None
    told = "is not the embedded video VAE, whose latents the embedded upscaler was trained on"
    raise checkpoint_error(video_vae, [Offence("H3_UPSCALER_PATH", told, "the path of an upscaler, or nothing")])


class UpscalerShelf:
    """Of one engine. own: use the embedded model's where none is named. facts: None where there is no upscaler. config:
    its sizes."""

    def __init__(self, settings: Settings, device: torch.device, *, own: bool = True) -> None:
        self._settings, self._device, self._own = settings, device, own
        self._path: Path | None = None
        self._model: LatentUpscaler | None = None
        self.facts: UpscalerFacts | None = None
        self.config: UpscalerConfig | None = None

    def judge(self, video_vae: Path, channels: int, on_bytes: OnBytes = lambda _: None) -> None:
        """CheckpointError for a file that can't be used with latents of so many channels, naming every fault of it.

        on_bytes: told of what is hashed, for signs of life.
        """
        self._path = upscaler_path(self._settings, video_vae, own=self._own)
        if self._path is None:
            return
        is_own = not isinstance(self._settings.upscaler_path, Path)
        with opened(self._path) as file:
            module = on_meta(file, channels)
            digest, warnings = self._digest(file, is_own, on_bytes)
            self.config = module.config
            self.facts = UpscalerFacts(
                file=encodable(self._path.name),
                sha256=digest,
                format=storage_format(file),
                bytes=RULE_BYTES * sum(math.prod(shape) for shape in file.shapes.values()),
                synthetic=file.synthetic,
                embedded=is_own,
                warnings=tuple(map(encodable, (*file.warnings, *warnings))),
            )

    @property
    def bytes(self) -> int:
        """Resident now."""
        return 0 if self._model is None or self.facts is None else self.facts.bytes

    def bytes_with(self, refine: RefinePass | None) -> int:
        """Resident once a request has been made that is refined so, or isn't."""
        return self.bytes if refine is None or self.facts is None else self.facts.bytes

    def take(self, refine: RefinePass, on_read: Callable[[], None] = lambda: None) -> LatentUpscaler:
        """The model on its device. CheckpointChanged if its file isn't the one that the request was admitted with."""
        if self._path is None or self.facts is None:
            raise CheckpointChanged("there is no latent upscaler any more")
        if refine.upscaler not in ("", self.facts.sha256):
            raise CheckpointChanged(f"{self.facts.file} is not the upscaler that the request was taken with")
        if self._model is None:
            self._model = self._loaded(self._path, self.facts.sha256, on_read)
        return self._model

    def clear(self) -> None:
        self._model = None

    def _digest(self, file: CheckpointFile, is_own: bool, on_bytes: OnBytes) -> tuple[str, tuple[str, ...]]:
        cache, full = default_cache_dir(), self._settings.verify == "full"
        verification = Verification(file.parts, full=full, cache_dir=cache, made_up=file.synthetic)
        for number in verification.unknown:
            verification.found(number, sha256_of(file.parts[number].path, on_bytes=on_bytes))
        found = verification.finish()
        listed = read_listing(FOLDER).masters.get(UPSCALER) if is_own else found.sha256
        if found.sha256 != listed:
            told = f"is damaged or another file: SHA-256 is {found.sha256}, but the package lists {listed}"
            raise checkpoint_error(file.path, [Offence(FILE, told, REMEDY)])
        return found.sha256, found.warnings

    def _loaded(self, path: Path, digest: str, on_read: Callable[[], None]) -> LatentUpscaler:
        """Read now; it must still be what was judged."""
        try:
            with opened(path) as file:
                module = on_meta(file)
                load_module(
                    module,
                    file,
                    linear=DequantLinear(),
                    device=self._device,
                    rule=RULE,
                    on_bytes=lambda *_: on_read(),
                )
                found = sha256_of(path, default_cache_dir()) if path.is_file() else digest
                for part in file.parts:
                    part.require_unchanged()
        except CheckpointError as error:
            raise CheckpointChanged(error.message) from None
        if found != digest:
            raise CheckpointChanged(f"{path.name} is not the upscaler that was there at the start")
        return module.eval().requires_grad_(False)


RULE_BYTES = torch.float32.itemsize


def opened(path: Path) -> CheckpointFile:
    """Without the prefix that its names have, if they all have one. CheckpointError if it can't be read."""
    source = open_source(path)
    names = list(source.entries)
    source.close()
    prefix = next((p for p in PREFIXES if names and all(name.startswith(p) for name in names)), "")
    return CheckpointFile(path, prefix)


def on_meta(file: CheckpointFile, channels: int | None = None) -> LatentUpscaler:
    """The module without weights; CheckpointError that names the file and everything that keeps it from filling it."""
    try:
        config = UpscalerConfig.from_shapes(file.shapes)
    except CheckpointError as error:
        raise checkpoint_error(file.path, error.offences) from None
    with torch.device("meta"):
        module = LatentUpscaler(config)
    offences = list(judge(module, file, RULE))
    if channels not in (None, config.latent_channels):
        told = f"takes latents of {config.latent_channels} channels, but the video VAE's have {channels}"
        offences.append(Offence("conv_in.weight", told, str(channels)))
    if offences:
        raise checkpoint_error(file.path, offences)
    return module
