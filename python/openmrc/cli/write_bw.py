"""``openmrc write-bw``. Prints; :mod:`openmrc.perftest` measures."""

from types import SimpleNamespace
from typing import Annotated, Any

import typer

from openmrc.cli import _common, _impair, _peers, _perftest, _planes, _values
from openmrc.perftest.protocol import MAX_SIZE, MIN_INTERVAL
from openmrc.perftest.settings import Settings

COLUMNS = " #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]"


def write_bw(
    host: _perftest.HostArgument = None,
    all_sizes: _perftest.AllOption = False,
    size: Annotated[
        int | None,
        typer.Option("--size", "-s", help="Bytes per message. Default 65536.", **_values.size(1, MAX_SIZE)),
    ] = None,
    iters: Annotated[
        int | None,
        typer.Option("--iters", "-n", min=1, help="Messages per queue pair. Default 5000."),
    ] = None,
    duration: Annotated[
        float | None,
        typer.Option(
            "--duration", "-D", help="Run for this time instead of a number of messages.", **_values.time()
        ),
    ] = None,
    bidirectional: Annotated[bool, typer.Option("--bidirectional", "-b", help="Both ends write.")] = False,
    qp: Annotated[int, typer.Option("--qp", "-q", help="Queue pairs.")] = 1,
    mtu: _planes.MtuOption = None,
    tx_depth: Annotated[
        int | None,
        typer.Option(
            "--tx-depth",
            "-t",
            min=1,
            max=32768,
            help="Outstanding messages per queue pair. Default 128, more for short messages.",
        ),
    ] = None,
    post_list: Annotated[
        int | None,
        typer.Option(
            "--post-list",
            "-l",
            min=1,
            help="Messages per post. Default 16; 64 for short messages, 1 for long ones.",
        ),
    ] = None,
    cq_mod: Annotated[
        int | None,
        typer.Option(
            "--cq-mod", "-Q", min=1, help="Messages per completion. Default 16; 1 for long messages."
        ),
    ] = None,
    inline: _perftest.InlineOption = None,
    port: _perftest.PortOption = None,
    bind: _perftest.BindOption = "",
    token_file: _peers.TokenFileOption = None,
    allow_address: _peers.AllowAddressOption = None,
    max_time: _perftest.MaxTimeOption = _perftest.MAX_TIME,
    loopback: _perftest.LoopbackOption = False,
    cpu: _perftest.CpuOption = None,
    interval: Annotated[
        float | None,
        typer.Option(
            "--interval",
            "-i",
            help="Print a line per interval of this length, at least 100ms; with --json, the result has "
            "the bytes of each.",
            **_values.time(MIN_INTERVAL),
        ),
    ] = None,
    addresses: _planes.AddressesOption = None,
    count: _planes.CountOption = None,
    evs: _planes.EvsOption = None,
    ev_burst: _planes.EvBurstOption = None,
    srv6: _planes.Srv6Option = False,
    fabric: _planes.FabricOption = None,
    this_host: _planes.ThisHostOption = None,
    peer_host: _planes.PeerHostOption = None,
    loss: Annotated[
        float | None,
        typer.Option(
            "--loss",
            help="Drop this share of packets: 1% or 0.01.",
            rich_help_panel="Planes",
            **_values.share(),
        ),
    ] = None,
    fail_port: Annotated[
        list[str] | None,
        typer.Option(
            "--fail-port",
            metavar="PORT@TIME",
            help="Silence a port at a time after the start: 3@2.5s. May be repeated.",
            rich_help_panel="Planes",
        ),
    ] = None,
    impair: _impair.ImpairOption = None,
    json: _common.JsonOption = False,
    cpu_freq: _perftest.CpuFreqOption = False,
    ib_dev: _perftest.IbDeviceOption = None,
    ib_port: _perftest.IbPortOption = None,
    gid_index: _perftest.GidIndexOption = None,
    sl: _perftest.ServiceLevelOption = None,
    rdma_cm: _perftest.RdmaCmOption = False,
    report_gbits: _perftest.GbitsOption = False,
) -> None:
    """Measure the goodput of RDMA writes, as ib_write_bw does.

    Start it without a host at one end: this is the server. Start it with that host at the other end: this is
    the client, whose options count. Or use --loopback. With -a and --json the results are a list. Impairments
    concern only this end, except with --loopback.
    """
    live = None if json or interval is None else _perftest.print_interval
    if fail_port and interval is None:
        interval = 0.001
    routes = _planes.srv6(srv6, fabric, this_host, peer_host)
    planes = _planes.planes(addresses, count, evs, ev_burst, routes, loopback=loopback)
    settings = Settings(
        test="write-bw",
        sizes=_perftest.sizes(all_sizes, size, 65536),
        iterations=iters,
        duration=duration,
        bidirectional=bidirectional,
        qps=qp,
        mtu=mtu,
        tx_depth=tx_depth,
        post_list=post_list,
        cq_mod=cq_mod,
        inline=inline,
        interval=interval,
        live=live,
        planes=planes,
        max_time=max_time,
        **_perftest.peers(token_file, allow_address, planes),
        impairments=_perftest.impairments(impair, loss, fail_port),
    )
    _perftest.note_ignored(ib_dev, ib_port, gid_index, sl, rdma_cm)
    table = _perftest.Table(
        "RDMA_Write Bidirectional BW Test" if bidirectional else "RDMA_Write BW Test",
        [
            ("Number of qps", qp),
            ("TX depth", settings.depth),
            ("Post list", next(settings.runs()).post_list),
            ("CQ Moderation", next(settings.runs()).cq_mod),
        ],
        COLUMNS,
        _row,
    )
    _perftest.main(settings, host, port, bind=bind, loopback=loopback, cpu=cpu, json=json, table=table)


def _row(result: dict[str, Any]) -> str:
    r = SimpleNamespace(**result)
    return (
        f" {r.size:<10d} {r.iterations:<14d} {r.peak_gbps:<18.2f} {r.goodput_gbps:<20.2f} "
        f"{r.messages_per_second / 1e6:<.6f}"
    )
