"""Planes that are down when a connection begins: the others are used, these are taken back when they come."""

import pytest

from openmrc.errors import DeviceError
from openmrc.lab.system import entered
from openmrc.planes import path_mtu
from openmrc.verbs import AccessFlags, WcStatus
from tests.helpers.ends import eventually
from tests.helpers.labs import needs_root
from tests.helpers.planes import address, joined, two_hosts

pytestmark = needs_root
PLANES = 3
REACH = AccessFlags.LOCAL_WRITE | AccessFlags.REMOTE_WRITE


@pytest.fixture
def hosts():
    with two_hosts(PLANES) as found:
        yield found


def without_link(hosts, host):
    hosts.ip(host, "link", "set", "p1", "down")


def without_address(hosts, host):
    hosts.take_address(host, 1)


def without_route(hosts, host):
    for family, bits in ((4, 24), (6, 64)):
        network = {4: "10.92.1.0", 6: "fd92:1::"}[family]
        hosts.ip(host, f"-{family}", "route", "delete", f"{network}/{bits}", "dev", "p1")


def restore(hosts, host, trouble):
    if trouble is without_link:
        hosts.ip(host, "link", "set", "p1", "up")
    hosts.take_address(host, 1)
    hosts.give_address(host, 1)


def exchange(a, b, size=200_000):
    """Each end writes to the other."""
    for one, other in ((a, b), (b, a)):
        data = bytes(range(256)) * (size // 256)
        memory = bytearray(len(data))
        with one.region(data, AccessFlags.NONE) as source, other.region(memory, REACH) as target:
            one.qp.write(source, target.remote())
            assert one.send_cq.wait(30)
            assert [done.status for done in one.send_cq.poll()] == [WcStatus.SUCCESS]
            assert memory == data


@pytest.mark.parametrize("family", [4, 6])
@pytest.mark.parametrize("host", [1, 2])
@pytest.mark.parametrize("trouble", [without_link, without_address, without_route])
def test_a_plane_that_is_down_at_one_end_is_left_out_until_it_comes(hosts, trouble, host, family):
    trouble(hosts, host)
    with joined(hosts, family) as ends:
        exchange(*ends)
        # A route concerns one direction; the other end may send on that plane.
        for end in [ends[host - 1]] if trouble is without_route else ends:
            assert eventually(lambda end=end: end.qp.ports_up() == [0, 2]), end.qp.ports_up()
        restore(hosts, host, trouble)
        for end in ends:
            assert eventually(lambda end=end: end.qp.ports_up() == [0, 1, 2]), end.qp.ports_up()
        exchange(*ends)


def test_without_any_route_the_first_plane_is_named(hosts):
    for plane in range(PLANES):
        hosts.ip(1, "link", "set", f"p{plane}", "down")
    ends = [[(address(plane, host), 4791) for plane in range(PLANES)] for host in (1, 2)]
    with entered(hosts.names[1]), pytest.raises(DeviceError, match=r"no route from 10\.92\.0\.1"):
        path_mtu(*ends)


def test_a_device_without_any_of_its_addresses_is_refused(hosts):
    for plane in range(PLANES):
        hosts.take_address(1, plane)
    with pytest.raises(DeviceError, match=r"10\.92\.0\.1:4791, 10\.92\.1\.1:4791"):
        hosts.device(1)
