"""A request that comes again decodes and encodes nothing; one that differs in anything that counts does."""

from collections.abc import Iterator
from dataclasses import replace
from hashlib import sha256

import pytest
import torch

from h3runtime.core import GuideInput, MaskSpan, MediaFile, SourceInput, Task
from h3runtime.engine.conditions import mask_pixels, media_encoder
from h3runtime.engine.conditions.gathering import Conditions, conditions_of
from h3runtime.engine.conditions.media_cache import Encoded, MediaCache, MediaKey
from h3runtime.engine.conditions.media_encoder import MediaEncoder
from h3runtime.engine.conditions.sound_cut import SoundCut
from h3runtime.errors import BadMedia
from tests.engine.conditioned import clip_reference, image_reference, voice_reference
from tests.engine.conftest import idle_run


class Work:
    """How often anything was read or encoded."""

    def __init__(self) -> None:
        self.done: list[str] = []

    def of(self) -> list[str]:
        done, self.done = self.done, []
        return done


@pytest.fixture
def work(engine, monkeypatch) -> Iterator[Work]:
    counted = Work()

    def count(where: object, name: str) -> None:
        real = getattr(where, name)

        def counting(*args: object, **named: object) -> object:
            counted.done.append(name)
            return real(*args, **named)

        monkeypatch.setattr(where, name, counting)

    for name in ("read_picture", "clip_frames", "read_sound_in"):
        count(media_encoder, name)
    for name in ("read_picture", "upright_frames"):
        count(mask_pixels, name)
    for name in ("encode_image", "encode_stream"):
        count(engine.models.vaes.video, name)
    count(engine.models.vaes.audio, "encode")
    return counted


@pytest.fixture
def cache() -> MediaCache:
    return MediaCache(1 << 26)


def same(one: Conditions, other: Conditions) -> bool:
    pairs = zip((*one.keyframes, *one.references), (*other.keyframes, *other.references), strict=True)
    latents = [(getattr(a, name), getattr(b, name)) for a, b in pairs for name in ("latent", "audio_latent")]
    return all(torch.equal(a, b) for a, b in latents if a is not None)


def test_the_same_media_are_read_once(engine, make_spec, media, work, cache) -> None:
    clip = media.clip("source", 5, 3)
    guide = GuideInput("keyframes[0]", 0, clip=media.clip("keyframes[0].video", 5), sound=media.voice("v", 0.2))
    mask = media.mask(torch.zeros(8, 8, dtype=torch.uint8).numpy())
    source = SourceInput(clip, media.sound_of(clip), mask, (MaskSpan(0, 0.1, 0),))
    spec = make_spec(
        task=Task.REF2VA,
        width=64,
        height=64,
        frames=5,
        guides=(guide, GuideInput("keyframes[1]", 4, picture=media.picture("keyframes[1].image"))),
        references=(image_reference(media, 0), clip_reference(media, 1), voice_reference(media, 2, 0.3)),
        source=source,
    )

    def gather() -> Conditions:
        return conditions_of(spec, MediaEncoder(engine.models.vaes, engine.device, cache, idle_run()))

    first = gather()
    assert sorted(set(work.of())) == [
        "clip_frames",
        "encode",
        "encode_image",
        "encode_stream",
        "read_picture",
        "read_sound_in",
    ]
    again = gather()
    assert work.of() == []
    assert same(first, again) and torch.equal(first.masks.content.video, again.masks.content.video)
    assert torch.equal(first.masks.video, again.masks.video)
    assert [p if isinstance(p, str) else p.pixels.tobytes() for p in first.pieces] == [
        p if isinstance(p, str) else p.pixels.tobytes() for p in again.pieces
    ]


def test_whatever_counts_is_part_of_the_key(engine, media, work, cache) -> None:
    encoder = MediaEncoder(engine.models.vaes, engine.device, cache, idle_run())
    picture, clip, sound = media.picture("p"), media.clip("c", 6), media.voice("s", 0.3)
    first, whole = replace(clip, frames=1), SoundCut("whole")
    distinct = [
        lambda: encoder.picture(picture, 64, 32, "cover"),
        lambda: encoder.picture(picture, 64, 32, "stretch"),
        lambda: encoder.picture(picture, 32, 64, "cover"),
        lambda: encoder.picture(media.picture("p", 1), 64, 32, "cover"),
        lambda: encoder.clip(first, 32, 32, "cover"),
        lambda: encoder.clip(first, 32, 32, "cover", shown=True),
        lambda: encoder.clip(first, 64, 32, "cover"),
        lambda: encoder.clip(replace(first, first=1), 32, 32, "cover"),
        lambda: encoder.clip(replace(clip, frames=5), 32, 32, "cover"),
        lambda: encoder.sound(sound, whole),
        lambda: encoder.sound(replace(sound, start=0.1), whole),
        lambda: encoder.sound(replace(sound, seconds=0.1), whole),
        lambda: encoder.sound(sound, SoundCut("within", 3)),
        lambda: encoder.sound(sound, SoundCut("filling", 3)),
    ]
    for make in distinct:
        make()
        assert len(work.of()) == 2
    for make in distinct:
        make()
        assert work.of() == []


def test_a_file_by_another_name_is_the_same(engine, media, work, cache) -> None:
    encoder = MediaEncoder(engine.models.vaes, engine.device, cache, idle_run())
    picture = media.picture("references[0].source")
    copy = media.folder / "copy.png"
    copy.write_bytes(picture.path.read_bytes())
    encoder.picture(picture, 64, 32, "cover")
    work.of()
    digest = sha256(copy.read_bytes()).hexdigest()
    encoder.picture(MediaFile(copy, "first_frame", digest), 64, 32, "cover")
    assert work.of() == []


def test_a_file_that_changed_or_went_is_bad_media(engine, media, cache) -> None:
    encoder = MediaEncoder(engine.models.vaes, engine.device, cache, idle_run())
    picture = media.picture("references[0].source")
    with pytest.raises(BadMedia, match=r"references\[0\].source: it has changed"):
        encoder.picture(replace(picture, sha256="ab" * 32), 64, 32, "cover")
    gone = MediaFile(media.folder / "gone.png", "references[1].source")
    for sent in (gone, replace(gone, sha256="ab" * 32)):
        with pytest.raises(BadMedia, match=r"references\[1\].source: it can't be read"):
            encoder.picture(sent, 64, 32, "cover")


def test_what_is_kept_is_bounded_by_bytes() -> None:
    cache = MediaCache(1000)
    entry = Encoded(torch.zeros(1, 1, 1, 10, 10))
    for number in range(5):
        cache.put(MediaKey(str(number), "", ()), entry)
    assert (len(cache), cache.bytes) == (2, 800)
    cache.put(MediaKey("big", "", ()), Encoded(torch.zeros(1, 1, 1, 100, 10)))
    assert len(cache) == 2
