"""What the two ends of a measurement tell each other after the handshake, over TCP."""

from typing import Annotated, Any, Literal

from pydantic import Field

from openmrc.channel import Message
from openmrc.handshake import Protocol

DEFAULT_PORT = 18515
"""TCP port, that of perftest."""

MAX_QPS = 1024
MAX_SIZE = 1 << 30

Test = Literal["write-bw", "write-lat"]
_Size = Annotated[int, Field(ge=1, le=MAX_SIZE)]


class Wanted(Message):
    """The client's request: what will be measured."""

    test: Test
    qps: Annotated[int, Field(ge=1, le=MAX_QPS)]
    buffer: _Size
    """Bytes of memory to write to."""
    depth: Annotated[int, Field(ge=1, le=32768)]
    """Messages outstanding per queue pair."""


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


class Started(Message):
    """The server is ready for this run: the client may write."""

    type: Literal["started"] = "started"


class Finished(Message):
    """The client's loop has ended."""

    type: Literal["finished"] = "finished"


class Counted(Message):
    """The server's loop, if it had one, has ended as well."""

    type: Literal["counted"] = "counted"
    sent: dict[str, Any] | None = None
    """With ``bidirectional``: what its loop counted."""


class Result(Message):
    """The figures, for the server to show too."""

    type: Literal["result"] = "result"
    result: dict[str, Any]


class Bye(Message):
    """The client is done."""

    type: Literal["bye"] = "bye"


PROTOCOL = Protocol("openmrc-perftest", 1, Run, Started, Finished, Counted, Result, Bye)
"""After the handshake::

    client                                  server
    for each size:
    Run {size, ...}                 ->
                                    <-      Started
    writes                          =>      (<= with ``bidirectional``)
    Finished                        ->
                                    <-      Counted {what it sent}
    Result {figures}                ->
    Bye                             ->
"""
