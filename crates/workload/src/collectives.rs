//! Collective operations as graphs of messages between hosts. What a rank sends, and what it must have received before,
//! say the programs of `openmrc-schedule`, which `openmrc-collectives` executes.

use openmrc_schedule::{Algorithm, Exchange, Shape};
use openmrc_transport::Time;

use crate::tasks::Workload;

/// An operation of one shape at all ranks, each message whole. Rank r is the host `ranks[r]`; elements are bytes. The
/// algorithm must be [allowed](Shape::allows).
pub fn operation(shape: &Shape, algorithm: Algorithm, ranks: &[u32]) -> Workload {
    let n = ranks.len();
    let exchange = Exchange::new(n, |rank| shape.program(algorithm, rank, n, 1));
    let exchange = exchange.unwrap_or_else(|mismatch| unreachable!("the programs of one shape: {mismatch}"));
    workload(&exchange, ranks, u64::MAX)
}

/// Ring all-reduce of `bytes`: reduce-scatter, then all-gather; `2 (n - 1)` steps. Each rank sends `2 (n - 1) / n` of
/// the data.
pub fn ring_all_reduce(ranks: &[u32], bytes: u64) -> Workload {
    operation(&Shape::AllReduce { count: bytes as usize }, Algorithm::Ring, ranks)
}

/// All-to-all of `bytes` for each pair: in step `s` rank `i` sends to rank `i + s`, and a few steps are under way at once.
pub fn all_to_all(ranks: &[u32], bytes: u64) -> Workload {
    let parts = vec![bytes as usize; ranks.len()];
    operation(&Shape::AllToAll { send: parts.clone(), recv: parts }, Algorithm::Direct, ranks)
}

/// The messages of an exchange between hosts, one connection for each pair. Messages that are passed on while they arrive
/// are cut into slots of `slot` bytes, and each slot waits for its own.
pub fn workload(exchange: &Exchange, hosts: &[u32], slot: u64) -> Workload {
    let mut workload = Workload::default();
    for &(from, to) in exchange.links() {
        workload.connect(hosts[from as usize], hosts[to as usize]);
    }
    let slots = slots(exchange, slot);
    // By message: its first slot.
    let mut first: Vec<u32> = Vec::with_capacity(slots.len());
    for (number, (message, &count)) in exchange.messages().iter().zip(&slots).enumerate() {
        first.push(workload.tasks.len() as u32);
        for part in 0..count {
            let left = message.bytes - u64::from(part) * slot.min(message.bytes);
            let bytes = if count > 1 { left.min(slot) } else { left };
            // What is too long for a message is refused by the check of the workload.
            let index = workload.send(message.link, u32::try_from(bytes).unwrap_or(u32::MAX), Time::ZERO);
            for wait in exchange.waits(number) {
                let (begin, len) = (first[wait.message as usize], slots[wait.message as usize]);
                if wait.bytewise {
                    workload.wait(index, begin + part.min(len - 1));
                } else {
                    (begin..begin + len).for_each(|after| workload.wait(index, after));
                }
            }
        }
    }
    workload
}

/// How many slots each message has: one, if nothing waits byte by byte.
fn slots(exchange: &Exchange, slot: u64) -> Vec<u32> {
    let messages = exchange.messages();
    let count = |number: usize| messages[number].bytes.div_ceil(slot) as u32;
    let mut slots = vec![1; messages.len()];
    for number in 0..messages.len() {
        for wait in exchange.waits(number).iter().filter(|wait| wait.bytewise) {
            slots[number] = count(number);
            slots[wait.message as usize] = count(wait.message as usize);
        }
    }
    slots
}

/// A pipeline: `microbatches` messages of `bytes` go from stage to stage. A stage forwards a message when it has
/// arrived.
pub fn pipeline(stages: &[u32], bytes: u64, microbatches: u32) -> Workload {
    let mut workload = Workload::default();
    let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_passed_on_while_it_arrives_is_cut_into_slots() {
        let shape = Shape::Broadcast { root: 0, count: 2500 };
        let exchange = Exchange::new(3, |rank| shape.program(Algorithm::Chain, rank, 3, 1)).unwrap();
        let found = workload(&exchange, &[7, 8, 9], 1000);
        let sizes: Vec<u32> = found.messages().map(|message| message.2).collect();
        assert_eq!(sizes, [1000, 1000, 500, 1000, 1000, 500]);
        assert_eq!(found.dependencies, [(3, 0), (4, 1), (5, 2)]);
        // Halving passes nothing on before it is whole.
        let halving = Shape::AllReduce { count: 10_000 };
        let exchange = Exchange::new(2, |rank| halving.program(Algorithm::Halving, rank, 2, 1)).unwrap();
        assert_eq!(workload(&exchange, &[7, 8], 1000), operation(&halving, Algorithm::Halving, &[7, 8]));
    }
}
