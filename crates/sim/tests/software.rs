//! Hosts whose NIC is software: many senders into one receiver with small receive buffers end as at the endpoint.

mod common;

use common::*;
use openmrc_scenario::{OwnParts, Results, Run, Scenario};
use openmrc_transport::Time;

/// `senders` hosts write `mib` MiB each to one whose ports have buffers of an unprivileged socket.
fn incast(senders: u32, mib: u64) -> Run {
    let from: Vec<u32> = (1..=senders).collect();
    let text = format!(
        r#"{{"topology": {{"hosts": 24, "planes": 8, "tiers": 1, "radix": 24}},
            "network": {{"software": {{}},
                         "switch": {{"overflow": "drop", "trim_bytes": 100000000, "trim_last_hop_bytes": 100000000,
                                    "ecn": false}}}},
            "transport": {{"kind": "mrc", "fixed_window": 1048576}},
            "traffic": [{{"kind": "incast", "senders": {from:?}, "receiver": 0, "bytes": {}}}]}}"#,
        mib << 20
    );
    let checked = Scenario::from_json(&text).and_then(Scenario::checked).expect("a scenario");
    checked.build(OwnParts::default()).expect("a run")
}

fn goodput(senders: u32, mib: u64) -> (f64, Results) {
    let results = run(&incast(senders, mib));
    assert!(results.messages.iter().all(|m| m.completed != Time::NEVER), "{:?}", results.totals);
    let last = results.messages.iter().map(|m| m.delivered.0).max().unwrap_or(0);
    (f64::from(senders) * (mib << 20) as f64 * 8e3 / last as f64, results)
}

#[test]
fn many_senders_into_small_receive_buffers_share_the_receiver_and_condemn_nothing() {
    let (alone, _) = goodput(1, 64);
    let (together, many) = goodput(16, 64);
    assert!(together >= 0.7 * alone, "{together:.2} of {alone:.2} Gb/s");
    let totals = &many.totals.hosts;
    assert!(totals.overflowed > 0, "buffers that nothing overruns prove nothing");
    assert_eq!((totals.condemned, totals.fatal), (0, 0), "{totals:?}");
    // All began at once: who had a larger share ended earlier.
    let ended: Vec<_> = many.messages.iter().map(|m| m.delivered.0 as f64).collect();
    let mean = ended.iter().sum::<f64>() / ended.len() as f64;
    assert!(ended.iter().all(|end| (end / mean - 1.0).abs() < 0.2), "{ended:?}");
    // Senders find their shares at the start: sixteen times as much loses little more.
    let (_, few) = goodput(16, 4);
    let (begin, whole) = (few.totals.hosts.overflowed, totals.overflowed);
    assert!(whole < 2 * begin, "{begin} dropped in the first sixteenth, {whole} in all");
}

#[test]
fn hosts_in_software_speak_mrc() {
    let text = r#"{"topology": {"hosts": 4, "radix": 4}, "network": {"software": {}}, "transport": {"kind": "uet"},
                   "traffic": [{"kind": "permutation", "bytes": 1}]}"#;
    let error = Scenario::from_json(text).expect_err("UET in software");
    assert!(error.to_string().contains("network.software"), "{error}");
}
