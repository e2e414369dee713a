//! One-way bandwidth of RDMA writes, as perftest's `ib_write_bw` measures it.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use openmrc_nic::{
    Completion, CompletionQueue, Context, Error, MemoryRegion, QueuePair, Result, SendData, SendWr, Sge,
    monotonic_ns,
};
use smallvec::SmallVec;

use crate::ends::{Target, check_size, check_status};

/// Completions taken from the queue at once.
const POLL: usize = 256;
/// Longest sleep of a thread that does not poll.
const SLEEP: Duration = Duration::from_millis(100);

/// How to measure.
pub struct BandwidthParams {
    /// Bytes per message.
    pub size: u32,
    /// Messages to send over all queue pairs; `None`: until `duration` has passed.
    pub iterations: Option<u64>,
    /// How long to send; `None`: until `iterations` are sent. One of the two is required; with both, the first one ends
    /// the run.
    pub duration: Option<Duration>,
    /// Messages outstanding per queue pair (`--tx-depth`); at most its `max_send_wr`.
    pub depth: u32,
    /// Messages per call of `post_send` (`--post_list`).
    pub post_list: u32,
    /// One completion for this many messages (`--cq-mod`), as a completion may cost more than a short message.
    pub signal_every: u32,
    /// Copy the payload while posting. The queue pairs' `max_inline_data` must allow it.
    pub inline: bool,
    /// Drive the engine from this thread. Otherwise the engine's own thread drives it, and this one sleeps.
    pub polling: bool,
    /// Length of the intervals in which completed bytes are counted.
    pub bucket: Duration,
}

/// What was measured.
#[derive(Default)]
pub struct BandwidthResult {
    /// Payload bytes of completed messages.
    pub bytes: u64,
    /// Completed messages.
    pub messages: u64,
    /// From the first post to the last completion, nanoseconds.
    pub elapsed_ns: u64,
    /// Time of the first post, nanoseconds of `CLOCK_MONOTONIC`.
    pub start_ns: u64,
    /// Length of an interval, nanoseconds.
    pub bucket_ns: u64,
    /// Payload bytes completed in each interval from `start_ns` on.
    pub buckets: Vec<u64>,
    /// Payload bytes posted in each of these intervals. Completions come in bursts: after a pause of this thread, and
    /// after a loss, which holds up all later messages. Only what was posted and completed in a time was sent in it.
    pub posted: Vec<u64>,
}

impl BandwidthResult {
    /// Counts messages that completed at `now`.
    fn count(&mut self, now: u64, messages: u64, bytes: u64) {
        self.messages += messages;
        self.bytes += bytes;
        self.elapsed_ns = now - self.start_ns;
        add(&mut self.buckets, self.elapsed_ns / self.bucket_ns, bytes);
    }

    /// Counts bytes that are posted at `now` or a little later.
    fn count_posted(&mut self, now: u64, bytes: u64) {
        add(&mut self.posted, (now - self.start_ns) / self.bucket_ns, bytes);
    }
}

fn add(buckets: &mut Vec<u64>, index: u64, bytes: u64) {
    let index = index as usize;
    if index >= buckets.len() {
        buckets.resize(index + 1, 0);
    }
    buckets[index] += bytes;
}

/// The progress of one queue pair.
struct Flow<'a> {
    qp: &'a QueuePair,
    posted: u64,
    completed: u64,
}

/// Source and target of the messages: both regions are divided into slots of one message, used in turn.
struct Slots<'a> {
    source: &'a MemoryRegion,
    target: &'a Target,
    size: u32,
    /// The bytes of a message that is copied while posting.
    inline: Option<Vec<u8>>,
    count: u64,
    next: u64,
    /// Scatter lists of the messages being posted.
    sges: Vec<[Sge; 1]>,
}

