"""The batched encoder against the runtime's own, its gradients, its batches and its master file."""

import json

import numpy as np
import pytest
import torch
from safetensors import safe_open

from h3runtime.conditioning.encoder import TextEncoder
from h3runtime.conditioning.pieces import AudioReference, ImageReference, VideoReference, keyframe_pieces
from h3runtime.conditioning.pieces import reference_pieces as referred
from h3runtime.conditioning.presentation import Presentation, present
from h3runtime.nano.model import TEXT_ENCODER, text_encoder
from h3runtime.nano.training.text import encode_batch
from h3runtime.nano.training.text_batches import TextBatch, captioned, text_batch
from h3runtime.nano.training.text_master import fill_unseen, initialise, read_text_master, write_text_master
from h3runtime.nano.vocabulary import Vocabulary

VOCABULARY = Vocabulary.load()
PROMPTS = ("a red ball rising on a blue floor", "a green box sinking on a grey floor")
BOUND = 1e-5
BF16_BOUND = 1e-2  # measured 7e-3 at most


@pytest.fixture(scope="module")
def encoder() -> TextEncoder:
    model = text_encoder(VOCABULARY.rows)
    initialise(model, seed=1)
    with torch.no_grad():  # biases and norms that do something
        for index, (_, value) in enumerate(sorted(model.named_parameters())):
            if value.ndim == 1:
                value += 0.1 * torch.randn(value.shape, generator=torch.Generator().manual_seed(index))
    return model


def pixels(seed: int, frames: int, height: int, width: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (frames, height, width, 3), dtype=np.uint8)


def shown(kind: str, index: int) -> Presentation:
    prompt, picture = PROMPTS[index], pixels(index, 1, 64, 96)
    match kind:
        case "text":
            pieces = keyframe_pieces(prompt)
        case "picture":
            pieces = keyframe_pieces(prompt, [picture])
        case "two pictures":
            pieces = keyframe_pieces(prompt, [picture, pixels(index + 2, 1, 64, 96)])
        case "resized":
            pieces = keyframe_pieces(prompt, [pixels(index, 1, 32, 32), pixels(index + 2, 1, 80, 33)])
        case _:
            video = VideoReference(pixels(index + 4, 22, 64, 32), soundtrack=True)
            pieces = referred(prompt, [ImageReference(picture), AudioReference(), video])
    return present(pieces, VOCABULARY.tokenizer)


def compact(presentation: Presentation) -> Presentation:
    return Presentation(VOCABULARY.compact(presentation.ids), presentation.tags, presentation.blocks)


def distance(a: torch.Tensor, b: torch.Tensor) -> float:
    return float((a - b).detach().norm() / b.detach().norm())


@pytest.mark.parametrize("kind", ["text", "picture", "two pictures", "resized", "references"])
def test_a_batch_is_what_the_runtime_encodes_one_by_one(kind: str, encoder: TextEncoder) -> None:
    presentations = [shown(kind, index) for index in range(2)]
    batch = text_batch(presentations, VOCABULARY)
    hidden = encode_batch(encoder, batch)
    assert hidden.shape == (2, batch.rows, TEXT_ENCODER.hidden)
    for row, presentation in zip(hidden, presentations, strict=True):
        features = encoder.encode(compact(presentation))
        assert distance(row, features.hidden[0]) <= BOUND
        assert np.array_equal(batch.tags, features.tags)


def test_the_expanded_table_encodes_real_ids_alike(encoder: TextEncoder) -> None:
    presentation = shown("picture", 0)
    whole = text_encoder(4)
    whole.model.embed_tokens = torch.nn.Embedding.from_pretrained(VOCABULARY.expand(encoder.model.embed_tokens.weight))
    rest = {n: t for n, t in encoder.state_dict().items() if n != "model.embed_tokens.weight"}
    whole.load_state_dict(rest, strict=False)
    assert torch.equal(whole.encode(presentation).hidden, encoder.encode(compact(presentation)).hidden)


def test_gradients_reach_every_parameter(encoder: TextEncoder) -> None:
    encoder.zero_grad()
    encode_batch(
        encoder, text_batch([shown("two pictures", i) for i in range(2)], VOCABULARY)
    ).square().mean().backward()
    dead = [
        n for n, p in encoder.named_parameters() if p.grad is None or not p.grad.isfinite().all() or not p.grad.any()
    ]
    assert dead == []


