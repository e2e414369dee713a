"""Many bytes for a long time: rare errors would show."""

import os
import random

import pytest

from openmrc.demos.director import Fault
from openmrc.demos.loopback.run import run
from openmrc.demos.loopback.schedule import Schedule
from openmrc.demos.loopback.source import source_file
from openmrc.planes import Planes
from openmrc.testing import Impairment, PacketClass

PLANES = 8
FILE = 1 << 28
ROUND = 20.0
"""Seconds for each pair of processes."""


def changing_faults(rng: random.Random, duration: float) -> Schedule:
    """A dozen faults with random times that overlap; at most two planes are silent at a time."""
    share = {"ev_fraction": rng.uniform(0.05, 0.5), "packet_class": PacketClass.DATA}
    kinds = [
        lambda: Impairment.drop(ports=[rng.randrange(PLANES)]),
        lambda: Impairment.drop(ports=[rng.randrange(PLANES)]),
        lambda: Impairment.drop(probability=rng.uniform(0.0001, 0.02)),
        lambda: Impairment.drop(probability=rng.uniform(0.01, 0.2), **share),
        lambda: Impairment.duplicate(probability=rng.uniform(0.001, 0.1)),
        lambda: Impairment.reorder(packets=rng.randrange(2, 40), probability=rng.uniform(0.001, 0.1)),
        lambda: Impairment.corrupt(bits=rng.randrange(1, 9), probability=rng.uniform(0.0001, 0.01)),
        lambda: Impairment.delay(rng.uniform(50, 2000), jitter_us=500, probability=0.05),
        lambda: Impairment.ecn_mark(probability=rng.uniform(0.01, 0.3), **share),
        lambda: Impairment.trim(probability=rng.uniform(0.001, 0.1), ev_fraction=0.3),
        lambda: Impairment.trim(probability=rng.uniform(0.001, 0.05), ev_fraction=0.3, last_hop=True),
    ]
    faults = []
    for number, kind in enumerate(kinds):
        begin = rng.uniform(0, duration * 0.9)
        end = min(begin + rng.uniform(0.2, duration / 3), duration)
        faults.append(Fault(f"fault_{number}", f"fault {number}", begin, end, [kind()]))
    return Schedule(duration, faults, dead_plane=0)


@pytest.mark.long
def test_fifty_gigabytes_arrive_bit_for_bit_under_changing_faults():
    """Between two processes; `OPENMRC_SOAK_BYTES` and `OPENMRC_SEED` ask for other runs."""
    bytes_left = float(os.environ.get("OPENMRC_SOAK_BYTES", "50e9"))
    seed = int(os.environ.get("OPENMRC_SEED", "1"))
    with source_file(None, FILE, lambda *_: None) as source:
        while bytes_left > 0:
            schedule = changing_faults(random.Random(seed), ROUND)
            outcome = run(source, schedule, Planes(count=PLANES), lambda _: None)
            whole = sum(digest == outcome.source_digest for digest in outcome.receiver.digests)
            said = f"OPENMRC_SEED={seed}: {whole} of {outcome.sent_files} files; {outcome.error}"
            assert outcome.verified, f"{said}; {outcome.receiver.error}; {outcome.transport}"
            impaired = sum(sum(record.hits) for record in outcome.records)
            assert impaired > 0, f"{said}: nothing was impaired"
            print(f"{said}; {impaired} packets impaired; {outcome.transport}")
            bytes_left -= whole * FILE
            seed += 1
