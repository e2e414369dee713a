"""The conventional run: the same ring and the same faults over FRR, TCP and UDP."""

import time
from collections.abc import Callable, Sequence

from openmrc.demos.lab.director import Log, direct
from openmrc.demos.lab.flows import Flows
from openmrc.demos.lab.frr import Routing, Timers, version
from openmrc.demos.lab.mrc import WARM_UP_S
from openmrc.demos.lab.recording import FaultRecord, Recording
from openmrc.demos.lab.scene import Fault
from openmrc.lab import Lab


def run(
    lab: Lab,
    faults: Sequence[Fault],
    rate_bps: float,
    timers: Timers,
    log: Log,
    tick: Callable[[Recording | None], None],
) -> Recording:
    """Runs it.

    Raises:
        DeviceError: if FRR does not start, or BGP does not converge.
        Error: if a connection broke.
    """
    log(f"FRR {version()} at {len(lab.layout.nodes)} nodes, {timers.described}")
    with Routing(lab, timers) as routing:
        took = routing.wait_until_complete(lambda: tick(None))
        log(f"all routes are there {took:.1f} s after the daemons have started")
        with Flows(lab, rate_bps) as flows:
            flows.start()
            time.sleep(WARM_UP_S)
            observer = _Observer(flows, routing, lambda: tick(flows.recording))
            direct(lab, faults, observer, log, lambda: tick(flows.recording))
            return flows.stop()


class _Observer:
    """Waits until BGP has converged before the next fault."""

    def __init__(self, flows: Flows, routing: Routing, tick: Callable[[], None]) -> None:
        self._flows = flows
        self._routing = routing
        self._tick = tick
        self.recording = flows.recording

    def check(self) -> None:
        self._flows.check()

    def before(self, fault: Fault) -> None:
        pass

    def after(self, record: FaultRecord) -> None:
        pass

    def settle(self) -> None:
        self._routing.wait_until_complete(self._tick)
