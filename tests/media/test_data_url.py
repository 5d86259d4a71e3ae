"""data: URLs as browsers write them; everything else names its field."""

import base64
import textwrap
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from h3runtime.errors import BadMedia
from h3runtime.media.data_url import parse_data_url

LIMIT = 10_000


def url(data: bytes, head: str = "data:image/png;base64") -> str:
    return f"{head},{base64.b64encode(data).decode()}"


@given(st.binary(min_size=1, max_size=300))
def test_bytes_come_back(data: bytes) -> None:
    assert parse_data_url(url(data), "f", LIMIT).data == data


@given(st.binary(min_size=1, max_size=300))
def test_line_breaks_escapes_and_missing_padding(data: bytes) -> None:
    packed = base64.b64encode(data).decode()
    for body in (
        "\r\n".join(textwrap.wrap(packed, 20)),
        packed.rstrip("="),
        packed.replace("+", "%2B").replace("/", "%2f").replace("=", "%3D"),
    ):
        assert parse_data_url(f"data:image/png;base64,{body}", "f", LIMIT).data == data


@pytest.mark.parametrize(
    ("head", "media_type"),
    [
        ("data:image/png;base64", "image/png"),
        ("DATA:IMAGE/JPEG;charset=x;BASE64", "image/jpeg"),
        ("data:;base64", ""),
        ("data:video/mp4; base64", "video/mp4"),
    ],
)
def test_heads(head: str, media_type: str) -> None:
    assert parse_data_url(url(b"abc", head), "f", LIMIT).media_type == media_type


@pytest.mark.parametrize(
    "text",
    [
        "",
        "data:",
        "https://example.com/a.png",
        "data:image/png,abc",
        "data:image/png;base64",
        "data:image/png;base64,",
        "data:image/png;base64,====",
        "data:image/png;base64,ab$d",
        "data:image/png;base64,abcde",
        "data:image/png;base64,ab=d",
        "data:image/png;base64,äöü",
        "data:" + "x" * 300 + ";base64,abcd",
    ],
)
def test_anything_else_is_typed(text: str) -> None:
    with pytest.raises(BadMedia) as caught:
        parse_data_url(text, "first_frame.data", LIMIT)
    assert caught.value.offences[0].field == "first_frame.data" and caught.value.offences[0].legal


@given(st.text(max_size=200))
def test_no_text_breaks_the_parser(text: str) -> None:
    for candidate in (text, f"data:image/png;base64,{text}", f"data:{text}"):
        with suppress(BadMedia):
            parse_data_url(candidate, "f", LIMIT)


def test_the_limit_counts_decoded_bytes() -> None:
    assert len(parse_data_url(url(bytes(LIMIT)), "f", LIMIT).data) == LIMIT
    for size in (LIMIT + 1, 100 * LIMIT):
        with pytest.raises(BadMedia, match="too large"):
            parse_data_url(url(bytes(size)), "f", LIMIT)
