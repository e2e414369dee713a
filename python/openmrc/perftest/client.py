"""The measuring end."""

import contextlib
from collections.abc import Iterator

from openmrc.errors import ConnectError
from openmrc.outofband import Channel, Message, dial
from openmrc.perftest import protocol as p
from openmrc.perftest.endpoint import Endpoint
from openmrc.perftest.results import Bandwidth, Latency, bandwidth, latency
from openmrc.perftest.settings import Settings
from openmrc.planes import path_mtu


@contextlib.contextmanager
def measuring(
    settings: Settings, host: str, port: int = p.DEFAULT_PORT
) -> "Iterator[Iterator[Bandwidth | Latency]]":
    """Connects to a server; gives the results, each of which is measured when it is asked for.

    Raises:
        ConnectError: if there is no server, it refuses, or it goes away.
        DeviceError: if an address is not of this host.
    """
    with contextlib.ExitStack() as stack:
        hint = f"start `openmrc {settings.test}{'' if port == p.DEFAULT_PORT else f' -p {port}'}` there first"
        channel: Channel[Message] = Channel(dial(host, port, hint), f"{host}:{port}", p.MESSAGES)
        stack.callback(channel.close)
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
        _introduce(settings, endpoint, channel)
        yield _results(settings, endpoint, channel)


def _results(
    settings: Settings, endpoint: Endpoint, channel: Channel[Message]
) -> "Iterator[Bandwidth | Latency]":
    for run in settings.runs():
        result = _run(settings, run, endpoint, channel)
        channel.send(p.Result(result=result.as_dict()))
        yield result
    channel.send(p.Bye())


def _introduce(settings: Settings, endpoint: Endpoint, channel: Channel[Message]) -> None:
    addresses = endpoint.context.addresses
    channel.send(
        p.Hello(
            version=p.VERSION,
            test=settings.test,
            planes=len(addresses),
            qps=settings.qps,
            buffer=settings.buffer,
            depth=settings.depth,
        )
    )
    offer = channel.expect(p.Offer)
    theirs = offer.ends[0].addresses
    if len(theirs) != len(addresses):
        raise ConnectError(
            f"this end has {len(addresses)} planes and {channel.peer} {len(theirs)}: say --addresses at both"
        )
    largest = path_mtu(addresses, theirs, largest=settings.mtu or 4096)
    if settings.mtu is not None and largest < settings.mtu:
        raise ConnectError(
            f"the routes to {channel.peer} carry {largest} bytes of payload, not {settings.mtu}"
        )
    channel.send(p.Accept(ends=endpoint.ends, buffer=endpoint.inbox, path_mtu=largest))
    connected = channel.expect(p.Connected)
    endpoint.connect(offer.ends, offer.buffer, connected.path_mtu)


def _run(
    settings: Settings, run: p.Run, endpoint: Endpoint, channel: Channel[Message]
) -> Bandwidth | Latency:
    endpoint.prepare()
    channel.send(run)
    channel.expect(p.Going)
    if settings.test == "write-lat":
        figures = latency(run.size, endpoint.latency(run, channel, client=True))
        channel.send(p.Finished())
        channel.expect(p.Ran, None)
        return figures
    before = endpoint.counters()
    sent = [endpoint.bandwidth(run, channel)]
    counters = {name: value - before[name] for name, value in endpoint.counters().items()}
    channel.send(p.Finished())
    ran = channel.expect(p.Ran, None)
    if ran.sent is not None:
        sent.append(ran.sent)
    return bandwidth(run.size, sent, counters, intervals=settings.interval is not None)
