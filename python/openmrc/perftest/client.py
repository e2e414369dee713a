"""The measuring end."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from openmrc import handshake
from openmrc.control import Channel, dial
from openmrc.errors import ConnectError
from openmrc.perftest import protocol as p
from openmrc.perftest.endpoint import Endpoint, Ticker, Watch
from openmrc.perftest.results import Bandwidth, Latency, bandwidth, latency
from openmrc.perftest.settings import Settings

_F = TypeVar("_F", Bandwidth, Latency)


class Measuring:
    """A connection to a server. Iterating over it yields a result for each size, measured at that moment.

    Ctrl-C ends it early: the last result is of the messages up to then, and :attr:`interrupted` is set.
    """

    def __init__(self, settings: Settings, endpoint: Endpoint, channel: Channel[Any]) -> None:
        self._settings = settings
        self._endpoint = endpoint
        self._channel = channel
        self.paths = len(endpoint.qps[0].ev_states())
        """Paths that each queue pair may use, in rotation and in reserve."""
        self.interrupted = False
        """Whether Ctrl-C ended the last run."""

    def __iter__(self) -> "Iterator[Bandwidth | Latency]":
        for run in self._settings.runs():
            result = _run(self._settings, run, self._endpoint, self._channel)
            self.interrupted = result.interrupted
            self._channel.send(p.Result(result=result.as_dict()))
            yield result
            if self.interrupted:
                break
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
        channel = stack.enter_context(dial(p.PROTOCOL, host, port, hint, token=settings.token))
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


def _run(
    settings: Settings, run: p.Measurement, endpoint: Endpoint, channel: Channel[Any]
) -> Bandwidth | Latency:
    endpoint.prepare()
    channel.send(run)
    channel.expect(p.Started)
    limit = settings.max_time if run.duration is None else run.duration + p.IDLE_TIMEOUT
    watch = Watch(endpoint, channel, limit, keep=True)
    if settings.test == "write-lat":
        half_trips = endpoint.latency(run, watch, client=True)
        _finish(watch)
        return _or_interrupt(watch, lambda: latency(run.size, half_trips, interrupted=watch.interrupted))
    before = endpoint.counters()
    ticker = None
    if settings.live is not None and settings.interval is not None:
        ticker = Ticker(settings.interval, settings.live, lambda: endpoint.counters()["retransmits"])
    sent = [endpoint.bandwidth(run, watch, ticker)]
    counters = {name: value - before[name] for name, value in endpoint.counters().items()}
    counted = _finish(watch)
    if counted.sent is not None:
        sent.append(counted.sent.model_dump())
    return _or_interrupt(
        watch,
        lambda: bandwidth(
            run.size, sent, counters, interval=settings.interval, interrupted=watch.interrupted
        ),
    )


def _finish(watch: Watch) -> p.Counted:
    """Tells the server that this end's loop has ended; returns what the server has counted."""
    if watch.interrupted:
        watch.channel.send(p.Stop())
    watch.channel.send(p.Finished())
    return watch.expect(p.Counted)


def _or_interrupt(watch: Watch, figures: Callable[[], _F]) -> _F:
    """The figures; after Ctrl-C before the first message there are none."""
    try:
        return figures()
    except ConnectError:
        if watch.interrupted:
            raise KeyboardInterrupt from None
        raise
