"""Why an encoder failed, as the typed end of a job, without the names of files on this machine.

Fed by `mux` with what `process` raised; it starts nothing.
"""

from __future__ import annotations

import re
from pathlib import Path

from h3runtime.errors import EncoderFailed, H3Error, JobCancelled, JobDiskFull, JobTimeout
from h3runtime.media.delivery import disk_error
from h3runtime.media.process import ChildExitedError, ChildStalledError, GivenUpError

STAGE = "mux"
NO_SPACE = re.compile(r"No space left on device|Disk quota exceeded")
"""What ffmpeg prints for ENOSPC and EDQUOT; it passes on no number."""
ABSOLUTE_PATH = re.compile(r"(?:file:)?/[^\s'\":]*/[^\s'\":]*")
CHATTER = re.compile(r"Svt\[\w+\]:")
"""How lines begin that SVT-AV1 writes on its own account, whatever ffmpeg's `loglevel`."""


def encoder_fault(failure: BaseException, folder: Path) -> BaseException:
    """What ended the thread that feeds an encoder, as the error the caller sees. folder: of the temporary files."""
    match failure:
        case ChildStalledError(seconds=seconds):
            return JobTimeout(f"The encoder made no progress for {seconds:g} s", stage=STAGE)
        case ChildExitedError():
            return _exited(failure, folder)
        case GivenUpError():
            return JobCancelled("The clip was abandoned", stage=STAGE)
        case OSError():
            return disk_error(failure, STAGE)
    return failure


def is_chatter(line: str) -> bool:
    return CHATTER.match(line) is not None


def _exited(failure: ChildExitedError, folder: Path) -> H3Error:
    """The child's last line says why; names of files on this machine are taken out of it."""
    if NO_SPACE.search(failure.tail):
        return JobDiskFull("The disk is full; the unfinished clip was removed", stage=STAGE)
    if failure.code is None:
        how = "stopped reading"
    else:
        how = f"ended with status {failure.code}" if failure.code >= 0 else f"was ended by signal {-failure.code}"
    lines = [line.strip() for line in failure.tail.replace("\r", "\n").split("\n")]
    told = [line for line in lines if line and not is_chatter(line)]
    words = ABSOLUTE_PATH.sub("(file)", told[-1].replace(f"{folder}/", "")) if told else ""
    return EncoderFailed(f"The encoder {how}" + (f": {words}" if words else ""), stage=STAGE)
