//! Scenarios as people write them: what is refused and where, what is filled in, what is counted before anything is
//! built.

use openmrc_scenario::run::Change;
use openmrc_scenario::{
    Checked, Engine, Fault, OwnParts, Pattern, Results, Scenario, ScenarioError, Transport, check_part,
    json_schema,
};
use openmrc_sim::World;
use openmrc_transport::mrc::{CcProfile, PathConfig, PathModel, QpConfig};
use openmrc_transport::{EvProfile, PathEntry, Span};
use openmrc_wire::Ev;
use proptest::prelude::*;
use serde_json::{Value, json};

/// A small scenario with some fields changed, by the names of their places.
fn scenario(changes: &[(&str, Value)]) -> Value {
    let mut scenario = json!({
        "topology": {"hosts": 16, "planes": 2, "radix": 8},
        "traffic": [{"kind": "permutation", "bytes": 20_000}],
    });
    for (place, value) in changes {
        let pointer = format!("/{}", place.replace('.', "/"));
        let (parent, field) = pointer.rsplit_once('/').expect("a pointer");
        match scenario.pointer_mut(parent).expect("a place") {
            Value::Array(list) => list[field.parse::<usize>().expect("an index")] = value.clone(),
            parent => parent[field] = value.clone(),
        }
    }
    scenario
}

fn checked(scenario: &Value) -> Result<Checked, ScenarioError> {
    Scenario::from_json(&scenario.to_string())?.checked()
}

fn run(checked: &Checked) -> Results {
    let scenario = checked.build(OwnParts::default()).expect("a run");
    let mut world = World::new(&scenario).expect("a world");
    world.run();
    world.results()
}

