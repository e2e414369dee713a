"""The messages of the handshake, and what a protocol adds to them. Every field is validated on arrival."""

from ipaddress import ip_address
from typing import Annotated, Literal

from pydantic import Field, JsonValue, field_validator

from openmrc import control
from openmrc.control.messages import Message
from openmrc.verbs import Capabilities, SocketAddress
from openmrc.verbs.attr import MAX_PATH_MTU, MIN_PATH_MTU
from openmrc.wire import EvFormat

U24 = Annotated[int, Field(ge=0, lt=1 << 24)]
U32 = Annotated[int, Field(ge=0, lt=1 << 32)]
U64 = Annotated[int, Field(ge=0, lt=1 << 64)]
PathMtu = Annotated[int, Field(ge=MIN_PATH_MTU, le=MAX_PATH_MTU)]
_UdpPort = Annotated[int, Field(gt=0, lt=1 << 16)]
_Mpr = Annotated[int, Field(ge=1, le=255)]
_Wimm = Annotated[int, Field(ge=1, le=16384)]


class QpEnd(Message):
    """What one queue pair needs to know of the other. Windows and capabilities as in :class:`QpAttr`."""

    qp_num: U24
    psn: U24
    mpr: _Mpr
    mpr_dest: _Mpr
    max_wimm: _Wimm
    max_wimm_dest: _Wimm
    caps: Annotated[int, Field(ge=0, le=int(Capabilities.ALL))]


class Buffer(Message):
    """Memory that the peer may write."""

    addr: U64
    length: U64
    rkey: U32


class Located(Message):
    """What each end says about its device before queue pairs are connected."""

    addresses: Annotated[list[tuple[str, _UdpPort]], Field(min_length=1, max_length=16)]
    """Address and UDP port of each port of the sender's device, by plane."""
    ev_format: EvFormat
    """Where the sender's device puts entropy values (:attr:`openmrc.verbs.Device.ev_format`)."""
    path_mtu: PathMtu
    """Most payload bytes per packet that the sender can use."""
    data: JsonValue = None
    """What the protocol adds."""

    @field_validator("addresses")
    @classmethod
    def _check_addresses(cls, addresses: list[SocketAddress]) -> list[SocketAddress]:
        for address, _ in addresses:
            ip_address(address)
        return addresses


class Request(Located):
    """What the caller wants."""

    type: Literal["request"] = "request"


class _Terms(Located):
    device: Annotated[str, Field(max_length=256)]
    """Name of the sender's device."""
    qps: list[QpEnd]
    buffers: list[Buffer]


class Offer(_Terms):
    """The listener's queue pairs and buffers."""

    type: Literal["offer"] = "offer"


class Accept(_Terms):
    """The caller's queue pairs and buffers. With this, both ends know all they need."""

    type: Literal["accept"] = "accept"


class Ready(Message):
    """All queue pairs of this end are in RTS."""

    type: Literal["ready"] = "ready"


class Protocol(control.Protocol):
    """What two programs speak that connect queue pairs.

    ::

        caller                                              listener
        Greetings and proofs as in :class:`openmrc.control.Protocol`
        Request {addresses, path MTU, data}         ->
                                                    <-      Offer {queue pairs, buffers, path MTU, data}
        Accept {queue pairs, buffers, path MTU, data} ->
                                                    <-      Ready
        Ready                                       ->

    Both ends use the smaller path MTU and windows, and the capabilities that both have.

    Args:
        name: What a greeting says; other names are refused.
        version: Of the messages of this protocol.
        kinds: The messages that follow the handshake.
    """

    def __init__(self, name: str, version: int, *kinds: type[Message]) -> None:
        super().__init__(name, version, Request, Offer, Accept, Ready, *kinds)
