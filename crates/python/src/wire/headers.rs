//! The headers for Python. Field names, order and meaning are those of `openmrc_wire`.

use openmrc_wire::{self as wire, frame, ip, link, srh, udp};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use std::net::IpAddr;

use super::mirror::{Mirror, mirror};

mirror! {
    Ethernet = link::Ethernet { dst: String, src: String, vlan: Option<u16>, ethertype: u16 }
    Ipv4 = ip::Ipv4 {
        src: IpAddr, dst: IpAddr, dscp: u8, ecn: u8, ttl: u8, identification: u16, dont_fragment: bool,
        protocol: u8, total_len: u16,
    }
    Ipv6 = ip::Ipv6 {
        src: IpAddr, dst: IpAddr, dscp: u8, ecn: u8, flow_label: u32, hop_limit: u8, next_header: u8,
        payload_len: u16,
    }
    Srh = srh::Srh { segment: IpAddr, segments_left: u8, segments: u8, flags: u8, tag: u16, next_header: u8 }
    Outer = frame::Outer { ip: Ipv6, srh: Option<Srh> }
    Udp = udp::Udp { sport: u16, dport: u16, length: u16, checksum: u16 }
    Layers = wire::Layers {
        ethernet: Option<Ethernet>, outer: Option<Outer>, ip: Ip, udp: Udp, udp_checksum: bool,
    }
    Bth = wire::Bth {
        opcode: u8, solicited: bool, migrated: bool, pad: u8, tver: u8, pkey: u16, variant: u8, dest_qp: u32,
        ack_req: bool, rtx: bool, ts: bool, psn: u32,
    }
    Timestamp = wire::Timestamp { ticks: u16, tsr: bool }
    Write = wire::Write {
        position: String, rqmsn: u16, msn: u16, timestamp: Option<Timestamp>, va: u64, rkey: u32, dma_len: u32,
        imm: Option<u32>,
    }
    RcWrite = wire::RcWrite { position: String, va: u64, rkey: u32, dma_len: u32, imm: Option<u32> }
    Aeth = wire::Aeth { syndrome: u8, msn: u32 }
    CcState = wire::CcState {
        timestamp: u16, ooo_count: u16, restore_cwnd: bool, rcv_cwnd_pen: u8, rcvd_bytes: u32,
    }
    Sack = wire::Sack {
        mark: String, probe_reply: bool, ack_psn_offset: i16, entropy: u32, spdcid: u16, dpdcid: u16,
        cack_psn: u32, cc_type: u8, cc_flags: u8, mpr: u8, sack_offset: i16, bitmap: u64, cc: CcState,
    }
    Nack = wire::Nack {
        reason: String, vendor_info: u8, entropy: u32, spdcid: u16, dpdcid: u16, nack_psn: u32, cc_flags: u8,
        timestamp: u16,
    }
    Probe = wire::Probe { vendor_info: u8, probe_id: u16, spdcid: u16, dpdcid: u16, timestamp: Timestamp }
    Erth = wire::Erth { op: String, vendor_info: u8, port_status_mask: u32, timestamp: Timestamp }
    Eeth = wire::Eeth { op: String, timestamp: u16 }
    Dscp = wire::DscpMap {
        no_trim: u8, trimmable: u8, trimmable_retx: u8, trimmed: u8, trimmed_last_hop: u8, control: u8,
    }
}

/// An IP header of either version. Its fields distinguish the versions.
#[derive(FromPyObject, IntoPyObject)]
pub enum Ip {
    /// Has `ttl`.
    V4(Ipv4),
    /// Has `hop_limit`.
    V6(Ipv6),
}

impl Mirror<ip::Ip> for Ip {
    fn to_core(self) -> PyResult<ip::Ip> {
        Ok(match self {
            Ip::V4(header) => ip::Ip::V4(header.to_core()?),
            Ip::V6(header) => ip::Ip::V6(header.to_core()?),
        })
    }
    fn from_core(value: ip::Ip) -> Self {
        match value {
            ip::Ip::V4(header) => Ip::V4(Mirror::from_core(header)),
            ip::Ip::V6(header) => Ip::V6(Mirror::from_core(header)),
        }
    }
}

