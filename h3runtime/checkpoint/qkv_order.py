"""Which order the rows of a transformer's fused q, k and v are in (checkpoint-formats G1).

    contiguous    [q of all heads; k of all heads; v of all heads]      what our model reads, ComfyUI's files
    interleaved   [q, k, v of head 0; q, k, v of head 1; ...]           the vendor's shards and some repacks

Names, shapes and dtypes are the same, and the wrong guess gives grey mush without an error. What tells is the layout,
else `qkv_statistics`; an operator's word overrules both. Asked by `file`, which has `qkv_rows` put the rows in order.
Text encoders and VAEs have no such choice.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

from h3runtime.checkpoint.qkv_rows import Stored, heads_of
from h3runtime.checkpoint.qkv_statistics import Evidence, QkvOrder, gather
from h3runtime.errors import Offence

QkvSwitch = Literal["auto", "contiguous", "interleaved"]
How = Literal["construction", "convention", "statistics", "switch", "assumed", "single head"]
"""construction: kept apart in the file, or derived by us. convention: what files of this layout have. assumed: nothing
told."""

SETTING: Final = "H3_QKV_ORDER"


@dataclass(frozen=True, slots=True)
class QkvDecision:
    """order: as stored. how, why: what told. warning: what the operator should know, or None."""

    order: QkvOrder
    how: How
    why: str
    warning: str | None = None


def decide(
    stored: Stored, layout: str, switch: QkvSwitch, *, synthetic: bool, ours: bool = False
) -> QkvDecision | Offence | None:
    """None for what is no transformer; Offence where the statistics contradict the layout or each other.

    layout: as in `renaming`. switch: what the operator says, which nothing overrules. synthetic: made-up weights, of
    which nobody expects statistics. ours: written by this package, contiguous.
    """
    heads = heads_of(stored.shapes)
    if heads is None:
        return None
    if layout == "diffusers":
        return _by_construction(switch)
    if heads.count == 1:
        return QkvDecision("contiguous", "single head", "with one head both orders are the same")
    if ours and switch == "auto":
        return QkvDecision("contiguous", "construction", "the file was derived by h3runtime, which writes no other")
    found = gather(stored, heads)
    if switch != "auto":
        return _by_switch(switch, found)
    return _by_files(found, layout, synthetic)


def _by_construction(switch: QkvSwitch) -> QkvDecision:
    warning = f"{SETTING}={switch} has no effect: q, k and v are stored apart" if switch == "interleaved" else None
    return QkvDecision("contiguous", "construction", "q, k and v are stored apart", warning)


def _by_switch(switch: QkvOrder, found: Mapping[str, Evidence]) -> QkvDecision:
    against = [e for e in found.values() if e.verdict not in (None, switch)]
    warning = f"{SETTING}={switch} contradicts the weights: {against[0]}" if against else None
    return QkvDecision(switch, "switch", f"{SETTING}={switch}", warning)


def _by_files(found: Mapping[str, Evidence], layout: str, synthetic: bool) -> QkvDecision | Offence:
    verdicts = {e.verdict: (section, e) for section, e in found.items() if e.verdict is not None}
    if len(verdicts) > 1:
        told = "; ".join(f"{section}: {evidence}" for section, evidence in verdicts.values())
        return Offence("attn.qkv_proj", f"has its rows in different orders in one file: {told}")
    verdict = next(iter(verdicts), None)
    evidence = "; ".join(
        f"{section}: {e}" for section, e in found.items() if verdict is not None and e.verdict == verdict
    )
    if layout == "raw_shards":
        if verdict == "contiguous":
            told = f"has contiguous q, k and v, where shards have them interleaved: {evidence}"
            return Offence("attn.qkv_proj", told, f"{SETTING}=contiguous or {SETTING}=interleaved")
        return QkvDecision("interleaved", "convention", evidence or "shards have q, k and v interleaved by head")
    if verdict is not None:
        return QkvDecision(verdict, "statistics", evidence)
    told = "; ".join(f"{section}: {e}" for section, e in found.items()) or "no row sizes could be read"
    warning = f"the order of q, k and v can't be told from statistics; assumed contiguous ({SETTING} says otherwise)"
    return QkvDecision("contiguous", "assumed", told, None if synthetic else warning)
