"""A file is either sound and read exactly, or one typed error that names it; never a crash, never silence."""

import json
import os
import struct
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors import SafetensorError, deserialize
from safetensors.torch import load_file

from h3runtime.checkpoint import tensor_file
from h3runtime.checkpoint.file import CheckpointFile
from h3runtime.checkpoint.writer import write_file
from h3runtime.errors import CheckpointError
from tests.checkpoint.conftest import Write

TENSORS = {
    "a.weight": torch.arange(12, dtype=torch.float32).reshape(3, 4),
    "b": torch.tensor(2.5),
    "c.bias": torch.arange(5).to(torch.bfloat16),
    "d": torch.empty(0, 3),
    "e": torch.arange(7, dtype=torch.uint8),
    "f": torch.arange(6).to(torch.float16).reshape(1, 2, 3),
}


def raw_file(header: object, data: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def entry(dtype: object = "U8", shape: object = (4,), offsets: object = (0, 4), **more: object) -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets, **more}


def refused(path: Path) -> CheckpointError:
    with pytest.raises(CheckpointError) as caught:
        CheckpointFile(path)
    assert path.name in caught.value.message and str(path.parent) not in caught.value.message
    assert caught.value.offences
    return caught.value


# --- sound files ---


def test_what_was_written_is_read(write: Write) -> None:
    path = write(TENSORS, {"note": "x"})
    with CheckpointFile(path) as file:
        assert dict(file.shapes) == {name: tuple(t.shape) for name, t in TENSORS.items()}
        assert dict(file.dtypes) == {name: t.dtype for name, t in TENSORS.items()}
        assert file.metadata == {"note": "x"} and not file.synthetic
        for _ in range(2):
            for name, tensor in TENSORS.items():
                assert torch.equal(file.read(name), tensor)


def test_the_official_library_reads_what_we_write(write: Write) -> None:
    theirs = load_file(write(TENSORS))
    assert theirs.keys() == TENSORS.keys()
    assert all(torch.equal(theirs[name], tensor) for name, tensor in TENSORS.items())


def test_the_metadata_tells_made_up_weights(write: Write) -> None:
    with CheckpointFile(write(TENSORS, {"h3runtime_synthetic": "1"})) as file:
        assert file.synthetic


@pytest.mark.parametrize(
    "prefix", ["model.diffusion_model.", "diffusion_model.", "text_encoders.qwen3vl_32b.transformer."]
)
def test_a_prefix_that_all_names_share_is_taken_off(write: Write, prefix: str) -> None:
    with CheckpointFile(write({prefix + name: t for name, t in TENSORS.items()})) as file:
        assert file.prefix == prefix and file.shapes.keys() == TENSORS.keys()
        assert torch.equal(file.read("a.weight"), TENSORS["a.weight"])


def test_a_bundle_is_read_by_prefix(write: Write) -> None:
    path = write({"vae.x": torch.ones(2), "diffusion_model.y": torch.zeros(3)})
    with CheckpointFile(path) as file:
        assert file.prefix == "" and file.shapes.keys() == {"vae.x", "diffusion_model.y"}
    with CheckpointFile(path, prefix="vae.") as file:
        assert dict(file.shapes) == {"x": (2,)}
    with pytest.raises(CheckpointError, match="no tensors under 'other"):
        CheckpointFile(path, prefix="other.")


def test_nothing_is_mapped(write: Write) -> None:
    path = write({"big": torch.zeros(1 << 20)})
    with CheckpointFile(path) as file:
        file.read("big")
        assert str(path) not in Path("/proc/self/maps").read_text()


def test_the_descriptor_is_given_back(write: Write) -> None:
    path = write(TENSORS)
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(20):
        with CheckpointFile(path):
            pass
    path.write_bytes(b"spoiled")
    for _ in range(20):
        refused(path)
    assert len(list(Path("/proc/self/fd").iterdir())) <= before + 1


# --- files that aren't ---


