"""Both ends on this machine: a server in a process of its own, each end on a processor of its own."""

import contextlib
import multiprocessing
import os
import signal
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection

from openmrc.errors import ArgumentError, ConnectError, Error
from openmrc.perftest.client import measuring
from openmrc.perftest.results import Bandwidth, Latency
from openmrc.perftest.server import Server
from openmrc.perftest.settings import Settings

_START = 30.0


def pin(cpu: int | None) -> None:
    """Keeps this process, and all threads it will have, on one processor, as ``taskset -c`` does.

    Raises:
        ArgumentError: if there is no such processor for this process.
    """
    if cpu is None:
        return
    allowed = os.sched_getaffinity(0)
    if cpu not in allowed:
        raise ArgumentError(f"processor {cpu} is not one of this process's: {sorted(allowed)}")
    os.sched_setaffinity(0, {cpu})


def choose_cpus(wanted: Sequence[int]) -> tuple[int | None, int | None]:
    """Processors of client and server: those asked for, else two of this process's; none if it has one."""
    if len(wanted) > 2:
        raise ArgumentError(f"there are two ends, and {len(wanted)} processors were given")
    if wanted:
        return wanted[0], wanted[-1]
    allowed = sorted(os.sched_getaffinity(0))
    return (allowed[0], allowed[1]) if len(allowed) > 1 else (None, None)


@contextlib.contextmanager
def measuring_here(settings: Settings, cpus: Sequence[int] = ()) -> "Iterator[Iterator[Bandwidth | Latency]]":
    """Starts a server and connects to it; the results are as :func:`openmrc.perftest.client.measuring` gives.

    Raises:
        ArgumentError: for a processor that is not there.
        ConnectError, DeviceError: as :func:`openmrc.perftest.client.measuring`.
    """
    client_cpu, server_cpu = choose_cpus(cpus)
    with serving(settings, server_cpu) as port:
        pin(client_cpu)
        with measuring(settings, "127.0.0.1", port) as results:
            yield results


@contextlib.contextmanager
def serving(settings: Settings, cpu: int | None) -> Iterator[int]:
    """A server for one client, in another process, while the block runs; gives its port."""
    spawn = multiprocessing.get_context("spawn")
    ours, theirs = spawn.Pipe()
    server = spawn.Process(target=_serve, args=(settings, cpu, theirs), daemon=True)
    # Ctrl-C reaches the whole foreground: the client hears it and tells the server by leaving.
    heard = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        server.start()
    finally:
        signal.signal(signal.SIGINT, heard)
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
