//! Entropy values by the names that a controller has for them, and what packets carry of each, by the device's format
//! and a profile's fields (docs/spec/wire.md, "EV profile expansion").

use std::collections::HashMap;
use std::net::Ipv6Addr;
use std::{fmt, iter};

use openmrc_transport::PathEntry;
use openmrc_wire::expansion::{self, EvField, EvString, Expanded};
use openmrc_wire::{Entropy, Ev, EvFormat};

use super::error::ProfileError;
use crate::config::EntropyConfig;
use crate::path::SegmentRoute;

/// Most bits of an entropy value that packets carry.
const CARRIED_BITS: u32 = 32;

/// An entropy value on a port, as a controller names it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct EvName {
    /// Its bits, from the top.
    pub value: EvString,
    /// Port, from 0.
    pub port: u8,
}

impl EvName {
    /// The name of a path of the device's own: what its packets carry.
    pub(super) fn of_path(format: EvFormat, path: PathEntry) -> Self {
        let bits = if format == EvFormat::Udp { path.ev.0 << 16 } else { path.ev.0 };
        EvName { value: EvString::of_u32(bits), port: path.port }
    }

    /// The value that a controller writes as a number of so many bits, 16, 32 or 256 ([`super::Profiles::value_bits`]).
    ///
    /// # Errors
    /// [`ProfileError::Value`] if the number has more bits.
    pub fn of_number(number: EvString, port: u8, bits: u32) -> Result<Self, ProfileError> {
        let begin = number.0.len() - bits as usize / 8;
        if number.0[..begin].iter().any(|&byte| byte != 0) {
            let shown = EvName { value: number, port };
            return Err(ProfileError::value("ev", shown, format!("a number of {bits} bits")));
        }
        let mut value = number;
        value.0.rotate_left(begin);
        Ok(EvName { value, port })
    }

    /// The inverse of [`EvName::of_number`].
    pub fn number(&self, bits: u32) -> EvString {
        let mut number = self.value;
        let begin = number.0.len() - bits as usize / 8;
        number.0.rotate_right(begin);
        number
    }

    /// The first 32 bits.
    fn first(&self) -> u32 {
        let [a, b, c, d, ..] = self.value.0;
        u32::from_be_bytes([a, b, c, d])
    }
}

impl fmt::Display for EvName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let used = self.value.0.iter().rposition(|&byte| byte != 0).map_or(1, |last| last + 1);
        write!(f, "entropy value 0x")?;
        self.value.0[..used].iter().try_for_each(|byte| write!(f, "{byte:02x}"))?;
        write!(f, " on port {}", self.port)
    }
}

/// What a profile needs to know of its device.
pub(super) struct Frame<'a> {
    pub entropy: &'a EntropyConfig,
    pub planes: u8,
    /// The device's own paths.
    pub own: &'a [PathEntry],
}

/// Widths and fields by which the values of a profile are expanded.
pub(super) struct Layout<'a> {
    format: EvFormat,
    widths: Vec<u32>,
    pub fields: Vec<EvField>,
    routes: &'a HashMap<EvName, SegmentRoute>,
    /// The routes are all there is: without fields, a value says nothing itself.
    is_by_routes: bool,
}

/// What packets carry of the values of a profile, in their order.
#[derive(Clone, Default, Debug)]
pub(super) struct Carried {
    pub paths: Vec<PathEntry>,
    /// SRv6 mode: the route of each. Empty in the other modes.
    pub routes: Vec<SegmentRoute>,
}

/// The longest format of a device. In SRv6 mode a route may go on in an SRH.
fn longest(device: EvFormat) -> EvFormat {
    match device {
        EvFormat::Srv6 | EvFormat::Srv6Srh => EvFormat::Srv6Srh,
        other => other,
    }
}

/// Fields with a full mask. Those wider than 32 bits, the most that a field of an EV profile has, are several, so that
/// the value is its own expansion.
fn literal(widths: &[u32]) -> Vec<u32> {
    let pieces =
        |&width: &u32| iter::once(width % 32).filter(|&rest| rest > 0).chain((0..width / 32).map(|_| 32));
    widths.iter().flat_map(pieces).collect()
}

