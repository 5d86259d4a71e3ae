"""What OpenAPI tells of /v1/videos. Errors get OpenAI's shape from `h3runtime.api.openapi`, by their path."""

from __future__ import annotations

from typing import Any

from h3runtime.api.openai.creation import DEFAULT_SECONDS, MODEL_PATTERN, REFERENCE, SIZES
from h3runtime.api.openai.video import DeletedVideo, VideoAnswer, VideoPage
from h3runtime.api.routes.described import GET_CONTENT, problems

Described = dict[str, Any]

TAG = "openai"
OWN = (
    "Every field of `POST /generate` may stand beside these, and is judged as strictly as there: `steps`, `seed`, "
    "`first_frame`, `references`, `n`, `format` and so on. Other names are ignored."
)
_SIZE: Described = {
    "type": "string",
    "pattern": "^[0-9]{1,5}x[0-9]{1,5}$",
    "description": f"WxH, multiples of 32; or {', '.join(SIZES)}, which mean the canvas of their aspect. "
    "Absent: that of the first picture or clip, else 1280x720.",
}
_SECONDS: Described = {
    "description": f'A number or its text. Default: "{DEFAULT_SECONDS}". The clip has the least legal length that is '
    "as long.",
    "anyOf": [
        {"type": "number", "exclusiveMinimum": 0},
        {"type": "string", "pattern": "^[0-9]{1,6}(\\.[0-9]{1,12})?$"},
    ],
}
_SHARED: dict[str, Described] = {
    "model": {"type": "string", "pattern": f"^({MODEL_PATTERN})$", "description": "Names what is loaded anyway."},
    "size": _SIZE,
    "seconds": _SECONDS,
}
_PICTURE = {
    "type": "object",
    "properties": {
        "image_url": {"type": "string", "description": "A data: URL, or one of a host that the server allows."},
        "file_id": {"type": "string", "description": "404: this server keeps no files."},
    },
}
_EXAMPLE = {"model": "minimax-h3", "prompt": "A cat on a piano.", "seconds": DEFAULT_SECONDS, "size": "1280x720"}
_BODY: Described = {
    "type": "object",
    "required": ["prompt"],
    "properties": {
        "prompt": {"anyOf": [{"type": "string"}, {"$ref": "#/components/schemas/PromptBody"}]},
        **{name: {"anyOf": [field, {"type": "null"}]} for name, field in _SHARED.items()},
        REFERENCE: {"anyOf": [_PICTURE, {"type": "string"}, {"type": "null"}], "description": "The first frame."},
    },
    "description": OWN,
}
_FORM = _BODY | {
    "properties": {
        "prompt": {"type": "string"},
        # Every part is a text, and what one that is left out would have been can't be told from it.
        **{name: {"description": field["description"]} for name, field in _SHARED.items()},
        REFERENCE: {"type": "string", "format": "binary", "description": "The first frame."},
    }
}
_LINKS = {
    name: {"operationId": name, "parameters": {"video_id": "$response.body#/id"}, "description": "This video."}
    for name in ("get_video", "get_video_content", "delete_video")
}
CREATE: Described = {
    "tags": [TAG],
    "operation_id": "create_video",
    "response_model": VideoAnswer,
    "responses": {
        200: {"model": VideoAnswer, "description": "It waits or is made.", "links": _LINKS},
        **problems(400, 404, 409, 413, 415, 422, 429, 503),
    },
    "openapi_extra": {
        "requestBody": {
            "required": True,
            "content": {
                "application/json": {"schema": _BODY, "examples": {"text": {"value": _EXAMPLE}}},
                "multipart/form-data": {"schema": _FORM, "examples": {"text": {"value": _EXAMPLE}}},
            },
        }
    },
}
LIST: Described = {
    "tags": [TAG],
    "operation_id": "list_videos",
    "response_model": VideoPage,
    "responses": problems(404, 422),
}
GET: Described = {
    "tags": [TAG],
    "operation_id": "get_video",
    "response_model": VideoAnswer,
    "responses": problems(404),
}
DELETE: Described = {
    "tags": [TAG],
    "operation_id": "delete_video",
    "response_model": DeletedVideo,
    "responses": problems(404, 503),
}
_BYTES = GET_CONTENT["responses"]
_PNG = {"image/png": {"schema": {"type": "string", "format": "binary"}}}
# Its headers are told at /jobs/{job_id}/content.
CONTENT: Described = {
    "tags": [TAG],
    "operation_id": "get_video_content",
    "responses": _BYTES | {200: _BYTES[200] | {"content": _BYTES[200]["content"] | _PNG}},
}
