//! Translates a program's entropy values to what packets carry, by the device's format and a profile's fields (spec:
//! wire, EV profile expansion).

use std::collections::HashMap;
use std::iter;
use std::net::Ipv6Addr;

use openmrc_nic::SegmentRoute;
use openmrc_transport::PathEntry;
use openmrc_wire::expansion::{self, EvField, EvString, Expanded};
use openmrc_wire::{Ev, EvFormat};

use super::routes::is_srv6;
use super::types::{Carried, EvProfile, Tables, key};
use crate::abi::ctl::MrcCtlEv;
use crate::context::Context;
use crate::errno::{EINVAL, Errno, Result};

/// Most bits of an entropy value that packets carry.
const CARRIED_BITS: u32 = 32;

/// What a profile needs of its device.
pub struct Frame<'a> {
    pub context: &'a Context,
    pub format: EvFormat,
    pub planes: u8,
}

/// Widths and fields by which values are expanded.
pub struct Layout {
    format: EvFormat,
    widths: Vec<u32>,
    pub fields: Vec<EvField>,
}

/// The longest format of a device. In SRv6 mode a route may go on in an SRH.
pub fn longest(device: EvFormat) -> EvFormat {
    if is_srv6(device) { EvFormat::Srv6Srh } else { device }
}

/// What the fields of an EV format profile describe: in SRv6 mode, behind 128 bits the segment of an SRH.
pub fn described_by(device: EvFormat, widths: &[u32]) -> EvFormat {
    if is_srv6(device) && widths.iter().sum::<u32>() <= EvFormat::Srv6.path_bits() {
        return EvFormat::Srv6;
    }
    longest(device)
}

/// Fields with a full mask. Those wider than 32 bits, the most that a field of an EV profile has, are several, so that
/// the value is its own expansion.
fn literal(widths: &[u32]) -> Vec<u32> {
    let pieces =
        |&width: &u32| iter::once(width % 32).filter(|&rest| rest > 0).chain((0..width / 32).map(|_| 32));
    widths.iter().flat_map(pieces).collect()
}

impl<'a> Frame<'a> {
    pub fn of(context: &'a Context) -> Self {
        let format = context.device.description.config.entropy.format;
        Frame { context, format, planes: context.device.planes() }
    }

    pub fn is_srv6(&self) -> bool {
        is_srv6(self.format)
    }

    pub fn layout(&self, tables: &Tables, profile: &EvProfile) -> Layout {
        let widths = match profile.format {
            Some(id) => tables.formats.get(id).widths,
            None => vec![self.format.path_bits()],
        };
        let format = described_by(self.format, &widths);
        if let Some(fields) = &profile.fields {
            return Layout { format, widths, fields: fields.clone() };
        }
        let widths = literal(&widths);
        let full =
            |&width: &u32| EvField { width, init: 0, min: 0, max: 0, mask: ((1u64 << width) - 1) as u32 };
        let fields = widths.iter().map(full).collect();
        Layout { format, widths, fields }
    }

    fn expand(&self, layout: &Layout, value: &EvString) -> Result<Expanded> {
        expansion::expand(layout.format, &layout.widths, &layout.fields, value).map_err(|_| EINVAL)
    }

    /// Whether packets can go the way that a value says.
    ///
    /// # Errors
    /// EINVAL for a port that the device does not have, bits that no mask takes, source port 0, or an address that is
    /// not one node's.
    pub fn check(&self, layout: &Layout, ev: &MrcCtlEv) -> Result<()> {
        if !(1..=self.planes).contains(&ev.port) {
            return Err(EINVAL);
        }
        if self.is_srv6() { self.route(layout, ev).map(drop) } else { self.carried(layout, ev).map(drop) }
    }

    /// What switches read of a UDP or structured value.
    fn carried(&self, layout: &Layout, ev: &MrcCtlEv) -> Result<Ev> {
        let out = self.expand(layout, &EvString(ev.val))?;
        let carried = if self.format == EvFormat::Udp { out.udp() } else { out.structured() };
        let order = self.context.device.description.config.entropy.order;
        // A UDP source port cannot be 0.
        if self.format.place(carried, order).sport == 0 { Err(EINVAL) } else { Ok(carried) }
    }

    /// The route of an SRv6 value. A segment of zeros is none.
    fn route(&self, layout: &Layout, ev: &MrcCtlEv) -> Result<SegmentRoute> {
        let out = self.expand(layout, &EvString(ev.val))?;
        let (destination, segment) = (out.destination(), out.segment());
        let segment = Some(segment).filter(|segment| !segment.is_unspecified());
        match is_unicast(destination) && segment.is_none_or(is_unicast) {
            true => Ok(SegmentRoute { destination, segment }),
            false => Err(EINVAL),
        }
    }

    /// The paths of all values of a profile. Packets carry the place of an SRv6 value that does not fit them.
    ///
    /// # Errors
    /// As [`Frame::check`].
    pub fn carried_all(&self, layout: &Layout, evs: &[MrcCtlEv]) -> Result<Carried> {
        evs.iter().try_for_each(|ev| self.check(layout, ev))?;
        let entry = |ev: &MrcCtlEv, carried| PathEntry { ev: carried, port: ev.port - 1 };
        if !self.is_srv6() {
            let paths = evs.iter().map(|ev| Ok(entry(ev, self.carried(layout, ev)?)));
            return Ok(Carried { paths: paths.collect::<Result<_>>()?, routes: Vec::new() });
        }
        let masked: u32 = layout.fields.iter().map(|field| field.mask.count_ones()).sum();
        let mut first_places = HashMap::new();
        let paths = evs.iter().enumerate().map(|(place, ev)| {
            // Copies of a value are one path.
            let place = *first_places.entry(key(ev)).or_insert(place);
            let first = u32::from_be_bytes([ev.val[0], ev.val[1], ev.val[2], ev.val[3]]);
            entry(ev, Ev(if masked > CARRIED_BITS { place as u32 } else { first }))
        });
        Ok(Carried {
            paths: paths.collect(),
            routes: evs.iter().map(|ev| self.route(layout, ev)).collect::<Result<_>>()?,
        })
    }

    /// Checks the fields that a program gives.
    ///
    /// # Errors
    /// E2BIG if they are wider than the device's longest format; EINVAL.
    pub fn check_fields(&self, layout: &Layout) -> Result<()> {
        let total: u64 = layout.fields.iter().map(|field| u64::from(field.width)).sum();
        if total > u64::from(longest(self.format).path_bits()) {
            return Err(Errno(libc::E2BIG));
        }
        expansion::check_fit(layout.format, &layout.widths, &layout.fields).map_err(|_| EINVAL)
    }
}

fn is_unicast(addr: Ipv6Addr) -> bool {
    let is_other = addr.is_unspecified() || addr.is_loopback() || addr.is_multicast();
    !is_other && addr.to_ipv4_mapped().is_none()
}
