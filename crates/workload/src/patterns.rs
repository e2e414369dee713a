//! Traffic patterns as workloads: permutation, incast, all-to-all, random traffic.

use rand::{RngExt, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;

use openmrc_transport::{Span, Time};

use crate::tasks::Workload;

/// Every host sends `bytes` to one other and receives from one other: one cycle through all hosts (Sattolo's
/// algorithm).
pub fn permutation(hosts: u32, bytes: u32, seed: u64) -> Workload {
    let mut dice = Xoshiro256PlusPlus::seed_from_u64(seed);
    let mut to: Vec<u32> = (0..hosts).collect();
    for i in (1..hosts as usize).rev() {
        to.swap(i, dice.random_range(0..i));
    }
    let mut workload = Workload::default();
    for (src, &dst) in to.iter().enumerate() {
        one(&mut workload, src as u32, dst, bytes, Time::ZERO);
    }
    workload
}

/// All `senders` send `bytes` to `receiver` at once.
pub fn incast(senders: &[u32], receiver: u32, bytes: u32) -> Workload {
    let mut workload = Workload::default();
    for &src in senders {
        one(&mut workload, src, receiver, bytes, Time::ZERO);
    }
    workload
}

/// Each of `members` sends `bytes` to every other, beginning with the next one.
pub fn all_to_all(members: &[u32], bytes: u32) -> Workload {
    let mut workload = Workload::default();
    for step in 1..members.len() {
        for (i, &src) in members.iter().enumerate() {
            one(&mut workload, src, members[(i + step) % members.len()], bytes, Time::ZERO);
        }
    }
    workload
}

/// Messages between random hosts for `duration`: a Poisson process with a mean load of `load` x `host_rate_bps` on
/// each host. `sizes` are points of the cumulative distribution of message lengths, linear in between: bytes, and the
/// share of messages of at most this length. Both grow, and the last share is 1.
pub fn random(
    hosts: u32,
    host_rate_bps: u64,
    load: f64,
    sizes: &[(u32, f64)],
    duration: Span,
    seed: u64,
) -> Workload {
    let mut workload = Workload::default();
    let mean = mean_size(sizes);
    if hosts < 2 || mean <= 0.0 || load <= 0.0 {
        return workload;
    }
    let mut dice = Xoshiro256PlusPlus::seed_from_u64(seed);
    let between = mean * 8.0 / (load * host_rate_bps as f64 * f64::from(hosts)) * 1e12;
    let mut now = 0.0;
    loop {
        now -= (1.0 - dice.random::<f64>()).ln() * between;
        if now >= duration.0 as f64 {
            return workload;
        }
        let src = dice.random_range(0..hosts);
        let dst = (src + dice.random_range(1..hosts)) % hosts;
        let bytes = size_at(sizes, dice.random::<f64>());
        one(&mut workload, src, dst, bytes, Time(now as u64));
    }
}

/// Mean length of messages.
pub fn mean_size(sizes: &[(u32, f64)]) -> f64 {
    let (mut mean, mut from) = (0.0, (0u32, 0.0));
    for &(bytes, share) in sizes {
        mean += (share - from.1) * (f64::from(from.0) + f64::from(bytes)) / 2.0;
        from = (bytes, share);
    }
    mean
}

fn size_at(sizes: &[(u32, f64)], share: f64) -> u32 {
    let mut from = (0u32, 0.0);
    for &(bytes, up_to) in sizes {
        if share <= up_to && up_to > from.1 {
            let inside = (share - from.1) / (up_to - from.1);
            return ((f64::from(from.0) + inside * (f64::from(bytes) - f64::from(from.0))) as u32).max(1);
        }
        from = (bytes, up_to);
    }
    from.0.max(1)
}

/// One message on a connection of its own.
fn one(workload: &mut Workload, src: u32, dst: u32, bytes: u32, start: Time) {
    if src != dst {
        let connection = workload.connect(src, dst);
        workload.send(connection, bytes, start);
    }
}
