"""Errors of a communicator as torch's: ``except dist.DistBackendError`` handles them, and so does ours."""

import functools
from collections.abc import Callable
from typing import Any

import torch.distributed as dist

from openmrc.errors import (
    AbortedError,
    ClosedError,
    ConnectError,
    DeadlineError,
    DeviceError,
    Error,
    MismatchError,
    RankLostError,
)

_BOTH: dict[type[Error], type[Error]] = {
    kind: type(
        kind.__name__, (kind, dist.DistBackendError), {"__module__": __name__, "__doc__": kind.__doc__}
    )
    for kind in (
        AbortedError,
        ClosedError,
        ConnectError,
        DeadlineError,
        DeviceError,
        MismatchError,
        RankLostError,
    )
}
"""By class of ours: one that is torch's too. Wrong arguments stay ours, which derive from ValueError."""


def of_torch(error: Error) -> Error:
    """The error as one that is torch's too, where torch has one."""
    kind = _BOTH.get(type(error))
    if kind is None:
        return error
    both = kind(*error.args)
    vars(both).update(vars(error))
    return both.with_traceback(error.__traceback__)


def as_torch_raises(method: Callable[..., Any]) -> Callable[..., Any]:
    """The function, which raises torch's errors."""

    @functools.wraps(method)
    def call(*arguments: Any, **options: Any) -> Any:
        try:
            return method(*arguments, **options)
        except Error as error:
            both = of_torch(error)
            if both is error:
                raise
            raise both from error.__cause__

    return call
