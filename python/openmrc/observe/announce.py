"""Finds the agent of the host, so that a device is seen by one of another user or outside its container.

The agent's socket is named in ``OPENMRC_AGENT`` or is :data:`DEFAULT`. A device works the same without it.
"""

import os
import socket
import struct
from pathlib import Path

ENVIRONMENT = "OPENMRC_AGENT"
"""Variable with the path of the agent's socket; ``0``: none."""
DEFAULT = Path("/run/openmrc/agent.sock")
AGAIN_S = 5.0
"""Between two attempts to reach an agent that is away."""
VERSION = 1
"""Of what is said on the connection."""
_CREDENTIALS = struct.Struct("3i")


def agent_socket() -> Path | None:
    """Where the agent listens, if there is one; ``None``: nobody wants to announce anything."""
    named = os.environ.get(ENVIRONMENT)
    if named is None:
        return DEFAULT
    return None if named in ("", "0") else Path(named)


def is_wanted() -> bool:
    """Whether devices are announced though nobody has asked to publish them."""
    return os.environ.get(ENVIRONMENT, "0") not in ("", "0") or (
        ENVIRONMENT not in os.environ and DEFAULT.exists()
    )


def credentials(connection: socket.socket) -> tuple[int, int]:
    """Process and user at the other end, by the kernel's word."""
    pid, uid, _ = _CREDENTIALS.unpack(
        connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    )
    return pid, uid


def connected(path: Path) -> socket.socket | None:
    """A connection to the agent that never blocks; ``None``: there is none that may know of the device.

    Who reads a device may also deny its paths, so only root and the own user are let in.
    """
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    try:
        connection.connect(os.fspath(path))
        if credentials(connection)[1] in (0, os.getuid()):
            return connection
    except (OSError, ValueError):
        pass  # Nobody listens, its queue is full, or the variable is no path of a socket.
    connection.close()
    return None
