"""Speech in a plain prompt that isn't marked as speech: `she says: hello` without quotes or `<d>`.

H3 speaks what stands in double quotes or in `<d>[Language] ...</d>` (conditioning contract §7.2). Few verbs, few
shapes: a warning that fires on ordinary prose isn't read twice. Read by `lint`.
"""

from __future__ import annotations

import re
from typing import Final

_MARKED: Final = re.compile(
    r"<d>.{0,4000}?</d>|\"[^\"\n]{0,2000}\"|“[^”]{0,2000}”|„[^“”]{0,2000}[“”]|«[^»]{0,2000}»|»[^«]{0,2000}«"
    r"|「[^」]{0,2000}」|『[^』]{0,2000}』|‘[^’\n]{0,2000}’|(?<!\w)'[^'\n]{0,2000}'(?!\w)",
    re.DOTALL,
)
_STANDS_FOR_MARKED: Final = "\N{OBJECT REPLACEMENT CHARACTER}"

_VERBS: Final = (
    "says?|said|saying|asks?|asked|shouts?|shouted|yells?|yelled|whispers?|whispered|repl(?:y|ies|ied)|exclaims?|exclaimed"
    "|murmurs?|mutters?|announces?|narrates?|speaks|sings|screams|voice-?over"
    "|dice|dijo|grita|susurra|pregunta|responde|dit|crie|murmure|chuchote|demande|répond|sagt|sagte|ruft|flüstert|fragt"
    "|sussurra|chiede|risponde|diz|disse|pergunta|говорит|сказала?|кричит|шепчет|спрашивает|отвечает"
    "|말한다|말했다|외친다|속삭인다|يقول|تقول|قال|قالت"
)
_NO_SPEECH: Final = (
    "nothing|no|whether|if|that|nichts|kein|ob|dass|rien|si|que|nada|niente|che|ничего|что|لا شيء|아무|what|how|why"
)
"""Words after a verb that make it tell of speech, or of none, and not announce it."""
_BEFORE_COLON: Final = re.compile(
    rf"\b({_VERBS})\b(?!\s+(?:{_NO_SPEECH})\b)[^:：.!?\n_{_STANDS_FOR_MARKED}]{{0,60}}"
    r"(?::\s+|：\s*)(?=[^\W_])(?!(?:none|no|off|N/A)\b)",
    re.IGNORECASE,
)
_BEFORE_WIDE_COLON: Final = re.compile(r"(说道?|說道?|喊道?|问道|問道|言う|言った|叫ぶ|ささやく)\s*[:：]\s*(?=[^\W_])")
_GREETED: Final = re.compile(
    r"\b(says|said|saying|shouts|shouted|yells|yelled|whispers|whispered|exclaims|exclaimed|replies|replied),? "
    r"(?:hello|hi|hey|thanks|thank you|welcome|good (?:morning|evening|night|afternoon)|happy birthday"
    r"|(?:yes|no|okay|sorry)(?=[,.!])|(?-i:I)(?:'m|'ll|'ve|’m|’ll|’ve)?(?= [a-z])"
    r"|(?:we|you|they|he|she|it|this|there)"
    r"(?:['’](?:s|re|ll|ve)| (?:am|is|are|was|were|will|can|have|has|must|should)))\b",
    re.IGNORECASE,
)
_MARKED_BEFORE: Final = re.compile(rf"{_STANDS_FOR_MARKED}[^.!?;:\n]{{0,25}}\Z")
_MARKED_AFTER: Final = re.compile(rf"[^.!?。！？\n]*?{_STANDS_FOR_MARKED}")


def unmarked_speech(text: str) -> tuple[str, ...]:
    """The word that announces each piece of unmarked speech, once, in order."""
    bare = _MARKED.sub(_STANDS_FOR_MARKED, text)
    shapes = (_BEFORE_COLON, _BEFORE_WIDE_COLON, _GREETED)
    matches = sorted((match for shape in shapes for match in shape.finditer(bare)), key=lambda match: match.start())
    return tuple(dict.fromkeys(match[1] for match in matches if not _belongs_to_marked(bare, match)))


def _belongs_to_marked(bare: str, match: re.Match[str]) -> bool:
    """Whether the verb goes with marked speech: just before it, or later in its sentence, with delivery between."""
    before = bare[max(0, match.start() - 30) : match.start()]
    return bool(_MARKED_BEFORE.search(before) or _MARKED_AFTER.match(bare, match.end()))
