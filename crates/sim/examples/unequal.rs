//! What a transport makes of paths that differ in speed: permutations over fabrics where some links are slow, beside the
//! same with equal links and with dead ones.
//!
//! `cargo run --release -p openmrc-sim --example unequal [--seeds=N] [SHAPE ...]`. Each row is the mean over the seeds;
//! without a shape all are run. "condemned" counts condemnations, of which "of dead" were of a path over a dead link.

use std::process::ExitCode;

use openmrc_fabric::{Fabric, Link, Ratio, Sizing, Switch};
use openmrc_scenario::run::{Change, Effect, FaultEvent, NetworkConfig, Target};
use openmrc_scenario::{Engine, Run};
use openmrc_sim::World;
use openmrc_transport::{Span, Time};
use openmrc_workload::patterns;

const HOSTS: u32 = 256;
const BYTES: u32 = 1_000_000;
const GBPS: u64 = 200;
/// Switches of the upper tier; every T0 has one uplink to each.
const T1S: u32 = 16;

/// A fabric in which some links are slow or dead.
struct Shape {
    name: &'static str,
    what: &'static str,
    planes: u32,
    /// Uplinks of a T0, one to each T1.
    t1s: u32,
    faults: fn(&Fabric) -> Vec<(Target, Effect)>,
}

fn uplink(fabric: &Fabric, plane: u32, lower: u32, uplink: u32) -> Target {
    Target::Link(fabric.link_number(Link { plane, layer: 1, lower, uplink }))
}

fn t1(fabric: &Fabric, index: u32) -> Target {
    Target::Switch(fabric.switch_number(Switch { plane: 0, tier: 1, index }))
}

fn shapes() -> Vec<Shape> {
    vec![
        Shape { name: "equal", what: "all links alike", planes: 1, t1s: T1S, faults: |_| vec![] },
        Shape {
            name: "two-to-one",
            what: "all links alike, half the uplinks",
            planes: 1,
            t1s: T1S / 2,
            faults: |_| vec![],
        },
        Shape {
            name: "slow-uplink",
            what: "one uplink at a quarter of the rate",
            planes: 1,
            t1s: T1S,
            faults: |fabric| vec![(uplink(fabric, 0, 2, 3), Effect::Slow(0.25))],
        },
        Shape {
            name: "two-t1s",
            what: "two of 16 T1s with all links at a quarter",
            planes: 1,
            t1s: T1S,
            faults: |fabric| [3, 9].map(|index| (t1(fabric, index), Effect::Slow(0.25))).to_vec(),
        },
        Shape {
            name: "half-t1",
            what: "a T1 with all links at half",
            planes: 1,
            t1s: T1S,
            faults: |fabric| vec![(t1(fabric, 3), Effect::Slow(0.5))],
        },
        Shape {
            name: "thin-plane",
            what: "four planes, one with a third of its uplinks",
            planes: 4,
            t1s: T1S,
            faults: |fabric| {
                let hosts_per_t0 = fabric.shape().hosts_per_t0;
                let gone = |&(_, up): &(u32, u32)| up % 3 != 0;
                let all = (0..HOSTS / hosts_per_t0).flat_map(|lower| (0..T1S).map(move |up| (lower, up)));
                all.filter(gone).map(|(lower, up)| (uplink(fabric, 1, lower, up), Effect::Down)).collect()
            },
        },
        Shape {
            name: "slow-host",
            what: "the cable of one host at a quarter",
            planes: 1,
            t1s: T1S,
            faults: |fabric| {
                let link = Link { plane: 0, layer: 0, lower: 7, uplink: 0 };
                vec![(Target::Link(fabric.link_number(link)), Effect::Slow(0.25))]
            },
        },
        Shape {
            name: "dead-uplinks",
            what: "eight uplinks of different T0s are down",
            planes: 1,
            t1s: T1S,
            faults: |fabric| (0..8).map(|i| (uplink(fabric, 0, i, 2 * i), Effect::Down)).collect(),
        },
        Shape {
            name: "dying-uplink",
            what: "an uplink goes down after 20 us",
            planes: 1,
            t1s: T1S,
            faults: |fabric| vec![(uplink(fabric, 0, 2, 3), Effect::Down)],
        },
    ]
}

