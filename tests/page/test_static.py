"""The files of the page: complete, closed in themselves, and cheap to ask for again."""

from __future__ import annotations

import re

from h3runtime.api.page import static_files
from tests.api.server import Running


def test_every_file_that_is_named_is_there_and_every_file_is_named() -> None:
    files = static_files()
    named = {"index.html"}
    for file in files.values():
        text = file.data.decode()
        named |= set(re.findall(r'from "\./([\w.]+)"', text)) | set(re.findall(r'"/page/([\w.]+)"', text))
    assert named == set(files)


def test_every_script_says_what_it_is_for_and_puts_no_markup_in() -> None:
    for name, file in static_files().items():
        text = file.data.decode()
        if name.endswith(".js"):
            assert text.startswith("// "), name
        assert not re.search(
            r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|https?://(?!www\.w3\.org)", text
        ), name


def test_it_is_served_with_its_headers(server: Running) -> None:
    page = server.client.get("/")
    assert page.status_code == 200 and page.headers["content-type"].startswith("text/html")
    policy = page.headers["content-security-policy"]
    assert "script-src 'self'" in policy and "unsafe-inline" not in policy
    again = server.client.get("/", headers={"If-None-Match": page.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    assert server.client.get("/", headers={"If-None-Match": "*"}).status_code == 304
    assert server.client.head("/").status_code == 200
    script = server.client.get("/page/main.js")
    assert script.headers["content-type"].startswith("text/javascript")
    for name in ("nothing.js", "..%2f__init__.py", "%2e%2e/__init__.py"):
        assert server.client.get(f"/page/{name}").status_code == 404
