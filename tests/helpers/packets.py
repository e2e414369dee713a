"""Arbitrary packets for the tests of openmrc.wire: every value that a field can hold."""

from hypothesis import strategies as st

from openmrc import wire


def uint(bits):
    return st.integers(0, (1 << bits) - 1)


def int16():
    return st.integers(-(1 << 15), (1 << 15) - 1)


timestamps = st.builds(wire.Timestamp, ticks=uint(16), tsr=st.booleans())


@st.composite
def _position_and_imm(draw):
    position = draw(st.sampled_from(wire.Position))
    last = position in (wire.Position.LAST, wire.Position.ONLY)
    return {"position": position, "imm": draw(st.none() | uint(32)) if last else None}


@st.composite
def writes(draw):
    return wire.Write(
        **draw(_position_and_imm()),
        rqmsn=draw(uint(16)),
        msn=draw(uint(16)),
        timestamp=draw(st.none() | timestamps),
        va=draw(uint(64)),
        rkey=draw(uint(32)),
        dma_len=draw(uint(32)),
    )


@st.composite
def rc_writes(draw):
    part = draw(_position_and_imm())
    if part["position"] not in (wire.Position.FIRST, wire.Position.ONLY):
        return wire.RcWrite(**part)
    return wire.RcWrite(**part, va=draw(uint(64)), rkey=draw(uint(32)), dma_len=draw(uint(32)))


sacks = st.builds(
    wire.Sack,
    mark=st.sampled_from(wire.Mark),
    probe_reply=st.booleans(),
    ack_psn_offset=int16(),
    entropy=uint(32),
    spdcid=uint(16),
    dpdcid=uint(16),
    cack_psn=uint(24),
    cc_type=uint(4),
    cc_flags=uint(4),
    mpr=uint(8),
    sack_offset=int16(),
    bitmap=uint(64),
    cc=st.builds(
        wire.CcState,
        timestamp=uint(16),
        ooo_count=uint(15),
        restore_cwnd=st.booleans(),
        rcv_cwnd_pen=uint(7),
        rcvd_bytes=uint(24),
    ),
)
nacks = st.builds(
    wire.Nack,
    reason=st.sampled_from(wire.NackReason),
    vendor_info=uint(8),
    entropy=uint(32),
    spdcid=uint(16),
    dpdcid=uint(16),
    nack_psn=uint(24),
    cc_flags=uint(4),
    timestamp=uint(16),
)
probes = st.builds(
    wire.Probe, vendor_info=uint(8), probe_id=uint(16), spdcid=uint(16), dpdcid=uint(16), timestamp=timestamps
)
requests = st.builds(
    wire.EndpointRequest,
    op=st.sampled_from(wire.EndpointOp),
    vendor_info=uint(8),
    port_status_mask=uint(32),
    timestamp=timestamps,
)
responses = st.builds(wire.EndpointResponse, op=st.sampled_from(wire.EndpointOp), timestamp=uint(16))
acks = st.builds(wire.Ack, syndrome=uint(8), msn=uint(24))
rc_acks = st.builds(wire.RcAck, syndrome=uint(8), msn=uint(24))

rocev2_bodies = rc_writes() | rc_acks | st.just(wire.Cnp())
mrc_bodies = writes() | sacks | nacks | probes | requests | responses | acks
bodies = mrc_bodies | rocev2_bodies


@st.composite
def packets(draw, of=bodies):
    """Packets with any payload that their kind allows; QPs 0 and 1 belong to the management of InfiniBand."""
    body = draw(of)
    data = isinstance(body, (wire.Write, wire.RcWrite))
    rocev2 = isinstance(body, (wire.RcWrite, wire.RcAck, wire.Cnp))
    return wire.Packet(
        dest_qp=draw(st.integers(2, (1 << 24) - 1)),
        psn=draw(uint(24)),
        body=body,
        payload=draw(st.binary(max_size=100)) if data else b"",
        pkey=draw(uint(16)),
        ack_req=draw(st.booleans()),
        rtx=draw(st.booleans()) and not rocev2,
        solicited=draw(st.booleans()),
        migrated=draw(st.booleans()) and rocev2,
        variant=draw(uint(8)),
    )


_EVS = uint(32)


@st.composite
def ways(draw, evs=_EVS):
    """Arguments of Packet.to_bytes."""
    v6 = draw(st.booleans())
    addresses = st.ip_addresses(v=6 if v6 else 4)
    way = {
        "src": draw(addresses),
        "dst": draw(addresses),
        "ev": draw(evs),
        "dscp": draw(st.sampled_from([0, 4, 8, 46])),
        "ecn": draw(uint(2)),
        "hop_limit": draw(st.integers(1, 255)),
        "udp_checksum": draw(st.booleans()),
        "ethernet": draw(st.none() | st.builds(wire.Ethernet, vlan=st.none() | uint(16))),
    }
    if draw(st.booleans()):
        way["path"] = draw(st.ip_addresses(v=6))
        way["outer_src"] = draw(st.ip_addresses(v=6))
        way["segment"] = draw(st.none() | st.ip_addresses(v=6))
    return way


def linktype(way):
    return wire.LinkType.RAW if way["ethernet"] is None else wire.LinkType.ETHERNET
