"""What OpenAPI tells of a request: one schema a task, narrow enough to tell them apart, and examples that are taken."""

from __future__ import annotations

import itertools
import json
import re
from pathlib import Path
from typing import Any

import pytest

from h3runtime.api import openapi
from h3runtime.api.app import create_app
from h3runtime.api.examples import FORM_EXAMPLES, JSON_EXAMPLES
from h3runtime.api.judging.resolve import resolve_request
from h3runtime.api.request import BODIES, GUIDES, read_body
from h3runtime.api.rules import Verdict
from h3runtime.api.service import Service
from h3runtime.core import AREA_CAP, Task
from h3runtime.jobs.engine_process import EngineRecipe
from h3runtime.settings import Settings
from tests.api import snapshot
from tests.api.desk import ffmpeg
from tests.api.server import Running

PICTURE = {"upload": "a"}
INPUTS: dict[str, Any] = {
    "first_frame": PICTURE,
    "last_frame": PICTURE,
    "continue_from": {"job": "x"},
    "keyframes": [{"image": PICTURE, "frame": 56}],
    "references": [{"type": "image", "source": PICTURE}],
}
TYPES = {"string": str, "object": dict, "array": list, "integer": int, "number": (int, float), "boolean": bool}


@pytest.fixture(scope="module")
def described(lasting: Running) -> dict[str, Any]:
    return dict(lasting.client.get("/openapi.json").json())


def fits(value: Any, schema: dict[str, Any], schemas: dict[str, Any]) -> bool:
    """Whether `value` is valid, as far as the words of our schemas go."""
    if "$ref" in schema:
        return fits(value, schemas[schema["$ref"].rpartition("/")[2]], schemas)
    if "anyOf" in schema and not any(fits(value, option, schemas) for option in schema["anyOf"]):
        return False
    if "oneOf" in schema and sum(fits(value, option, schemas) for option in schema["oneOf"]) != 1:
        return False
    if "type" in schema and not (
        value is None if schema["type"] == "null" else isinstance(value, TYPES[schema["type"]])
    ):
        return False
    if schema.get("const", value) != value or value not in schema.get("enum", [value]):
        return False
    if isinstance(value, list):
        many = len(value) >= schema.get("minItems", 0)
        return many and all(fits(item, schema.get("items", {}), schemas) for item in value)
    if not isinstance(value, dict):
        return True
    fields = schema.get("properties", {})
    whole = all(name in value for name in schema.get("required", ()))
    known = schema.get("additionalProperties", True) is not False or value.keys() <= fields.keys()
    return whole and known and all(fits(item, fields[name], schemas) for name, item in value.items() if name in fields)


def fitting(body: dict[str, Any], described: dict[str, Any]) -> list[str]:
    schemas = described["components"]["schemas"]
    return [task for task, name in openapi.NAMES.items() if fits(body, schemas[name], schemas)]


def test_the_body_is_one_of_the_tasks_in_both_forms(described: dict[str, Any]) -> None:
    content = described["paths"]["/generate"]["post"]["requestBody"]["content"]
    plain = content["application/json"]["schema"]
    assert plain == content["multipart/form-data"]["schema"]["properties"]["request"]
    assert plain["discriminator"]["propertyName"] == "task"
    assert plain["discriminator"]["mapping"].keys() == set(Task)
    places = {option["$ref"] for option in plain["oneOf"]}
    assert places == set(plain["discriminator"]["mapping"].values())
    assert {place.rpartition("/")[2] for place in places} <= described["components"]["schemas"].keys()


def test_no_reference_leads_nowhere(described: dict[str, Any]) -> None:
    def references(value: Any) -> set[str]:
        if isinstance(value, dict):
            here = {value["$ref"]} if isinstance(value.get("$ref"), str) else set()
            return here.union(*(references(item) for item in value.values()))
        return set().union(*(references(item) for item in value)) if isinstance(value, list) else set()

    names = {place.removeprefix("#/components/schemas/") for place in references(described)}
    assert names <= described["components"]["schemas"].keys()


@pytest.mark.parametrize("task", list(Task))
def test_a_task_tells_only_the_inputs_that_it_takes(described: dict[str, Any], task: Task) -> None:
    fields = described["components"]["schemas"][openapi.NAMES[task]]["properties"]
    assert not fields.keys() & BODIES[task].excluded
    assert {*GUIDES, "references"} - BODIES[task].excluded <= fields.keys()
    assert fields["task"]["const"] == task
    undescribed = [name for name, field in fields.items() if "description" not in field and "const" not in field]
    assert undescribed == ["sampler", "scheduler"]


