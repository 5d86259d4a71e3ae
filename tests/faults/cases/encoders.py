"""A program called ffmpeg that can't be relied on."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Mapping
from functools import partial

from tests.faults.case import Case
from tests.faults.place import Place
from tests.faults.service import look, marked

FAKE = """#!/bin/sh
case " $* " in *" -encoders "*|*" -version "*|*" -h "*|*" -muxers "*) exec {real} "$@";; esac
case "$(cat {mode})" in
hangs) exec sleep 1000;;
hangs_with_children) sleep 1000 & cat > /dev/null; sleep 1000;;
dies) head -c 1000 > /dev/null; echo 'it is over' >&2; exit 3;;
is_killed) head -c 1000 > /dev/null; kill -9 $$;;
writes_garbage) cat > /dev/null; for last; do :; done; head -c 50000 /dev/urandom > "$last";;
writes_nothing) cat > /dev/null;;
*) exec {real} "$@";;
esac
"""

DOES = ("hangs", "hangs_with_children", "dies", "is_killed", "writes_garbage", "writes_nothing")


def encoder(place: Place, does: str) -> None:
    """A program called ffmpeg that can't be relied on: the job fails by its name, soon, and nothing of it is left."""
    real, fake, mode = shutil.which("ffmpeg"), place.folder / "bin" / "ffmpeg", place.folder / "mode"
    fake.parent.mkdir(exist_ok=True)
    fake.write_text(FAKE.format(real=real, mode=mode))
    fake.chmod(0o755)
    mode.write_text(does)
    server = place.serve(environment={"PATH": f"{fake.parent}:{os.environ['PATH']}"}, timeout_mux=6)
    began = time.monotonic()
    job = server.wait(place.submit("failed"))
    assert job["error"]["code"] in ("encoder_failed", "timeout"), job["error"]
    assert time.monotonic() - began < 60
    look(lambda: not [line for line in marked(place.folder).values() if "sleep" in line])
    mode.write_text("works")
    server.ready()
    assert server.wait(place.submit())["status"] == "succeeded"


def families() -> Mapping[str, Mapping[str, Case]]:
    return {"encoders": {f"encoder_{does}": partial(encoder, does=does) for does in DOES}}
