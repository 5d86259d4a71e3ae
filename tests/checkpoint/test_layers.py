"""A layer's tensors fit its marker, or every one that doesn't is an offence by its own name."""

import json
from collections.abc import Mapping

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from h3runtime.checkpoint.entries import StoredTensor
from h3runtime.checkpoint.formats import FORMATS
from h3runtime.checkpoint.layers import QuantLayer, model_shapes, quantised_layers
from h3runtime.checkpoint.markers import Marker, marker_from
from h3runtime.errors import Offence
from tests.checkpoint.packed_layers import PACKERS, Packed

QUANTISED = [name for name in PACKERS if name not in ("plain", "bare fp8")]


def entries_of(tensors: Mapping[str, torch.Tensor]) -> dict[str, StoredTensor]:
    return {name: StoredTensor(name, t.dtype, tuple(t.shape), ()) for name, t in tensors.items()}


def marker_of(layer: Packed) -> Marker:
    marker = marker_from("fc", json.loads(json.dumps(layer.marker)))
    assert isinstance(marker, Marker)
    return marker


def judged(layer: Packed, **changes: torch.Tensor | None) -> tuple[QuantLayer | None, list[Offence]]:
    tensors = {f"fc.{leaf}": t for leaf, t in {**layer.tensors, **changes}.items() if t is not None}
    layers, offences = quantised_layers(entries_of(tensors), {"fc": marker_of(layer)})
    return layers.get("fc"), offences


def packed(kind: str, rows: int = 48, columns: int = 64) -> Packed:
    return PACKERS[kind](torch.randn(rows, columns, generator=torch.Generator().manual_seed(0)))


def fields(offences: list[Offence]) -> list[str]:
    return [o.field for o in offences]


@pytest.mark.parametrize("kind", QUANTISED)
@settings(max_examples=10, deadline=None)
@given(rows=st.integers(1, 300), groups=st.integers(1, 6))
def test_what_the_packers_write_is_taken(kind: str, rows: int, groups: int) -> None:
    layer = packed(kind, rows, 64 * groups)
    found, offences = judged(layer)
    assert found is not None and not offences
    assert found.fits((rows, 64 * groups)) and not found.fits((rows + 33, 64 * groups)) and not found.fits((rows,))
    assert set(found.sidecars) == {f"fc.{leaf}" for leaf in layer.tensors if leaf != "weight"}


@pytest.mark.parametrize("kind", QUANTISED)
def test_a_missing_sidecar_is_named(kind: str) -> None:
    layer = packed(kind)
    required = {s.leaf for s in FORMATS[marker_of(layer).format].sidecars if s.required}
    for leaf in layer.tensors:
        if leaf != "weight":
            _, offences = judged(layer, **{leaf: None})
            assert fields(offences) == ([f"fc.{leaf}"] if leaf in required else [])


@pytest.mark.parametrize("kind", QUANTISED)
def test_every_wrong_tensor_of_a_layer_is_named_at_once(kind: str) -> None:
    layer = packed(kind)
    sidecars = [leaf for leaf in layer.tensors if leaf != "weight"]
    found, offences = judged(layer, **{leaf: torch.zeros(3, 7, 2, dtype=torch.int64) for leaf in sidecars})
    assert found is None
    assert sorted((o.field, o.message.split()[1]) for o in offences) == sorted(
        (f"fc.{leaf}", what) for leaf in sidecars for what in ("dtype", "shape")
    )
    assert all(o.legal for o in offences)


@pytest.mark.parametrize("kind", QUANTISED)
def test_a_weight_of_another_dtype_or_rank_is_named(kind: str) -> None:
    layer = packed(kind)
    _, offences = judged(layer, weight=layer.tensors["weight"].float())
    assert fields(offences) == ["fc.weight"] and "dtype float32" in offences[0].message
    for weight in (layer.tensors["weight"].flatten(), layer.tensors["weight"].unsqueeze(0)):
        _, offences = judged(layer, weight=weight)
        assert fields(offences) == ["fc.weight"] and "shape" in offences[0].message
    _, offences = judged(layer, weight=layer.tensors["weight"][:0])
    assert "fc.weight" in fields(offences)


