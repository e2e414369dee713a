"""One rank of :func:`openmrc.collectives.bench.spawn`."""

import json
import os
import signal
import sys
from dataclasses import asdict

from openmrc.collectives.bench.measure import run
from openmrc.collectives.bench.settings import Line, Settings
from openmrc.collectives.bench.spawn import SETTINGS_VARIABLE
from openmrc.collectives.communicator import Communicator
from openmrc.errors import Error

_LONG = 600.0


def main() -> int:
    """Measures as one rank, told by :data:`SETTINGS_VARIABLE`."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    settings = Settings(**json.loads(os.environ[SETTINGS_VARIABLE]))
    try:
        with Communicator.from_environment(timeout=_LONG) as comm:

            def observe(line: Line) -> None:
                if comm.rank == 0:
                    print(json.dumps(asdict(line)), flush=True)

            run(comm, settings, observe)
    except Error as error:
        print(f"rank {os.environ.get('RANK')}: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
