"""A path selector and a congestion controller written in Python, compared with those of MRC.

python examples/own_classes.py
"""

from collections.abc import Sequence
from typing import Any

from openmrc import sim


class RoundRobin:
    """Takes every path in turn and ignores feedback."""

    def __init__(self, ports: Sequence[int], seed: int) -> None:
        self.ports, self.next = ports, seed % len(ports)

    def select(self, now_ps: int, free: int, avoid: int | None) -> int | None:
        for _ in self.ports:
            self.next = (self.next + 1) % len(self.ports)
            if free >> self.ports[self.next] & 1 and self.next != avoid:
                return self.next
        return None

    def acked(self, path: int) -> None: ...
    def congested(self, path: int) -> None: ...
    def lost(self, path: int) -> None: ...


class Aimd:
    """A window that grows by one packet per round trip and halves at a mark or loss, once per round trip."""

    def __init__(self, mtu: int, rate_bps: int, base_rtt_ps: int) -> None:
        self.mtu, self.rtt_ps = mtu, base_rtt_ps
        self.most = self.window = rate_bps / 8 * base_rtt_ps * 1e-12
        self.cut_ps = 0

    def on_sack(self, now_ps: int, newly: int, rtt_ps: int | None, ecn: bool) -> None:
        if ecn:
            self._halve(now_ps)
        else:
            self.window = min(self.most, self.window + self.mtu * newly / self.window)

    def on_trim(self, now_ps: int, size: int) -> None:
        self._halve(now_ps)

    def on_loss(self, now_ps: int, size: int) -> None:
        self._halve(now_ps)

    def _halve(self, now_ps: int) -> None:
        if now_ps >= self.cut_ps + self.rtt_ps:
            self.window, self.cut_ps = max(self.mtu, self.window / 2), now_ps


if __name__ == "__main__":
    scenario = sim.Scenario(
        topology=sim.Topology(hosts=32, planes=4, radix=16),
        traffic=[
            sim.Permutation(bytes=1 << 20),
            sim.Incast(senders=[8, 16, 24], receiver=0, bytes=1 << 20),
        ],
        faults=[sim.Slow(targets=["p1/t1-0"], share=0.5)],
    )
    variants: dict[str, dict[str, Any]] = {
        "MRC": {},
        "round robin": {"path_selector": RoundRobin},
        "AIMD": {"congestion": Aimd},
        "both": {"path_selector": RoundRobin, "congestion": Aimd},
    }
    for name, own in variants.items():
        summary = sim.run(scenario, **own).summary()
        print(f"{name:14} {summary.delivered} of {summary.messages}, last after {summary.last_us:.1f} us")