#[test]
fn what_is_wrong_is_told_with_its_place() {
    let flows = |rows: Value| json!([{"kind": "flows", "flows": rows}]);
    let fault = |fields: Value| {
        let mut fault = json!({"targets": ["links"]});
        fault.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        json!([fault])
    };
    for (place, value, expected) in [
        ("topology.hosts", json!(1), "topology.hosts: 1 is out of range: 2 to 4294967295"),
        ("topology.hosts", json!(1000), "topology.hosts: 1000 do not fit"),
        ("topology.ports", json!(4), "topology.ports: unknown field `ports`"),
        ("topology.planes", json!(1.5), "topology.planes: 1.5 is not a whole number: 1 to 16"),
        (
            "topology.oversubscription",
            json!("99"),
            "topology.oversubscription: invalid value: string \"99\", expected a ratio like 2",
        ),
        ("topology.nic", json!({"rate": 14_000_000_000u64}), "topology.nic.rate: 7000000000 b/s a port"),
        (
            "topology.nic",
            json!({"rate": 400_000_000_001u64}),
            "topology.nic.rate: 400000000001 b/s are not 2",
        ),
        ("topology.cables", json!({"t1_t2": -1}), "topology.cables.t1_t2: -1 is out of range: 0 to 800000"),
        ("network", json!({"routing": "magic"}), "network.routing: unknown variant `magic`"),
        (
            "network",
            json!({"switch": {"ecn_min": 0.9, "ecn_max": 0.1}}),
            "network.switch.ecn_max: 0.1 is below",
        ),
        (
            "network",
            json!({"switch": {"trim": 1, "trim_bytes": 9}}),
            "network.switch.trim_bytes: stands instead",
        ),
        (
            "network",
            json!({"switch": {"pfc": {"alpha": 0}}}),
            "network.switch.pfc.alpha: 0 is out of range: above 0",
        ),
        ("transport", json!({"kind": "tcp"}), "transport.kind: tcp is none of mrc, rocev2, uet, adaptive"),
        ("transport", json!({}), "transport.kind: this field is missing"),
        ("transport", json!({"kind": "uet", "evs": 0}), "transport.evs: 0 is out of range: 1 to 256"),
        (
            "transport",
            json!({"kind": "rocev2", "dcqcn": {"g": 7}}),
            "transport.dcqcn.g: 7 is out of range: above 0",
        ),
        ("traffic", json!([]), "traffic: there is none"),
        ("traffic.0.bytes", json!(0), "traffic.0.bytes: 0 is out of range: 1 to 2147483648"),
        ("traffic.0.size", json!(0), "traffic.0.size: unknown field `size`"),
        ("traffic", flows(json!([])), "traffic.0.flows: there are none, and no file"),
        ("traffic", flows(json!([[0, 1, 0, 0]])), "traffic.0.flows.0.2: 0 is out of range"),
        (
            "traffic",
            flows(json!([[0, 1, 9, 0], [5, 99, 9, 0]])),
            "traffic.0.flows.1: host h99 does not exist",
        ),
        ("traffic", flows(json!([[5, 5, 9, 0]])), "traffic.0.flows.0: host h5 would send to itself"),
        (
            "traffic",
            json!([{"kind": "incast", "senders": [1, 77], "receiver": 0, "bytes": 9}]),
            "traffic.0.senders.1: host h77 does not exist, the fabric has h0 to h15",
        ),
        (
            "traffic",
            json!([{"kind": "incast", "senders": [1, 0], "receiver": 0, "bytes": 9}]),
            "traffic.0.receiver: h0 is one of the senders",
        ),
        (
            "traffic",
            json!([{"kind": "all-to-all", "ranks": [3, 4, 3], "bytes": 9}]),
            "traffic.0.ranks.2: h3 is named twice",
        ),
        (
            "traffic",
            json!([{"kind": "random", "load": 0.5, "sizes": [[10, 0.4]], "duration_us": 1}]),
            "traffic.0.sizes: both columns have to grow",
        ),
        (
            "traffic",
            json!([{"kind": "training", "data": 64}]),
            "traffic.0: data x tensor x pipeline = 64 ranks, but there are 16",
        ),
        (
            "traffic",
            json!([{"kind": "training", "data": 4, "expert": 3}]),
            "traffic.0.expert: 3 does not divide",
        ),
        ("faults", fault(json!({"kind": "down", "targets": []})), "faults.0.targets: there are none"),
        (
            "faults",
            fault(json!({"kind": "down", "targets": ["p9/t0-0"]})),
            "faults.0.targets: p9/t0-0 does not",
        ),
        (
            "faults",
            fault(json!({"kind": "down", "targets": ["h3"]})),
            "faults.0.targets: h3 is a host; name its",
        ),
        (
            "faults",
            fault(json!({"kind": "down", "at_us": 10, "until_us": 5})),
            "faults.0.until_us: 5 is not after at_us, 10",
        ),
        ("faults", fault(json!({"kind": "nic-port"})), "faults.0.targets: links are not all ports of hosts"),
        (
            "faults",
            fault(json!({"kind": "slow", "share": 1e-5})),
            "faults.0: 1e-5 of the rate is too slow to simulate, at least 0.00122",
        ),
        ("limit_us", json!(0), "limit_us: 0 is out of range"),
        ("seed", json!(-1), "seed: -1 is out of range"),
        ("record", json!({"links": ["h1:p0", "h1:p0"]}), "record.links: h1:p0 is named twice"),
        (
            "record",
            json!({"capture": {"links": ["h99:p0"]}}),
            "record.capture.links: there is no port h99:p0",
        ),
        ("record", json!({"links": "some"}), "record.links: expected `all` or a list"),
    ] {
        let error = match checked(&scenario(&[(place, value)])) {
            Err(error) => error.to_string(),
            Ok(checked) => checked.try_network::<World>().expect_err(expected).to_string(),
        };
        assert!(error.starts_with(expected), "expected {expected:?}, found {error:?}");
    }
}

