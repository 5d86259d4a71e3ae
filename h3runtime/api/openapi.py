"""OpenAPI of what is read by hand: the body of `POST /generate`, one schema a task, and the problems.

The schemas are those of `request`, told as narrowly as JSON Schema can: a task's has no input that the task refuses and
asks for one that it needs, and null only stands where it is taken. So every body fits one of them at most, with `task`
or without. `app` installs the description; nothing here judges a request.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic.json_schema import models_json_schema
from starlette.responses import Response

from h3runtime.api import problems
from h3runtime.api.auth import is_open
from h3runtime.api.examples import FORM_EXAMPLES, JSON_EXAMPLES
from h3runtime.api.request import BODIES, NULLABLE
from h3runtime.api.routes.get import get_route
from h3runtime.core import Task

Schema = dict[str, Any]

AT = "#/components/schemas/"
NAMES: Mapping[Task, str] = {task: body.__name__ for task, body in BODIES.items()}
BODY: Schema = {
    "oneOf": [{"$ref": AT + name} for name in NAMES.values()],
    "discriminator": {"propertyName": "task", "mapping": {task.value: AT + name for task, name in NAMES.items()}},
}
REQUEST_BODY: Schema = {
    "required": True,
    "description": "One of the tasks. Without `task`, the inputs say which.",
    "content": {
        "application/json": {"schema": BODY, "examples": dict(JSON_EXAMPLES)},
        "multipart/form-data": {
            "schema": {
                "type": "object",
                "required": ["request"],
                "properties": {"request": BODY},
                "additionalProperties": {"type": "string", "format": "binary", "description": "An upload, by name."},
            },
            "examples": dict(FORM_EXAMPLES),
        },
    },
}
PROBLEM: Schema = {
    "type": "object",
    "required": ["type", "title", "status", "detail", "code", "errors", "request_id"],
    "properties": {
        "type": {"type": "string"},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string"},
        "code": {"type": "string"},
        "errors": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {name: {"type": "string"} for name in ("field", "message", "legal")},
            },
        },
        "request_id": {"type": "string"},
    },
}
PROBLEM_CONTENT: Schema = {problems.MEDIA_TYPE: {"schema": {"$ref": AT + "Problem"}}}
ESTIMATE_BODY = REQUEST_BODY | {"description": "As of `/generate`."}
OPENAI_ERROR: Schema = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": "string"},
            },
        }
    },
}
OPENAI_CONTENT: Schema = {"application/json": {"schema": {"$ref": AT + "OpenAIError"}}}
SECURITY: Schema = {"type": "http", "scheme": "bearer", "description": "A key that the operator has handed out."}
TAGS = [
    {"name": "jobs", "description": "Clips: asked for, watched, fetched, removed."},
    {"name": "openai", "description": "The same in the words of OpenAI's videos API."},
    {"name": "health", "description": "What probes, collectors and operators ask. Needs no key."},
]
FRAMEWORKS_OWN = "HTTPValidationError"
METHODS = frozenset({"get", "post", "delete", "put", "patch"})


def describe(app: FastAPI, *, asks_for_keys: bool = False) -> None:
    """Let `app` tell its own OpenAPI with these schemas in it."""

    def told() -> Schema:
        if app.openapi_schema is None:
            schema = get_openapi(
                title=app.title, version=app.version, summary=app.summary, routes=app.routes, tags=TAGS
            )
            schemas = schema["components"]["schemas"]
            schemas |= {**request_schemas(), "Problem": PROBLEM, "OpenAIError": OPENAI_ERROR}
            for path, operation in _operations(schema):
                _complete(path, operation, asks_for_keys and not is_open(path))
            for unused in ("HTTPValidationError", "ValidationError"):
                schemas.pop(unused, None)
            if asks_for_keys:
                schema["components"]["securitySchemes"] = {"key": SECURITY}
            app.openapi_schema = schema
        return app.openapi_schema

    app.openapi = told  # type: ignore[method-assign]
    written: list[bytes] = []

    async def openapi() -> Response:
        # Written once: the routes of a running server don't change, and writing takes longer than an answer may.
        if not written:
            written.append(json.dumps(told(), separators=(",", ":")).encode())
        return Response(written[0], media_type="application/json")

    get_route(app, "/openapi.json", include_in_schema=False)(openapi)


def _operations(schema: Schema) -> Iterator[tuple[str, Schema]]:
    for path, item in schema["paths"].items():
        yield from ((path, operation) for method, operation in item.items() if method in METHODS)


def _complete(path: str, operation: Schema, needs_key: bool) -> None:
    """What any route may answer, and errors in the shape of the route's audience."""
    content = OPENAI_CONTENT if problems.is_openai(path) else PROBLEM_CONTENT
    answers = operation["responses"]
    if FRAMEWORKS_OWN in str(answers.get("422", "")):
        answers.pop("422")
    for status, answer in answers.items():
        if problems.MEDIA_TYPE in answer.get("content", {}):
            answers[status] = answer | {"content": content}
    if needs_key:
        operation["security"] = [{"key": []}]
        challenge = {"WWW-Authenticate": {"description": "`Bearer`.", "schema": {"type": "string"}}}
        answers["401"] = {"description": "No key, or an unknown one.", "content": content, "headers": challenge}
    answers["default"] = {"description": "Whatever else went wrong.", "content": content}


