"""The tiny set: the published layouts, the same bytes everywhere, and results that live end to end."""

import hashlib
import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TypeVar

import numpy as np
import pytest
import torch
from torch import nn

from h3runtime.backends.linear.dequant import DequantLinear, dense
from h3runtime.checkpoint import rules
from h3runtime.checkpoint.checkpoint_set import CheckpointSet
from h3runtime.checkpoint.families import detect_component
from h3runtime.checkpoint.file import CheckpointFile
from h3runtime.checkpoint.load import load_module
from h3runtime.checkpoint.rules import LoadRule
from h3runtime.checkpoint.synthetic import made_files
from h3runtime.checkpoint.synthetic import tiny as tiny_module
from h3runtime.checkpoint.synthetic.tiny import tiny_set, write_set
from h3runtime.conditioning.conditioner import Conditioner
from h3runtime.conditioning.config import TextEncoderConfig
from h3runtime.conditioning.encoder import TextEncoder
from h3runtime.conditioning.pieces import keyframe_pieces
from h3runtime.conditioning.prompt_cache import PromptCache
from h3runtime.conditioning.tokenizer import PromptTokenizer
from h3runtime.core import Keyframe, KeyframeShape, Latents, SamplerSettings, TextFeatures
from h3runtime.denoiser.config import DitConfig
from h3runtime.denoiser.denoise import denoise
from h3runtime.denoiser.dit import Dit
from h3runtime.errors import CheckpointError
from h3runtime.packing.layout import pack
from h3runtime.quant.stored import PlainWeight
from h3runtime.vae.audio_config import AudioVaeConfig
from h3runtime.vae.audio_vae import AudioVae
from h3runtime.vae.video_config import VideoVaeConfig
from h3runtime.vae.video_vae import VideoVae

CPU = torch.device("cpu")
SHA256 = {
    "minimax_h3_fl2va_pruned_nvfp4.safetensors": "b204710bd46cc026592ba7c018a37ea308040449674208e07c194f6ae2d313ff",
    "minimax_h3_ref2va_pruned_nvfp4.safetensors": "5f1efb3eb2bbdbbbc2b19811ab2e7a0a6dd0b9a0d9807d50e400b2cf50f9817d",
    "qwen3vl_32b_minimax_h3_nvfp4_awq.safetensors": "0110ea511ac6fd9d7ad599c7e746fca324d81f90471a2969839b69d39aff8d9e",
    "minimax_h3_video_vae_fp16.safetensors": "8ada360b6c55ede03a609a44ea20f4ddf8619184fb4a23b94fdd6d47e8368dea",
    "minimax_h3_audio_vae_fp32.safetensors": "7b68647f636045ab94e8a7b6d5f0786a8ddc2f2283b723f2b292821132103944",
}
"""Bytes are part of the contract: the same on every machine. A deliberate change of the weights changes these."""


def files(of: CheckpointSet) -> tuple[Path, ...]:
    return of.transformer, of.ref2va, of.text_encoder, of.video_vae, of.audio_vae


# --- the files ---


def test_the_bytes_are_the_known_ones(tiny: CheckpointSet) -> None:
    assert {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in files(tiny)} == SHA256
    assert sum(p.stat().st_size for p in files(tiny)) < 40e6


def test_two_at_once_make_the_same_bytes(tiny: CheckpointSet, tmp_path: Path) -> None:
    """Into one folder, with another thread count: whoever is last changes nothing."""
    threads = torch.get_num_threads()
    torch.set_num_threads(threads + 1)
    try:
        with ThreadPoolExecutor(2) as pool:
            assert len(set(pool.map(lambda _: write_set(tmp_path), range(2)))) == 1
    finally:
        torch.set_num_threads(threads)
    for path in files(tiny):
        assert (tmp_path / path.name).read_bytes() == path.read_bytes()
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted([*SHA256, "tokenizer"])


