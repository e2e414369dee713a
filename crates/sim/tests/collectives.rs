//! Collectives against what their algorithms need at least.

mod common;

use common::{all_delivered, last_delivery, multiplane, run};
use openmrc_scenario::Run;
use openmrc_schedule::{Algorithm, Exchange, Program, Shape};
use openmrc_transport::Time;
use openmrc_workload::{Workload, collectives};

#[test]
fn a_ring_all_reduce_sends_2_n_minus_1_chunks_a_rank_each_after_the_one_before() {
    let network = multiplane(16, 4);
    let ranks: Vec<u32> = (0..16).collect();
    let bytes = 16 << 20;
    let workload = collectives::ring_all_reduce(&ranks, bytes);
    assert_eq!(workload.bytes(), 2 * 15 * bytes);
    let chunk = common::ideal(&network, 0, bytes / 16);
    let results = run(&Run::new(network, workload.clone()));
    assert!(all_delivered(&results));
    let took = last_delivery(&results).since(Time::ZERO);
    assert!(took.0 >= chunk.0 * 30, "{took:?}: thirty steps take at least {:?}", chunk.times(30));
    assert!(took.0 * 100 <= chunk.0 * 30 * 130, "{took:?}: thirty steps take at least {:?}", chunk.times(30));
    for &(message, after) in &workload.dependencies {
        assert!(results.messages[message as usize].posted >= results.messages[after as usize].delivered);
    }
}

#[test]
fn every_collective_ends_and_keeps_its_order() {
    let ranks: Vec<u32> = (0..16).rev().collect();
    let of = |shape: Shape, algorithm| collectives::operation(&shape, algorithm, &ranks);
    let all: [(&str, Workload, u64); 6] = [
        ("ring pass", of(Shape::AllGather { counts: vec![1 << 16; 16] }, Algorithm::Ring), 15 << 20),
        ("doubling", of(Shape::AllReduce { count: 1 << 20 }, Algorithm::Doubling), 64 << 20),
        ("halving", of(Shape::AllReduce { count: 1 << 20 }, Algorithm::Halving), 30 << 20),
        ("tree", of(Shape::AllReduce { count: 1 << 20 }, Algorithm::Tree), 30 << 20),
        ("all-to-all", collectives::all_to_all(&ranks, 1 << 16), 240 << 16),
        ("pipeline", collectives::pipeline(&ranks, 1 << 18, 8), 120 << 18),
    ];
    for (name, workload, bytes) in all {
        assert_eq!(workload.bytes(), bytes, "{name}");
        let results = run(&Run::new(multiplane(16, 4), workload.clone()));
        assert!(all_delivered(&results), "{name}");
        for &(message, after) in &workload.dependencies {
            let (m, a) = (results.messages[message as usize], results.messages[after as usize]);
            assert!(m.posted >= a.delivered, "{name}: message {message} after {after}");
        }
    }
}

/// Every operation of `rank` with sizes in bytes that no number of ranks divides; some parts are empty.
fn shapes(rank: usize, ranks: usize) -> Vec<Shape> {
    let counts: Vec<usize> = (0..ranks).map(|r| [5, 0, 70_001, 1][r % 4]).collect();
    let between = |from: usize, to: usize| [3, 700, 0, 66_001][(3 * from + to) % 4];
    let root = ranks / 2;
    let mut shapes: Vec<Shape> =
        [1, 1003, 300_007].into_iter().map(|count| Shape::AllReduce { count }).collect();
    shapes.extend([
        Shape::ReduceScatter { counts: counts.clone() },
        Shape::AllGather { counts },
        Shape::AllToAll {
            send: (0..ranks).map(|to| between(rank, to)).collect(),
            recv: (0..ranks).map(|from| between(from, rank)).collect(),
        },
        Shape::Broadcast { root, count: 100_003 },
        Shape::Reduce { root, count: 100_003 },
        Shape::Gather { root, count: 1003 },
        Shape::Scatter { root, count: 1003 },
        Shape::Barrier,
    ]);
    shapes
}

/// Simulates an operation; the lengths of the messages from each rank to each, in the order in which they were posted. A
/// message is posted after all that its rank had to receive before.
fn simulated(programs: &[Program], slot: u64) -> Vec<Vec<Vec<u64>>> {
    let ranks = programs.len();
    let hosts: Vec<u32> = (0..ranks as u32).collect();
    let exchange = Exchange::new(ranks, |rank| programs[rank].clone()).unwrap();
    let workload = collectives::workload(&exchange, &hosts, slot);
    let results = run(&Run::new(multiplane(16, 2), workload.clone()));
    assert!(all_delivered(&results));
    for &(message, after) in &workload.dependencies {
        assert!(results.messages[message as usize].posted >= results.messages[after as usize].delivered);
    }
    let mut posted: Vec<usize> = (0..results.messages.len()).collect();
    posted.sort_by_key(|&message| results.messages[message].posted);
    let mut lens = vec![vec![Vec::new(); ranks]; ranks];
    for message in posted {
        let sent = results.messages[message];
        lens[sent.src as usize][sent.dst as usize].push(u64::from(sent.bytes));
    }
    lens
}

/// Whether a short message may overtake a long one of its connection on the other plane. What follows from it is then posted
/// first, where a communicator would take the long one first.
fn may_overtake(shape: &Shape) -> bool {
    matches!(shape, Shape::ReduceScatter { .. } | Shape::AllGather { .. })
}

#[test]
fn hosts_send_the_messages_of_the_programs_in_their_order() {
    for ranks in 2..=9 {
        for number in 0..shapes(0, ranks).len() {
            let shape = |rank| shapes(rank, ranks).swap_remove(number);
            for algorithm in Algorithm::ALL.into_iter().filter(|&each| shape(0).allows(each, ranks)) {
                let programs: Vec<Program> =
                    (0..ranks).map(|rank| shape(rank).program(algorithm, rank, ranks, 1)).collect();
                let found = simulated(&programs, u64::MAX);
                let in_slots = simulated(&programs, 30_000);
                for (from, program) in programs.iter().enumerate() {
                    for to in 0..ranks {
                        let sends = program.sends.iter().filter(|send| send.to == to);
                        let mut planned: Vec<u64> = sends.map(|send| send.from.len as u64).collect();
                        let mut posted = found[from][to].clone();
                        if may_overtake(&shape(from)) {
                            planned.sort_unstable();
                            posted.sort_unstable();
                        }
                        let what = format!("{:?} by {algorithm:?}, {from} to {to} of {ranks}", shape(from));
                        assert_eq!(posted, planned, "{what}");
                        let sum = |lens: &[u64]| lens.iter().sum::<u64>();
                        assert_eq!(sum(&in_slots[from][to]), sum(&planned), "{what}");
                    }
                }
            }
        }
    }
}
