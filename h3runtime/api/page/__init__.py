"""The page at `/`: static files of this package, read once and served from memory.

`/` is the document, `/page/NAME` what it loads. No build step, no template, nothing from elsewhere; the page is a
client of the routes that every client uses, so no route here answers a question. What it may load and run is the
business of `headers`; that its files need no key is that of `auth`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from importlib.resources.abc import Traversable
from typing import TYPE_CHECKING

from fastapi import FastAPI, Request
from starlette.responses import Response

from h3runtime.api.etags import is_known
from h3runtime.errors import NotFound

if TYPE_CHECKING:
    from h3runtime.api.service import Service

DOCUMENT = "index.html"
MEDIA_TYPES: Mapping[str, str] = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
"""By suffix. Browsers run a module of no other type, and what a system's own table says of `.js` differs."""


@dataclass(frozen=True, slots=True)
class StaticFile:
    """A file of the page and its ETag."""

    data: bytes
    media_type: str
    etag: str

    def answer(self, known: str) -> Response:
        """The file; 304 if the client's `If-None-Match` names it. Asked for every time: an upgrade shows at once."""
        headers = {"ETag": self.etag, "Cache-Control": "no-cache"}
        if is_known(self.etag, known):
            return Response(status_code=304, headers=headers)
        return Response(self.data, headers=headers, media_type=self.media_type)


def static_files() -> dict[str, StaticFile]:
    """Name below `/page/` -> file."""
    folder = resources.files(__name__) / "static"
    return {item.name: _read(item) for item in folder.iterdir() if item.is_file()}


def _read(item: Traversable) -> StaticFile:
    data = item.read_bytes()
    media_type = MEDIA_TYPES[item.name[item.name.rindex(".") :]]
    return StaticFile(data, media_type, f'"{hashlib.sha256(data).hexdigest()[:32]}"')


def add_page(app: FastAPI, service: Service) -> None:  # noqa: ARG001  # as every `add_*`
    files = static_files()

    async def page(request: Request) -> Response:
        return files[DOCUMENT].answer(request.headers.get("if-none-match", ""))

    async def page_file(name: str, request: Request) -> Response:
        if name not in files:
            raise NotFound(f"the page has no file {name!r:.60}")
        return files[name].answer(request.headers.get("if-none-match", ""))

    app.add_api_route("/", page, methods=["GET", "HEAD"], include_in_schema=False)
    app.add_api_route("/page/{name}", page_file, methods=["GET", "HEAD"], include_in_schema=False)
