//! What partitions send each other: the events that one causes in another, with the contents of their packets, and the
//! lengths of queues that decide on marks at the other end of a cable. A partition collects them during a slot of the
//! calendar and hands them over at its end; none of them is due before the next slot.

use crate::calendar::Calendar;
use crate::event::{Event, Kind};
use crate::groups::Address;
use crate::long_queue::LongQueue;
use crate::slab::{Parcels, Slab};

/// What one partition sends to another in a slot.
#[derive(Default)]
pub(crate) struct Mail {
    /// Events, and the groups that they are for. The packet of an arrival is still in the sender's slab until the mail is
    /// sealed.
    events: Vec<(Event, u32)>,
    /// Contents of the packets among the events, in their order.
    packets: Parcels,
    /// Queues that may mark.
    pub queues: Vec<LongQueue>,
}

impl Mail {
    /// Adds an event.
    #[inline]
    pub fn push(&mut self, event: Event, to: Address) {
        self.events.push((event, to.group()));
    }

    /// Takes the contents of the packets out of the sender's slab.
    pub fn seal(&mut self, slab: &mut Slab) {
        for (event, _) in self.events.iter().filter(|(event, _)| event.kind == Kind::Arrive) {
            self.packets.pack(slab, event.packet);
        }
    }

    /// Time of the first event; [`u64::MAX`] if there is none.
    pub fn earliest(&self) -> u64 {
        self.events.iter().map(|(event, _)| event.time).min().unwrap_or(u64::MAX)
    }

    /// Schedules the events at the receiver and puts the packets into its slab.
    pub fn deliver(&mut self, calendar: &mut Calendar, slab: &mut Slab) {
        let mut packets = self.packets.unpack();
        for (mut event, group) in self.events.drain(..) {
            if event.kind == Kind::Arrive
                && let Some(packet) = packets.put(slab, event.packet)
            {
                event.packet = packet;
            }
            calendar.push(event, group);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use openmrc_wire::{Body, Packet, Psn};

    #[test]
    fn events_arrive_with_their_packets_whatever_lies_between_them() {
        let (mut here, mut there) = (Slab::default(), Slab::default());
        there.put(&Packet::new(1, Psn::new(1), Body::Cnp));
        let mut calendar = Calendar::new(vec![0..0, 0..4], 100, 1000);
        let mut mail = Mail::default();
        assert_eq!(mail.earliest(), u64::MAX);
        for number in 0..6u32 {
            let kind = if number.is_multiple_of(2) { Kind::Arrive } else { Kind::Close };
            let packet = here.put(&Packet::new(100 + number, Psn::new(0), Body::Cnp));
            let event = Event { packet, ..Event::plain(150 + u64::from(number), kind, number, number % 4) };
            mail.push(event, Address::EVERYWHERE);
        }
        mail.seal(&mut here);
        assert_eq!((here.len(), mail.earliest()), (3, 150));
        mail.deliver(&mut calendar, &mut there);
        assert_eq!(mail.earliest(), u64::MAX);
        let mut seen: Vec<_> = calendar.pending().copied().collect();
        seen.sort_by_key(|event| event.at);
        for event in seen {
            if event.kind == Kind::Arrive {
                assert_eq!(there.take(event.packet).dest_qp, 100 + event.at);
            }
        }
        assert_eq!(there.len(), 1);
    }
}
