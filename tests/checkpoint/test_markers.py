"""A marker says one thing however it is written; what can't be understood is an offence that names the layer."""

import json

import pytest

from h3runtime.checkpoint.formats import FORMATS, rotations
from h3runtime.checkpoint.markers import Marker, marker_from, metadata_markers, parse_marker
from h3runtime.errors import Offence

PREFIXES = ("model.diffusion_model.", "diffusion_model.")


@pytest.mark.parametrize(
    ("text", "marker"),
    [
        (b'{"format": "nvfp4"}', Marker("nvfp4")),
        (b'{"format": "nvfp4"}\0\0\0', Marker("nvfp4")),
        (b'{"format":"nvfp4","full_precision_matrix_mult":true}', Marker("nvfp4", full_precision=True)),
        (b'{"format": "nvfp4", "full_precision_matrix_mult": null}', Marker("nvfp4")),
        (b'{"format": "nvfp4", "new": [1, {}], "num_experts": 3, "orig_dtype": "bf16"}', Marker("nvfp4")),
        (b'{"format": "nvfp4", "orig_shape": [37, 50]}', Marker("nvfp4", shape=(37, 50))),
        (b'{"format": "nvfp4", "orig_shape": [8, 37, 50]}', Marker("nvfp4")),
        (b'{"format": "nvfp4", "convrot": true, "group_size": 16}', Marker("nvfp4")),
        (b'{"format": "int8_tensorwise"}', Marker("int8_tensorwise")),
        (b'{"format": "int8_tensorwise", "convrot": false, "convrot_groupsize": 64}', Marker("int8_tensorwise")),
        (b'{"format": "int8_tensorwise", "convrot": true}', Marker("int8_tensorwise", convrot=256)),
        (
            b'{"format": "int8_tensorwise", "convrot": true, "convrot_groupsize": 64}',
            Marker("int8_tensorwise", False, 64),
        ),
        (
            b'{"format": "int8_tensorwise", "params": {"convrot": true, "convrot_groupsize": 64}}',
            Marker("int8_tensorwise", convrot=64),
        ),
        (
            b'{"format": "int8_tensorwise", "convrot_groupsize": 16,'
            b' "params": {"convrot": true, "convrot_groupsize": 64}}',
            Marker("int8_tensorwise", convrot=16),
        ),
        (b'{"format": "int8_tensorwise", "params": 7}', Marker("int8_tensorwise")),
        (b'{"params": {"format": "mxfp8"}}', Marker("mxfp8")),
        (b'"float8_e5m2"', Marker("float8_e5m2")),
        (b'{"format": "convrot_w4a4"}', Marker("convrot_w4a4", convrot=256)),
        (b'{"format": "int4_tensorwise", "convrot_groupsize": 64}', Marker("convrot_w4a4", convrot=64)),
        (b'{"format": "asym_w4a8_int8", "group_size": 32}', Marker("asym_w4a8_int8", convrot=256, group=32)),
        (b'{"format": "awq_w4a16", "group_size": 128}', Marker("awq_w4a16", group=128)),
        (b'{"format": "later", "convrot": true}', Marker("later")),
    ],
)
def test_every_spelling_is_understood(text: bytes, marker: Marker) -> None:
    assert parse_marker("fc1", text) == marker


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (b"", "isn't JSON"),
        (b"nvfp4", "isn't JSON"),
        (b'{"format": "nvfp4"', "isn't JSON"),
        (b'{"format": "nv\xff"}', "isn't JSON"),
        (b"[" * 100_000, "isn't JSON"),
        (b'{"format": ' + b"9" * 5000 + b"}", "isn't JSON"),
        (b"[]", "isn't a JSON object"),
        (b"null", "isn't a JSON object"),
        (b"{}", "has no `format`"),
        (b'{"convrot": true}', "has no `format`"),
        (b'{"format": ""}', "has no `format`"),
        (b'{"format": 4}', "has no `format`"),
        (b'{"format": "int8_tensorwise", "convrot": "yes"}', "illegal convrot yes"),
        (b'{"format": "int8_tensorwise", "convrot": 1}', "illegal convrot 1"),
        (b'{"format": "nvfp4", "full_precision_matrix_mult": "no"}', "illegal full_precision_matrix_mult"),
        (
            b'{"format": "int8_tensorwise", "convrot": true, "convrot_groupsize": "256"}',
            "illegal convrot_groupsize 256",
        ),
        (b'{"format": "int8_tensorwise", "convrot": true, "convrot_groupsize": -4}', "illegal convrot_groupsize -4"),
        (b'{"format": "int8_tensorwise", "convrot": true, "convrot_groupsize": 64.0}', "illegal convrot_groupsize"),
        (b'{"format": "awq_w4a16", "group_size": 0}', "illegal group_size 0"),
    ],
)
def test_what_can_t_be_understood_is_an_offence(text: bytes, says: str) -> None:
    wrong = parse_marker("blocks.0.fc1", text)
    assert isinstance(wrong, Offence) and wrong.field == "blocks.0.fc1.comfy_quant" and says in wrong.message


