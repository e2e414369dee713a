//! Times against closed forms, and what a run must keep to.

mod common;

use common::{laid_out, last_us, results, scenario, with_fault, with_seed};
use openmrc_flow::FlowWorld;
use openmrc_scenario::Engine;
use openmrc_scenario::run::NetworkConfig;
use openmrc_transport::Time;
use serde_json::{Value, json};

fn flows(flows: &Value) -> Value {
    scenario(json!({"kind": "flows", "flows": flows}))
}

/// The time in which one host sends to another over idle links, all planes busy from the first moment.
fn least_us(network: &NetworkConfig, turn: u8, bytes: u64) -> f64 {
    let packets = bytes.div_ceil(network.path_mtu.into());
    let full = u64::from(network.full_packet_bytes());
    let rounds = packets.div_ceil(network.fabric.shape().planes.into());
    let least = network.serialization(full).times(rounds - 1) + network.one_way_over(turn, full as u32);
    least.0 as f64 * 1e-6
}

#[test]
fn one_message_takes_its_bytes_and_its_way() {
    for (dst, turn) in [(1, 0), (63, 1)] {
        for bytes in [4096, 65_536, 1 << 20, 1 << 26] {
            let run = laid_out(&flows(&json!([[0, dst, bytes, 0]]))).unwrap();
            let (took, least) = (last_us(&results::<FlowWorld>(&run)), least_us(&run.network, turn, bytes));
            // The rest is told to the nanosecond; where paths meet a message may wait for its own packets.
            assert!(
                took >= least - 0.001 && took <= least * 1.01 + 0.01,
                "{bytes} to h{dst}: {took}, {least}"
            );
        }
    }
}

#[test]
fn senders_share_the_port_of_their_receiver() {
    for senders in 2u64..=4 {
        let all: Vec<Value> = (0..senders).map(|i| json!([8 + i, 0, 16 << 20, 0])).collect();
        let run = laid_out(&flows(&all.into())).unwrap();
        let least = least_us(&run.network, 1, senders * (16 << 20));
        let results = results::<FlowWorld>(&run);
        let first = results.messages.iter().map(|m| m.delivered.0).min().unwrap() as f64 * 1e-6;
        let took = last_us(&results);
        assert!(took >= least && took <= least * 1.02, "{senders}: {took}, at best {least}");
        assert!(first > 0.99 * took, "they are equal");
    }
}

#[test]
fn messages_of_one_connection_follow_each_other() {
    let one = laid_out(&flows(&json!([[0, 8, 32 << 20, 0]]))).unwrap();
    let mut two = laid_out(&flows(&json!([[0, 8, 16 << 20, 0], [0, 8, 16 << 20, 0]]))).unwrap();
    two.workload.tasks[1] = two.workload.tasks[0];
    let (one, two) = (results::<FlowWorld>(&one), results::<FlowWorld>(&two));
    let half = last_us(&one) / 2.0;
    assert!((two.messages[0].delivered.0 as f64 * 1e-6 - half).abs() < 5.0, "{two:?}");
    assert!((last_us(&two) - last_us(&one)).abs() < 1.0, "{two:?}");
}

#[test]
fn a_ring_all_reduce_takes_2_n_minus_1_steps() {
    let made = scenario(
        json!({"kind": "collective", "operation": "ring-all-reduce", "bytes": 64 << 20, "ranks": [0, 1, 2, 3]}),
    );
    let run = laid_out(&made).unwrap();
    let least = 6.0 * least_us(&run.network, 0, 16 << 20);
    let took = last_us(&results::<FlowWorld>(&run));
    // Feedback shares the ports: 1.2 %.
    assert!(took > least * 1.005 && took < least * 1.02, "{took}, at best {least}");
}

#[test]
fn uplinks_that_carry_half_take_twice_as_long() {
    let mut made = scenario(json!({"kind": "flows", "flows":
        (0..32).map(|i| json!([i, 32 + i, 16 << 20, 0])).collect::<Vec<_>>()}));
    made["topology"] = json!({"hosts": 64, "tiers": 2, "radix": 48, "planes": 4, "hosts_per_t0": 32,
        "oversubscription": 2, "nic": {"rate": 400_000_000_000u64}});
    let run = laid_out(&made).unwrap();
    let (took, least) = (last_us(&results::<FlowWorld>(&run)), 2.0 * least_us(&run.network, 1, 16 << 20));
    assert!(took > least * 0.98 && took < least * 1.02, "{took}, {least}");
}

#[test]
fn losing_a_port_costs_its_share() {
    let made = flows(&json!([[0, 8, 64 << 20, 0]]));
    let whole = last_us(&results::<FlowWorld>(&laid_out(&made).unwrap()));
    for port in ["h0:p1", "h8:p2"] {
        let hit = with_fault(made.clone(), json!({"kind": "nic-port", "targets": [port], "at_us": 0}));
        let took = last_us(&results::<FlowWorld>(&laid_out(&hit).unwrap()));
        assert!((took / whole - 4.0 / 3.0).abs() < 0.01, "{port}: {took}, without {whole}");
    }
}

#[test]
fn a_host_without_a_port_waits_for_the_repair() {
    let made = flows(&json!([[0, 8, 16 << 20, 0]]));
    let whole = last_us(&results::<FlowWorld>(&laid_out(&made).unwrap()));
    let ports = ["h0:p0", "h0:p1", "h0:p2", "h0:p3"];
    for at in [0, 100] {
        let hit = with_fault(
            made.clone(),
            json!({"kind": "down", "targets": ports, "at_us": at, "until_us": at + 1000}),
        );
        let took = last_us(&results::<FlowWorld>(&laid_out(&hit).unwrap()));
        assert!((took - whole - 1000.0).abs() < 20.0, "{took}, without {whole}");
        let mut ended = hit.clone();
        ended["limit_us"] = json!(900);
        let results = results::<FlowWorld>(&laid_out(&ended).unwrap());
        assert_eq!((results.end, results.messages[0].delivered), (Time(900_000_000), Time::NEVER));
    }
}

#[test]
fn results_do_not_depend_on_the_stretches() {
    let made = with_fault(
        scenario(json!({"kind": "collective", "operation": "all-to-all", "bytes": 64 << 10,
            "ranks": (0..24).collect::<Vec<_>>()})),
        json!({"kind": "down", "targets": ["p0/t1-0"], "at_us": 10, "until_us": 20}),
    );
    let run = with_seed(&made, 7);
    let mut engine = FlowWorld::new(&run).unwrap();
    while engine.advance(3) {}
    assert_eq!(engine.results(), results::<FlowWorld>(&run));
    assert_ne!(results::<FlowWorld>(&with_seed(&made, 8)), results::<FlowWorld>(&run), "a seed decides");
    let progress = engine.progress();
    assert_eq!((progress.finished, progress.messages), (run.workload.tasks.len(), run.workload.tasks.len()));
}
