"""The exceptions of openmrc: one root, a branch for each thing a program may want to do about a failure.

A message names the thing, the value, and what would be right. Where Python has a built-in exception with the
same meaning the branch derives from it too, so that ``except ValueError`` and its kind work as anywhere else.
"""


class Error(Exception):
    """Root of every exception openmrc raises on purpose."""


class ArgumentError(Error, ValueError):
    """A value that can never be right: an unknown name, a size out of range, no such attribute."""


class StateError(Error):
    """An operation the object's state does not allow now, such as a send on a QP in INIT."""


class ClosedError(StateError):
    """The object was closed, or the context it belongs to."""


class QueueFullError(Error):
    """A work queue or ring has no room. Poll completions, then post again; nothing of the call was lost."""


class OverrunError(Error):
    """A completion queue received more completions than it holds; the QPs that use it are in ERROR."""


class RegistrationError(Error, BufferError):
    """A buffer that cannot be registered: no buffer at all, read-only, or not contiguous."""


class DeviceError(Error, OSError):
    """A device, port or socket cannot be opened or used; ``errno`` is the system's where it gave one."""


class PrivilegeError(Error, PermissionError):
    """The operation touches the host's network and the process lacks the privilege (CAP_NET_ADMIN)."""


class UnsupportedError(Error, NotImplementedError):
    """What this NIC, being software over UDP sockets, cannot do; the message says why."""


class DeadlineError(Error, TimeoutError):
    """Something did not happen in the time given; ``completions`` holds what had come until then."""

    completions: tuple[object, ...] = ()


class ConnectError(Error, ConnectionError):
    """The out-of-band exchange failed: no peer, another protocol version, an answer without sense."""


class FormatError(Error, ValueError):
    """Bytes, a file or a specification that cannot be read; the message says where and what was expected."""
