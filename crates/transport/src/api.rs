//! The interfaces between a transport and its driver. [`Transport`] is the one trait that MRC, RoCEv2 and others
//! implement; [`Host`] is what they need from the driver.

use serde::{Deserialize, Serialize};
use std::sync::Arc;

use openmrc_wire::{Ev, Msn, Packet, Psn};

pub use crate::port_set::PortSet;
use crate::profile::{EvProfile, PathId};
use crate::time::Time;

/// How the network is asked to treat a packet; the DSCP follows from it (docs/spec/wire.md, "DSCP").
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TrafficClass {
    /// First transmissions and reliability probes: trimmable.
    Data,
    /// Retransmissions: trimmable, with a code point of their own.
    DataRetransmit,
    /// Data to a peer that sends no NACKs for trimmed packets: dropped, not trimmed, where a queue is full.
    DataNoTrim,
    /// Feedback, endpoint requests and responses: high priority, never trimmed.
    Control,
}

/// Where a switch trimmed a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Trim {
    /// Somewhere inside the fabric.
    Fabric,
    /// On the last hop, towards the receiver: incast, which no other path can help.
    LastHop,
}

/// Which bytes go behind the headers of a data packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Payload {
    /// [`WorkRequest::handle`] of the message.
    pub handle: u64,
    /// Offset of the packet's first byte in the message; the length is the packet's `payload_len`.
    pub offset: u32,
}

/// One packet to send.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Transmit {
    /// Headers and payload length.
    pub packet: Packet,
    /// Entropy value to send it with.
    pub ev: Ev,
    /// The path's number in the [`crate::EvProfile`] of the queue pair.
    pub path: PathId,
    /// Port (plane) to send it on.
    pub port: u8,
    /// Treatment in the network.
    pub class: TrafficClass,
    /// Bytes behind the headers; `None` where the packet carries none.
    pub payload: Option<Payload>,
}

/// One packet that came in, with what the layers outside the UDP payload say about it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Received {
    /// Headers and payload length (zero if trimmed).
    pub packet: Packet,
    /// Entropy value it came with; reflected in feedback.
    pub ev: Ev,
    /// Port (plane) it came in on.
    pub port: u8,
    /// ECN field said congestion experienced.
    pub ecn_ce: bool,
    /// Whether a switch cut its payload off.
    pub trim: Option<Trim>,
}

/// One message to send: an RDMA WRITE, with immediate if `imm` is given.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct WorkRequest {
    /// The driver's name for it; comes back in [`Payload`] and [`SendDone`].
    pub handle: u64,
    /// Message length in bytes, at most 2^31.
    pub len: u32,
    /// Virtual address of the first byte at the responder.
    pub remote_va: u64,
    /// Key of the remote region.
    pub rkey: u32,
    /// Immediate value, delivered to the responder's receive queue.
    pub imm: Option<u32>,
    /// Ask the responder for a solicited event.
    pub solicited: bool,
}

/// Why a work request was not taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum PostError {
    /// The send queue is full.
    #[error("the send queue is full: {0} work requests are outstanding")]
    QueueFull(usize),
    /// The message is longer than a queue pair can send.
    #[error("a message of {0} bytes is too long: at most 2^31 bytes")]
    TooLong(u32),
    /// The queue pair is in ERROR.
    #[error("the queue pair is in ERROR")]
    InError,
    /// The queue pair is not in RTS yet.
    #[error("the queue pair is not in RTS")]
    NotReady,
}

/// A remote access the responder's memory does not allow: unknown key, out of bounds, wrong rights or domain.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("remote access not allowed")]
pub struct AccessError;

/// An immediate arrived and no receive was posted for it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum NoReceive {
    /// The message is refused: MRC has no RNR.
    #[error("no receive is posted")]
    Refused,
    /// The message waits for a receive, as verbs programs expect.
    #[error("no receive is posted yet")]
    Waits,
}

/// Status of a completed send, as in ibverbs.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum SendStatus {
    /// Done.
    Success,
    /// Flushed because the queue pair went to ERROR.
    FlushErr,
    /// The responder's memory refused it.
    RemoteAccessErr,
    /// The responder could not execute it: no receive posted, or an unexpected event.
    RemoteOpErr,
    /// The responder did not understand it, or had too many immediates in flight.
    RemoteInvalidRequestErr,
    /// Retries exhausted.
    RetryExceededErr,
}

/// A send that ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SendDone {
    /// [`WorkRequest::handle`].
    pub handle: u64,
    /// How it ended.
    pub status: SendStatus,
}

