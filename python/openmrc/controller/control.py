"""The controller of one device: profiles, EV events, EV probes, ports."""

import dataclasses
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

from openmrc import _core
from openmrc.closing import Closable
from openmrc.controller.cc import CcAlgorithm, CcProfile
from openmrc.controller.ev import EvProfile
from openmrc.controller.ev_format import EvFormatProfile
from openmrc.controller.ev_values import Ev, EvEventMask, EvMode
from openmrc.controller.state import ProfileState
from openmrc.errors import ArgumentError
from openmrc.verbs import Context, EvEvent, SocketAddress, Srv6Paths
from openmrc.verbs.limits import PROTOCOL_VERSION
from openmrc.wire import EvFormat


@dataclass(frozen=True, slots=True)
class DeviceLimits:
    """What a device offers a controller."""

    num_ports: int
    ev_modes: tuple[EvMode, ...]
    ev_formats: tuple[EvFormat, ...]
    """Formats of EV format profiles."""
    ev_count_align: int
    """The count of a profile is rounded down to a multiple of this: every port has the same number."""
    ev_max_active: int
    """Most entropy values of a profile in rotation."""
    ev_max_count_profile: int
    """Most entropy values of a profile."""
    ev_max_count: int
    """Most entropy values of all profiles together, with the device's own."""
    ev_free_count: int
    """Those that are left."""
    ev_max_width: int
    """Most bits of the fields of an EV format profile."""
    ev_op_max_entries: int | None
    """Most entries of :meth:`EvProfile.operate`; ``None``: no limit."""
    max_profiles: int
    """Most profiles of each kind, EV format, EV and congestion control, that are not in INIT."""
    cc_algorithms: tuple[CcAlgorithm, ...]
    """Algorithms of congestion control profiles."""
    protocol_version: int = PROTOCOL_VERSION
    """Newest MRC version."""


@dataclass(frozen=True, slots=True)
class PortState:
    """State of a port."""

    port: int
    addr: str
    udp_port: int
    interface: str | None
    """Interface with the address."""
    admin_up: bool
    """Enabled by the controller."""
    link_up: bool
    """The address exists and its interface is running."""
    receive_buffer: int
    """Bytes that its socket can queue, by the kernel's count."""

    @property
    def up(self) -> bool:
        """Whether it can send and receive."""
        return self.admin_up and self.link_up


@dataclass(frozen=True, slots=True)
class EvProbe:
    """A question whether a path to a node works."""

    peer: Sequence[SocketAddress]
    """The node's address per port."""
    ev: Ev
    """The path; an EV profile of the device must have it."""
    probe_id: int = 0
    """Returned in the result."""


@dataclass(frozen=True, slots=True)
class EvProbeResult:
    """The result of an EV probe."""

    probe_id: int
    ev: Ev
    rtt_ns: int | None
    """Round-trip time, nanoseconds; ``None``: no answer in time."""


@dataclass(frozen=True, slots=True)
class PortStatusUpdate:
    """A report to a node about this node's ports."""

    peer: Sequence[SocketAddress]
    """The node's address per port."""
    ports_up: Sequence[int]
    """Ports that it says are up."""
    port: int | None = None
    """The port that it is sent on; ``None``: any that is up."""
    update_id: int = 0
    """Returned in the result."""


@dataclass(frozen=True, slots=True)
class PortStatusResult:
    """The answer to a port status update."""

    update_id: int
    rtt_ns: int | None
    """Round-trip time, nanoseconds; ``None``: no answer in time."""


R = TypeVar("R", EvProbe, PortStatusUpdate)


class Peer(Closable):
    """A node that the device knows without a queue pair; made by :meth:`Controller.add_peer`."""

    def __init__(self, core: _core.Controller, handle: int) -> None:
        self._core = core
        self._handle: int | None = handle

    def close(self) -> None:
        """Forgets the node; queue pairs connected to it keep it. Closing twice is harmless."""
        handle, self._handle = self._handle, None
        if handle is not None:
            self._core.remove_peer(handle)


