"""Reading clips back: what is no clip is one typed error, what is one is counted."""

from pathlib import Path

import numpy as np
import pytest

from h3runtime.core import EncodeSettings
from h3runtime.errors import BadMedia
from h3runtime.media.mux import ClipShape, ClipWriter
from h3runtime.media.probe import count_packets, probe_clip, read_frames, read_planes, read_sound
from h3runtime.media.sound import wav_bytes


@pytest.fixture
def clip(tools, tmp_path: Path, frames, sound) -> Path:
    output = tmp_path / "a.mp4"
    encode = EncodeSettings(crf=0)
    with ClipWriter(tools["path"], output, tmp_path, ClipShape(64, 48, 22), sound, encode=encode) as writer:
        writer.put(frames)
        writer.finish()
    return output


def test_counts_agree(clip: Path) -> None:
    facts = probe_clip(clip)
    assert facts.frames == len(read_frames(clip)) == count_packets(clip)[0] == 22
    assert facts.sound is not None and facts.sound.samples == read_sound(clip)[0].shape[1]


def test_colours_survive_the_way_there_and_back(clip: Path, frames) -> None:
    got = read_frames(clip)
    # Flat inside the square: only the conversion's own rounding is left of a lossless clip.
    assert np.abs(got[0, 10:22, 2:14].astype(int) - frames[0, 10:22, 2:14]).max() <= 2


def test_planes_are_limited_range(clip: Path) -> None:
    planes = read_planes(clip)
    assert planes.shape == (22, 72, 64)
    # 250 of 255 as luma: 16 + 219 * 250 / 255.
    assert abs(int(planes[0, 12, 8]) - 231) <= 1


@pytest.mark.parametrize("read", [probe_clip, count_packets, read_frames, read_planes, read_sound])
@pytest.mark.parametrize("body", [b"", b"not a clip", b"\x00\x00\x00\x20ftypisom" + bytes(64)])
def test_no_clip_is_typed(tmp_path: Path, read, body: bytes) -> None:
    path = tmp_path / "a.mp4"
    path.write_bytes(body)
    with pytest.raises(BadMedia, match="source"):
        read(path, "source")


def test_a_missing_clip_is_typed_and_its_path_stays_secret(tmp_path: Path) -> None:
    with pytest.raises(BadMedia) as caught:
        probe_clip(tmp_path / "gone.mp4", "source")
    assert str(tmp_path) not in str(caught.value)


def test_a_truncated_clip_is_typed(clip: Path) -> None:
    clip.write_bytes(clip.read_bytes()[: clip.stat().st_size // 2])
    with pytest.raises(BadMedia):
        probe_clip(clip)


def test_a_sound_is_no_clip(tmp_path: Path, sound) -> None:
    path = tmp_path / "a.wav"
    path.write_bytes(wav_bytes(sound))
    with pytest.raises(BadMedia, match="no video"):
        probe_clip(path)
    assert np.array_equal(read_sound(path)[0], sound)


def test_a_playlist_reaches_no_other_place(tmp_path: Path) -> None:
    playlist = tmp_path / "list.m3u8"
    playlist.write_text("#EXTM3U\n#EXTINF:1,\nhttp://127.0.0.1:9/x.ts\n#EXT-X-ENDLIST\n")
    with pytest.raises(BadMedia):
        probe_clip(playlist)
