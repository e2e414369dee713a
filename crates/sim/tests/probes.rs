//! Probes of hosts to themselves, as packets: which links they cross, which faults they meet, what is counted.

mod common;

use common::{assert_laws, multiplane};
use openmrc_fabric::{Link, Switch};
use openmrc_scenario::run::{
    Change, Effect, FaultEvent, NetworkConfig, ProbeConfig, ProbeLoop, Stall, Target,
};
use openmrc_scenario::{Engine, Run};
use openmrc_sim::World;
use openmrc_transport::{Span, Time};
use openmrc_workload::{Workload, patterns};

const HOSTS: u32 = 32;
const PLANES: u32 = 2;
const PER_T0: u32 = 8;

fn second(n: u64) -> Time {
    Time::ZERO + Span::from_secs(n)
}

/// Every host probes its T0 and two of its uplinks in every plane.
fn probes() -> ProbeConfig {
    let loops = |host: u32| {
        (0..PLANES)
            .flat_map(|plane| {
                [None, Some(host % PER_T0), Some((host + 1) % PER_T0)]
                    .map(|uplink| ProbeLoop { plane, uplink })
            })
            .collect()
    };
    ProbeConfig {
        loops: (0..HOSTS).map(loops).collect(),
        rate: 300,
        interval: Span::from_millis(250),
        grace: Span::from_millis(500),
        stalls: Vec::new(),
    }
}

fn run_of(network: NetworkConfig, workload: Workload, faults: Vec<FaultEvent>) -> Run {
    Run { probes: Some(probes()), faults, limit: second(1_000), ..Run::new(network, workload) }
}

/// Probes sent and lost in the intervals that are over: by host, by loop.
fn counted(world: &mut World) -> Vec<Vec<(u32, u32)>> {
    (0..HOSTS)
        .map(|host| {
            let mut sums = vec![(0, 0); 3 * PLANES as usize];
            for closed in world.take_probes(host) {
                for (sum, count) in sums.iter_mut().zip(closed.counts) {
                    *sum = (sum.0 + count.sent, sum.1 + count.sent - count.received);
                }
            }
            sums
        })
        .collect()
}

fn after(run: &Run, time: Time) -> (World, Vec<Vec<(u32, u32)>>) {
    let mut world = World::new(run).expect("a run that can be built");
    world.run_until(time);
    let counts = counted(&mut world);
    (world, counts)
}

/// Hosts and loops that have lost something.
fn losing(counts: &[Vec<(u32, u32)>]) -> Vec<(usize, usize)> {
    let losing = |(host, loops): (usize, &Vec<(u32, u32)>)| {
        loops
            .iter()
            .enumerate()
            .filter(|(_, count)| count.1 > 0)
            .map(move |(index, _)| (host, index))
            .collect()
    };
    counts.iter().enumerate().flat_map::<Vec<_>, _>(losing).collect()
}

#[test]
fn all_probes_of_a_healthy_fabric_come_back_over_their_links() {
    let network = multiplane(HOSTS, PLANES);
    let run = run_of(network.clone(), Workload::default(), Vec::new());
    let (world, counts) = after(&run, second(3));
    assert_laws(&run, &world.results());
    assert_eq!(losing(&counts), []);
    let sent: u32 = counts.iter().flatten().map(|count| count.0).sum();
    // Of three seconds at most the last 750 ms are not over.
    assert!((HOSTS * 300 * 9 / 4..HOSTS * 300 * 3).contains(&sent), "{sent} probes");
    let results = world.results();
    for number in 0..network.fabric.links() {
        let [up, down] = world.link_ports(number).map(|port| results.port_bytes[port as usize]);
        assert!(down > 0 && up.abs_diff(down) <= 1_000, "link {number}: {up} bytes up, {down} down");
    }
}

#[test]
fn a_silent_direction_loses_the_probes_of_the_loops_over_its_link() {
    let network = multiplane(HOSTS, PLANES);
    let link = network.fabric.link_number(Link { plane: 1, layer: 1, lower: 2, uplink: 5 });
    for target in [Target::Upward(link), Target::Downward(link)] {
        let change = Change::Begins(Effect::Loss(1.0));
        let run =
            run_of(network.clone(), Workload::default(), vec![FaultEvent { at: second(1), target, change }]);
        let (world, counts) = after(&run, second(3));
        assert_laws(&run, &world.results());
        // Of T0 2, the hosts with the numbers 4 and 5 probe uplink 5: as their second and as their first uplink.
        assert_eq!(losing(&counts), [(20, 5), (21, 4)], "{target:?}");
        assert!(world.results().totals.fabric.dropped_lossy > 50);
    }
}

