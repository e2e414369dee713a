"""On which hosts the ranks of a job are. Consecutive hosts share a T0 in every plane."""

import random
from collections.abc import Sequence
from typing import Literal, get_args

from openmrc.errors import ArgumentError
from openmrc.workload.program import Workload

Placement = Literal["t0", "rail", "random"]
PLACEMENTS: tuple[str, ...] = get_args(Placement)


def place_all(jobs: Sequence[Workload], placement: str, hosts: int, seed: int = 0) -> list[list[int]]:
    """The host of each rank of each job on one fabric: one job after the other, or all together at random.

    Args:
        jobs: The jobs.
        placement: As :func:`place` takes it.
        hosts: Hosts of the fabric.
        seed: Of ``random``.

    Raises:
        ArgumentError: as :func:`place`.
    """
    counts = [len(job.ranks) for job in jobs]
    if hosts < sum(counts):
        ranks = " + ".join(map(str, counts))
        raise ArgumentError(f"topology.hosts: {hosts} hosts are fewer than {ranks} ranks")
    begins = [sum(counts[:number]) for number in range(len(jobs))]
    if placement == "random":
        drawn = random.Random(seed).sample(range(hosts), sum(counts))
        return [drawn[begin : begin + count] for begin, count in zip(begins, counts, strict=True)]
    return [
        [begin + host for host in place(job, placement, len(job.ranks))]
        for begin, job in zip(begins, jobs, strict=True)
    ]


def place(workload: Workload, placement: str, hosts: int, seed: int = 0) -> list[int]:
    """The host of each rank.

    Args:
        workload: The job.
        placement: ``t0``: consecutive ranks on consecutive hosts; ``rail``: first the ranks that are first
            in their scale-up domain, then those that are second, and so on; ``random``: any hosts.
        hosts: Hosts of the fabric.
        seed: Of ``random``.

    Raises:
        ArgumentError: if there is no such placement, fewer hosts than ranks, or rails without domains.
    """
    ranks = len(workload.ranks)
    if hosts < ranks:
        raise ArgumentError(f"topology.hosts: {hosts} hosts are fewer than {ranks} ranks")
    if placement == "t0":
        return list(range(ranks))
    if placement == "random":
        return random.Random(seed).sample(range(hosts), ranks)
    if placement != "rail":
        raise ArgumentError(f"placement {placement!r} is not known: {', '.join(PLACEMENTS)}")
    if workload.domain == 1:
        raise ArgumentError("placement rail: the workload has no scale-up domains, so it has no rails")
    order = sorted(range(ranks), key=lambda rank: (rank % workload.domain, rank // workload.domain))
    found = [0] * ranks
    for host, rank in enumerate(order):
        found[rank] = host
    return found
