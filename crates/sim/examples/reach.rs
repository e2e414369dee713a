//! How fast the simulator is: data packets a second, SACKs included, on the fabrics its reach is stated for.
//!
//! `cargo run --release -p openmrc-sim --example reach [fat-tree|leaf-spine|reference] ...`

use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Instant;

use openmrc_fabric::{Fabric, Sizing};
use openmrc_sim::{NetworkConfig, Results, Scenario, World, traffic};
use openmrc_transport::Span;

fn main() {
    let names: Vec<String> = std::env::args().skip(1).collect();
    for name in names {
        let (sizing, rate, cable, bytes) = match name.as_str() {
            "fat-tree" => (Sizing::new(1024, 1, 3, 16), 100, 500, 2_000_000),
            "leaf-spine" => (Sizing::new(8192, 1, 2, 128), 800, 1000, 1_001_000),
            "reference" => (Sizing::new(131_072, 8, 2, 512), 100, 500, 1 << 20),
            "planes-1024" => (Sizing::new(1024, 8, 2, 512), 100, 500, 1 << 20),
            "planes-8192" => (Sizing::new(8192, 8, 2, 512), 100, 500, 1 << 20),
            other => {
                panic!("{other} is not one of fat-tree, leaf-spine, reference, planes-1024, planes-8192")
            }
        };
        let fabric = Fabric::new(sizing.smallest().expect("a fabric")).expect("a fabric");
        let mut network = NetworkConfig::new(fabric, rate * 1_000_000_000);
        network.cable = [Span::from_nanos(cable); 4];
        let scenario = Scenario::new(network, traffic::permutation(sizing.hosts, bytes, 1));
        let (begin, cpu) = (Instant::now(), cpu_seconds());
        let mut world = World::new(&scenario).expect("a scenario");
        let built = begin.elapsed().as_secs_f64();
        world.run();
        let wall = begin.elapsed().as_secs_f64();
        let seconds = cpu_seconds() - cpu;
        let results = world.results();
        let last = results.messages.iter().map(|m| m.delivered.0).max().unwrap_or(0);
        let t = results.totals;
        println!(
            "{name}: {} data packets in {seconds:.2} s of CPU, {wall:.2} s in all ({built:.2} s to build): {:.2} M/s, {:.1} events and {:.0} ns each, {} MB",
            t.data_packets,
            t.data_packets as f64 / seconds / 1e6,
            t.events as f64 / t.data_packets as f64,
            seconds * 1e9 / t.data_packets as f64,
            peak_memory() / 1000,
        );
        println!("    digest {:016x}", digest(&results));
        println!(
            "    base RTT {} ns, last byte at {:.1} us, {t:?}",
            world.config().base_rtt().as_nanos(),
            last as f64 / 1e6
        );
    }
}

/// All that a run has given, but for the number of its events, in one number: the same seed gives the same one.
fn digest(results: &Results) -> u64 {
    let mut hasher = DefaultHasher::new();
    for message in &results.messages {
        (message.posted.0, message.delivered.0, message.completed.0, message.failed).hash(&mut hasher);
    }
    for (name, value) in results.totals.named().into_iter().filter(|(name, _)| *name != "events") {
        (name, value).hash(&mut hasher);
    }
    results.port_bytes.hash(&mut hasher);
    hasher.finish()
}

/// CPU time the process has used so far, seconds (clock ticks of 10 ms).
fn cpu_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or("").split_whitespace().collect();
    let ticks = |i: usize| fields.get(i).and_then(|f| f.parse::<f64>().ok()).unwrap_or(0.0);
    (ticks(11) + ticks(12)) / 100.0
}

/// Most memory the process has held, kilobytes.
fn peak_memory() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|l| l.strip_prefix("VmHWM:"));
    line.and_then(|l| l.trim().strip_suffix(" kB")).and_then(|n| n.parse().ok()).unwrap_or(0)
}
