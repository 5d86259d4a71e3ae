"""`/docs` from a schema: everything is there, and nothing of it is markup."""

from __future__ import annotations

from h3runtime.api.docs_page import kind_of, page_of

EVIL = "<script>\"'&`<b>`"


def test_nothing_of_a_schema_is_markup() -> None:
    example = {"summary": EVIL, "value": {EVIL: EVIL}}
    told = {
        "operationId": EVIL,
        "description": EVIL,
        "parameters": [{"name": EVIL, "in": "query", "schema": {"type": EVIL}, "description": EVIL}],
        "requestBody": {"content": {EVIL: {"schema": {}, "examples": {EVIL: example}}}},
        "responses": {EVIL: {"description": EVIL}},
    }
    model = {"description": EVIL, "properties": {EVIL: {"enum": [EVIL], "default": EVIL, "description": EVIL}}}
    page = page_of(
        {
            "info": {"title": EVIL, "version": EVIL, "summary": EVIL},
            "paths": {f"/{EVIL}": {"get": told}},
            "components": {"schemas": {EVIL: model}},
        }
    )
    assert "<script" not in page and "<b>" not in page
    assert page.count("&lt;script&gt;") > 15
    assert "<code>&lt;b&gt;</code>" in page


def test_kinds_are_told_in_words() -> None:
    assert kind_of({"type": "array", "items": {"$ref": "#/components/schemas/Media"}}) == (
        'list of <a href="#type-Media">Media</a>'
    )
    assert kind_of({"anyOf": [{"type": "string"}, {"type": "integer"}]}) == "string or integer"
    assert kind_of({"enum": ["a", 1]}) == "<code>&quot;a&quot;</code> <code>1</code>"
    assert kind_of({"const": "a"}) == "<code>&quot;a&quot;</code>"
    assert kind_of(True) == kind_of({}) == "any"
