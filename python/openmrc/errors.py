"""The exceptions of openmrc: one root, and a class for each kind of failure that a program may handle.

A message names the thing, the value, and what is allowed. Where Python has a built-in exception of the same
meaning, the class derives from it too, so that ``except ValueError`` and the like work.
"""


class Error(Exception):
    """Root of all exceptions that openmrc raises on purpose."""

    done: int = 0
    """Of an operation on a list: entries before the one that failed, which stay done."""
    rule: str = ""
    """Of an operation on a controller's profile: the rule that refused it, by name, such as "in_use"."""


class ArgumentError(Error, ValueError):
    """A value that is never allowed: an unknown name, a size out of range, an unknown attribute."""


class StateError(Error):
    """An operation that the object's state does not allow, such as a send on a queue pair in INIT."""


class ClosedError(StateError):
    """The object, or its context, is closed."""


class QueueFullError(Error):
    """A work queue or ring has no room. Poll completions and post again; the call has had no effect."""


class OverrunError(Error):
    """A completion queue received more completions than it can hold; its queue pairs are in ERROR."""


class RegistrationError(Error, BufferError):
    """A buffer that cannot be registered: no buffer, read-only, or not contiguous."""


class DeviceError(Error, OSError):
    """A device, port or socket cannot be opened or used; ``errno`` is that of the system, if there is one."""


class PrivilegeError(Error, PermissionError):
    """The operation changes the host's network, and the process lacks the privilege (CAP_NET_ADMIN)."""


class UnsupportedError(Error, NotImplementedError):
    """Something that a software NIC cannot do; the message says why."""


class DeadlineError(Error, TimeoutError):
    """Something did not happen in the given time; ``completions`` holds those that had arrived."""

    completions: tuple[object, ...] = ()


class ConnectError(Error, ConnectionError):
    """The exchange over TCP failed: no peer, another protocol or version, a malformed message."""


class FormatError(Error, ValueError):
    """Bytes, a file or a specification that cannot be parsed; the message says where and why."""


class MismatchError(Error, ValueError):
    """Ranks of a communicator have called different operations, or the same with other arguments."""


class RankLostError(ConnectError):
    """A rank of a communicator has ended or cannot be reached."""

    rank: int | None = None
    """The rank, if known."""


class AbortedError(StateError):
    """The communicator was aborted, by this rank or another one."""
