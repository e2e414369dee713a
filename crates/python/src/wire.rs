//! `openmrc.wire` from Python: whole packets to values and back.
//!
//! Every Python dataclass has a struct with the same fields. A value comes in by attributes and goes out as a
//! dictionary, from which Python makes a dataclass.

mod capture;
mod headers;
mod mirror;

use openmrc_wire::{self as wire, DecodeError, DscpMap, Frame, FrameConfig, LinkType, trim::trim};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::PyBytes;

pub(crate) use headers::Dscp;
use headers::{Bth, Ethernet, Ip, Layers, Outer, Packet, Udp};
pub(crate) use mirror::Mirror;

/// The result of [`decode_frame`]: the fields of `openmrc.wire.Frame`.
#[derive(IntoPyObject)]
struct Decoded<'py> {
    ethernet: Option<Ethernet>,
    outer: Option<Outer>,
    ip: Option<Ip>,
    udp: Option<Udp>,
    bth: Option<Bth>,
    packet: Option<Packet>,
    payload: Bound<'py, PyBytes>,
    payload_len: u16,
    trimmed: Option<String>,
    cut: bool,
    icrc: &'static str,
    /// Counter names.
    differences: Vec<&'static str>,
    /// Counter name and message.
    error: Option<(&'static str, String)>,
}

/// Decodes one captured packet that had `wire_len` bytes on the wire.
#[pyfunction]
#[pyo3(signature = (data, *, wire_len, linktype, ports, dscp))]
fn decode_frame<'py>(
    py: Python<'py>,
    data: PyBackedBytes,
    wire_len: usize,
    linktype: u32,
    ports: Vec<u16>,
    dscp: Dscp,
) -> PyResult<Decoded<'py>> {
    let config = FrameConfig { ports: &ports, dscp: dscp.to_core()? };
    let frame = match LinkType::from_number(linktype) {
        Ok(link) => Frame::decode(&data, wire_len, link, &config),
        Err(error) => Frame::unreadable(error),
    };
    Ok(Decoded {
        ethernet: Mirror::from_core(frame.ethernet),
        outer: Mirror::from_core(frame.outer),
        ip: Mirror::from_core(frame.ip),
        udp: Mirror::from_core(frame.udp),
        bth: Mirror::from_core(frame.bth),
        packet: Mirror::from_core(frame.packet),
        payload: PyBytes::new(py, frame.payload),
        payload_len: frame.packet.map_or(0, |packet| packet.payload_len),
        trimmed: Mirror::from_core(frame.trimmed),
        cut: frame.cut,
        icrc: match frame.icrc {
            wire::IcrcVerdict::Good => "good",
            wire::IcrcVerdict::Bad { .. } => "bad",
            wire::IcrcVerdict::Trimmed => "trimmed",
            wire::IcrcVerdict::Unknown => "unknown",
        },
        differences: frame.differences.iter().map(wire::Difference::counter).collect(),
        error: frame.error.map(|error: DecodeError| (error.counter(), error.to_string())),
    })
}

/// The bytes of a whole packet, from the outermost of `layers` to the iCRC.
#[pyfunction]
fn encode_frame<'py>(
    py: Python<'py>,
    layers: Layers,
    packet: Packet,
    payload: PyBackedBytes,
) -> PyResult<Bound<'py, PyBytes>> {
    let (layers, packet): (wire::Layers, wire::Packet) = (layers.to_core()?, packet.to_core()?);
    let payload_len = u16::try_from(payload.len())
        .map_err(|_| PyValueError::new_err(format!("payload of {} bytes; at most 65535", payload.len())))?;
    let packet = wire::Packet { payload_len, ..packet };
    let mut bytes = vec![0; layers.header_len() + packet.wire_len()];
    match layers.emit(&packet, &payload, &mut bytes) {
        Some(len) => Ok(PyBytes::new(py, &bytes[..len])),
        None if !packet.is_data() => {
            Err(PyValueError::new_err(format!("opcode 0x{:02x} carries no payload", packet.opcode())))
        }
        None => Err(PyValueError::new_err(format!("{} bytes do not fit an IP packet", bytes.len()))),
    }
}