def test_whole_files_are_left_alone_and_broken_ones_mended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []
    real = made_files.write_file
    monkeypatch.setattr(made_files, "write_file", lambda path, *rest: made.append(path.name) or real(path, *rest))
    first = tiny_set(tmp_path)
    assert made == list(SHA256) and tiny_module.source_hash() in str(first.transformer)
    made.clear()
    assert tiny_set(tmp_path) == first and not made
    with first.audio_vae.open("r+b") as file:
        file.truncate(1000)
    (first.tokenizer / "vocab.json").unlink()
    tiny_set(tmp_path)
    assert made == [first.audio_vae.name] and (first.tokenizer / "vocab.json").is_file()


def test_a_cache_that_can_t_be_written_is_typed(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(CheckpointError, match="can't be written to the cache"):
        tiny_set(tmp_path / "file")


def test_the_layouts_are_the_published_ones(tiny: CheckpointSet) -> None:
    with CheckpointFile(tiny.transformer) as file:
        assert file.synthetic and detect_component(file.shapes) == "transformer"
        assert file.shapes["adaln_t_table"] == (1025, 8) and file.dtypes["adaln_t_table"] is torch.float32
        assert file.dtypes["blocks.0.adaln_proj.linear.weight"] is torch.float16
        assert file.dtypes["blocks.0.norm1.weight"] is torch.bfloat16
        assert bytes(file.read("blocks.0.attn.qkv_proj.comfy_quant")) == b'{"format": "nvfp4"}'
        assert set(file.layers) == {
            f"blocks.{i}.{leaf}" for i in range(3) for leaf in ("attn.qkv_proj", "attn.out_proj", "mlp.fc1", "mlp.fc2")
        }
    with CheckpointFile(tiny.text_encoder) as file:
        assert file.synthetic and detect_component(file.shapes) == "text_encoder"
        assert file.shapes["model.embed_tokens.weight"][0] == 151936
        assert bytes(file.read("model.embed_tokens.comfy_quant")) == b'{"format": "int8_tensorwise"}'
        marker = bytes(file.read("model.layers.0.mlp.up_proj.comfy_quant"))
        assert marker == b'{"format": "nvfp4", "full_precision_matrix_mult": true}'
        scaled = {n.split(".")[-2] for n in file.entries if n.endswith("pre_quant_scale")}
        assert scaled == {"o_proj", "down_proj"} and len(file.layers) == 4 * 7 + 1
    for path, component in ((tiny.video_vae, "video_vae"), (tiny.audio_vae, "audio_vae")):
        with CheckpointFile(path) as file:
            assert file.synthetic and detect_component(file.shapes) == component


def test_the_tokenizer_gives_bytes_and_the_real_special_ids(tiny: CheckpointSet) -> None:
    tokenizer = PromptTokenizer.from_folder(tiny.tokenizer)
    assert len(tokenizer.encode("ab é")) == 5 and max(tokenizer.encode("äöü ~\n\0")) < 256
    ids = tokenizer.encode("<|vision_start|><|vision_end|><d></d><|caption_end|><think>")
    assert ids == [151652, 151653, 151669, 151670, 151675, 151667]


def test_the_tokenizer_lists_the_published_added_tokens(tiny: CheckpointSet) -> None:
    ours = json.loads((tiny.tokenizer / "tokenizer_config.json").read_text())
    published = Path(__file__).parents[4] / "shared" / "tokenizer" / "tokenizer_config.json"
    if not published.is_file():
        pytest.skip("the published tokenizer isn't here")
    theirs = json.loads(published.read_text())
    for key in ("added_tokens_decoder", "additional_special_tokens", "add_prefix_space", "eos_token", "pad_token"):
        assert ours[key] == theirs[key]


# --- the clips ---

ModelT = TypeVar("ModelT", bound=nn.Module)
HEIGHT, WIDTH, T, A = 96, 128, 7, 37


@dataclass
class Studio:
    """Everything loaded; a clip of 22 frames of 128x96 at a time."""

    paths: CheckpointSet

    def load(self, path: Path, build: Callable[[CheckpointFile], ModelT], rule: LoadRule) -> ModelT:
        with CheckpointFile(path) as file:
            with torch.device("meta"):
                model = build(file)
            load_module(model, file, linear=DequantLinear(), device=CPU, rule=rule)
        assert not any(t.is_meta for t in (*model.parameters(), *model.buffers()))
        return model

    @cached_property
    def dit(self) -> Dit:
        return self.load(self.paths.transformer, lambda f: Dit(DitConfig.from_shapes(f.shapes)), rules.TRANSFORMER)

    @cached_property
    def conditioner(self) -> Conditioner:
        def build(file: CheckpointFile) -> TextEncoder:
            told = json.loads(file.metadata["h3runtime_config"])
            config = TextEncoderConfig.from_shapes(file.shapes, told)
            assert config.assumed == ()
            return TextEncoder(config)

        encoder = self.load(self.paths.text_encoder, build, rules.TEXT_ENCODER)
        return Conditioner(PromptTokenizer.from_folder(self.paths.tokenizer), encoder, "", PromptCache(1 << 20))

    @cached_property
    def video(self) -> VideoVae:
        rule = rules.video_vae(torch.float16)
        return self.load(self.paths.video_vae, lambda f: VideoVae(VideoVaeConfig.from_shapes(f.shapes)), rule)

    @cached_property
    def audio(self) -> AudioVae:
        return self.load(
            self.paths.audio_vae, lambda f: AudioVae(AudioVaeConfig.from_shapes(f.shapes)), rules.AUDIO_VAE
        )

    def text(self, prompt: str, picture: np.ndarray | None = None) -> TextFeatures:
        return self.conditioner.condition(keyframe_pieces(prompt, [] if picture is None else [picture[None]]))

    def latents(self, text: TextFeatures, seed: int = 1, frame: torch.Tensor | None = None, at: int = 0) -> Latents:
        keyframes = [] if frame is None else [Keyframe(at, frame)]
        shapes = [KeyframeShape(at, 1)] * len(keyframes)
        layout = pack(T, HEIGHT // 16, WIDTH // 16, A, text.tags, shapes)
        settings = SamplerSettings(steps=4, seed=seed)
        return denoise(self.dit, layout, text, keyframes, [], settings, device=CPU, dtype=torch.bfloat16)

    def frames(self, latents: Latents) -> torch.Tensor:
        return torch.cat(list(self.video.decode_chunks(latents.video)))


@pytest.fixture(scope="module")
def studio(tiny: CheckpointSet) -> Studio:
    return Studio(tiny)


PROMPT, OTHER = "A red fox runs through deep snow at dawn.", "Waves break on a black beach while a choir sings."


def distance(one: Latents, other: Latents) -> tuple[float, float]:
    """Relative L2 of video and audio."""
    pairs = ((one.video, other.video), (one.audio, other.audio))
    video, audio = (float((a - b).norm() / b.norm()) for a, b in pairs)
    return video, audio


def test_latents_keep_their_spread_and_repeat(studio: Studio) -> None:
    text = studio.text(PROMPT)
    first, second = studio.latents(text), studio.latents(text)
    assert torch.equal(first.video, second.video) and torch.equal(first.audio, second.audio)
    for stream in (first.video, first.audio):
        assert 0.5 < float(stream.std()) < 2.0 and abs(float(stream.mean())) < 0.5


def test_text_and_seed_change_both_streams(studio: Studio) -> None:
    text = studio.text(PROMPT)
    base = studio.latents(text)
    by_seed = distance(studio.latents(text, seed=2), base)
    by_prompt = distance(studio.latents(studio.text(OTHER)), base)
    by_word = distance(studio.latents(studio.text(PROMPT.replace("dawn", "dusk"))), base)
    assert min(by_seed) > 0.8
    assert min(by_prompt) > 0.15
    assert min(by_word) > 0.01


def test_the_other_partition_lives_too_and_says_something_else(studio: Studio) -> None:
    other = Studio(replace(studio.paths, transformer=studio.paths.ref2va))
    text, changed = studio.text(PROMPT), studio.text(OTHER)
    latents = other.latents(text)
    for stream in (latents.video, latents.audio):
        assert 0.5 < float(stream.std()) < 2.0 and abs(float(stream.mean())) < 0.5
    assert min(distance(other.latents(changed), latents)) > 0.15
    assert min(distance(latents, studio.latents(text))) > 0.15


def test_pictures_and_their_place_change_the_video(studio: Studio) -> None:
    rows, columns = np.mgrid[0:HEIGHT, 0:WIDTH]
    picture = np.stack([rows * 2, columns * 2 % 256, (rows + columns) % 256], -1).astype(np.uint8)
    one, other = (studio.video.encode_image(torch.from_numpy(p)[None].float() / 255) for p in (picture, 255 - picture))
    assert 0.2 < float(one.std()) < 2.0 and float((one - other).norm() / one.norm()) > 0.5
    text = studio.text(PROMPT, picture)
    base = studio.latents(text, frame=one.float())
    assert distance(studio.latents(text, frame=other.float()), base)[0] > 0.01
    assert distance(studio.latents(text, frame=one.float(), at=21), base)[0] > 0.005
    assert distance(studio.latents(studio.text(PROMPT, 255 - picture), frame=one.float()), base)[0] > 0.01


def test_frames_have_colour_texture_and_motion(studio: Studio) -> None:
    frames = studio.frames(studio.latents(studio.text(PROMPT)))
    assert frames.shape == (22, HEIGHT, WIDTH, 3) and torch.isfinite(frames).all()
    assert (frames.std(dim=(1, 2)) > 0.03).all(), "some frame is flat"
    assert 0.2 < float(frames.mean()) < 0.8
    assert float(((frames <= 0) | (frames >= 1)).float().mean()) < 0.02
    assert float(frames.mean(dim=(0, 1, 2)).std()) > 0.03, "no colour"
    assert 0.005 < float((frames[1:] - frames[:-1]).abs().mean()) < 0.2
    other = studio.frames(studio.latents(studio.text(OTHER)))
    assert float((frames - other).abs().mean()) > 0.02


def test_sound_is_audible_and_neither_clipped_nor_constant(studio: Studio) -> None:
    sound = studio.audio.decode(studio.latents(studio.text(PROMPT)).audio)
    assert sound.shape == (1, 2, A * 800)
    for channel in sound[0]:
        rms = float(channel.square().mean().sqrt())
        assert 0.05 < rms < 0.2 and abs(float(channel.mean())) < 0.01 * rms
        assert float((channel.abs() >= 1).float().mean()) < 1e-4
    assert not torch.equal(sound[0, 0], sound[0, 1])
    latents = studio.audio.encode(sound)
    assert latents.shape == (1, 32, 2, A) and 0.2 < float(latents.std()) < 3


def test_quantised_weights_are_their_own_bf16(studio: Studio) -> None:
    """NVFP4 latents against those of the same weights dequantised to BF16: 0, where another seed is at 1.1."""
    text = studio.text(PROMPT)
    base = studio.latents(text)
    with torch.device("meta"):
        plain = Dit(studio.dit.config)
    with CheckpointFile(studio.paths.transformer) as file:
        load_module(plain, file, linear=DequantLinear(), device=CPU, rule=rules.TRANSFORMER)
    for module in plain.modules():
        stored = getattr(module, "resident", None)
        if stored is not None and stored.format == "nvfp4":
            module.resident = PlainWeight(dense(stored, torch.bfloat16), stored.bias)
    assert distance(replace_dit(studio, plain).latents(text), base) == (0.0, 0.0)


def replace_dit(studio: Studio, dit: Dit) -> Studio:
    other = replace(studio)
    other.__dict__["dit"] = dit
    return other
