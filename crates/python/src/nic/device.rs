//! Devices from their description, the dataclass `openmrc.verbs.Device`.

use openmrc_nic::{self as nic, DeviceConfig, EpOps, PortConfig, QpChoices};
use openmrc_transport::mrc::{CanSend, OutOfWindow};
use openmrc_transport::node::PortMaskBase;
use pyo3::prelude::*;

use super::context::Context;
use super::convert::{duration, field, ip_address, optional};
use super::error::{OrRaise, refused};
use crate::wire::{Dscp, Mirror};

/// A device that can be opened.
#[pyclass(frozen, module = "openmrc._core")]
pub struct Device(nic::Device);

#[pymethods]
impl Device {
    /// A device from an object with the attributes of `openmrc.verbs.Device`. None means the default.
    #[new]
    fn new(description: &Bound<'_, PyAny>) -> PyResult<Self> {
        Ok(Device(nic::Device::new(config(description)?).or_raise()?))
    }

    /// Opens the sockets and starts the engine.
    fn open(&self, py: Python<'_>) -> PyResult<Context> {
        py.detach(|| self.0.open()).or_raise().map(Context::new)
    }
}

/// What queue pairs do where the specification leaves a choice.
fn choices(from: &Bound<'_, PyAny>) -> PyResult<QpChoices> {
    let mut choices = QpChoices::default();
    let oor: Option<String> = optional!(from, "oor", "'nack' or 'silent'")?;
    if let Some(oor) = oor {
        choices.responder.out_of_window = match oor.as_str() {
            "nack" => OutOfWindow::Nack,
            "silent" => OutOfWindow::Silent,
            _ => return Err(refused(format!("oor is {oor:?}: 'nack' or 'silent' is allowed"))),
        };
    }
    let can_send: Option<String> = optional!(from, "can_send", "'mtu' or 'any'")?;
    if let Some(can_send) = can_send {
        choices.requestor.can_send = match can_send.as_str() {
            "mtu" => CanSend::Mtu,
            "any" => CanSend::Any,
            _ => return Err(refused(format!("can_send is {can_send:?}: 'mtu' or 'any' is allowed"))),
        };
    }
    macro_rules! take {
        ($($attribute:literal => $($field:ident).+: $allowed:literal),* $(,)?) => {$(
            if let Some(value) = optional!(from, $attribute, $allowed)? {
                choices.$($field).+ = value;
            }
        )*};
    }
    take! {
        "svc_time" => responder.service_time: "True or False",
        "wimm_nak_syndrome" => responder.wimm_nak_syndrome: "0x65 or 0x61",
        "dfc" => requestor.dfc: "True or False",
        "start_probe" => requestor.start_probe: "True or False",
        "rotation_turns" => rotation_turns: "0 to 65535",
    }
    Ok(choices)
}

fn config(from: &Bound<'_, PyAny>) -> PyResult<DeviceConfig> {
    let mut config = DeviceConfig { name: from.getattr("name")?.extract()?, ..DeviceConfig::default() };
    for port in from.getattr("ports")?.try_iter()? {
        let port = port?;
        config.ports.push(PortConfig {
            addr: ip_address(&port.getattr("addr")?.extract::<String>()?)?,
            udp_port: field!(port, "udp_port", "1 to 65535")?,
            source_ports: field!(port, "source_ports", "a sequence of numbers, 1 to 65535,")?,
        });
    }
    macro_rules! take {
        ($($attribute:literal => $($field:ident).+: $allowed:literal),* $(,)?) => {$(
            if let Some(value) = optional!(from, $attribute, $allowed)? {
                config.$($field).+ = value;
            }
        )*};
    }
    macro_rules! take_some {
        ($($attribute:literal => $($field:ident).+: $allowed:literal),* $(,)?) => {$(
            if let Some(value) = optional!(from, $attribute, $allowed)? {
                config.$($field).+ = Some(value);
            }
        )*};
    }
    macro_rules! take_micros {
        ($($attribute:literal => $($field:ident).+),* $(,)?) => {$(
            if let Some(value) = optional!(from, $attribute, "a number of microseconds")? {
                config.$($field).+ = duration(value, 1e-6, $attribute)?;
            }
        )*};
    }
    take! {
        "receive_buffer" => sockets.receive_buffer: "a number of bytes",
        "send_buffer" => sockets.send_buffer: "a number of bytes",
        "segmentation" => sockets.segmentation: "True or False",
        "ev_burst" => sockets.burst: "1 to 255",
        "udp_ports" => sockets.more_udp_ports: "a sequence of numbers, 1 to 65535,",
        "network_trims" => network.trims: "True or False",
        "link_rate_bps" => network.link_rate_bps: "1 to 2^64 - 1",
        "ack_every_bytes" => sacks.every_bytes: "1 to 2^32 - 1",
        "auto_bits" => entropy.auto_bits: "16 or 32",
        "max_qps" => max_qps: "1 to 16384",
    }
    take_some! {
        "evs_per_port" => entropy.per_port: "1 to 4096",
        "fixed_window" => network.fixed_window: "0 to 2^64 - 1",
        "cpu" => thread.cpu: "a processor's number",
        "seed" => seed: "0 to 2^64 - 1",
    }
    take_micros! {
        "base_rtt_us" => network.base_rtt,
        "ack_delay_us" => sacks.delay,
        "spin_us" => thread.spin,
    }
    config.choices = choices(from)?;
    config.entropy.format = from.getattr("ev_format")?.extract::<String>()?.to_core()?;
    let order: Option<String> = optional!(from, "entropy_order", "flow_label_high or source_port_high")?;
    if let Some(order) = order {
        config.entropy.order = order.to_core()?;
    }
    let dscp: Option<Dscp> = optional!(from, "dscp", "an openmrc.wire.DscpMap")?;
    if let Some(dscp) = dscp {
        config.network.dscp = dscp.to_core()?;
    }
    let base: Option<u8> = optional!(from, "port_mask_base", "0 or 1")?;
    if let Some(base) = base {
        config.endpoint.port_mask_base = match base {
            0 => PortMaskBase::Zero,
            1 => PortMaskBase::One,
            _ => return Err(refused(format!("port_mask_base is {base}: 0 or 1 is allowed"))),
        };
    }
    let ep_ops = from.getattr("ep_ops")?;
    if !ep_ops.is_none() {
        config.endpoint.answered = endpoint_operations(&ep_ops)?;
    }
    Ok(config)
}

fn endpoint_operations(from: &Bound<'_, PyAny>) -> PyResult<EpOps> {
    if let Ok(name) = from.extract::<String>() {
        return match name.as_str() {
            "any" => Ok(EpOps::Any),
            "peers" => Ok(EpOps::Peers),
            "off" => Ok(EpOps::Off),
            _ => {
                Err(refused(format!("ep_ops is {name:?}: any, peers, off or a list of prefixes is allowed")))
            }
        };
    }
    let prefixes: Vec<String> = from.extract()?;
    let parsed = prefixes.iter().map(|text| {
        let (addr, bits) = text.split_once('/').unwrap_or((text, ""));
        let addr = ip_address(addr)?;
        let bits = match bits {
            "" => Ok(if addr.is_ipv4() { 32 } else { 128 }),
            bits => bits.parse().map_err(|_| refused(format!("ep_ops: {text:?} is no prefix"))),
        };
        Ok((addr, bits?))
    });
    Ok(EpOps::Prefixes(parsed.collect::<PyResult<_>>()?))
}
