//! Packets that are already encoded, because the kernel or the impairer has held them back.

use std::io;

use openmrc_sockets::SendError;
use openmrc_transport::{Span, Time};

use crate::impairer::Outgoing;
use crate::network::Network;
use crate::stats::Cause;
use crate::tx::RunKey;

/// How long a port rests after the device queue was full (ENOBUFS): the kernel does not report when it has room again.
pub(super) const NOBUFS_PAUSE: Span = Span::from_micros(100);

/// Sends such packets.
pub(super) trait Offer {
    /// Offers packets in one piece, each of `segment` bytes but the last. Returns how many bytes are done with; if
    /// not all, the next try is scheduled.
    fn offer(&mut self, net: &mut Network, key: RunKey, bytes: &[u8], segment: usize, now: Time) -> usize;

    /// Sends packets in one piece, behind what the port holds already.
    fn send_piece(&mut self, net: &mut Network, key: RunKey, bytes: &[u8], segment: usize, now: Time) {
        if bytes.is_empty() {
            return;
        }
        let waits = !net.ports[net.port_of(key.path)].held.is_empty();
        let done = if waits { 0 } else { self.offer(net, key, bytes, segment, now) };
        if done < bytes.len() {
            net.hold(key, bytes[done..].to_vec(), segment);
        }
    }

    /// Sends what the impairer has released.
    fn send_outgoing(&mut self, net: &mut Network, out: &mut Vec<Outgoing>, now: Time) {
        for packet in out.drain(..) {
            if net.ports[usize::from(packet.port)].is_up() {
                self.send_piece(net, packet.key, &packet.bytes, packet.bytes.len(), now);
            } else {
                net.causes.add(Cause::TxNoPort, 1);
            }
        }
    }

    /// Offers what a port holds again, in order.
    fn retry_held(&mut self, net: &mut Network, port: usize, now: Time) {
        net.ports[port].retry_at = Time::NEVER;
        while let Some(mut held) = net.ports[port].held.pop_front() {
            if !net.ports[port].is_up() {
                net.ports[port].end_refusal();
                net.causes.add(Cause::TxNoPort, held.packets());
                continue;
            }
            let done = self.offer(net, held.key, &held.bytes, held.segment, now);
            held.bytes.drain(..done);
            let stuck = done == 0 && net.ports[port].has_refused_too_long(now);
            if stuck {
                net.causes.add(Cause::TxNoBuffers, 1);
                held.bytes.drain(..held.segment.min(held.bytes.len()));
            }
            if !held.bytes.is_empty() {
                net.ports[port].held.push_front(held);
                if !stuck {
                    break;
                }
            }
        }
    }
}

/// What became of bytes offered to the kernel.
pub(super) enum Sent {
    Done,
    /// Not now: keep them, and try again at this time ([`Time::NEVER`]: when the socket can be written).
    Later(Time),
    /// Never.
    Lost(Cause),
    /// The kernel cannot cut runs into packets: try again one by one.
    OneByOne,
}

impl Sent {
    pub fn new(result: io::Result<()>, now: Time) -> Self {
        let Err(error) = result else { return Sent::Done };
        match SendError::from(&error) {
            SendError::WouldBlock => Sent::Later(Time::NEVER),
            SendError::NoBuffers => Sent::Later(now + NOBUFS_PAUSE),
            SendError::CannotSegment => Sent::OneByOne,
            SendError::Unreachable => Sent::Lost(Cause::TxUnreachable),
            SendError::Refused => Sent::Lost(Cause::TxRefused),
            SendError::TooLong => Sent::Lost(Cause::TxTooLong),
            SendError::Other => Sent::Lost(Cause::TxError),
        }
    }
}
