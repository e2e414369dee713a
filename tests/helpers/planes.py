"""Two hosts in network namespaces, joined by one link per plane, and queue pairs between them."""

import os
import subprocess
import threading
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from openmrc.connect import Token, connect, listen
from openmrc.lab.system import entered
from openmrc.verbs import Device
from tests.helpers.ends import End, make_end

TOKEN = Token("0123456789abcdef0123456789abcdef")


def ip(*arguments):
    subprocess.run(["ip", *map(str, arguments)], check=True)


def address(plane, host, family=4):
    return f"10.92.{plane}.{host}" if family == 4 else f"fd92:{plane}::{host}"


@dataclass
class Hosts:
    """Hosts 1 and 2. The interface of plane p is ``pP`` at both."""

    names: dict[int, str]
    planes: int

    def ip(self, host, *arguments):
        ip("-n", self.names[host], *arguments)

    def give_address(self, host, plane):
        for family, bits in ((4, 24), (6, 64)):
            more = ["nodad"] if family == 6 else []
            self.ip(
                host, "address", "add", f"{address(plane, host, family)}/{bits}", "dev", f"p{plane}", *more
            )

    def take_address(self, host, plane):
        self.ip(host, "address", "flush", "dev", f"p{plane}")

    def device(self, host, family=4, **options):
        with entered(self.names[host]):
            addresses = [address(plane, host, family) for plane in range(self.planes)]
            return Device.from_addresses(*addresses, evs_per_port=16, **options).open()


@contextmanager
def two_hosts(planes, *, mtu=9000):
    names = {host: f"openmrc-planes-{os.getpid()}-{host}" for host in (1, 2)}
    hosts = Hosts(names, planes)
    try:
        for name in names.values():
            ip("netns", "add", name)
            ip("-n", name, "link", "set", "lo", "up")
        for plane in range(planes):
            ends = ["type", "veth", "peer", f"p{plane}", "netns", names[2]]
            ip("-n", names[1], "link", "add", f"p{plane}", "mtu", mtu, *ends)
        for host in names:
            for plane in range(planes):
                hosts.ip(host, "link", "set", f"p{plane}", "mtu", mtu, "up")
                hosts.give_address(host, plane)
        yield hosts
    finally:
        for name in names.values():
            subprocess.run(["ip", "netns", "delete", name], check=False)


@contextmanager
def joined(hosts, family=4, *, options=None) -> tuple[End, End]:
    """A queue pair at each host, connected over plane 0's addresses."""
    with ExitStack() as stack:
        ends = {host: make_end(stack.enter_context(hosts.device(host, family))) for host in (1, 2)}
        with entered(hosts.names[2]):
            listener = stack.enter_context(listen(address(0, 2, family), 0, token=TOKEN))
        failures = []

        def serve():
            try:
                with entered(hosts.names[2]):
                    listener.accept(ends[2].qp, options=options, timeout=30).close()
            except Exception as error:  # Shown by the thread that waits for this one.
                failures.append(error)

        server = threading.Thread(target=serve)
        server.start()
        try:
            with entered(hosts.names[1]):
                connect(*listener.address, ends[1].qp, token=TOKEN, options=options, timeout=30).close()
        finally:
            server.join(60)
        assert failures == []
        yield ends[1], ends[2]
