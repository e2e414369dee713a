"""What can go wrong on a control connection."""

from openmrc.errors import ConnectError


class LostError(ConnectError):
    """The other end has gone, or does nothing."""


class MalformedError(ConnectError):
    """What the other end sent is no message of this protocol."""


class GreetingError(ConnectError):
    """The other end is no peer: no greeting, another protocol or version, or another token."""


class ExhaustedError(ConnectError):
    """The memory that an address, or all peers together, may use here is in use."""
