"""Control groups of both versions, as folders that say what a kernel would; `test_limited_load` has the kernel's."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.checkpoint import memory_group
from tests.checkpoint.memory_group import FirstVersion, SecondVersion, add, open_group

GIB = 1 << 30
V1_OWN = "4:memory:/job\n0::/\n"
V2_OWN = "0::/user/session\n"


FILES = {
    "cgroup.procs": "",
    "cgroup.subtree_control": "",
    "memory.limit_in_bytes": "",
    "memory.usage_in_bytes": "4096",
    "memory.max_usage_in_bytes": "8192",
    "memory.failcnt": "0",
    "memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n",
    "memory.stat": "cache 5\nfile 6\n",
    "memory.max": "max",
    "memory.swap.max": "max",
    "memory.current": "1",
    "memory.peak": "9",
    "memory.events": "low 0\nhigh 0\nmax 3\noom 1\noom_kill 1\n",
}
"""Of both versions, with different figures."""


def made(folder: Path, **files: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / f"cgroup.{name}").write_text(text)
    return folder


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A new group has the kernel's files at once, and goes with them; nobody is really in one."""

    def make(folder: Path) -> None:
        folder.mkdir()
        for name, text in FILES.items():
            (folder / name).write_text(text)

    monkeypatch.setattr(memory_group, "_make", make)
    monkeypatch.setattr(memory_group, "_unmake", shutil.rmtree)
    return tmp_path


def own(root: Path, text: str) -> Path:
    path = root / "self-cgroup"
    path.write_text(text)
    return path


def groups(root: Path) -> list[str]:
    return sorted(path.name for path in root.rglob("h3-load-*"))


def test_the_first_version_is_taken_where_it_has_the_memory(root: Path) -> None:
    made(root / "memory" / "job", procs="1\n")
    with open_group(root, own(root, V1_OWN)) as group:
        assert isinstance(group, FirstVersion) and group.folder.parent == root / "memory" / "job"
        group.limit(GIB)
        assert (group.folder / "memory.limit_in_bytes").read_text() == str(GIB)
        assert not (group.folder / "memory.memsw.limit_in_bytes").exists()
        (group.folder / "memory.memsw.limit_in_bytes").write_text("")
        group.limit(2 * GIB)
        assert (group.folder / "memory.memsw.limit_in_bytes").read_text() == str(2 * GIB)
        assert (group.used(), group.cached(), group.hits(), group.kills()) == (4096, 5, 0, 2)
        add(group, 42)
        assert (group.folder / "cgroup.procs").read_text() == "42"
        (group.folder / "cgroup.procs").write_text("")
    assert groups(root) == []


def test_the_second_version_is_put_where_memory_is_shared_out_already(root: Path) -> None:
    made(root / "user" / "session", procs="1\n", subtree_control="", controllers="memory pids")
    made(root / "user", procs="", subtree_control="memory pids\n", controllers="memory pids")
    with open_group(root, own(root, V2_OWN)) as group:
        assert isinstance(group, SecondVersion) and group.folder.parent == root / "user"
        group.limit(GIB)
        assert (group.folder / "memory.max").read_text() == str(GIB)
        assert (group.folder / "memory.swap.max").read_text() == "0"
        assert (group.used(), group.cached(), group.peak(), group.hits(), group.kills()) == (1, 6, 9, 3, 1)
        (group.folder / "memory.peak").unlink()
        assert group.peak() == 1
    assert groups(root) == []


def test_where_none_shares_memory_the_own_processes_step_aside(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a container whose group is its root. No process is really moved, so who would be is written down."""
    made(root, procs="7\n8\n", subtree_control="", controllers="memory pids")
    moves: list[tuple[str, str]] = []
    monkeypatch.setattr(memory_group, "_move_all", lambda here, there: moves.append((here.name, there.name)))
    with open_group(root, own(root, "0::/\n")) as group:
        assert isinstance(group, SecondVersion) and group.folder.parent == root
        assert (root / "cgroup.subtree_control").read_text() == "+memory"
        (aside,) = (name for name in groups(root) if "aside" in name)
        assert moves == [(root.name, aside)]
    assert (root / "cgroup.subtree_control").read_text() == "-memory"
    assert moves == [(root.name, aside), (aside, root.name)] and groups(root) == []


@pytest.mark.parametrize("text", [V1_OWN, V2_OWN])
def test_nobody_else_may_make_one(root: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    made(root / "memory" / "job", procs="")
    made(root / "user" / "session", procs="", subtree_control="memory")
    monkeypatch.setattr(memory_group, "_is_writable", lambda _: False)
    with open_group(root, own(root, text)) as group:
        assert group is None


def test_what_an_earlier_run_left_goes(root: Path) -> None:
    child = subprocess.Popen(["sleep", "60"])
    gone = subprocess.Popen(["true"])
    gone.wait()
    left = made(root / "memory" / "job", procs="") / f"h3-load-{gone.pid}"
    made(left, procs=f"{child.pid}\n")
    with open_group(root, own(root, V1_OWN)):
        assert not left.exists()
    assert child.wait(5) == -9