#[test]
fn a_part_is_checked_by_itself() {
    assert_eq!(check_part("Incast", r#"{"senders": [1], "receiver": 0, "bytes": 9}"#), Ok(()));
    let error = check_part("Incast", r#"{"senders": [1, 4294967296], "receiver": 0, "bytes": 9}"#);
    assert_eq!(error.unwrap_err().to_string(), "senders.1: 4294967296 is out of range: 0 to 4294967295");
    let error = check_part("Incast", r#"{"senders": [1, 1], "receiver": 0, "bytes": 9}"#);
    assert_eq!(error.unwrap_err().to_string(), "senders.1: h1 is named twice");
    assert!(check_part("Tcp", "{}").is_err());
}

#[test]
fn every_kind_is_in_the_schema_under_the_name_of_its_type() {
    let schema = json_schema();
    let faults: Vec<_> = Fault::kinds().collect();
    for (of, kinds) in [("Transport", Transport::KINDS), ("Pattern", Pattern::KINDS), ("Fault", &faults)] {
        let variants = schema["$defs"][of]["oneOf"].as_array().expect("variants").iter();
        let named = variants.map(|variant| {
            let kind = variant["properties"]["kind"]["const"].as_str().expect("a kind");
            (kind, variant["title"].as_str().expect("a title"))
        });
        assert_eq!(named.collect::<Vec<_>>(), kinds);
        for (_, part) in kinds {
            assert!(!check_part(part, "0").unwrap_err().to_string().contains("is not a part"), "{part}");
        }
    }
}

#[test]
fn a_packet_is_as_long_by_default_as_a_queue_pair_has_it() {
    let profile = EvProfile::new(&[PathEntry { ev: Ev(0), port: 0 }]).unwrap();
    let paths = PathConfig::new(profile.into(), PathModel::new(Span::from_micros(10), true));
    let queue_pair = QpConfig::new(1, 1, paths, CcProfile::FixedWindow(1).into());
    assert_eq!(checked(&scenario(&[])).unwrap().network().path_mtu, queue_pair.path_mtu);
}

const TRANSPORTS: [&str; 6] = [
    r#"{"kind": "mrc"}"#,
    r#"{"kind": "uet"}"#,
    r#"{"kind": "adaptive"}"#,
    r#"{"kind": "adaptive", "target_us": 31.3, "increase": 2.5}"#,
    r#"{"kind": "rocev2", "qps": 3}"#,
    r#"{"kind": "rocev2", "dcqcn": {"rate_timer_us": 300}}"#,
];

#[test]
fn a_scenario_with_everything_filled_in_runs_the_same() {
    let loss = json!([{"kind": "loss", "targets": ["links"], "probability": 0.001}]);
    for transport in TRANSPORTS {
        for switch in
            [json!({}), json!({"preset": "rocev2-lossy"}), json!({"ecn_min_bytes": 9000, "pfc": true})]
        {
            let transport: Value = serde_json::from_str(transport).unwrap();
            let network = json!({"switch": switch});
            let changes = [
                ("transport", transport.clone()),
                ("network", network),
                ("topology.nic", json!({"rate": 800_000_000_000u64})),
                ("faults", loss.clone()),
                ("traffic.0.bytes", json!(300_000)),
            ];
            let open = checked(&scenario(&changes)).unwrap();
            let filled = Scenario::from_json(&open.filled().to_json()).unwrap().checked().unwrap();
            assert_eq!(filled.filled(), open.filled());
            let (open, filled) = (run(&open), run(&filled));
            assert_eq!(open.totals, filled.totals, "{transport}");
            assert_eq!(open.messages, filled.messages, "{transport}");
        }
    }
}

fn any_pattern() -> impl Strategy<Value = Value> {
    let ranks =
        prop_oneof![Just(Value::Null), Just(json!([3, 1, 4, 15])), Just(json!([0, 2, 4, 6, 8, 10, 12, 14]))];
    let bytes = prop_oneof![Just(0u64), Just(1), Just(7000)];
    let operation = prop::sample::select(vec![
        "ring-all-reduce",
        "recursive-doubling-all-reduce",
        "all-gather",
        "reduce-scatter",
        "all-to-all",
        "pipeline",
    ]);
    let layout = (1u32..=4, 1u32..=2, 1u32..=2, prop::sample::select(vec![1u32, 2, 4]));
    prop_oneof![
        Just(json!({"kind": "permutation", "bytes": 5})),
        Just(json!({"kind": "incast", "senders": [1, 2, 3], "receiver": 0, "bytes": 5})),
        ranks.clone().prop_map(|ranks| json!({"kind": "all-to-all", "ranks": ranks, "bytes": 5})),
        Just(json!({"kind": "flows", "flows": [[0, 1, 5, 0], [1, 0, 5, 0]]})),
        (operation, ranks, 1u64..8).prop_map(|(operation, ranks, bytes)| {
            let bytes = if bytes > 5 { 5000 } else { bytes };
            json!({"kind": "collective", "operation": operation, "ranks": ranks, "bytes": bytes, "microbatches": 3})
        }),
        (layout, bytes.clone(), bytes.clone(), bytes.clone(), bytes, 1u32..=3).prop_map(
            |((data, tensor, pipeline, expert), tensor_bytes, expert_bytes, activation, gradients, microbatches)| {
                json!({
                    "kind": "training", "data": data, "tensor": tensor, "pipeline": pipeline, "steps": 2,
                    "expert": if data % expert == 0 { expert } else { 1 }, "microbatches": microbatches,
                    "tensor_bytes": tensor_bytes, "expert_bytes": expert_bytes,
                    "activation_bytes": activation, "gradient_bytes": gradients,
                })
            }
        ),
    ]
}

proptest! {
    #[test]
    fn messages_and_connections_are_known_before_they_are_laid_out(
        first in any_pattern(), second in any_pattern(), qps in 1u64..3,
    ) {
        let transport = json!({"kind": "rocev2", "qps": qps});
        let checked = checked(&scenario(&[("traffic", json!([first, second])), ("transport", transport)])).unwrap();
        let estimate = checked.estimate::<World>().unwrap();
        let workload = checked.build(OwnParts::default()).unwrap().workload;
        prop_assert_eq!(estimate.messages, workload.tasks.len() as u64 * qps);
        let between = workload.connections.iter().filter(|ends| ends.src != ends.dst).count() as u64;
        prop_assert_eq!(estimate.connections, between * qps);
    }

    #[test]
    fn any_text_is_a_scenario_or_an_error(text in "[\\[\\]{}:,\"a-z0-9 ]{0,60}") {
        let _ = Scenario::from_json(&text);
    }
}

#[test]
fn random_traffic_has_about_as_many_messages_as_are_expected() {
    let sizes = json!([[1000, 0.5], [100_000, 1.0]]);
    let pattern = json!({"kind": "random", "load": 0.5, "sizes": sizes, "duration_us": 2000});
    let checked = checked(&scenario(&[("traffic.0", pattern)])).unwrap();
    let (expected, there) = (
        checked.estimate::<World>().unwrap().messages as f64,
        checked.build(OwnParts::default()).unwrap().workload.tasks.len() as f64,
    );
    // A Poisson number of messages: four standard deviations.
    assert!((there - expected).abs() < 4.0 * expected.sqrt(), "{there} messages, expected {expected}");
}

#[test]
fn entries_of_the_schedule_are_known_before_it_is_made() {
    for fault in [
        json!({"kind": "down", "targets": ["fabric-links", "p0/t1-0"], "until_us": 9}),
        json!({"kind": "flap", "targets": ["switches"], "down_us": 1, "up_us": 2, "times": 5}),
        json!({"kind": "flap", "targets": ["host-links"], "down_us": 1e6, "up_us": 2e6, "times": 500}),
        json!({"kind": "reboot", "targets": ["p0/t0-0"], "down_us": 5}),
        json!({"kind": "transceiver", "targets": ["p0/t0-0"], "ports": [0, 1], "down_us": 5, "times": 3}),
    ] {
        let checked = checked(&scenario(&[("faults", json!([fault]))])).unwrap();
        let there = checked.build(OwnParts::default()).unwrap().faults.len() as u64;
        assert_eq!(checked.estimate::<World>().unwrap().memory.faults, there * 130, "{fault}");
    }
}

/// A fault of every kind, every field written and not the default.
fn faults() -> Value {
    json!([
        {"kind": "down", "targets": ["h1:p0"], "at_us": 5.5, "until_us": 7},
        {"kind": "loss", "targets": ["links"], "at_us": 1, "until_us": 7, "probability": 0.25,
         "direction": "upward"},
        {"kind": "bit-errors", "targets": ["fabric-links"], "at_us": 1, "until_us": 7, "probability": 1e-9},
        {"kind": "slow", "targets": ["host-links"], "at_us": 1, "until_us": 7, "share": 0.75},
        {"kind": "mtu", "targets": ["host-links"], "at_us": 1, "until_us": 7, "bytes": 1500},
        {"kind": "flap", "targets": ["switches", "h1:p1"], "at_us": 2, "down_us": 3, "up_us": 4, "times": 5},
        {"kind": "reboot", "targets": ["p0/t0-0"], "at_us": 2, "down_us": 3},
        {"kind": "nic-port", "targets": ["h2:p1"], "at_us": 2, "until_us": 3},
        {"kind": "transceiver", "targets": ["p0/t0-0"], "at_us": 2, "ports": [0, 1], "down_us": 3, "up_us": 2,
         "times": 5},
        {"kind": "broken", "targets": ["links"], "at_us": 2, "share": 0.5, "seed": 9},
        {"kind": "random", "targets": ["links"], "at_us": 2, "until_us": 9, "effect": "slow", "amount": 0.5,
         "mtbf_us": 100, "mttr_us": 10, "seed": 4},
    ])
}

#[test]
fn a_fault_of_every_kind_comes_back_as_it_was_written() {
    let there: Scenario =
        Scenario::from_json(&scenario(&[("faults", faults())]).to_string()).expect("a scenario");
    let kinds: Vec<_> = there.faults.iter().map(Fault::kind).collect();
    assert_eq!(kinds, Fault::kinds().map(|(kind, _)| kind).collect::<Vec<_>>());
    let back: Value = serde_json::from_str(&there.to_json()).expect("JSON");
    let numbers = |faults: &Value| -> Vec<Value> {
        let text = faults.to_string().replace(".0", "");
        serde_json::from_str(&text).expect("JSON")
    };
    assert_eq!(numbers(&back["faults"]), numbers(&faults()));
    assert!(checked(&scenario(&[("faults", faults())])).is_ok());
}

#[test]
fn random_failures_happen_between_their_begin_and_their_end() {
    let fault = json!([{"kind": "random", "targets": ["links"], "at_us": 300, "until_us": 900, "mtbf_us": 200,
                        "mttr_us": 1}]);
    let run = checked(&scenario(&[("faults", fault)])).unwrap().build(OwnParts::default()).unwrap();
    let begun =
        run.faults.iter().filter(|fault| matches!(fault.change, Change::Begins(_))).map(|fault| fault.at.0);
    let (first, last) = (begun.clone().min().unwrap(), begun.clone().max().unwrap());
    assert!(300_000_000 < first && last < 900_000_000, "{first} to {last}");
    assert!(begun.count() > run.network.fabric.links() as usize);
}

#[test]
fn a_scenario_comes_back_from_its_json() {
    for transport in TRANSPORTS {
        let transport: Value = serde_json::from_str(transport).unwrap();
        let text = scenario(&[("transport", transport), ("record", json!({"links": "all"}))]).to_string();
        let scenario = Scenario::from_json(&text).unwrap();
        assert_eq!(Scenario::from_json(&scenario.to_json()).unwrap(), scenario);
    }
}
