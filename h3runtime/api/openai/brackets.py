"""Text parts of a form -> the values that they mean. SDKs flatten what is nested:

    format[crf]=20                          {"format": {"crf": 20}}
    loras[][name]=a, loras[][name]=b        {"loras": [{"name": "a"}, {"name": "b"}]}
    keyframes[0][frame]=5                   {"keyframes": [{"frame": 5}]}
    keyframes=[{"frame": 5, ...}]           the same, as JSON

A text stays one where its field takes texts, else it is read as JSON if it is JSON. Whether a value is legal is for
`request` to say. Fed by `creation`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel

from h3runtime.api.body import parse_json
from h3runtime.api.form import Part
from h3runtime.api.request import GenerateBody
from h3runtime.api.strict import bodies_in
from h3runtime.errors import MalformedRequest, Offence

NAME = re.compile(r"([^\[\]]+)((?:\[[^\[\]]*\])*)")
MAX_DEPTH = 12
"""Brackets of one name; no field is half as deep."""
LEGAL = 'one part that holds JSON, or parts like "name[0][key]"'
JSON_TYPE = "application/json"

Tokens = tuple[str, ...]


class _Mixed(Exception):
    """Parts that mean no one value; says why."""


def values_of(
    texts: Sequence[tuple[Part, bytes]], known: frozenset[str], plain: frozenset[str] = frozenset()
) -> tuple[dict[str, Any], list[Offence]]:
    """By field, those in `known`; and what can't be put together. `MalformedRequest` for what isn't UTF-8.

    plain: fields that are texts, whatever ours of the same name takes.
    """
    entries: dict[str, list[tuple[Tokens, Any]]] = {}
    offences = []
    for part, data in texts:
        name, tokens = _split(part.name)
        if name in known:
            is_text = name in plain or _takes_text(name, tokens)
            entries.setdefault(name, []).append((tokens, _value(name, part, data, is_text)))
    values = {}
    for name, items in entries.items():
        try:
            values[name] = _assembled(items)
        except _Mixed as why:
            offences.append(Offence(name, str(why), LEGAL))
    return values, offences


def _split(name: str) -> tuple[str, Tokens]:
    """`a[][b]` -> `a`, ("", "b"). What has another form is a name as it stands."""
    found = NAME.fullmatch(name)
    if found is None:
        return name, ()
    return found[1], tuple(re.findall(r"\[([^\[\]]*)\]", found[2]))


def _value(name: str, part: Part, data: bytes, is_text: bool) -> Any:
    try:
        text = data.decode()
    except UnicodeDecodeError:
        raise MalformedRequest(f"the part {ascii(name)[:60]} is not UTF-8") from None
    if part.media_type == JSON_TYPE:
        return parse_json(data, f"the part {ascii(name)[:60]}")
    if is_text:
        return text
    try:
        return parse_json(data, name)
    except MalformedRequest:
        return text


def _takes_text(name: str, tokens: Tokens) -> bool:
    body: type[BaseModel] | None = GenerateBody
    takes = True  # what no body has is text
    for token in (name, *(token for token in tokens if token and not token.isdecimal())):
        field = body.model_fields.get(token) if body is not None else None
        takes = field is None or str in _types_in(field.annotation)
        bodies = bodies_in(field.annotation) if field is not None else iter(())
        body = next(bodies, None)
    return takes


def _types_in(annotation: Any) -> Iterator[Any]:
    """The single types of a choice; not those inside a list."""
    arguments = get_args(annotation)
    if not arguments or get_origin(annotation) in (tuple, list, Literal):
        yield annotation
    else:
        for argument in arguments:
            yield from _types_in(argument)


def _assembled(items: list[tuple[Tokens, Any]]) -> Any:
    """items: what is left of each part's brackets, and its value."""
    if any(not tokens for tokens, _ in items):
        if len(items) > 1:
            raise _Mixed("is given by more than one part")
        return items[0][1]
    if any(len(tokens) > MAX_DEPTH for tokens, _ in items):
        raise _Mixed("is nested too deeply")
    heads = {tokens[0] for tokens, _ in items}
    if heads == {""}:
        return _listed([(tokens[1:], value) for tokens, value in items])
    below: dict[str, list[tuple[Tokens, Any]]] = {}
    for tokens, value in items:
        below.setdefault(tokens[0], []).append((tokens[1:], value))
    if all(head.isdecimal() for head in heads):
        numbers = [str(number) for number in range(len(heads))]
        if set(numbers) != heads:
            raise _Mixed("has gaps in its numbers")
        return [_assembled(below[number]) for number in numbers]
    return {head: _assembled(rest) for head, rest in below.items()}


def _listed(items: list[tuple[Tokens, Any]]) -> list[Any]:
    """Items of a list without numbers: the i-th value of each key belongs to the i-th item."""
    if all(not tokens for tokens, _ in items):
        return [value for _, value in items]
    columns: dict[Tokens, list[Any]] = {}
    for tokens, value in items:
        columns.setdefault(tokens, []).append(value)
    count = max(map(len, columns.values()))
    if any("" in tokens for tokens in columns) or any(len(column) != count for column in columns.values()):
        raise _Mixed("does not tell which value belongs to which item")
    return [_assembled([(tokens, column[index]) for tokens, column in columns.items()]) for index in range(count)]
