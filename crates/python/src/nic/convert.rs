//! Conversion of values from Python. Error messages name the value.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use openmrc_transport::PortSet;
use pyo3::prelude::*;

use super::error::refused;

/// `value` as a `T`.
///
/// # Errors
/// `ArgumentError` that says what is allowed.
#[inline]
pub fn number<'py, T>(value: &Bound<'py, PyAny>, name: &str, allowed: &str) -> PyResult<T>
where
    T: for<'a> FromPyObject<'a, 'py>,
{
    value.extract().map_err(|_| out_of_range(value, name, allowed))
}

/// The `ArgumentError` for a value that is not allowed.
#[cold]
pub fn out_of_range(value: &Bound<'_, PyAny>, name: &str, allowed: &str) -> PyErr {
    let shown = value.repr().map_or_else(|_| "?".to_owned(), |text| text.to_string());
    refused(format!("{name} is {shown}: {allowed} is allowed"))
}

/// Attribute `$name` of `$object` as a number.
macro_rules! field {
    ($object:expr, $name:expr, $allowed:expr) => {
        $crate::nic::convert::number(&$object.getattr(pyo3::intern!($object.py(), $name))?, $name, $allowed)
    };
}
pub(crate) use field;

/// Attribute `$name` of `$object`, or `None` if it is None.
macro_rules! optional {
    ($object:expr, $name:expr, $allowed:expr) => {{
        let value = $object.getattr(pyo3::intern!($object.py(), $name))?;
        if value.is_none() {
            Ok(None)
        } else {
            $crate::nic::convert::number(&value, $name, $allowed).map(Some)
        }
    }};
}
pub(crate) use optional;

/// An address and a UDP port.
pub fn socket_address(addr: &str, port: u16) -> PyResult<SocketAddr> {
    Ok(SocketAddr::new(ip_address(addr)?, port))
}

/// An address.
pub fn ip_address(addr: &str) -> PyResult<IpAddr> {
    addr.parse().map_err(|_| refused(format!("{addr:?} is not an IPv4 or IPv6 address")))
}

/// (address, UDP port) for each port of a device.
pub fn socket_addresses(list: Vec<(String, u16)>) -> PyResult<Vec<SocketAddr>> {
    list.iter().map(|(addr, port)| socket_address(addr, *port)).collect()
}

/// The inverse of [`socket_addresses`].
pub fn address_pairs(list: &[SocketAddr]) -> Vec<(String, u16)> {
    list.iter().map(|addr| (addr.ip().to_string(), addr.port())).collect()
}

/// Ports of a set, lowest first. As `u32`, because PyO3 converts a `Vec<u8>` to bytes.
pub fn port_list(set: PortSet) -> Vec<u32> {
    set.iter().map(u32::from).collect()
}

/// A duration of `value` times `unit` seconds.
pub fn duration(value: f64, unit: f64, name: &str) -> PyResult<Duration> {
    Duration::try_from_secs_f64(value * unit)
        .map_err(|_| refused(format!("{name} is {value}: a number from 0 on is allowed")))
}
