"""Small files to open and to spoil, and the tiny set made once."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
import torch

from h3runtime.checkpoint.checkpoint_set import CheckpointSet
from h3runtime.checkpoint.synthetic.tiny import write_set
from h3runtime.checkpoint.writer import write_file

Write = Callable[..., Path]


@pytest.fixture(scope="package", autouse=True)
def one_thread() -> Iterator[None]:
    """The tiny models here lose more to waking threads than they gain by them."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """`write({name: tensor}, metadata)` -> the path of a file that holds them."""

    def save(tensors: Mapping[str, torch.Tensor], metadata: Mapping[str, str] | None = None) -> Path:
        path = tmp_path / "model.safetensors"
        write_file(path, tensors, metadata)
        return path

    return save


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> CheckpointSet:
    return write_set(tmp_path_factory.mktemp("tiny"))
