//! What only the packet engine can do is refused, with the field and the way out.

mod common;

use common::{laid_out, scenario, with_fault};
use openmrc_flow::FlowWorld;
use openmrc_scenario::{Engine, ScenarioError};
use serde_json::{Value, json};

fn refusal(field: &str, value: Value) -> String {
    let mut made = scenario(json!({"kind": "permutation", "bytes": 4096}));
    made[field] = value;
    let run = laid_out(&made).expect("the packet engine can");
    match FlowWorld::new(&run) {
        Ok(_) => panic!("{field} is not refused"),
        Err(error) => ScenarioError::from(error).to_string(),
    }
}

#[test]
fn the_field_and_the_way_out_are_named() {
    for (field, value, place) in [
        ("transport", json!({"kind": "rocev2"}), "transport.kind"),
        ("transport", json!({"kind": "mrc", "fixed_window": 100_000}), "transport.fixed_window"),
        ("transport", json!({"kind": "mrc", "linger": true}), "transport.linger"),
        ("transport", json!({"kind": "mrc", "receives": {"posted": 1}}), "transport.receives"),
        ("network", json!({"routing": "ecmp"}), "network.routing"),
        ("network", json!({"software": {}}), "network.software"),
        ("network", json!({"switch": {"overflow": "drop"}}), "network.switch"),
        ("record", json!({"series": true}), "record"),
        ("record", json!({"capture": {"links": ["h0:p0"]}}), "record"),
        ("threads", json!(2), "threads"),
        ("faults", json!([{"kind": "loss", "targets": ["h0:p0"], "at_us": 0, "probability": 0.1}]), "faults"),
    ] {
        let message = refusal(field, value);
        assert!(message.starts_with(&format!("{place}: ")), "{message}");
        assert!(message.ends_with("`engine: packets`") && !message.contains('\n'), "{message}");
    }
}

#[test]
fn what_it_can_do_is_not_refused() {
    let made = scenario(json!({"kind": "permutation", "bytes": 4096}));
    let slow = with_fault(
        made.clone(),
        json!({"kind": "slow", "targets": ["fabric-links"], "share": 0.5, "at_us": 1}),
    );
    for made in [made, slow] {
        FlowWorld::new(&laid_out(&made).unwrap()).expect("no refusal");
    }
}
