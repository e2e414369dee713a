//! One-way bandwidth of RDMA writes.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::{Target, check_size};
use crate::context::Context;
use crate::cq::{Completion, CompletionQueue, Status};
use crate::error::{Error, Result};
use crate::memory::MemoryRegion;
use crate::monotonic_ns;
use crate::qp::{QueuePair, SendData, SendWr, Sge};

/// How to measure.
#[derive(Clone, PartialEq, Debug)]
pub struct BwParams {
    /// Bytes per message.
    pub size: u32,
    /// Messages to send over all queue pairs; `None`: until `duration` has passed.
    pub iterations: Option<u64>,
    /// How long to send; `None`: until `iterations` are sent. One of the two is needed; with both, what comes first.
    pub duration: Option<Duration>,
    /// Messages outstanding per queue pair (`--tx-depth`); at most its `max_send_wr`.
    pub depth: u32,
    /// Messages per call of `post_send` (`--post_list`).
    pub post_list: u32,
    /// One completion for so many messages (`--cq-mod`), so that it does not cost more than the message.
    pub signal_every: u32,
    /// Send with the payload copied while posting; the queue pairs' `max_inline_data` must allow it.
    pub inline: bool,
    /// Drive the engine from this thread. Otherwise the engine's own thread does, and this one sleeps in between.
    pub polling: bool,
    /// Width of the intervals in which completed bytes are counted.
    pub bucket: Duration,
}

impl Default for BwParams {
    /// perftest's defaults, but a list per call: 5000 messages of 64 KiB, 128 outstanding.
    fn default() -> Self {
        BwParams {
            size: 65_536,
            iterations: Some(5000),
            duration: None,
            depth: 128,
            post_list: 16,
            signal_every: 16,
            inline: false,
            polling: true,
            bucket: Duration::from_millis(1),
        }
    }
}

/// What was measured.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct BwResult {
    /// Payload bytes of messages that completed.
    pub bytes: u64,
    /// Messages that completed.
    pub messages: u64,
    /// From the first post to the last completion, nanoseconds.
    pub elapsed_ns: u64,
    /// When the first was posted, nanoseconds of `CLOCK_MONOTONIC`.
    pub start_ns: u64,
    /// Width of the intervals, nanoseconds.
    pub bucket_ns: u64,
    /// Payload bytes completed in each interval from `start_ns` on.
    pub buckets: Vec<u64>,
}

impl BwResult {
    /// Payload bits per second.
    pub fn goodput_bps(&self) -> f64 {
        if self.elapsed_ns == 0 { 0.0 } else { self.bytes as f64 * 8e9 / self.elapsed_ns as f64 }
    }

    /// Messages per second.
    pub fn message_rate(&self) -> f64 {
        if self.elapsed_ns == 0 { 0.0 } else { self.messages as f64 * 1e9 / self.elapsed_ns as f64 }
    }
}

/// One queue pair's part of a run.
struct Flow<'a> {
    qp: &'a QueuePair,
    posted: u64,
    completed: u64,
}

/// Writes from `source` to `target` over all of `qps` as fast as they go. Messages take their places in the two
/// regions in turn, as many as fit both. `stop`, set by anyone, ends it early; what is outstanding is waited for.
///
/// # Errors
/// [`Error::InvalidArgument`] if sizes do not fit; whatever posting and polling give; and [`Error::InvalidArgument`] naming
/// the status if a message fails.
pub fn write_bw(
    context: &Context,
    qps: &[&QueuePair],
    cq: &CompletionQueue,
    source: &MemoryRegion,
    target: &Target,
    params: &BwParams,
    stop: Option<&AtomicBool>,
) -> Result<BwResult> {
    check_size(params.size, source, target)?;
    if qps.is_empty() || (params.iterations.is_none() && params.duration.is_none()) {
        return Err(Error::invalid("a run needs a queue pair, and a number of iterations or a duration"));
    }
    let depth = qps.iter().map(|qp| qp.cap().max_send_wr).min().unwrap_or(1).min(params.depth.max(1));
    let depth = u64::from(depth);
    let list = u64::from(params.post_list.max(1)).min(depth);
    let signal_every = u64::from(params.signal_every.max(1)).min(depth);
    let size = params.size as usize;
    let slots = (source.len() as u64).min(target.len) / params.size.max(1) as u64;
    let inline = if params.inline { source.copy_out(0, size) } else { Vec::new() };
    let bucket_ns = params.bucket.as_nanos().clamp(1000, u128::from(u64::MAX)) as u64;

    let mut flows: Vec<_> = qps.iter().map(|&qp| Flow { qp, posted: 0, completed: 0 }).collect();
    let mut left = params.iterations.unwrap_or(u64::MAX);
    let mut result = BwResult { bucket_ns, ..BwResult::default() };
    let mut completions: Vec<Completion> = Vec::with_capacity(256);
    let mut sges = vec![[Sge::default()]; list as usize];
    let _polling = params.polling.then(|| context.polling());

    result.start_ns = monotonic_ns();
    let end_ns = params.duration.map_or(u64::MAX, |d| result.start_ns.saturating_add(d.as_nanos() as u64));
    let mut ending = false;
    let mut slot = 0;
    loop {
        for flow in &mut flows {
            while !ending && left > 0 && flow.posted - flow.completed + list.min(left) <= depth {
                let n = list.min(left);
                for sge in &mut sges[..n as usize] {
                    let offset = slot * u64::from(params.size);
                    sge[0] = Sge { addr: source.addr() + offset, len: params.size, lkey: source.lkey() };
                    slot = if slot + 1 < slots { slot + 1 } else { 0 };
                }
                let request = |i: usize| {
                    let number = flow.posted + i as u64 + 1;
                    SendWr {
                        wr_id: number,
                        data: if params.inline {
                            SendData::Inline(&inline)
                        } else {
                            SendData::Sges(&sges[i])
                        },
                        remote_addr: target.addr + (sges[i][0].addr - source.addr()),
                        rkey: target.rkey,
                        imm: None,
                        // The last of all too, and those before a pause.
                        signaled: number.is_multiple_of(signal_every) || i as u64 + 1 == n,
                        solicited: false,
                    }
                };
                let requests: smallvec::SmallVec<[SendWr<'_>; 64]> = (0..n as usize).map(request).collect();
                flow.qp.post_send(&requests)?;
                flow.posted += n;
                left -= n;
            }
        }
        completions.clear();
        cq.poll_into(256, &mut completions)?;
        let now = monotonic_ns();
        for done in &completions {
            if done.status != Status::Success {
                return Err(Error::invalid(format!("message {} failed: {}", done.wr_id, done.status.name())));
            }
            let Some(flow) = flows.iter_mut().find(|f| f.qp.qp_num() == done.qp_num) else { continue };
            // Completions come in order: one says that everything before it is complete too.
            let newly = done.wr_id - flow.completed;
            flow.completed = done.wr_id;
            result.messages += newly;
            let bytes = newly * u64::from(params.size);
            result.bytes += bytes;
            let bucket = ((now - result.start_ns) / bucket_ns) as usize;
            if bucket >= result.buckets.len() {
                result.buckets.resize(bucket + 1, 0);
            }
            result.buckets[bucket] += bytes;
            result.elapsed_ns = now - result.start_ns;
        }
        ending |= left == 0 || now >= end_ns || stop.is_some_and(|s| s.load(Ordering::Relaxed));
        if ending && flows.iter().all(|f| f.completed == f.posted) {
            return Ok(result);
        }
        if completions.is_empty() && !params.polling {
            cq.wait(Duration::from_millis(100));
        }
    }
}