#[test]
fn a_port_that_is_down_and_a_switch_that_forwards_nothing_lose_what_needs_them() {
    let network = multiplane(HOSTS, PLANES);
    let fabric = &network.fabric;
    let cable = fabric.link_number(Link { plane: 0, layer: 0, lower: 3, uplink: 0 });
    let t0 = fabric.switch_number(Switch { plane: 1, tier: 0, index: 1 });
    let fault = |target, effect| FaultEvent { at: second(1), target, change: Change::Begins(effect) };
    let faults = vec![fault(Target::Link(cable), Effect::Down), fault(Target::Switch(t0), Effect::Loss(1.0))];
    let run = run_of(network, Workload::default(), faults);
    let (world, counts) = after(&run, second(3));
    assert_laws(&run, &world.results());
    let mut expected: Vec<_> = (0..3).map(|index| (3, index)).collect();
    expected.extend((8..16).flat_map(|host| (3..6).map(move |index| (host, index))));
    assert_eq!(losing(&counts), expected);
}

#[test]
fn a_share_of_losses_is_found_in_the_counts() {
    let network = multiplane(HOSTS, PLANES);
    let link = network.fabric.link_number(Link { plane: 0, layer: 1, lower: 0, uplink: 0 });
    let change = Change::Begins(Effect::Loss(0.1));
    let run = run_of(
        network,
        Workload::default(),
        vec![FaultEvent { at: Time::ZERO, target: Target::Link(link), change }],
    );
    let (_, counts) = after(&run, second(20));
    assert_eq!(losing(&counts).len(), 2);
    let (sent, lost) =
        counts.iter().flatten().filter(|count| count.1 > 0).fold((0, 0), |a, b| (a.0 + b.0, a.1 + b.1));
    // Both directions lose a tenth. While they lose, their loops have a quarter of the probes besides their turn.
    let share = f64::from(lost) / f64::from(sent);
    assert!((0.17..0.21).contains(&share), "{lost} of {sent}");
    assert!(sent > 3_500, "{sent} probes of the two loops");
}

#[test]
fn a_host_that_is_scheduled_away_loses_nothing_and_catches_nothing_up() {
    let mut run = run_of(multiplane(HOSTS, PLANES), Workload::default(), Vec::new());
    let stall = Stall { host: 6, from: second(1), until: second(3) };
    run.probes.as_mut().expect("probes").stalls = vec![stall];
    let (world, counts) = after(&run, second(5));
    assert_eq!(losing(&counts), []);
    let sent = |host| world.probe_totals(host).sent;
    assert_eq!((sent(5), sent(6)), (1_500, 902));
}

#[test]
fn no_probe_is_lost_in_an_incast_that_trims() {
    let network = multiplane(HOSTS, PLANES);
    let senders: Vec<u32> = (1..HOSTS).collect();
    let incast = patterns::incast(&senders, 0, 1 << 20);
    let run = run_of(network, incast, Vec::new());
    let (world, counts) = after(&run, second(2));
    assert_laws(&run, &world.results());
    assert!(world.results().totals.fabric.trimmed_last_hop > 0, "the queue was full");
    assert_eq!(losing(&counts), []);
}

#[test]
fn counts_are_the_same_for_every_number_of_threads() {
    let network = multiplane(HOSTS, PLANES);
    let link = network.fabric.link_number(Link { plane: 0, layer: 1, lower: 1, uplink: 2 });
    let change = Change::Begins(Effect::Loss(0.3));
    let faults = vec![FaultEvent { at: Time::ZERO, target: Target::Link(link), change }];
    let one = run_of(network, patterns::permutation(HOSTS, 1 << 16, 3), faults);
    let (_, expected) = after(&one, second(2));
    for threads in [2, 3] {
        let (_, counts) = after(&Run { threads, ..one.clone() }, second(2));
        assert_eq!(counts, expected, "{threads} threads");
    }
}
