"""The fields of a video's creation -> a request of `POST /generate`, and the way back for what is wrong with it.

    model             any of ours or `sora-*`; nothing follows from it
    seconds           the text of a number -> the number; "4" if `frames` says nothing either
    size              WxH -> width, height; OpenAI's own four -> the aspect that they have
    input_reference   a picture -> first_frame
    ours              as they are; names that neither API has are ignored

Fed by `routes` with a JSON body or a form; the result goes to the service.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from anyio.to_thread import run_sync
from python_multipart.multipart import parse_options_header

from h3runtime.api.body import Delivery, named_parts, read_delivery
from h3runtime.api.form import Form, FormRules, Part, read_form
from h3runtime.api.openai.brackets import JSON_TYPE, values_of
from h3runtime.api.request import GenerateBody
from h3runtime.api.strict import shown
from h3runtime.errors import InvalidRequest, ModelNotFound, NotFound, Offence

MODELS = ("minimax-h3", "h3")
MODEL_PATTERN = r"minimax-h3|h3|sora-.{1,100}"
DEFAULT_SECONDS = "4"
SIZES: Mapping[str, str] = {"1280x720": "16:9", "720x1280": "9:16", "1792x1024": "7:4", "1024x1792": "4:7"}
"""OpenAI's sizes, none of which is a canvas of H3, and their aspects."""
SIZE_LEGAL = f"WIDTHxHEIGHT, multiples of 32, or one of {', '.join(SIZES)}"
SECONDS_LEGAL = 'a number above 0, or its text, such as "4"'
REFERENCE = "input_reference"
REFERENCE_LEGAL = 'a picture as a file part, or {"image_url": a data: or https: URL}'
PLAIN = frozenset({"model", "seconds", "size"})
THEIRS = PLAIN | {REFERENCE}
KNOWN = THEIRS | GenerateBody.model_fields.keys()
MAX_PARTS = 1000
MEDIA_TYPES = ("image/", "video/", "audio/", "application/octet-stream")
"""Of a part that is a file although it has no file name."""


@dataclass(slots=True)
class Creation:
    """delivery: what the service judges. renamed: its fields -> those of the client, where they differ."""

    delivery: Delivery = field(default_factory=Delivery)
    renamed: dict[str, str] = field(default_factory=dict)

    def told(self, error: InvalidRequest) -> InvalidRequest:
        """The same error under the client's names."""
        if not any(_head(offence.field) in self.renamed for offence in error.offences):
            return error
        offences = [Offence(self._name(o.field), o.message, o.legal) for o in error.offences]
        return type(error)("; ".join(f"{o.field}: {o.message}" for o in offences), offences)

    def _name(self, name: str) -> str:
        head = _head(name)
        return self.renamed.get(head, head) + ("" if head in self.renamed else name[len(head) :])


async def read_creation(content_type: str, stream: AsyncIterator[bytes], folder: Path, max_text: int) -> Creation:
    """`ModelNotFound`, `NotFound` (a file by id), and what `read_delivery` raises."""
    kind, options = parse_options_header(content_type)
    if kind != b"multipart/form-data":
        delivery = await read_delivery(content_type, stream, folder, max_text)
        return creation_of(delivery.request, {}, [])
    rules = FormRules(_is_text, MAX_PARTS, max_text)
    return await run_sync(_from_form, await read_form(options.get(b"boundary", b""), stream, folder, rules))


def creation_of(given: Mapping[str, Any], files: Mapping[str, Path], offences: list[Offence]) -> Creation:
    """given: fields of both APIs. files: by part name."""
    # Their clients spell out what they don't give.
    given = {name: value for name, value in given.items() if value is not None or name not in THEIRS}
    _judge_model(given.get("model"))
    request = {name: value for name, value in given.items() if name in KNOWN - THEIRS}
    creation = Creation(Delivery(request, dict(files), list(offences)))
    _put_seconds(given, creation)
    if "size" in given:
        _put_size(given["size"], creation)
    if REFERENCE in given or REFERENCE in files:
        _put_reference(given.get(REFERENCE), creation)
    named = set(named_parts(request))
    creation.delivery.files = {name: file for name, file in files.items() if name in named}
    return creation


