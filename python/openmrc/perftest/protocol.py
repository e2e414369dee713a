"""The messages between the two ends of a measurement after the handshake, over TCP."""

from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from openmrc.control import Message
from openmrc.handshake import Protocol

DEFAULT_PORT = 18515
"""TCP port, that of perftest."""

IDLE_TIMEOUT = 30.0
"""Seconds without new data and without a message after which the other end is given up."""

MAX_TIME = 3600.0
"""Seconds for which a server serves one client, and a client runs a fixed number of messages."""

MAX_QPS = 1024
MAX_SIZE = 1 << 30
MAX_ITERATIONS = 1 << 40
MIN_INTERVAL = 1e-5
"""Seconds of the shortest interval in which bytes are counted."""

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


class Measurement(Message):
    """One measurement; fields as in perftest."""

    type: Literal["run"] = "run"
    size: _Size
    iterations: Annotated[int, Field(ge=1, le=MAX_ITERATIONS)] | None = None
    duration: Annotated[float, Field(gt=0, le=1e9)] | None = None
    """Seconds."""
    warmup: Annotated[int, Field(ge=0, le=MAX_ITERATIONS)] = 0
    bidirectional: bool = False
    post_list: Annotated[int, Field(ge=1, le=32768)] = 1
    cq_mod: Annotated[int, Field(ge=1, le=32768)] = 1
    inline: bool = False
    interval: Annotated[float, Field(ge=MIN_INTERVAL)] = 0.001
    """Seconds of an interval in which bytes are counted."""

    @model_validator(mode="after")
    def _check_end(self) -> Self:
        if (self.iterations is None) == (self.duration is None):
            raise ValueError("a run has a number of iterations or a duration")
        return self


class Started(Message):
    """The server is ready for this run: the client may write."""

    type: Literal["started"] = "started"


class Stop(Message):
    """The client was interrupted: the server's loop ends early, and the results so far count."""

    type: Literal["stop"] = "stop"


class Finished(Message):
    """The client's loop has ended."""

    type: Literal["finished"] = "finished"


_Count = Annotated[int, Field(ge=0)]


class Loop(Message):
    """What a loop counted."""

    messages: _Count
    bytes: _Count
    elapsed_ns: _Count
    start_ns: _Count
    bucket_ns: Annotated[int, Field(ge=1)]
    buckets: list[_Count]
    """Bytes completed by interval."""
    posted: list[_Count]
    """Bytes posted by interval."""


class Counted(Message):
    """The server's loop, if it had one, has ended as well."""

    type: Literal["counted"] = "counted"
    sent: Loop | None = None
    """With ``bidirectional``: what its loop counted."""


class Result(Message):
    """The figures, for the server to show too."""

    type: Literal["result"] = "result"
    result: dict[str, Any]


class Bye(Message):
    """The client is done."""

    type: Literal["bye"] = "bye"


PROTOCOL = Protocol("openmrc-perftest", 2, Measurement, Started, Stop, Finished, Counted, Result, Bye)
"""After the handshake::

    client                                  server
    for each size:
    Run {size, ...}                 ->
                                    <-      Started
    writes                          =>      (<= with ``bidirectional``)
    [Stop]                          ->      after Ctrl-C
    Finished                        ->
                                    <-      Counted {what it sent}
    Result {figures}                ->
    Bye                             ->
"""
