"""Keys: who gets in, what a refusal looks like and costs, and what is kept of a key."""

from __future__ import annotations

import hashlib
import json
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from h3runtime.api.auth import Keys, bearer_key, exposure_warning, is_loopback, is_open
from h3runtime.errors import SettingsError
from h3runtime.settings import Settings
from tests.api.raw import answer_to
from tests.api.server import SMALL, Running, running

ANNA, BERT, OWN = "anna-key", "bert-key", "own-key"


def digest(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()


def bearing(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


@pytest.fixture(scope="module")
def locked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A server with three keys."""
    folder = tmp_path_factory.mktemp("locked")
    (folder / "keys").write_text(f"# of the studio\n\nanna:{digest(ANNA)}\n  bert:{digest(BERT).upper()}  \n")
    with running(folder / "data", api_key=OWN, api_keys_file=folder / "keys") as found:
        yield found


def keys_of(folder: Path, text: bytes, **settings: str) -> Keys:
    (folder / "keys").write_bytes(text)
    return Keys.from_settings(Settings(data_dir=folder, api_keys_file=folder / "keys", **settings))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "path", ["/live", "/ready", "/metrics", "/v2/health/live", "/v2/health/ready", "/openapi.json", "/docs"]
)
def test_probes_and_descriptions_are_open(locked: Running, path: str) -> None:
    assert locked.client.get(path).status_code == 200
    assert locked.client.head(path).status_code == 200
    assert locked.client.get(path, headers=bearing("wrong")).status_code == 200


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/generate"),
        ("GET", "/generate"),
        ("POST", "/estimate"),
        ("GET", "/jobs"),
        ("GET", "/jobs/x"),
        ("GET", "/jobs/x/content"),
        ("POST", "/jobs/x/cancel"),
        ("DELETE", "/jobs/x"),
        ("GET", "/nothing"),
        ("PATCH", "/jobs"),
        ("OPTIONS", "/jobs"),
        ("GET", "/live/"),
        ("GET", "/liveness"),
    ],
)
def test_all_else_asks_for_a_key(locked: Running, method: str, path: str) -> None:
    for headers in ({}, bearing("wrong"), bearing(OWN + "x"), bearing(OWN[:-1])):
        answer = locked.client.request(method, path, headers=headers)
        assert (answer.status_code, answer.json()["code"]) == (401, "unauthorized"), answer.text
        assert answer.headers["content-type"] == "application/problem+json"
        assert answer.headers["www-authenticate"] == "Bearer"
        assert answer.json()["request_id"] == answer.headers["x-request-id"]


def test_below_v1_a_refusal_has_openais_shape(locked: Running) -> None:
    answer = locked.client.get("/v1/videos")
    assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer")
    error = answer.json()["error"]
    assert (error["type"], error["code"], error["param"]) == ("authentication_error", "unauthorized", None)
    assert answer.json().keys() == {"error"}


@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "BEARER"])
@pytest.mark.parametrize("key", [ANNA, BERT, OWN])
def test_every_key_gets_in(locked: Running, scheme: str, key: str) -> None:
    assert locked.client.get("/jobs", headers={"Authorization": f"{scheme} {key}"}).status_code == 200


@pytest.mark.parametrize(
    "header",
    [
        b"Authorization:",
        b"Authorization: Bearer",
        b"Authorization: Bearer  ",
        b"Authorization: Basic b3duLWtleQ==",
        b"Authorization: own-key",
        b"Authorization: Bearerown-key",
        b"Authorization: Bearer own-key x",
        b"Authorization: Bearer \xff\xfe\x80",
        b"Authorization: Bearer own-key\r\nAuthorization: Bearer own-key",
        b"Authorization: Bearer wrong\r\nAuthorization: Bearer own-key",
        b"Authorization: Bearer " + b"x" * 30_000,
        b"X-API-Key: own-key",
        b"Cookie: key=own-key",
    ],
)
def test_odd_headers_are_refused(locked: Running, header: bytes) -> None:
    answer = answer_to(locked.url, b"GET /jobs HTTP/1.1\r\nHost: x\r\nConnection: close\r\n" + header + b"\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 401 "), answer[:200]


def test_a_refusal_comes_before_the_body(locked: Running) -> None:
    head = b"POST /generate HTTP/1.1\r\nHost: x\r\nContent-Type: multipart/form-data; boundary=b\r\n"
    began = time.monotonic()
    answer = answer_to(locked.url, head + b"Content-Length: 536870000\r\nExpect: 100-continue\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 401 ") and b"connection: close" in answer.lower()
    # The server would wait half a minute for the body.
    assert time.monotonic() - began < 20
    assert list(locked.service.folders.tmp.iterdir()) == []


def test_an_upload_without_a_key_is_cut_off_and_can_read_why(locked: Running) -> None:
    host, port = locked.url.removeprefix("http://").split(":")
    sent = 0
    with socket.create_connection((host, int(port)), 5) as client:
        client.sendall(b"POST /generate HTTP/1.1\r\nHost: x\r\nContent-Length: 536870000\r\n\r\n")
        try:
            while sent < 256 * 2**20:
                sent += client.send(b"x" * 65536)
        except OSError:
            pass
    assert sent < 200 * 2**20


def test_a_key_is_in_no_answer_and_no_text(locked: Running) -> None:
    keys = Keys.from_settings(locked.service.settings)
    texts = [repr(keys), str(vars(type(keys))), locked.client.get("/ready").text, locked.client.get("/metrics").text]
    texts.append(locked.client.get("/jobs", headers=bearing("guess")).text)
    assert not any(key in text for key in (ANNA, BERT, OWN, "guess") for text in texts)
    assert all(OWN.encode() not in digest for _, digest in keys.digests)


def test_the_owner_is_the_keys_name(tmp_path: Path) -> None:
    keys = keys_of(tmp_path, f"anna:{digest(ANNA)}\nb.e_r-t:{digest(BERT)}".encode(), api_key=OWN)
    assert [keys.owner_of(key.encode()) for key in (ANNA, BERT, OWN, "", "x")] == [
        "anna",
        "b.e_r-t",
        "default",
        None,
        None,
    ]
    assert keys
    assert not Keys.from_settings(Settings(data_dir=tmp_path))


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (b"anna", "line 1"),
        (b"# x\n\nanna:" + b"0" * 63, "line 3"),
        (b"anna:" + b"0" * 65, "line 1"),
        (b"anna:" + b"g" * 64, "line 1"),
        (b"an na:" + b"0" * 64, "line 1"),
        (b"a" * 65 + b":" + b"0" * 64, "line 1"),
        (b"\xff\xfe:" + b"0" * 64, "line 1"),
        (b"anna:" + b"0" * 64 + b"\nanna:" + b"1" * 64, "line 2"),
        (b"anna:" + b"0" * 64 + b"\nbert:" + b"0" * 64, "line 2"),
        (b"# nobody\n", "no key"),
        (b"\n" * 2**20 + b"x", "larger"),
    ],
)
def test_a_broken_file_is_named_by_its_line_alone(tmp_path: Path, text: bytes, line: str) -> None:
    with pytest.raises(SettingsError, match=line) as raised:
        keys_of(tmp_path, text)
    assert raised.value.offences[0].field == "H3_API_KEYS_FILE"
    assert "0000" not in raised.value.message and "gggg" not in raised.value.message
    assert "\n" not in raised.value.message


def test_a_missing_file_and_a_taken_name_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="can't be read"):
        Keys.from_settings(Settings(data_dir=tmp_path, api_keys_file=tmp_path / "none"))
    with pytest.raises(SettingsError, match="line 1 names an owner"):
        keys_of(tmp_path, f"default:{digest(ANNA)}".encode(), api_key=OWN)
    with pytest.raises(SettingsError, match="line 1 holds the key"):
        keys_of(tmp_path, f"anna:{digest(OWN)}".encode(), api_key=OWN)


@given(st.lists(st.binary(max_size=40), max_size=3))
def test_any_header_gives_a_key_or_none(values: list[bytes]) -> None:
    key = bearer_key([(b"authorization", value) for value in values])
    assert isinstance(key, bytes)
    assert not key or (len(values) == 1 and values[0].strip()[:6].lower() == b"bearer")


def test_open_paths_are_whole_names() -> None:
    assert all(is_open(path) for path in ("/", "/page/app.js", "/docs", "/live"))
    assert not any(is_open(path) for path in ("/jobs", "/live/x", "/pages", "/docsx", "", "/v2", "/metrics/"))


@pytest.mark.parametrize(
    ("host", "is_safe"),
    [
        *((host, True) for host in ("127.0.0.1", "127.8.8.8", "::1", "localhost")),
        *((host, False) for host in ("0.0.0.0", "::", "192.168.1.5", "studio.lan")),
    ],
)
def test_a_server_that_others_reach_without_a_key_warns(tmp_path: Path, host: str, is_safe: bool) -> None:
    assert is_loopback(host) is is_safe
    assert (exposure_warning(Settings(data_dir=tmp_path, host=host)) is None) is is_safe
    assert exposure_warning(Settings(data_dir=tmp_path, host=host, api_key="k")) is None  # type: ignore[arg-type]


def test_a_job_is_its_owners_alone(locked: Running) -> None:
    sent = {**bearing(ANNA), "Prefer": "respond-async", "Content-Type": "application/json"}
    job = locked.client.post("/generate", content=json.dumps(SMALL), headers=sent).json()["id"]
    assert locked.client.get(f"/jobs/{job}", headers=bearing(ANNA)).status_code == 200
    for key in (BERT, OWN):
        hidden = locked.client.get(f"/jobs/{job}", headers=bearing(key))
        assert (hidden.status_code, hidden.json()["code"]) == (404, "job_not_found")
        assert job not in locked.client.get("/jobs", headers=bearing(key)).text
