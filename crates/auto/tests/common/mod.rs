//! Runs in one engine or the other: for the tests, and for the example that makes the table of docs/auto.md.

use openmrc_scenario::{Engine, OwnParts, Results, Scenario};
use serde_json::{Value, json};

/// 64 hosts.
pub fn topology() -> Value {
    json!({"hosts": 64, "tiers": 2, "radix": 16, "planes": 4, "nic": {"rate": 400_000_000_000u64}})
}

/// A training job; what it leaves open is small.
pub fn job(changed: &Value) -> Value {
    let mut job = json!({"kind": "training", "forward_us": 200, "backward_us": 400, "steps": 2});
    for (name, value) in changed.as_object().expect("fields") {
        job[name] = value.clone();
    }
    job
}

/// The results of a scenario in an engine.
pub fn results<E: Engine>(scenario: &Value) -> Results {
    let scenario = Scenario::from_json(&scenario.to_string()).expect("a scenario");
    let run = scenario.checked().expect("parts that fit").build(OwnParts::default()).expect("a run");
    let mut engine = E::new(&run).expect("a run that is possible");
    engine.run();
    engine.results()
}

/// The share of packets that were skipped.
pub fn share(results: &Results) -> f64 {
    let skipped = results.skips.packets as f64;
    skipped / (skipped + results.totals.hosts.data_packets as f64)
}