/// A message with immediate that is complete at the responder, and every message before it too.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RecvDone {
    /// Which of the queue pair's messages with immediate.
    pub rqmsn: Msn,
    /// The value.
    pub imm: u32,
    /// Bytes of the message.
    pub byte_len: u32,
    /// Its sender asked for a solicited event.
    pub solicited: bool,
}

/// Why a queue pair went to ERROR.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error, Serialize, Deserialize)]
pub enum Fatal {
    /// The peer does not answer on any path.
    #[error("retries exhausted: the peer does not answer")]
    RetryExceeded,
    /// The peer refused with a transport NAK.
    #[error("the peer refused with NAK 0x{0:02x}")]
    RemoteNak(u8),
    /// The peer sent NACK UNEXP_EVENT.
    #[error("the peer reported an unexpected event")]
    UnexpectedEvent,
    /// As responder: the peer wrote where it may not.
    #[error("the peer tried to write where it may not")]
    AccessViolation,
    /// As responder: no receive was posted for an immediate.
    #[error("an immediate arrived and no receive was posted")]
    NoReceive,
    /// As responder: the peer had too many messages with immediate in flight.
    #[error("the peer exceeded the limit of messages with immediate in flight")]
    WimmLimit,
    /// As responder: a packet contradicted an earlier one.
    #[error("the peer sent an invalid request")]
    InvalidRequest,
    /// The local side ended it.
    #[error("ended by the local side")]
    Local,
}

/// What happened to a path.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum EvChange {
    /// Condemned: out of rotation.
    AssumedBad,
    /// Probes succeeded: usable again.
    Good,
}

/// A path was condemned or came back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct EvEvent {
    /// Entropy value.
    pub ev: Ev,
    /// Its number in the profile.
    pub path: PathId,
    /// Its plane.
    pub port: u8,
    /// What happened.
    pub change: EvChange,
}

/// What a queue pair asks of the world it lives in. Called back during `handle_packet`, `handle_timeout` and `abort`.
pub trait Host {
    /// Put the packet in hand's payload at `va` of the region named by `rkey`, whole or not at all.
    ///
    /// # Errors
    /// [`AccessError`] if the region does not exist, does not belong here, does not allow remote writes, or is too
    /// small.
    fn write(&mut self, rkey: u32, va: u64, len: u32) -> Result<(), AccessError>;

    /// Send a feedback packet. Always taken: feedback is small and has priority.
    fn transmit(&mut self, transmit: Transmit);

    /// A posted send ended. In posting order, exactly once each.
    fn send_done(&mut self, done: SendDone);

    /// A message with immediate is complete. In order, exactly once each.
    ///
    /// # Errors
    /// [`NoReceive`] if the receive queue is empty. The queue pair then goes to ERROR, or the message waits: it is
    /// offered again after [`Transport::receives_posted`], and with each further packet.
    fn recv_done(&mut self, done: RecvDone) -> Result<(), NoReceive>;

    /// A path was condemned or came back.
    fn ev_event(&mut self, event: EvEvent) {
        let _ = event;
    }

    /// A packet was lost without a trace on this path: the drop counts of EV events add these up.
    fn path_loss(&mut self, path: PathId, port: u8) {
        let _ = (path, port);
    }

    /// With keepalive: the peer does not answer (`true`), or is heard again. They alternate, and the queue pair goes
    /// on.
    fn peer_silence(&mut self, silent: bool) {
        let _ = silent;
    }

    /// Whether a condemned path may be probed now. If so, the probe is sent, and the node's budget pays for it.
    fn may_probe_path(&mut self, now: Time) -> bool;

    /// The queue pair went to ERROR. Comes once, before the flushed completions.
    fn fatal(&mut self, why: Fatal);
}

/// Whether a queue pair wants to be served (docs/spec/congestion.md, "QP scheduling").
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Readiness {
    /// Nothing to send, nothing in flight.
    Idle,
    /// Nothing to send, waiting for feedback.
    Pending,
    /// Data to send, window closed.
    Active,
    /// Data to send, window open.
    Ready,
}

/// What SACKs tell the senders.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Pressure {
    /// 0 = none .. 127: take `penalty / 128` of every byte acknowledged off the window.
    pub penalty: u8,
    /// With no penalty: the window saved before it may be restored, the incast is over.
    pub restore: bool,
}

impl Pressure {
    /// A receive buffer is full and drops packets: halve. This penalty and higher ones tell the sender that what it
    /// sent before may have been dropped there, so that its losses are no path's fault \[choice\].
    pub const OVERFLOW: Pressure = Pressure { penalty: 64, restore: false };
    /// Nothing holds the senders back.
    pub const NONE: Pressure = Pressure { penalty: 0, restore: true };
    /// Do not grow.
    pub const HOLD: Pressure = Pressure { penalty: 1, restore: false };
    /// Grow from where you are.
    pub const GROW: Pressure = Pressure { penalty: 0, restore: false };

