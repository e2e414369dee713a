"""A lab: brings up a fabric in network namespaces, breaks and repairs it, takes it down."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal, Self

from openmrc.errors import ArgumentError, StateError
from openmrc.fabric import Fabric, Path
from openmrc.files import write_text
from openmrc.lab import counters, faults, hosts, names, softswitch, system
from openmrc.lab.counters import PortCounters
from openmrc.lab.faults import Direction
from openmrc.lab.layout import Layout, namespace
from openmrc.lab.state import SPECIFICATION, State, locked, the_name
from openmrc.lab.switches import Configurations
from openmrc.sourceroutes import SourceRoutes
from openmrc.switchconf.render import resolved
from openmrc.verbs import Device
from openmrc.wire import EvFormat

MAX_NODES = 2000
"""Most namespaces of a lab. The kernel allows more, but bringing them up takes too long."""

_QUIET = """\
net.ipv6.conf.default.accept_dad = 0
net.ipv6.conf.default.accept_ra = 0
net.ipv6.conf.default.router_solicitations = 0
"""
"""For every new interface: addresses can be used at once, and there is no router discovery."""


class Lab:
    """A lab that is up. :meth:`up` starts one, :meth:`open` finds one.

    Its faults are kept in a file, so that any process can continue where another one has stopped.
    """

    def __init__(self, fabric: Fabric, state: State) -> None:
        self.fabric = fabric
        self.layout = Layout(fabric)
        self.state = state

    def __repr__(self) -> str:
        hosts, planes, switches = self.fabric.hosts, self.fabric.planes, self.fabric.switch_count
        return f"<Lab {self.fabric.spec.name}: {hosts} hosts, {planes} planes, {switches} switches>"

    @classmethod
    def up(cls, fabric: Fabric, *, progress: Callable[[str], Any] | None = None) -> Self:
        """Creates and configures namespaces and links.

        A lab of the same name that did not come up completely is removed first.

        Args:
            fabric: The fabric; the lab has its name.
            progress: Called with the name of each step.

        Raises:
            PrivilegeError: without root.
            ArgumentError: if the fabric is too large or cannot be addressed.
            StateError: if the lab is up already, or another namespace has one of its names.
            DeviceError: if the kernel refuses something; everything created so far is removed.
        """
        system.require_root()
        say = progress or (lambda _: None)
        layout, name = Layout(fabric), fabric.spec.name
        if len(layout.nodes) > MAX_NODES:
            raise ArgumentError(
                f"{len(layout.nodes)} switches and hosts are too many for a lab: at most {MAX_NODES}"
            )
        configurations = Configurations(layout)
        with locked():
            _clear_remains(name)
            spaces = [namespace(name, node) for node in layout.nodes]
            if strangers := system.existing(spaces):
                raise StateError(f"a network namespace {strangers[0]} exists already: `ip netns delete` it")
            state = State(name, spaces)
            state.save()
            write_text(state.directory / SPECIFICATION, resolved(fabric))
            try:
                say(f"{len(spaces)} namespaces")
                system.ip(f"netns add {space}" for space in spaces)
                for space in spaces:
                    system.sysctl(_QUIET, space)
                say(f"{len(layout.links)} links")
                system.ip(_veth_commands(layout, name))
                say(f"{len(layout.switches)} switches")
                for switch in layout.switches:
                    configurations.apply(switch, namespace(name, switch))
                say(f"{len(layout.hosts)} hosts")
                names.write(layout, name)
                for host in layout.hosts:
                    system.sysctl(hosts.SYSCTL, namespace(name, host))
                    system.ip(hosts.configuration(layout, host), namespace(name, host))
                for node in layout.nodes:
                    ports = [
                        end.port for link in layout.links_of(node) for end in link.ends if end.node == node
                    ]
                    counters.wait_until_up(namespace(name, node), ports)
            except BaseException:
                _remove(spaces)
                state.forget()
                raise
            state.complete = True
            state.save()
        return cls(fabric, state)

    @classmethod
    def open(cls, name: str | None = None) -> Self:
        """The lab with this name; without a name, the only one that is up.

        Raises:
            PrivilegeError: without root.
            StateError: if it is not up.
            ArgumentError: if several are up and no name is given.
        """
        system.require_root()
        state = State.load(the_name(name))
        if not state.complete:
            raise StateError(f"lab {state.name} did not come up completely; `openmrc lab down` removes it")
        return cls(Fabric.load(state.directory / SPECIFICATION), state)

    @property
    def name(self) -> str:
        """Its name."""
        return self.state.name

    def namespace(self, node: str) -> str:
        """The network namespace of a switch or host.

        Raises:
            ArgumentError: if there is no such node.
        """
        return namespace(self.name, self.layout.node(node))

    def command(self, node: str, arguments: list[str]) -> list[str]:
        """The command line that runs a command at a node."""
        return [*system.inside(self.namespace(node)), *arguments]

    def addresses(self, host: str) -> list[str]:
        """A host's addresses, one per plane."""
        return self.fabric.host_addresses(self.layout.node(host))

    def device(self, host: str, **options: Any) -> Device:
        """A software NIC with a port per plane, whose entropy values are the fabric's paths.

        Open it with the calling thread in the host's namespace (:func:`openmrc.lab.entered`).

        Args:
            host: The host.
            options: Other fields of the device. With ``ev_format=EvFormat.SRV6`` it builds SRv6 frames,
                and its entropy values are those of the fabric, 32 bits (:meth:`Fabric.path_of`). Otherwise
                they are UDP source ports, which the host's routes turn into paths (:meth:`path`).
        """
        if options.get("ev_format") in (EvFormat.SRV6, EvFormat.SRV6_SRH):
            return SourceRoutes(self.fabric, self.layout.node(host)).device(**options)
        return Device(ports=hosts.device_ports(self.layout, self.layout.node(host)), **options)

    def path(self, src: str, dst: str, plane: int, source_port: int) -> Path:
        """The path that packets of a NIC over UDP sockets take from this source port, its entropy value."""
        return hosts.path_of_port(
            self.layout, self.layout.node(src), self.layout.node(dst), plane, source_port
        )

    def counters(self, node: str) -> dict[str, PortCounters]:
        """The counters of a node's ports, by name."""
        return counters.read(self.namespace(node))

    def down(self) -> None:
        """Ends what runs in the lab and removes it."""
        remove(self.name)

    # --- faults ---------------------------------------------------------------------------------------------

    def fail(self, what: str) -> None:
        """Cuts a link, given by its name or one of its ports, or stops a switch.

        Raises:
            ArgumentError: if there is no such link, port or switch.
            StateError: if it has failed already.
        """
        if what in self.layout.switches:
            self._change_ports("stopped", what, present=True)
        else:
            self._change_ports("cut", self.layout.link(what).name, present=True)

    def repair(self, what: str | None = None) -> list[str]:
        """Repairs a link or switch; without a name, all of them. Returns what was repaired.

        Raises:
            ArgumentError: if there is no such link, port or switch.
            StateError: if it has not failed.
        """
        self.state = State.load(self.name)
        if what is None:
            broken = [*self.state.stopped, *self.state.cut, *self.state.impaired]
            for each in dict.fromkeys(broken):
                self.repair(each)
            return list(dict.fromkeys(broken))
        if what in self.layout.switches:
            self._change_ports("stopped", what, present=False)
            return [what]
        link = self.layout.link(what)
        if link.name not in self.state.cut and link.name not in self.state.impaired:
            raise StateError(f"{link.name} has not failed")
        if link.name in self.state.cut:
            self._change_ports("cut", link.name, present=False)
        if link.name in self.state.loss:
            self.degrade(link.name, loss=0.0)
        if link.name in self.state.impaired:
            self.degrade(link.name, delay=0.0, rate=0)
        return [link.name]

    def degrade(
        self,
        what: str,
        *,
        loss: float | None = None,
        delay: float | None = None,
        rate: int | None = None,
        direction: Direction = "both",
    ) -> None:
        """Makes a link lose or delay packets, or slow; no port notices.

        Args:
            what: The link, by its name or by one of its ports.
            loss: Share of packets lost, 0 to 1; ``None``: as it is.
            delay: Seconds added in each direction, so that round trips take twice that; ``None``: as it is.
            rate: Bits per second in each direction; 0: no limit; ``None``: as it is.
            direction: In which packets are lost.

        Raises:
            ArgumentError: if there is no such link, or a value is out of range.
            UnsupportedError: if the kernel cannot delay packets.
        """
        link = self.layout.link(what)
        faults.loss_program(loss or 0.0)
        with self._changing():
            state = self.state
            if delay is not None or rate is not None:
                delay = state.delay.get(link.name, 0.0) if delay is None else delay
                rate = state.rate.get(link.name, 0) if rate is None else rate
                faults.apply_shape(self.name, link, delay, rate or None)
                _set(state.delay, link.name, delay)
                _set(state.rate, link.name, rate)
            if loss is not None:
                faults.apply_loss(self.name, link, loss, direction)
                state.note_loss(link.name, loss, direction)
            state.save()

    @contextmanager
    def ready_to_fail(
        self, what: str, *, loss: float | None = None, direction: Direction = "both"
    ) -> Iterator[Callable[[], int]]:
        """Prepares a fault; yields a function that makes it happen at the time of the call.

        Args:
            what: What to :meth:`fail`; with ``loss``, the link to :meth:`degrade`.
            loss: 0 to 1.
            direction: In which packets are lost.

        Yields:
            A function that returns the time by the monotonic clock, nanoseconds; nothing was broken before.

        Raises:
            ArgumentError: if there is no such link, port or switch, or ``loss`` is not 0 to 1.
            StateError: if it has failed already.
        """
        with self._changing():
            state = self.state
            if loss is not None:
                link = self.layout.link(what)
                _check_whole(link.name, link.name in state.cut or link.name in state.loss)
                tools = faults.prepare_loss(self.name, link, loss, direction)
                state.note_loss(link.name, loss, direction)
            else:
                before = faults.ports_down(self.layout, state)
                name, failed = what, state.stopped
                if what not in self.layout.switches:
                    name, failed = self.layout.link(what).name, state.cut
                _check_whole(name, name in failed)
                failed.append(name)
                tools = faults.prepare_ports_down(self.name, faults.ports_down(self.layout, state) - before)
            state.save()

        def go() -> int:
            now = time.monotonic_ns()
            for tool in tools:
                tool.go()
            return now

        try:
            yield go
        finally:
            for tool in tools:
                tool.finish()

    # --- switches in user space -----------------------------------------------------------------------------

    def start_soft_switch(
        self, switch: str, *, rate: int | None = None, base_rtt_us: float | None = None
    ) -> None:
        """Replaces the kernel's forwarding at a switch by a soft switch.

        Args:
            switch: Its name.
            rate: Rate of every port, bit/s; default no limit.
            base_rtt_us: Queue thresholds are shares of rate x base_rtt; default that of the specification.

        Raises:
            ArgumentError: if there is no such switch.
            StateError: if it is soft already.
            DeviceError: if the soft switch does not start.
        """
        self._switch(switch)
        with self._changing():
            if switch in self.state.soft:
                raise StateError(f"{switch} is a soft switch already")
            config = softswitch.configuration(
                self.layout, self.name, switch, rate=rate, base_rtt_us=base_rtt_us
            )
            self.state.soft[switch] = softswitch.start(
                self.namespace(switch), config, self.state.directory / "softswitch"
            )
            self.state.save()

    def stop_soft_switch(self, switch: str) -> dict[str, int]:
        """Lets the kernel forward again at a switch. Returns the counters of the soft switch.

        Raises:
            ArgumentError: if there is no such switch.
            StateError: if it is no soft switch, or its process has ended.
        """
        self._switch(switch)
        with self._changing():
            if switch not in self.state.soft:
                raise StateError(f"{switch} is no soft switch")
            pid = self.state.soft.pop(switch)
            self.state.save()
            return softswitch.stop(self.namespace(switch), pid, self.state.directory / "softswitch")

    def _switch(self, name: str) -> None:
        if name not in self.layout.switches:
            raise ArgumentError(f"{name} is no switch of this lab; a switch is p0/t0-0")

    # --- helpers --------------------------------------------------------------------------------------------

    @contextmanager
    def _changing(self) -> Iterator[None]:
        """Locks out other processes, and reloads what they have changed."""
        with locked():
            self.state = State.load(self.name)
            yield

    def _change_ports(self, kind: Literal["cut", "stopped"], name: str, *, present: bool) -> None:
        with self._changing():
            failed = getattr(self.state, kind)
            if (name in failed) == present:
                raise StateError(f"{name} {'has failed already' if present else 'has not failed'}")
            before = faults.ports_down(self.layout, self.state)
            if present:
                failed.append(name)
            else:
                failed.remove(name)
            after = faults.ports_down(self.layout, self.state)
            # Saved first: repairing something that has not failed completely is harmless.
            self.state.save()
            faults.apply_ports(self.layout, self.name, before, after)