/// The packet as a trimming switch forwards it. Raises `ValueError` if the switch would drop it.
#[pyfunction]
#[pyo3(signature = (data, *, linktype, port, dscp, last_hop))]
fn trim_frame<'py>(
    py: Python<'py>,
    data: PyBackedBytes,
    linktype: u32,
    port: u16,
    dscp: Dscp,
    last_hop: bool,
) -> PyResult<Bound<'py, PyBytes>> {
    let value_error = |error: &dyn std::fmt::Display| PyValueError::new_err(error.to_string());
    let link = LinkType::from_number(linktype).map_err(|error| value_error(&error))?;
    let mut bytes = data.to_vec();
    let len =
        trim(&mut bytes, link, port, &dscp.to_core()?, last_hop).map_err(|error| value_error(&error))?;
    Ok(PyBytes::new(py, &bytes[..len]))
}

/// The opcode of a packet.
#[pyfunction]
fn packet_opcode(packet: Packet) -> PyResult<u8> {
    packet.to_core().map(|packet: wire::Packet| packet.opcode())
}

/// The code point with which a packet is sent.
#[pyfunction]
fn packet_dscp(packet: Packet, dscp: Dscp, network_trims: bool) -> PyResult<u8> {
    let (packet, map): (wire::Packet, DscpMap) = (packet.to_core()?, dscp.to_core()?);
    Ok(map.code_of(&packet, network_trims))
}

/// The default code points, by class.
#[pyfunction]
fn dscp_defaults() -> Dscp {
    Mirror::from_core(DscpMap::DEFAULT)
}

/// UDP source port and flow label of an entropy value.
#[pyfunction]
fn place_ev(format: String, order: String, ev: u32) -> PyResult<(u16, u32)> {
    let format: wire::EvFormat = format.to_core()?;
    let entropy = format.split(wire::Ev(ev), order.to_core()?);
    Ok((entropy.sport, entropy.flow_label))
}

/// The 32-bit entropy of a UDP source port and a flow label.
#[pyfunction]
fn read_entropy(order: String, sport: u16, flow_label: u32) -> PyResult<u32> {
    let order: wire::EntropyOrder = order.to_core()?;
    Ok(order.join(wire::Entropy { sport, flow_label }).0)
}

/// Block and uSIDs of a path address. Raises `ValueError` if it is not a path address.
#[pyfunction]
fn parse_usids(address: std::net::IpAddr) -> PyResult<(u32, Vec<u16>)> {
    let path = wire::UsidAddress::parse(address.to_core()?)
        .map_err(|error| PyValueError::new_err(error.to_string()))?;
    Ok((path.block(), path.iter().collect()))
}

/// The path address of a list of uSIDs. Raises `ValueError` if they do not fit into one.
#[pyfunction]
fn usid_address(block: u32, usids: Vec<u16>) -> PyResult<std::net::Ipv6Addr> {
    let path =
        wire::UsidAddress::new(block, &usids).map_err(|error| PyValueError::new_err(error.to_string()))?;
    Ok(path.to_ipv6())
}

/// Adds these functions and classes to `openmrc._core`.
pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("ROCE_PORT", wire::ROCE_PORT)?;
    module.add("MRC_PORT", wire::MRC_PORT)?;
    module.add_class::<capture::CaptureReader>()?;
    module.add_function(wrap_pyfunction!(decode_frame, module)?)?;
    module.add_function(wrap_pyfunction!(encode_frame, module)?)?;
    module.add_function(wrap_pyfunction!(trim_frame, module)?)?;
    module.add_function(wrap_pyfunction!(packet_opcode, module)?)?;
    module.add_function(wrap_pyfunction!(packet_dscp, module)?)?;
    module.add_function(wrap_pyfunction!(dscp_defaults, module)?)?;
    module.add_function(wrap_pyfunction!(place_ev, module)?)?;
    module.add_function(wrap_pyfunction!(read_entropy, module)?)?;
    module.add_function(wrap_pyfunction!(parse_usids, module)?)?;
    module.add_function(wrap_pyfunction!(usid_address, module)?)
}
