"""The files of earlier jobs that a request may build on: the tail to continue, the clip to edit.

A job must have succeeded and its file still be there; what is wrong is told of the request's own field, so an unknown
id is a 422 here, not a 404. `opening` asks; the paths are `jobs.files`'.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from h3runtime.core import variant_path
from h3runtime.errors import InvalidRequest, JobNotFound, Offence, invalid
from h3runtime.jobs.job import Job, Status

if TYPE_CHECKING:
    from h3runtime.jobs.files import Folders
    from h3runtime.jobs.table import JobTable


class JobClips:
    """Of one server, as its client `owner` may use them: another's are as good as unknown."""

    def __init__(self, table: JobTable, folders: Folders, owner: str = "") -> None:
        self._table = table
        self._folders = folders
        self._owner = owner

    def tail_of(self, job_id: str, field: str) -> Path:
        """The lossless end of a job's clip. `InvalidRequest` naming `field`."""
        return self._there(self._folders.tail_of(self._succeeded(job_id, field).id), job_id, field)

    def clip_of(self, job_id: str, field: str) -> Path:
        """A job's whole clip, as it was delivered; the first of several."""
        spec = self._succeeded(job_id, field).spec
        return self._there(variant_path(spec.output, 0, spec.n), job_id, field)

    def gone(self, job_id: str, field: str) -> InvalidRequest:
        return _refused(field, f"of job {ascii(job_id)[:60]} nothing is kept any more")

    def _succeeded(self, job_id: str, field: str) -> Job:
        try:
            job = self._table.find(job_id, self._owner)
        except JobNotFound:
            raise _refused(field, f"there is no job {ascii(job_id)[:60]}") from None
        if job.status is not Status.SUCCEEDED:
            raise _refused(field, f"job {job.id} is {job.status.value}")
        return job

    def _there(self, path: Path, job_id: str, field: str) -> Path:
        if path.is_symlink() or not path.is_file():
            raise self.gone(job_id, field)
        return path


def _refused(field: str, why: str) -> InvalidRequest:
    return invalid([Offence(f"{field}.job", why, "the id of a job of this server that has succeeded, or a medium")])
