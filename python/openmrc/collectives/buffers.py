"""Arrays, tensors and buffers: the object whose memory the core takes, type and number of its elements."""

import ctypes
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from openmrc.errors import ArgumentError

SIZES = {
    "float64": 8, "float32": 4, "float16": 2, "bfloat16": 2, "float8_e4m3fn": 1, "float8_e5m2": 1,
    "int64": 8, "int32": 4, "int16": 2, "int8": 1, "uint64": 8, "uint32": 4, "uint16": 2, "uint8": 1,
    "bool": 1,
}  # fmt: skip
"""Bytes of an element that the core reduces, by the name of its type."""

_COMPLEX = {"complex64": "float32", "complex128": "float64"}
"""Types that are pairs of another one."""

REDUCED = "sum", "avg"
"""Reductions of complex numbers."""

_FORMATS = {
    "d": "float64", "f": "float32", "e": "float16", "q": "int64", "l": "int64", "i": "int32", "h": "int16",
    "b": "int8", "Q": "uint64", "L": "uint64", "I": "uint32", "H": "uint16", "B": "uint8", "c": "uint8",
    "?": "bool",
}  # fmt: skip
"""Types by the format of a buffer (PEP 3118, this machine's sizes)."""

_NATIVE = frozenset(_FORMATS.values())
"""Types with a format: those that NumPy gets from elsewhere, such as bfloat16, have none."""


@dataclass(slots=True)
class Buffer:
    """Memory of the caller in one piece, or a copy of it in one piece."""

    owner: Any
    """What the core takes: it keeps the memory in place until the operation has ended."""
    count: int
    """Elements."""
    dtype: str
    """Name of their type."""
    carrier: str
    """Name of the type as which the core carries them: a part of a complex number, or a byte of a type that
    it does not know."""
    width: int = 1
    """Elements of ``carrier`` in each."""
    copy_back: Callable[[], None] | None = None
    """Of a copy that is written: copies it where it belongs, once the operation has ended."""


def buffer(value: Any, what: str, *, writable: bool = False, dtype: str | None = None) -> Buffer:
    """The memory of an array, tensor or buffer.

    Args:
        value: NumPy array, torch tensor in main memory, or an object with the buffer protocol.
        what: What it is, for errors.
        writable: It will be written.
        dtype: The type that its elements must have.

    Arrays and tensors that are not contiguous are copied.

    Raises:
        ArgumentError: if it lies on another device, is a buffer that is not contiguous, is read-only, or its
            elements have another type, or one that cannot be sent.
    """
    result = _tensor(value, what, writable) if hasattr(value, "data_ptr") else _array(value, what, writable)
    if dtype is not None and result.dtype != dtype:
        raise ArgumentError(f"{what} has elements of type {result.dtype}, not {dtype}")
    return result


def _tensor(tensor: Any, what: str, writable: bool) -> Buffer:
    # Called for every operation, also small ones: each look at a tensor costs a tenth of a microsecond.
    if not tensor.is_cpu:
        raise ArgumentError(f"{what} is on device {tensor.device}: only tensors in main memory can be sent")
    if tensor.layout is not sys.modules["torch"].strided:
        raise ArgumentError(f"{what} is sparse: use .to_dense()")
    if tensor.is_neg() or tensor.is_conj():
        raise ArgumentError(
            f"{what} is a lazily conjugated or negated view: use .resolve_conj().resolve_neg()"
        )
    dtype = tensor.dtype
    types = _TENSOR_TYPES.get(dtype)
    if types is None:
        types = _TENSOR_TYPES[dtype] = _types(str(dtype).removeprefix("torch."), dtype.itemsize)
    name, carrier, width = types
    if tensor.is_contiguous():
        return Buffer(tensor, tensor.numel(), name, carrier, width)
    copy = tensor.detach().contiguous()

    def copy_back() -> None:
        tensor.detach().copy_(copy)

    return Buffer(copy, copy.numel(), name, carrier, width, copy_back if writable else None)


_TENSOR_TYPES: dict[Any, tuple[str, str, int]] = {}
"""Name, carrier and width of the types of tensors that were seen."""


def _array(value: Any, what: str, writable: bool) -> Buffer:
    # Called for every operation, also small ones: NumPy makes the name of a type, and `ctypes` of an array,
    # anew each time, and each takes longer than all the rest.
    dtype: Any = getattr(value, "dtype", None)
    if dtype is not None and hasattr(type(value), "ctypes"):
        types = _ARRAY_TYPES.get(dtype)
        if types is None:
            types = _ARRAY_TYPES[dtype] = _types_of_array(dtype, what)
        name, carrier, width = types
        flags = value.flags
        if writable and not flags.writeable:
            raise ArgumentError(f"{what} is read-only")
        if flags.c_contiguous:
            return Buffer(value if name in _NATIVE else _bytes(value), value.size, name, carrier, width)
        return _scattered(value, types, writable)
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
    name = _FORMATS.get(view.format.lstrip("@="), "")
    if not name:
        raise ArgumentError(f"{what} has elements of format {view.format!r}, which cannot be sent")
    return Buffer(view, view.nbytes // SIZES[name], name, name)


def _scattered(array: Any, types: tuple[str, str, int], writable: bool) -> Buffer:
    """A copy of an array that is not in one piece."""
    copy = array.copy("C")

    def copy_back() -> None:
        array[...] = copy

    owner = copy if types[0] in _NATIVE else _bytes(copy)
    return Buffer(owner, array.size, *types, copy_back if writable else None)


_ARRAY_TYPES: dict[Any, tuple[str, str, int]] = {}
"""Name, carrier and width of the types of arrays that were seen."""


def _types_of_array(dtype: Any, what: str) -> tuple[str, str, int]:
    if dtype.hasobject:
        raise ArgumentError(f"{what} has elements of type {dtype.name}, which are Python objects")
    if dtype.byteorder not in "=|<" or (dtype.byteorder == "<" and not _little_endian()):
        raise ArgumentError(f"{what} has the byte order of another machine")
    return _types(dtype.name, dtype.itemsize)


def _types(name: str, size: int) -> tuple[str, str, int]:
    """Name, carrier and width of a type."""
    if name in SIZES:
        return name, name, 1
    if name in _COMPLEX:
        return name, _COMPLEX[name], 2
    return name, "uint8", size


def check_reduction(source: Buffer, op: str) -> None:
    """Refuses to reduce elements that can only be moved, and reductions that complex numbers do not have."""
    if source.dtype not in SIZES and not (source.dtype in _COMPLEX and op in REDUCED):
        raise ArgumentError(f"there is no {op} of {source.dtype}")


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
