//! The same scenarios at flow level and at packet level, over seeds: the last message within 3 %, as the median.

mod common;

use common::{last_us, mean_us, results, scenario, with_fault, with_seed};
use openmrc_flow::FlowWorld;
use openmrc_scenario::Results;
use openmrc_sim::World;
use serde_json::{Value, json};

const SEEDS: u64 = 5;

/// Checks that the last message is in place at the same time.
#[track_caller]
fn assert_agrees(scenario: &Value) {
    assert_figure_agrees(scenario, last_us);
}

/// Compares a figure at flow level with that at packet level: the median over the seeds.
#[track_caller]
fn assert_figure_agrees(scenario: &Value, figure: fn(&Results) -> f64) {
    let mut all: Vec<(f64, f64)> = (1..=SEEDS)
        .map(|seed| {
            let run = with_seed(scenario, seed);
            (figure(&results::<World>(&run)), figure(&results::<FlowWorld>(&run)))
        })
        .collect();
    let difference = |(packets, flow): (f64, f64)| flow / packets - 1.0;
    all.sort_by(|&a, &b| difference(a).total_cmp(&difference(b)));
    let median = difference(all[all.len() / 2]);
    assert!(median.abs() <= 0.03, "{:+.1} %: {all:.1?} us", median * 100.0);
}

fn permutation(kib: u64) -> Value {
    scenario(json!({"kind": "permutation", "bytes": kib << 10}))
}

fn collective(operation: &str, kib: u64) -> Value {
    scenario(json!({"kind": "collective", "operation": operation, "bytes": kib << 10}))
}

#[test]
fn permutations_agree() {
    for kib in [64, 256, 1024, 4096] {
        assert_agrees(&permutation(kib));
    }
}

#[test]
fn permutations_over_one_plane_and_over_three_tiers_agree() {
    for (hosts, tiers, radix) in [(64, 2, 16), (128, 3, 8)] {
        let mut made = permutation(1024);
        made["topology"] = json!({"hosts": hosts, "tiers": tiers, "radix": radix, "planes": 1,
            "nic": {"rate": 400_000_000_000u64}});
        assert_agrees(&made);
    }
}

#[test]
fn all_reduces_agree() {
    assert_agrees(&collective("ring-all-reduce", 1024));
    assert_agrees(&collective("ring-all-reduce", 16 << 10));
    assert_agrees(&collective("recursive-doubling-all-reduce", 1024));
}

#[test]
fn all_to_alls_of_medium_messages_agree() {
    for kib in [64, 256] {
        assert_agrees(&collective("all-to-all", kib));
    }
}

#[test]
fn incasts_of_long_messages_agree() {
    for (senders, kib) in [(2, 1024), (4, 1024), (8, 1024), (16, 4096), (32, 1024)] {
        let senders: Vec<u64> = (8..8 + senders).collect();
        assert_agrees(&scenario(
            json!({"kind": "incast", "senders": senders, "receiver": 0, "bytes": kib << 10}),
        ));
    }
}

#[test]
fn training_agrees() {
    let layout = json!({"kind": "training", "data": 16, "pipeline": 4, "expert": 16, "steps": 1,
        "microbatches": 2, "forward_us": 50, "backward_us": 100, "activation_bytes": 1 << 20,
        "expert_bytes": 64 << 10, "gradient_bytes": 8 << 20});
    let made = scenario(layout);
    assert_agrees(&made);
    let run = with_seed(&made, 1);
    let ends = |results: Results| results.steps.iter().map(|s| s.end.0).collect::<Vec<_>>();
    let (packets, flow) = (ends(results::<World>(&run)), ends(results::<FlowWorld>(&run)));
    assert_eq!(packets.len(), flow.len());
    for (packets, flow) in packets.into_iter().zip(flow) {
        assert!((flow as f64 / packets as f64 - 1.0).abs() <= 0.03, "{flow} ps, {packets} ps");
    }
}

#[test]
fn permutations_agree_while_links_are_down() {
    for fault in [
        json!({"kind": "nic-port", "targets": ["h0:p1"], "at_us": 50}),
        json!({"kind": "down", "targets": ["p0/t0-0:up0--p0/t1-0"], "at_us": 50}),
        json!({"kind": "down", "targets": ["p0/t0-0"], "at_us": 50}),
        json!({"kind": "down", "targets": ["h0:p1"], "at_us": 50, "until_us": 150}),
        json!({"kind": "down", "targets": ["p0/t1-0"], "at_us": 50, "until_us": 150}),
        json!({"kind": "slow", "targets": ["p0/t1-0"], "share": 0.5, "at_us": 50}),
    ] {
        assert_agrees(&with_fault(permutation(8 << 10), fault));
    }
}

/// One message in sixty takes 50 us longer at packet level, so that the last one depends on the seed.
#[test]
fn the_mean_message_of_a_permutation_agrees_when_a_t1_goes_down() {
    for kib in [8 << 10, 16 << 10] {
        let fault = json!({"kind": "down", "targets": ["p0/t1-0"], "at_us": 50});
        assert_figure_agrees(&with_fault(permutation(kib), fault), mean_us);
    }
}

#[test]
fn all_reduces_agree_while_links_are_down_or_slow() {
    for fault in [
        json!({"kind": "nic-port", "targets": ["h0:p1"], "at_us": 50}),
        json!({"kind": "down", "targets": ["p0/t1-0"], "at_us": 0}),
        json!({"kind": "slow", "targets": ["p0/t1-0"], "share": 0.25, "at_us": 50}),
    ] {
        assert_agrees(&with_fault(collective("ring-all-reduce", 16 << 10), fault));
    }
}
