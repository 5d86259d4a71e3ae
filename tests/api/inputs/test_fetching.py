"""Media by URL: which hosts and addresses, how many redirects, how much and how long; against a real server."""

from __future__ import annotations

import hashlib
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from h3runtime.api.inputs.fetching import Fetcher, FetchLimits
from h3runtime.api.inputs.hosts import AllowedHosts, NotFetchedError, is_public, place_of
from h3runtime.errors import BadMedia, InvalidRequest

DATA = bytes(range(256)) * 1000
QUICK = FetchLimits(connect_seconds=1, stall_seconds=0.2, total_seconds=0.6)
"""For what takes too long. Whoever must answer has the usual limits: this machine may be slow too."""
USUAL = FetchLimits()
FIELD = "references[0].source.url"
KEY = """-----BEGIN PRIVATE KEY-----
MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgF2vfxWxUVJeFYCiE
uUCs4dfqTvUr5NDn13GdPAJSgcihRANCAATRj3pP9Mrll7qPxn2pXRIexWR0JJaO
fRvuPy94R0cbCXMxgYHBy16lYCtsvgxaZOZ+ZZzKjgEcH1cvQHeqLirA
-----END PRIVATE KEY-----
"""
"""Made for this test, as is the certificate that it signs for `localhost`; good for a hundred years."""
CERTIFICATE = """-----BEGIN CERTIFICATE-----
MIIBlTCCATugAwIBAgIUYV4OFSpEVI9U99FEztG0+ivHnoIwCgYIKoZIzj0EAwIw
FDESMBAGA1UEAwwJbG9jYWxob3N0MCAXDTI2MTEzMDA1NDkwNVoYDzIxMjYxMTA2
MDU0OTA1WjAUMRIwEAYDVQQDDAlsb2NhbGhvc3QwWTATBgcqhkjOPQIBBggqhkjO
PQMBBwNCAATRj3pP9Mrll7qPxn2pXRIexWR0JJaOfRvuPy94R0cbCXMxgYHBy16l
YCtsvgxaZOZ+ZZzKjgEcH1cvQHeqLirAo2kwZzAdBgNVHQ4EFgQUpzC1PmVfNDaL
qcM0eRkPuQfVk9EwHwYDVR0jBBgwFoAUpzC1PmVfNDaLqcM0eRkPuQfVk9EwDwYD
VR0TAQH/BAUwAwEB/zAUBgNVHREEDTALgglsb2NhbGhvc3QwCgYIKoZIzj0EAwID
SAAwRQIgDQu4EU/p16UPVBWctbVbVk7J0nB2vVLuTCMTZmstrqcCIQDoHk90SkIu
R6MvRX02X/3+u+6itipvvlyEDYBH8Vge7w==
-----END CERTIFICATE-----
"""


class Handler(BaseHTTPRequestHandler):
    """Plays a part by the path that it is asked for."""

    protocol_version = "HTTP/1.1"
    seen: dict[str, str]

    def do_GET(self) -> None:
        type(self).seen = dict(self.headers.items())
        name, _, argument = self.path[1:].partition("/")
        getattr(self, f"play_{name.partition('?')[0]}")(argument)

    def play_plain(self, _: str) -> None:
        self.answer(DATA)

    def play_chunked(self, _: str) -> None:
        self.answer(None, {"Transfer-Encoding": "chunked"})
        self.wfile.write(b"%x\r\n%s\r\n0\r\n\r\n" % (len(DATA), DATA))

    def play_unannounced(self, _: str) -> None:
        self.answer(None, {"Connection": "close"})
        self.wfile.write(DATA)

    def play_redirect(self, target: str) -> None:
        self.answer(b"", {"Location": target}, 302)

    def play_hop(self, left: str) -> None:
        self.answer(b"", {"Location": f"/hop/{int(left) - 1}" if left != "0" else "/plain"}, 307)

    def play_nowhere(self, _: str) -> None:
        self.answer(b"", {}, 302)

    def play_missing(self, _: str) -> None:
        self.answer(b"no", {}, 404)

    def play_zipped(self, _: str) -> None:
        self.answer(DATA, {"Content-Encoding": "gzip"})

    def play_short(self, _: str) -> None:
        self.answer(None, {"Content-Length": str(len(DATA) + 7)})
        self.wfile.write(DATA)
        self.close_connection = True

    def play_silent(self, _: str) -> None:
        time.sleep(3)

    def play_drip(self, _: str) -> None:
        self.answer(None, {"Content-Length": "1000"})
        self.drip()

    def play_drip_head(self, _: str) -> None:
        self.wfile.write(b"HTTP/1.1 200 OK\r\nX: ")
        self.drip()

    def play_garbage(self, _: str) -> None:
        self.wfile.write(b"\0" * 100 + b"\r\n\r\n")
        self.close_connection = True

    def drip(self) -> None:
        with suppress(OSError):
            for _ in range(60):
                self.wfile.write(b"x")
                self.wfile.flush()
                time.sleep(0.05)

    def answer(self, body: bytes | None, headers: dict[str, str] | None = None, status: int = 200) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        if body is not None:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body or b"")

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def serving(tls: ssl.SSLContext | None = None) -> Iterator[int]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.handle_error = lambda *_: None  # type: ignore[method-assign]
    if tls:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    with serving() as found:
        yield found


