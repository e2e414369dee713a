//! Traffic patterns: what the usual names mean, as workloads.

use rand::{RngExt, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;

use openmrc_transport::Time;

use crate::workload::Workload;

/// Every host sends `bytes` to one other and receives from one other: a permutation without fixed points, one cycle through
/// all hosts (Sattolo's algorithm).
pub fn permutation(hosts: u32, bytes: u32, seed: u64) -> Workload {
    let mut dice = Xoshiro256PlusPlus::seed_from_u64(seed);
    let mut to: Vec<u32> = (0..hosts).collect();
    for i in (1..hosts as usize).rev() {
        to.swap(i, dice.random_range(0..i));
    }
    let mut workload = Workload::default();
    for (src, &dst) in to.iter().enumerate() {
        if src as u32 != dst {
            let connection = workload.connect(src as u32, dst);
            workload.send(connection, bytes, Time::ZERO);
        }
    }
    workload
}