impl Frame<'_> {
    pub fn is_srv6(&self) -> bool {
        self.entropy.is_srv6()
    }

    /// Most bits of the fields of an EV format profile.
    pub fn most_bits(&self) -> u32 {
        longest(self.entropy.format).path_bits()
    }

    /// What the fields of an EV format profile describe: in SRv6 mode, behind 128 bits the segment of an SRH.
    fn described_by(&self, widths: &[u32]) -> EvFormat {
        if self.is_srv6() && widths.iter().sum::<u32>() <= EvFormat::Srv6.path_bits() {
            return EvFormat::Srv6;
        }
        longest(self.entropy.format)
    }

    /// Checks the widths of an EV format profile.
    ///
    /// # Errors
    /// [`ProfileError::TooWide`], [`ProfileError::Value`], [`ProfileError::Fields`].
    pub fn check_widths(&self, widths: &[u32]) -> Result<(), ProfileError> {
        if widths.is_empty() {
            return Err(ProfileError::value("widths", "empty", "the width of each field, 1 to 255 bits,"));
        }
        if let Some(wrong) = widths.iter().find(|width| !(1..=255).contains(*width)) {
            return Err(ProfileError::value("a width", wrong, "1 to 255"));
        }
        self.check_room(widths.iter().map(|&width| u64::from(width)).sum())?;
        Ok(expansion::check(self.described_by(widths), widths, &[])?)
    }

    /// Checks the fields that a controller gives.
    ///
    /// # Errors
    /// [`ProfileError::TooWide`], [`ProfileError::Fields`].
    pub fn check_fields(&self, layout: &Layout<'_>) -> Result<(), ProfileError> {
        self.check_room(layout.fields.iter().map(|field| u64::from(field.width)).sum())?;
        Ok(expansion::check_fit(layout.format, &layout.widths, &layout.fields)?)
    }

    fn check_room(&self, total: u64) -> Result<(), ProfileError> {
        let room = self.most_bits();
        if total > u64::from(room) { Err(ProfileError::TooWide { total, room }) } else { Ok(()) }
    }

    /// `widths` are those of the EV format profile; without one the format is the device's.
    pub fn layout<'a>(
        &self,
        widths: Option<&[u32]>,
        fields: Option<&[EvField]>,
        routes: &'a HashMap<EvName, SegmentRoute>,
    ) -> Layout<'a> {
        let widths = widths.map_or_else(|| vec![self.entropy.format.path_bits()], <[u32]>::to_vec);
        let format = self.described_by(&widths);
        if let Some(fields) = fields {
            return Layout { format, widths, fields: fields.to_vec(), routes, is_by_routes: false };
        }
        let widths = literal(&widths);
        let full =
            |&width: &u32| EvField { width, init: 0, min: 0, max: 0, mask: ((1u64 << width) - 1) as u32 };
        let fields = widths.iter().map(full).collect();
        Layout { format, widths, fields, routes, is_by_routes: !routes.is_empty() }
    }

    /// # Errors
    /// [`ProfileError::Value`] if the device does not have the port.
    pub fn check_port(&self, port: u8) -> Result<(), ProfileError> {
        if port < self.planes {
            return Ok(());
        }
        Err(ProfileError::value("port", port, format!("0 to {}", self.planes - 1)))
    }

    /// Checks whether packets can go the way that a value says.
    ///
    /// # Errors
    /// As [`Frame::carried_all`].
    pub fn check(&self, layout: &Layout<'_>, ev: &EvName) -> Result<(), ProfileError> {
        self.check_port(ev.port)?;
        if self.is_srv6() { layout.route(ev).map(drop) } else { self.carried(layout, ev).map(drop) }
    }

    /// What packets carry of a UDP or structured value. No socket of Linux sends from port 0: the source port of the
    /// port's own first path stands in for it, and the flow label is the value's.
    fn carried(&self, layout: &Layout<'_>, ev: &EvName) -> Result<Ev, ProfileError> {
        let out = layout.expand(&ev.value)?;
        let is_udp = self.entropy.format == EvFormat::Udp;
        let carried = if is_udp { out.udp() } else { out.structured() };
        let entropy = self.entropy.split(carried);
        if entropy.sport != 0 {
            return Ok(carried);
        }
        match self.own.iter().find(|path| path.port == ev.port && !is_udp) {
            Some(own) => {
                let sport = self.entropy.split(own.ev).sport;
                Ok(self.entropy.order.join(Entropy { sport, ..entropy }))
            }
            None => Err(ProfileError::SourcePort(*ev)),
        }
    }

    /// The paths of all values of a profile. Packets carry the place of an SRv6 value that does not fit them.
    ///
    /// # Errors
    /// [`ProfileError::Value`] for a port that the device does not have; [`ProfileError::Fields`] for bits that no mask
    /// takes; [`ProfileError::SourcePort`], [`ProfileError::Address`], [`ProfileError::NoRoute`].
    pub fn carried_all(&self, layout: &Layout<'_>, evs: &[EvName]) -> Result<Carried, ProfileError> {
        evs.iter().try_for_each(|ev| self.check(layout, ev))?;
        let entry = |ev: &EvName, carried| PathEntry { ev: carried, port: ev.port };
        if !self.is_srv6() {
            let paths = evs.iter().map(|ev| Ok(entry(ev, self.carried(layout, ev)?)));
            return Ok(Carried { paths: paths.collect::<Result<_, ProfileError>>()?, routes: Vec::new() });
        }
        let mut first_places = HashMap::new();
        let paths = evs.iter().enumerate().map(|(place, ev)| {
            // Copies of a value are one path.
            let place = *first_places.entry(*ev).or_insert(place);
            entry(ev, Ev(if layout.is_wide() { place as u32 } else { ev.first() }))
        });
        Ok(Carried {
            paths: paths.collect(),
            routes: evs.iter().map(|ev| layout.route(ev)).collect::<Result<_, _>>()?,
        })
    }
}

