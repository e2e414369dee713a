"""The common part of all header classes: checked fields, a readable ``repr``, a form for JSON."""

import dataclasses
import enum
import ipaddress
import types
import typing
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, NamedTuple, Self, TypeVar, dataclass_transform

from openmrc.errors import ArgumentError


class Number(NamedTuple):
    """Range and display of an integer field."""

    minimum: int
    maximum: int
    hex_digits: int = 0


def _unsigned(bits: int, *, as_hex: bool = False) -> Number:
    return Number(0, (1 << bits) - 1, (bits + 3) // 4 if as_hex else 0)


U2 = Annotated[int, _unsigned(2)]
U4 = Annotated[int, _unsigned(4)]
U6 = Annotated[int, _unsigned(6)]
U7 = Annotated[int, _unsigned(7)]
U8 = Annotated[int, _unsigned(8)]
U15 = Annotated[int, _unsigned(15)]
U16 = Annotated[int, _unsigned(16)]
U24 = Annotated[int, _unsigned(24)]
U32 = Annotated[int, _unsigned(32)]
I16 = Annotated[int, Number(-(1 << 15), (1 << 15) - 1)]
Hex8 = Annotated[int, _unsigned(8, as_hex=True)]
Hex16 = Annotated[int, _unsigned(16, as_hex=True)]
Hex20 = Annotated[int, _unsigned(20, as_hex=True)]
Hex24 = Annotated[int, _unsigned(24, as_hex=True)]
Hex32 = Annotated[int, _unsigned(32, as_hex=True)]
Hex64 = Annotated[int, _unsigned(64, as_hex=True)]

_T = TypeVar("_T")


@dataclass_transform(frozen_default=True, kw_only_default=True)
def header(cls: type[_T]) -> type[_T]:
    """Makes a header class, a subclass of :class:`Value`, from its annotated fields."""
    return dataclasses.dataclass(frozen=True, slots=True, kw_only=True, repr=False)(cls)


class _Field(NamedTuple):
    number: Number | None
    """Set for integers."""
    kind: type | None
    """Set for enumerations and nested values: the type that a plain value is converted to."""


_TABLES: dict[type, dict[str, _Field]] = {}


def _fields(cls: type) -> dict[str, _Field]:
    """The check, conversion and display of each field of a header class; computed once per class."""
    table = _TABLES.get(cls)
    if table is None:
        table = _TABLES[cls] = _read_annotations(cls)
    return table


def _read_annotations(cls: type) -> dict[str, _Field]:
    result = {}
    hints = typing.get_type_hints(cls, include_extras=True)
    for name in (each.name for each in dataclasses.fields(cls)):
        hint = hints[name]
        if typing.get_origin(hint) in (types.UnionType, typing.Union):
            (hint, *others) = (each for each in typing.get_args(hint) if each is not types.NoneType)
            if others:  # a union of classes: the value is always one of them
                hint = object
        number = kind = None
        if typing.get_origin(hint) is Annotated:
            number = next(each for each in hint.__metadata__ if isinstance(each, Number))
        elif isinstance(hint, type) and issubclass(hint, (enum.Enum, Value)):
            kind = hint
        result[name] = _Field(number, kind)
    return result


class Value:
    """Base of the header classes.

    A field out of its range raises :class:`openmrc.errors.ArgumentError` on construction.
    """

    __slots__ = ()

    def __post_init__(self) -> None:
        for name, field in _fields(type(self)).items():
            value = getattr(self, name)
            if field.number is not None and value is not None:
                self._check_number(name, value, field.number)
            elif field.kind is not None and value is not None and not isinstance(value, field.kind):
                object.__setattr__(self, name, self._convert(name, value, field.kind))

    def _check_number(self, name: str, value: object, number: Number) -> None:
        if not isinstance(value, int) or isinstance(value, bool):
            raise ArgumentError(f"{type(self).__name__}.{name} is {value!r}, must be an integer")
        if not number.minimum <= value <= number.maximum:
            message = f"{type(self).__name__}.{name} is {value}, must be {number.minimum} to {number.maximum}"
            raise ArgumentError(message)

    def _convert(self, name: str, value: object, kind: type) -> object:
        if issubclass(kind, enum.Enum):
            try:
                return kind(value)
            except ValueError:
                choice = ", ".join(str(each.value) for each in kind)
                message = f"{type(self).__name__}.{name} is {value!r}, must be one of {choice}"
                raise ArgumentError(message) from None
        raise ArgumentError(f"{type(self).__name__}.{name} is {value!r}, must be a {kind.__name__}")

    @classmethod
    def _from_core(cls, values: Mapping[str, Any]) -> Self:
        """Makes the object from the core's dictionary of the same fields."""
        kinds = _fields(cls)
        converted = {}
        for name, value in values.items():
            kind = kinds[name].kind
            if isinstance(value, dict) and kind is not None and issubclass(kind, Value):
                value = kind._from_core(value)
            converted[name] = value
        return cls(**converted)

    def __repr__(self) -> str:
        """The call that makes this object, without fields that have their default."""
        return f"{type(self).__name__}({', '.join(self.shown_fields())})"

    def shown_fields(self) -> list[str]:
        """``name=value`` of every field that does not have its default, as Python source."""
        return [
            f"{each.name}={self._show(each.name)}"
            for each in dataclasses.fields(self)  # type: ignore[arg-type]  # every subclass is a dataclass
            if getattr(self, each.name) != each.default
        ]

    def flat_fields(self, prefix: str = "") -> Iterator[tuple[str, str]]:
        """Name and value of every field that is set, for people; nested fields as ``name.field``."""
        for name in _fields(type(self)):
            value = getattr(self, name)
            if isinstance(value, Value):
                yield from value.flat_fields(f"{prefix}{name}.")
            elif isinstance(value, bool):
                yield prefix + name, str(int(value))
            elif isinstance(value, enum.Enum):
                yield prefix + name, str(value.value)
            elif value is not None:
                yield prefix + name, self._show(name).strip("'")

    def _show(self, name: str) -> str:
        value, number = getattr(self, name), _fields(type(self))[name].number
        if number is not None and number.hex_digits and value is not None:
            return f"0x{value:0{number.hex_digits}x}"
        if isinstance(value, (ipaddress.IPv4Address, ipaddress.IPv6Address)):
            return f"'{value}'"
        if isinstance(value, enum.Enum):
            return f"{type(value).__name__}.{value.name}"
        if isinstance(value, bytes) and len(value) > 16:
            return f"<{len(value)} bytes>"
        return repr(value)

    def to_dict(self) -> dict[str, Any]:
        """The fields as values that JSON has: addresses and enumerations as strings, bytes as hexadecimal.

        The body of a packet also has its ``kind``.
        """
        kind = {"kind": self.kind} if hasattr(self, "kind") else {}
        return kind | {name: _plain(getattr(self, name)) for name in _fields(type(self))}


def _plain(value: object) -> Any:
    if isinstance(value, Value):
        return value.to_dict()
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, (ipaddress.IPv4Address, ipaddress.IPv6Address)):
        return str(value)
    return value
