//! What a run writes down agrees with what it counts, and changes nothing.

mod common;

use common::{all_delivered, multiplane, run};
use openmrc_fabric::Link;
use openmrc_scenario::run::{
    CaptureConfig, Change, Effect, FaultEvent, RecordConfig, Rocev2Config, Routing, SeriesConfig, Target,
    TransportConfig,
};
use openmrc_scenario::{Engine, Results, Run};
use openmrc_sim::{LogEvent, World};
use openmrc_transport::{Span, Time};
use openmrc_workload::training::ParallelLayout;
use openmrc_workload::{Task, Workload, patterns};

fn everything(scenario: &Run) -> RecordConfig {
    let links = scenario.network.fabric.links();
    RecordConfig {
        series: Some(SeriesConfig { interval: None, links: (0..links).collect() }),
        events: true,
        ports: true,
        paths: true,
        capture: Some(CaptureConfig { links: vec![0, links - 1], most: 1000 }),
    }
}

fn broken_permutation() -> Run {
    let network = multiplane(32, 4);
    let link = Link { plane: 1, layer: 1, lower: 0, uplink: 2 };
    let target = Target::Link(network.fabric.link_number(link));
    let mut scenario = Run::new(network, patterns::permutation(32, 4 << 20, 1));
    scenario.faults = vec![
        FaultEvent { at: Time(10_000_000), target, change: Change::Begins(Effect::Down) },
        FaultEvent { at: Time(60_000_000), target, change: Change::Ends(Effect::Down) },
    ];
    scenario
}

#[test]
fn writing_everything_down_changes_nothing() {
    let mut scenario = broken_permutation();
    let plain = run(&scenario);
    scenario.record = everything(&scenario);
    assert_eq!(run(&scenario), plain);
}

#[test]
fn series_ports_and_paths_add_up_to_the_counters() {
    let mut scenario = broken_permutation();
    scenario.record = everything(&scenario);
    let mut world = World::new(&scenario).unwrap();
    world.run();
    world.finish_record();
    let results = world.results();
    let recorder = world.recorder().unwrap();
    let series = &recorder.series;
    assert!(series.time.len() > 20 && series.time.is_sorted());
    assert_eq!(*series.totals.last().unwrap(), results.totals);
    assert_eq!(*series.placed.last().unwrap(), scenario.workload.bytes());
    let [_, planes, groups, ports] = series.widths;
    let last = &series.placed_by_plane[series.placed_by_plane.len() - planes..];
    assert_eq!(last.iter().sum::<u64>(), scenario.workload.bytes());
    // What ports have sent and what waits is what they have accepted, however it is counted.
    let sent: u64 = series.sent[series.sent.len() - ports..].iter().sum();
    let waiting: u64 = series.waiting[series.waiting.len() - ports..].iter().sum();
    assert_eq!(sent + waiting, results.port_bytes.iter().sum::<u64>());
    let grouped: u64 = series.groups[series.groups.len() - groups..].iter().map(|g| g[0] + g[1]).sum();
    assert_eq!(grouped, sent + waiting);
    // A port never sends faster than its rate.
    let picos = scenario.network.picos_per_byte();
    for i in 1..series.time.len() {
        let room = (series.time[i] - series.time[i - 1]) / picos + 1;
        for port in 0..ports {
            let sent = series.sent[i * ports + port] - series.sent[(i - 1) * ports + port];
            assert!(sent <= room, "sample {i}, port {port}: {sent} bytes where {room} fit");
        }
    }
    let counted =
        |count: fn(&openmrc_sim::record::PortCounters) -> u64| recorder.ports.iter().map(count).sum::<u64>();
    assert_eq!(counted(|p| p.marked), results.totals.fabric.marked);
    assert_eq!(
        counted(|p| p.trimmed),
        results.totals.fabric.trimmed + results.totals.fabric.trimmed_last_hop
    );
    assert!(counted(|p| p.lost) > 0 && counted(|p| p.lost) <= results.totals.fabric.dropped_down);
    assert_eq!(recorder.paths.values().map(|p| p.sent).sum::<u64>(), results.totals.hosts.data_packets);
    assert_eq!(recorder.paths.values().map(|p| p.condemned).sum::<u64>(), results.totals.hosts.condemned);
}

#[test]
fn the_log_has_the_fault_before_the_paths_it_cost_and_the_repair_before_they_are_back() {
    let mut scenario = broken_permutation();
    scenario.record.events = true;
    let mut world = World::new(&scenario).unwrap();
    world.run();
    world.finish_record();
    let log = &world.recorder().unwrap().log;
    assert!(log.is_sorted_by_key(|(time, _)| *time));
    let first = |wanted: fn(&LogEvent) -> bool| log.iter().position(|(_, what)| wanted(what));
    let down = first(|w| matches!(w, LogEvent::Fault(_, Change::Begins(Effect::Down)))).unwrap();
    let condemned = first(|w| matches!(w, LogEvent::Path { good: false, plane: 1, .. })).unwrap();
    let up = first(|w| matches!(w, LogEvent::Fault(_, Change::Ends(_)))).unwrap();
    assert!(down < condemned && condemned < up);
}

