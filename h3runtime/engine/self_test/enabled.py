"""What an engine would run, and so what is asked about: the chosen backends, and those that a request may name.

On a GPU attention of grade experimental is asked about only where it was chosen: what it compiles for a first call
takes longer than all the rest, and a request that names it makes that call anyway (`backends.attention.probe`). On a
CPU the approximate backends are their own definitions, and there is nothing to compare them with. Fed by `resident`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch

from h3runtime.backends.attention.select import REFERENCE, Attentions
from h3runtime.backends.fused.base import Producers
from h3runtime.backends.linear.facts import linear_facts
from h3runtime.backends.linear.fc2_schedule import schedule_in
from h3runtime.backends.linear.switching import LoadedLinears, switched
from h3runtime.backends.vit.base import VitSteps
from h3runtime.conditioning.pieces import Piece
from h3runtime.conditioning.presentation import present
from h3runtime.conditioning.tokenizer import PromptTokenizer
from h3runtime.denoiser.dit import Dit
from h3runtime.engine.device import free_bytes
from h3runtime.engine.load import Models
from h3runtime.engine.self_test import attention, encoder, fc2, fused, linear, packing, video
from h3runtime.engine.self_test.check import Check

EXPERIMENTAL: Final = "experimental"


@dataclass(frozen=True, slots=True)
class Enabled:
    """attention: the chosen one's name. options: settings that change what a kernel is asked."""

    device: torch.device
    models: Models
    tokenizer: PromptTokenizer
    attentions: Attentions
    attention: str
    linears: LoadedLinears
    producers: Producers
    vae_steps: VitSteps
    options: Mapping[str, Any]

    @property
    def networks(self) -> Sequence[Dit]:
        return tuple(self.models.transformers.values())

    def checks(self) -> Iterator[Check]:
        """The chosen ones first."""
        yield from self._attention()
        yield from self._packing()
        yield from self._linear()
        yield from fused.fused_checks(self.producers, self.networks[0].config, self.device)
        vae = self.models.vaes.video
        yield from video.video_checks(self.vae_steps, vae.config.decoder, vae.config.encoder, vae.dtype, self.device)
        pieces: tuple[Piece, ...] = (encoder.PROMPT,)
        yield from encoder.encoder_checks(self.models.text_encoder, present(pieces, self.tokenizer))

    def _attention(self) -> Iterator[Check]:
        config = self.networks[0].config
        shape = attention.Shape(3 * config.heads * config.head_dim, config.head_dim)
        around, free = attention.Around(shape, self.device), free_bytes(self.device)
        able = [b for b in self.attentions.backends if self.attentions.why_unavailable(b) is None]
        on_cpu = self.device.type == "cpu"
        for backend in sorted(able, key=lambda b: b.name != self.attention):
            asked = backend.grade != EXPERIMENTAL or backend.name == self.attention
            if backend.grade == REFERENCE or (asked and not on_cpu):
                yield from attention.attention_checks(
                    backend, shape, around, self.device, free_bytes=free, every_query=not on_cpu
                )

    def _packing(self) -> Iterator[Check]:
        """By whom the linears pack that can run here; on a CPU that is the definition."""
        if self.device.type == "cpu":
            return
        able = [self.linears.named(name) for name in self.linears.choice().available]
        packers = dict.fromkeys(getattr(backend, "scale_backend", None) for backend in able)
        for by in filter(None, packers):
            width, facts = self.networks[0].config.hidden, linear_facts(self.device)
            yield from packing.packing_checks(by, width, facts, self.device)

    def _linear(self) -> Iterator[Check]:
        layers = [found for network in self.networks[:1] for found in switched(network)]
        names = self.linears.choice().available
        for name in sorted(names, key=lambda name: name != self.linears.chosen.name):
            yield from linear.linear_checks(self.linears.named(name), layers, self.device)
        chosen = self.linears.chosen
        usual = getattr(chosen, "usual", None)
        yield from fc2.fc2_checks(schedule_in([chosen]), layers, self.device, usual)

    def told(self) -> Mapping[str, Any]:
        """What of it answers may depend on, beside the machine (`identity`)."""
        config = self.networks[0].config
        return {
            "chosen": [self.attention, self.linears.chosen.name, self.producers.name, self.vae_steps.name],
            "sizes": [config.hidden, config.ffn, config.heads, config.head_dim, config.rope_freqs],
            "weights": [part.sha256 for part in self.models.facts],
            "options": {"vae_dtype": str(self.models.vaes.video.dtype)} | dict(self.options),
            "cublaslt": linear_facts(self.device).cublaslt,
        }
