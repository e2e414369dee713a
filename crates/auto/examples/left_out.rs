//! The table of docs/auto.md: the same runs with packets for everything and with the auto engine, over five seeds.
//!
//!     cargo run --release -p openmrc-auto --example left_out

#[path = "../tests/common/mod.rs"]
mod common;

use common::{job, results, share, topology};
use openmrc_auto::AutoWorld;
use openmrc_scenario::Results;
use openmrc_sim::World;
use serde_json::{Value, json};

/// When the last message was in place, microseconds.
fn last_us(results: &Results) -> f64 {
    results.messages.iter().map(|message| message.delivered.0).max().unwrap_or(0) as f64 * 1e-6
}

fn row(name: &str, traffic: &Value, faults: &Value) {
    let (mut off, mut skipped, mut took, mut events) = (Vec::new(), 0.0, 0.0, (0, 0));
    let seeds = 1..=5u64;
    for seed in seeds.clone() {
        let run = json!({"topology": topology(), "traffic": traffic, "faults": faults, "seed": seed});
        let (packets, auto) = (results::<World>(&run), results::<AutoWorld>(&run));
        skipped += share(&auto);
        took += last_us(&packets);
        off.push((last_us(&auto) / last_us(&packets) - 1.0) * 100.0);
        events = (events.0 + packets.totals.events, events.1 + auto.totals.events);
    }
    let n = off.len() as f64;
    let mean = off.iter().sum::<f64>() / n;
    let (least, most) = off.iter().fold((f64::MAX, f64::MIN), |(a, b), &o| (a.min(o), b.max(o)));
    println!(
        "| {name} | {:.0} | {mean:+.2} % ({least:+.2} to {most:+.2}) | {:.1} % | {:.1} |",
        took / n,
        skipped / n * 100.0,
        events.0 as f64 / events.1 as f64
    );
}

fn main() {
    println!("| two steps on 64 hosts | packets, us | auto | skipped | events, packets to auto |");
    println!("|---|---|---|---|---|");
    let none = json!([]);
    let dense = job(&json!({"data": 8, "tensor": 8, "microbatches": 2, "tensor_bytes": 16 << 20,
        "gradient_bytes": 64 << 20}));
    row("dense: tensor 8, data 8", &json!([dense]), &none);
    let replicas = job(&json!({"data": 64, "gradient_bytes": 256 << 20}));
    row("data 64", &json!([replicas]), &none);
    let pipeline = job(&json!({"data": 16, "pipeline": 4, "microbatches": 8,
        "activation_bytes": 4 << 20, "gradient_bytes": 64 << 20}));
    row("pipeline 4, data 16", &json!([pipeline]), &none);
    let experts = job(&json!({"data": 64, "expert": 16, "microbatches": 2, "expert_bytes": 256 << 10,
        "gradient_bytes": 32 << 20}));
    row("experts 16, data 64", &json!([experts]), &none);
    let fault = json!([{"kind": "down", "targets": ["h0:p1"], "at_us": 8000}]);
    row("dense, a port of a host down after 8 ms", &json!([dense]), &fault);
}