def request_schemas() -> dict[str, Schema]:
    """Name -> schema of every task's body and of all that stands in one."""
    _, told = models_json_schema([(body, "validation") for body in BODIES.values()], ref_template=AT + "{model}")
    schemas: dict[str, Schema] = told["$defs"]
    for task, name in NAMES.items():
        schemas[name] = _narrowed(task, schemas[name])
    tasks = set(NAMES.values())
    return {
        name: _without_nulls(schema, NULLABLE if name in tasks else frozenset()) for name, schema in schemas.items()
    }


def _narrowed(task: Task, schema: Schema) -> Schema:
    fields = {name: field for name, field in schema["properties"].items() if name not in BODIES[task].excluded}
    ways = list(_ways(task))
    example = JSON_EXAMPLES[task.value]["value"]
    return schema | {"properties": fields, "examples": [example]} | ({"anyOf": ways} if ways else {})


def _ways(task: Task) -> Iterator[Schema]:
    """What can make a body one of this task. Keyframes alone are a sign of i2va, unless `task` says otherwise."""
    stated: Schema = {"required": ["task", "keyframes"]}
    if task is Task.I2VA:
        yield from (_given("first_frame"), _given("continue_from"), _given("keyframes"))
    if task is Task.L2VA:
        yield from (_given("last_frame"), stated)
    if task is Task.FL2VA:
        yield from (_given("first_frame", "last_frame"), _given("continue_from", "last_frame"), stated)
    if task is Task.REF2VA:
        yield _given("references")


def _given(*names: str) -> Schema:
    some = {"keyframes": {"type": "array", "minItems": 1}, "references": {"type": "array", "minItems": 1}}
    return {"required": list(names), "properties": {name: some.get(name, {"type": "object"}) for name in names}}


def _without_nulls(schema: Schema, nullable: frozenset[str]) -> Schema:
    """A model has null for what isn't given; on the wire that is left out."""
    fields = schema.get("properties", {})
    told = {name: field if name in nullable else _without_null(field) for name, field in fields.items()}
    return schema | ({"properties": told} if told else {})


def _without_null(field: Schema) -> Schema:
    kinds = [kind for kind in field.get("anyOf", ()) if kind != {"type": "null"}]
    rest = {name: value for name, value in field.items() if not (name == "default" and value is None)}
    if len(kinds) != 1:
        return rest | ({"anyOf": kinds} if kinds else {})
    rest.pop("anyOf")
    return {**kinds[0], **rest}
