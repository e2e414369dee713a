//! RoCEv2 beside MRC, in a network that may drop: what it can do, and what it is known to suffer from.

mod common;

use common::{all_delivered, fabric, ideal, last_delivery, multiplane, run};
use openmrc_scenario::run::{
    Change, Effect, FaultEvent, NetworkConfig, Rocev2Config, Routing, Target, TransportConfig,
};
use openmrc_scenario::{Results, Run};
use openmrc_transport::Time;
use openmrc_transport::rocev2::Recovery;
use openmrc_workload::{Workload, patterns};

fn rocev2(mut network: NetworkConfig, workload: Workload, rc: Rocev2Config) -> Run {
    network.routing = Routing::Ecmp;
    network.switch = Some(network.lossy_rocev2_switch());
    let mut scenario = Run::new(network, workload);
    scenario.transport = TransportConfig::Rocev2(rc);
    scenario
}

/// One plane of 400 Gb/s.
fn single_plane(hosts: u32) -> NetworkConfig {
    NetworkConfig::new(fabric(hosts, 1, 2, 16), 400_000_000_000)
}

fn goodput(results: &Results, bytes: u64) -> f64 {
    bytes as f64 / last_delivery(results).0 as f64
}

#[test]
fn one_flow_alone_runs_at_line_rate() {
    let network = single_plane(16);
    let least = ideal(&network, 1, 4 << 20);
    let mut workload = Workload::default();
    let connection = workload.connect(0, 15);
    workload.send(connection, 4 << 20, Time::ZERO);
    let results = run(&rocev2(network, workload, Rocev2Config::default()));
    // MRC's headers are a little longer than RoCEv2's, so the ideal is a little too slow.
    let took = results.messages[0].delivered.0;
    assert!(took * 100 >= least.0 * 97 && took * 100 <= least.0 * 101, "{took}, at best {least:?}");
    assert_eq!(results.totals.hosts.retransmits, 0);
}

#[test]
fn either_recovery_repairs_random_loss_and_selective_repeat_sends_less_again() {
    let network = single_plane(32);
    let mut again = Vec::new();
    for recovery in [Recovery::GoBackN, Recovery::SelectiveRepeat] {
        let rc = Rocev2Config { recovery, dcqcn: false, ..Rocev2Config::default() };
        let mut scenario = rocev2(network.clone(), patterns::permutation(32, 2 << 20, 1), rc);
        scenario.faults = (0..network.fabric.links())
            .map(|link| FaultEvent {
                at: Time::ZERO,
                target: Target::Link(link),
                change: Change::Begins(Effect::Loss(0.0005)),
            })
            .collect();
        let results = run(&scenario);
        assert!(all_delivered(&results), "{recovery:?}: {:?}", results.totals);
        assert!(results.totals.fabric.dropped_lossy > 0);
        again.push(results.totals.hosts.retransmits);
    }
    assert!(again[0] > 3 * again[1], "{again:?}");
}

#[test]
fn several_queue_pairs_spread_what_one_cannot() {
    let run_with = |qps| {
        let rc = Rocev2Config { qps, ..Rocev2Config::default() };
        run(&rocev2(single_plane(64), patterns::permutation(64, 8 << 20, 2), rc))
    };
    let (one, eight) = (run_with(1), run_with(8));
    assert!(all_delivered(&one) && all_delivered(&eight));
    assert_eq!(one.messages.len(), eight.messages.len(), "parts are put together again");
    assert!(goodput(&eight, 1) > 1.2 * goodput(&one, 1));
}

#[test]
fn mrc_on_four_planes_beats_rocev2_on_one_of_four_times_the_rate() {
    let bytes = 8 << 20;
    let rc = Rocev2Config { qps: 16, ..Rocev2Config::default() };
    let roce = run(&rocev2(single_plane(64), patterns::permutation(64, bytes, 2), rc));
    let mrc = run(&Run::new(multiplane(64, 4), patterns::permutation(64, bytes, 2)));
    assert!(
        last_delivery(&mrc) < last_delivery(&roce),
        "{:?} {:?}",
        last_delivery(&mrc),
        last_delivery(&roce)
    );
}

#[test]
fn dcqcn_slows_an_incast_down_instead_of_dropping() {
    let senders: Vec<u32> = (1..8).collect();
    let drops = |dcqcn| {
        let rc = Rocev2Config { dcqcn, ..Rocev2Config::default() };
        let results = run(&rocev2(single_plane(16), patterns::incast(&senders, 0, 8 << 20), rc));
        assert!(all_delivered(&results), "{:?}", results.totals);
        (results.totals.fabric.dropped_data, results.totals.fabric.marked)
    };
    let (with, marked) = drops(true);
    let (without, _) = drops(false);
    assert!(marked > 0 && with < without, "{with} with DCQCN, {without} without");
}
