"""What the warm-up measures of recorded steps is no part of what a clip takes."""

import pytest
import torch

from h3runtime.denoiser.recordings import Recordings
from h3runtime.engine.warmup import timed_apart


def test_a_clip_is_told_to_have_taken_what_it_takes_unmeasured() -> None:
    recordings = Recordings("auto", 2**30, torch.device("cuda"))
    recordings.measuring_seconds = 5.0
    with timed_apart(recordings) as measured:
        assert recordings.measures
        recordings.measuring_seconds += 2.0
    assert not recordings.measures
    assert measured.taken_from({"sampling": 3.5, "decode": 1.0}) == {"sampling": 1.5, "decode": 1.0}


def test_nothing_is_measured_after_a_warm_up_that_failed() -> None:
    recordings = Recordings("auto", 2**30, torch.device("cuda"))
    with pytest.raises(ZeroDivisionError), timed_apart(recordings):
        raise ZeroDivisionError
    assert not recordings.measures


def test_on_a_cpu_there_is_nothing_to_record() -> None:
    with timed_apart(recordings := Recordings("on", 2**30, torch.device("cpu"))):
        assert not recordings.measures
    assert recordings.told() == {
        "mode": "off", "recordings": 0, "bytes": 0, "replays": 0, "fault": "", "judged": [],
    }  # fmt: skip
