//! DSCP code points: the class of a packet, and whether a switch has trimmed it (docs/spec/wire.md, "DSCP").

use crate::packet::{Body, NackReason, Packet};

/// The meaning of a code point.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum DscpClass {
    /// Data that is dropped, not trimmed, when a queue is full.
    NoTrim,
    /// Data sent for the first time. A switch may trim it.
    Trimmable,
    /// Retransmitted data. A switch may trim it.
    TrimmableRetx,
    /// Trimmed by a switch.
    Trimmed,
    /// Trimmed by the receiver's own T0, on its downlink.
    TrimmedLastHop,
    /// SACK, NACK, ACK, port status.
    Control,
}

impl DscpClass {
    /// Every class.
    pub const ALL: [DscpClass; 6] = [
        DscpClass::NoTrim,
        DscpClass::Trimmable,
        DscpClass::TrimmableRetx,
        DscpClass::Trimmed,
        DscpClass::TrimmedLastHop,
        DscpClass::Control,
    ];
}

/// The code point of each class, 6 bits. The operator chooses the values. All six must differ, so that the code point
/// determines the class.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct DscpMap {
    /// See [`DscpClass::NoTrim`].
    pub no_trim: u8,
    /// See [`DscpClass::Trimmable`].
    pub trimmable: u8,
    /// See [`DscpClass::TrimmableRetx`].
    pub trimmable_retx: u8,
    /// See [`DscpClass::Trimmed`].
    pub trimmed: u8,
    /// See [`DscpClass::TrimmedLastHop`].
    pub trimmed_last_hop: u8,
    /// See [`DscpClass::Control`].
    pub control: u8,
}

impl DscpMap {
    /// The spec's defaults; control is Expedited Forwarding (RFC 3246).
    pub const DEFAULT: DscpMap = DscpMap {
        no_trim: 0,
        trimmable: 4,
        trimmable_retx: 8,
        trimmed: 12,
        trimmed_last_hop: 16,
        control: 46,
    };

    /// The code point of a class.
    #[inline]
    pub const fn code(&self, class: DscpClass) -> u8 {
        match class {
            DscpClass::NoTrim => self.no_trim,
            DscpClass::Trimmable => self.trimmable,
            DscpClass::TrimmableRetx => self.trimmable_retx,
            DscpClass::Trimmed => self.trimmed,
            DscpClass::TrimmedLastHop => self.trimmed_last_hop,
            DscpClass::Control => self.control,
        }
    }

    /// The class of a code point; `None` if no class has it.
    #[inline]
    pub fn class(&self, code: u8) -> Option<DscpClass> {
        DscpClass::ALL.into_iter().find(|&class| self.code(class) == code)
    }

    /// The reason of the NACK for a packet with this code point, if it says that a switch has trimmed the packet.
    #[inline]
    pub const fn trimmed_reason(&self, code: u8) -> Option<NackReason> {
        if code == self.trimmed {
            Some(NackReason::Trimmed)
        } else if code == self.trimmed_last_hop {
            Some(NackReason::TrimmedLastHop)
        } else {
            None
        }
    }

    /// The class in which a packet is sent; `network_trims` says whether switches trim.
    ///
    /// Probes, of a path or of a peer, are in a data class, so that they meet the same queues as data. They are never
    /// trimmable: they have no payload, and a trimmed probe would overtake the queue that it measures.
    #[inline]
    pub const fn class_of(packet: &Packet, network_trims: bool) -> DscpClass {
        match &packet.body {
            Body::Write(_) | Body::RcWrite(_) if !network_trims => DscpClass::NoTrim,
            Body::Write(_) | Body::RcWrite(_) if packet.rtx => DscpClass::TrimmableRetx,
            Body::Write(_) | Body::RcWrite(_) => DscpClass::Trimmable,
            Body::Probe(_) => DscpClass::NoTrim,
            Body::EndpointRequest(request) => match request.op {
                crate::EndpointOp::EvProbe => DscpClass::NoTrim,
                crate::EndpointOp::PortStatusUpdate => DscpClass::Control,
            },
            _ => DscpClass::Control,
        }
    }

