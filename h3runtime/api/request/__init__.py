"""The body of `POST /generate`: its fields, their types and the ranges that hold whatever else is in the request.

    values    what single values must be          media     one medium, or a job's clip
    inputs    keyframes, references, masks        options   format, diagnostics
    tasks     the wide body, and one per task     speed     plans, adapters, refining
    read      raw JSON -> a body and faults       words     errors as the client reads them

Nothing here opens a medium or knows the server; rules between fields are in `h3runtime.api.rules`.
"""

from h3runtime.api.request.inputs import KeyframeBody, MaskSpanBody, ReferenceBody
from h3runtime.api.request.media import CONTINUED_FRAMES, MAX_MEDIA, MEDIA, ContinueBody, MediaBody
from h3runtime.api.request.options import FormatBody
from h3runtime.api.request.read import NULLABLE, ReadBody, read_body
from h3runtime.api.request.speed import REFINE_SCALES, LoraBody, PlanBody, RefineBody
from h3runtime.api.request.tasks import BODIES, GUIDES, INPUTS, MAX_CLIPS, GenerateBody, infer_task, is_given
from h3runtime.api.request.values import MAX_SEED, RANDOM_SEED, SHORT_EDGES

__all__ = [
    "BODIES",
    "CONTINUED_FRAMES",
    "GUIDES",
    "INPUTS",
    "MAX_CLIPS",
    "MAX_MEDIA",
    "MAX_SEED",
    "MEDIA",
    "NULLABLE",
    "RANDOM_SEED",
    "REFINE_SCALES",
    "SHORT_EDGES",
    "ContinueBody",
    "FormatBody",
    "GenerateBody",
    "KeyframeBody",
    "LoraBody",
    "MaskSpanBody",
    "MediaBody",
    "PlanBody",
    "ReadBody",
    "ReferenceBody",
    "RefineBody",
    "infer_task",
    "is_given",
    "read_body",
]
