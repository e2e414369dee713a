"""Dask and Ray as joblib backends: connecting to a cluster, or starting one on this machine."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from openmrc.errors import ArgumentError
from openmrc.sim.results import _import

LOCAL = "local"


@contextmanager
def connected(*, dask: str | None = None, ray: str | None = None) -> Iterator[str | None]:
    """A connection to a cluster for the time of the block; gives the joblib backend, none without a cluster.

    Args:
        dask: Address of a Dask scheduler, or ``local``.
        ray: Address of a Ray cluster, or ``local``.

    Raises:
        Error: if what it needs is not installed.
        ArgumentError: if both are asked for.
    """
    if dask is not None and ray is not None:
        raise ArgumentError("either --dask or --ray, not both")
    if dask is not None:
        distributed = _import("distributed", "--dask", "'openmrc[dask]'")
        arguments: dict[str, Any] = {"address": dask}
        if dask == LOCAL:
            arguments = {"processes": True, "dashboard_address": None}
        with distributed.Client(**arguments):
            yield "dask"
    elif ray is not None:
        module = _import("ray", "--ray", "'openmrc[ray]'")
        register = _import("ray.util.joblib", "--ray", "'openmrc[ray]'").register_ray
        arguments = {"include_dashboard": False} if ray == LOCAL else {"address": ray}
        module.init(log_to_driver=False, **arguments)
        try:
            register()
            yield "ray"
        finally:
            module.shutdown()
    else:
        yield None