fn main() -> ExitCode {
    let (flags, names): (Vec<_>, Vec<_>) = std::env::args().skip(1).partition(|a| a.starts_with("--"));
    let shapes = shapes();
    let seeds = |flag: &String| flag.strip_prefix("--seeds=").and_then(|n| n.parse::<u64>().ok());
    let unknown = names.iter().find(|name| shapes.iter().all(|shape| shape.name != **name));
    if let Some(bad) = unknown.or(flags.iter().find(|flag| seeds(flag).is_none_or(|n| n == 0))) {
        eprintln!("error: there is no {bad:?}; there are --seeds=N, N from 1, and");
        for Shape { name, what, .. } in &shapes {
            eprintln!("    {name:13} {what}");
        }
        return ExitCode::from(2);
    }
    let seeds = flags.iter().find_map(seeds).unwrap_or(8);
    println!(
        "{:13} {:>8} {:>8} {:>8} {:>8} {:>8} {:>8} {:>9} {:>8} {:>9}",
        "shape",
        "mean us",
        "last us",
        "dropped",
        "trimmed",
        "lost",
        "spurious",
        "condemned",
        "resent",
        "spread us"
    );
    for shape in shapes.iter().filter(|shape| names.is_empty() || names.iter().any(|n| n == shape.name)) {
        report(shape, seeds);
    }
    ExitCode::SUCCESS
}

fn scenario(shape: &Shape, seed: u64) -> Run {
    let (hosts_per_t0, uplinks_per_t0) = (Some(T1S), Some(shape.t1s));
    let radix = 2 * T1S;
    let sizing = Sizing {
        hosts_per_t0,
        uplinks_per_t0,
        parallel: Some(1),
        oversubscription: [Ratio { down: T1S, up: shape.t1s }, Ratio::NON_BLOCKING, Ratio::NON_BLOCKING],
        ..Sizing::new(HOSTS, shape.planes, 2, radix)
    };
    let fabric = Fabric::new(sizing.smallest().expect("a fabric")).expect("a fabric");
    let mut network = NetworkConfig::new(fabric, GBPS * 1_000_000_000 / u64::from(shape.planes));
    network.seed = seed;
    let at = if shape.name == "dying-uplink" { Time(Span::from_micros(20).0) } else { Time::ZERO };
    let mut run = Run::new(network, patterns::permutation(HOSTS, BYTES, seed));
    let fault = |(target, effect)| FaultEvent { at, target, change: Change::Begins(effect) };
    run.faults = (shape.faults)(&fabric).into_iter().map(fault).collect();
    run
}

fn report(shape: &Shape, seeds: u64) {
    let mut sums = [0.0; 8];
    let mut lasts = Vec::new();
    for seed in 1..=seeds {
        let mut world = World::new(&scenario(shape, seed)).expect("a scenario");
        world.run();
        let results = world.results();
        let micros = |time: Time| time.0 as f64 / Span::from_micros(1).0 as f64;
        let done: Vec<_> = results.messages.iter().map(|m| micros(m.completed)).collect();
        assert!(results.messages.iter().all(|m| m.completed != Time::NEVER && !m.failed), "seed {seed}");
        let last = done.iter().copied().fold(0.0, f64::max);
        let (hosts, fabric) = (results.totals.hosts, results.totals.fabric);
        let dropped = fabric.dropped_data + fabric.dropped_down;
        let counts =
            [dropped, fabric.trimmed, hosts.losses_seen, hosts.spurious, hosts.condemned, hosts.retransmits];
        let mean = done.iter().sum::<f64>() / done.len() as f64;
        for (sum, value) in sums.iter_mut().zip([mean, last].into_iter().chain(counts.map(|n| n as f64))) {
            *sum += value / seeds as f64;
        }
        lasts.push(last);
    }
    let [mean, last, dropped, trimmed, lost, spurious, condemned, resent] = sums;
    let spread = lasts.iter().copied().fold(0.0, f64::max) - lasts.iter().copied().fold(f64::MAX, f64::min);
    println!(
        "{:13} {mean:8.2} {last:8.2} {dropped:8.1} {trimmed:8.0} {lost:8.0} {spurious:8.0} {condemned:9.0} {resent:8.0} \
         {spread:9.1}",
        shape.name
    );
}
