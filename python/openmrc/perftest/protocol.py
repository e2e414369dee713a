"""What the two ends of a measurement say to each other over TCP.

client                                            server
Hello {test, queue pairs, sizes}      ->
                                      <-          Offer {queue pairs, buffer}     or Refused
Accept {queue pairs, buffer}          ->
                                      <-          Connected {path MTU}            or Refused
for each size:
Run {size, ...}                       ->
                                      <-          Going: it may be written to
writes                                =>  (<=)
Finished                              ->
                                      <-          Ran {what it sent}
Result {figures}                      ->
Bye                                   ->
"""

from typing import Annotated, Any, Literal

from pydantic import Field

from openmrc.outofband import U32, U64, Message, PathMtu, QueuePairEnd, Refused, messages

VERSION = 1

DEFAULT_PORT = 18515
"""perftest's."""

MAX_QPS = 1024
MAX_SIZE = 1 << 30

Test = Literal["write-bw", "write-lat"]
_Ends = Annotated[list[QueuePairEnd], Field(min_length=1, max_length=MAX_QPS)]
_Size = Annotated[int, Field(ge=1, le=MAX_SIZE)]


class Hello(Message):
    """The client says what will be measured."""

    type: Literal["hello"] = "hello"
    version: int
    test: Test
    planes: Annotated[int, Field(ge=1, le=16)]
    qps: Annotated[int, Field(ge=1, le=MAX_QPS)]
    buffer: _Size
    """Bytes of memory to write to."""
    depth: Annotated[int, Field(ge=1, le=32768)]
    """Messages outstanding per queue pair."""


class Buffer(Message):
    """Memory to write to."""

    addr: U64
    length: U64
    rkey: U32


class Offer(Message):
    """The server's queue pairs and memory."""

    type: Literal["offer"] = "offer"
    ends: _Ends
    buffer: Buffer


class Accept(Message):
    """The client's."""

    type: Literal["accept"] = "accept"
    ends: _Ends
    buffer: Buffer
    path_mtu: PathMtu
    """The most its routes to the server's addresses carry."""


class Connected(Message):
    """The server's queue pairs are ready."""

    type: Literal["connected"] = "connected"
    path_mtu: PathMtu
    """What both ends use."""


class Run(Message):
    """One measurement; fields as in perftest."""

    type: Literal["run"] = "run"
    size: _Size
    iterations: Annotated[int, Field(ge=1)] | None = None
    duration: Annotated[float, Field(gt=0)] | None = None
    """Seconds."""
    warmup: Annotated[int, Field(ge=0)] = 0
    bidirectional: bool = False
    post_list: Annotated[int, Field(ge=1, le=32768)] = 1
    cq_mod: Annotated[int, Field(ge=1, le=32768)] = 1
    inline: bool = False
    interval: Annotated[float, Field(gt=0)] = 0.001
    """Seconds of an interval in which bytes are counted."""


class Going(Message):
    """The server is ready for this run."""

    type: Literal["going"] = "going"


class Finished(Message):
    """The client's loop has ended."""

    type: Literal["finished"] = "finished"


class Ran(Message):
    """The server's loop, if it had one, has ended as well."""

    type: Literal["ran"] = "ran"
    sent: dict[str, Any] | None = None
    """With ``bidirectional``: what its loop counted."""


class Result(Message):
    """The figures, for the server to show too."""

    type: Literal["result"] = "result"
    result: dict[str, Any]


class Bye(Message):
    """The client has all it wanted."""

    type: Literal["bye"] = "bye"


MESSAGES = messages(Hello, Offer, Accept, Connected, Refused, Run, Going, Finished, Ran, Result, Bye)
