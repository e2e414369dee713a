"""EV sets: the entropy values that a queue pair may use (docs/spec/paths.md, "EV set")."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from ipaddress import IPv6Address
from math import gcd
from typing import NamedTuple

from openmrc import _core
from openmrc.errors import ArgumentError

MAX_ACTIVE = _core.MAX_ACTIVE_EVS
"""Largest active set (docs/spec/paths.md, "EV set")."""

_U64 = (1 << 64) - 1


class EvEntry(NamedTuple):
    """One path of an EV set."""

    ev: int
    """Entropy value, 32 bits; in SRv6 mode packets carry it in source port and flow label."""
    plane: int
    """The NIC port that the path starts at."""
    address: IPv6Address
    """Outer destination address."""


@dataclass(frozen=True)
class EvSet:
    """A list of entropy values, plane after plane; in each plane first the active, then the backup ones.

    A controller makes an EV profile of it. It has what the software NIC needs to send: the EV, the port, and
    in SRv6 mode the outer destination address.
    """

    src: str
    dst: str
    entries: tuple[EvEntry, ...]
    planes: int
    active: int
    """EVs in rotation, over all planes."""
    backup: int
    """EVs in reserve, over all planes."""

    @classmethod
    def of_rows(cls, src: str, dst: str, rows: Sequence[tuple[int, int, str]], *, active: int) -> "EvSet":
        """An EV set of (EV, plane, address) rows, ``active`` of them in rotation."""
        entries = tuple(
            sorted((EvEntry(ev, plane, IPv6Address(a)) for ev, plane, a in rows), key=lambda e: e.plane)
        )
        return cls(src, dst, entries, len({e.plane for e in entries}), active, len(entries) - active)

    def __len__(self) -> int:
        return len(self.entries)

    def __repr__(self) -> str:
        kinds = f"{self.active} active and {self.backup} backup EVs"
        return f"<EvSet from {self.src} to {self.dst}: {kinds} over {self.planes} planes>"

    def __iter__(self) -> Iterator[EvEntry]:
        return iter(self.entries)

    @property
    def evs(self) -> tuple[int, ...]:
        """The entropy values."""
        return tuple(entry.ev for entry in self.entries)

    @property
    def ports(self) -> tuple[int, ...]:
        """The NIC port of each."""
        return tuple(entry.plane for entry in self.entries)

    @property
    def addresses(self) -> tuple[IPv6Address, ...]:
        """The outer destination address of each."""
        return tuple(entry.address for entry in self.entries)


def choose_paths(
    count: int, planes: int, src: int, dst: int, *, active: int, backup: int | None, seed: int
) -> tuple[list[int], list[int]]:
    """Chooses active and backup paths out of ``count`` paths, which are numbered plane after plane.

    Every plane gets the same number. Within a plane the uplinks follow an affine permutation that depends on
    source, destination and seed. So different pairs load different T1s, and the active set is spread over all
    of them.

    Raises:
        ArgumentError: if ``active`` or ``backup`` is out of range.
    """
    if not 1 <= active <= MAX_ACTIVE:
        raise ArgumentError(f"active: {active} is out of range: 1 to {MAX_ACTIVE}")
    if active < planes:
        raise ArgumentError(f"active: {active} EVs are fewer than one for each of {planes} planes")
    if backup is not None and not 0 <= backup <= MAX_ACTIVE:
        raise ArgumentError(f"backup: {backup} is out of range: 0 to {MAX_ACTIVE}")
    per_plane = count // planes
    in_use = min(active // planes, per_plane)
    reserve = min((active if backup is None else backup) // planes, per_plane - in_use)
    chosen: tuple[list[int], list[int]] = ([], [])
    for plane in range(planes):
        mixed = _core.mix(_core.mix(_core.mix(seed & _U64) ^ src) ^ dst << 8 ^ plane)
        start, step = mixed % per_plane, _coprime(mixed >> 32, per_plane)
        for turn in range(in_use + reserve):
            number = plane * per_plane + (start + turn * step) % per_plane
            chosen[turn >= in_use].append(number)
    return chosen


def _coprime(wish: int, count: int) -> int:
    """A step that visits all of ``range(count)``: the first number from ``wish`` on that is coprime to it."""
    step = wish % count
    while gcd(step, count) != 1:
        step += 1
    return step
