"""Software MRC (Multipath Reliable Connection): RDMA writes sprayed over every path of a multi-plane network.

Every exception this package raises on purpose derives from :class:`openmrc.Error`.
"""

import importlib
from types import ModuleType

from openmrc._core import __version__
from openmrc.errors import Error

__all__ = ["Error", "__version__"]

_PACKAGES = frozenset(
    {
        "collectives",
        "connect",
        "controller",
        "fabric",
        "lab",
        "localise",
        "observe",
        "sim",
        "switchconf",
        "testing",
        "transfer",
        "verbs",
        "wire",
    }
)


def __getattr__(name: str) -> ModuleType:
    """Imports a package of openmrc when it is first used: ``import openmrc; openmrc.sim.run(...)``."""
    if name in _PACKAGES:
        return importlib.import_module(f"openmrc.{name}")
    raise AttributeError(f"module 'openmrc' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_PACKAGES])
