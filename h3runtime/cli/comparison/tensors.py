"""Two files of saved latents, or of the latents of every step: sums by latent frame, audio latent and step.

The files are read by the engine's own reader, so what `decode` refuses is refused here. Steps are read one tensor at a
time: a long run of a large canvas holds gigabytes.

    latents   video [1, C, T, h, w] by T, audio [1, C, 2, A] by A
    steps     `step<i>.x` and `step<i>.denoised`, any shape
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from h3runtime.cli.comparison.found import Found, OnPart, Point, Series, total
from h3runtime.cli.comparison.kinds import STEP, unreadable
from h3runtime.core import FPS, Latents
from h3runtime.errors import CheckpointError, Offence, invalid
from h3runtime.media.agreement import Agreement
from h3runtime.packing.geometry import LATENTS_PER_SECOND, is_join, pixel_frames

TIME_AXIS = {"video": 2, "audio": 3}


def compare_latents(a: Path, b: Path, on_part: OnPart) -> Found:
    """CheckpointError for a file that holds no latents, InvalidRequest for different shapes."""
    first, second = _arrays(_latents(a, "a")), _arrays(_latents(b, "b"))
    _require_equal_shapes({n: x.shape for n, x in first.items()}, {n: x.shape for n, x in second.items()})
    video, audio = (_along(first[name], second[name], axis) for name, axis in TIME_AXIS.items())
    frames = pixel_frames(len(video))
    on_part(1, 1)
    return Found(
        kind="latents",
        a=a,
        b=b,
        facts={
            "shapes": {name: list(x.shape) for name, x in first.items()},
            "latent_frames": len(video),
            "audio_latents": len(audio),
            "frames": frames,
            "fps": FPS,
        },
        streams={"video": total(video), "audio": total(audio)},
        series=(_video_series(video, frames), _audio_series(audio)),
    )


def compare_steps(a: Path, b: Path, on_part: OnPart) -> Found:
    """CheckpointError for a file that can't be read, InvalidRequest for different steps or shapes."""
    with ExitStack() as stack:
        first, second = (stack.enter_context(_opened(path, field)) for path, field in ((a, "a"), (b, "b")))
        shapes = _shapes(first)
        _require_equal_shapes(shapes, _shapes(second))
        names = sorted(shapes, key=_step_of)
        sums: dict[str, Agreement] = {}
        for done, name in enumerate(names, 1):
            sums[name] = Agreement.of(_tensor(first, a, "a", name), _tensor(second, b, "b", name))
            on_part(done, len(names))
    series = tuple(_step_series(which, sums) for which in ("denoised", "x"))
    streams = {s.name.removeprefix("per_step_"): total(p.sums for p in s.points) for s in series if s.points}
    steps = len({_step_of(name) for name in names})
    return Found("steps", a, b, {"steps": steps}, streams, tuple(s for s in series if s.points))


def _latents(path: Path, field: str) -> Latents:
    from h3runtime.engine.latents_file import read_latents

    try:
        return read_latents(path)[0]
    except CheckpointError as error:
        offences = [Offence(f"{field}.{o.field}", o.message, o.legal) for o in error.offences]
        raise CheckpointError(f"{field}: {error.message}", offences) from error


def _arrays(latents: Latents) -> dict[str, NDArray[np.float32]]:
    return {"video": latents.video.numpy(), "audio": latents.audio.numpy()}


def _require_equal_shapes(a: Mapping[str, Sequence[int]], b: Mapping[str, Sequence[int]]) -> None:
    """The same tensors of the same shapes in both."""
    offences = [
        Offence(name, f"a has {_shape(a.get(name))} and b has {_shape(b.get(name))}", "the same tensors in both")
        for name in sorted({*a, *b}, key=_step_of)
        if a.get(name) != b.get(name)
    ]
    if offences:
        raise invalid(offences)


def _shape(shape: Sequence[int] | None) -> str:
    return "none" if shape is None else f"shape {list(shape)}"


def _along(a: NDArray[Any], b: NDArray[Any], axis: int) -> tuple[Agreement, ...]:
    pairs = zip(np.moveaxis(a, axis, 0), np.moveaxis(b, axis, 0), strict=True)
    return tuple(Agreement.of(x, y) for x, y in pairs)


def _video_series(sums: Sequence[Agreement], frames: int) -> Series:
    """A latent frame is decoded into a join if its first pixel frame is one: the two latents that chunks share."""
    begins = [pixel_frames(index) for index in range(len(sums))]
    points = (Point(i, begins[i] / FPS, is_join(begins[i], frames), one) for i, one in enumerate(sums))
    return Series("per_latent_frame", "latent", tuple(points), has_joins=True)


def _audio_series(sums: Sequence[Agreement]) -> Series:
    points = (Point(i, i / LATENTS_PER_SECOND, False, one) for i, one in enumerate(sums))
    return Series("per_audio_latent", "latent", tuple(points))


def _step_series(which: str, sums: Mapping[str, Agreement]) -> Series:
    points = (Point(_step_of(name), None, False, one) for name, one in sums.items() if name.endswith("." + which))
    return Series(f"per_step_{which}", "step", tuple(points))


def _step_of(name: str) -> int:
    found = STEP.fullmatch(name)
    return int(found[1]) if found else 0


def _opened(path: Path, field: str) -> Any:
    try:
        return safe_open(path, "pt")
    except (OSError, SafetensorError) as error:
        raise unreadable(path, field, error) from error


def _shapes(file: Any) -> dict[str, tuple[int, ...]]:
    return {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118  # not a dict


def _tensor(file: Any, path: Path, field: str, name: str) -> NDArray[np.float64]:
    try:
        values: NDArray[np.float64] = file.get_tensor(name).double().numpy()
    except (OSError, SafetensorError) as error:
        raise unreadable(path, field, error) from error
    if not np.isfinite(values).all():
        told = f"tensor {name} is not finite"
        raise CheckpointError(f"{field}: {told}", [Offence(f"{field}.{name}", told, "finite values")])
    return values