#[test]
fn an_interval_left_open_grows_with_the_run_and_a_given_one_is_kept() {
    let mut scenario = Run::new(multiplane(8, 1), patterns::permutation(8, 256 << 20, 1));
    for (interval, at_most) in [(None, SeriesConfig::MOST + 1), (Some(Span::from_micros(10)), usize::MAX)] {
        scenario.record.series = Some(SeriesConfig { interval, links: Vec::new() });
        let mut world = World::new(&scenario).unwrap();
        world.run();
        world.finish_record();
        let series = &world.recorder().unwrap().series;
        assert!(series.time.len() <= at_most && series.time.len() > SeriesConfig::MOST / 4);
        // Each sample may be a slot late, so the step is read off the latest one before the end.
        let whole = series.time.len() - 1;
        let step = interval.map_or(series.time[whole - 1] / whole as u64, |interval| interval.0);
        let slot = 1_000_000;
        for (i, &time) in series.time[..series.time.len() - 1].iter().enumerate() {
            let due = (i as u64 + 1) * step;
            assert!(time.abs_diff(due) < 2 * slot, "sample {i} of every {step} ps at {time}");
        }
    }
}

#[test]
fn captured_packets_are_whole_and_good_and_those_trimmed_say_so() {
    let mut scenario = Run::new(multiplane(16, 2), patterns::incast(&[8, 9, 10, 11, 12], 0, 1 << 20));
    let cable =
        |host| scenario.network.fabric.link_number(Link { plane: 0, layer: 0, lower: host, uplink: 0 });
    let (sender, receiver) = (cable(8), cable(0));
    let spine = scenario.network.fabric.link_number(Link { plane: 0, layer: 1, lower: 1, uplink: 0 });
    scenario.record.capture = Some(CaptureConfig { links: vec![sender, receiver, spine], most: u64::MAX });
    let mut world = World::new(&scenario).unwrap();
    world.run();
    let packets = world.recorder_mut().unwrap().capture.as_mut().unwrap().take();
    let config = openmrc_wire::FrameConfig::default();
    let mut trimmed = 0;
    let mut seen = [0u32; 3];
    for captured in &packets {
        let bytes = world.frame(captured);
        let frame =
            openmrc_wire::Frame::decode(&bytes, bytes.len(), openmrc_wire::LinkType::Ethernet, &config);
        assert!(frame.is_good(), "{captured:?}: {:?}", frame.error);
        trimmed += u32::from(frame.trimmed.is_some());
        let left = openmrc_wire::UsidAddress::parse(frame.outer.unwrap().ip.dst).unwrap().len();
        let place =
            [sender, spine, receiver].iter().position(|&l| world.link_ports(l).contains(&captured.port));
        let [up, _] = world.link_ports([sender, spine, receiver][place.unwrap()]);
        // Three switches and the downlink, less those that the packet has behind it.
        let expected = match (place.unwrap(), captured.port == up) {
            (0 | 2, true) => 4,
            (0 | 2, false) => 1,
            (_, true) => 3,
            (_, false) => 2,
        };
        assert_eq!(left, expected, "{captured:?}");
        seen[place.unwrap()] += 1;
    }
    assert!(trimmed > 0 && seen.iter().all(|&n| n > 0), "{trimmed} trimmed, {seen:?}");
}

#[test]
fn a_training_step_takes_at_least_its_computation_and_its_longest_transfer() {
    let layout = ParallelLayout {
        data: 4,
        tensor: 2,
        pipeline: 2,
        expert: 2,
        microbatches: 4,
        steps: 3,
        forward: Span::from_micros(20),
        backward: Span::from_micros(40),
        tensor_bytes: 1 << 16,
        activation_bytes: 1 << 16,
        expert_bytes: 1 << 14,
        gradient_bytes: 1 << 20,
    };
    let hosts: Vec<u32> = (0..16).collect();
    let workload = layout.workload(&hosts);
    assert!(workload.check(16).is_ok());
    let mut scenario = Run::new(multiplane(16, 4), workload.clone());
    for rocev2 in [false, true] {
        if rocev2 {
            scenario.network.routing = Routing::Ecmp;
            scenario.transport = TransportConfig::Rocev2(Rocev2Config { qps: 4, ..Rocev2Config::default() });
        }
        let results = run(&scenario);
        assert!(all_delivered(&results));
        let steps: Vec<_> = results.steps.iter().map(|step| (step.pattern, step.step)).collect();
        assert_eq!(steps, [(0, 0), (0, 1), (0, 2)]);
        // One-forward-one-backward over two stages: every microbatch and one more of the other stage.
        let computed = Span::from_micros((20 + 40) * (4 + 1));
        let mut before = Time::ZERO;
        for end in results.steps.iter().map(|step| step.end) {
            let took = end.since(before);
            assert!(took.0 > computed.0 && took.0 < computed.0 * 3, "{took:?} against {computed:?}");
            before = end;
        }
        assert_order(&workload, &results);
    }
}

/// No message is posted before what it waits for has arrived, and has been computed.
fn assert_order(workload: &Workload, results: &Results) {
    let mut sent = results.messages.iter();
    let mut done: Vec<Time> = Vec::new();
    for (index, task) in (0..).zip(&workload.tasks) {
        let waits = workload.dependencies.iter().filter(|&&(waiter, _)| waiter == index);
        let ready = waits.map(|&(_, after)| done[after as usize]).max().unwrap_or(Time::ZERO);
        done.push(match *task {
            Task::Compute { takes, .. } => ready + takes,
            Task::Send { .. } => {
                let message = sent.next().expect("a result of each message");
                assert!(message.posted >= ready, "task {index}: {:?} before {ready:?}", message.posted);
                message.delivered
            }
        });
    }
    for step in &results.steps {
        let ends = workload.step_ends.iter().filter(|&&(_, of)| of == step.step);
        assert_eq!(ends.map(|&(task, _)| done[task as usize]).max(), Some(step.end));
    }
}
