//! How fast the simulator is: data packets a second, SACKs included, on the fabrics its reach is stated for.
//!
//! `cargo run --release -p openmrc-sim --example reach [--json] [--threads=N] NAME ...`; without a name it says which
//! there are.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::process::ExitCode;
use std::time::Instant;

use openmrc_fabric::{Fabric, Sizing};
use openmrc_scenario::run::{Change, Effect, FaultEvent, NetworkConfig, Target};
use openmrc_scenario::{Engine, Results, Run};
use openmrc_sim::World;
use openmrc_transport::{Span, Time};
use openmrc_workload::{collectives, patterns};

/// A fabric and what it carries.
struct Shape {
    name: &'static str,
    what: &'static str,
    sizing: Sizing,
    gbps: u64,
    /// Length of every cable, nanoseconds.
    cable: u64,
    traffic: Traffic,
}

enum Traffic {
    /// Every host sends so many bytes to another.
    Permutation(u32),
    /// Ring all-reduce of so many bytes, neighbours on the ring under different switches, with this loss on every link.
    AllReduce(u64, f64),
}

fn shapes() -> Vec<Shape> {
    let planes = |name, what, hosts| Shape {
        name,
        what,
        sizing: Sizing::new(hosts, 8, 2, 512),
        gbps: 100,
        cable: 500,
        traffic: Traffic::Permutation(1 << 20),
    };
    vec![
        Shape {
            name: "fat-tree",
            what: "1,024 hosts, three tiers, 100 Gb/s, permutation of 2,000,000 bytes",
            sizing: Sizing::new(1024, 1, 3, 16),
            gbps: 100,
            cable: 500,
            traffic: Traffic::Permutation(2_000_000),
        },
        Shape {
            name: "leaf-spine",
            what: "8,192 hosts, two tiers, 800 Gb/s, permutation of 1,001,000 bytes",
            sizing: Sizing::new(8192, 1, 2, 128),
            gbps: 800,
            cable: 1000,
            traffic: Traffic::Permutation(1_001_000),
        },
        planes("planes-1024", "1,024 hosts, 8 planes of 100 Gb/s, permutation of 1 MiB", 1024),
        planes("planes-4096", "the same with 4,096 hosts", 4096),
        planes("planes-16384", "the same with 16,384 hosts", 16_384),
        planes("planes-65536", "the same with 65,536 hosts", 65_536),
        planes("reference", "the same with 131,072 hosts", 131_072),
        Shape {
            name: "all-reduce",
            what: "64 hosts, 4 planes of 100 Gb/s, ring all-reduce of 1 GiB, 0.1 % loss",
            sizing: Sizing::new(64, 4, 2, 16),
            gbps: 100,
            cable: 500,
            traffic: Traffic::AllReduce(1 << 30, 0.001),
        },
    ]
}

fn main() -> ExitCode {
    let (flags, names): (Vec<_>, Vec<_>) = std::env::args().skip(1).partition(|a| a.starts_with("--"));
    let shapes = shapes();
    let unknown = names.iter().find(|name| shapes.iter().all(|shape| shape.name != **name));
    let threads = |flag: &String| flag.strip_prefix("--threads=").and_then(|n| n.parse::<u32>().ok());
    let bad = unknown.or(flags.iter().find(|flag| *flag != "--json" && threads(flag).is_none()));
    if let Some(bad) = bad {
        eprintln!("error: there is no {bad:?}; there are --json, --threads=N and");
    } else if names.is_empty() {
        eprintln!("usage: reach [--json] [--threads=N] NAME ...");
    } else {
        for name in &names {
            if let Some(shape) = shapes.iter().find(|shape| shape.name == *name) {
                let json = flags.iter().any(|flag| flag == "--json");
                report(shape, flags.iter().find_map(threads).unwrap_or(1), json);
            }
        }
        return ExitCode::SUCCESS;
    }
    for shape in &shapes {
        eprintln!("    {:13} {}", shape.name, shape.what);
    }
    ExitCode::from(2)
}

fn scenario(shape: &Shape) -> Run {
    let fabric = Fabric::new(shape.sizing.smallest().expect("a fabric")).expect("a fabric");
    let mut network = NetworkConfig::new(fabric, shape.gbps * 1_000_000_000);
    network.cable = [Span::from_nanos(shape.cable); 4];
    let hosts = shape.sizing.hosts;
    match shape.traffic {
        Traffic::Permutation(bytes) => Run::new(network, patterns::permutation(hosts, bytes, 1)),
        Traffic::AllReduce(bytes, loss) => {
            let below = fabric.shape().hosts_per_t0;
            let switches = hosts / below;
            let ring: Vec<_> = (0..hosts).map(|i| i % switches * below + i / switches).collect();
            let mut scenario = Run::new(network, collectives::ring_all_reduce(&ring, bytes));
            let change = Change::Begins(Effect::Loss(loss));
            let fault = |link| FaultEvent { at: Time::ZERO, target: Target::Link(link), change };
            scenario.faults = (0..fabric.links()).map(fault).collect();
            scenario
        }
    }
}

fn report(shape: &Shape, threads: u32, json: bool) {
    let scenario = Run { threads, ..scenario(shape) };
    let (begin, cpu) = (Instant::now(), cpu_seconds());
    let mut world = World::new(&scenario).expect("a scenario");
    let built = begin.elapsed().as_secs_f64();
    world.run();
    let (elapsed, cpu) = (begin.elapsed().as_secs_f64(), cpu_seconds() - cpu);
    let results = world.results();
    let last = results.messages.iter().map(|m| m.delivered.0).max().unwrap_or(0) as f64 / 1e6;
    let (t, name, digest, megabytes) = (results.totals, shape.name, digest(&results), peak_memory() / 1000);
    let packets = t.hosts.data_packets as f64;
    let (rate, each, events) = (packets / elapsed / 1e6, elapsed * 1e9 / packets, t.events as f64 / packets);
    if json {
        let hosts = shape.sizing.hosts;
        println!(
            r#"{{"name": "{name}", "hosts": {hosts}, "data_packets": {packets}, "elapsed_s": {elapsed}, "cpu_s": {cpu}, "mpps": {rate}, "packet_ns": {each}, "events_per_packet": {events}, "memory_MB": {megabytes}, "last_byte_us": {last}, "digest": "{digest:016x}"}}"#,
        );
        return;
    }
    println!(
        "{name}: {packets} data packets in {cpu:.2} s of CPU, {elapsed:.2} s in all ({built:.2} s to build): {rate:.2} M/s, \
         {events:.1} events and {each:.0} ns each, {megabytes} MB"
    );
    println!("    last byte at {last:.1} us, digest {digest:016x}, {t:?}");
}

/// All that a run has given, but for the number of its events, in one number: the same seed gives the same one.
fn digest(results: &Results) -> u64 {
    let mut hasher = DefaultHasher::new();
    for message in &results.messages {
        (message.posted.0, message.delivered.0, message.completed.0, message.failed).hash(&mut hasher);
    }
    // A counter of hosts in software, which these shapes have none of: digests stay comparable with older ones.
    let totals =
        results.totals.named().into_iter().filter(|(name, _)| !["events", "overflowed"].contains(name));
    for (name, value) in totals {
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
