"""A point in time by which something must be over."""

import time


class Deadline:
    """When something must be over.

    Args:
        seconds: From now on; ``None``: no limit.
    """

    def __init__(self, seconds: float | None) -> None:
        self._end = None if seconds is None else time.monotonic() + seconds

    def left(self) -> float | None:
        """Seconds until then, at least 0; ``None``: no limit."""
        return None if self._end is None else max(0.0, self._end - time.monotonic())

    @property
    def over(self) -> bool:
        """Whether the time has passed."""
        return self.left() == 0.0
