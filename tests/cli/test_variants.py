"""`generate -n`: several clips of one request, told in one line; a chain has no such thing."""

import json
from pathlib import Path

import pytest

from h3runtime.cli import generate
from h3runtime.cli.generation.entries import asked_of
from h3runtime.errors import InvalidRequest
from h3runtime.settings import Settings
from tests.cli.commands import SMALL, run
from tests.cli.test_generate import faults, parsed, ruled


def test_n_is_a_field_of_the_request(tmp_path: Path) -> None:
    (raw,) = asked_of(parsed("--prompt", "x", "-n", "3")).requests
    assert raw["n"] == 3
    spec = ruled(asked_of(parsed("--prompt", "x", *SMALL, "--variants", "3")), tmp_path).spec(
        tmp_path / "a.mp4", tmp_path
    )
    assert spec.n == 3 and "n" not in asked_of(parsed("--prompt", "x")).requests[0]


def test_a_chain_is_of_one_clip_after_another(tmp_path: Path) -> None:
    found = faults(tmp_path, [{"prompt": "x"}, {"prompt": "y", "n": 2}], *SMALL)
    assert list(found) == ["[1].n"]
    (tmp_path / "chain.json").write_text(json.dumps([{"prompt": "x"}, {"prompt": "y"}]))
    flags = parsed(str(tmp_path / "chain.json"), *SMALL, "-n", "2", "--output", str(tmp_path / "c.mp4"), "--quiet")
    with pytest.raises(InvalidRequest) as caught:
        generate.make(flags, Settings())
    assert [o.field for o in caught.value.offences] == ["n"]


def test_every_output_is_told(tmp_path: Path) -> None:
    code, out, err = run(
        "generate", "--prompt", "x", *SMALL, "-n", "2", "--seed", "5", "--output", "cat.mp4", folder=tmp_path
    )
    assert code == 0, err
    told = json.loads(out)
    assert [(o["index"], o["seed"], Path(o["output"]).name) for o in told["outputs"]] == [
        (0, "5", "cat-0.mp4"),
        (1, "6", "cat-1.mp4"),
    ]
    assert told["outputs"][0] == {"index": 0} | {k: told[k] for k in ("seed", "output", "sha256", "bytes")}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cat-0.mp4", "cat-1.mp4"]
