"""`decode` looks at what it is to write before it loads or decodes anything."""

from pathlib import Path

import pytest
import torch

from h3runtime.core import Latents
from h3runtime.engine import decode as module
from h3runtime.engine.decode import DecodeJob, decode
from h3runtime.engine.latents_file import write_latents
from h3runtime.errors import H3Error
from h3runtime.settings import Settings
from tests.tiny_set import tiny_paths


@pytest.mark.parametrize(
    ("names", "told"),
    [
        ({"sound": "a.mp3"}, ".wav or .flac"),
        ({"sound": "taken.wav"}, "exists"),
        ({"frames": "full"}, "not an empty folder"),
        ({"frames": "taken.wav"}, "not an empty folder"),
    ],
)
def test_a_target_that_can_not_be_is_refused_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, names: dict[str, str], told: str
) -> None:
    monkeypatch.setattr(module, "Loader", None)
    (tmp_path / "taken.wav").write_text("mine")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "a.png").write_text("mine")
    write_latents(tmp_path / "l", Latents(torch.zeros(1, 24, 2, 4, 4), torch.zeros(1, 32, 2, 8)), {})
    job = DecodeJob(latents=tmp_path / "l", **{name: tmp_path / value for name, value in names.items()})
    with pytest.raises(H3Error) as caught:
        decode(Settings(device="cpu", **tiny_paths()), job, lambda _: None)
    assert told in caught.value.message + "".join(offence.legal for offence in caught.value.offences)
