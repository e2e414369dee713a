//! Conversion between Python-facing values and those of `openmrc_wire`.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use openmrc_wire::{
    Ecn, EndpointOp, EntropyOrder, Ev, EvFormat, Mark, Msn, NackReason, Named, Position, Psn,
};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

/// The Python-facing form of a `T` of the core.
pub trait Mirror<T>: Sized {
    /// To the core. Raises `ValueError` if the core has no such value.
    fn to_core(self) -> PyResult<T>;
    /// From the core.
    fn from_core(value: T) -> Self;
}

impl<T, M: Mirror<T>> Mirror<Option<T>> for Option<M> {
    fn to_core(self) -> PyResult<Option<T>> {
        self.map(M::to_core).transpose()
    }
    fn from_core(value: Option<T>) -> Self {
        value.map(M::from_core)
    }
}

macro_rules! same {
    ($($type:ty),*) => {$(
        impl Mirror<$type> for $type {
            fn to_core(self) -> PyResult<$type> {
                Ok(self)
            }
            fn from_core(value: $type) -> Self {
                value
            }
        }
    )*};
}
same!(bool, u8, u16, u32, u64, i16);

/// PyO3 converts `IpAddr` only, so the family is checked here.
impl Mirror<Ipv4Addr> for IpAddr {
    fn to_core(self) -> PyResult<Ipv4Addr> {
        match self {
            IpAddr::V4(address) => Ok(address),
            IpAddr::V6(address) => Err(PyValueError::new_err(format!("{address} is not an IPv4 address"))),
        }
    }
    fn from_core(value: Ipv4Addr) -> Self {
        IpAddr::V4(value)
    }
}

impl Mirror<Ipv6Addr> for IpAddr {
    fn to_core(self) -> PyResult<Ipv6Addr> {
        match self {
            IpAddr::V6(address) => Ok(address),
            IpAddr::V4(address) => Err(PyValueError::new_err(format!("{address} is not an IPv6 address"))),
        }
    }
    fn from_core(value: Ipv6Addr) -> Self {
        IpAddr::V6(value)
    }
}

/// Newtypes of the core that are plain numbers in Python.
macro_rules! number {
    ($($core:ty: $number:ty = $new:expr, $get:expr;)*) => {$(
        impl Mirror<$core> for $number {
            fn to_core(self) -> PyResult<$core> {
                Ok($new(self))
            }
            fn from_core(value: $core) -> Self {
                $get(value)
            }
        }
    )*};
}
number! {
    Psn: u32 = Psn::new, Psn::get;
    Msn: u16 = Msn, |msn: Msn| msn.0;
    Ev: u32 = Ev, |ev: Ev| ev.0;
    Ecn: u8 = Ecn::from_bits, Ecn::bits;
}

/// Enumerations of the core that are string enumerations in Python.
macro_rules! names {
    ($($core:ty { $($variant:ident = $name:literal),* $(,)? })*) => {$(
        impl Mirror<$core> for String {
            fn to_core(self) -> PyResult<$core> {
                match self.as_str() {
                    $($name => Ok(<$core>::$variant),)*
                    other => Err(PyValueError::new_err(format!(
                        "{other:?} is not one of {}",
                        [$($name),*].join(", "),
                    ))),
                }
            }
            fn from_core(value: $core) -> Self {
                match value {
                    $(<$core>::$variant => $name,)*
                }
                .to_owned()
            }
        }
    )*};
}
names! {
    Position { First = "first", Middle = "middle", Last = "last", Only = "only" }
    Mark { None = "none", SkipOnce = "skip_once", AlwaysSkip = "always_skip" }
    EndpointOp { PortStatusUpdate = "port_status_update", EvProbe = "ev_probe" }
    NackReason {
        Trimmed = "trimmed",
        TrimmedLastHop = "trimmed_last_hop",
        NoBitmap = "no_bitmap",
        NoPktBuffer = "no_pkt_buffer",
        NoResource = "no_resource",
        PsnOorWindow = "psn_oor_window",
        UnexpectedEvent = "unexpected_event",
    }
}

/// Enumerations whose names the core knows.
macro_rules! named {
    ($($core:ty),*) => {$(
        impl Mirror<$core> for String {
            fn to_core(self) -> PyResult<$core> {
                <$core>::named(&self).ok_or_else(|| {
                    let names: Vec<_> = <$core>::NAMES.iter().map(|(_, name)| *name).collect();
                    PyValueError::new_err(format!("{self:?} is not one of {}", names.join(", ")))
                })
            }
            fn from_core(value: $core) -> Self {
                value.name().to_owned()
            }
        }
    )*};
}
named!(EvFormat, EntropyOrder);

/// Ethernet addresses, as `02:00:00:00:00:01`.
impl Mirror<[u8; 6]> for String {
    fn to_core(self) -> PyResult<[u8; 6]> {
        let mut octets = [0; 6];
        let mut parts = self.split([':', '-']);
        for octet in &mut octets {
            *octet = parts
                .next()
                .filter(|part| (1..=2).contains(&part.len()))
                .and_then(|part| u8::from_str_radix(part, 16).ok())
                .ok_or_else(|| not_mac(&self))?;
        }
        if parts.next().is_some() {
            return Err(not_mac(&self));
        }
        Ok(octets)
    }
    fn from_core(value: [u8; 6]) -> Self {
        value.map(|octet| format!("{octet:02x}")).join(":")
    }
}

fn not_mac(text: &str) -> PyErr {
    PyValueError::new_err(format!("{text:?} is not an Ethernet address like 02:00:00:00:00:01"))
}

/// A struct whose fields are those of a Python dataclass and of a struct of the core.
macro_rules! mirror {
    ($($(#[$doc:meta])* $name:ident = $core:ty { $($field:ident: $type:ty),* $(,)? })*) => {$(
        $(#[$doc])*
        #[derive(FromPyObject, IntoPyObject)]
        pub struct $name {
            $(pub $field: $type,)*
        }
        impl Mirror<$core> for $name {
            fn to_core(self) -> PyResult<$core> {
                type Core = $core;
                Ok(Core { $($field: self.$field.to_core()?,)* })
            }
            fn from_core(value: $core) -> Self {
                $name { $($field: Mirror::from_core(value.$field),)* }
            }
        }
    )*};
}
pub(crate) use mirror;
