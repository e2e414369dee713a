"""Says which cable is broken as soon as it is known, while something else runs."""

import contextlib
import os
import threading
from collections.abc import Callable, Iterator

from openmrc.fabric import Fabric
from openmrc.observe import devices
from openmrc.operate.locate import Locator, described, published

PERIOD_S = 0.25
"""Between two looks."""


@contextlib.contextmanager
def watching(fabric: Fabric | None, say: Callable[[str], object]) -> Iterator[None]:
    """Looks at the devices of this user's processes, this one's among them, while the block runs.

    Nothing is said where no fabric is known or this process publishes no device (``OPENMRC_OBSERVE=0``).

    Args:
        fabric: The fabric; ``None``: it is not known, and nothing is watched.
        say: Takes each new verdict as a sentence, in another thread.
    """
    if fabric is None:
        yield
        return
    ended = threading.Event()
    thread = threading.Thread(
        target=_watch, args=(Locator(fabric), say, ended), name="openmrc locate", daemon=True
    )
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _watch(locator: Locator, say: Callable[[str], object], ended: threading.Event) -> None:
    said: set[str] = set()
    before: set[str] = set()
    while not ended.wait(PERIOD_S):
        if not any(path.name.startswith(f"{os.getpid()}-") for path in devices()):
            continue
        verdicts = {
            str(v.component or [s for s, _ in v.suspects]): v
            for v in locator.sight(published()[0]).verdicts()
        }
        # Twice in a row: the first look may come between the condemnations of one fault's paths.
        for name in verdicts.keys() & before - said:
            said.add(name)
            say(described(verdicts[name]))
        before = set(verdicts)