    /// The code point with which a packet is sent; see [`Self::class_of`].
    #[inline]
    pub const fn code_of(&self, packet: &Packet, network_trims: bool) -> u8 {
        self.code(Self::class_of(packet, network_trims))
    }

    /// Two classes with the same code point, or twice a class whose code point does not fit 6 bits; `None` if the map
    /// is valid.
    pub fn conflict(&self) -> Option<(DscpClass, DscpClass)> {
        for (i, &a) in DscpClass::ALL.iter().enumerate() {
            if self.code(a) > 63 {
                return Some((a, a));
            }
            for &b in &DscpClass::ALL[i + 1..] {
                if self.code(a) == self.code(b) {
                    return Some((a, b));
                }
            }
        }
        None
    }
}

impl Default for DscpMap {
    fn default() -> Self {
        Self::DEFAULT
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::{EndpointOp, Erth, Position, Probe, Timestamp, Write};
    use crate::seq::{Msn, Psn};

    fn packet(body: Body) -> Packet {
        Packet::new(1, Psn::new(0), body)
    }

    fn write() -> Packet {
        packet(Body::Write(Write {
            position: Position::Only,
            rqmsn: Msn(0),
            msn: Msn(0),
            timestamp: None,
            va: 0,
            rkey: 0,
            dma_len: 0,
            imm: None,
        }))
    }

    #[test]
    fn a_code_point_determines_the_class() {
        let map = DscpMap::DEFAULT;
        assert_eq!(map.conflict(), None);
        for class in DscpClass::ALL {
            assert_eq!(map.class(map.code(class)), Some(class));
        }
        assert_eq!(map.class(63), None);
    }

    #[test]
    fn an_ambiguous_map_is_refused() {
        let twice = DscpMap { trimmed: 4, ..DscpMap::DEFAULT };
        assert_eq!(twice.conflict(), Some((DscpClass::Trimmable, DscpClass::Trimmed)));
        let wide = DscpMap { control: 64, ..DscpMap::DEFAULT };
        assert_eq!(wide.conflict(), Some((DscpClass::Control, DscpClass::Control)));
        let widest = DscpMap { control: 63, ..DscpMap::DEFAULT };
        assert_eq!(widest.conflict(), None, "six bits hold 63");
    }

    #[test]
    fn each_packet_is_sent_in_the_class_of_the_spec() {
        let class = |packet: &Packet| DscpMap::class_of(packet, true);
        assert_eq!(class(&write()), DscpClass::Trimmable);
        assert_eq!(class(&Packet { rtx: true, ..write() }), DscpClass::TrimmableRetx);
        assert_eq!(DscpMap::class_of(&write(), false), DscpClass::NoTrim);
        let timestamp = Timestamp::default();
        let probe = Probe { vendor_info: 0, probe_id: 0, spdcid: 0, dpdcid: 0, timestamp };
        assert_eq!(class(&packet(Body::Probe(probe))), DscpClass::NoTrim);
        let request =
            |op| packet(Body::EndpointRequest(Erth { op, vendor_info: 0, port_status_mask: 0, timestamp }));
        assert_eq!(class(&request(EndpointOp::EvProbe)), DscpClass::NoTrim);
        assert_eq!(class(&request(EndpointOp::PortStatusUpdate)), DscpClass::Control);
        assert_eq!(class(&packet(Body::Cnp)), DscpClass::Control);

        let map = DscpMap { no_trim: 20, trimmable: 21, control: 22, ..DscpMap::DEFAULT };
        let code = |packet: &Packet, trims| map.code_of(packet, trims);
        assert_eq!([code(&write(), false), code(&write(), true)], [20, 21]);
        assert_eq!(code(&packet(Body::Cnp), true), 22);
    }

    #[test]
    fn the_code_point_tells_where_a_packet_was_trimmed() {
        let map = DscpMap::DEFAULT;
        assert_eq!(map.trimmed_reason(12), Some(NackReason::Trimmed));
        assert_eq!(map.trimmed_reason(16), Some(NackReason::TrimmedLastHop));
        assert_eq!(map.trimmed_reason(4), None);
    }
}
