"""``openmrc write-lat``. Prints; :mod:`openmrc.perftest` measures."""

from types import SimpleNamespace
from typing import Annotated, Any

import typer

from openmrc.cli import _common, _impair, _peers, _perftest, _planes, _values
from openmrc.perftest.protocol import MAX_SIZE
from openmrc.perftest.settings import Settings

COLUMNS = (
    " #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    t_stdev[usec]"
    "   99% percentile[usec]   99.9% percentile[usec]"
)


def write_lat(
    host: _perftest.HostArgument = None,
    all_sizes: _perftest.AllOption = False,
    size: Annotated[
        int | None,
        typer.Option("--size", "-s", help="Bytes per message. Default 2.", **_values.size(1, MAX_SIZE)),
    ] = None,
    iters: Annotated[
        int | None, typer.Option("--iters", "-n", min=1, help="Round trips. Default 1000.")
    ] = None,
    mtu: _planes.MtuOption = None,
    inline: _perftest.InlineOption = None,
    port: _perftest.PortOption = None,
    bind: _perftest.BindOption = "",
    token_file: _peers.TokenFileOption = None,
    allow_address: _peers.AllowAddressOption = None,
    max_time: _perftest.MaxTimeOption = _perftest.MAX_TIME,
    loopback: _perftest.LoopbackOption = False,
    cpu: _perftest.CpuOption = None,
    addresses: _planes.AddressesOption = None,
    count: _planes.CountOption = None,
    evs: _planes.EvsOption = None,
    ev_burst: _planes.EvBurstOption = None,
    srv6: _planes.Srv6Option = False,
    fabric: _planes.FabricOption = None,
    this_host: _planes.ThisHostOption = None,
    peer_host: _planes.PeerHostOption = None,
    impair: _impair.ImpairOption = None,
    json: _common.JsonOption = False,
    cpu_freq: _perftest.CpuFreqOption = False,
    ib_dev: _perftest.IbDeviceOption = None,
    ib_port: _perftest.IbPortOption = None,
    gid_index: _perftest.GidIndexOption = None,
    sl: _perftest.ServiceLevelOption = None,
    rdma_cm: _perftest.RdmaCmOption = False,
) -> None:
    """Measure the latency of RDMA writes, as ib_write_lat does: half a round trip of polled memory.

    Start it without a host at one end: this is the server. Start it with that host at the other end: this is
    the client, whose options count. Or use --loopback. With -a and --json the results are a list.
    """
    routes = _planes.srv6(srv6, fabric, this_host, peer_host)
    planes = _planes.planes(addresses, count, evs, ev_burst, routes, loopback=loopback)
    settings = Settings(
        test="write-lat",
        sizes=_perftest.sizes(all_sizes, size, 2),
        iterations=iters,
        mtu=mtu,
        inline=inline,
        planes=planes,
        max_time=max_time,
        **_perftest.peers(token_file, allow_address, planes),
        impairments=_impair.parse_all(impair),
    )
    _perftest.note_ignored(ib_dev, ib_port, gid_index, sl, rdma_cm)
    table = _perftest.Table(
        "RDMA_Write Latency Test",
        [
            ("Number of qps", 1),
            ("Max inline data", settings.inline_limit),
        ],
        COLUMNS,
        _row,
    )
    _perftest.main(settings, host, port, bind=bind, loopback=loopback, cpu=cpu, json=json, table=table)


def _row(result: dict[str, Any]) -> str:
    r = SimpleNamespace(**result)
    return (
        f" {r.size:<7d} {r.iterations:<14d} {r.min_us:<14.2f} {r.max_us:<12.2f} {r.typical_us:<18.2f} "
        f"{r.avg_us:<14.2f} {r.stdev_us:<15.2f} {r.p99_us:<22.2f} {r.p999_us:<.2f}"
    )