impl Slots<'_> {
    /// Posts `n` messages. Every `signal_every`-th raises a completion, and the last one of the list.
    fn post(&mut self, flow: &mut Flow<'_>, n: u64, signal_every: u64) -> Result<()> {
        for sge in &mut self.sges[..n as usize] {
            let offset = self.next * u64::from(self.size);
            sge[0] = Sge { addr: self.source.addr() + offset, len: self.size, lkey: self.source.lkey() };
            self.next = if self.next + 1 < self.count { self.next + 1 } else { 0 };
        }
        let request = |i: usize| {
            let number = flow.posted + i as u64 + 1;
            SendWr {
                wr_id: number,
                data: match &self.inline {
                    Some(bytes) => SendData::Inline(bytes),
                    None => SendData::Sges(&self.sges[i]),
                },
                remote_addr: self.target.addr + (self.sges[i][0].addr - self.source.addr()),
                rkey: self.target.rkey,
                imm: None,
                // The last message of a list may be the last before a pause, or the last of the run.
                signaled: number.is_multiple_of(signal_every) || i as u64 + 1 == n,
                solicited: false,
            }
        };
        let requests: SmallVec<[SendWr<'_>; 64]> = (0..n as usize).map(request).collect();
        flow.qp.post_send(&requests)?;
        flow.posted += n;
        Ok(())
    }
}

/// What other threads see of a run and tell it.
#[derive(Default)]
pub struct Control {
    /// Ends the run early; outstanding messages are waited for.
    pub stop: AtomicBool,
    /// Payload bytes of completed messages so far.
    pub bytes: AtomicU64,
}

/// Writes from `source` to `target` over all of `qps` as fast as possible.
///
/// # Errors
/// [`Error::InvalidArgument`] if sizes do not fit, [`Error::MessageFailed`] for a message that failed; and the errors
/// of posting and polling.
pub fn write_bw(
    context: &Context,
    qps: &[&QueuePair],
    cq: &CompletionQueue,
    source: &MemoryRegion,
    target: &Target,
    params: &BandwidthParams,
    control: &Control,
) -> Result<BandwidthResult> {
    check_size(params.size, source, target)?;
    if qps.is_empty() || (params.iterations.is_none() && params.duration.is_none()) {
        return Err(Error::InvalidArgument(
            "a run needs a queue pair, and a number of iterations or a duration".into(),
        ));
    }
    let depth = qps.iter().map(|qp| qp.cap().max_send_wr).min().unwrap_or(1).min(params.depth.max(1));
    let depth = u64::from(depth);
    let list = u64::from(params.post_list.max(1)).min(depth);
    let signal_every = u64::from(params.signal_every.max(1)).min(depth);
    let size = u64::from(params.size);
    let mut slots = Slots {
        source,
        target,
        size: params.size,
        inline: params.inline.then(|| source.copy_out(0, params.size as usize)),
        count: (source.len() as u64).min(target.len) / size.max(1),
        next: 0,
        sges: vec![[Sge::default()]; list as usize],
    };
    let mut flows: Vec<_> = qps.iter().map(|&qp| Flow { qp, posted: 0, completed: 0 }).collect();
    let mut left = params.iterations.unwrap_or(u64::MAX);
    let mut completions: Vec<Completion> = Vec::with_capacity(POLL);
    let _polling = params.polling.then(|| context.polling());

    let mut result = BandwidthResult {
        start_ns: monotonic_ns(),
        bucket_ns: params.bucket.as_nanos().clamp(1000, u128::from(u64::MAX)) as u64,
        ..BandwidthResult::default()
    };
    let end_ns = params.duration.map_or(u64::MAX, |d| result.start_ns.saturating_add(d.as_nanos() as u64));
    let mut ending = false;
    let mut now = result.start_ns;
    loop {
        // One list of each queue pair at a time: posting takes turns of the engine, and what completes during them is
        // to be counted when it completes.
        for flow in &mut flows {
            let n = list.min(left);
            if !ending && n > 0 && flow.posted - flow.completed + n <= depth {
                slots.post(flow, n, signal_every)?;
                result.count_posted(now, n * size);
                left -= n;
            }
        }
        completions.clear();
        cq.poll_into(POLL, &mut completions)?;
        now = monotonic_ns();
        for done in &completions {
            check_status(done)?;
            let Some(flow) = flows.iter_mut().find(|f| f.qp.qp_num() == done.qp_num) else { continue };
            // Completions are in order, so every message before this one is complete too.
            let messages = done.wr_id - flow.completed;
            flow.completed = done.wr_id;
            result.count(now, messages, messages * size);
        }
        control.bytes.store(result.bytes, Ordering::Relaxed);
        ending |= left == 0 || now >= end_ns || control.stop.load(Ordering::Relaxed);
        if ending && flows.iter().all(|f| f.completed == f.posted) {
            return Ok(result);
        }
        if completions.is_empty() && !params.polling {
            cq.wait(SLEEP);
        }
    }
}
