"""Ten thousand spoilt files: each is refused by a CheckpointError or is sound, and nothing is read outside of a file.

Spoilt are bytes of the header, its length, names, dtypes, shapes, offsets, markers, metadata and the file's end. What
is taken is judged against the model and, where it passes, loaded, too. Memory is limited while it runs, so that a size
that only a header promises can't be allocated unnoticed.
"""

from __future__ import annotations

import json
import os
import random
import resource
import struct
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from h3runtime.backends.linear.dequant import DequantLinear
from h3runtime.checkpoint.families import require_component
from h3runtime.checkpoint.file import CheckpointFile
from h3runtime.checkpoint.header import DTYPES
from h3runtime.checkpoint.load import judge, load_module, storage_format
from h3runtime.checkpoint.rules import TRANSFORMER, LoadRule
from h3runtime.checkpoint.synthetic.layouts import TransformerSizes, transformer_shapes
from h3runtime.checkpoint.tensor_file import checkpoint_error
from h3runtime.checkpoint.writer import write_file
from h3runtime.denoiser.config import DitConfig
from h3runtime.denoiser.dit import Dit
from h3runtime.errors import CheckpointError
from tests.checkpoint.packed_layers import PACKERS

FILES = 10_000
SPARE_BYTES = 1 << 30
"""Address space that a run may add to what the process has."""
ANY_JSON = (None, True, False, 0, -1, 1, 2**31, 2**63, 2**64, 1e308, 0.5, "", "x", "U8", "\ud800", [], {}, [0], [[]])
NUMBERS = (-1, 0, 1, 2, 3, 4, 7, 16, 31, 32, 33, 48, 64, 255, 256, 2**31, 2**32, 2**62, 2**63, 2**64, 10**30)
FORMATS = (*PACKERS, "nvfp4", "int8_tensorwise", "float8_e4m3fn", "mxfp8", "asym_w4a8_int8", "awq_w4a16", "later", "")
LEAVES = (
    "weight",
    "bias",
    "weight_scale",
    "weight_scale_2",
    "input_scale",
    "comfy_quant",
    "scale_weight",
    "scaled_fp8",
)


@dataclass(frozen=True)
class Base:
    """A sound file in its three pieces, and how to build what it fills."""

    table: dict[str, Any]
    data: bytes
    build: Callable[[CheckpointFile], nn.Module]
    rule: LoadRule


