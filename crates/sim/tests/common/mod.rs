//! What the tests share: small fabrics, a run that checks the laws every run must keep.
#![allow(dead_code)]

pub mod mixed;

use openmrc_fabric::{Fabric, Sizing};
use openmrc_scenario::run::NetworkConfig;
use openmrc_scenario::{Engine, Results, Run};
use openmrc_sim::World;
use openmrc_transport::{Span, Time};

/// 100 Gb/s a port.
pub const RATE: u64 = 100_000_000_000;

pub fn fabric(hosts: u32, planes: u32, tiers: u8, radix: u32) -> Fabric {
    Fabric::new(Sizing::new(hosts, planes, tiers, radix).smallest().expect("a shape")).expect("a fabric")
}

/// Four planes, T0s of eight hosts.
pub fn multiplane(hosts: u32, planes: u32) -> NetworkConfig {
    NetworkConfig::new(fabric(hosts, planes, 2, 16), RATE)
}

/// Runs to the end and checks that nothing was made or lost on the way that is not accounted for.
pub fn run(scenario: &Run) -> Results {
    let mut world = World::new(scenario).expect("a scenario that can run");
    world.run();
    let results = world.results();
    assert_laws(scenario, &results);
    results
}

pub fn assert_laws(scenario: &Run, results: &Results) {
    let t = &results.totals;
    assert_eq!(
        t.launched(),
        t.hosts.arrived + t.hosts.stray + t.dropped() + results.in_flight,
        "packets launched = arrived + stray + dropped + on their way: {t:?}"
    );
    assert_eq!(
        t.hosts.launched_bytes,
        t.hosts.arrived_bytes + t.fabric.dropped_bytes + t.fabric.cut_bytes + results.in_flight_bytes,
        "bytes in = bytes out + dropped + cut off + queued: {t:?}"
    );
    let lossless = scenario.network.switch.is_some_and(|switch| switch.pfc.is_some());
    assert!(!lossless || t.fabric.dropped_data == 0, "PFC never drops: {t:?}");
    // No port has taken more than it can have sent by the time its queue is empty.
    let picos = scenario.network.picos_per_byte();
    for (port, (&bytes, &free)) in results.port_bytes.iter().zip(&results.port_busy_until).enumerate() {
        assert!(bytes * picos <= free.0, "port {port}: {bytes} bytes by {free:?}");
    }
    let sent = scenario.workload.messages();
    assert_eq!(sent.count(), results.messages.len());
    for ((task, ..), result) in scenario.workload.messages().zip(&results.messages) {
        assert!(result.posted >= scenario.workload.tasks[task as usize].start());
        if result.completed != Time::NEVER {
            assert!(result.posted < result.delivered && result.delivered <= result.completed, "{result:?}");
        }
    }
}

/// When the last message was delivered.
pub fn last_delivery(results: &Results) -> Time {
    results.messages.iter().map(|m| m.delivered).max().expect("messages")
}

pub fn all_delivered(results: &Results) -> bool {
    results.messages.iter().all(|m| m.delivered != Time::NEVER && !m.failed)
}

/// The least time in which one host can send `bytes` to another through tier `turn`, all planes busy from the first
/// moment.
pub fn ideal(network: &NetworkConfig, turn: u8, bytes: u64) -> Span {
    let planes = u64::from(network.fabric.shape().planes);
    let packets = bytes.div_ceil(u64::from(network.path_mtu));
    let full = u64::from(network.full_packet_bytes());
    let rounds = packets.div_ceil(planes);
    // All rounds but the last before the last one starts, and that one all the way.
    network.serialization(full).times(rounds - 1) + network.one_way_over(turn, full as u32)
}