/// BTH fields, and the body.
#[derive(FromPyObject, IntoPyObject)]
pub struct Packet {
    dest_qp: u32,
    psn: u32,
    pkey: u16,
    ack_req: bool,
    rtx: bool,
    solicited: bool,
    migrated: bool,
    variant: u8,
    body: Body,
}

/// `payload_len` is not a field in Python: the payload itself determines it.
impl Mirror<wire::Packet> for Packet {
    fn to_core(self) -> PyResult<wire::Packet> {
        Ok(wire::Packet {
            dest_qp: self.dest_qp,
            psn: self.psn.to_core()?,
            pkey: self.pkey,
            payload_len: 0,
            ack_req: self.ack_req,
            rtx: self.rtx,
            solicited: self.solicited,
            migrated: self.migrated,
            variant: self.variant,
            body: self.body.0,
        })
    }
    fn from_core(packet: wire::Packet) -> Self {
        Packet {
            dest_qp: packet.dest_qp,
            psn: packet.psn.get(),
            pkey: packet.pkey,
            ack_req: packet.ack_req,
            rtx: packet.rtx,
            solicited: packet.solicited,
            migrated: packet.migrated,
            variant: packet.variant,
            body: Body(packet.body),
        }
    }
}

/// Opcode and extension headers. From Python: an instance of the class named by `kind`. To Python: (kind, fields).
pub struct Body(wire::Body);

impl<'py> FromPyObject<'_, 'py> for Body {
    type Error = PyErr;

    fn extract(body: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        let kind: String = body.getattr("kind")?.extract()?;
        Ok(Body(match kind.as_str() {
            "Write" => wire::Body::Write(body.extract::<Write>()?.to_core()?),
            "Ack" => wire::Body::Ack(body.extract::<Aeth>()?.to_core()?),
            "EndpointRequest" => wire::Body::EndpointRequest(body.extract::<Erth>()?.to_core()?),
            "EndpointResponse" => wire::Body::EndpointResponse(body.extract::<Eeth>()?.to_core()?),
            "Sack" => wire::Body::Sack(body.extract::<Sack>()?.to_core()?),
            "Nack" => wire::Body::Nack(body.extract::<Nack>()?.to_core()?),
            "Probe" => wire::Body::Probe(body.extract::<Probe>()?.to_core()?),
            "RcWrite" => wire::Body::RcWrite(body.extract::<RcWrite>()?.to_core()?),
            "RcAck" => wire::Body::RcAck(body.extract::<Aeth>()?.to_core()?),
            "Cnp" => wire::Body::Cnp,
            other => return Err(PyTypeError::new_err(format!("a packet has no body of kind {other:?}"))),
        }))
    }
}

impl<'py> IntoPyObject<'py> for Body {
    type Target = PyAny;
    type Output = Bound<'py, PyAny>;
    type Error = PyErr;

    fn into_pyobject(self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        /// The name of a body's class, and its fields.
        fn named<'py, M, T>(py: Python<'py>, kind: &str, value: T) -> PyResult<Bound<'py, PyAny>>
        where
            M: Mirror<T> + IntoPyObject<'py>,
            PyErr: From<M::Error>,
        {
            (kind, M::from_core(value)).into_pyobject(py).map(Bound::into_any)
        }
        match self.0 {
            wire::Body::Write(body) => named::<Write, _>(py, "Write", body),
            wire::Body::Ack(body) => named::<Aeth, _>(py, "Ack", body),
            wire::Body::EndpointRequest(body) => named::<Erth, _>(py, "EndpointRequest", body),
            wire::Body::EndpointResponse(body) => named::<Eeth, _>(py, "EndpointResponse", body),
            wire::Body::Sack(body) => named::<Sack, _>(py, "Sack", body),
            wire::Body::Nack(body) => named::<Nack, _>(py, "Nack", body),
            wire::Body::Probe(body) => named::<Probe, _>(py, "Probe", body),
            wire::Body::RcWrite(body) => named::<RcWrite, _>(py, "RcWrite", body),
            wire::Body::RcAck(body) => named::<Aeth, _>(py, "RcAck", body),
            wire::Body::Cnp => ("Cnp", pyo3::types::PyDict::new(py)).into_pyobject(py).map(Bound::into_any),
        }
    }
}
