"""What the two ends of a file transfer tell each other after the handshake, over TCP.

The sender is not trusted: paths are checked where they are used (:mod:`openmrc.transfer.store`).
"""

from typing import Annotated, Literal

from pydantic import Field

from openmrc.channel import Message
from openmrc.handshake import U32, Protocol

DEFAULT_PORT = 18516
"""TCP port of ``openmrc serve``: the one after perftest's."""

IfExists = Literal["refuse", "replace", "update"]
"""What to do about a name that is taken: refuse it, replace it, or leave it if its contents are the same."""


class RingShape(Message):
    """The receiver's ring, in its offer: the one buffer offered, divided into blocks."""

    blocks: Annotated[int, Field(ge=1, le=1 << 16)]
    block_bytes: Annotated[int, Field(ge=4096, le=1 << 30)]


class Entry(Message):
    """A file or an empty directory to be made."""

    path: Annotated[str, Field(min_length=1, max_length=4096)]
    """Where, relative to the receiver's directory, with ``/`` between names."""
    size: Annotated[int, Field(ge=0, lt=1 << 63)] = 0
    mode: Annotated[int, Field(ge=0, le=0o777)] = 0o644
    directory: bool = False


class Manifest(Message):
    """All that the sender wants to send, before any of it is sent."""

    type: Literal["manifest"] = "manifest"
    entries: list[Entry]
    if_exists: IfExists = "refuse"


class Verdict(Message):
    """The receiver's answer to an entry: neither field set means "send it"."""

    error: str | None = None
    digest: str | None = None
    """With ``update``: XXH3-128 of the file of the same size that the receiver has already."""


class Plan(Message):
    """The receiver's verdicts, in the order of the manifest."""

    type: Literal["plan"] = "plan"
    verdicts: list[Verdict]


class End(Message):
    """All bytes of a file have been written. Without a digest: the rest will never be written."""

    type: Literal["end"] = "end"
    index: U32
    digest: str | None = None


class Stored(Message):
    """A file arrived, its digest is right, and it has its name."""

    type: Literal["stored"] = "stored"
    index: U32
    digest: str


class Failed(Message):
    """A file could not be stored, and nothing of it is left."""

    type: Literal["failed"] = "failed"
    index: U32
    reason: str


class Bye(Message):
    """The sender has received all answers."""

    type: Literal["bye"] = "bye"


PROTOCOL = Protocol("openmrc-transfer", 1, Manifest, Plan, End, Stored, Failed, Bye)
"""After the handshake::

    sender                                  receiver
    Manifest {files, if_exists}     ->
                                    <-      Plan {a verdict for each file}    or Refused
    RDMA writes of file 0           =>
                                    <=      credit: number of ring blocks consumed
    End {0, digest}                 ->
                                    <-      Stored {0} or Failed {0, reason}
    ... further files, without waiting for the answers
    Bye                             ->

Every RDMA write carries the file's number as its immediate value. A ``Failed`` may arrive at any time; the
sender then skips the rest of that file, and the receiver ignores what was already sent. A connection that
ends before ``Bye`` undoes every file that was not answered with ``Stored``.
"""
