"""A tiny transformer with rows of q, k and v as training leaves them, in any format and either row order, as a file."""

import json
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path

import torch
from torch import nn

from h3runtime.backends.linear.base import BackendLinear
from h3runtime.backends.linear.dequant import DequantLinear
from h3runtime.checkpoint import rules
from h3runtime.checkpoint.file import CheckpointFile
from h3runtime.checkpoint.load import load_module
from h3runtime.checkpoint.synthetic.layouts import TransformerSizes, transformer_shapes
from h3runtime.checkpoint.writer import write_file
from h3runtime.denoiser.config import DitConfig
from h3runtime.denoiser.dit import Dit
from tests.checkpoint.packed_layers import PACKERS

Weights = dict[str, torch.Tensor]
HEADS, WIDTH = 4, 128
SIZES = TransformerSizes(
    hidden=64, layers=3, refiner_layers=2, heads=HEADS, head_dim=WIDTH, ffn=64, channels=4, audio_channels=8,
    text_dim=32, rope_freqs=16, curve=(9, 4),
)  # fmt: skip
SIZE_OF = (1.0, 0.8, 0.45)
"""Of rows of q, k and v, beside each other; heads differ by a tenth."""
LINEARS = ("attn.qkv_proj", "attn.out_proj", "mlp.fc1", "mlp.fc2")
FORMATS = {
    "bf16": ("bf16", None),
    "fp8 full precision": ("fp8_scaled", None),
    "int8 rows": ("int8", None),
    "int8 convrot 64": ("int8_convrot", 64),
    "nvfp4": ("nvfp4", None),
    "mxfp8": ("mxfp8", None),
    "w4a4": ("w4a4", 64),
    "w4a8": ("w4a8", 64),
}
"""BF16, and those of `packed_layers` whose rows of q, k and v can be put in order: name in reports, rotation."""


def weights(seed: int = 0, *, trained: bool = True, sizes: TransformerSizes = SIZES) -> Weights:
    """fp32, q, k and v contiguous. Not trained: every row of the same size."""
    source = torch.Generator().manual_seed(seed)
    found = {}
    for name, shape in transformer_shapes(sizes).items():
        noise = torch.randn(shape, generator=source)
        found[name] = 1 + 0.1 * noise if "norm" in name else noise / shape[-1] ** 0.5
        if trained and name.endswith("qkv_proj.weight"):
            groups = found[name].reshape(3, sizes.heads, sizes.head_dim, -1)
            groups *= torch.tensor(SIZE_OF)[:, None, None, None]
            groups *= torch.exp(0.1 * torch.randn(3, sizes.heads, 1, 1, generator=source))
    found["rope.inv_freq"] = 10_000.0 ** (-torch.arange(sizes.rope_freqs) / sizes.rope_freqs)
    return found


def interleaved(weights: Mapping[str, torch.Tensor], heads: int = HEADS) -> Weights:
    """q, k, v of head 0, then of head 1, ..."""
    return {name: by_head(t, heads) if name.endswith("qkv_proj.weight") else t for name, t in weights.items()}


def by_head(tensor: torch.Tensor, heads: int) -> torch.Tensor:
    return tensor.reshape(3, heads, -1, *tensor.shape[1:]).transpose(0, 1).reshape(tensor.shape)


def stored(weights: Mapping[str, torch.Tensor], form: str) -> Weights:
    """The linears of the blocks in `form`, the rest in bf16."""
    found = {}
    for name, tensor in weights.items():
        layer = name.removesuffix(".weight")
        if form != "bf16" and name.startswith("blocks.") and layer.endswith(LINEARS) and layer != name:
            found |= PACKERS[form](tensor).named(layer)
        else:
            found[name] = tensor if name.startswith(("rope", "adaln")) else tensor.bfloat16()
    return found


def write_shards(folder: Path, tensors: Mapping[str, torch.Tensor], count: int = 3, stem: str = "model") -> Path:
    """`tensors` spread over `count` files of `folder`, in turns, with an index."""
    folder.mkdir(exist_ok=True)
    names = list(tensors)
    weight_map = {}
    for i in range(count):
        file = f"{stem}-{i + 1:05d}-of-{count:05d}.safetensors"
        own = {name: tensors[name] for name in names[i::count]}
        write_file(folder / file, own, {"format": "pt"})
        weight_map |= dict.fromkeys(own, file)
    write_index(folder, weight_map, sum(t.nbytes for t in tensors.values()), stem)
    return folder


def write_index(folder: Path, weight_map: Mapping[str, object], total: int, stem: str = "model") -> None:
    table = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (folder / f"{stem}.safetensors.index.json").write_text(json.dumps(table))


def loaded(path: Path, **options: object) -> dict[str, torch.Tensor]:
    """What `resident` tells of the model that `path` fills: two equal ones agree on it bit for bit."""
    with CheckpointFile(path, **options) as file:
        with torch.device("meta"):
            model = Dit(DitConfig.from_shapes(file.shapes))
        load_module(model, file, linear=DequantLinear(), device=torch.device("cpu"), rule=rules.TRANSFORMER)
    return resident(model)


def resident(model: nn.Module) -> dict[str, torch.Tensor]:
    """Everything that a loaded model holds, by name and field."""
    found = dict(model.state_dict())
    for name, module in model.named_modules():
        if isinstance(module, BackendLinear):
            held = {f.name: getattr(module.resident, f.name) for f in fields(module.resident)}
            found |= {f"{name}.{leaf}": t for leaf, t in held.items() if isinstance(t, torch.Tensor)}
    return found


def same(one: Mapping[str, torch.Tensor], other: Mapping[str, torch.Tensor]) -> bool:
    def raw(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.contiguous().reshape(-1).view(torch.uint8)

    return one.keys() == other.keys() and all(torch.equal(raw(one[n]), raw(other[n])) for n in one)