def test_a_gradient_is_the_slope(encoder: TextEncoder) -> None:
    batch = text_batch([shown("picture", 0)], VOCABULARY)
    weight, step = encoder.visual.patch_embed.proj.weight, 1e-2
    encoder.zero_grad()
    encode_batch(encoder, batch)[0, -1].sum().backward()
    assert weight.grad is not None
    direction = weight.grad / weight.grad.norm()
    kept, ends = weight.detach().clone(), []
    with torch.no_grad():
        for sign in (1, -1):
            weight.copy_(kept + sign * step * direction)
            ends.append(float(encode_batch(encoder, batch)[0, -1].double().sum()))
        weight.copy_(kept)
    assert (ends[0] - ends[1]) / (2 * step) == pytest.approx(float(weight.grad.norm()), rel=2e-2)


def test_autocast_stays_close_and_gives_fp32(encoder: TextEncoder) -> None:
    batch = text_batch([shown("references", i) for i in range(2)], VOCABULARY)
    with torch.autocast("cpu", torch.bfloat16):
        hidden = encode_batch(encoder, batch)
    assert hidden.dtype == torch.float32
    assert 0 < distance(hidden, encode_batch(encoder, batch)) <= BF16_BOUND


@pytest.mark.parametrize("kind", ["text", "two pictures", "references"])
def test_captioned_lays_out_what_presentations_would(kind: str) -> None:
    presentations = [shown(kind, index) for index in range(2)]
    expected = text_batch(presentations, VOCABULARY)
    told = np.array([VOCABULARY.tokenizer.encode(prompt) for prompt in PROMPTS], dtype=np.int64)
    captions = torch.from_numpy(VOCABULARY.compact(told))
    blocks = iter(expected.pixels)
    labels = {
        "text": [],
        "two pictures": ["<Picture 1>: ", None, "<Picture 2>: ", None],
        "references": ["<Picture 1>: ", None, "<Audio 1>: ", "<Audio 2>: ", "<Video 1>: ", "<0.2 seconds>", None],
    }[kind]
    batch = captioned([next(blocks) if label is None else label for label in labels], captions, VOCABULARY)
    assert torch.equal(batch.ids, expected.ids) and np.array_equal(batch.tags, expected.tags)
    assert batch.blocks == expected.blocks
    assert all(torch.equal(a, b) for a, b in zip(batch.pixels, expected.pixels, strict=True))


def test_presentations_of_two_layouts_are_no_batch() -> None:
    with pytest.raises(AssertionError, match="layouts differ"):
        text_batch([shown("text", 0), shown("picture", 0)], VOCABULARY)


def test_tables_first_asked_for_without_gradients_serve_training(encoder: TextEncoder) -> None:
    batch = TextBatch(torch.zeros(1, 53, dtype=torch.int64), np.ones(53, np.int64))
    with torch.inference_mode():
        encode_batch(encoder, batch)
    encode_batch(encoder, batch).sum().backward()


def test_the_master_describes_itself_and_comes_back(encoder: TextEncoder, tmp_path) -> None:
    path = tmp_path / "text_encoder.safetensors"
    digest = write_text_master(encoder, path, VOCABULARY)
    with safe_open(path, "pt") as file:
        assert set(file.keys()) == {*encoder.state_dict(), "token_ids"}
        assert file.get_tensor("token_ids").tolist() == VOCABULARY.token_ids().tolist()
        assert {file.get_tensor(n).dtype for n in encoder.state_dict()} == {torch.bfloat16}
        assert json.loads(file.metadata()["h3runtime_config"])["vision_num_heads"] == 2
    again = read_text_master(path)
    assert all(torch.equal(again.state_dict()[n], t.bfloat16().float()) for n, t in encoder.state_dict().items())
    assert write_text_master(again, path, VOCABULARY) == digest


def test_words_without_a_caption_borrow_their_kin_or_say_nothing() -> None:
    model = text_encoder(VOCABULARY.rows)
    initialise(model)
    (red,), (bare,), (other,) = (VOCABULARY.tokenizer.encode(t) for t in (" red", "red", "Blue"))
    seen = np.zeros(VOCABULARY.rows, bool)
    seen[red] = True
    before = model.model.embed_tokens.weight.detach().clone()
    fill_unseen(model, VOCABULARY, seen)
    table = model.model.embed_tokens.weight
    assert torch.equal(table[red], before[red]) and torch.equal(table[bare], before[red])
    assert not table[other].any()


def test_initial_values_are_the_seed_s() -> None:
    first, again, other = (text_encoder(VOCABULARY.rows) for _ in range(3))
    for model, seed in ((first, 0), (again, 0), (other, 1)):
        initialise(model, seed)
    name = "model.layers.0.mlp.up_proj.weight"
    assert all(torch.equal(a, b) for a, b in zip(first.state_dict().values(), again.state_dict().values(), strict=True))
    assert not torch.equal(first.state_dict()[name], other.state_dict()[name])
