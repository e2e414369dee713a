//! The flow engine beside the packet engine: the tables of docs/flow.md.
//!
//! ```text
//! cargo run --release -p openmrc-flow --example beside [TEXT] [--seeds=N]
//! ```
//!
//! runs every shape whose name contains TEXT with both engines.

use std::time::Instant;

use openmrc_flow::FlowWorld;
use openmrc_scenario::{Engine, OwnParts, Results, Run, Scenario};
use openmrc_sim::World;
use openmrc_transport::Time;
use serde_json::{Value, json};

/// A shape: its name, and its scenario with a seed.
struct Shape {
    name: String,
    scenario: Value,
}

fn main() {
    let (mut text, mut seeds) = (String::new(), 3);
    for argument in std::env::args().skip(1) {
        match argument.strip_prefix("--seeds=") {
            Some(number) => seeds = number.parse().expect("a number"),
            None => text = argument,
        }
    }
    println!("| shape | packets, us | flow, us | last message | mean message | packets, s | flow, s |");
    println!("|---|---|---|---|---|---|---|");
    for shape in shapes().iter().filter(|shape| shape.name.contains(&text)) {
        compare(shape, seeds);
    }
}

/// What is compared of a run.
struct Figures {
    last: f64,
    mean: f64,
    wall: f64,
}

fn compare(shape: &Shape, seeds: u64) {
    let (mut packets, mut flow) = (Vec::new(), Vec::new());
    for seed in 1..=seeds {
        let run = run_of(&shape.scenario, seed);
        packets.push(figures::<World>(&run));
        flow.push(figures::<FlowWorld>(&run));
    }
    let mean = |of: fn(&Figures) -> f64, all: &[Figures]| all.iter().map(of).sum::<f64>() / all.len() as f64;
    let worst = packets.iter().zip(&flow).map(|(p, f)| (f.last / p.last - 1.0) * 100.0);
    let (low, high) = worst.fold((f64::MAX, f64::MIN), |(low, high), d| (low.min(d), high.max(d)));
    let of_both = |of: fn(&Figures) -> f64| (mean(of, &packets), mean(of, &flow));
    let (last, all) = (of_both(|figures| figures.last), of_both(|figures| figures.mean));
    let percent = |(packets, flow): (f64, f64)| (flow / packets - 1.0) * 100.0;
    println!(
        "| {} | {:.2} | {:.2} | {:+.1} % ({low:+.1} to {high:+.1}) | {:+.1} % | {:.3} | {:.3} |",
        shape.name,
        last.0,
        last.1,
        percent(last),
        percent(all),
        mean(|figures| figures.wall, &packets),
        mean(|figures| figures.wall, &flow),
    );
}

fn figures<E: Engine>(run: &Run) -> Figures {
    let began = Instant::now();
    let mut engine = E::new(run).expect("a run that is possible");
    engine.run();
    let Results { messages, .. } = engine.results();
    let wall = began.elapsed().as_secs_f64();
    assert!(messages.iter().all(|message| message.delivered != Time::NEVER), "all messages arrive");
    let took = messages.iter().map(|m| m.delivered.since(m.posted).as_secs_f64() * 1e6);
    let last = messages.iter().map(|m| m.delivered.0).max().unwrap_or(0);
    Figures { last: last as f64 * 1e-6, mean: took.sum::<f64>() / messages.len() as f64, wall }
}

/// The run of a scenario with a seed, which is that of its permutations too.
fn run_of(scenario: &Value, seed: u64) -> Run {
    let mut scenario = scenario.clone();
    scenario["seed"] = seed.into();
    for pattern in scenario["traffic"].as_array_mut().expect("traffic") {
        if ["permutation", "random"].contains(&pattern["kind"].as_str().expect("a kind")) {
            pattern["seed"] = seed.into();
        }
    }
    let checked = Scenario::from_json(&scenario.to_string()).and_then(Scenario::checked).expect("a scenario");
    checked.build(OwnParts::default()).expect("a run")
}

fn fabric(name: &str) -> Value {
    match name {
        "64 hosts, 4 x 100G" => {
            json!({"hosts": 64, "tiers": 2, "radix": 16, "planes": 4, "nic": {"rate": 400_000_000_000u64}})
        }
        "64 hosts, 8 x 100G" => {
            json!({"hosts": 64, "tiers": 2, "radix": 16, "planes": 8, "nic": {"rate": 800_000_000_000u64}})
        }
        "64 hosts, 1 x 400G" => {
            json!({"hosts": 64, "tiers": 2, "radix": 16, "planes": 1, "nic": {"rate": 400_000_000_000u64}})
        }
        "64 hosts, 2:1" => {
            json!({"hosts": 64, "tiers": 2, "radix": 24, "planes": 4, "nic": {"rate": 400_000_000_000u64}, "oversubscription": 2, "hosts_per_t0": 16})
        }
        "128 hosts, 3 tiers, 1 x 400G" => {
            json!({"hosts": 128, "tiers": 3, "radix": 8, "planes": 1, "nic": {"rate": 400_000_000_000u64}})
        }
        "256 hosts, 8 x 100G" => {
            json!({"hosts": 256, "tiers": 2, "radix": 32, "planes": 8, "nic": {"rate": 800_000_000_000u64}})
        }
        "1,024 hosts, 4 x 100G" => {
            json!({"hosts": 1024, "tiers": 2, "radix": 64, "planes": 4, "nic": {"rate": 400_000_000_000u64}})
        }
        _ => unreachable!("{name} is none of the fabrics"),
    }
}

const FABRICS: [&str; 7] = [
    "64 hosts, 4 x 100G",
    "64 hosts, 8 x 100G",
    "64 hosts, 1 x 400G",
    "64 hosts, 2:1",
    "128 hosts, 3 tiers, 1 x 400G",
    "256 hosts, 8 x 100G",
    "1,024 hosts, 4 x 100G",
];

