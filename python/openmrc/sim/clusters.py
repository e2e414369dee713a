"""One function called many times, over the cores of this machine or on a Dask or Ray cluster.

joblib does it on this machine and on Dask. Its Ray backend hands out results only when all are there, so that
nothing could be kept of a sweep that is broken off: there Ray itself is called.
"""

import logging
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, redirect_stdout
from itertools import islice
from typing import Any

from openmrc.errors import ArgumentError
from openmrc.sim.results import _import

LOCAL = "local"

WORKER_LOST = ("TerminatedWorkerError", "KilledWorker", "WorkerCrashedError", "OutOfMemoryError")
"""What loky, Dask and Ray raise when a worker is killed. None of them need be installed."""


def call(
    function: Callable[..., Any], arguments: Iterable[tuple[Any, ...]], *, jobs: int, backend: str | None
) -> Iterator[Any]:
    """What the function returns for each tuple of arguments, in the order in which it comes.

    Args:
        function: A function of a module, which the workers have too.
        arguments: Taken as workers become free, not all at once.
        jobs: Processes at once on this machine; -1 for one a core. A cluster has as many as it has.
        backend: As :func:`connected` gives it.
    """
    if backend == "ray":
        yield from _on_ray(function, arguments)
        return
    joblib = _import("joblib", "a sweep", "joblib")
    with joblib.parallel_config(backend=backend or "loky", n_jobs=jobs):
        parallel = joblib.Parallel(return_as="generator_unordered", pre_dispatch="2*n_jobs")
        yield from parallel(joblib.delayed(function)(*each) for each in arguments)


def _on_ray(function: Callable[..., Any], arguments: Iterable[tuple[Any, ...]]) -> Iterator[Any]:
    ray = _import("ray", "--ray", "'openmrc[ray]'")
    task = ray.remote(num_cpus=1)(function)
    left = iter(arguments)
    # Enough that no worker waits, and no more: the scenarios under way are in memory.
    at_once = 2 * max(1, int(ray.cluster_resources().get("CPU", 1)))
    waiting = [task.remote(*each) for each in islice(left, at_once)]
    while waiting:
        done, waiting = ray.wait(waiting)
        waiting += [task.remote(*each) for each in islice(left, len(done))]
        yield from ray.get(done)


@contextmanager
def connected(*, dask: str | None = None, ray: str | None = None) -> Iterator[str | None]:
    """A connection to a cluster for the time of the block; gives what :func:`call` takes as backend.

    Args:
        dask: Address of a Dask scheduler, or ``local``.
        ray: Address of a Ray cluster, or ``local``.

    Raises:
        Error: if what it needs is not installed.
        ArgumentError: if both are asked for, or there is no cluster at the address.
    """
    if dask is not None and ray is not None:
        raise ArgumentError("either --dask or --ray, not both")
    if dask is not None:
        distributed = _import("distributed", "--dask", "'openmrc[dask]'")
        arguments: dict[str, Any] = {"address": dask}
        if dask == LOCAL:
            arguments = {"processes": True, "dashboard_address": None, "silence_logs": logging.ERROR}
        with _reached("--dask", dask), _deaf_to_interrupts():
            client = distributed.Client(**arguments)
        with client:
            yield "dask"
    elif ray is not None:
        module = _import("ray", "--ray", "'openmrc[ray]'")
        # Ray's remarks on itself are not what a sweep prints.
        logging.getLogger("ray").setLevel(logging.ERROR)
        options: dict[str, Any] = {"include_dashboard": False} if ray == LOCAL else {"address": ray}
        with _reached("--ray", ray):
            module.init(log_to_driver=False, logging_level=logging.ERROR, **options)
        try:
            # Ray tells of lost workers on standard output, where a sweep's own results go.
            with redirect_stdout(sys.stderr):
                yield "ray"
        finally:
            module.shutdown()
    else:
        yield None


@contextmanager
def _deaf_to_interrupts() -> Iterator[None]:
    """Processes started meanwhile do not hear Ctrl-C: this one answers it, and ends them in good order."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def _reached(option: str, address: str) -> Iterator[None]:
    """Whatever a client raises because there is no cluster, in one line."""
    try:
        yield
    except Exception as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise ArgumentError(f"{option} {address}: no cluster there: {reason}") from None