class Controller:
    """The functions of ``mrc_ctl.h`` for one open device.

    For hardware, the controller is a privileged process. A software NIC belongs to the process that opened it
    and does not change the host's network, so its controller is an object in that process and needs no
    privilege.
    """

    def __init__(self, context: Context) -> None:
        self.context = context
        self._core = _core.Controller(context._core)
        self._profiles = _core.Profiles(context._core)
        srv6 = context.device.is_srv6
        self._ev_formats = (EvFormat.SRV6, EvFormat.SRV6_SRH) if srv6 else (context.device.ev_format,)

    # --- profiles -------------------------------------------------------------------------------------------

    def query_device(self) -> DeviceLimits:
        """The limits of the device."""
        limits = self._profiles.limits()
        return DeviceLimits(
            num_ports=len(self.context.device.ports),
            ev_modes=tuple(mode for mode in EvMode if mode is not EvMode.AUTO or limits["has_auto"]),
            ev_formats=self._ev_formats,
            ev_count_align=limits["ev_count_align"],
            ev_max_active=limits["ev_max_active"],
            ev_max_count_profile=limits["ev_max_count_profile"],
            ev_max_count=limits["ev_max_count"],
            ev_free_count=limits["ev_free_count"],
            ev_max_width=limits["ev_max_width"],
            ev_op_max_entries=None,
            max_profiles=limits["max_profiles"],
            cc_algorithms=tuple(CcAlgorithm),
        )

    def ev_format_profile(self) -> EvFormatProfile:
        """A new EV format profile, in INIT."""
        return EvFormatProfile(self._profiles)

    def ev_profile(self) -> EvProfile:
        """A new EV profile, in INIT."""
        return EvProfile(self._profiles)

    def ev_profile_to(self, peer: Sequence[SocketAddress], paths: Srv6Paths) -> EvProfile:
        """An ONLINE EV profile of SRv6 paths to a node, such as ``fabric.ev_set("h0", "h4")``.

        Args:
            peer: The node's address per port.
            paths: Entropy value, port and outer destination of each.

        Raises:
            UnsupportedError: if the device is not in SRv6 mode.
            DeviceError: if there is no route or no neighbour for a path.
        """
        ev_format, profile = self.ev_format_profile(), self.ev_profile()
        ev_format.modify(ProfileState.OFFLINE, ev_format=EvFormat.SRV6, widths=[128])
        ev_format.modify(ProfileState.ONLINE)
        routes = {Ev(path.ev, path.plane): path.address for path in paths.entries}
        profile.modify(
            ProfileState.OFFLINE,
            mode=EvMode.EXPLICIT,
            format_profile=ev_format,
            count=len(routes),
            ports=tuple(sorted({ev.port for ev in routes})),
            active=paths.active,
            event_mask=EvEventMask.ALL,
            peer=tuple(peer),
            routes=routes,
        )
        for ev in routes:
            profile.replace_ev(None, ev)
        profile.modify(ProfileState.ONLINE)
        return profile

    def cc_profile(self) -> CcProfile:
        """A new congestion control profile, in INIT."""
        return CcProfile(self._profiles)

    # --- EV events ------------------------------------------------------------------------------------------

    def _wanted(self, event: EvEvent) -> EvEvent | None:
        """The event, with the entropy value as its profile has it, if the profile's mask lets it pass."""
        named = self._profiles.named_event(event.profile_id, (event.port, event.ev), event.state)
        return None if named is None else dataclasses.replace(event, ev=named)

    def poll_ev_events(self, num_entries: int = 16) -> list[EvEvent]:
        """Returns at once up to ``num_entries`` EV events that the profiles' masks let pass, oldest first.

        Raises:
            ClosedError: if the context is closed.
        """
        events: list[EvEvent] = []
        while len(events) < num_entries and (event := self.context.ev_events.poll()) is not None:
            if (wanted := self._wanted(event)) is not None:
                events.append(wanted)
        return events

    async def ev_events(self) -> AsyncIterator[EvEvent]:
        """Yields every EV event that the masks let pass, until the context is closed."""
        async for event in self.context.ev_events:
            if (wanted := self._wanted(event)) is not None:
                yield wanted

    # --- endpoint operations --------------------------------------------------------------------------------

    def add_peer(self, addresses: Iterable[SocketAddress]) -> Peer:
        """Makes a node known without a queue pair: it gets answers to EV probes, and port status updates.

        Raises:
            ArgumentError: if the addresses cannot be reached from this device's.
            ClosedError: if the context is closed.
        """
        addresses = list(addresses)
        self.context._know_paths_to(addresses)
        return Peer(self._core, self._core.add_peer(addresses))

    def probe_ev(self, probes: Sequence[EvProbe], timeout: float = 1.0) -> list[EvProbeResult]:
        """Sends all EV probes and waits ``timeout`` seconds for answers (``mrc_ctl_probe_ev``).

        Only nodes that know this one, by a queue pair or by :meth:`add_peer`, answer.

        Returns:
            One result per probe, in the same order.

        Raises:
            ArgumentError: if this device cannot reach an address or does not have a path.
            ClosedError: if the context is closed.
        """

        def ask(peer: tuple[SocketAddress, ...], chosen: list[EvProbe]) -> list[int | None]:
            labels = [self._label(probe.ev) for probe in chosen]
            return self._core.ev_probe(list(peer), [(label.port, label.value) for label in labels], timeout)

        rtts = self._by_peer(probes, ask)
        return [EvProbeResult(probe.probe_id, probe.ev, rtt) for probe, rtt in zip(probes, rtts, strict=True)]

    def _label(self, ev: Ev) -> Ev:
        """What packets carry of an entropy value."""
        path = self._profiles.known_path(ev)
        return ev if path is None else Ev(value=path[1], port=path[0])

    def update_port_status(
        self, updates: Sequence[PortStatusUpdate], timeout: float = 1.0
    ) -> list[PortStatusResult]:
        """Sends all port status updates and waits ``timeout`` seconds for the answers.

        Each is sent once (``mrc_ctl_ep_batch_send_wait``). Beside that, the NIC sends one by itself to every
        node it knows when a port changes (:meth:`set_port_admin`, or a link going down), and repeats it until
        it is answered. A node believes an update when the ports have confirmed it.

        Returns:
            One result per update, in the same order.

        Raises:
            ArgumentError: if a port does not exist or is down, or an address cannot be reached.
            ClosedError: if the context is closed.
        """
        ports = range(len(self.context.device.ports))
        for update in updates:
            named = [*update.ports_up, *([] if update.port is None else [update.port])]
            if wrong := [port for port in named if port not in ports]:
                raise ArgumentError(f"port {wrong[0]}: the device has ports 0 to {len(ports) - 1}")

        def send(peer: tuple[SocketAddress, ...], chosen: list[PortStatusUpdate]) -> list[int | None]:
            pairs = [(list(update.ports_up), update.port) for update in chosen]
            return self._core.send_port_status(list(peer), pairs, timeout)

        rtts = self._by_peer(updates, send)
        return [PortStatusResult(update.update_id, rtt) for update, rtt in zip(updates, rtts, strict=True)]

    def _by_peer(
        self,
        requests: Sequence[R],
        ask: Callable[[tuple[SocketAddress, ...], list[R]], list[int | None]],
    ) -> list[int | None]:
        """Asks every peer at the same time; what it says of each request, in their order."""
        by_peer: dict[tuple[SocketAddress, ...], list[int]] = {}
        for i, request in enumerate(requests):
            by_peer.setdefault(tuple(map(tuple, request.peer)), []).append(i)  # type: ignore[arg-type]
        for peer in by_peer:
            self.context._know_paths_to(peer)
        rtts: dict[int, int | None] = {}
        with ThreadPoolExecutor(max_workers=min(64, max(1, len(by_peer)))) as pool:
            asked = [
                pool.submit(ask, peer, [requests[i] for i in places]) for peer, places in by_peer.items()
            ]
            for places, answer in zip(by_peer.values(), asked, strict=True):
                rtts.update(zip(places, answer.result(), strict=True))
        return [rtts[i] for i in range(len(requests))]

    # --- ports ----------------------------------------------------------------------------------------------

    def query_ports(self) -> list[PortState]:
        """The state of every port.

        Raises:
            ClosedError: if the context is closed.
        """
        return [PortState(port=i, **state) for i, state in enumerate(self._core.port_states())]

    def set_port_admin(self, port: int, *, up: bool) -> None:
        """Enables or disables a port. A disabled port neither sends nor receives; peers are notified.

        Raises:
            ArgumentError: if there is no such port.
            ClosedError: if the context is closed.
        """
        self._core.set_port_admin(port, up)
