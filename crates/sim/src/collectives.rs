//! Collective operations as graphs of messages: what each rank sends, and what it must have received before.
//!
//! Ranks are hosts, in the order given. Data that is divided among `n` ranks is divided evenly, rounded up.

use openmrc_transport::Time;

use crate::workload::Workload;

/// Ring reduce-scatter or all-gather: `n - 1` steps. In each, every rank sends a chunk of `bytes / n` to the next
/// rank when it has received the chunk of the step before.
pub fn ring_pass(ranks: &[u32], bytes: u64) -> Workload {
    ring(ranks, bytes, ranks.len().saturating_sub(1))
}

/// Ring all-reduce of `bytes`: reduce-scatter, then all-gather; `2 (n - 1)` steps. Each rank sends `2 (n - 1) / n` of
/// the data.
pub fn ring_all_reduce(ranks: &[u32], bytes: u64) -> Workload {
    ring(ranks, bytes, 2 * ranks.len().saturating_sub(1))
}

fn ring(ranks: &[u32], bytes: u64, steps: usize) -> Workload {
    let mut workload = Workload::default();
    let n = ranks.len();
    if n < 2 {
        return workload;
    }
    let chunk = chunk(bytes, n as u64);
    for (i, &rank) in ranks.iter().enumerate() {
        workload.connect(rank, ranks[(i + 1) % n]);
    }
    for step in 0..steps {
        for i in 0..n {
            let message = workload.send(i as u32, chunk, Time::ZERO);
            if step > 0 {
                // The message of the previous rank in the previous step.
                workload.wait(message, ((step - 1) * n + (i + n - 1) % n) as u32);
            }
        }
    }
    workload
}

/// Recursive-doubling all-reduce: in step `s` rank `i` exchanges all of `bytes` with rank `i ^ 2^s`. The first 2^k
/// ranks take part, for the largest k that there are ranks for.
pub fn recursive_doubling_all_reduce(ranks: &[u32], bytes: u64) -> Workload {
    let mut workload = Workload::default();
    if ranks.len() < 2 {
        return workload;
    }
    let steps = ranks.len().ilog2();
    let n = 1usize << steps;
    let bytes = chunk(bytes, 1);
    for step in 0..steps {
        for i in 0..n {
            let connection = workload.connect(ranks[i], ranks[i ^ 1 << step]);
            let message = workload.send(connection, bytes, Time::ZERO);
            if step > 0 {
                let before = (step as usize - 1) * n;
                workload.wait(message, (before + (i ^ 1 << (step - 1))) as u32);
            }
        }
    }
    workload
}

/// All-to-all of `bytes` for each pair in `n - 1` steps: in step `s` rank `i` sends to rank `i + s`. A rank begins
/// the next step when it has received its message of this one.
pub fn stepped_all_to_all(ranks: &[u32], bytes: u64) -> Workload {
    let mut workload = Workload::default();
    let n = ranks.len();
    let bytes = chunk(bytes, 1);
    for step in 1..n {
        for (i, &rank) in ranks.iter().enumerate() {
            let connection = workload.connect(rank, ranks[(i + step) % n]);
            let message = workload.send(connection, bytes, Time::ZERO);
            if step > 1 {
                workload.wait(message, ((step - 2) * n + (i + n - (step - 1)) % n) as u32);
            }
        }
    }
    workload
}

/// A pipeline: `microbatches` messages of `bytes` go from stage to stage. A stage forwards a message when it has
/// arrived.
pub fn pipeline(stages: &[u32], bytes: u64, microbatches: u32) -> Workload {
    let mut workload = Workload::default();
    let bytes = chunk(bytes, 1);
    for pair in stages.windows(2) {
        workload.connect(pair[0], pair[1]);
    }
    for hop in 0..workload.connections.len() as u32 {
        for batch in 0..microbatches {
            let message = workload.send(hop, bytes, Time::ZERO);
            if hop > 0 {
                workload.wait(message, (hop - 1) * microbatches + batch);
            }
        }
    }
    workload
}

/// An even share of the data, at least a byte, at most the longest message.
fn chunk(bytes: u64, parts: u64) -> u32 {
    bytes.div_ceil(parts).clamp(1, u64::from(Workload::MAX_BYTES)) as u32
}
