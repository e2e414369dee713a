"""The benchmark table: its figures, their targets, and how each figure is computed from measurements.

A figure is computed from the measurements of one repetition. A new row needs a :class:`Figure` here and,
if no measurement for it exists, an instrument in ``instruments.py``.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import c_interface
import instruments
from instruments import Instrument, NotMeasured, Numbers

Repetition = Mapping[str, Numbers | NotMeasured]
"""The result of every instrument in one repetition, by its name."""


@dataclass(frozen=True)
class Target:
    """The condition that a figure has to fulfil."""

    text: str
    holds: Callable[[float], bool] | None
    """``None``: any value will do. The figure stands in the table for comparison."""


def at_least(limit: float, unit: str = "") -> Target:
    """The figure is ``limit`` or more."""
    return Target(f">= {limit:g}{unit}", lambda value: value >= limit)


def at_most(limit: float, unit: str = "") -> Target:
    """The figure is ``limit`` or less."""
    return Target(f"<= {limit:g}{unit}", lambda value: value <= limit)


def above(limit: float) -> Target:
    """The figure is more than ``limit``."""
    return Target(f"> {limit:g}", lambda value: value > limit)


def below(limit: float, unit: str = "") -> Target:
    """The figure is less than ``limit``."""
    return Target(f"< {limit:g}{unit}", lambda value: value < limit)


NO_BOUND = Target("-", None)
"""A comparison with what stands beside openmrc, without a bound."""


@dataclass(frozen=True)
class Figure:
    """A row of the table."""

    name: str
    target: Target
    subject: tuple[Instrument, str]
    """The measured number of openmrc: instrument and key."""
    reference: tuple[Instrument, str] | None = None
    """The number by which the subject is divided; without it the figure is the subject itself."""
    unit: str = ""
    section: str = "results"
    """The table of docs/benchmarks.md that contains the figure."""

    def instruments(self) -> Sequence[Instrument]:
        """The instruments of the figure, the reference first."""
        return [each[0] for each in (self.reference, self.subject) if each]

    def value(self, repetition: Repetition) -> float:
        """The figure of one repetition.

        Raises:
            NotMeasured: one of its instruments has no result.
        """
        subject = _number(repetition, self.subject)
        if self.reference is None:
            return subject
        reference = _number(repetition, self.reference)
        if reference == 0:
            raise NotMeasured(f"{self.reference[0].name} measured 0")
        return subject / reference


def _number(repetition: Repetition, source: tuple[Instrument, str]) -> float:
    instrument, number = source
    numbers = repetition[instrument.name]
    if isinstance(numbers, NotMeasured):
        raise numbers
    return numbers[number]


_MIB = str(1 << 20)
_CEILING_4096 = instruments.udp_ceiling(4096)
_CEILING_8192 = instruments.udp_ceiling(8192)
_CEILING_64 = instruments.udp_ceiling(64)
# A data packet of path MTU 4096 is 4,222 bytes of UDP payload; 15 of them are a run of this NIC.
_OFFLOAD = instruments.udp_ceiling(4222, segments=15)
_OFFLOAD_NO_COPY = instruments.udp_ceiling(4222, segments=15, delivery="none")
_TCP = instruments.iperf3_tcp()
_MPTCP_1 = instruments.iperf3_mptcp(1)
_MPTCP_8 = instruments.iperf3_mptcp(8)
_UCX_MIB = instruments.ucx_bandwidth(1 << 20, rate=1000)
_UCX_64 = instruments.ucx_bandwidth(64, rate=300_000)
_UCX_LATENCY = instruments.ucx_latency(2)
_PINGPONG = instruments.udp_pingpong(2)
_SPRAY = ("--planes", "8", "--evs", "128")
_WRITES = ("--size", _MIB, "--mtu", "4096", *_SPRAY)

_WRITE_4096 = instruments.write_bw("write-bw-4096", "openmrc, 1 MiB writes, path MTU 4096", *_WRITES)
_WRITE_8192 = instruments.write_bw(
    "write-bw-8192", "openmrc, 1 MiB writes, path MTU 8192", "--size", _MIB, "--mtu", "8192", *_SPRAY
)
_WRITE_64 = instruments.write_bw(
    "write-bw-64", "openmrc, 64-byte writes, posted in batches", "--size", "64", *_SPRAY
)
# perftest's depth and chains.
_WRITE_2, _WRITE_2_CHAINS = (
    instruments.write_bw(
        f"write-bw-2-l{chain}",
        f"openmrc, 2-byte writes in chains of {chain}, 128 outstanding",
        *("--size", "2", "--tx-depth", "128", "--post-list", str(chain)),
        *_SPRAY,
    )
    for chain in (1, 64)
)
_LOSS_01 = instruments.write_bw("write-bw-loss-0.1%", "openmrc, 0.1 % loss", *_WRITES, "--loss", "0.001")
_LOSS_1 = instruments.write_bw("write-bw-loss-1%", "openmrc, 1 % loss", *_WRITES, "--loss", "0.01")
_DEATH = instruments.plane_death("write-bw-plane-death", "openmrc, one plane of eight goes silent", *_WRITES)
_LATENCY = instruments.write_lat(2)
_HOPS = instruments.four_hops(4096)
_RECOVERY = instruments.recovery(cuts=50, ports=10)
_STATE = instruments.state_per_qp()

_IB_WRITE_BW = c_interface.ib_write_bw()
_IB_WRITE_RATE = c_interface.ib_write_rate(1)
_IB_WRITE_RATE_CHAINS = c_interface.ib_write_rate(64)
_IB_WRITE_LAT = c_interface.ib_write_lat(2)
_SPIN_VERBS = c_interface.spin("verbs", 100)
_SPIN_MRC = c_interface.spin("mrc", 100)
_C_WRITES = c_interface.c_writes()
_PYTHON_WRITES = c_interface.python_writes()
_POST_AND_POLL = c_interface.post_and_poll()

_TRAINING_2 = instruments.training(2)
_TRAINING_4 = instruments.training(4)
_SILENCE = instruments.silence()
_KERNELS = instruments.kernels()
_CHECKPOINT = instruments.checkpoint("checkpoint", "a state dict of 256 MiB to another rank, shared memory")
_CHECKPOINT_PLANES = instruments.checkpoint(
    "checkpoint-planes", "the same over the planes", OPENMRC_SHARED_MEMORY="0"
)
_NETWORK_ALL_REDUCE = instruments.collective(
    "all-reduce-network",
    "all_reduce of 64 MiB, two ranks, over the planes",
    *("all_reduce", "--ranks", "2", "--loopback", "--minbytes", "64MiB", "-n", "10", "--no-check"),
)
_WRITE_BOTH = instruments.write_bw(
    "write-bw-both", "openmrc, 1 MiB writes in both directions", "--size", _MIB, "--mtu", "4096", "-b"
)

_SIM_FAT_TREE = instruments.simulation(
    "fat-tree", "1,024 hosts, three tiers of 100 Gb/s, permutation of 2,000,000 bytes"
)
_SIM_LEAF_SPINE = instruments.simulation(
    "leaf-spine", "8,192 hosts, two tiers of 800 Gb/s, permutation of 1,001,000 bytes"
)
_SIM_ALL_REDUCE = instruments.simulation(
    "all-reduce", "64 hosts, 4 planes of 100 Gb/s, ring all-reduce of 1 GiB, 0.1 % loss"
)
_SIM_REFERENCE = instruments.simulation(
    "reference", "131,072 hosts, 8 planes of 100 Gb/s, permutation of 1 MiB"
)
_SIM_GROWTH = [
    instruments.simulation(f"planes-{hosts}", f"{hosts:,} hosts, otherwise as the reference")
    for hosts in (1024, 4096, 16384, 65536)
]
GROWTH = [*_SIM_GROWTH, _SIM_REFERENCE]
"""The same simulation with more and more hosts."""

# What the UEC consortium's own simulator needs for the first two shapes on the same kind of machine: 12.5 s
# for 501,760 data packets; 53.7 s and 1.1 GB for 2,007,040.
_UEC_FAT_TREE = 501_760 / 12.5 / 1e6
_UEC_LEAF_SPINE = 2_007_040 / 53.7 / 1e6
_UEC_LEAF_SPINE_MB = 1100

FIGURES: Sequence[Figure] = [
    Figure(
        "goodput of 1 MiB writes / one iperf3 TCP stream",
        at_least(1.0),
        (_WRITE_4096, "gbps"),
        (_TCP, "gbps"),
    ),
    Figure(
        "goodput of 1 MiB writes / UDP ceiling with offload, one copy by the receiver",
        at_least(0.85),
        (_WRITE_4096, "gbps"),
        (_OFFLOAD, "gbps"),
    ),
    Figure(
        "goodput of 1 MiB writes / UDP ceiling with offload, no copy by the receiver",
        NO_BOUND,
        (_WRITE_4096, "gbps"),
        (_OFFLOAD_NO_COPY, "gbps"),
    ),
    Figure(
        "goodput of 1 MiB writes / UDP ceiling without offload",
        NO_BOUND,
        (_WRITE_4096, "gbps"),
        (_CEILING_4096, "gbps"),
    ),
    Figure(
        "goodput of 1 MiB writes, mean / best 10 ms",
        at_least(0.9),
        (_WRITE_4096, "gbps"),
        (_WRITE_4096, "best_gbps"),
    ),
    Figure(
        "goodput of 1 MiB writes, 0.1 % loss on every path / without loss",
        at_least(0.97),
        (_LOSS_01, "gbps"),
        (_WRITE_4096, "gbps"),
    ),
    Figure(
        "goodput of 1 MiB writes, 1 % loss on every path / without loss",
        at_least(0.90),
        (_LOSS_1, "gbps"),
        (_WRITE_4096, "gbps"),
    ),
    Figure(
        "goodput of 1 MiB writes / kernel MPTCP, 1 subflow (iperf3)",
        NO_BOUND,
        (_WRITE_4096, "gbps"),
        (_MPTCP_1, "gbps"),
    ),
    Figure(
        "goodput of 1 MiB writes / kernel MPTCP, 8 subflows (iperf3)",
        NO_BOUND,
        (_WRITE_4096, "gbps"),
        (_MPTCP_8, "gbps"),
    ),
    Figure(
        "goodput of 1 MiB writes / UCX over TCP, 1 MiB puts (ucx_perftest)",
        NO_BOUND,
        (_WRITE_4096, "gbps"),
        (_UCX_MIB, "gbps"),
    ),
    Figure(
        "goodput of 1 MiB writes, path MTU 8192 / its UDP ceiling without offload",
        NO_BOUND,
        (_WRITE_8192, "gbps"),
        (_CEILING_8192, "gbps"),
    ),
    Figure(
        "64-byte writes per second / 64-byte datagrams per second",
        at_least(0.5),
        (_WRITE_64, "pps"),
        (_CEILING_64, "pps"),
    ),
    Figure(
        "64-byte writes per second / 64-byte puts per second, UCX over TCP",
        NO_BOUND,
        (_WRITE_64, "pps"),
        (_UCX_64, "pps"),
    ),
    Figure(
        "2-byte write latency, p50 / UDP ping-pong", at_most(1.3), (_LATENCY, "p50_us"), (_PINGPONG, "p50_us")
    ),
    Figure(
        "2-byte write latency, p99 / UDP ping-pong", at_most(1.5), (_LATENCY, "p99_us"), (_PINGPONG, "p99_us")
    ),
    Figure(
        "2-byte write latency, p50 / UCX over TCP", NO_BOUND, (_LATENCY, "p50_us"), (_UCX_LATENCY, "p50_us")
    ),
    Figure(
        "2-byte write latency, p99 / UCX over TCP", NO_BOUND, (_LATENCY, "p99_us"), (_UCX_LATENCY, "p99_us")
    ),
    Figure(
        "one plane of eight dies: time below 0.8 of the other seven, beyond the machine's own pauses",
        at_most(3, " ms"),
        (_DEATH, "beyond_ms"),
        unit=" ms",
    ),
    Figure(
        "50 link cuts and 10 lost ports in the lab: last data into them, p99",
        at_most(2, " ms"),
        (_RECOVERY, "data_ms"),
        unit=" ms",
    ),
    Figure(
        "50 link cuts and 10 lost ports in the lab: last data into them, p99, beyond the pauses",
        at_most(2, " ms"),
        (_RECOVERY, "data_beyond_ms"),
        unit=" ms",
    ),
    Figure(
        "50 link cuts and 10 lost ports in the lab: goodput back, p99",
        at_most(5, " ms"),
        (_RECOVERY, "goodput_ms"),
        unit=" ms",
    ),
    Figure(
        "50 link cuts and 10 lost ports in the lab: goodput back, p99, beyond the pauses",
        at_most(5, " ms"),
        (_RECOVERY, "goodput_beyond_ms"),
        unit=" ms",
    ),
    Figure(
        "SRv6 mode over four kernel hops, packets per second of 4096 bytes / plain UDP on the same hops",
        at_least(0.6),
        (_HOPS, "mrc_pps"),
        (_HOPS, "udp_pps"),
    ),
    Figure(
        "C interface: perftest's ib_write_bw, goodput of 1 MiB writes / write-bw",
        at_least(0.9),
        (_IB_WRITE_BW, "gbps"),
        (_WRITE_4096, "gbps"),
    ),
    Figure(
        "C interface: perftest's ib_write_lat, 2 bytes, p50 / write-lat",
        at_most(1.1),
        (_IB_WRITE_LAT, "p50_us"),
        (_LATENCY, "p50_us"),
    ),
    Figure(
        "C interface: perftest's ib_write_bw, 2-byte messages per second / write-bw",
        at_least(0.9),
        (_IB_WRITE_RATE, "pps"),
        (_WRITE_2, "pps"),
    ),
    Figure(
        "C interface: perftest's ib_write_bw -l 64, 2-byte messages per second / write-bw",
        at_least(0.9),
        (_IB_WRITE_RATE_CHAINS, "pps"),
        (_WRITE_2_CHAINS, "pps"),
    ),
    Figure(
        "C interface: 8 bytes through a flag in memory (verbs), p50 / write-lat",
        at_most(2),
        (_SPIN_VERBS, "p50_us"),
        (_LATENCY, "p50_us"),
    ),
    Figure(
        "C interface: 8 bytes through a flag in memory (mrc.h), p50 / write-lat",
        at_most(2),
        (_SPIN_MRC, "p50_us"),
        (_LATENCY, "p50_us"),
    ),
    Figure(
        "C interface: 64-byte writes per second / those of Python's post_writes",
        at_least(1.0),
        (_C_WRITES, "pps"),
        (_PYTHON_WRITES, "pps"),
    ),
    Figure(
        "C interface: a post and a poll, beyond those in Rust",
        at_most(50, " ns"),
        (_POST_AND_POLL, "overhead_ns"),
        unit=" ns",
    ),
    Figure("state per QP, MPR 8, 128 EVs (transport)", below(4096, " B"), (_STATE, "bytes"), unit=" B"),
    Figure(
        "data packets per second, 1,024 hosts, three tiers of 100 Gb/s",
        at_least(round(30 * _UEC_FAT_TREE, 1), " M"),
        (_SIM_FAT_TREE, "mpps"),
        unit=" M",
        section="simulator",
    ),
    Figure(
        "data packets per second, 8,192 hosts, two tiers of 800 Gb/s",
        at_least(round(30 * _UEC_LEAF_SPINE, 1), " M"),
        (_SIM_LEAF_SPINE, "mpps"),
        unit=" M",
        section="simulator",
    ),
    Figure(
        "the same, memory",
        at_most(_UEC_LEAF_SPINE_MB / 4, " MB"),
        (_SIM_LEAF_SPINE, "memory_MB"),
        unit=" MB",
        section="simulator",
    ),
    Figure(
        "64 hosts, 4 planes, ring all-reduce of 1 GiB, 0.1 % loss",
        at_most(60, " s"),
        (_SIM_ALL_REDUCE, "elapsed_s"),
        unit=" s",
        section="simulator",
    ),
    Figure(
        "131,072 hosts, 8 planes of 100 Gb/s, permutation of 1 MiB",
        at_most(90, " s"),
        (_SIM_REFERENCE, "elapsed_s"),
        unit=" s",
        section="simulator",
    ),
    Figure(
        "the same, memory",
        at_most(10_000, " MB"),
        (_SIM_REFERENCE, "memory_MB"),
        unit=" MB",
        section="simulator",
    ),
    Figure(
        "time per packet, 131,072 hosts / 1,024 hosts",
        below(3),
        (_SIM_REFERENCE, "packet_ns"),
        (_SIM_GROWTH[0], "packet_ns"),
        section="simulator",
    ),
    Figure(
        "all_reduce 25 MB float32, 2 ranks: gloo's time / ours",
        at_least(2),
        (_TRAINING_2, "all_reduce_large_gloo_us"),
        (_TRAINING_2, "all_reduce_large_mrc_us"),
        section="training",
    ),
    Figure(
        "all_reduce 25 MB float32, 4 ranks: gloo's time / ours",
        at_least(1.5),
        (_TRAINING_4, "all_reduce_large_gloo_us"),
        (_TRAINING_4, "all_reduce_large_mrc_us"),
        section="training",
    ),
    Figure(
        "all_reduce 4 KiB, 2 ranks, p50",
        at_most(60, " us"),
        (_TRAINING_2, "all_reduce_small_mrc_us"),
        unit=" us",
        section="training",
    ),
    Figure(
        "all_reduce 4 KiB, 2 ranks, p50: ours / gloo's",
        at_most(0.2),
        (_TRAINING_2, "all_reduce_small_mrc_us"),
        (_TRAINING_2, "all_reduce_small_gloo_us"),
        section="training",
    ),
    Figure(
        "all_to_all of 4 ranks, 4 MB for each: gloo's time / ours",
        at_least(1.5),
        (_TRAINING_4, "all_to_all_gloo_us"),
        (_TRAINING_4, "all_to_all_mrc_us"),
        section="training",
    ),
    Figure(
        "DDP step of the demonstration's model, 4 ranks: ours / gloo's",
        at_most(0.8),
        (_TRAINING_4, "ddp_step_mrc_us"),
        (_TRAINING_4, "ddp_step_gloo_us"),
        section="training",
    ),
    Figure(
        "the same with an all_reduce that does nothing / gloo's: what a backend without cost would reach",
        NO_BOUND,
        (_TRAINING_4, "ddp_step_none_us"),
        (_TRAINING_4, "ddp_step_gloo_us"),
        section="training",
    ),
    Figure(
        "bus bandwidth of all_reduce over the planes, 2 ranks / write-bw in both directions, one of them",
        at_least(0.8),
        (_NETWORK_ALL_REDUCE, "busbw_gbps"),
        (_WRITE_BOTH, "each_way_gbps"),
        section="training",
    ),
    Figure(
        "one plane of eight goes silent: longest all_reduce of 1 MiB beyond the longest before",
        at_most(20, " ms"),
        (_SILENCE, "beyond_ms"),
        unit=" ms",
        section="training",
    ),
    Figure(
        "reduction kernel in cache, the slower of float32 and bfloat16 / memory bandwidth",
        at_least(0.8),
        (_KERNELS, "slower_gbs"),
        (_KERNELS, "memory_gbs"),
        section="training",
    ),
    Figure(
        "state dict of 256 MiB to another rank: torch.save, copy over TCP, torch.load / ours",
        NO_BOUND,
        (_CHECKPOINT, "file_s"),
        (_CHECKPOINT, "mrc_s"),
        section="training",
    ),
    Figure(
        "the same, ours over the planes",
        NO_BOUND,
        (_CHECKPOINT_PLANES, "file_s"),
        (_CHECKPOINT_PLANES, "mrc_s"),
        section="training",
    ),
]


def needed(figures: Sequence[Figure]) -> list[Instrument]:
    """The instruments of the figures, each once; if possible, the two of a figure are neighbours.

    Where growth is a figure, so is the curve between its ends.
    """
    found = {each.name: each for figure in figures for each in figure.instruments()}
    if {GROWTH[0].name, GROWTH[-1].name} <= found.keys():
        found |= {each.name: each for each in GROWTH}
    return list(found.values())
