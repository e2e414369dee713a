"""How much longer messages take with lost ports, simulated at flow level at the job's full size.

A day has thousands of steps, but the worst NIC of a job has lost one of few numbers of ports. A run for each
number that occurs says what all steps take while it lasts. Lost uplinks keep the ratio of bandwidth: with few
of them flows and packets differ by up to 17 % (docs/jobs.md).
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from openmrc import sim
from openmrc.errors import ArgumentError
from openmrc.fabric import Fabric
from openmrc.jobs.draw import Floats
from openmrc.jobs.network import Network, Shape
from openmrc.sim.scenario.network import topology_of

MESSAGE_BYTES = 64 << 20
"""Of each NIC, to another one."""

Factors = Callable[[Floats], Floats]
"""By which factor, at least 1, messages take longer, from the ports that the worst NIC has lost each time."""


class Flows:
    """Simulates what lost ports cost, once for each number of them on each network, when it is asked for.

    Args:
        fabric: The one whose links and switches a network has, if one has those of a fabric.
    """

    def __init__(self, fabric: Fabric | None = None) -> None:
        self._fabric = fabric
        self._times_us: dict[tuple[str, int], float] = {}

    def __len__(self) -> int:
        """Runs so far."""
        return len(self._times_us)

    def of(self, network: Network, shape: Shape, gpus: int) -> Factors:
        """The factors of a network.

        Args:
            network: The network.
            shape: Its parts that the job uses.
            gpus: NICs.

        Raises:
            ArgumentError: if its links are only counted.
        """
        topology: dict[str, Any]
        if network.parts is None:
            topology = {"hosts": gpus, "planes": shape.planes, "tiers": shape.tiers, "radix": shape.radix}
        elif self._fabric is not None:
            topology = topology_of(self._fabric)
            whole = -(-gpus // shape.nics_per_t0) * shape.nics_per_t0
            topology["hosts"] = min(topology["hosts"], whole)
        else:
            raise ArgumentError(f"flows: {network.name}: the links of a fabric of your own are only counted")

        def factor(ports: int) -> float:
            # The last port is never taken: the job would end.
            lost = min(ports, shape.planes - 1)
            return max(1.0, self._time_us(topology, lost) / self._time_us(topology, 0)) if lost else 1.0

        def factors(ports: Floats) -> Floats:
            numbers, places = np.unique(np.rint(ports).astype(int), return_inverse=True)
            return np.array([factor(number) for number in numbers.tolist()])[places]

        return factors

    def _time_us(self, topology: dict[str, Any], ports: int) -> float:
        known = str(topology), ports
        if known not in self._times_us:
            targets = [f"h0:p{plane}" for plane in range(ports)]
            scenario = {
                "engine": "flow",
                "topology": topology,
                "traffic": [{"kind": "permutation", "bytes": MESSAGE_BYTES}],
                "faults": [{"kind": "down", "at_us": 0, "targets": targets}] if targets else [],
            }
            last_us = sim.run(sim.Scenario.model_validate(scenario)).summary().last_us
            assert last_us is not None  # Every NIC has a port.
            self._times_us[known] = last_us
        return self._times_us[known]
