"""How the ranks of a communicator meet.

Each rank publishes its address in a store, opens its planes, and gives every other rank a card.
"""

import contextlib
import ipaddress
import json
import os
import secrets
import socket
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from openmrc import _core
from openmrc.collectives import lifelines, tuning
from openmrc.collectives.exchange import Exchange
from openmrc.collectives.lifelines import Lifelines
from openmrc.collectives.store import Store, TcpStore
from openmrc.control import Token
from openmrc.errors import ArgumentError, ConnectError
from openmrc.planes import Planes, lab_host, path_mtu
from openmrc.verbs import Context, SocketAddress
from openmrc.verbs.attr import MAX_PATH_MTU

_DEFAULTS = _core.COLLECTIVE_DEFAULTS
SPIN = _DEFAULTS["spin_us"] * 1e-6
"""Seconds: longer than a message takes between two ranks that both run."""


@dataclass(frozen=True, slots=True)
class Tuned:
    """What a communicator is made with, besides its ranks."""

    shared_memory: bool = _DEFAULTS["shared_memory"]
    """Ranks of one host exchange through shared memory."""
    keepalive: float = _DEFAULTS["keepalive_ms"] * 1e-3
    """Seconds of silence after which a rank of another host is probed."""
    spin: float | None = None
    """Seconds for which a waiting thread looks for messages before it sleeps, default 30 us. Where the ranks
    of this host have fewer processors than they are, it lets others run between two looks."""
    algorithms: Mapping[str, int] | None = None
    """Sizes at which the algorithm changes, bytes: ``direct``, ``halving``, ``tree``; ``direct_ranks``. Those
    of rank 0 count. Default: what ``openmrc tune`` has measured on its machine, if it was run there."""


_RANK = ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID")
_SIZE = ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_NTASKS")
"""Variables of torchrun, Open MPI, MPICH and Slurm."""


@dataclass(frozen=True, slots=True)
class Environment:
    """What a launcher such as ``torchrun`` or ``mpirun`` passes to a process."""

    rank: int
    size: int
    host: str
    port: int

    @staticmethod
    def is_set() -> bool:
        """Whether a launcher has started this process."""
        return any(name in os.environ for name in _RANK) and any(name in os.environ for name in _SIZE)

    @classmethod
    def read(cls) -> "Environment":
        """Reads RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT, or those of Open MPI, MPICH and Slurm.

        Raises:
            ArgumentError: if a variable is missing or no number.
        """
        rank, size = _first(*_RANK), _first(*_SIZE)
        host = os.environ.get("MASTER_ADDR", "127.0.0.1" if size == 1 else "")
        if not host:
            raise ArgumentError("MASTER_ADDR is not set: the address of rank 0's host")
        port = _first("MASTER_PORT") if size > 1 or "MASTER_PORT" in os.environ else 0
        return cls(rank, size, host, port)


def _first(*names: str) -> int:
    for name in names:
        if (value := os.environ.get(name)) is not None:
            try:
                return int(value)
            except ValueError:
                raise ArgumentError(f"{name} is {value!r}, which is no number") from None
    raise ArgumentError(f"{names[0]} is not set: start the ranks with torchrun, mpirun, or set it yourself")


def local_ranks(size: int) -> list[dict[str, str]]:
    """The variables of each rank of a job on this machine, as ``torchrun`` sets them.

    Their port was free a moment ago.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    job = {"WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    return [{**job, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(size)]


def host_key() -> str:
    """Which machine and network namespace this is: hosts of a lab are namespaces of one machine."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return f"{boot}/{Path('/proc/self/ns/net').readlink()}"


def is_crowded(places: Sequence[Mapping[str, Any]], rank: int) -> bool:
    """Whether the ranks of its host have fewer processors than they are. A rank may be bound to one."""
    here = [place["cpus"] for place in places if place["host"] == places[rank]["host"]]
    return len(here) > len(set().union(*here))


def default_path_mtu(addresses: Sequence[SocketAddress]) -> int:
    """Most payload bytes per packet of a rank with planes at these addresses.

    On loopback it is the largest that the interface carries, as half as many packets cost less. Elsewhere the
    default of a queue pair is kept, which fits the usual jumbo frames.
    """
    on_loopback = all(ipaddress.ip_address(address).is_loopback for address, _ in addresses)
    return path_mtu(addresses, addresses, MAX_PATH_MTU) if on_loopback else _DEFAULTS["path_mtu"]