@pytest.mark.parametrize(
    ("kind", "leaf", "shape"),
    [
        ("nvfp4", "weight_scale", (48, 4)),
        ("nvfp4", "weight_scale_2", (2,)),
        ("int8 rows", "weight_scale", (47,)),
        ("int8 rows", "weight_scale", (1, 48)),
        ("int8 convrot 64", "weight_scale", (48, 64)),
        ("fp8 with input scale", "weight_scale", (48, 1)),
        ("fp8 with input scale", "input_scale", (64,)),
        ("mxfp8", "weight_scale", (48, 2)),
        ("w4a4", "weight_scale", (64,)),
        ("w4a8", "weight_s_rel", (48, 2)),
        ("w4a8", "weight_codebook", (8,)),
        ("w4a8 even", "weight_correction", (48, 2)),
        ("awq", "weight_zeros", (48, 1)),
    ],
)
def test_a_sidecar_of_another_shape_is_named_with_the_legal_one(kind: str, leaf: str, shape: tuple[int, ...]) -> None:
    layer = packed(kind)
    _, (offence,) = judged(layer, **{leaf: torch.zeros(shape, dtype=layer.tensors[leaf].dtype)})
    assert offence.field == f"fc.{leaf}" and str(list(shape)) in offence.message
    assert str(list(layer.tensors[leaf].shape)) in offence.legal


