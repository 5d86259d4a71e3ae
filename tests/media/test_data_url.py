"""data: URLs as browsers write them; everything else names its field."""

import base64
import textwrap
import threading
import time
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from h3runtime.errors import BadMedia
from h3runtime.media.data_url import BLOCK, parse_data_url

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


@pytest.mark.parametrize("size", [3 * BLOCK // 4 - 1, 3 * BLOCK // 4, 3 * BLOCK // 4 + 1, 2 * BLOCK])
def test_more_than_a_block(size: int) -> None:
    data = bytes(range(256)) * (size // 256 + 1)
    data = data[:size]
    packed = base64.b64encode(data).decode()
    for body in (packed, packed.rstrip("="), packed[:10] + "\n" + packed[10:]):
        assert parse_data_url(f"data:;base64,{body}", "f", size).data == data


def test_padding_within_the_data_is_refused() -> None:
    for where in (0, BLOCK - 4, BLOCK):
        text = "A" * where + "QQ==" + "A" * BLOCK
        with pytest.raises(BadMedia, match="broken"):
            parse_data_url(f"data:;base64,{text}", "f", 10 * BLOCK)


def test_other_threads_run_while_a_large_one_is_decoded() -> None:
    """In one piece it held the interpreter for half a second, and health with it."""
    text = "data:;base64," + "QUFB" * 7_500_000
    decoding = threading.Thread(target=parse_data_url, args=(text, "f", 10**8))
    decoding.start()
    turns = 0
    while decoding.is_alive():
        time.sleep(0.0005)
        turns += 1
    assert turns > 5