class Small(nn.Module):
    def __init__(self, columns: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(columns, 32)
        self.fc2 = nn.Linear(columns, 16, bias=False)
        self.norm = nn.LayerNorm(16)


def _small(folder: Path, kinds: tuple[str, str], prefix: str = "", *, in_metadata: bool = False) -> Base:
    generator = torch.Generator().manual_seed(0)
    layers = {
        name: PACKERS[kind](torch.randn(rows, 64, generator=generator))
        for name, rows, kind in (("fc1", 32, kinds[0]), ("fc2", 16, kinds[1]))
    }
    tensors = {"fc1.bias": torch.zeros(32), "norm.weight": torch.ones(16), "norm.bias": torch.zeros(16)}
    for name, layer in layers.items():
        tensors |= layer.named(name)
    metadata = {"format": "pt"}
    if in_metadata:
        tensors = {n: t for n, t in tensors.items() if not n.endswith(".comfy_quant")}
        told = {name: layer.marker for name, layer in layers.items() if layer.marker is not None}
        metadata["_quantization_metadata"] = json.dumps({"format_version": "1.0", "layers": told})
    named = {prefix + n: t for n, t in tensors.items()}
    return _base(folder, named, metadata, lambda _: Small(64), LoadRule())


def _legacy(folder: Path) -> Base:
    tensors: dict[str, torch.Tensor] = {"scaled_fp8": torch.zeros(2, dtype=torch.float8_e4m3fn)}
    for name, parameter in Small(64).state_dict().items():
        tensors[name] = (
            parameter.to(torch.float8_e4m3fn) if name.startswith("fc") and parameter.ndim == 2 else parameter
        )
    for name in ("fc1", "fc2"):
        tensors |= {f"{name}.scale_weight": torch.ones(1), f"{name}.scale_input": torch.ones(())}
    return _base(folder, tensors, {}, lambda _: Small(64), LoadRule())


def _transformer(folder: Path) -> Base:
    """Sizes read off the spoilt shapes, as the engine does it."""
    sizes = TransformerSizes(16, 1, 1, 1, 128, 16, 8, 16, 16, curve=(5, 4))
    tensors = {n: torch.zeros(s, dtype=torch.bfloat16) for n, s in transformer_shapes(sizes).items()}
    layer = PACKERS["nvfp4"](torch.ones(384, 16))
    tensors |= layer.named("blocks.0.attn.qkv_proj")

    def build(file: CheckpointFile) -> nn.Module:
        require_component(file.path, file.shapes, "transformer")
        return Dit(DitConfig.from_shapes(file.shapes))

    return _base(folder, tensors, {}, build, TRANSFORMER)


def _base(
    folder: Path,
    tensors: dict[str, torch.Tensor],
    metadata: dict[str, str],
    build: Callable[[CheckpointFile], nn.Module],
    rule: LoadRule,
) -> Base:
    path = folder / "base.safetensors"
    write_file(path, tensors, metadata)
    raw = path.read_bytes()
    size = int.from_bytes(raw[:8], "little")
    return Base(json.loads(raw[8 : 8 + size]), raw[8 + size :], build, rule)


def bases(folder: Path) -> list[Base]:
    """The last is slow to build, so `spoilt` takes it less often."""
    return [
        _small(folder, ("nvfp4", "int8 convrot 64")),
        _small(folder, ("fp8 with input scale", "mxfp8"), "model.diffusion_model."),
        _small(folder, ("w4a8", "w4a4")),
        _small(folder, ("awq", "nvfp4 awq"), in_metadata=True),
        _small(folder, ("plain", "bare fp8")),
        _legacy(folder),
        _transformer(folder),
    ]


class Spoiler:
    """Makes one spoilt file after another from a seed."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def spoil(self, base: Base) -> bytes:
        table: dict[str, Any] = json.loads(json.dumps(base.table))
        data = bytearray(base.data)
        ways = (self.rename, self.describe, self.describe, self.shift, self.remove, self.tell, self.mark, self.mark)
        if self.random.random() < 0.8:
            for _ in range(self.random.choice((1, 1, 1, 2, 3))):
                self.random.choice(ways)(table, data)
        text = json.dumps(table).encode()
        if self.random.random() < 0.05:
            text = self.repeat(text)
        whole = bytearray(struct.pack("<Q", len(text)) + text + data)
        if self.random.random() < 0.3:
            self.random.choice((self.flip, self.splice, self.cut, self.lengthen))(whole, len(text))
        return bytes(whole)

    def name(self, table: dict[str, Any]) -> str:
        return self.random.choice([n for n in table if n != "__metadata__"] or ["gone"])

    def rename(self, table: dict[str, Any], _: bytearray) -> None:
        old = self.name(table)
        layer, _, _leaf = old.rpartition(".")
        new = self.random.choice(
            (
                f"{layer}.{self.random.choice(LEAVES)}",
                f"diffusion_model.{old}",
                layer,
                f"{old}.weight",
                "a\n",
                "é",
                "scaled_fp8",
            )
        )
        if old in table:
            table[new] = table.pop(old)

    def describe(self, table: dict[str, Any], _: bytearray) -> None:
        entry = table.get(self.name(table))
        if not isinstance(entry, dict):
            return
        pick = self.random.choice
        key = pick(("dtype", "dtype", "shape", "shape", "shape", "data_offsets", "new"))
        if key == "dtype" and entry.get(key) in DTYPES and self.random.random() < 0.7:
            size = DTYPES[entry[key]].itemsize
            entry[key] = pick([name for name, dtype in DTYPES.items() if dtype.itemsize == size])
        elif key == "dtype":
            entry[key] = pick((*DTYPES, "F4", "I4", "f32"))
        elif key == "shape" and self.random.random() < 0.8:
            entry[key] = self.reshaped(entry.get("shape"))
        else:
            entry[key] = pick((*ANY_JSON, [pick(NUMBERS) for _ in range(self.random.randrange(4))], [1] * 70))

    def reshaped(self, shape: object) -> object:
        """The same count of values another way, mostly: what gets past the header."""
        if not isinstance(shape, list) or not all(type(v) is int for v in shape):
            return []
        total = 1
        for size in shape:
            total *= size
        return self.random.choice(([total], [1, total], [total, 1], shape[::-1], [*shape, 1], [2, total // 2], []))

    def shift(self, table: dict[str, Any], _: bytearray) -> None:
        entry, other = table.get(self.name(table)), table.get(self.name(table))
        if not isinstance(entry, dict) or not isinstance(other, dict):
            return
        if self.random.random() < 0.5:
            entry["data_offsets"], other["data_offsets"] = other.get("data_offsets"), entry.get("data_offsets")
        elif isinstance(entry.get("data_offsets"), list):
            by = self.random.choice((-8, -1, 1, 8, 2**40, 2**63))
            entry["data_offsets"] = [v + by if type(v) is int else v for v in entry["data_offsets"]]

    def remove(self, table: dict[str, Any], data: bytearray) -> None:
        """Without a gap if it is the last, so that the rest is still sound."""
        found = table.pop(self.name(table), None)
        if isinstance(found, dict) and self.random.random() < 0.5:
            span = found.get("data_offsets")
            if isinstance(span, list) and len(span) == 2 and span[-1] == len(data):
                del data[span[0] :]

    def tell(self, table: dict[str, Any], _: bytearray) -> None:
        layers = {self.random.choice(("fc1", "fc2", "norm", "diffusion_model.fc1", "\ud800")): self.marker()}
        told = self.random.choice((json.dumps({"layers": layers}), json.dumps(layers), "[" * 5000, "nonsense", ""))
        table["__metadata__"] = self.random.choice(
            (
                {"_quantization_metadata": told},
                {"_quantization_metadata": told},
                *ANY_JSON,
                {"h3runtime_synthetic": "1"},
            )
        )

    def marker(self) -> object:
        pick = self.random.choice
        keys = ("convrot", "convrot_groupsize", "group_size", "orig_shape", "full_precision_matrix_mult", "params")
        told: dict[str, object] = {"format": pick(FORMATS)}
        for key in keys:
            if pick((True, False)):
                told[key] = pick((*ANY_JSON, pick(NUMBERS), [pick(NUMBERS), pick(NUMBERS)], {"convrot": True}))
        return pick((told, told, told, told["format"], pick(ANY_JSON)))

    def mark(self, table: dict[str, Any], data: bytearray) -> None:
        """Another marker in the bytes of one, cut or padded to its length; or spoilt scales."""
        entry = table.get(self.name(table))
        span = entry.get("data_offsets") if isinstance(entry, dict) else None
        if (
            not isinstance(span, list)
            or len(span) != 2
            or not all(type(v) is int and 0 <= v <= len(data) for v in span)
        ):
            return
        count = max(span[1] - span[0], 0)
        fill = self.random.choice((json.dumps(self.marker()).encode(), b"\xff" * count, b"\x80" * count))
        data[span[0] : span[0] + count] = (fill + bytes(count))[:count]

    def repeat(self, text: bytes) -> bytes:
        return self.random.choice(
            (text[:-1] + b"," + text[1:], text.replace(b": {", b': {"dtype": "U8", ', 1), text + b" ")
        )

    def flip(self, whole: bytearray, text: int) -> None:
        for _ in range(self.random.randrange(1, 5)):
            whole[self.random.randrange(8 + text)] = self.random.randrange(256)

    def splice(self, whole: bytearray, text: int) -> None:
        """Insert or delete some bytes of the header, and keep its length true half of the time."""
        at = self.random.randrange(8, 8 + text)
        count = self.random.randrange(1, 9)
        if self.random.random() < 0.5:
            whole[at:at] = self.random.randbytes(count)
        else:
            count = -len(whole[at : min(at + count, 8 + text)])
            del whole[at : at - count]
        if self.random.random() < 0.5:
            whole[:8] = struct.pack("<Q", max(text + count, 0))

    def cut(self, whole: bytearray, _: int) -> None:
        if self.random.random() < 0.7:
            del whole[self.random.randrange(len(whole)) :]
        else:
            whole += self.random.randbytes(self.random.randrange(1, 20))

    def lengthen(self, whole: bytearray, text: int) -> None:
        wrong = self.random.choice(
            (0, 1, 2, text - 1, text + 1, len(whole) - 8, len(whole), 10**8, 10**8 + 1, 2**63, 2**64 - 1)
        )
        whole[:8] = struct.pack("<Q", wrong)


@contextmanager
def limited_memory() -> Iterator[None]:
    """MemoryError, or torch's own, for whoever asks for much more than the process has."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + SPARE_BYTES, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


@pytest.fixture
def bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every read lies inside the file it is from."""
    preadv = os.preadv

    def read(fd: int, buffers: list[memoryview], offset: int) -> int:
        wanted = sum(len(buffer) for buffer in buffers)
        assert offset >= 0 and offset + wanted <= os.fstat(fd).st_size, f"{wanted} bytes at {offset}"
        return preadv(fd, buffers, offset)

    monkeypatch.setattr(os, "preadv", read)


def outcome(path: Path, base: Base, *, to_the_end: bool = True) -> str:
    """How far the file gets. Anything but a CheckpointError passes through."""
    reached = "opening"
    try:
        with CheckpointFile(path) as file:
            reached = "building"
            assert storage_format(file)
            with torch.device("meta"):
                module = base.build(file)
            reached = "judging"
            if offences := list(judge(module, file, base.rule)):
                raise checkpoint_error(path, offences)
            reached = "loading"
            if to_the_end:
                linear, device = DequantLinear(), torch.device("cpu")
                load_module(module, file, linear=linear, device=device, rule=base.rule)
                assert not any(t.is_meta for t in module.state_dict().values())
    except CheckpointError as error:
        assert error.offences and error.message.isprintable() and len(error.message) < 50_000
        assert all(o.field and o.message and o.field.isprintable() for o in error.offences)
        return reached
    return "done"


def test_ten_thousand_spoilt_files(tmp_path: Path, bounded: None) -> None:  # noqa: ARG001  # a fixture
    spoiler, sound = Spoiler(2026), bases(tmp_path)
    path = tmp_path / "model.safetensors"
    outcomes: Counter[str] = Counter()
    with path.open("wb", buffering=0) as out, limited_memory():
        for number in range(-len(sound), FILES):
            slow = number % 20 == 0
            base = sound[number] if number < 0 else sound[-1] if slow else sound[number % (len(sound) - 1)]
            out.seek(0)
            out.truncate()
            out.write(sound_bytes(base) if number < 0 else spoiler.spoil(base))
            reached = outcome(path, base, to_the_end=number < 0 or number % 7 == 0)
            assert number >= 0 or reached == "done"
            outcomes[reached] += 1
    # Spoiling that never got past the first check would show nothing about the others.
    expected = {"opening": 1000, "building": 10, "judging": 200, "loading": 10, "done": 1000}
    assert all(outcomes[reached] >= at_least for reached, at_least in expected.items()), outcomes


def sound_bytes(base: Base) -> bytes:
    text = json.dumps(base.table).encode()
    return struct.pack("<Q", len(text)) + text + base.data


def test_a_quantised_file_cut_anywhere_is_refused(tmp_path: Path, bounded: None) -> None:  # noqa: ARG001  # a fixture
    path = tmp_path / "cut.safetensors"
    write_file(path, PACKERS["int8 convrot 4"](torch.ones(3, 8)).named("fc"), {"format": "pt"})
    whole = path.read_bytes()
    with CheckpointFile(path) as file:
        assert list(file.layers) == ["fc"]
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        with pytest.raises(CheckpointError, match=r"cut\.safetensors"):
            CheckpointFile(path)
