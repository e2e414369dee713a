"""What a simulated fault did, and where."""

from openmrc import sim


def assert_felt(healthy: sim.Results, broken: sim.Results, kind: str, effect: str = "down") -> None:
    """Packets are lost for the reason of this kind of fault, and for no other, and none without it."""
    lossy, down = broken.totals["dropped_lossy"] > 0, broken.totals["dropped_down"] > 0
    assert (healthy.totals["dropped_lossy"], healthy.totals["dropped_down"]) == (0, 0)
    if kind == "slow":
        assert (lossy, down) == (False, False)
    elif kind in ("loss", "bit-errors", "mtu") or effect == "loss":
        assert (lossy, down) == (True, False)
    else:
        assert (lossy, down) == (False, True)


def links_that_lost(results: sim.Results) -> set[str]:
    """The links on which packets were lost; needs ``record.ports``."""
    lost = results.links["lost"]
    return {results.link_names[row // 2] for row in range(len(lost)) if lost[row]}


def bytes_of_link(results: sim.Results, name: str) -> int:
    """Bytes sent on a link, both directions; needs ``record.ports``."""
    row = 2 * results.link_names.index(name)
    return int(results.links["bytes"][row] + results.links["bytes"][row + 1])
