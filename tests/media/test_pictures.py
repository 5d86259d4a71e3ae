"""Pictures of every kind come out upright, RGB, on black; everything else is one typed error naming the field."""

import io
import struct
import zlib
from pathlib import Path

import numpy as np
import pillow_heif
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from PIL import Image

from h3runtime.errors import BadMedia
from h3runtime.media.pictures import UPRIGHT, cover, cover_margins, measure_picture, read_picture, stretch


def pattern(width: int = 24, height: int = 16) -> Image.Image:
    """Four coloured quarters: red, green / blue, white."""
    pixels = np.zeros((height, width, 3), np.uint8)
    pixels[: height // 2, : width // 2] = 255, 0, 0
    pixels[: height // 2, width // 2 :] = 0, 255, 0
    pixels[height // 2 :, : width // 2] = 0, 0, 255
    pixels[height // 2 :, width // 2 :] = 255
    return Image.fromarray(pixels)


def encode(image: Image.Image, kind: str = "PNG", **options) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def with_orientation(image: Image.Image, orientation: int, kind: str = "JPEG") -> bytes:
    exif = Image.Exif()
    exif[0x0112] = orientation
    return encode(image, kind, exif=exif, **({"quality": 95, "subsampling": 0} if kind == "JPEG" else {}))


def heic(image: Image.Image, orientation: int) -> bytes:
    pillow_heif.register_heif_opener()
    exif = Image.Exif()
    exif[0x0112] = orientation
    # As bytes: a HEIC of which only the EXIF says how it lies would be upright as it is (ISO 23008-12, A.2.2).
    return encode(image, "HEIF", exif=exif.tobytes(), quality=95)


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "TIFF"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_orientation_is_applied_before_measuring(orientation: int, kind: str) -> None:
    upright = pattern(32, 16)
    undo = {6: 8, 8: 6}.get(orientation, orientation)
    stored = upright.transpose(UPRIGHT[undo]) if orientation > 1 else upright
    picture = read_picture(with_orientation(stored, orientation, kind), "first_frame")
    assert (picture.facts.width, picture.facts.height) == (32, 16)
    assert picture.facts.orientation == (1 if kind == "TIFF" else orientation)
    assert picture.pixels.shape == (16, 32, 3)
    assert np.abs(picture.pixels.astype(int) - np.asarray(upright)).mean() < 12


@pytest.mark.parametrize("orientation", range(1, 9))
def test_heic_is_upright_as_its_own_orientation_says(orientation: int) -> None:
    """Its decoder turns it, so 1 is told."""
    upright = pattern(64, 32)
    undo = {6: 8, 8: 6}.get(orientation, orientation)
    stored = upright.transpose(UPRIGHT[undo]) if orientation > 1 else upright
    picture = read_picture(heic(stored, orientation), "first_frame")
    facts = picture.facts
    assert (facts.width, facts.height, facts.orientation, facts.format) == (64, 32, 1, "HEIF")
    assert picture.pixels.shape == (32, 64, 3)
    assert np.abs(picture.pixels.astype(int) - np.asarray(upright)).mean() < 12


def test_heic_is_refused_like_any_other() -> None:
    whole = heic(pattern(64, 32), 1)
    with pytest.raises(BadMedia, match="more than 100 pixels"):
        measure_picture(whole, "first_frame", max_pixels=100)
    for broken in (whole[: len(whole) // 2], whole[:-40]):
        with pytest.raises(BadMedia, match="first_frame"):
            read_picture(broken, "first_frame")


def test_a_phone_photo_on_its_side_is_portrait(tmp_path: Path) -> None:
    path = tmp_path / "photo.jpg"
    path.write_bytes(with_orientation(Image.new("RGB", (1200, 800), "teal"), 6))
    facts = measure_picture(path, "first_frame")
    assert (facts.width, facts.height, facts.mode, facts.format) == (800, 1200, "RGB", "JPEG")
    assert read_picture(path, "first_frame").pixels.shape == (1200, 800, 3)


@pytest.mark.filterwarnings("ignore:Corrupt EXIF")
def test_broken_exif_counts_as_upright() -> None:
    broken = encode(pattern(), "JPEG", exif=b"Exif\x00\x00MM\x00\x2a\xff\xff\xff\xff")
    assert read_picture(broken, "first_frame").facts.orientation == 1


def test_alpha_is_composited_on_black() -> None:
    pixels = np.full((4, 256, 4), 200, np.uint8)
    pixels[..., 3] = np.arange(256)
    got = read_picture(encode(Image.fromarray(pixels)), "first_frame").pixels
    want = (np.arange(256) * 200 + 127) // 255
    assert np.abs(got[0, :, 0].astype(int) - want).max() <= 1
    assert (got[:, 0] == 0).all() and (got[:, 255] == 200).all()


def test_grey_with_alpha() -> None:
    pixels = np.stack([np.full((4, 4), 100, np.uint8), np.full((4, 4), 128, np.uint8)], axis=-1)
    picture = read_picture(encode(Image.fromarray(pixels)), "first_frame")
    assert picture.facts.mode == "LA" and np.abs(picture.pixels.astype(int) - 50).max() <= 1


@pytest.mark.parametrize("kind", ["PNG", "GIF"])
def test_palette_with_a_transparent_entry(kind: str) -> None:
    image = Image.new("P", (8, 8), 1)
    image.putpalette([255, 0, 0, 0, 255, 0])
    image.paste(0, (0, 0, 4, 8))
    got = read_picture(encode(image, kind, transparency=0), "first_frame").pixels
    assert (got[:, :4] == 0).all() and (got[:, 4:] == (0, 255, 0)).all()


def test_palette_without_transparency() -> None:
    got = read_picture(encode(pattern().quantize(4)), "first_frame").pixels
    assert (got == np.asarray(pattern())).all()


def test_sixteen_bit_grey_keeps_its_tones() -> None:
    ramp = np.arange(65536, dtype=np.uint16).reshape(256, 256)
    picture = read_picture(encode(Image.fromarray(ramp)), "first_frame")
    assert picture.facts.mode == "I;16"
    assert (picture.pixels == (ramp >> 8).astype(np.uint8)[..., None]).all()


def png(width: int, height: int, depth: int, colour: int, rows: bytes, extra: bytes = b"") -> bytes:
    def chunk(name: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))

    head = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0))
    transparency = chunk(b"tRNS", extra) if extra else b""
    data = chunk(b"IDAT", zlib.compress(rows))
    return b"\x89PNG\r\n\x1a\n" + head + transparency + data + chunk(b"IEND", b"")


def test_sixteen_bit_grey_with_a_transparent_value() -> None:
    rows = b"\x00" + struct.pack(">2H", 40000, 50000)
    got = read_picture(png(2, 1, 16, 0, rows, struct.pack(">H", 40000)), "first_frame").pixels
    assert got[0, :, 0].tolist() == [0, 50000 >> 8]


def test_sixteen_bit_colour_and_grey_agree() -> None:
    values = (0x1234, 0x80FF, 0xFFFF)
    colour = read_picture(png(1, 1, 16, 2, b"\x00" + struct.pack(">3H", *values)), "f").pixels[0, 0]
    grey = read_picture(png(3, 1, 16, 0, b"\x00" + struct.pack(">3H", *values)), "f").pixels[0, :, 0]
    assert colour.tolist() == grey.tolist() == [0x12, 0x80, 0xFF]


def test_cmyk_jpeg() -> None:
    image = Image.new("CMYK", (16, 16), (0, 255, 255, 0))
    picture = read_picture(encode(image, "JPEG", quality=95), "first_frame")
    assert picture.facts.mode == "CMYK"
    assert np.abs(picture.pixels.astype(int) - (255, 0, 0)).max() <= 6


@pytest.mark.parametrize("mode", ["1", "L"])
def test_grey_and_bilevel(mode: str) -> None:
    got = read_picture(encode(Image.new(mode, (4, 4), 255 if mode == "1" else 77)), "first_frame").pixels
    assert (got == (255 if mode == "1" else 77)).all()


@pytest.mark.parametrize("kind", ["GIF", "WEBP", "PNG"])
def test_an_animation_is_its_first_frame(kind: str) -> None:
    first, second = Image.new("RGB", (16, 16), "red"), Image.new("RGB", (16, 16), "blue")
    options = {"lossless": True} if kind == "WEBP" else {}
    moving = encode(first, kind, save_all=True, append_images=[second], duration=50, **options)
    assert Image.open(io.BytesIO(moving)).n_frames == 2
    assert (read_picture(moving, "first_frame").pixels == (255, 0, 0)).all()


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF"])
def test_every_kind_is_read(kind: str) -> None:
    facts = measure_picture(encode(pattern(), kind), "first_frame")
    assert (facts.width, facts.height, facts.format) == (24, 16, kind)


def noise() -> Image.Image:
    return Image.fromarray(np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8))


@pytest.mark.parametrize("read", [read_picture, measure_picture])
@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF"])
def test_a_truncated_picture_names_its_field(kind: str, read) -> None:
    whole = encode(noise(), kind)
    with pytest.raises(BadMedia) as caught:
        read(whole[: len(whole) // 2], "last_frame")
    assert caught.value.offences[0].field == "last_frame" and caught.value.code == "bad_media"


@pytest.mark.parametrize(
    "body", [b"", b"hello", b"\x89PNG\r\n\x1a\n", b"%!PS-Adobe-3.0\n%%BoundingBox: 0 0 9 9\n", b"P5 2 2 255 abcd"]
)
def test_not_a_picture(body: bytes) -> None:
    with pytest.raises(BadMedia, match="first_frame"):
        read_picture(body, "first_frame")


def test_a_missing_file_is_typed_and_its_path_stays_secret(tmp_path: Path) -> None:
    with pytest.raises(BadMedia) as caught:
        read_picture(tmp_path / "gone.png", "first_frame")
    assert str(tmp_path) not in str(caught.value)


def test_a_bomb_is_refused_from_its_header() -> None:
    with pytest.raises(BadMedia, match="pixels"):
        read_picture(encode(pattern(64, 64)), "first_frame", max_pixels=64 * 64 - 1)
    for side in (9_000, 10_000, 60_000):
        with pytest.raises(BadMedia, match="pixels"):
            read_picture(png(side, side, 8, 2, b""), "first_frame")


def test_float_pixels_are_refused() -> None:
    with pytest.raises(BadMedia, match="mode F"):
        read_picture(encode(Image.new("F", (4, 4), 0.5), "TIFF"), "first_frame")


@given(st.data())
def test_damage_is_read_or_refused_but_never_anything_else(data) -> None:
    kind = data.draw(st.sampled_from(["PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF"]))
    body = bytearray(encode(pattern(), kind))
    for _ in range(data.draw(st.integers(1, 8))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    try:
        picture = read_picture(bytes(body), "first_frame", max_pixels=100_000)
    except BadMedia:
        return
    assert picture.pixels.shape == (picture.facts.height, picture.facts.width, 3)


def test_fitting_to_the_same_size_changes_nothing() -> None:
    pixels = np.asarray(noise())
    assert (stretch(pixels, 64, 64) == pixels).all() and (cover(pixels, 64, 64) == pixels).all()


def test_cover_cuts_the_sides_and_keeps_the_middle() -> None:
    pixels = np.zeros((32, 96, 3), np.uint8)
    pixels[:, 32:64] = 255
    assert (cover(pixels, 32, 32) == 255).all()


@pytest.mark.parametrize(
    ("old", "new", "margins"),
    # 3 and 1 columns too many: 1.5 and 0.5 round to even.
    [
        ((35, 32), (32, 32), (2, 0)),
        ((33, 32), (32, 32), (0, 0)),
        ((32, 37), (32, 32), (0, 2)),
        ((64, 96), (64, 32), (0, 32)),
    ],
)
def test_margins_round_half_to_even(old, new, margins) -> None:
    assert cover_margins(*old, *new) == margins


sides = st.integers(1, 5000)


@given(sides, sides, st.integers(1, 128).map(lambda n: 32 * n), st.integers(1, 128).map(lambda n: 32 * n))
@example(251, 510, 800, 1632)
def test_margins_leave_the_canvas_aspect(old_width: int, old_height: int, width: int, height: int) -> None:
    left, top = cover_margins(old_width, old_height, width, height)
    kept_width, kept_height = old_width - 2 * left, old_height - 2 * top
    assert kept_width >= 1 and kept_height >= 1 and min(left, top) == 0
    # One axis is whole; the other is within a pixel (two halves) of the exact aspect, or at its least. Where nothing is
    # cut off, less than a pixel of one of them would have to be.
    wide = abs(kept_width - old_height * width / height) <= 1 + 1e-6
    tall = abs(kept_height - old_width * height / width) <= 1 + 1e-6
    in_aspect = wide if left else tall if top else wide or tall
    assert in_aspect or min(kept_width, kept_height) <= 2


def test_a_multi_picture_photo_is_its_first_picture() -> None:
    first, second = Image.new("RGB", (16, 16), "red"), Image.new("RGB", (16, 16), "blue")
    picture = read_picture(encode(first, "MPO", save_all=True, append_images=[second]), "first_frame")
    assert picture.facts.format == "MPO" and np.abs(picture.pixels.astype(int) - (255, 0, 0)).max() <= 3
