"""Small steps of training, and fabrics to run them on."""

from openmrc import sim
from openmrc.workload import Model, Node, Rank, Workload

SMALL = Model(4, 1024, 4096, 8, 8, 128, 0, 512)


def fabric(hosts, **fields):
    """Its traffic is replaced."""
    topology = sim.Topology(hosts=hosts, planes=4, radix=16)
    return sim.Scenario(topology=topology, traffic=[sim.Permutation(bytes=1)], **fields)


def two_ranks() -> Workload:
    """Rank 0 computes for 300 us and rank 1 for 100; they reduce 1 MiB; rank 0 sends 64 KiB."""

    def program(us: int, last: Node) -> list[Node]:
        reduce = Node(2, "collective", (1,), bytes=1 << 20, operation="all_reduce", group="g")
        return [Node(1, "compute", ns=us * 1000, name="forward"), reduce, last]

    send = Node(3, "send", (2,), bytes=65_536, peer="other")
    receive = Node(3, "receive", (2,), bytes=65_536, peer="other")
    programs = {"a": program(300, send), "b": program(100, receive)}
    ranks = [Rank("a", {}, {"other": 1}), Rank("b", {}, {"other": 0})]
    return Workload(programs, ranks, {"g": (0, 1)})
