//! Latency of RDMA writes: a ball that goes back and forth. Each side waits for the last byte of its region to change, as
//! perftest does, so nothing but memory tells it that the ball is there.

use std::sync::atomic::{AtomicBool, Ordering};

use super::{Target, check_size};
use crate::context::Context;
use crate::cq::{CompletionQueue, Status};
use crate::error::{Error, Result};
use crate::memory::MemoryRegion;
use crate::monotonic_ns;
use crate::qp::{QueuePair, SendData, SendWr, Sge};
use crate::qp_state::QpState;

/// Who serves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    /// Writes first, and measures.
    Client,
    /// Writes back.
    Server,
}

/// How to measure.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LatParams {
    /// Bytes per message, at least 1.
    pub size: u32,
    /// Round trips that are measured.
    pub iterations: u64,
    /// Round trips before those. The same at both sides.
    pub warmup: u64,
    /// Send with the payload copied while posting, if it is short enough.
    pub inline: bool,
}

impl Default for LatParams {
    /// perftest's: 2 bytes, 1000 round trips.
    fn default() -> Self {
        LatParams { size: 2, iterations: 1000, warmup: 100, inline: true }
    }
}

/// How often a send raises a completion, to keep the send queue from filling up.
const SIGNAL_EVERY: u64 = 16;

/// How long the other side may take before the loop looks whether it should stop, in turns of the engine.
const TURNS_BETWEEN_CHECKS: u32 = 1024;

/// Plays `params.warmup + params.iterations` round trips and returns half of each measured one in nanoseconds: the
/// latency of one write. For the server the list is empty. The messages go from the beginning of `source` to the
/// beginning of `target`, and come to the beginning of `inbox`, all of which hold `size` bytes. `stop`, set by anyone, ends
/// it early.
///
/// # Errors
/// [`Error::InvalidArgument`] if sizes do not fit or a message fails, with its status; whatever posting and polling give.
#[allow(clippy::too_many_arguments)] // Each is an object of its own that perftest has too.
pub fn write_lat(
    context: &Context,
    qp: &QueuePair,
    cq: &CompletionQueue,
    source: &MemoryRegion,
    inbox: &MemoryRegion,
    target: &Target,
    role: Role,
    params: &LatParams,
    stop: Option<&AtomicBool>,
) -> Result<Vec<u64>> {
    check_size(params.size, source, target)?;
    let last = (params.size as usize).checked_sub(1).filter(|&last| last < inbox.len());
    let last = last.ok_or_else(|| {
        Error::invalid(format!("messages of {} bytes need an inbox of that size, at least 1", params.size))
    })?;
    let inline = params.inline && params.size <= qp.cap().max_inline_data;
    let mut message = source.copy_out(0, params.size as usize);
    let sge = [Sge { addr: source.addr(), len: params.size, lkey: source.lkey() }];
    let mut samples = Vec::with_capacity(if role == Role::Client { params.iterations as usize } else { 0 });
    let mut completions = Vec::with_capacity(64);
    let _polling = context.polling();
    let mut last_turn = monotonic_ns();
    for round in 0..params.warmup + params.iterations {
        // Successive balls differ, and the first differs from a zeroed inbox.
        let ball = (round % 255) as u8 + 1;
        if role == Role::Server && !wait_for(context, qp, inbox, last, ball, stop) {
            return Ok(samples);
        }
        message[last] = ball;
        if !inline {
            source.poke(last, ball)?;
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
            if !wait_for(context, qp, inbox, last, ball, stop) {
                return Ok(samples);
            }
            // From one return to the next, as perftest does: what happens between the rounds counts too.
            let now = monotonic_ns();
            if round >= params.warmup {
                samples.push((now - last_turn) / 2);
            }
            last_turn = now;
        }
        if !cq.is_empty() {
            completions.clear();
            cq.poll_into(64, &mut completions)?;
            if let Some(bad) = completions.iter().find(|c| c.status != Status::Success) {
                return Err(Error::invalid(format!("message {} failed: {}", bad.wr_id, bad.status.name())));
            }
        }
        while qp.send_outstanding() as u64 + 1 >= u64::from(qp.cap().max_send_wr) {
            context.progress();
        }
    }
    // The last ball may be under way.
    while qp.send_outstanding() > 0
        && qp.state() != QpState::Error
        && !stop.is_some_and(|s| s.load(Ordering::Relaxed))
    {
        context.progress();
    }
    cq.poll_into(usize::MAX, &mut completions)?;
    Ok(samples)
}

/// Drives the engine until the ball is in the inbox; `false` if told to stop or the queue pair has failed.
#[inline]
fn wait_for(
    context: &Context,
    qp: &QueuePair,
    inbox: &MemoryRegion,
    last: usize,
    ball: u8,
    stop: Option<&AtomicBool>,
) -> bool {
    let mut turns = 0u32;
    while inbox.peek(last) != Some(ball) {
        context.progress();
        turns = turns.wrapping_add(1);
        if turns.is_multiple_of(TURNS_BETWEEN_CHECKS) {
            let told = stop.is_some_and(|s| s.load(Ordering::Relaxed));
            if told || qp.state() == QpState::Error {
                return false;
            }
        }
    }
    true
}