    /// Whether it tells of packets that a full receive buffer has dropped.
    #[inline]
    pub const fn is_overflow(self) -> bool {
        self.penalty >= Pressure::OVERFLOW.penalty
    }
}

impl From<u8> for Pressure {
    /// This penalty; with none, windows are restored.
    fn from(penalty: u8) -> Self {
        Pressure { penalty, restore: penalty == 0 }
    }
}

/// What the proof of a queue pair's path MTU needs to know (docs/decisions.md, "The path MTU is proven by duplicates").
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct MtuQuestion {
    /// Number of the peer's queue pair.
    pub dest_qp: u32,
    /// The PSN just below the first one.
    pub psn: Psn,
    /// Payload bytes of a packet of full size.
    pub path_mtu: u16,
    /// Paths to the peer. Not part of a checkpoint: a proof asks its queue pair again before it uses them.
    #[serde(skip, default = "EvProfile::none")]
    pub profile: Arc<EvProfile>,
    /// Those of them that the controller has switched off.
    pub denied: Vec<PathId>,
    /// Bits of their entropy values.
    pub entropy_bits: u8,
}

/// One end of a connection: requestor and responder.
pub trait Transport {
    /// Take a message to send.
    ///
    /// # Errors
    /// [`PostError`]; the message was not taken and nothing has changed.
    fn post_send(&mut self, now: Time, wr: WorkRequest) -> Result<(), PostError>;

    /// A packet for this queue pair has come in, its iCRC good (or trimmed). Compiled for each host: placing the
    /// payload of a data packet is a call that is worth inlining.
    fn handle_packet(&mut self, now: Time, received: &Received, host: &mut impl Host);

    /// The time has come that [`Transport::poll_timeout`] named. Harmless at any other time.
    fn handle_timeout(&mut self, now: Time, host: &mut dyn Host);

    /// The next data packet to send on one of `ports`, those that can take a packet now.
    fn poll_transmit(&mut self, now: Time, ports: PortSet) -> Option<Transmit>;

    /// When [`Transport::handle_timeout`] wants to be called; [`Time::NEVER`] if not at all.
    fn poll_timeout(&self) -> Time;

    /// Whether it wants to be served.
    fn readiness(&self) -> Readiness;

    /// Ports that are up at this end and, as far as is known, at the peer's.
    fn set_ports_up(&mut self, now: Time, local: PortSet, peer: PortSet);

    /// Go to ERROR: outstanding work is flushed through `host`, nothing is sent any more.
    fn abort(&mut self, now: Time, why: Fatal, host: &mut dyn Host);

    /// The queue pair is destroyed: what is outstanding is dropped without completions, and what has arrived and was
    /// not reported is reported now. It still answers duplicates and probes, so that its peer learns what has arrived.
    fn retire(&mut self, now: Time, host: &mut dyn Host);

    /// What a proof of its path MTU needs. `None` if it cannot be proven: it does not send.
    fn mtu_question(&self) -> Option<MtuQuestion> {
        None
    }

    /// Whether the peer owes it an answer. As long as it does, sending more brings no deadline forward.
    fn is_waiting(&self) -> bool {
        false
    }

    /// As responder: offers the message that waits for a receive to the host again, which has one now, or refuses it
    /// because it has waited for too long.
    fn receives_posted(&mut self, now: Time, host: &mut dyn Host) {
        let _ = (now, host);
    }

    /// As responder: destination flow control for the feedback from now on, where the transport has it.
    fn set_receive_pressure(&mut self, pressure: Pressure) {
        let _ = pressure;
    }

    /// As responder: advertises another window, units of 128 PSNs, where the transport has a dynamic one.
    fn set_advertised_mpr(&mut self, mpr: u8) {
        let _ = mpr;
    }

    /// Brings delayed feedback forward, as the peer is busy with data that was just sent to it.
    fn report_early(&mut self, now: Time, host: &mut dyn Host) {
        let _ = (now, host);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_penalty_alone_restores_windows_only_if_it_is_none() {
        assert_eq!(Pressure::from(0), Pressure::NONE);
        assert_eq!(Pressure::from(1), Pressure::HOLD);
        assert_eq!(Pressure::from(64), Pressure::OVERFLOW);
        assert_eq!(Pressure::from(127), Pressure { penalty: 127, restore: false });
    }

    #[test]
    fn a_penalty_of_an_overflow_or_more_tells_of_dropped_packets() {
        for (penalty, is_overflow) in [(0, false), (1, false), (63, false), (64, true), (127, true)] {
            assert_eq!(Pressure::from(penalty).is_overflow(), is_overflow, "{penalty}");
        }
    }
}