def _set(values: dict[str, Any], name: str, value: float) -> None:
    """Keeps what differs from nothing."""
    if value:
        values[name] = value
    else:
        values.pop(name, None)


def _check_whole(name: str, broken: bool) -> None:
    if broken:
        raise StateError(f"{name} has failed already")


def remove(name: str) -> None:
    """Takes a lab down, also one that did not come up completely.

    Raises:
        StateError: if there is none of this name.
    """
    system.require_root()
    with locked():
        state = State.load(name)
        _remove(state.namespaces)
        state.forget()


def _clear_remains(name: str) -> None:
    try:
        old = State.load(name)
    except StateError:
        return
    if old.complete:
        raise StateError(f"lab {name} is up already; `openmrc lab down` takes it down")
    _remove(old.namespaces)
    old.forget()


def _remove(namespaces: list[str]) -> None:
    system.remove(namespaces)
    names.remove(namespaces)


def _veth_commands(layout: Layout, name: str) -> list[str]:
    # Packets on the link are real packets: the kernel segments large sends before the link, not after it.
    options = f"mtu {layout.fabric.spec.qos.mtu} gso_max_segs 1"
    return [
        f"link add {link.lower.port} {options} netns {namespace(name, link.lower.node)} type veth"
        f" peer name {link.upper.port} {options} netns {namespace(name, link.upper.node)}"
        for link in layout.links.values()
    ]