def _from_form(form: Form) -> Creation:
    given, offences = values_of(form.texts, KNOWN, PLAIN)
    offences += [Offence(name, "two parts have this name", "one part") for name in form.twice]
    return creation_of(given, form.files, offences)


def _is_text(part: Part) -> bool:
    if part.media_type == JSON_TYPE:
        return True
    return not part.is_file and not part.media_type.startswith(MEDIA_TYPES)


def _judge_model(model: Any) -> None:
    if model is None or (isinstance(model, str) and re.fullmatch(MODEL_PATTERN, model)):
        return
    legal = f"{', '.join(MODELS)} or a sora-* name"
    raise ModelNotFound(f"there is no model {shown(model)}; this is {MODELS[0]}", [Offence("model", "unknown", legal)])


def _put_seconds(given: Mapping[str, Any], creation: Creation) -> None:
    request, value = creation.delivery.request, given.get("seconds")
    if value is None:
        if "frames" in request or "source" in request:
            return
        value = DEFAULT_SECONDS
    if isinstance(value, str) and re.fullmatch(r"[0-9]{1,6}(\.[0-9]{1,12})?", value):
        value = float(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        creation.delivery.offences.append(Offence("seconds", f"{shown(value)} is no length", SECONDS_LEGAL))
    else:
        request["seconds"] = value


def _put_size(size: Any, creation: Creation) -> None:
    request, refuse = creation.delivery.request, creation.delivery.offences.append
    sides = re.fullmatch(r"([0-9]{1,5})x([0-9]{1,5})", size) if isinstance(size, str) else None
    if sides is None:
        refuse(Offence("size", f"{shown(size)} is no size", SIZE_LEGAL))
        return
    width, height = (int(side) for side in sides.groups())
    meant = {"aspect_ratio": SIZES[size]} if size in SIZES else {"width": width, "height": height}
    for name, value in meant.items():
        if request.setdefault(name, value) != value:
            refuse(Offence("size", f"{size} contradicts {name}", "one of the two"))
        creation.renamed[name] = "size"


def _put_reference(value: Any, creation: Creation) -> None:
    delivery = creation.delivery
    medium = _medium_of(value) if REFERENCE not in delivery.files else {"upload": REFERENCE}
    if REFERENCE in delivery.files and value is not None:
        delivery.offences.append(Offence(REFERENCE, "is given by more than one part", REFERENCE_LEGAL))
    elif delivery.request.get("first_frame") is not None:
        delivery.offences.append(Offence(REFERENCE, "is the first frame, and first_frame is given too", "one of them"))
    elif medium is None:
        delivery.offences.append(Offence(REFERENCE, f"{shown(value)} is no picture", REFERENCE_LEGAL))
    else:
        delivery.request["first_frame"] = medium
        creation.renamed["first_frame"] = REFERENCE


def _medium_of(value: Any) -> dict[str, str] | None:
    """None for what names no picture. `NotFound` for one that would have been uploaded before."""
    if isinstance(value, dict):
        if value.get("file_id") is not None and value.get("image_url") is None:
            told = f"there is no file {shown(value['file_id'])}; this server keeps no files"
            raise NotFound(told, [Offence(f"{REFERENCE}.file_id", "unknown", REFERENCE_LEGAL)])
        value = value.get("image_url") if value.get("file_id") is None else None
    if not isinstance(value, str):
        return None
    return {"data": value} if value[:5].lower() == "data:" else {"url": value}


def _head(name: str) -> str:
    """`first_frame.data` -> `first_frame`."""
    return re.split(r"[.\[]", name, maxsplit=1)[0]
