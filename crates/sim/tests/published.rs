//! Published results of MRC in production (arXiv 2605.04333; spec: published results), as far as they fit a test. The
//! tests compare who is ahead and by what kind of factor, not the last digit.

mod common;

use common::{all_delivered, fabric, last_delivery, run};
use openmrc_fabric::Link;
use openmrc_sim::{
    Change, Fault, NetworkConfig, Rocev2Config, Routing, Scenario, Target, TransportConfig, Workload,
    collectives,
};
use openmrc_transport::Time;

const GBPS: u64 = 1_000_000_000;

/// 64 hosts, 4 x 100 Gb/s.
fn planes() -> NetworkConfig {
    NetworkConfig::new(fabric(64, 4, 2, 16), 100 * GBPS)
}

/// 64 hosts, one plane of 400 Gb/s.
fn single() -> NetworkConfig {
    let mut network = NetworkConfig::new(fabric(64, 1, 2, 16), 400 * GBPS);
    network.routing = Routing::Ecmp;
    network.switch = Some(network.rocev2_switch());
    network
}

/// Neighbours on the ring sit under different T0s, so that every step crosses the fabric.
fn ring(ranks: u32) -> Vec<u32> {
    (0..ranks).map(|i| i % 8 * 8 + i / 8).collect()
}

/// Bus bandwidth of a ring all-reduce, as nccl-tests counts it, in bits per second.
fn bus_bandwidth(network: NetworkConfig, transport: Option<u32>, ranks: u32, bytes: u64, loss: f64) -> f64 {
    let ranks = ring(ranks);
    let n = ranks.len() as f64;
    let links = network.fabric.links();
    let mut scenario = Scenario::new(network, collectives::ring_all_reduce(&ranks, bytes));
    if let Some(qps) = transport {
        scenario.transport = TransportConfig::Rocev2(Rocev2Config { qps, ..Rocev2Config::default() });
    }
    if loss > 0.0 {
        let change = Change::Loss(loss);
        scenario.faults =
            (0..links).map(|link| Fault { at: Time::ZERO, target: Target::Link(link), change }).collect();
    }
    let results = run(&scenario);
    assert!(all_delivered(&results));
    let seconds = last_delivery(&results).0 as f64 * 1e-12;
    bytes as f64 * 8.0 * 2.0 * (n - 1.0) / n / seconds
}

#[test]
fn p1_one_pair_over_eight_planes_reaches_what_headers_leave_of_800_gbps() {
    let mut workload = Workload::default();
    let connection = workload.connect(0, 127);
    let bytes = 32 << 10;
    for _ in 0..2048 {
        workload.send(connection, bytes, Time::ZERO);
    }
    let total = workload.bytes();
    let network = NetworkConfig::new(fabric(128, 8, 2, 32), 100 * GBPS);
    let results = run(&Scenario::new(network, workload));
    let gbps = total as f64 * 8.0 / (last_delivery(&results).0 as f64 * 1e-12) / 1e9;
    assert!((755.0..770.0).contains(&gbps), "{gbps:.1} Gb/s; ~770 published");
}

#[test]
fn p3_an_all_reduce_over_planes_beats_sixteen_rocev2_queue_pairs_and_those_beat_one() {
    let rocev2 = |qps| bus_bandwidth(single(), Some(qps), 64, 32 << 20, 0.0);
    let mrc = bus_bandwidth(planes(), None, 64, 32 << 20, 0.0);
    let (one, sixteen) = (rocev2(1), rocev2(16));
    let shown = [mrc, sixteen, one].map(|b| (b / 1e9).round());
    assert!(mrc > sixteen && sixteen > one, "{shown:?}");
}

#[test]
fn p4_a_loss_of_one_in_a_thousand_leaves_mrc_most_of_its_bandwidth_and_rocev2_little() {
    // Eight hosts, so that a step's message is long compared with a round trip. No two share a link: only loss matters.
    let share = |network: fn() -> NetworkConfig, transport| {
        let with = |loss| bus_bandwidth(network(), transport, 8, 64 << 20, loss);
        with(0.001) / with(0.0)
    };
    let (mrc, roce) = (share(planes, None), share(single, Some(1)));
    assert!(mrc > 0.7 && mrc > 1.5 * roce, "MRC keeps {mrc:.2} of its bandwidth, RoCEv2 {roce:.2}");
}

#[test]
fn p10_a_lost_port_of_eight_leaves_seven_eighths() {
    let network = NetworkConfig::new(fabric(32, 8, 2, 32), 100 * GBPS);
    let port = Link { plane: 5, layer: 0, lower: 0, uplink: 0 };
    let target = Target::Link(network.fabric.link_number(port));
    let mut workload = Workload::default();
    let connection = workload.connect(0, 31);
    workload.send(connection, 128 << 20, Time::ZERO);
    let mut scenario = Scenario::new(network, workload);
    let healthy = last_delivery(&run(&scenario)).0 as f64;
    scenario.faults = vec![Fault { at: Time::ZERO, target, change: Change::Down }];
    let share = healthy / last_delivery(&run(&scenario)).0 as f64;
    assert!((0.86..0.88).contains(&share), "{share:.3} of the bandwidth is left");
}