const KIB: u64 = 1 << 10;

fn shapes() -> Vec<Shape> {
    let mut shapes = Vec::new();
    let mut add = |name: String, fabric_name: &str, traffic: Value, faults: Value| {
        let scenario = json!({"topology": fabric(fabric_name), "traffic": [traffic], "faults": faults});
        shapes.push(Shape { name: format!("{name}, {fabric_name}"), scenario });
    };
    for name in FABRICS {
        for kib in [64, 256, 1024, 4096, 16384] {
            if kib > 4096 && !name.starts_with("64") {
                continue;
            }
            let traffic = json!({"kind": "permutation", "bytes": kib * KIB});
            add(format!("permutation of {kib} KiB"), name, traffic, json!([]));
        }
        for mib in [1, 16, 64] {
            if name.starts_with('1') && mib != 64 {
                continue;
            }
            let traffic =
                json!({"kind": "collective", "operation": "ring-all-reduce", "bytes": mib * KIB * KIB});
            add(format!("ring all-reduce of {mib} MiB"), name, traffic, json!([]));
        }
    }
    let name = FABRICS[0];
    for mib in [1, 8] {
        let traffic = json!({"kind": "collective", "operation": "recursive-doubling-all-reduce", "bytes": mib * KIB * KIB});
        add(format!("recursive doubling of {mib} MiB"), name, traffic, json!([]));
    }
    for kib in [4, 64, 256, 1024] {
        let traffic = json!({"kind": "collective", "operation": "all-to-all", "bytes": kib * KIB});
        add(format!("all-to-all, eight at once, of {kib} KiB"), name, traffic, json!([]));
        let traffic = json!({"kind": "all-to-all", "bytes": kib * KIB});
        if kib < 1024 {
            add(format!("all-to-all, all at once, of {kib} KiB"), name, traffic, json!([]));
        }
    }
    for (senders, kib) in [
        (2, 1024),
        (4, 1024),
        (8, 256),
        (8, 1024),
        (8, 4096),
        (16, 256),
        (16, 1024),
        (16, 4096),
        (32, 256),
        (32, 1024),
        (32, 4096),
        (56, 64),
        (56, 256),
        (56, 1024),
        (56, 4096),
    ] {
        let senders: Vec<u64> = (8..8 + senders).collect();
        let traffic = json!({"kind": "incast", "senders": senders, "receiver": 0, "bytes": kib * KIB});
        add(format!("incast {} of {kib} KiB", senders.len()), name, traffic, json!([]));
    }
    let training = json!({"kind": "training", "data": 8, "tensor": 8, "steps": 2, "microbatches": 2,
        "forward_us": 100, "backward_us": 200, "tensor_bytes": 4 * KIB * KIB, "gradient_bytes": 32 * KIB * KIB});
    add("training, tensor 8, data 8".into(), name, training, json!([]));
    let training = json!({"kind": "training", "data": 16, "pipeline": 4, "expert": 16, "steps": 2, "microbatches": 4,
        "forward_us": 100, "backward_us": 200, "activation_bytes": KIB * KIB, "expert_bytes": 64 * KIB, "gradient_bytes": 32 * KIB * KIB});
    add("training, pipeline 4, data 16, expert 16".into(), name, training, json!([]));
    let faults = [
        ("a port of a host down", json!({"kind": "nic-port", "targets": ["h0:p1"], "at_us": 50})),
        ("an uplink down", json!({"kind": "down", "targets": ["p0/t0-0:up0--p0/t1-0"], "at_us": 50})),
        ("a T1 down", json!({"kind": "down", "targets": ["p0/t1-0"], "at_us": 50})),
        ("a T1 down from the start", json!({"kind": "down", "targets": ["p0/t1-0"], "at_us": 0})),
        ("a T0 down", json!({"kind": "down", "targets": ["p0/t0-0"], "at_us": 50})),
        (
            "a T1 down for 100 us",
            json!({"kind": "down", "targets": ["p0/t1-0"], "at_us": 50, "until_us": 150}),
        ),
        (
            "a port of a host down for 100 us",
            json!({"kind": "down", "targets": ["h0:p1"], "at_us": 50, "until_us": 150}),
        ),
        (
            "an uplink at half rate",
            json!({"kind": "slow", "targets": ["p0/t0-0:up0--p0/t1-0"], "share": 0.5, "at_us": 50}),
        ),
        ("a T1 at half rate", json!({"kind": "slow", "targets": ["p0/t1-0"], "share": 0.5, "at_us": 50})),
        ("a T1 at a quarter", json!({"kind": "slow", "targets": ["p0/t1-0"], "share": 0.25, "at_us": 50})),
        (
            "a port of a host at half rate",
            json!({"kind": "slow", "targets": ["h0:p1"], "share": 0.5, "at_us": 50}),
        ),
    ];
    for (fault_name, fault) in faults {
        for (pattern, traffic) in [
            ("permutation of 8 MiB", json!({"kind": "permutation", "bytes": 8192 * KIB})),
            ("permutation of 64 MiB", json!({"kind": "permutation", "bytes": 65536 * KIB})),
            (
                "ring all-reduce of 64 MiB",
                json!({"kind": "collective", "operation": "ring-all-reduce", "bytes": 65536 * KIB}),
            ),
            (
                "all-to-all, eight at once, of 256 KiB",
                json!({"kind": "collective", "operation": "all-to-all", "bytes": 256 * KIB}),
            ),
        ] {
            add(format!("{fault_name}: {pattern}"), name, traffic, json!([fault]));
        }
    }
    shapes
}
