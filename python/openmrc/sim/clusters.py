"""One function called many times, over the cores of this machine or on a Dask or Ray cluster."""

import logging
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, redirect_stdout
from itertools import islice
from typing import Any

from openmrc.errors import ArgumentError
from openmrc.extras import import_optional

LOCAL = "local"

WORKER_LOST = ("TerminatedWorkerError", "KilledWorker", "WorkerCrashedError", "OutOfMemoryError")
"""What loky, Dask and Ray raise when a worker is killed. None of them need be installed."""


def call(
    function: Callable[..., Any], arguments: Iterable[tuple[Any, ...]], *, jobs: int, backend: str | None
) -> Iterator[Any]:
    """Calls the function with each tuple of arguments; yields what it returns, in the order of completion.

    Args:
        function: A function of a module that the workers have installed.
        arguments: Taken as workers become free, not all at once.
        jobs: Processes at once on this machine; -1 for one on each core. Ignored on a cluster.
        backend: What :func:`connected` yields.
    """
    if backend == "ray":
        yield from _on_ray(function, arguments)
        return
    joblib = import_optional("joblib", "a sweep", "joblib")
    with joblib.parallel_config(backend=backend or "loky", n_jobs=jobs):
        parallel = joblib.Parallel(return_as="generator_unordered", pre_dispatch="2*n_jobs")
        yield from parallel(joblib.delayed(function)(*each) for each in arguments)


def _on_ray(function: Callable[..., Any], arguments: Iterable[tuple[Any, ...]]) -> Iterator[Any]:
    # Without joblib, whose Ray backend returns no result before all have arrived: an interrupted sweep would
    # keep nothing.
    ray = import_optional("ray", "--ray", "openmrc[ray]")
    task = ray.remote(num_cpus=1)(function)
    left = iter(arguments)
    # Enough that no worker waits, and no more, because submitted scenarios are in memory.
    at_once = 2 * max(1, int(ray.cluster_resources().get("CPU", 1)))
    waiting = [task.remote(*each) for each in islice(left, at_once)]
    while waiting:
        done, waiting = ray.wait(waiting)
        waiting += [task.remote(*each) for each in islice(left, len(done))]
        yield from ray.get(done)


@contextmanager
def connected(*, dask: str | None = None, ray: str | None = None) -> Iterator[str | None]:
    """A connection to a cluster for the duration of the block; yields what :func:`call` takes as backend.

    Args:
        dask: Address of a Dask scheduler, or ``local``.
        ray: Address of a Ray cluster, or ``local``.

    Raises:
        Error: if the cluster's package is not installed.
        ArgumentError: if both are given, or there is no cluster at the address.
    """
    if dask is not None and ray is not None:
        raise ArgumentError("either --dask or --ray, not both")
    if dask is not None:
        distributed = import_optional("distributed", "--dask", "openmrc[dask]")
        arguments: dict[str, Any] = {"address": dask}
        if dask == LOCAL:
            arguments = {"processes": True, "dashboard_address": None, "silence_logs": logging.ERROR}
        with _connection_errors("--dask", dask), _interrupts_ignored():
            client = distributed.Client(**arguments)
        with client:
            yield "dask"
    elif ray is not None:
        module = import_optional("ray", "--ray", "openmrc[ray]")
        # The output of a sweep has no place for Ray's log.
        logging.getLogger("ray").setLevel(logging.ERROR)
        options: dict[str, Any] = {"include_dashboard": False} if ray == LOCAL else {"address": ray}
        with _connection_errors("--ray", ray):
            module.init(log_to_driver=False, logging_level=logging.ERROR, **options)
        try:
            # Ray reports lost workers on standard output, which is for the sweep's own results.
            with redirect_stdout(sys.stderr):
                yield "ray"
        finally:
            module.shutdown()
    else:
        yield None


@contextmanager
def _interrupts_ignored() -> Iterator[None]:
    """Processes started meanwhile ignore Ctrl-C: this process handles it and ends them in order."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def _connection_errors(option: str, address: str) -> Iterator[None]:
    """Turns any error of a client without a cluster into one line."""
    try:
        yield
    except Exception as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise ArgumentError(f"{option} {address}: no cluster there: {reason}") from None