def test_missing_directory_pipe_and_unreadable(tmp_path: Path) -> None:
    assert "no such file" in refused(tmp_path / "absent.safetensors").message
    (tmp_path / "folder").mkdir()
    assert "directory" in refused(tmp_path / "folder").message
    os.mkfifo(tmp_path / "pipe")
    assert "not a regular file" in refused(tmp_path / "pipe").message
    locked = tmp_path / "locked.safetensors"
    locked.touch(mode=0o000)
    assert refused(locked)
    with pytest.raises(CheckpointError):
        CheckpointFile(tmp_path / "nul\0.safetensors")


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "empty"),
        (b"abc", "too few"),
        (b"<!DOCTYPE html><html>Sign in</html>", "web page"),
        (b"\n<html>", "too few"),
        (b"\n\n<html><body>404</body></html>", "web page"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0", "git-lfs"),
        (struct.pack("<Q", 1 << 40) + b"{}", "header length"),
        (struct.pack("<Q", 0), "header length 0"),
        (struct.pack("<Q", 500) + b"{}", "truncated inside its header"),
        (raw_file(b"[]"), "isn't a JSON object"),
        (raw_file(b"{nonsense}"), "isn't JSON"),
        (raw_file(b'{"a": NaN}'), "isn't JSON"),
        (raw_file(b'{"a": "\xff"}'), "isn't JSON"),
        (raw_file(b'{"a":' + b"[" * 100_000), "isn't JSON"),
        (raw_file(b"{" + b'"a": ' + b"9" * 5000 + b"}"), "isn't JSON (a number of 5000 digits)"),
        (raw_file({}), "no tensors"),
        (raw_file({"__metadata__": {"a": 1}}), "__metadata__"),
        (raw_file({"__metadata__": ["a"]}), "__metadata__"),
        (raw_file(b'{"__metadata__": {"a": "\\ud800"}}'), "__metadata__"),
    ],
)
def test_what_isn_t_a_checkpoint_is_named_for_what_it_is(tmp_path: Path, content: bytes, says: str) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(content)
    assert says in refused(path).message


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (entry("F99"), "unknown dtype F99"),
        (entry(7), "unknown dtype"),
        (entry(shape=(-4,)), "illegal shape [-4]"),
        (entry(shape=(4.0,)), "illegal shape"),
        (entry(shape=(True,)), "illegal shape"),
        (entry(shape="4"), "illegal shape"),
        (entry(shape=(2**40, 2**40, 0)), "illegal shape"),
        (entry(shape=(1,) * 65), "illegal shape"),
        (entry(offsets=(4, 0)), "illegal data_offsets"),
        (entry(offsets=(0,)), "illegal data_offsets"),
        (entry(offsets=(-1, 3)), "illegal data_offsets"),
        (entry(offsets=(0, 3)), "spans 3 bytes, but U8 [4] needs 4"),
        (entry(shape=(5,), offsets=(0, 5)), "truncated"),
        (entry(extra=1), "exactly dtype, shape and data_offsets"),
        ([], "exactly dtype, shape and data_offsets"),
        (None, "exactly dtype, shape and data_offsets"),
    ],
)
def test_a_tensor_that_can_t_be_is_named(tmp_path: Path, value: object, says: str) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(raw_file({"blocks.0.w": value}, bytes(4)))
    error = refused(path)
    assert says in error.message and error.offences[0].field == "blocks.0.w"


