"""One rank of :func:`openmrc.collectives.bench.spawn`."""

import json
import os
import sys
from dataclasses import asdict

from openmrc.collectives.bench.measure import run
from openmrc.collectives.bench.settings import Line, Settings
from openmrc.collectives.bench.spawn import SETTINGS_VARIABLE, as_rank
from openmrc.collectives.communicator import Communicator


def main() -> int:
    """Measures as one rank, with the settings in :data:`SETTINGS_VARIABLE`."""
    settings = Settings(**json.loads(os.environ[SETTINGS_VARIABLE]))

    def measure(comm: Communicator) -> None:
        def observe(line: Line) -> None:
            if comm.rank == 0:
                print(json.dumps(asdict(line)), flush=True)

        run(comm, settings, observe)

    return as_rank(measure)


if __name__ == "__main__":
    sys.exit(main())
