//! Bytes of state of each thing in a run: what the estimate of its memory multiplies with their numbers.

use openmrc_scenario::run::{LifeConfig, NetworkConfig, TransportConfig};
use openmrc_scenario::{Footprint, RunError};
use openmrc_workload::{Connection, Task};

use crate::event::Event;
use crate::fabric;
use crate::hosts;
use crate::slab::Slab;

/// Measured: columns, their copies on the way to Python, and the lists of the summary.
const PER_RESULT: u64 = 111;
/// Measured: a queue pair's entries in its node's table, timers and list of peers, and what the allocator adds to its
/// arrays. A queue pair of RoCEv2 has no arrays.
const AROUND_QUEUE_PAIR: u64 = 520;
const AROUND_ROCEV2: u64 = 150;
/// Measured: what a connection of RoCEv2 leaves when it has closed.
const PER_ROCEV2_CONNECTION: u64 = 30;
/// Measured: a node's table, timers and lists, which begin with room for several queue pairs.
const PER_ACTIVE_HOST: u64 = 1_600;
/// Immediates that wait at a responder (docs/decisions.md, "Loss, paths and planes").
const PER_STASH: u64 = 1 << 10;
/// Free blocks and half-empty blocks of the calendar, measured.
const SPARE_EVENTS: f64 = 1.1;

/// What each thing in a run takes, of a network and a transport. With several threads each has a table of all ports,
/// messages and connections.
pub(crate) fn footprint(
    network: &NetworkConfig,
    transport: &TransportConfig,
    threads: u32,
) -> Result<Footprint, RunError> {
    let queue_pairs = hosts::queue_pair_bytes(network, transport)?;
    let (around, used, left, packet) = match transport {
        TransportConfig::Rocev2(rc) => {
            let used = (f64::from(rc.qps) / f64::from(network.fabric.shape().planes)).min(1.0);
            (AROUND_ROCEV2, used, PER_ROCEV2_CONNECTION, Slab::BYTES_PER_PACKET)
        }
        _ => (AROUND_QUEUE_PAIR, 1.0, 0, Slab::BYTES_PER_WRITE),
    };
    let life = match transport {
        TransportConfig::Mrc(mrc) => mrc.life,
        _ => LifeConfig::default(),
    };
    let pair = queue_pairs + 2 * around + if life.receives.is_some() { PER_STASH } else { 0 };
    // Queue pairs that linger outlast most runs.
    let (open, left) = if life.linger { (0, left + pair) } else { (pair, left) };
    let (tables, threads) = (u64::from(threads), threads as usize);
    Ok(Footprint {
        per_port: fabric::bytes_per_port(network, used) * tables,
        per_host: hosts::BYTES_PER_HOST as u64,
        per_active_host: PER_ACTIVE_HOST,
        // Laid out first, then as the simulator and the results have it. Most messages wait for one other.
        per_message: (size_of::<Task>() + threads * hosts::BYTES_PER_MESSAGE + 4 * size_of::<u32>()) as u64,
        per_result: PER_RESULT,
        per_connection: (size_of::<Connection>() + threads * hosts::BYTES_PER_CONNECTION) as u64 + left,
        per_open_connection: open,
        per_packet: packet as u64
            + (size_of::<Event>() as f64 * SPARE_EVENTS) as u64
            + fabric::bytes_per_waiting_packet(network),
    })
}
