"""What a controller stores in a database that may be slow or away: lease, changes, faults, decisions.

The store is called in one thread of its own. What is only history waits in a list while the store fails; a
decision that cannot be stored is refused.
"""

import asyncio
import contextlib
import logging
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from openmrc.errors import StateError
from openmrc.operate import holder
from openmrc.operate.faults import Faults
from openmrc.operate.model import Change, Outcome
from openmrc.operate.store import Store, reason

LEASE_S = 10.0
_MOST_PENDING = 100_000
_log = logging.getLogger("openmrc.controller")
T = TypeVar("T")


class LeaseLostError(StateError):
    """Another controller has taken over."""


class Records:
    """The store as a controller uses it."""

    def __init__(self, store: Store, fabric: str, faults: Callable[[], Faults]) -> None:
        """Stores nothing yet.

        Args:
            store: It is closed with the records.
            fabric: Name of the fabric.
            faults: The faults of now.
        """
        self.store = store
        self.error: str | None = None
        """Why nothing can be stored."""
        self._fabric = fabric
        self._faults = faults
        self._thread = ThreadPoolExecutor(1, "openmrc store")
        self._holder = str(holder.own())
        self._pending: deque[Change] = deque(maxlen=_MOST_PENDING)

    async def take_lease(self, *, waiting: Callable[[str], object] | None = None) -> bool:
        """Takes the lease of the fabric, so that two controllers do not fight; whether it had to wait.

        Args:
            waiting: Called with the name of the other controller before it waits; ``None``: it does not.

        Raises:
            StateError: if another controller has it and ``waiting`` is not given.
        """
        told = False
        while other := await self._call(self.store.take_lease, self._holder, LEASE_S):
            known = holder.parsed(other)
            if known is not None and holder.has_gone(known):
                # It was killed: its lease would run out, but nobody will renew it.
                _log.warning("the controller before, %s, has gone", holder.shown(other))
                await self._call(self.store.give_lease, other)
                continue
            shown = holder.shown(other)
            if waiting is None:
                raise StateError(f"controller {shown} has fabric {self._fabric}; end it first")
            if not told:
                waiting(shown)
                told = True
            await asyncio.sleep(1.0)
        return told

    async def keep_lease(self) -> None:
        """Renews the lease until it is cancelled.

        Raises:
            LeaseLostError: if another controller has taken over.
        """
        while True:
            await asyncio.sleep(LEASE_S / 4)
            try:
                other = await self._call(self.store.take_lease, self._holder, LEASE_S)
            except Exception as error:
                self._failed(error)
                continue
            if other is not None:
                shown = holder.shown(other)
                raise LeaseLostError(f"controller {shown} has taken over fabric {self._fabric}")
            if not self._pending and not self._faults().unsaved():
                self.error = None

    async def keep_history(self) -> None:
        """Stores changes and faults, and forgets old ones, until it is cancelled."""
        forgotten = 0.0
        while True:
            await asyncio.sleep(0.5)
            try:
                await self.flush()
                if time.monotonic() - forgotten > 3600:
                    await self._call(self.store.forget, time.time())
                    forgotten = time.monotonic()
            except Exception as error:
                self._failed(error)

    async def close(self) -> None:
        """Stores what is left and gives the lease back."""
        with contextlib.suppress(Exception):
            await self.flush()
            await self._call(self.store.give_lease, self._holder)
        self._thread.shutdown()
        self.store.close()

    def add(self, change: Change) -> None:
        """Takes a change, to be stored soon."""
        self._pending.append(change)

    async def flush(self) -> None:
        """Stores what waits.

        Raises:
            Exception: if the store fails; then it waits still.
        """
        # What comes meanwhile waits for the next time: it must not push out what is being stored.
        changes, self._pending = self._pending, deque(maxlen=_MOST_PENDING)
        faults = self._faults().unsaved()
        if changes:
            try:
                await self._call(self.store.keep_changes, changes)
            except Exception:
                self._pending = deque([*changes, *self._pending], maxlen=_MOST_PENDING)
                raise
        if faults:
            await self._call(self.store.keep_faults, faults)
            self._faults().saved(faults)
        if changes or faults:
            self.error = None

    async def decide(self, outcome: Outcome, changes: dict[str, Any]) -> Outcome:
        """Stores a decision; returns it with its number.

        Raises:
            StateError: if it cannot be stored.
        """
        try:
            return await self._call(lambda: self.store.decide(outcome, **changes))
        except Exception as error:
            self._failed(error)
            raise StateError(
                f"nothing was changed: the decision cannot be stored ({reason(error)})"
            ) from None

    async def changes(self, link: str, most: int) -> list[Change]:
        """The last changes of a link, the newest first: those that wait, and those that the store has."""
        waiting = [change for change in self._pending if change.link == link]
        try:
            history = await self._call(self.store.changes, link, most)
        except Exception as error:
            self._failed(error)
            history = []
        known = {(change.time, change.evidence) for change in history}
        recent = [change for change in reversed(waiting) if (change.time, change.evidence) not in known]
        return [*recent, *history][:most]

    async def decisions(self, most: int) -> list[Outcome]:
        """The last decisions, the newest first.

        Raises:
            StateError: if the store fails.
        """
        try:
            return await self._call(self.store.decisions, most)
        except Exception as error:
            self._failed(error)
            raise StateError(f"the store cannot be read: {reason(error)}") from None

    async def _call(self, call: Callable[..., T], *arguments: Any) -> T:
        # A call goes on to its end though whoever waits for it is cancelled.
        loop = asyncio.get_running_loop()
        return await asyncio.shield(loop.run_in_executor(self._thread, call, *arguments))

    def _failed(self, error: Exception) -> None:
        told = reason(error)
        if told != self.error:
            _log.warning("nothing can be stored: %s", told)
        self.error = told
