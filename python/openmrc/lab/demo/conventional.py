"""The conventional half: the same ring and the same faults over FRR, TCP and UDP."""

import time
from collections.abc import Callable, Sequence

from openmrc.lab import Lab
from openmrc.lab.demo.director import Say, direct
from openmrc.lab.demo.flows import Flows
from openmrc.lab.demo.frr import Routing, Timers, version
from openmrc.lab.demo.mrc import WARM_UP
from openmrc.lab.demo.scene import Fault
from openmrc.lab.demo.trace import Broken, Half


def run(
    lab: Lab,
    faults: Sequence[Fault],
    rate_bps: float,
    timers: Timers,
    say: Say,
    tick: Callable[[Half | None], None],
) -> Half:
    """Runs it.

    Raises:
        DeviceError: if FRR does not start, or its routes do not come.
        Error: if a connection broke.
    """
    say(f"FRR {version()} at {len(lab.layout.nodes)} nodes, {timers.described}")
    with Routing(lab, timers) as routing:
        took = routing.wait_until_complete(lambda: tick(None))
        say(f"every route is there {took:.1f} s after the daemons have started")
        flows = Flows(lab, rate_bps)
        try:
            flows.start()
            time.sleep(WARM_UP)
            direct(
                lab, faults, _Watcher(flows, routing, lambda: tick(flows.half)), say, lambda: tick(flows.half)
            )
            return flows.stop()
        finally:
            flows.close()


class _Watcher:
    """Lets the routes heal before the next fault."""

    def __init__(self, flows: Flows, routing: Routing, tick: Callable[[], None]) -> None:
        self._flows = flows
        self._routing = routing
        self._tick = tick
        self.half = flows.half

    def check(self) -> None:
        self._flows.check()

    def before(self, fault: Fault) -> None:
        pass

    def after(self, broken: Broken) -> None:
        pass

    def settle(self) -> None:
        self._routing.wait_until_complete(self._tick)
