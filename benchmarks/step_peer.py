"""diffusers' own MiniMax H3 transformer on our weights and our sequence, for `step --peer diffusers`.

Its tensors are ours: q, k and v are thirds of the projection's storage, everything else is the same tensor under
another name. Only fc1 is copied, since its halves stand the other way round there (15.4 GB of BF16 at the published
sizes). What it computes is therefore ours up to rounding, and the sign (dit-contract §4.6), and is compared before it
is timed. Its attention is its own default. Compiled means block by block, as its documentation has it
(`compile_repeated_blocks`): a second model on the same tensors, so that both can be timed in turn.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import nn

from benchmarks.step_workload import Workload
from h3runtime.checkpoint.synthetic.layouts import TransformerSizes
from h3runtime.core import PackedLayout, SegmentKind
from h3runtime.denoiser.conditions import condition_rows, is_sound
from h3runtime.denoiser.rows import audio_latent, audio_rows, patchify, unpatchify
from h3runtime.denoiser.schedule import timesteps
from h3runtime.denoiser.timeline import clock, runs

NAMES: Final = (
    (r"^video_patch_proj", "proj_in"),
    (r"^audio_patch_proj", "audio_proj_in"),
    (r"^condition_proj", "context_embedder"),
    (r"^time_embedder\.proj_in", "time_embedder.linear_1"),
    (r"^time_embedder\.proj_out", "time_embedder.linear_2"),
    (r"^token_refiner\.blocks", "token_refiner.refiner_blocks"),
    (r"^blocks", "transformer_blocks"),
    (r"^final_layer\.norm", "norm_out.norm"),
    (r"^final_layer\.adaln_proj\.linear", "norm_out.linear"),
    (r"^final_layer\.video_out", "proj_out"),
    (r"^final_layer\.audio_out", "audio_proj_out"),
    (r"\.([qk])_norm\.", r".norm_\1."),
    (r"\.out_proj\.", ".to_out.0."),
    (r"\.mlp\.fc1\.", ".ff.net.0.proj."),
    (r"\.mlp\.fc2\.", ".ff.net.2."),
)
FREQUENCIES: Final = "rope.inv_freq"
"""Computed there, not loaded."""
VIDEO_KINDS = (SegmentKind.COND, SegmentKind.REF_IMAGE, SegmentKind.VIDEO)
AUDIO_KINDS = (SegmentKind.COND_AUDIO, SegmentKind.REF_AUDIO, SegmentKind.AUDIO)


@dataclass(frozen=True, slots=True)
class Peer:
    """inputs: of its `forward`. latents: shape of the target's pictures [1, C, T, h, w]."""

    model: Any
    inputs: Mapping[str, Any]
    layout: PackedLayout
    latents: torch.Size

    @torch.no_grad()
    def forward(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Rows of pictures and of sound, conditions' too."""
        rows: tuple[torch.Tensor, torch.Tensor] = self.model(**self.inputs, return_dict=False)
        return rows

    def velocities(self, rows: tuple[torch.Tensor, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        """The target's as ours."""
        sound, picture = self.layout.segments[-2:]
        video, audio = rows[0][0, picture.start - picture.stop :], rows[1][0, sound.start - sound.stop :]
        return -unpatchify(video, *self.latents[2:]), -audio_latent(audio)

    @contextmanager
    def few(self, blocks: int) -> Iterator[None]:
        """Meanwhile it has only its first ones."""
        whole = self.model.transformer_blocks
        self.model.transformer_blocks = nn.ModuleList(list(whole)[:blocks])
        try:
            yield
        finally:
            self.model.transformer_blocks = whole


def peer_weights(weights: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Ours, under its names."""
    theirs: dict[str, torch.Tensor] = {}
    for name, tensor in weights.items():
        if name == FREQUENCIES:
            continue
        for pattern, new in NAMES:
            name = re.sub(pattern, new, name)
        if ".qkv_proj." in name:
            for third, part in zip("qkv", tensor.chunk(3), strict=True):
                theirs[name.replace("qkv_proj", f"to_{third}")] = part
        else:
            theirs[name] = torch.cat(tensor.chunk(2)[::-1]) if ".ff.net.0.proj." in name else tensor
    return theirs


def peer_model(sizes: TransformerSizes, theirs: Mapping[str, torch.Tensor], frequencies: torch.Tensor) -> Any:
    """On the tensors of `peer_weights`. It has the full form of AdaLN only."""
    import diffusers

    assert sizes.curve is None, "diffusers knows no pruned AdaLN"
    build: Any = diffusers.MiniMaxH3Transformer3DModel
    with torch.device("meta"):
        model = build(
            num_attention_heads=sizes.heads,
            attention_head_dim=sizes.head_dim,
            hidden_size=sizes.hidden,
            num_layers=sizes.layers,
            num_refiner_layers=sizes.refiner_layers,
            ffn_dim=sizes.ffn,
            in_channels=sizes.channels,
            audio_in_channels=sizes.audio_channels,
            text_dim=sizes.text_dim,
            freq_dim=sizes.sinusoid,
            time_embed_hidden_dim=sizes.time_hidden,
            time_embed_dim=sizes.time_dim,
            rope_freq_dim=sizes.rope_freqs,
        )
    model.load_state_dict(theirs, strict=True, assign=True)
    model.rope.inv_freq = frequencies
    return model.eval().requires_grad_(False)


def peer_of(model: Any, given: Workload, sigma: float) -> Peer:
    """Ready to be asked for the velocities at `sigma`. Its inputs are made once, as its pipeline does for a step."""
    layout, device = given.layout, given.video.device
    time = clock(runs(layout), timesteps(sigma, given.settings.shift, given.settings.audio_shift))
    table_rows = torch.cat([torch.full((stop - start,), row) for start, stop, row in time.rows.segments]).to(device)
    conditions = list(condition_rows(layout, (), given.references, given.settings.seed))
    pictures = [rows.to(device) for segment, rows in conditions if not is_sound(segment)]
    sounds = [rows.to(device) for segment, rows in conditions if is_sound(segment)]
    inputs = {
        "hidden_states": torch.cat([*pictures, patchify(given.video)])[None],
        "audio_hidden_states": torch.cat([*sounds, audio_rows(given.audio)])[None],
        "encoder_hidden_states": given.text.hidden,
        "timestep": torch.tensor(time.timeline, device=device),
        "timestep_indices": table_rows // 3,
        "token_tags": table_rows % 3,
        "position_ids": torch.from_numpy(layout.position_ids).float().to(device),
        "video_indices": _rows_of(layout, VIDEO_KINDS).to(device),
        "audio_indices": _rows_of(layout, AUDIO_KINDS).to(device),
        "text_indices": _rows_of(layout, (SegmentKind.TEXT,)).to(device),
    }
    return Peer(model, inputs, layout, given.video.shape)


def _rows_of(layout: PackedLayout, kinds: tuple[SegmentKind, ...]) -> torch.Tensor:
    return torch.cat([torch.arange(segment.start, segment.stop) for segment in layout.of_kind(*kinds)])
