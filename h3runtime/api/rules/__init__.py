"""Rules between the fields of a request: task and inputs, guides, canvas, length, backends, output name.

Each rule takes the readable part of the body and says what is wrong, under the names the client used; none of them
stops at the first fault, and none judges a field that is broken already. `judging` and `admission` feed the body, the
sizes of the media that could be opened, and the server's limits; what comes out needs no judging again.

`resolve_request` calls all of these once: length, references (counts, fields that do nothing), masks (source, spans),
task, canvas (and what is stretched to it), guides (range, clashes, how much is continued), number of clips, plan of
attention, levels. Whoever has measured the
media adds only what needs measures: durations, whether a clip fits behind its frame, whether there is a sound.
"""

from h3runtime.api.rules.backend import Backends, judge_backends
from h3runtime.api.rules.canvas import judge_canvas
from h3runtime.api.rules.clips import judge_count
from h3runtime.api.rules.guides import judge_guides
from h3runtime.api.rules.length import judge_length, judge_training
from h3runtime.api.rules.levels import judge_levels
from h3runtime.api.rules.loras import judge_loras
from h3runtime.api.rules.masks import judge_masks
from h3runtime.api.rules.output import judge_output
from h3runtime.api.rules.plan import judge_plan
from h3runtime.api.rules.quality import judge_quality, levelled
from h3runtime.api.rules.references import judge_references
from h3runtime.api.rules.refine import judge_refine, judge_upscaler
from h3runtime.api.rules.task import judge_task
from h3runtime.api.rules.verdict import Verdict

__all__ = [
    "Backends",
    "Verdict",
    "judge_backends",
    "judge_canvas",
    "judge_count",
    "judge_guides",
    "judge_length",
    "judge_levels",
    "judge_loras",
    "judge_masks",
    "judge_output",
    "judge_plan",
    "judge_quality",
    "judge_references",
    "judge_refine",
    "judge_task",
    "judge_training",
    "judge_upscaler",
    "levelled",
]
