"""Arrays, tensors and buffers: the object whose memory the core takes, type and number of its elements."""

import ctypes
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from openmrc.errors import ArgumentError

SIZES = {
    "float64": 8, "float32": 4, "float16": 2, "bfloat16": 2, "float8_e4m3fn": 1, "float8_e5m2": 1,
    "int64": 8, "int32": 4, "int16": 2, "int8": 1, "uint8": 1, "bool": 1,
}  # fmt: skip
"""Bytes of an element, by the name of its type."""

_FORMATS = {
    "d": "float64", "f": "float32", "e": "float16", "q": "int64", "l": "int64", "i": "int32", "h": "int16",
    "b": "int8", "B": "uint8", "c": "uint8", "?": "bool",
}  # fmt: skip
"""Types by the format of a buffer (PEP 3118, this machine's sizes)."""

_NATIVE = frozenset(_FORMATS.values())
"""Types with a format: those that NumPy gets from elsewhere, such as bfloat16, have none."""


@dataclass(slots=True)
class Buffer:
    """Memory of the caller, in one piece."""

    owner: Any
    """What the core takes: it keeps the memory in place until the operation has ended."""
    count: int
    """Elements."""
    dtype: str
    """Name of their type."""


def buffer(value: Any, what: str, *, writable: bool = False, dtype: str | None = None) -> Buffer:
    """The memory of an array, tensor or buffer.

    Args:
        value: NumPy array, torch tensor in main memory, or an object with the buffer protocol.
        what: What it is, for errors.
        writable: It will be written.
        dtype: The type that its elements must have.

    Raises:
        ArgumentError: if it lies on another device, is not contiguous or read-only, or its elements have
            another type, or one that cannot be sent.
    """
    result = _tensor(value, what) if hasattr(value, "data_ptr") else _array(value, what, writable)
    if dtype is not None and result.dtype != dtype:
        raise ArgumentError(f"{what} has elements of type {result.dtype}, not {dtype}")
    return result


def _tensor(tensor: Any, what: str) -> Buffer:
    # Called for every operation, also small ones: each look at a tensor costs a tenth of a microsecond.
    if not tensor.is_cpu:
        raise ArgumentError(f"{what} is on device {tensor.device}: only tensors in main memory can be sent")
    if tensor.layout is not sys.modules["torch"].strided or not tensor.is_contiguous():
        raise ArgumentError(f"{what} is not contiguous: use .contiguous()")
    if tensor.is_neg() or tensor.is_conj():
        raise ArgumentError(
            f"{what} is a lazily conjugated or negated view: use .resolve_conj().resolve_neg()"
        )
    dtype = tensor.dtype
    name = _TENSOR_TYPES.get(dtype)
    if name is None:
        name = _TENSOR_TYPES[dtype] = _known(str(dtype).removeprefix("torch."), what)
    return Buffer(tensor, tensor.numel(), name)


_TENSOR_TYPES: dict[Any, str] = {}
"""Names of the types of tensors that were seen."""


def _array(value: Any, what: str, writable: bool) -> Buffer:
    dtype: Any = getattr(value, "dtype", None)
    name = getattr(dtype, "name", None)
    if isinstance(name, str) and hasattr(value, "ctypes"):
        _known(name, what)
        if not value.flags.c_contiguous:
            raise ArgumentError(f"{what} is not C-contiguous: use numpy.ascontiguousarray")
        if dtype.byteorder not in "=|<" or (dtype.byteorder == "<" and not _little_endian()):
            raise ArgumentError(f"{what} has the byte order of another machine")
        if writable and not value.flags.writeable:
            raise ArgumentError(f"{what} is read-only")
        return Buffer(value if name in _NATIVE else _bytes(value), value.size, name)
    try:
        view = memoryview(value)
    except TypeError as error:
        raise ArgumentError(
            f"{what} is a {type(value).__name__}: it must be an array, a tensor or a buffer"
        ) from error
    if not view.c_contiguous:
        raise ArgumentError(f"{what} is not contiguous")
    if writable and view.readonly:
        raise ArgumentError(f"{what} is read-only")
    name = _known(_FORMATS.get(view.format.lstrip("@="), view.format), what)
    return Buffer(view, view.nbytes // SIZES[name], name)


def _known(name: str, what: str) -> str:
    if name not in SIZES:
        raise ArgumentError(f"{what} has elements of type {name}, which cannot be sent: {', '.join(SIZES)}")
    return name


def _little_endian() -> bool:
    return ctypes.c_uint16.from_buffer(bytearray(b"\x01\x00")).value == 1


def _bytes(array: Any) -> Any:
    """An array of a type without a buffer, such as bfloat16, as one of bytes."""
    return array.reshape(-1).view("uint8")


def same_count(found: int, needed: int, what: str) -> None:
    """Refuses a number of elements that is not the needed one."""
    if found != needed:
        raise ArgumentError(f"{what} has {found} elements, not {needed}")


def output_of(value: Any, count: int, source: Buffer) -> Buffer:
    """The output of an operation: ``count`` elements of the input's type."""
    target = buffer(value, "the output", writable=True, dtype=source.dtype)
    same_count(target.count, count, "the output")
    return target


def parts_of(counts: Sequence[int] | None, total: int, ranks: int, what: str) -> list[int]:
    """Elements of each rank's part of a buffer; by default all alike.

    Raises:
        ArgumentError: if the parts do not add up to the buffer.
    """
    if counts is None:
        if total % ranks:
            raise ArgumentError(f"the {what} has {total} elements, which {ranks} ranks cannot share alike")
        return [total // ranks] * ranks
    result = [int(n) for n in counts]
    if len(result) != ranks or min(result) < 0:
        raise ArgumentError(f"counts are {result}: one for each of {ranks} ranks is needed")
    same_count(total, sum(result), f"the {what}")
    return result
