//! Latency of RDMA writes, as perftest's `ib_write_lat` measures it: both sides write to each other in turn. Each waits
//! until the last byte of its own memory changes, so nothing but memory tells it that the peer's message has arrived.

use std::sync::atomic::{AtomicBool, Ordering};

use openmrc_nic::{
    CompletionQueue, Context, Error, MemoryRegion, QpState, QueuePair, Result, SendData, SendWr, Sge,
    monotonic_ns,
};

use crate::ends::{Target, check_size, check_status};

/// The role of this side.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Writes first, and measures.
    Client,
    /// Answers.
    Server,
}

/// How to measure.
pub struct LatencyParams {
    /// Bytes per message, at least 1.
    pub size: u32,
    /// Measured round trips.
    pub iterations: u64,
    /// Round trips before the measured ones; the same at both sides.
    pub warmup: u64,
    /// Copy the payload while posting, if it is short enough.
    pub inline: bool,
}

/// One of this many sends raises a completion, so that the send queue does not fill up.
const SIGNAL_EVERY: u64 = 16;

/// Turns of the engine between checks of `stop` and of the queue pair's state.
const TURNS_BETWEEN_CHECKS: u32 = 1024;

/// The memory in which the peer's messages arrive.
struct Inbox<'a> {
    context: &'a Context,
    qp: &'a QueuePair,
    region: &'a MemoryRegion,
    /// Offset of a message's last byte.
    last: usize,
    stop: &'a AtomicBool,
}

impl Inbox<'_> {
    fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed) || self.qp.state() == QpState::Error
    }

    /// Drives the engine until the last byte is `value`; returns `false` if `stop` is set or the queue pair has failed.
    #[inline]
    fn wait_for(&self, value: u8) -> bool {
        let mut turns = 0u32;
        while self.region.peek(self.last) != Some(value) {
            self.context.progress();
            turns = turns.wrapping_add(1);
            if turns.is_multiple_of(TURNS_BETWEEN_CHECKS) && self.is_stopped() {
                return false;
            }
        }
        true
    }
}

/// Runs `params.warmup + params.iterations` round trips and returns half of each measured one in nanoseconds, the
/// latency of one write; for the server the list is empty. The messages go from the beginning of `source` to the
/// beginning of `target` and arrive at the beginning of `inbox`. Setting `stop` from another thread ends the run early.
///
/// # Errors
/// [`Error::InvalidArgument`] if sizes do not fit, [`Error::MessageFailed`] for a message that failed; and the errors
/// of posting and polling.
#[allow(clippy::too_many_arguments)] // The same objects as in perftest.
pub fn write_lat(
    context: &Context,
    qp: &QueuePair,
    cq: &CompletionQueue,
    source: &MemoryRegion,
    inbox: &MemoryRegion,
    target: &Target,
    role: Role,
    params: &LatencyParams,
    stop: &AtomicBool,
) -> Result<Vec<u64>> {
    check_size(params.size, source, target)?;
    let last = (params.size as usize).checked_sub(1).filter(|&last| last < inbox.len());
    let last = last.ok_or_else(|| {
        Error::InvalidArgument(format!(
            "messages of {} bytes need an inbox of that size, at least 1",
            params.size
        ))
    })?;
    let inline = params.inline && params.size <= qp.cap().max_inline_data;
    let mut message = source.copy_out(0, params.size as usize);
    let sge = [Sge { addr: source.addr(), len: params.size, lkey: source.lkey() }];
    let mut samples = Vec::with_capacity(if role == Role::Client { params.iterations as usize } else { 0 });
    let mut completions = Vec::with_capacity(64);
    let inbox = Inbox { context, qp, region: inbox, last, stop };
    let _polling = context.polling();
    let mut last_round = monotonic_ns();
    for round in 0..params.warmup + params.iterations {
        // Differs from the value of the previous round, and in the first round from a zeroed inbox.
        let value = (round % 255) as u8 + 1;
        if role == Role::Server && !inbox.wait_for(value) {
            return Ok(samples);
        }
        message[last] = value;
        if !inline {
            source.poke(last, value)?;
        }
        qp.post_send(&[SendWr {
            wr_id: round,
            data: if inline { SendData::Inline(&message) } else { SendData::Sges(&sge) },
            remote_addr: target.addr,
            rkey: target.rkey,
            imm: None,
            signaled: round.is_multiple_of(SIGNAL_EVERY),
            solicited: false,
        }])?;
        if role == Role::Client {
            if !inbox.wait_for(value) {
                return Ok(samples);
            }
            // From answer to answer, as in perftest: the work between two rounds is part of it.
            let now = monotonic_ns();
            if round >= params.warmup {
                samples.push((now - last_round) / 2);
            }
            last_round = now;
        }
        if !cq.is_empty() {
            completions.clear();
            cq.poll_into(64, &mut completions)?;
            completions.iter().try_for_each(check_status)?;
        }
        while qp.send_outstanding() as u64 + 1 >= u64::from(qp.cap().max_send_wr) {
            context.progress();
        }
    }
    // The last message may still be in flight.
    while qp.send_outstanding() > 0 && !inbox.is_stopped() {
        context.progress();
    }
    cq.poll_into(usize::MAX, &mut completions)?;
    Ok(samples)
}
