"""One worked example of a prompt object per form, as OpenAPI shows them: plain JSON values, read by `body`."""

from __future__ import annotations

from typing import Any, Final

BASE: Final[dict[str, Any]] = {
    "style": "Live-action, cinematic, a medium shot in warm morning light",
    "shots": [
        {"description": "A baker (S1) lifts a loaf out of a stone oven. The camera pushes in at slow speed."},
        {
            "description": "a close-up of the loaf as the crust cracks.",
            "at": 2.5,
            "dialogue": [{"speaker": "The baker (S1)", "language": "English", "line": "Listen to that."}],
        },
    ],
    "soundscape": "The fire hums, and the crust crackles softly.",
    "music": "A slow acoustic guitar.",
}
"""T2VA, I2VA, L2VA and FL2VA share it: the line about first and last frame is added by the assembler."""

REF2VA: Final[dict[str, Any]] = {
    "style": "Live-action, cinematic, natural light.",
    "task_types": ["reference generation", "audio reference"],
    "summary": "<Subject 1> greets a customer in the voice of <Audio 1>.",
    "subjects": [{"label": "<Subject 1>", "description": "the baker shown in <Picture 1>, in a white apron."}],
    "retention": [
        {"label": "<Subject 1>", "shots": [1], "marker": "fully_preserved", "note": "face, hair and apron."},
        {"label": "<Audio 1>", "marker": "reference", "note": "timbre only."},
    ],
    "shots": [
        {
            "description": "<Subject 1> looks up from the counter and smiles.",
            "dialogue": [{"speaker": "<Subject 1>", "language": "English", "line": "Good morning."}],
        }
    ],
    "soundscape": "A door bell rings once.",
}
"""With a picture and a sound among the references."""