def fetch(url: str, target: Path, *allow: str, max_bytes: int = 1 << 20, limits: FetchLimits = USUAL) -> str:
    return Fetcher(allow or ("127.0.0.1",), max_bytes, limits).fetch(url, FIELD, target / "medium")


def refused(kind: type[InvalidRequest], call: Callable[[], object]) -> tuple[str, str]:
    """Message and legal values of the one offence."""
    with pytest.raises(InvalidRequest) as raised:
        call()
    assert type(raised.value) is kind
    (offence,) = raised.value.offences
    assert offence.field == FIELD
    return offence.message, offence.legal


@pytest.mark.parametrize("name", ["plain", "chunked", "unannounced", "plain?a=b%20c", "hop/4", "redirect//plain"])
def test_what_is_there_arrives_whole(port: int, tmp_path: Path, name: str) -> None:
    assert fetch(f"http://127.0.0.1:{port}/{name}", tmp_path) == hashlib.sha256(DATA).hexdigest()
    assert (tmp_path / "medium").read_bytes() == DATA
    assert Handler.seen["Host"] == f"127.0.0.1:{port}"
    assert {"Cookie", "Authorization", "Referer"}.isdisjoint(Handler.seen)
    assert Handler.seen["Accept-Encoding"] == "identity"


def test_proxy_variables_are_not_heard(port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    assert fetch(f"http://127.0.0.1:{port}/plain", tmp_path)


@pytest.mark.parametrize(
    ("allow", "url"),
    [
        ("example.com", "http://other.example/x"),
        ("example.com", "http://sub.example.com/x"),
        ("*.example.com", "http://example.com/x"),
        ("*.example.com", "http://badexample.com/x"),
        ("example.com:8443", "https://example.com/x"),
        ("example.com", "ftp://example.com/x"),
        ("example.com", "file:///etc/passwd"),
        ("example.com", "http://user:word@example.com/x"),
        ("example.com", "http://example.com@evil.example/x"),
        ("*.example.com", "http://evil.example\\.example.com/x"),
        ("example.com", "http://example.com /x"),
        ("example.com", "http://exam\nple.com/x"),
        ("example.com", "http://[fe80::1%25eth0]/x"),
        ("example.com", "http://[::1/x"),
        ("example.com", "http://example.com:0/x"),
        ("example.com", "http://example.com:99999/x"),
        ("example.com", "http://example.com/" + "x" * 5000),
        ("example.com", "//example.com/x"),
        ("example.com", ""),
        ("127.0.0.1", "http://2130706433/x"),
        ("127.0.0.1", "http://0x7f.1/x"),
    ],
)
def test_what_is_not_allowed_is_never_asked_for(tmp_path: Path, allow: str, url: str) -> None:
    def resolve(host: str, port: int) -> Sequence[object]:
        raise AssertionError(host, port)

    fetcher = Fetcher((allow,), 1, USUAL, resolve)  # type: ignore[arg-type]
    message, legal = refused(InvalidRequest, lambda: fetcher.fetch(url, FIELD, tmp_path / "x"))
    assert allow in legal and "word" not in message


def test_without_a_list_nothing_is_fetched(tmp_path: Path) -> None:
    message, legal = refused(InvalidRequest, lambda: Fetcher((), 1).fetch("http://a.example/", FIELD, tmp_path / "x"))
    assert "no host" in message and "upload" in legal


@pytest.mark.parametrize(
    ("allow", "url"),
    [
        ("example.com", "https://EXAMPLE.com./x"),
        ("example.com:8443", "https://example.com:8443/x"),
        ("*.example.com", "http://a.b.example.com/x"),
        ("[::1]:80", "http://[0:0:0:0:0:0:0:1]/x"),
        ("xn--bcher-kva.example", "http://bücher.example/x"),
    ],
)
def test_what_is_allowed(allow: str, url: str) -> None:
    AllowedHosts([allow]).judge(place_of(url))


def test_a_redirect_is_judged_anew(port: int, tmp_path: Path) -> None:
    with serving() as other:
        url = f"http://127.0.0.1:{port}/redirect/http://127.0.0.1:{other}/plain"
        message, legal = refused(InvalidRequest, lambda: fetch(url, tmp_path, f"127.0.0.1:{port}"))
        assert str(other) in message and str(port) in legal
        assert fetch(url, tmp_path, "127.0.0.1")
    for target in ("file:///etc/passwd", "http://user@127.0.0.1/", "http://evil.example/", "http://[bad/"):
        refused(InvalidRequest, lambda url=target: fetch(f"http://127.0.0.1:{port}/redirect/{url}", tmp_path))


def test_a_redirect_to_a_private_address_is_refused(port: int, tmp_path: Path) -> None:
    def resolve(_: str, __: int) -> Sequence[tuple[socket.AddressFamily, tuple[str, int]]]:
        return [(socket.AF_INET, ("127.0.0.1", port))]

    fetcher = Fetcher(("127.0.0.1", "inner.example"), 1 << 20, USUAL, resolve)
    url = f"http://127.0.0.1:{port}/redirect/http://inner.example/plain"
    message, _ = refused(InvalidRequest, lambda: fetcher.fetch(url, FIELD, tmp_path / "x"))
    assert "inner.example" in message and "public" in message


def test_a_name_at_private_addresses_is_not_connected_to(port: int, tmp_path: Path) -> None:
    asked: list[str] = []

    def resolve(host: str, _: int) -> Sequence[tuple[socket.AddressFamily, tuple[str, int]]]:
        asked.append(host)
        return [(socket.AF_INET, ("127.0.0.1", port)), (socket.AF_INET6, ("::ffff:10.0.0.1", port))]

    fetcher = Fetcher(("media.example", "localhost"), 1 << 20, USUAL, resolve)
    refused(InvalidRequest, lambda: fetcher.fetch("http://media.example/plain", FIELD, tmp_path / "x"))
    assert asked == ["media.example"]
    # By a name that says where it is, the same address is meant.
    assert fetcher.fetch("http://localhost/plain", FIELD, tmp_path / "x")


@pytest.mark.parametrize("limit", [len(DATA) - 1, 10])
@pytest.mark.parametrize("name", ["plain", "chunked", "unannounced"])
def test_too_much_is_refused(port: int, tmp_path: Path, name: str, limit: int) -> None:
    url = f"http://127.0.0.1:{port}/{name}"
    message, legal = refused(BadMedia, lambda: fetch(url, tmp_path, max_bytes=limit))
    assert "too large" in message and str(limit) in legal


def test_all_media_of_a_request_share_one_limit(port: int, tmp_path: Path) -> None:
    fetcher = Fetcher(("127.0.0.1",), 2 * len(DATA) - 1, USUAL)
    fetcher.fetch(f"http://127.0.0.1:{port}/plain", FIELD, tmp_path / "x")
    refused(BadMedia, lambda: fetcher.fetch(f"http://127.0.0.1:{port}/plain", FIELD, tmp_path / "y"))


@pytest.mark.parametrize(
    ("name", "word"),
    [
        ("missing", "404"),
        ("zipped", "encoded"),
        ("short", "broke off 7 bytes"),
        ("hop/6", "more than 5 times"),
        ("nowhere", "nowhere"),
        ("garbage", "broke off"),
        ("silent", "too long"),
        ("drip", "too long"),
        ("drip_head", "too long"),
    ],
)
def test_what_the_other_server_does_wrong_is_bad_media(port: int, tmp_path: Path, name: str, word: str) -> None:
    began = time.monotonic()
    limits = QUICK if word == "too long" else USUAL
    message, _ = refused(BadMedia, lambda: fetch(f"http://127.0.0.1:{port}/{name}", tmp_path, limits=limits))
    assert word in message
    assert time.monotonic() - began < USUAL.total_seconds / 2


def test_a_server_that_is_not_there_is_bad_media(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}/"
        refused(BadMedia, lambda: fetch(url, tmp_path))

    def resolve(_: str, __: int) -> Sequence[tuple[socket.AddressFamily, tuple[str, int]]]:
        raise socket.gaierror(-2, "Name or service not known")

    fetcher = Fetcher(("gone.example",), 1, USUAL, resolve)
    refused(BadMedia, lambda: fetcher.fetch("http://gone.example/", FIELD, tmp_path / "x"))


def test_a_resolver_that_hangs_is_left_behind(tmp_path: Path) -> None:
    hanging = threading.Event()

    def resolve(_: str, __: int) -> Sequence[tuple[socket.AddressFamily, tuple[str, int]]]:
        hanging.wait(60)
        return []

    fetcher = Fetcher(("slow.example",), 1, QUICK, resolve)
    message, _ = refused(BadMedia, lambda: fetcher.fetch("http://slow.example/", FIELD, tmp_path / "x"))
    hanging.set()
    assert "too long" in message


def test_tls_is_verified_against_the_name(tmp_path: Path) -> None:
    (tmp_path / "both.pem").write_text(KEY + CERTIFICATE)
    ours = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    ours.load_cert_chain(tmp_path / "both.pem")
    known = ssl.create_default_context(cadata=CERTIFICATE)
    hosts = ("localhost", "127.0.0.1")
    limits = FetchLimits()
    with serving(ours) as port:
        trusting = Fetcher(hosts, 1 << 20, limits, tls=known)
        assert trusting.fetch(f"https://localhost:{port}/plain", FIELD, tmp_path / "x")
        for fetcher, host in ((trusting, "127.0.0.1"), (Fetcher(hosts, 1 << 20, limits), "localhost")):
            url = f"https://{host}:{port}/plain"
            message, _ = refused(BadMedia, lambda fetcher=fetcher, url=url: fetcher.fetch(url, FIELD, tmp_path / "x"))
            assert "TLS" in message


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1",
        "10.1.2.3",
        "172.16.0.1",
        "192.168.1.1",
        "100.64.0.1",
        "169.254.169.254",
        "0.0.0.0",
        "224.0.0.1",
        "240.0.0.1",
        "255.255.255.255",
        "::",
        "::1",
        "fe80::1",
        "fc00::1",
        "fec0::1",
        "ff02::1",
        "::ffff:127.0.0.1",
        "::ffff:169.254.169.254",
        "2002:7f00:1::",
        "64:ff9b::a00:1",
        "2001:db8::1",
        "fe80::1%eth0",
        "no address",
    ],
)
def test_private_addresses(address: str) -> None:
    assert not is_public(address)


@pytest.mark.parametrize(
    "address", ["8.8.8.8", "93.184.216.34", "2606:4700::1111", "::ffff:8.8.8.8", "64:ff9b::808:808"]
)
def test_public_addresses(address: str) -> None:
    assert is_public(address)


@given(st.text(max_size=60), st.sampled_from(["", "http://", "https://a.example", "http://[", "http://a.example:"]))
def test_no_text_breaks_the_judge_of_urls(text: str, start: str) -> None:
    with suppress(NotFetchedError):
        place = place_of(start + text)
        assert place.target.isascii() and place.target.startswith(("/", "?")) and " " not in place.target
        assert place.host.isascii() and 0 < place.port < 65536
