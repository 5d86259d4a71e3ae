"""`/docs`: every route with its parameters, fields and examples, as one plain page made from `/openapi.json`.

The framework's own page loads its scripts from elsewhere, which neither works offline nor under our policy. This one
has no script and brings its style along, which the policy allows by its hash. Everything in it is escaped. Made at its
first use and kept: the routes of a running server don't change.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from html import escape
from typing import Any

from fastapi import FastAPI
from starlette.responses import HTMLResponse, Response

from h3runtime.api.headers import POLICY

Schema = Mapping[str, Any]

STYLE = """
:root { color-scheme: light dark; font: 16px/1.5 system-ui, sans-serif; }
body { max-width: 60rem; margin: 0 auto; padding: 1rem; }
h2 { margin-top: 2.5rem; border-top: 1px solid #8888; padding-top: 1rem; }
code, pre { font-family: ui-monospace, monospace; }
code { overflow-wrap: anywhere; }
pre { overflow-x: auto; padding: .75rem; border: 1px solid #8888; border-radius: .25rem; }
table { border-collapse: collapse; width: 100%; }
th, td { text-align: left; vertical-align: top; padding: .25rem .75rem .25rem 0; border-bottom: 1px solid #8884; }
"""
HASH = base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()
METHODS = ("get", "post", "put", "patch", "delete")


def add_docs(app: FastAPI) -> None:
    """Add the route; `app` must not have the framework's."""
    made: list[str] = []
    headers = {"Content-Security-Policy": POLICY.replace("style-src 'self'", f"style-src 'sha256-{HASH}'")}

    @app.head("/docs", include_in_schema=False)
    @app.get("/docs", include_in_schema=False)
    async def docs() -> Response:
        if not made:
            made.append(page_of(app.openapi()))
        return HTMLResponse(made[0], headers=headers)


def page_of(schema: Schema) -> str:
    """The whole page."""
    title = f"{schema['info']['title']} {schema['info']['version']}"
    routes = "".join(_route(path, method, told) for path, method, told in _operations(schema))
    models = "".join(
        _model(name, told) for name, told in sorted(schema.get("components", {}).get("schemas", {}).items())
    )
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{STYLE}</style></head><body><h1>{escape(title)}</h1>"
        f"<p>{escape(schema['info'].get('summary', ''))} The same for machines: "
        '<a href="/openapi.json">/openapi.json</a>.</p>'
        f"<nav><ul>{_contents(schema)}</ul></nav>{routes}<h2>Types</h2>{models}</body></html>"
    )


def _operations(schema: Schema) -> Iterator[tuple[str, str, Schema]]:
    for path, item in schema["paths"].items():
        yield from ((path, method, item[method]) for method in METHODS if method in item)


def _contents(schema: Schema) -> str:
    named = [(f"{method.upper()} {path}", told) for path, method, told in _operations(schema)]
    return "".join(f'<li><a href="#{_anchor(told)}"><code>{escape(name)}</code></a></li>' for name, told in named)


def _anchor(told: Schema) -> str:
    return escape(str(told.get("operationId", "")), quote=True)


def _route(path: str, method: str, told: Schema) -> str:
    content = told.get("requestBody", {}).get("content", {})
    return (
        f'<h2 id="{_anchor(told)}"><code>{method.upper()} {escape(path)}</code></h2>'
        f"<p>{_words(told.get('description', ''))}</p>"
        + _table(_parameters(told))
        + "".join(_body(kind, media) for kind, media in content.items())
        + _table([(status, "", answer.get("description", "")) for status, answer in told.get("responses", {}).items()])
    )


def _parameters(told: Schema) -> list[tuple[str, str, str]]:
    return [
        (item["name"], f"{item['in']}, {kind_of(item.get('schema', {}))}", item.get("description", ""))
        for item in told.get("parameters", ())
    ]


def _body(kind: str, media: Schema) -> str:
    shown = "".join(
        f"<h4>{escape(str(example.get('summary', name)))}</h4><pre>{escape(_json(example.get('value')))}</pre>"
        for name, example in media.get("examples", {}).items()
    )
    return f"<h3>{escape(kind)}</h3><p>{kind_of(media.get('schema', {}))}</p>{shown}"


def _model(name: str, told: Schema) -> str:
    fields = [
        (field, kind_of(about), _about(about)) for field, about in told.get("properties", {}).items()
    ]  # fmt: skip
    anchor = escape(name, quote=True)
    return f'<h3 id="type-{anchor}">{escape(name)}</h3><p>{_words(told.get("description", ""))}</p>{_table(fields)}'


def _about(told: Schema) -> str:
    default = f" Default: {_json(told['default'])}." if "default" in told else ""
    return f"{told.get('description', '')}{default}".strip()


def kind_of(told: Any) -> str:
    """The type in words, as HTML; what has a name links to it."""
    if not isinstance(told, Mapping):
        return "any"
    if "$ref" in told:
        name = escape(told["$ref"].rpartition("/")[2], quote=True)
        return f'<a href="#type-{name}">{name}</a>'
    for word in ("anyOf", "oneOf"):
        if word in told and "properties" not in told:
            return " or ".join(dict.fromkeys(kind_of(kind) for kind in told[word]))
    if "enum" in told or "const" in told:
        return " ".join(f"<code>{escape(_json(value))}</code>" for value in told.get("enum", [told.get("const")]))
    if told.get("type") == "array":
        return f"list of {kind_of(told.get('items', {}))}"
    return escape(str(told.get("type", "any")))


def _table(rows: list[tuple[str, str, str]]) -> str:
    """The middle column is HTML already."""
    cells = "".join(
        f"<tr><td><code>{escape(name)}</code></td><td>{kind}</td><td>{_words(about)}</td></tr>"
        for name, kind, about in rows
    )
    return f"<table>{cells}</table>" if cells else ""


def _words(text: Any) -> str:
    """As HTML; what stands between backticks is code."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(str(text)))


def _json(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False)
