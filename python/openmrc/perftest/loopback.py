"""Both ends on this machine: the server in a second process, each end on its own processor."""

import contextlib
import multiprocessing
import os
import signal
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection

from openmrc.errors import ArgumentError, ConnectError, Error
from openmrc.perftest.client import Measuring, measuring
from openmrc.perftest.server import Server
from openmrc.perftest.settings import Settings

_START = 30.0


def pin(cpu: int | None) -> None:
    """Binds this process and all its future threads to one processor, as ``taskset -c`` does.

    Raises:
        ArgumentError: if there is no such processor for this process.
    """
    if cpu is None:
        return
    _check(cpu)
    os.sched_setaffinity(0, {cpu})


def _check(cpu: int) -> None:
    allowed = os.sched_getaffinity(0)
    if cpu not in allowed:
        raise ArgumentError(f"processor {cpu} is not one of this process's: {sorted(allowed)}")


def choose_cpus(wanted: Sequence[int]) -> tuple[int | None, int | None]:
    """Processors of client and server: those given, else the first two allowed; none if only one is."""
    if len(wanted) > 2:
        raise ArgumentError(f"--cpu takes at most two processors, one for each end, not {len(wanted)}")
    for cpu in wanted:  # Here, because the other process could only say that it did not start.
        _check(cpu)
    if wanted:
        return wanted[0], wanted[-1]
    allowed = sorted(os.sched_getaffinity(0))
    return (allowed[0], allowed[1]) if len(allowed) > 1 else (None, None)


@contextlib.contextmanager
def measuring_here(settings: Settings, cpus: Sequence[int] = ()) -> Iterator[Measuring]:
    """Starts a server in another process and connects to it.

    Raises:
        ArgumentError: for a processor that is not there, or in SRv6 mode.
        ConnectError, DeviceError: as :func:`openmrc.perftest.client.measuring`.
    """
    if settings.planes.routes is not None:
        raise ArgumentError("--loopback has both ends on one host: --srv6 needs two hosts")
    client_cpu, server_cpu = choose_cpus(cpus)
    with serving(settings, server_cpu) as port:
        pin(client_cpu)
        with measuring(settings, "127.0.0.1", port) as connected:
            yield connected


@contextlib.contextmanager
def serving(settings: Settings, cpu: int | None) -> Iterator[int]:
    """Runs a server for one client in another process; yields its port."""
    spawn = multiprocessing.get_context("spawn")
    ours, theirs = spawn.Pipe()
    server = spawn.Process(target=_serve, args=(settings, cpu, theirs), daemon=True)
    # Ctrl-C reaches both processes. The client handles it; the server notices that the client leaves.
    handler = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        server.start()
    finally:
        signal.signal(signal.SIGINT, handler)
    theirs.close()
    try:
        if not ours.poll(_START):
            raise ConnectError("the server process did not start")
        try:
            port = ours.recv()
        except EOFError:
            raise ConnectError("the server process could not start") from None
        if isinstance(port, str):
            raise ConnectError(f"the server process could not start: {port}")
        yield int(port)
        server.join(_START)
    finally:
        if server.is_alive():
            server.terminate()
        server.join()
        ours.close()


def _serve(settings: Settings, cpu: int | None, parent: Connection) -> None:
    try:
        pin(cpu)
        server = Server(settings, "127.0.0.1", 0)
    except Error as error:
        parent.send(str(error))
        return
    parent.send(server.port)
    with contextlib.suppress(Error):  # The client says what went wrong.
        server.serve()
