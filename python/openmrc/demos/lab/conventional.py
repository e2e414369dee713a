"""The conventional run: the same ring and the same faults over FRR, TCP and UDP."""

from collections.abc import Callable, Sequence

from openmrc.demos.director import Fault
from openmrc.demos.lab.director import LabDirector, Log
from openmrc.demos.lab.flows import Flows
from openmrc.demos.lab.frr import Routing, Timers, version
from openmrc.demos.lab.recording import Recording
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
            return _Director(lab, flows, log, tick, routing).run(faults)


class _Director(LabDirector):
    """Waits until BGP has converged before the next fault."""

    def __init__(
        self, lab: Lab, flows: Flows, log: Log, tick: Callable[[Recording], None], routing: Routing
    ) -> None:
        super().__init__(lab, flows, log, tick)
        self._routing = routing

    def settle(self) -> None:
        self._routing.wait_until_complete(lambda: self._tick(self.recording))
