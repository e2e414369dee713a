//! A run that goes on from a checkpoint ends as the run that has written it, to the bit; what is no checkpoint of the run is
//! refused.

mod common;

use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

use common::mixed::Mix;
use common::multiplane;
use openmrc_scenario::run::{MrcConfig, MrcCongestion, RecordConfig, SeriesConfig, TransportConfig};
use openmrc_scenario::{Engine, Run};
use openmrc_sim::{CheckpointError, World};
use openmrc_transport::mrc::{CustomCc, FixedWindow};
use openmrc_workload::patterns;
use proptest::prelude::*;

const SCENARIO: u64 = 7;

/// A file of a test. It is removed at its end.
struct Temporary(PathBuf);

impl Temporary {
    fn new() -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let (process, number) = (std::process::id(), NUMBER.fetch_add(1, Ordering::Relaxed));
        Temporary(std::env::temp_dir().join(format!("openmrc-checkpoint-{process}-{number}")))
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

fn new_world(run: &Run) -> World {
    World::new(run).expect("a run that is possible")
}

/// Everything that a run tells at its end.
fn told(mut world: World) -> String {
    world.run();
    world.finish_record();
    let recorder = world.recorder().expect("a record");
    let mut paths: Vec<_> = recorder.paths.iter().collect();
    paths.sort_by_key(|(key, _)| **key);
    let results = world.results();
    format!("{results:?} {:?} {:?} {:?} {paths:?}", recorder.log, recorder.series, recorder.ports)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]
    #[test]
    fn a_resumed_run_ends_as_the_whole_one(
        (transport, tiers, planes) in (0u8..7, 1u8..4, 1u32..4),
        (traffic, broken, seed) in (0u8..5, 0u8..4, 1u64..1000),
        (limit, threads) in (prop_oneof![Just(3_000u64), 20u64..200], 1u32..4),
        stops in proptest::collection::vec(0.0f64..1.0, 1..4),
    ) {
        let mut run = Mix { transport, tiers, planes, traffic, broken, seed, limit }.run();
        run.threads = threads;
        run.record = RecordConfig {
            series: Some(SeriesConfig { interval: None, links: (0..8).collect() }),
            events: true,
            ports: true,
            paths: true,
            capture: None,
        };
        let mut whole = new_world(&run);
        whole.run();
        let events = whole.progress().events;
        let whole = told(whole);
        // From checkpoint to checkpoint, each in a world of its own.
        let file = Temporary::new();
        let mut stops: Vec<u64> = stops.iter().map(|share| (share * events as f64) as u64).collect();
        stops.sort_unstable();
        let mut world = new_world(&run);
        for stop in stops {
            world.advance(stop.saturating_sub(world.progress().events));
            world.checkpoint(&file.0, SCENARIO).expect("a checkpoint");
            world = new_world(&run);
            world.resume(&file.0, SCENARIO).expect("the checkpoint");
        }
        let resumed = told(world);
        let same = whole.bytes().zip(resumed.bytes()).take_while(|(a, b)| a == b).count();
        let near = |text: &str| text.get(same.saturating_sub(200)..(same + 100).min(text.len())).map(str::to_owned);
        prop_assert!(resumed == whole, "{:?} became {:?}", near(&whole), near(&resumed));
    }
}

/// A run in its middle, and its checkpoint.
fn written() -> (Run, Temporary) {
    let run = Run::new(multiplane(16, 2), patterns::permutation(16, 400_000, 1));
    let mut world = new_world(&run);
    assert!(world.advance(2_000));
    let file = Temporary::new();
    world.checkpoint(&file.0, SCENARIO).expect("a checkpoint");
    (run, file)
}

fn refusal(run: &Run, file: &Temporary, scenario: u64) -> CheckpointError {
    new_world(run).resume(&file.0, scenario).expect_err("another run's")
}

