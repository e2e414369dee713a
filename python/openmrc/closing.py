"""What objects with a ``close`` method share."""

from types import TracebackType
from typing import Self


class Closable:
    """An object that its ``with`` block closes. ``close`` may be called twice."""

    def close(self) -> None:
        """Ends it."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
