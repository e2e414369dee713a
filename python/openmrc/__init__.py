"""Software MRC (Multipath Reliable Connection): RDMA writes sprayed over every path of a multi-plane network.

Every exception this package raises on purpose derives from :class:`openmrc.Error`.
"""

from openmrc._core import __version__
from openmrc.errors import Error

__all__ = ["Error", "__version__"]
