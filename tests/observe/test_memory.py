"""Figures come from the kernel's files, in bytes, and have a stand-in where there are none."""

from pathlib import Path

import pytest

from h3runtime.observe import memory

STATUS = "Name:\tpython\nVmPeak:\t  999 kB\nVmHWM:\t  300 kB\nVmRSS:\t  200 kB\n"
MEMINFO = "MemTotal:       1000 kB\nMemFree:         100 kB\nMemAvailable:    600 kB\n"


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    (tmp_path / "status").write_text(STATUS)
    (tmp_path / "meminfo").write_text(MEMINFO)
    return tmp_path


def test_lines_are_read_by_their_whole_name(proc):
    assert memory.resident_bytes(proc / "status") == 200 * 1024
    assert memory.peak_resident_bytes(proc / "status") == 300 * 1024
    assert memory.available_bytes(proc / "meminfo") == 600 * 1024


def test_without_the_files_there_is_a_stand_in(tmp_path):
    absent = tmp_path / "absent"
    assert memory.peak_resident_bytes(absent) > 1_000_000
    assert memory.resident_bytes(absent) > 1_000_000
    assert memory.available_bytes(absent) == 0
    memory.reset_peak(tmp_path / "absent" / "clear_refs")


@pytest.mark.skipif(not memory.STATUS.exists(), reason="no /proc here")
def test_a_big_block_shows_and_its_peak_can_be_forgotten():
    before = memory.resident_bytes()
    block = bytearray(b"x") * (64 << 20)
    assert memory.resident_bytes() - before > 48 << 20
    del block
    assert memory.peak_resident_bytes() >= before + (48 << 20)
    peak = memory.peak_resident_bytes()
    memory.reset_peak()
    assert memory.resident_bytes() <= memory.peak_resident_bytes() <= peak
    assert memory.available_bytes() > 0
