//! Path selectors other than MRC's: which paths a queue pair's packets take, and which planes.

use std::sync::{Arc, Mutex};

use openmrc_transport::mrc::{
    CcProfile, Choice, CustomSelector, LoadBalancing, PathConfig, PathModel, PathSelector, QpConfig,
    QueuePair,
};
use openmrc_transport::{EvProfile, PathEntry, PortSet, Span, Time, Transport as _, WorkRequest};
use openmrc_wire::Ev;

const PLANES: usize = 4;
const PATHS: usize = 64;

/// A queue pair that has `packets` packets to send.
fn sender(load_balancing: LoadBalancing, packets: u32) -> QueuePair {
    let path = |i: usize| PathEntry { ev: Ev(i as u32), port: (i % PLANES) as u8 };
    let profile = Arc::new(EvProfile::new(&(0..PATHS).map(path).collect::<Vec<_>>()).unwrap());
    let model = PathModel::new(Span::from_micros(10), true);
    let paths =
        PathConfig { active: PATHS as u16, backup: 0, load_balancing, ..PathConfig::new(profile, model) };
    let config = QpConfig::new(1, 2, paths, Arc::new(CcProfile::FixedWindow(1 << 40)));
    let mut qp = QueuePair::new(Time::ZERO, &QpConfig { path_mtu: 256, ..config }).unwrap();
    let all = PortSet::first(PLANES);
    qp.set_ports_up(Time::ZERO, all, all);
    let len = packets * 256;
    let wr = WorkRequest { handle: 0, len, remote_va: 0, rkey: 0, imm: None, solicited: false };
    qp.post_send(Time::ZERO, wr).unwrap();
    qp
}

/// How many of the next `packets` packets take each entropy value. Those of plane 0 are 0, 4, 8...
fn taken(qp: &mut QueuePair, free: PortSet, packets: usize) -> Vec<usize> {
    let mut counts = vec![0; PATHS];
    for _ in 0..packets {
        let transmit = qp.poll_transmit(Time::ZERO, free).unwrap();
        assert!(free.contains(transmit.port) && transmit.port == (transmit.ev.0 as usize % PLANES) as u8);
        counts[transmit.ev.0 as usize] += 1;
    }
    counts
}

fn of_plane(counts: &[usize], plane: usize) -> usize {
    counts.iter().skip(plane).step_by(PLANES).sum()
}

#[test]
fn every_selector_loads_planes_alike_and_uses_only_ports_that_are_free() {
    for how in [LoadBalancing::Oblivious, LoadBalancing::Reps, LoadBalancing::EvSkip] {
        let mut qp = sender(how.clone(), 1000);
        let counts = taken(&mut qp, PortSet::first(PLANES), 400);
        assert!((0..PLANES).all(|plane| of_plane(&counts, plane) == 100), "{how:?}: {counts:?}");
        let counts = taken(&mut qp, PortSet::first(2), 100);
        assert_eq!((of_plane(&counts, 2), of_plane(&counts, 3)), (0, 0), "{how:?}");
    }
}

#[test]
fn in_turn_every_path_is_used_equally_often_and_at_random_it_is_not() {
    let counts = taken(&mut sender(LoadBalancing::EvSkip, 1000), PortSet::first(PLANES), 10 * PATHS);
    assert_eq!(counts, [10; PATHS]);
    for how in [LoadBalancing::Oblivious, LoadBalancing::Reps] {
        let counts = taken(&mut sender(how.clone(), 1000), PortSet::first(PLANES), 12 * PATHS);
        // A plane's 192 packets choose among 16 paths: twelve each, and never six standard deviations more.
        assert!(counts.iter().all(|count| *count < 33), "{how:?}: {counts:?}");
        assert!(counts.iter().filter(|count| **count != 12).count() > PATHS / 2, "{how:?}: {counts:?}");
    }
}

/// What a selector was asked, and its answers.
type Asked = Vec<(Time, PortSet, Option<u16>)>;

/// Takes the paths of its list from last to first, and lets every third packet wait.
struct Backwards {
    next: u16,
    asked: Arc<Mutex<Asked>>,
}

impl PathSelector for Backwards {
    fn select(&mut self, choice: &Choice) -> Option<u16> {
        let mut asked = self.asked.lock().unwrap();
        let waits = asked.len() % 3 == 2;
        self.next -= u16::from(!waits);
        let answer = (!waits).then_some(self.next);
        asked.push((choice.now, choice.free, answer));
        answer
    }
    fn acked(&mut self, _: u16) {}
    fn congested(&mut self, _: u16) {}
    fn lost(&mut self, _: u16) {}
}

#[test]
fn a_selector_of_ones_own_is_asked_for_each_packet_and_obeyed() {
    let asked = Arc::new(Mutex::new(Asked::new()));
    let ports_of_list = Arc::new(Mutex::new(Vec::new()));
    let (for_queue_pairs, list) = (Arc::clone(&asked), Arc::clone(&ports_of_list));
    let make = move |ports: &[u8], _seed: u64| -> Box<dyn PathSelector> {
        *list.lock().unwrap() = ports.to_vec();
        Box::new(Backwards { next: PATHS as u16, asked: Arc::clone(&for_queue_pairs) })
    };
    let mut qp = sender(LoadBalancing::Custom(CustomSelector(Arc::new(make))), 1000);
    let all = PortSet::first(PLANES);
    let sent: Vec<_> = (0..90).map(|at| qp.poll_transmit(Time(at), all)).collect();
    let (asked, ports) = (asked.lock().unwrap(), ports_of_list.lock().unwrap());
    assert_eq!((asked.len(), ports.len()), (90, PATHS));
    let mut used = std::collections::HashSet::new();
    for (at, (transmit, &(now, free, answer))) in sent.iter().zip(asked.iter()).enumerate() {
        assert_eq!((now, free), (Time(at as u64), all));
        assert_eq!(transmit.map(|transmit| transmit.port), answer.map(|index| ports[usize::from(index)]));
        // Each place of the list is a path of its own.
        assert!(transmit.is_none_or(|transmit| used.insert(transmit.path)));
    }
    assert_eq!(used.len(), 60);
}