@pytest.mark.parametrize("count", range(len(INPUTS) + 1))
def test_every_mix_of_inputs_fits_just_the_task_that_it_means(described: dict[str, Any], count: int) -> None:
    for names in itertools.combinations(INPUTS, count):
        body = {"prompt": "x", **{name: INPUTS[name] for name in names}}
        read = read_body(body)
        task = resolve_request(read.body, {}, AREA_CAP, 362, Verdict(read)).task
        assert fitting(body, described) == [task], names
        assert type(read.body) is BODIES[task]


def test_null_is_told_only_where_it_is_taken(described: dict[str, Any]) -> None:
    schemas = described["components"]["schemas"]
    for name in ("first_frame", "last_frame", "source", "masks", "continue_from", "format"):
        assert fits(None, schemas["Fl2vaBody"]["properties"][name], schemas)
    for name in ("prompt", "task", "width", "frames", "seconds", "keyframes", "output", "diagnostics"):
        assert not fits(None, schemas["Fl2vaBody"]["properties"][name], schemas)
    assert not fits(None, schemas["MediaBody"]["properties"]["upload"], schemas)


@pytest.mark.parametrize("task", list(Task))
def test_examples_fit_their_schema_and_hold_no_offence(described: dict[str, Any], task: Task) -> None:
    for example in (JSON_EXAMPLES[task]["value"], FORM_EXAMPLES[task]["value"]["request"]):
        for body in (example, {name: value for name, value in example.items() if name != "task"}):
            assert fitting(body, described) == [task]
        read = read_body(example)
        verdict = Verdict(read)
        assert resolve_request(read.body, {}, AREA_CAP, 362, verdict).task == task
        assert not [*read.offences, *verdict.offences]
        assert not verdict.warnings or [f"{56} frames" in warning for warning in verdict.warnings] == [True]


def test_form_examples_name_every_upload() -> None:
    for example in FORM_EXAMPLES.values():
        parts = example["value"].keys() - {"request"}
        assert all(f"'upload': '{part}'" in str(example["value"]["request"]) for part in parts)


@pytest.mark.parametrize("task", list(Task))
def test_json_examples_are_taken_as_they_stand(server: Running, task: Task) -> None:
    job = server.post(JSON_EXAMPLES[task]["value"]).json()
    assert (job["status"], job["task"]) == ("succeeded", task)


def test_the_document_changes_only_on_purpose() -> None:
    """To take what it is now: `python -m tests.api.snapshot`."""
    assert json.loads(snapshot.FILE.read_text()) == json.loads(json.dumps(snapshot.present()))


def test_every_operation_has_a_name_a_tag_and_problems(described: dict[str, Any]) -> None:
    operations = [
        (path, operation)
        for path, item in described["paths"].items()
        for method, operation in item.items()
        if method in ("get", "post", "delete")
    ]
    names = [operation["operationId"] for _, operation in operations]
    assert len(names) == len(set(names)) and all(re.fullmatch("[a-z0-9_]+", name) for name in names)
    for path, operation in operations:
        assert operation["tags"] in (["jobs"], ["openai"], ["health"])
        kind = "application/json" if path.startswith("/v1/") else "application/problem+json"
        for status, answer in operation["responses"].items():
            assert answer["description"]
            if status == "default" or (status.startswith("4") and status != "416"):
                assert answer["content"].keys() == {kind}, (path, status)
        assert "401" not in operation["responses"] and "security" not in operation


def test_a_job_links_to_all_that_can_be_done_with_it(described: dict[str, Any]) -> None:
    names = {operation["operationId"] for path in described["paths"].values() for operation in path.values()}
    for status in ("200", "202"):
        links = described["paths"]["/generate"]["post"]["responses"][status]["links"]
        assert {"get_job", "cancel_job", "delete_job", "get_content", "get_events"} <= links.keys() <= names
        assert all(link["parameters"] == {"job_id": "$response.body#/id"} for link in links.values())


def test_a_server_with_keys_says_where_it_asks_for_one(tmp_path: Path) -> None:
    service = Service(Settings(data_dir=tmp_path, api_key="x" * 32), EngineRecipe("nothing:here", ()), tool=ffmpeg())
    told = create_app(service).openapi()
    service.close()
    assert told["components"]["securitySchemes"]["key"]["scheme"] == "bearer"
    for path, item in told["paths"].items():
        is_open = path in ("/live", "/ready", "/metrics") or path.startswith("/v2/")
        for operation in item.values():
            assert ("security" in operation, "401" in operation["responses"]) == (not is_open, not is_open)