#[test]
fn a_checkpoint_that_is_cut_or_changed_is_refused() {
    let (run, file) = written();
    let whole = fs::read(&file.0).expect("the file");
    let mut lengths: Vec<_> = (0..60).chain((60..whole.len()).step_by(whole.len() / 50)).collect();
    lengths.push(whole.len() - 1);
    for length in lengths {
        fs::write(&file.0, &whole[..length]).expect("a place for files");
        let error = refusal(&run, &file, SCENARIO);
        assert!(matches!(error, CheckpointError::Damaged | CheckpointError::Foreign), "{length}: {error}");
    }
    for place in (0..whole.len()).step_by(whole.len() / 200) {
        let mut changed = whole.clone();
        changed[place] ^= 4;
        fs::write(&file.0, &changed).expect("a place for files");
        let error = refusal(&run, &file, SCENARIO);
        assert!(matches!(error, CheckpointError::Damaged | CheckpointError::Foreign), "{place}: {error}");
    }
    fs::write(&file.0, [&whole[..], b"more"].concat()).expect("a place for files");
    assert!(matches!(refusal(&run, &file, SCENARIO), CheckpointError::Damaged));
    fs::write(&file.0, b"").expect("a place for files");
    assert!(matches!(refusal(&run, &file, SCENARIO), CheckpointError::Foreign));
}

/// A state that says of itself that it is whole: bytes of it, and its length, are anything.
#[test]
fn a_state_of_any_bytes_is_refused_without_much_memory() {
    const HEADER: usize = 44;
    let (run, file) = written();
    let whole = fs::read(&file.0).expect("the file");
    for (number, state) in [vec![0xFF; 4096], vec![0; 4096], vec![0x7F; 64], Vec::new()].iter().enumerate() {
        let mut bytes = [&whole[..HEADER], state].concat();
        bytes[28..36].copy_from_slice(&(state.len() as u64).to_le_bytes());
        bytes[36..40].copy_from_slice(&crc32fast::hash(state).to_le_bytes());
        let sum = crc32fast::hash(&bytes[..HEADER - 4]);
        bytes[HEADER - 4..HEADER].copy_from_slice(&sum.to_le_bytes());
        fs::write(&file.0, &bytes).expect("a place for files");
        assert!(matches!(refusal(&run, &file, SCENARIO), CheckpointError::Damaged), "{number}");
    }
}

#[test]
fn a_checkpoint_of_another_run_is_refused() {
    let (mut run, file) = written();
    assert!(matches!(refusal(&run, &file, SCENARIO + 1), CheckpointError::Scenario));
    run.threads = 2;
    assert!(matches!(refusal(&run, &file, SCENARIO), CheckpointError::Threads(1, 2)));
    fs::write(&file.0, "name: a scenario, and no checkpoint of one, of any length\n".repeat(9))
        .expect("a place");
    assert!(matches!(refusal(&run, &file, SCENARIO), CheckpointError::Foreign));
}

#[test]
fn what_cannot_be_written_leaves_the_last_checkpoint_as_it_is() {
    let (mut run, file) = written();
    let last = fs::read(&file.0).expect("the file");
    let own = CustomCc(std::sync::Arc::new(|| Box::new(FixedWindow::new(100_000, 4_170))));
    let congestion = MrcCongestion::Custom(own);
    run.transport = TransportConfig::Mrc(MrcConfig { congestion, ..MrcConfig::default() });
    let mut world = new_world(&run);
    assert!(world.advance(2_000));
    let error = world.checkpoint(&file.0, SCENARIO).expect_err("a class of one's own");
    assert!(matches!(error, CheckpointError::Unsupported(_)), "{error}");
    assert_eq!(fs::read(&file.0).expect("the file"), last);
    let name = file.0.file_name().expect("a name").to_string_lossy().into_owned();
    let beside = fs::read_dir(std::env::temp_dir()).expect("the directory").flatten();
    assert_eq!(beside.filter(|entry| entry.file_name().to_string_lossy().starts_with(&name)).count(), 1);
}