@pytest.mark.parametrize(
    ("marker", "columns", "group", "legal"),
    [
        ({"format": "int8_tensorwise", "convrot": True}, 2688, 256, "4, 16, 64"),
        ({"format": "int8_tensorwise", "convrot": True, "convrot_groupsize": 128}, 256, 128, "4, 16, 64, 256"),
        ({"format": "int8_tensorwise", "convrot": True, "convrot_groupsize": 2}, 64, 2, "4, 16, 64"),
        ({"format": "int8_tensorwise", "convrot": True, "convrot_groupsize": 4}, 7, 4, "none"),
        ({"format": "convrot_w4a4"}, 64, 256, "4, 16, 64"),
        ({"format": "asym_w4a8_int8"}, 64, 256, "4, 16, 64"),
    ],
)
def test_an_impossible_rotation_names_the_possible_ones(
    marker: dict[str, object], columns: int, group: int, legal: str
) -> None:
    form = FORMATS[str(marker["format"])]
    parsed = marker_from("fc", marker)
    assert isinstance(parsed, Marker)
    weight = StoredTensor("fc.weight", torch.int8, (3, columns // form.per_byte), ())
    _, offences = quantised_layers({"fc.weight": weight}, {"fc": parsed})
    (offence,) = [o for o in offences if o.field == "fc.comfy_quant"]
    assert f"convrot_groupsize {group} for {columns} columns" in offence.message and offence.legal.startswith(legal)


def test_groups_must_divide_the_columns() -> None:
    layer = packed("awq")
    marker = Marker("awq_w4a16", group=48)
    _, offences = quantised_layers(entries_of({f"fc.{n}": t for n, t in layer.tensors.items()}), {"fc": marker})
    assert "group_size 48 for 64 columns" in offences[0].message and offences[0].field == "fc.comfy_quant"


@pytest.mark.parametrize(("kind", "columns"), [("convrot_w4a4", 96), ("asym_w4a8_int8", 24)])
def test_columns_come_in_multiples(kind: str, columns: int) -> None:
    weight = StoredTensor("fc.weight", torch.int8, (3, columns // 2), ())
    _, offences = quantised_layers({"fc.weight": weight}, {"fc": Marker(kind, convrot=4)})
    assert (offences[0].field, offences[0].message) == ("fc.weight", f"has {columns} columns")


@pytest.mark.parametrize(("kind", "cut"), [("nvfp4", (47, 32)), ("nvfp4", (48, 31)), ("mxfp8", (48, 64))])
def test_storage_that_lacks_its_padding_is_named(kind: str, cut: tuple[int, int]) -> None:
    layer = packed(kind)
    _, offences = judged(layer, weight=layer.tensors["weight"][: cut[0], : cut[1]])
    assert "fc.weight" in fields(offences) and "multiples of" in offences[0].legal


def test_orig_shape_must_agree_with_the_storage() -> None:
    layer = packed("nvfp4, raw scales, orig_shape", 37, 50)
    found, _ = judged(layer)
    assert found is not None and found.shape == (37, 50) and found.fits((37, 50)) and not found.fits((48, 64))
    marker = Marker("nvfp4", shape=(50, 50))
    _, offences = quantised_layers(entries_of({f"fc.{n}": t for n, t in layer.tensors.items()}), {"fc": marker})
    assert offences[0].field == "fc.weight" and "orig_shape" in offences[0].legal


def test_a_bias_tells_how_many_rows_are_padding() -> None:
    layer = packed("mxfp8", 40, 96)
    bias = StoredTensor("fc.bias", torch.bfloat16, (40,), ())
    entries = entries_of({f"fc.{n}": t for n, t in layer.tensors.items()}) | {"fc.bias": bias}
    layers, offences = quantised_layers(entries, {"fc": Marker("mxfp8")})
    assert not offences and model_shapes(entries, layers) == {"fc.weight": (40, 96), "fc.bias": (40,)}
    other = {**entries, "fc.bias": StoredTensor("fc.bias", torch.bfloat16, (20,), ())}
    layers, _ = quantised_layers(other, {"fc": Marker("mxfp8")})
    assert layers["fc"].shape == (64, 96)


@pytest.mark.parametrize("kind", QUANTISED)
def test_quantised_storage_without_a_marker_is_never_plain(kind: str) -> None:
    """G8. One offence a layer, however many of its tensors tell."""
    layer = packed(kind)
    entries = entries_of({f"{name}.{leaf}": t for name in ("a.fc", "b.fc") for leaf, t in layer.tensors.items()})
    layers, offences = quantised_layers(entries, {})
    assert not layers and fields(offences) == ["a.fc.weight", "b.fc.weight"]
    assert all("no marker" in o.message for o in offences)


@pytest.mark.parametrize(
    "leaf", ["weight_scale", "weight_scale_2", "scale_weight", "weight_s_rel", "weight_s_channel", "weight_zeros"]
)
def test_an_orphan_scale_is_an_offence(leaf: str) -> None:
    plain = {"fc.weight": torch.ones(4, 4), f"fc.{leaf}": torch.ones(1)}
    _, offences = quantised_layers(entries_of(plain), {})
    assert fields(offences) == ["fc.weight"]


def test_an_unknown_format_is_named_with_the_known_ones() -> None:
    entries = entries_of({f"fc.{n}": t for n, t in packed("nvfp4").tensors.items()})
    _, (offence,) = quantised_layers(entries, {"fc": Marker("nf4")})
    assert offence.field == "fc" and "nf4" in offence.message
    assert all(name in offence.legal for name in ("plain", *FORMATS))


def test_all_layers_are_judged() -> None:
    tensors, markers = {}, {}
    for name, kind in (("a", "nvfp4"), ("b", "int8 rows"), ("c", "w4a8")):
        layer = packed(kind)
        tensors |= {f"{name}.{leaf}": t for leaf, t in layer.tensors.items()}
        markers[name] = marker_of(layer)
    del tensors["a.weight_scale"], tensors["b.weight_scale"], tensors["c.weight_s_channel"], tensors["c.weight_s_rel"]
    _, offences = quantised_layers(entries_of(tensors), markers)
    assert fields(offences) == ["a.weight_scale", "b.weight_scale", "c.weight_s_rel", "c.weight_s_channel"]