def test_all_offenders_are_listed(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    spoiled = {f"t{i}": entry("F99") for i in range(60)}
    path.write_bytes(raw_file(spoiled, bytes(4)))
    error = refused(path)
    assert [o.field for o in error.offences] == list(spoiled)
    assert "t39" in error.message and "and 20 more" in error.message


def test_duplicates_gaps_overlaps_and_leftovers(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    one = json.dumps(entry()).encode()
    path.write_bytes(
        raw_file(b'{"a": ' + one + b', "b": ' + one.replace(b"[0, 4]", b"[4, 8]") + b', "a": ' + one + b"}", bytes(8))
    )
    assert refused(path).offences[0].field == "a" and "twice" in refused(path).message
    path.write_bytes(raw_file({"a": entry(), "b": entry(offsets=(6, 10))}, bytes(10)))
    assert "leaving a gap from 4" in refused(path).message
    path.write_bytes(raw_file({"a": entry(), "b": entry(offsets=(2, 6))}, bytes(6)))
    assert "inside the tensor before it" in refused(path).message
    path.write_bytes(raw_file({"a": entry()}, bytes(12)))
    assert "8 extra bytes" in refused(path).message


def test_control_characters_in_a_name_are_shown_escaped(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(raw_file({"a\n\x1b[31m": entry()}, bytes(4)))
    assert refused(path).message.isprintable()
    path.write_bytes(raw_file({"a\ud800": entry()}, bytes(4)))
    assert refused(path).message.isprintable()


def test_truncation_anywhere_is_refused(write: Write, tmp_path: Path) -> None:
    """At every byte: inside the length, the header, at every tensor boundary and one to each side."""
    whole = write(TENSORS).read_bytes()
    path = tmp_path / "cut.safetensors"
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        refused(path)


def test_appended_bytes_are_refused_and_counted(write: Write) -> None:
    path = write(TENSORS)
    with path.open("ab") as out:
        out.write(bytes(8))
    assert "8 extra bytes" in refused(path).message


def test_a_file_cut_short_while_open_is_an_error_and_no_signal(write: Write) -> None:
    path = write({"a": torch.zeros(1 << 18), "b": torch.zeros(1 << 18)})
    with CheckpointFile(path) as file:
        os.truncate(path, path.stat().st_size - 4096)
        assert file.read("a").shape == (1 << 18,)
        with pytest.raises(CheckpointError, match=r"model.safetensors: b can't be read: .*cut short"):
            file.read("b")
        os.truncate(path, 0)
        with pytest.raises(CheckpointError, match="cut short"):
            file.read("a")


def test_a_disk_that_fails_is_an_error(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    with CheckpointFile(write(TENSORS)) as file:

        def broken(*_: object) -> int:
            raise OSError(5, "Input/output error")

        monkeypatch.setattr(tensor_file.os, "preadv", broken)
        with pytest.raises(CheckpointError, match=r"a.weight can't be read: input/output error"):
            file.read("a.weight")


def test_short_reads_are_continued(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.preadv
    monkeypatch.setattr(tensor_file.os, "preadv", lambda fd, views, at: real(fd, [views[0][:3]], at))
    with CheckpointFile(write(TENSORS)) as file:
        assert torch.equal(file.read("a.weight"), TENSORS["a.weight"])


def test_a_file_is_replaced_whole_or_not_at_all(write: Write) -> None:
    path = write(TENSORS)
    before = path.read_bytes()
    with pytest.raises(Exception, match="meta"):
        write_file(path, {"promise": torch.empty(2, device="meta")})
    assert path.read_bytes() == before and [p.name for p in path.parent.iterdir()] == [path.name]


MUTATIONS = st.lists(
    st.tuples(st.sampled_from(["set", "insert", "delete"]), st.integers(0, 600), st.integers(0, 255)),
    min_size=1,
    max_size=4,
)
QUIET = settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@QUIET
@given(mutations=MUTATIONS, fix_length=st.booleans())
def test_a_mutated_header_is_refused_or_still_sound(
    write: Write, mutations: list[tuple[str, int, int]], fix_length: bool
) -> None:
    """Whatever the header says: a typed error, or a file that the official reader takes too and that reads well."""
    path = write(TENSORS, {"note": "x"})
    whole = bytearray(path.read_bytes())
    end = 8 + int.from_bytes(whole[:8], "little")
    header, data = whole[:end], bytes(whole[end:])
    for what, at, value in mutations:
        at = at % len(header)
        if what == "set":
            header[at] = value
        elif what == "insert":
            header.insert(at, value)
        else:
            del header[at]
    if fix_length:
        header[:8] = struct.pack("<Q", max(len(header) - 8, 0))
    path.write_bytes(bytes(header) + data)
    try:
        file = CheckpointFile(path)
    except CheckpointError as error:
        assert path.name in error.message and error.offences and error.message.isprintable()
        return
    with file:
        for name in file.entries:
            file.read(name)
    try:
        deserialize(path.read_bytes())
    except SafetensorError as error:
        pytest.fail(f"taken, but the official reader refuses it: {error}")


@QUIET
@given(content=st.binary(max_size=200))
def test_any_bytes_are_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(content)
    refused(path)
