"""What the two ends of a file transfer say to each other over TCP.

See :mod:`openmrc.outofband` for how messages travel. The sender is not trusted: paths are checked where
they are used (:mod:`openmrc.transfer.store`).

    sender                                  receiver
    Hello {version, planes}     ->
                                <-          Offer {queue pair, ring}          or Refused
    Accept {queue pair}         ->
                                <-          Connected {path MTU}              or Refused
    Manifest {files, if_exists} ->
                                <-          Plan {a verdict for each file}    or Refused
    RDMA writes of file 0       =>
                                <=          credit: so many blocks of the ring consumed
    End {0, digest}             ->
                                <-          Stored {0} or Failed {0, reason}
    ... further files, without waiting for the answers
    Bye                         ->

Every RDMA write carries the file's number as its immediate value. A ``Failed`` may come at any time; the
sender then leaves the rest of that file out, and the receiver ignores what was on its way. A connection
that ends before ``Bye`` undoes every file that was not answered with ``Stored``.
"""

from typing import Annotated, Literal

from pydantic import Field

from openmrc.outofband import U32, U64, Message, PathMtu, QueuePairEnd, Refused, messages

VERSION = 1

DEFAULT_PORT = 18516
"""TCP port of ``openmrc serve``: the one after perftest's."""

IfExists = Literal["refuse", "replace", "update"]
"""What to do about a name that is taken: refuse it, replace it, or leave it if its contents are the same."""


class Hello(Message):
    """The sender introduces itself."""

    type: Literal["hello"] = "hello"
    version: int
    planes: Annotated[int, Field(ge=1, le=16)]


class Offer(Message):
    """The receiver's queue pair and the ring its peer may write to."""

    type: Literal["offer"] = "offer"
    end: QueuePairEnd
    addr: U64
    rkey: U32
    blocks: Annotated[int, Field(ge=1, le=1 << 16)]
    block_bytes: Annotated[int, Field(ge=4096, le=1 << 30)]


class Accept(Message):
    """The sender's queue pair."""

    type: Literal["accept"] = "accept"
    end: QueuePairEnd
    path_mtu: PathMtu
    """The most its routes to the receiver's addresses carry."""


class Connected(Message):
    """The receiver is ready for writes."""

    type: Literal["connected"] = "connected"
    path_mtu: PathMtu
    """What both ends use: the smaller of what the routes of the two carry."""


class Entry(Message):
    """A file or an empty directory to be made."""

    path: Annotated[str, Field(min_length=1, max_length=4096)]
    """Where, relative to the receiver's directory, with ``/`` between names."""
    size: Annotated[int, Field(ge=0, lt=1 << 63)] = 0
    mode: Annotated[int, Field(ge=0, le=0o777)] = 0o644
    directory: bool = False


class Manifest(Message):
    """All that the sender has, before any of it is sent."""

    type: Literal["manifest"] = "manifest"
    entries: list[Entry]
    if_exists: IfExists = "refuse"


class Verdict(Message):
    """What the receiver thinks of an entry: neither field set means "send it"."""

    error: str | None = None
    digest: str | None = None
    """With ``update``: XXH3-128 of a file of the same size that is there already."""


class Plan(Message):
    """The receiver's verdicts, in the order of the manifest."""

    type: Literal["plan"] = "plan"
    verdicts: list[Verdict]


class End(Message):
    """All bytes of a file have been written; or, without a digest, they never will be."""

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
    """The sender has had all answers."""

    type: Literal["bye"] = "bye"


MESSAGES = messages(Hello, Offer, Accept, Connected, Refused, Manifest, Plan, End, Stored, Failed, Bye)
