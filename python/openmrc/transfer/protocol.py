"""The messages between the two ends of a file transfer after the handshake, over TCP.

The sender is not trusted: paths are checked where they are used (:mod:`openmrc.transfer.store`).
"""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from openmrc.control import Message
from openmrc.handshake import U32, Protocol

DEFAULT_PORT = 18516
"""TCP port of ``openmrc serve``: the one after perftest's."""

IfExists = Literal["refuse", "replace", "update"]
"""What to do about a name that is taken: refuse it, replace it, or leave it if its contents are the same."""


IDLE_TIMEOUT = 60.0
"""Seconds without data and without a message after which the other end is given up."""

BUSY_INTERVAL = 5.0
"""Seconds between two ``Busy``."""

BUSY_LIMIT = 3600.0
"""Seconds for which an end may say nothing but ``Busy``: enough to read 1 TB at 300 MB/s."""

MAX_RING = 64 << 20
"""Bytes of the largest ring. A sender has memory of the same size, so a receiver must not choose freely."""

MAX_MESSAGE = 4 << 20
"""Bytes of the longest message after the handshake."""

PART_ENTRIES = 1024
PART_BYTES = 128 << 10
"""Entries, and about how many bytes of them, that a sender puts into one part of its manifest."""


class RingShape(Message):
    """The receiver's ring, in its offer: the one buffer offered, divided into blocks."""

    blocks: Annotated[int, Field(ge=1, le=1 << 14)]
    block_bytes: Annotated[int, Field(ge=4096, le=MAX_RING)]

    @model_validator(mode="after")
    def _bound(self) -> Self:
        if self.blocks * self.block_bytes > MAX_RING:
            raise ValueError(
                f"{self.blocks} blocks of {self.block_bytes} bytes: at most {MAX_RING} bytes together"
            )
        return self


class Entry(Message):
    """A file or an empty directory to be made."""

    path: Annotated[str, Field(min_length=1, max_length=4096)]
    """Where, relative to the receiver's directory, with ``/`` between names."""
    size: Annotated[int, Field(ge=0, lt=1 << 63)] = 0
    mode: Annotated[int, Field(ge=0, le=0o777)] = 0o644
    directory: bool = False


class Manifest(Message):
    """A part of what the sender wants to send. All parts come before any of it is sent."""

    type: Literal["manifest"] = "manifest"
    entries: Annotated[list[Entry], Field(max_length=PART_ENTRIES)]
    if_exists: IfExists = "refuse"
    """The same in every part."""
    last: bool = True
    """Whether this is the last part."""


class Verdict(Message):
    """The receiver's answer to an entry: no field set means "send it"."""

    error: Annotated[str, Field(max_length=4096)] | None = None
    digest: Annotated[str, Field(max_length=64)] | None = None
    """With ``update``: XXH3-128 of the file of the same size that the receiver has already."""
    keep: bool = False
    """The file that the receiver has may not be replaced: send nothing if the digest differs."""


class Plan(Message):
    """The receiver's verdicts on a part of the manifest, in its order."""

    type: Literal["plan"] = "plan"
    verdicts: list[Verdict]


class End(Message):
    """All bytes of a file have been written. Without a digest: the rest will never be written."""

    type: Literal["end"] = "end"
    index: U32
    digest: Annotated[str, Field(max_length=64)] | None = None


class Stored(Message):
    """A file arrived, its digest is right, and it has its name."""

    type: Literal["stored"] = "stored"
    index: U32
    digest: Annotated[str, Field(max_length=64)]


class Failed(Message):
    """A file could not be stored, and nothing of it is left."""

    type: Literal["failed"] = "failed"
    index: U32
    reason: Annotated[str, Field(max_length=4096)]


class Busy(Message):
    """Nothing is wrong: the end that says this reads a large file, or writes one to the disk."""

    type: Literal["busy"] = "busy"


class Bye(Message):
    """The sender has received all answers."""

    type: Literal["bye"] = "bye"


PROTOCOL = Protocol("openmrc-transfer", 2, Manifest, Plan, End, Stored, Failed, Busy, Bye)
"""After the handshake::

    sender                                  receiver
    Manifest {files, if_exists}     ->
                                    <-      Plan {a verdict for each file}    or Refused
    ... further parts of the manifest, each after the answer to the one before
    RDMA writes of file 0           =>
                                    <=      credit: number of ring blocks consumed
    End {0, digest}                 ->
                                    <-      Stored {0} or Failed {0, reason}
    ... further files, without waiting for the answers
    Bye                             ->

Every RDMA write carries the file's number as its immediate value. A ``Failed`` may arrive at any time; the
sender then skips the rest of that file, and the receiver ignores what was already sent. A connection that
ends before ``Bye`` undoes every file that was not answered with ``Stored``. An end that neither moves data
nor says anything is given up after a minute; ``Busy`` says that it is still there.
"""
