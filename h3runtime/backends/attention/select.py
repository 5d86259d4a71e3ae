"""The choice among the DiT's attention backends, once for a server and once more for a request that names one.

`Attentions` knows why each backend can't run here: by facts of the device and its libraries, by the head size of what
is loaded, and by a first call that failed. Held by `engine`, which shows it in `/ready`; the encoder and the VAEs never
ask.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import torch

from h3runtime.backends.attention.base import AttentionBackend, Candidate
from h3runtime.backends.attention.counting import Counted, Tally
from h3runtime.backends.attention.facts import DeviceFacts, device_facts
from h3runtime.backends.attention.options import AttentionOptions
from h3runtime.backends.attention.probe import why_its_call_fails
from h3runtime.backends.attention.registry import attention_backends
from h3runtime.backends.policy import Row, row_of
from h3runtime.backends.select import AUTO
from h3runtime.core import BackendChoice
from h3runtime.errors import BackendUnavailable, InvalidRequest, Offence

FAMILY = "attention"
REFERENCE = "reference"
PROBED_HEAD_DIM = 128
"""Of a probe before a model is there: the real one's."""
Probe = Callable[[Candidate, torch.device, int], str | None]


class Attentions:
    """Backends of one device. facts: of it, taken now if not given. backends: all but for tests. probe: the first call
    of a backend that is chosen. SettingsError for options that name no backend."""

    def __init__(
        self,
        device: torch.device,
        options: AttentionOptions | None = None,
        *,
        facts: DeviceFacts | None = None,
        backends: Sequence[Candidate] | None = None,
        probe: Probe = why_its_call_fails,
    ) -> None:
        self.tally = Tally()
        self.device, self.facts = device, facts or device_facts(device)
        self._row = row_of(self.facts.kind, self.facts.capability)
        self.backends = tuple(backends) if backends is not None else self._all(options)
        self._probe = probe
        self._probed: dict[str, str | None] = {}
        self._failed: Mapping[str, str] = {}
        self._head_dims: tuple[int, ...] = ()
        self._why_no_gates: str | None = None

    def _all(self, options: AttentionOptions | None) -> tuple[Candidate, ...]:
        return attention_backends((options or AttentionOptions()).on(self._row), self.tally)

    def fit(self, head_dims: Collection[int], why_no_gates: str | None = None) -> None:
        """From now on, backends must take heads of these sizes too. why_no_gates: what is loaded has no layer for those
        that read `to_gate_compress`."""
        self._head_dims, self._why_no_gates = tuple(head_dims), why_no_gates

    def fail(self, reasons: Mapping[str, str]) -> None:
        """From now on these, by name, can't run, nor can what hands calls to them."""
        self._failed = {**self._failed, **reasons}

    def why_unavailable(self, backend: Candidate) -> str | None:
        """By all that is known, without calling it."""
        unfit = (backend.why_unfit(size) for size in self._head_dims)
        gates = self._why_no_gates if getattr(backend, "reads_gates", False) else None
        return (
            backend.why_unavailable(self.facts)
            or next(filter(None, unfit), None)
            or gates
            or self._probed.get(backend.name)
            or self._why_failed(backend)
        )

    def _why_failed(self, backend: Candidate) -> str | None:
        if (own := self._failed.get(backend.name)) is not None:
            return own
        handed = next((name for name in getattr(backend, "hands_to", ()) if name in self._failed), None)
        return None if handed is None else f"it hands calls to {handed}, which {self._failed[handed]}"

    def resolve(self, name: str) -> tuple[AttentionBackend, str]:
        """The backend called `name`, or what `auto` takes, and why; by what is known, without calling it.

        InvalidRequest lists the legal names if there is none such; BackendUnavailable tells why it can't run.
        """
        return self._found(name, self.why_unavailable)

    def choose(self, name: str) -> tuple[AttentionBackend, str]:
        """As `resolve`, and called once: a backend whose first call fails is unavailable from then on."""
        return self._found(name, lambda backend: self.why_unavailable(backend) or self._first_call(backend))

    def workspace_bytes(self, names: Collection[str], rows: int, heads: int, head_dim: int) -> int:
        """Most that any of them holds beside q, k, v and its result on this device; see `host_bytes` of those that have
        it."""
        found = [0]
        for backend in (b for b in self.backends if b.name in names):
            on_host: Any = getattr(backend, "host_bytes", None) if self.device.type == "cpu" else None
            more = on_host(rows, heads, head_dim) if on_host is not None else 0
            found.append(backend.workspace_bytes(rows, heads, head_dim) + more)
        return max(found)

    def listing(self, chosen: str, why: str) -> BackendChoice:
        """What `/ready` shows once `chosen` is the server's default."""
        reasons = {backend.name: self.why_unavailable(backend) for backend in self.backends}
        row = self._row.attention.value
        exact = sorted((b for b in self.backends if b.exact), key=lambda b: _place(row, b.name))
        return BackendChoice(
            default=chosen,
            why=why,
            available=tuple(name for name, reason in reasons.items() if reason is None),
            grades={backend.name: backend.grade for backend in self.backends},
            unavailable={name: reason for name, reason in reasons.items() if reason is not None},
            exact=tuple(backend.name for backend in exact if reasons[backend.name] is None),
            notes={b.name: note for b in self.backends if (note := getattr(b, "note", ""))},
        )

    def _found(self, name: str, why_not: Callable[[Candidate], str | None]) -> tuple[AttentionBackend, str]:
        if name == AUTO:
            return self._best(why_not)
        by_name = {backend.name: backend for backend in self.backends}
        if name not in by_name:
            legal = ", ".join([AUTO, *by_name])
            raise InvalidRequest(
                f"{FAMILY}: there is no backend {name!r}", [Offence(FAMILY, f"no backend {name!r}", legal)]
            )
        if (reason := why_not(by_name[name])) is not None:
            able = ", ".join([AUTO, *(b.name for b in self.backends if self.why_unavailable(b) is None)])
            raise BackendUnavailable(f"{FAMILY}: {name} can't run here: {reason}", [Offence(FAMILY, reason, able)])
        return self._counted(by_name[name]), "asked for by name"

    def _best(self, why_not: Callable[[Candidate], str | None]) -> tuple[AttentionBackend, str]:
        row, passed = self._row, list[str]()
        by_name = {backend.name: backend for backend in self.backends}
        for backend in (by_name[name] for name in row.attention.value if name in by_name):
            reason = "experimental" if backend.grade == "experimental" else why_not(backend)
            if reason is None:
                return self._counted(backend), "; ".join([_told(row), *passed])
            passed.append(f"{backend.name}: {reason}")
        raise BackendUnavailable(f"{FAMILY}: no backend can run on {self.facts.kind}: {'; '.join(passed)}")

    def _first_call(self, backend: Candidate) -> str | None:
        """None for the reference: what is compared with it needs no other proof."""
        if backend.grade == REFERENCE:
            return None
        if backend.name not in self._probed:
            sizes = self._head_dims or (PROBED_HEAD_DIM,)
            reasons = (self._probe(backend, self.device, size) for size in sizes)
            self._probed[backend.name] = next(filter(None, reasons), None)
        return self._probed[backend.name]

    def _counted(self, backend: Candidate) -> AttentionBackend:
        return Counted(backend, self.tally)


def _told(row: Row) -> str:
    order = row.attention
    if row.capability is None:
        return f"auto: {order.source}"
    return f"auto: the first that runs of {', '.join(order.value)} on {row.told} ({order.source})"


def _place(row: tuple[str, ...], name: str) -> int:
    return row.index(name) if name in row else len(row)
