"""The configuration of a host: its addresses, its uSIDs, and routes to every other host.

The routes are for programs that do not build SRv6 themselves: ping, iperf3, a software NIC over UDP. The
kernel adds the outer header. A hash of the flow selects one of the plane's paths, as ECMP does; but packets
from UDP source port 0xC000 + n take path n of the plane, so that entropy values of a NIC over UDP sockets
name paths of the fabric.
"""

from collections.abc import Iterator

from openmrc.fabric.topology import LOCAL_USID_MIN, Path
from openmrc.lab.layout import Layout
from openmrc.switchconf.facts import prefix_text
from openmrc.verbs import Port

SYSCTL = """\
net.ipv6.conf.all.seg6_enabled = 1
net.ipv6.fib_multipath_hash_policy = 1
"""
"""Ports accept SRv6 packets, and the flow hash covers UDP and TCP ports."""

MAX_PATHS = 64
"""Most paths of a plane in the kernel's routes to a host; raw SRv6 packets can take all paths."""

MAX_ENCAPSULATIONS = 100_000
"""Most outer headers that the kernel keeps in one lab. Larger labs have fewer paths in their routes, at least
one."""

FIRST_SOURCE_PORT = 0xC000
"""UDP source port of a plane's path 0."""

_LOCAL_TABLE = 255
_FIRST_TABLE = 1000
_FIRST_PRIORITY = 1000
"""Priority of the rules: after table local (0), before table main (32766)."""


def configuration(layout: Layout, host: str) -> Iterator[str]:
    """Yields the ``ip -6`` commands that configure a host in a namespace that has its ports."""
    fabric, block = layout.fabric, prefix_text(layout.fabric)
    yield "link set dev lo up"
    yield "link add sr0 type bridge"
    yield "link set dev sr0 up"
    downlinks, gateways = set(), {}
    for link in layout.links_of(host):
        port, t0 = link.lower.port, layout.switches[link.upper.node]
        gateways[port] = link.upper.address
        yield f"link set dev {port} up"
        yield f"address add {link.lower.address}/127 dev {port} nodad"
        for usid in fabric.table(t0).own:
            yield f"route add {block}{usid:x}::/48 via {link.upper.address} dev {port}"
        downlinks.add(LOCAL_USID_MIN + int(link.upper.port.removeprefix("down")))
    # Remove the outer header, deliver the inner packet: table local has only this host's addresses.
    for usid in sorted(downlinks):
        yield f"route add {block}{usid:x}::/48 encap seg6local action End.DT6 table {_LOCAL_TABLE} dev sr0"
    for number in range(paths_by_port(layout)):
        chosen = f"ipproto udp sport {FIRST_SOURCE_PORT + number} lookup {_FIRST_TABLE + number}"
        yield f"rule add priority {_FIRST_PRIORITY + number} {chosen}"
    for peer in layout.hosts:
        if peer != host:
            yield from _routes(layout, host, peer, gateways)


def paths_by_port(layout: Layout) -> int:
    """Number of paths of a plane in the kernel's routes; each has a UDP source port."""
    hosts, planes = len(layout.hosts), layout.fabric.planes
    most = max((len(layout.fabric.paths("h0", host)) for host in layout.hosts[1:]), default=0)
    # Each path is needed twice: as a next hop, and as a route of its own.
    affordable = MAX_ENCAPSULATIONS // max(1, 2 * hosts * (hosts - 1) * planes)
    return min(most // planes, MAX_PATHS, max(1, affordable))


def device_ports(layout: Layout, host: str) -> list[Port]:
    """The ports of a NIC over UDP sockets at a host, whose entropy values are the fabric's paths."""
    sources = [FIRST_SOURCE_PORT + number for number in range(paths_by_port(layout))]
    return [Port(address, source_ports=sources) for address in layout.fabric.host_addresses(host)]


def path_of_port(layout: Layout, src: str, dst: str, plane: int, source_port: int) -> Path:
    """The path of a packet from this UDP source port to the plane's address."""
    paths = layout.fabric.paths(src, dst)
    per_plane = len(paths) // layout.fabric.planes
    return paths[plane * per_plane + (source_port - FIRST_SOURCE_PORT) % per_plane]


def _routes(layout: Layout, host: str, peer: str, gateways: dict[str, str]) -> Iterator[str]:
    fabric = layout.fabric
    paths = fabric.paths(host, peer)
    per_plane = len(paths) // fabric.planes
    addresses = {link.lower.port: link.lower.address for link in layout.links_of(peer)}
    for plane in range(fabric.planes):
        port, first = f"p{plane}", plane * per_plane
        hops = "".join(
            f" nexthop encap seg6 mode encap.red segs {path.address} via {gateways[port]} dev {port}"
            for path in paths[first : first + min(per_plane, paths_by_port(layout))]
        )
        yield f"route add {addresses[port]}/128{hops}"
        for number in range(paths_by_port(layout)):
            # Under one T0 there is one path per plane, and all source ports take it.
            address = paths[first + number % per_plane].address
            encapsulation = f"encap seg6 mode encap.red segs {address} via {gateways[port]} dev {port}"
            yield f"route add {addresses[port]}/128 {encapsulation} table {_FIRST_TABLE + number}"
