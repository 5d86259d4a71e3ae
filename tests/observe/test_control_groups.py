"""What control groups of both versions leave, read from folders as the kernel makes them."""

from __future__ import annotations

from pathlib import Path

from h3runtime.observe.control_groups import LimitedGroup, limited_groups


def second(folder: Path, limit: str, current: int, cached: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "memory.max").write_text(f"{limit}\n")
    (folder / "memory.current").write_text(f"{current}\n")
    (folder / "memory.stat").write_text(f"anon 5\nactive_file {cached}\ninactive_file 0\n")


def first(folder: Path, limit: int, usage: int, *, whole: int, own: int = 0, above: int | None = None) -> None:
    """whole, own: page cache of the tree below and of the group alone. above: the least limit on the way up."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "memory.limit_in_bytes").write_text(f"{limit}\n")
    (folder / "memory.usage_in_bytes").write_text(f"{usage}\n")
    told = f"cache {own}\nactive_file {own}\ninactive_file 0\n"
    told += f"hierarchical_memory_limit {limit if above is None else above}\n"
    (folder / "memory.stat").write_text(f"{told}total_active_file {whole // 2}\ntotal_inactive_file {whole // 2}\n")


def rooms(root: Path, own: Path) -> list[int]:
    return [group.room for group in limited_groups(root, own)]


def test_a_limit_of_version_2_counts_on_every_level(tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.write_text("1:name=systemd:/x\n0::/job/step\n")
    second(tmp_path / "job", "1000", 700, 200)
    second(tmp_path / "job" / "step", "max", 700, 200)
    assert limited_groups(tmp_path, own) == (LimitedGroup(1000, 500),)
    second(tmp_path / "job" / "step", "400", 700, 0)
    assert rooms(tmp_path, own) == [0, 500]


def test_in_a_container_the_root_is_its_own_group(tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.write_text("0::/elsewhere\n")
    second(tmp_path, "900", 100, 0)
    assert rooms(tmp_path, own) == [800]
    own.write_text("4:memory:/docker/0123\n")
    first(tmp_path / "memory", 2000, 600, whole=100)
    assert limited_groups(tmp_path, own) == (LimitedGroup(2000, 500),)


NO_LIMIT = 2**63 - 4096
"""As version 1 writes it."""


def test_a_limit_of_version_1_counts_on_every_level(tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.write_text("9:name=systemd:/\n5:cpu,cpuacct:/\n4:memory:/job/step\n0::/\n")
    first(tmp_path / "memory" / "job" / "step", NO_LIMIT, 700, whole=200, own=40)
    first(tmp_path / "memory" / "job", 1000, 800, whole=200, own=40)
    first(tmp_path / "memory", NO_LIMIT, 5000, whole=0)
    assert limited_groups(tmp_path, own) == (LimitedGroup(1000, 600),)


def test_version_1_tells_of_a_limit_that_a_container_can_t_see(tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.write_text("4:memory:/\n")
    first(tmp_path / "memory", NO_LIMIT, 300, whole=100, above=900)
    assert limited_groups(tmp_path, own) == (LimitedGroup(900, 200),)
    first(tmp_path / "memory", NO_LIMIT, 300, whole=100)
    assert limited_groups(tmp_path, own) == ()


def test_what_can_t_be_read_limits_nothing(tmp_path: Path) -> None:
    assert limited_groups(tmp_path, tmp_path / "nowhere") == ()
    own = tmp_path / "own"
    own.write_text("0::/\n4:memory:/\nnonsense\n")
    assert limited_groups(tmp_path, own) == ()
    own.write_text("0::/\n")
    second(tmp_path, "1000", 100, 0)
    (tmp_path / "memory.stat").unlink()
    assert rooms(tmp_path, own) == [900]


def test_this_process_can_be_asked() -> None:
    assert all(0 <= group.room <= group.limit for group in limited_groups())