impl Layout<'_> {
    fn expand(&self, value: &EvString) -> Result<Expanded, ProfileError> {
        Ok(expansion::expand(self.format, &self.widths, &self.fields, value)?)
    }

    /// Whether the values do not fit what packets carry.
    fn is_wide(&self) -> bool {
        let masked: u32 = self.fields.iter().map(|field| field.mask.count_ones()).sum();
        !self.is_by_routes && masked > CARRIED_BITS
    }

    /// Bits of a value that a controller writes as a number.
    pub fn value_bits(&self) -> u32 {
        match self.format {
            EvFormat::Udp => EvFormat::Udp.path_bits(),
            _ if self.is_wide() => expansion::EV_BITS,
            _ => CARRIED_BITS,
        }
    }

    /// The route of an SRv6 value. A segment of zeros is none.
    fn route(&self, ev: &EvName) -> Result<SegmentRoute, ProfileError> {
        let by_number = EvName { value: ev.number(self.value_bits()), port: ev.port };
        let (destination, segment) = match self.routes.get(&by_number) {
            Some(route) => (route.destination, route.segment),
            None if self.is_by_routes => return Err(ProfileError::NoRoute(*ev)),
            None => {
                let out = self.expand(&ev.value)?;
                (out.destination(), Some(out.segment()))
            }
        };
        let segment = segment.filter(|segment| !segment.is_unspecified());
        match is_unicast(destination) && segment.is_none_or(is_unicast) {
            true => Ok(SegmentRoute { destination, segment }),
            false => Err(ProfileError::Address(*ev)),
        }
    }
}

fn is_unicast(addr: Ipv6Addr) -> bool {
    let is_other = addr.is_unspecified() || addr.is_loopback() || addr.is_multicast();
    !is_other && addr.to_ipv4_mapped().is_none()
}
