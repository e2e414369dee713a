//! Collectives against what their algorithms need at least.

mod common;

use common::{all_delivered, last_delivery, multiplane, run};
use openmrc_schedule::{Algorithm, Shape};
use openmrc_sim::{Scenario, Workload, collectives};
use openmrc_transport::Time;

#[test]
fn a_ring_all_reduce_sends_2_n_minus_1_chunks_a_rank_each_after_the_one_before() {
    let network = multiplane(16, 4);
    let ranks: Vec<u32> = (0..16).collect();
    let bytes = 16 << 20;
    let workload = collectives::ring_all_reduce(&ranks, bytes);
    assert_eq!(workload.bytes(), 2 * 15 * bytes);
    let chunk = common::ideal(&network, 0, bytes / 16);
    let results = run(&Scenario::new(network, workload.clone()));
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
        let results = run(&Scenario::new(multiplane(16, 4), workload.clone()));
        assert!(all_delivered(&results), "{name}");
        for &(message, after) in &workload.dependencies {
            let (m, a) = (results.messages[message as usize], results.messages[after as usize]);
            assert!(m.posted >= a.delivered, "{name}: message {message} after {after}");
        }
    }
}
