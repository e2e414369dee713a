//! A network that is simulated by several threads gives what one thread gives, to the bit: results, time series, log,
//! counters, captured packets.

mod common;

use common::mixed::Mix;
use common::{assert_laws, multiplane};
use openmrc_scenario::run::{CaptureConfig, RecordConfig, SeriesConfig};
use openmrc_scenario::{Engine, Results, Run, RunError};
use openmrc_sim::World;
use openmrc_transport::Time;
use openmrc_workload::{Workload, patterns};
use proptest::prelude::*;

/// Everything that a run tells.
#[derive(PartialEq, Debug)]
struct Told {
    results: Results,
    log: String,
    series: String,
    ports: String,
    paths: String,
    frames: Vec<(Time, u32, Vec<u8>)>,
}

fn told(scenario: &Run, threads: u32, events: u64) -> Told {
    let scenario = Run { threads, ..scenario.clone() };
    let mut world = World::new(&scenario).expect("a scenario that can run");
    let mut frames = Vec::new();
    loop {
        let more = world.advance(events);
        let capture = world.recorder_mut().and_then(|recorder| recorder.capture.as_mut());
        let packets = capture.map(|capture| capture.take()).unwrap_or_default();
        frames.extend(packets.iter().map(|packet| (packet.time, packet.port, world.frame(packet))));
        if !more {
            break;
        }
    }
    world.finish_record();
    let results = world.results();
    assert_laws(&scenario, &results);
    let recorder = world.recorder().expect("a record");
    let mut paths: Vec<_> = recorder.paths.iter().collect();
    paths.sort_by_key(|(key, _)| **key);
    Told {
        results,
        log: format!("{:?} {}", recorder.log, recorder.log_missed),
        series: format!("{:?}", recorder.series),
        ports: format!("{:?}", recorder.ports),
        paths: format!("{paths:?}"),
        frames,
    }
}

fn everything(capture: u64) -> RecordConfig {
    let links: Vec<u32> = (0..16).collect();
    RecordConfig {
        series: Some(SeriesConfig { interval: None, links: links.clone() }),
        events: true,
        ports: true,
        paths: true,
        capture: Some(CaptureConfig { links, most: capture }),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, ..ProptestConfig::default() })]
    #[test]
    fn every_number_of_threads_tells_the_same(
        (transport, tiers, planes) in (0u8..7, 1u8..4, 1u32..4),
        (traffic, broken, seed) in (0u8..5, 0u8..4, 1u64..1000),
        (limit, events, captured) in (prop_oneof![Just(3_000u64), 20u64..200], 500u64..20_000, 100u64..3000),
    ) {
        let mut scenario = Mix { transport, tiers, planes, traffic, broken, seed, limit }.run();
        scenario.record = everything(captured);
        let one = told(&scenario, 1, events);
        for threads in 2..=4 {
            let several = told(&scenario, threads, events);
            prop_assert_eq!(&one.results, &several.results, "{} threads", threads);
            prop_assert!(one == several, "the record of {} threads", threads);
        }
    }
}

#[test]
fn more_threads_than_hosts_are_as_good() {
    let mut scenario = Run::new(multiplane(8, 2), patterns::permutation(8, 100_000, 1));
    scenario.record = everything(100);
    assert_eq!(told(&scenario, 1, u64::MAX), told(&scenario, 20, u64::MAX));
}

#[test]
fn a_number_of_threads_has_its_range() {
    let scenario = Run::new(multiplane(8, 2), Workload::default());
    for threads in [0, 257] {
        let error = World::new(&Run { threads, ..scenario.clone() }).err();
        assert_eq!(error, Some(RunError::Threads(threads)));
    }
}