def meet(
    store: Store,
    prefix: str,
    rank: int,
    size: int,
    *,
    address: str,
    open_device: Callable[[bool, int], Context],
    planes: Planes,
    tuned: Tuned,
    timeout: float,
    token: Token | None = None,
    members: Sequence[int] | None = None,
) -> "tuple[Context, _core.CollectiveGroup, Lifelines | None]":
    """Meets the other ranks and connects with them.

    Args:
        store: Where the ranks exchange their addresses and cards.
        prefix: Begin of this communicator's keys, the same at all ranks and used once.
        rank: This rank.
        size: Number of ranks.
        address: Address by which other hosts reach this one.
        open_device: Opens the planes; gets whether all ranks are on this host, and their number.
        planes: The planes, for what their routes carry.
        tuned: Options.
        timeout: Seconds for all of it.
        token: Secret that all ranks must have, for a store that does not ask for it.
        members: By rank, the number by which communicators know it; ``None``: the ranks need no lifelines,
            as another communicator has some.

    Raises:
        DeadlineError: if a rank does not come.
        ArgumentError: if ranks disagree about their number or shared memory, or have no planes in common.
        ConnectError: if the store is lost, a rank has failed, or has no or another token.
        DeviceError: if the planes cannot be opened.
    """
    exchange = Exchange(store, prefix, rank, size, ("host", "planes", "cards"), timeout=timeout, token=token)
    here: dict[str, Any] = {
        "host": host_key(),
        "cpus": sorted(os.sched_getaffinity(0)),
        "size": size,
        "shared_memory": tuned.shared_memory,
        "token": token is not None,
        "nonce": secrets.token_hex(16),
    }
    with contextlib.ExitStack() as undo:
        listeners: list[socket.socket] = []
        if rank == 0:
            # All ranks must choose the same algorithms.
            here["tuning"] = _tuning(tuned)
            if members is not None and size > 1:
                listeners = lifelines.listen(address, planes.known_addresses())
                for each in listeners:
                    undo.enter_context(each)
                here["lifelines"] = [each.getsockname()[:2] for each in listeners]
        exchange.put("host", json.dumps(here).encode())
        try:
            places, context, group = _meet(exchange, rank, size, open_device, planes, tuned)
        except Exception as error:
            exchange.fail(error)
            raise
        one_host = len({place["host"] for place in places}) == 1
        if members is None or "lifelines" not in places[0] or (one_host and tuned.shared_memory):
            return context, group, None
        secret = exchange.secret(bytes.fromhex(places[0]["nonce"]))
        hosts = [str(place["host"]) for place in places]
        if rank == 0:
            undo.pop_all()
            return context, group, Lifelines(0, members, listeners, secret, hosts)
        addresses = [(str(host), int(port)) for host, port in places[0]["lifelines"]]
        return context, group, Lifelines.join(rank, members, addresses, secret, hosts)


def _meet(
    exchange: Exchange,
    rank: int,
    size: int,
    open_device: Callable[[bool, int], Context],
    planes: Planes,
    tuned: Tuned,
) -> "tuple[list[dict[str, Any]], Context, _core.CollectiveGroup]":
    greetings: list[bytes] = []
    places: list[dict[str, Any]] = []
    # One by one: a rank of a larger job would wait for ranks that do not exist.
    for other in range(size):
        greetings.append(exchange.get("host", other))
        places.append(json.loads(greetings[-1]))
        _check_sizes(places, other, rank, size)
    _check_settings(places, rank)
    exchange.seal(greetings)
    hosts = [place["host"] for place in places]
    context = open_device(len(set(hosts)) == 1, size)
    with contextlib.ExitStack() as undo:
        undo.callback(context.close)
        exchange.put("planes", json.dumps(context.addresses).encode())
        addresses = [[(str(a), int(p)) for a, p in json.loads(value)] for value in exchange.all("planes")]
        mtu = default_path_mtu(context.addresses)
        for other, remote in enumerate(addresses):
            if hosts[other] != hosts[rank]:
                mtu = min(mtu, planes.path_mtu(context.addresses, remote, mtu))
        spin = SPIN if tuned.spin is None else tuned.spin
        rendezvous = _core.CollectiveRendezvous(
            context._core,
            rank,
            size,
            socket.gethostname(),
            tuned.shared_memory,
            mtu,
            round(tuned.keepalive * 1000),
            spin * 1e6,
            is_crowded(places, rank),
            _borders(places[0]["tuning"], size, one_host=len(set(hosts)) == 1),
        )
        exchange.put("cards", _pack([rendezvous.card(peer) for peer in range(size)]))
        group = rendezvous.connect([_unpack(value, size)[rank] for value in exchange.all("cards")])
        undo.pop_all()
    return places, context, group


