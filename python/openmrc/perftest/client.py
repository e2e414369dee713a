"""The measuring end."""

import contextlib
from collections.abc import Iterator
from typing import Any

from openmrc import handshake
from openmrc.channel import Channel
from openmrc.errors import ConnectError
from openmrc.perftest import protocol as p
from openmrc.perftest.endpoint import Endpoint, Watch
from openmrc.perftest.results import Bandwidth, Latency, bandwidth, latency
from openmrc.perftest.settings import Settings


class Measuring:
    """A connection to a server. Iterating over it yields a result for each size, measured at that moment."""

    def __init__(self, settings: Settings, endpoint: Endpoint, channel: Channel[Any]) -> None:
        self._settings = settings
        self._endpoint = endpoint
        self._channel = channel
        self.paths = len(endpoint.qps[0].ev_states())
        """Paths that each queue pair may use, in rotation and in reserve."""

    def __iter__(self) -> "Iterator[Bandwidth | Latency]":
        for run in self._settings.runs():
            result = _run(self._settings, run, self._endpoint, self._channel)
            self._channel.send(p.Result(result=result.as_dict()))
            yield result
        self._channel.send(p.Bye())


@contextlib.contextmanager
def measuring(settings: Settings, host: str, port: int = p.DEFAULT_PORT) -> Iterator[Measuring]:
    """Connects to a server.

    Raises:
        ConnectError: if there is no server, it refuses, or it goes away.
        DeviceError: if an address is not of this host.
    """
    with contextlib.ExitStack() as stack:
        hint = f"start `openmrc {settings.test}{'' if port == p.DEFAULT_PORT else f' -p {port}'}` there first"
        channel = stack.enter_context(handshake.dial(p.PROTOCOL, host, port, hint, token=settings.token))
        context = settings.planes.open(channel.local_address(), channel.remote_address())
        endpoint = stack.enter_context(
            Endpoint(
                context,
                qps=settings.qps,
                depth=settings.depth,
                buffer=settings.buffer,
                impairments=settings.impairments,
            )
        )
        _connect(settings, endpoint, channel)
        yield Measuring(settings, endpoint, channel)


def _connect(settings: Settings, endpoint: Endpoint, channel: Channel[Any]) -> None:
    addresses = endpoint.context.addresses
    wanted = p.Wanted(test=settings.test, qps=settings.qps, buffer=settings.buffer, depth=settings.depth)
    with handshake.calling(
        channel,
        endpoint.context,
        path_mtu=settings.mtu,
        data=wanted.model_dump(mode="json"),
        addresses=settings.addresses,
    ) as calling:
        offer = calling.offer
        if len(offer.addresses) != len(addresses):
            raise ConnectError(
                f"this end has {len(addresses)} planes and {channel.peer} {len(offer.addresses)}:"
                " say --addresses at both"
            )
        largest = settings.planes.path_mtu(addresses, offer.addresses, largest=offer.path_mtu)
        if settings.mtu is not None and largest < settings.mtu:
            raise ConnectError(
                f"the routes to {channel.peer} carry {largest} bytes of payload, not {settings.mtu}"
            )
        endpoint.aim(offer)
        calling.accept(endpoint.end(largest))


def _run(settings: Settings, run: p.Run, endpoint: Endpoint, channel: Channel[Any]) -> Bandwidth | Latency:
    endpoint.prepare()
    channel.send(run)
    channel.expect(p.Started)
    limit = settings.max_time if run.duration is None else run.duration + p.IDLE_TIMEOUT
    watch = Watch(endpoint, channel, limit)
    if settings.test == "write-lat":
        figures = latency(run.size, endpoint.latency(run, watch, client=True))
        channel.send(p.Finished())
        watch.expect(p.Counted)
        return figures
    before = endpoint.counters()
    sent = [endpoint.bandwidth(run, watch)]
    counters = {name: value - before[name] for name, value in endpoint.counters().items()}
    channel.send(p.Finished())
    counted = watch.expect(p.Counted)
    if counted.sent is not None:
        sent.append(counted.sent.model_dump())
    return bandwidth(run.size, sent, counters, intervals=settings.interval is not None)