def test_strange_names_are_fit_to_be_shown() -> None:
    marker = marker_from("fc1", {"format": "a\n\ud800" * 1000})
    assert isinstance(marker, Marker) and marker.format.isprintable() and len(marker.format) < 1000


def test_the_label_tells_a_rotation_where_there_is_a_choice() -> None:
    assert Marker("int8_tensorwise", convrot=64).label == "int8_tensorwise+convrot"
    assert Marker("int8_tensorwise").label == "int8_tensorwise"
    assert Marker("convrot_w4a4", convrot=64).label == "convrot_w4a4"
    assert Marker("later", convrot=64).label == "later"


def described(layers: object) -> dict[str, str]:
    return {"_quantization_metadata": json.dumps({"format_version": "1.0", "layers": layers})}


@pytest.mark.parametrize("prefix", ["", *PREFIXES])
def test_names_in_the_metadata_may_have_a_prefix(prefix: str) -> None:
    metadata = described({f"{prefix}fc1": {"format": "nvfp4"}, f"{prefix}fc2": "mxfp8"})
    found, offences = metadata_markers(metadata, PREFIXES, {"fc1.weight", "fc2.weight"})
    assert found == {"fc1": Marker("nvfp4"), "fc2": Marker("mxfp8")} and not offences


def test_layers_of_other_components_are_passed_over() -> None:
    metadata = described({"fc1": "nvfp4", "text_encoders.x": {"format": 7}, "gone": []})
    assert metadata_markers(metadata, PREFIXES, {"fc1.weight"}) == ({"fc1": Marker("nvfp4")}, [])


def test_two_words_about_one_layer_must_agree() -> None:
    agreed = described({"fc1": "nvfp4", "diffusion_model.fc1": {"format": "nvfp4"}})
    assert metadata_markers(agreed, PREFIXES, {"fc1.weight"}) == ({"fc1": Marker("nvfp4")}, [])
    split = described({"fc1": "nvfp4", "diffusion_model.fc1": "mxfp8"})
    _, (offence,) = metadata_markers(split, PREFIXES, {"fc1.weight"})
    assert "twice" in offence.message


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"layers": []}', '{"layers": "x"}', "[" * 100_000])
def test_metadata_without_layers_is_an_offence(text: str) -> None:
    found, (offence,) = metadata_markers({"_quantization_metadata": text}, PREFIXES, {"fc1.weight"})
    assert not found and offence.field == "_quantization_metadata"


def test_a_file_without_metadata_has_no_markers() -> None:
    assert metadata_markers({"format": "pt"}, PREFIXES, {"fc1.weight"}) == ({}, [])


@pytest.mark.parametrize(
    ("columns", "sizes"),
    [(2688, (4, 16, 64)), (5376, (4, 16, 64, 256)), (8, (4,)), (7, ()), (4096, (4, 16, 64, 256, 1024, 4096)), (0, ())],
)
def test_rotations_are_powers_of_four_that_divide_the_columns(columns: int, sizes: tuple[int, ...]) -> None:
    assert rotations(columns) == sizes


def test_every_format_names_itself() -> None:
    assert all(form.name == name for name, form in FORMATS.items())
    assert len({form.short for form in FORMATS.values()}) == len(FORMATS)


def test_the_formats_are_those_of_the_contract() -> None:
    """checkpoint-formats §2.5, without the alias."""
    assert set(FORMATS) == {
        "nvfp4",
        "int8_tensorwise",
        "float8_e4m3fn",
        "float8_e5m2",
        "mxfp8",
        "convrot_w4a4",
        "asym_w4a8_int8",
        "awq_w4a16",
    }
