//! What the tests share: runs of scenarios with an engine.
#![allow(dead_code)]

use openmrc_scenario::{Engine, OwnParts, Results, Run, Scenario, ScenarioError};
use openmrc_transport::Time;
use serde_json::{Value, json};

/// 64 hosts under eight T0s, four planes of 100 Gb/s.
pub fn fabric() -> Value {
    json!({"hosts": 64, "tiers": 2, "radix": 16, "planes": 4, "nic": {"rate": 400_000_000_000u64}})
}

/// A scenario of one pattern.
pub fn scenario(traffic: Value) -> Value {
    json!({"topology": fabric(), "traffic": [traffic]})
}

/// The same with a fault.
pub fn with_fault(mut scenario: Value, fault: Value) -> Value {
    scenario["faults"] = json!([fault]);
    scenario
}

/// The run of a scenario.
pub fn laid_out(scenario: &Value) -> Result<Run, ScenarioError> {
    Scenario::from_json(&scenario.to_string())?.checked()?.build(OwnParts::default())
}

/// The run with a seed, which is that of a permutation too.
pub fn with_seed(scenario: &Value, seed: u64) -> Run {
    let mut scenario = scenario.clone();
    scenario["seed"] = seed.into();
    if scenario["traffic"][0]["kind"] == "permutation" {
        scenario["traffic"][0]["seed"] = seed.into();
    }
    laid_out(&scenario).expect("a run")
}

/// Executes a run to its end.
pub fn results<E: Engine>(run: &Run) -> Results {
    let mut engine = E::new(run).expect("a run that is possible");
    engine.run();
    engine.results()
}

/// When the last message was in place, microseconds.
pub fn last_us(results: &Results) -> f64 {
    let last = results.messages.iter().map(|message| message.delivered).max().expect("messages");
    assert_ne!(last, Time::NEVER, "all messages arrive");
    last.0 as f64 * 1e-6
}

/// How long messages took, microseconds.
pub fn mean_us(results: &Results) -> f64 {
    let took = results.messages.iter().map(|m| m.delivered.since(m.posted).0 as f64 * 1e-6);
    took.sum::<f64>() / results.messages.len() as f64
}
