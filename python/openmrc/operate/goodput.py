"""What the processes of a host's jobs receive on each plane, counted for the reports of its agent."""

from collections.abc import Iterable
from typing import NamedTuple

from openmrc.observe import DevicePaths
from openmrc.operate.model import MOST_JOB_NAME, MOST_JOBS, JobSeen

_MOST_BYTES = (1 << 63) - 1


class Watched(NamedTuple):
    """A device of a process, with what is known of its ports."""

    key: str
    """What tells devices apart."""
    paths: DevicePaths
    received: list[int]
    """Bytes by port."""
    planes: dict[int, int]
    """The plane of each port."""


def job_name(job: str | None) -> str | None:
    """The name of a job as reports have it; ``None``: the process has not named one."""
    return None if not job else job.encode(errors="replace").decode()[:MOST_JOB_NAME]


class Received:
    """Bytes that the processes of a host receive, by job and plane. Used by one thread.

    What a device received before it was first seen is not counted, so that an agent that starts later than a
    job shows no burst.
    """

    def __init__(self, planes: int) -> None:
        """Starts at zero.

        Args:
            planes: Of the fabric.
        """
        self._planes = planes
        self._before: dict[str, list[int]] = {}
        self._totals: dict[str, list[int]] = {}

    def see(self, devices: Iterable[Watched]) -> list[JobSeen]:
        """Counts what has come since the last call; every job with its bytes since it was first seen."""
        before, self._before = self._before, {}
        processes: dict[str, set[int]] = {}
        for key, device, now, planes in devices:
            job = job_name(device.job)
            if job is None or (job not in processes and len(processes) >= MOST_JOBS):
                continue
            processes.setdefault(job, set()).add(device.pid)
            total = self._totals.setdefault(job, [0] * self._planes)
            self._before[key] = now
            gained = [count - was for count, was in zip(now, before.get(key, now), strict=False)]
            if min(gained, default=0) < 0:
                continue  # Another process has the number of one that has ended.
            for port, count in enumerate(gained):
                if port in planes:
                    total[planes[port]] = min(_MOST_BYTES, total[planes[port]] + count)
        self._totals = {job: self._totals[job] for job in processes}
        return [
            JobSeen(job=job, processes=len(pids), received=self._totals[job])
            for job, pids in sorted(processes.items())
        ]
