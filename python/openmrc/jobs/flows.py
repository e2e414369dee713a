"""How much longer messages take with lost ports, simulated at flow level at the job's full size.

A day has thousands of steps, but the worst NIC of a job has lost one of few numbers of ports. A run for each
number that occurs says what all steps take while it lasts. Lost uplinks keep the ratio of bandwidth: with few
of them flows and packets differ by up to 17 % (docs/jobs.md).
"""

import numpy as np

from openmrc import sim
from openmrc.errors import ArgumentError
from openmrc.jobs.draw import Floats
from openmrc.jobs.network import Network, Shape

MESSAGE_BYTES = 64 << 20
"""Of each NIC, to another one."""


class Slowdowns:
    """The factors of a network, each simulated when it is first asked for."""

    def __init__(self, network: Network, shape: Shape, gpus: int) -> None:
        if network.parts is not None:
            raise ArgumentError(f"flows: {network.name}: the links of a fabric of your own are only counted")
        self._planes = shape.planes
        self._topology = {"hosts": gpus, "planes": shape.planes, "tiers": shape.tiers, "radix": shape.radix}
        self._times_us: dict[int, float] = {}

    def __len__(self) -> int:
        """Runs so far."""
        return len(self._times_us)

    def factors(self, ports: Floats) -> Floats:
        """By which factor messages take longer, from the ports that the worst NIC has lost at each time."""
        numbers, places = np.unique(np.rint(ports).astype(int), return_inverse=True)
        return np.array([self.factor(number) for number in numbers.tolist()])[places]

    def factor(self, ports: int) -> float:
        """With so many ports of one NIC lost, but never the last one; at least 1."""
        if ports == 0:
            return 1.0
        return max(1.0, self._time_us(min(ports, self._planes - 1)) / self._time_us(0))

    def _time_us(self, ports: int) -> float:
        if ports not in self._times_us:
            targets = [f"h0:p{plane}" for plane in range(ports)]
            scenario = {
                "engine": "flow",
                "topology": self._topology,
                "traffic": [{"kind": "permutation", "bytes": MESSAGE_BYTES}],
                "faults": [{"kind": "down", "at_us": 0, "targets": targets}] if targets else [],
            }
            last_us = sim.run(sim.Scenario.model_validate(scenario)).summary().last_us
            assert last_us is not None  # Every NIC has a port.
            self._times_us[ports] = last_us
        return self._times_us[ports]