def _check_sizes(places: Sequence[Mapping[str, Any]], other: int, rank: int, size: int) -> None:
    if places[other]["size"] != size:
        raise ArgumentError(
            f"rank {other} has come to a job of {places[other]['size']} ranks,"
            f" and rank {rank} to one of {size}"
        )


def _check_settings(places: Sequence[Mapping[str, Any]], rank: int) -> None:
    """Refuses ranks of which some have a token, or of one host some use shared memory."""
    for other, place in enumerate(places):
        if place["token"] != places[rank]["token"]:
            with_token, without = (other, rank) if place["token"] else (rank, other)
            raise ConnectError(
                f"rank {with_token} has an OPENMRC_TOKEN and rank {without} has none: all ranks need the same"
            )
        shared, ours = place["shared_memory"], places[rank]["shared_memory"]
        if place["host"] == places[rank]["host"] and shared != ours:
            sharing, alone = (other, rank) if shared else (rank, other)
            raise ArgumentError(
                f"rank {sharing} uses shared memory and rank {alone} of the same host does not"
                " (OPENMRC_SHARED_MEMORY=0): all ranks of a host need the same setting"
            )


def _tuning(tuned: Tuned) -> dict[str, Any]:
    """Sent by rank 0 to the others: sizes that its user has chosen, or that were measured on its machine."""
    if tuned.algorithms is not None:
        return {"chosen": dict(tuned.algorithms)}
    measured = [asdict(entry) for entry in tuning.read()]
    return {"measured": measured, "shared_memory": tuned.shared_memory}


def _borders(message: Mapping[str, Any], size: int, *, one_host: bool) -> dict[str, int]:
    if "chosen" in message:
        return dict(message["chosen"])
    entries = [tuning.Entry(**fields) for fields in message["measured"]]
    return tuning.choose(entries, size, shared_memory=one_host and message["shared_memory"])


def _pack(cards: list[bytes]) -> bytes:
    return b"".join(struct.pack(">I", len(card)) + card for card in cards)


def _unpack(value: bytes, size: int) -> list[bytes]:
    cards = []
    at = 0
    for _ in range(size):
        if at + 4 > len(value):
            raise ConnectError("the store gave cards of another communicator")
        (length,) = struct.unpack_from(">I", value, at)
        cards.append(value[at + 4 : at + 4 + length])
        at += 4 + length
    return cards


def own_address(store: Any, host: str) -> str:
    """Address by which other ranks reach this host: that by which it reaches the store."""
    if isinstance(store, TcpStore):
        return store.local_address
    family, kind, _, _, where = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind) as probe:
        probe.connect(where)
        return str(probe.getsockname()[0])


def planes_of_environment() -> Planes:
    """The planes that ``OPENMRC_ADDRESSES`` names, or the number of those on loopback, ``OPENMRC_PLANES``."""
    named = tuple(each for each in os.environ.get("OPENMRC_ADDRESSES", "").split(",") if each)
    count = os.environ.get("OPENMRC_PLANES")
    if count is not None and not count.isdigit():
        raise ArgumentError(f"OPENMRC_PLANES is {count!r}: a number from 1 to 16 is needed")
    return Planes(addresses=named, count=None if count is None else int(count), lab=lab_host())


def tuned_of_environment() -> Tuned:
    """The options that the environment sets: ``OPENMRC_SHARED_MEMORY``."""
    shared = os.environ.get("OPENMRC_SHARED_MEMORY", "1")
    if shared not in ("0", "1"):
        raise ArgumentError(f"OPENMRC_SHARED_MEMORY is {shared!r}: 0 or 1 is needed")
    return Tuned(shared_memory=shared == "1")
