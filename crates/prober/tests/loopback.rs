//! A prober on the loopback interface: a path to its own address brings probes back, one without a route loses them.
//! Labs with switches are in tests/lab/test_probes.py.

use std::net::Ipv6Addr;
use std::time::Duration;

use openmrc_prober::{Closed, Config, Count, Error, Loop, Prober};
use openmrc_transport::loops::MAX_RATE;

/// An address for documentation, which no host has and no route leads to by the loopback interface.
const NOWHERE: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1);
const HERE: Ipv6Addr = Ipv6Addr::LOCALHOST;

fn config(address: Ipv6Addr, paths: &[Ipv6Addr]) -> Config {
    Config {
        loops: paths.iter().map(|&path| Loop { address, path }).collect(),
        rate: 2_000,
        traffic_class: 46 << 2,
        interval: Duration::from_millis(20),
        grace: Duration::from_millis(500),
    }
}

/// `None`, and a message, where the process may not open raw sockets or there is no IPv6.
fn opened(config: &Config) -> Option<Prober> {
    match Prober::open(config) {
        Ok(prober) => Some(prober),
        Err(error @ (Error::Privilege | Error::Address(_))) => {
            println!("skipped: {error}");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

/// Takes closed intervals until `enough`.
fn taken(prober: &Prober, enough: impl Fn(&[Closed]) -> bool) -> Vec<Closed> {
    let mut closed = Vec::new();
    while !enough(&closed) {
        std::thread::sleep(Duration::from_millis(5));
        closed.extend(prober.take().unwrap());
    }
    closed
}

fn sum(closed: &[Closed], index: usize) -> Count {
    closed.iter().map(|interval| interval.counts[index]).fold(Count::default(), |sum, count| Count {
        sent: sum.sent + count.sent,
        received: sum.received + count.received,
    })
}

/// Whether a thread of this process has the prober's name.
fn a_prober_runs() -> bool {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let names = tasks.filter_map(|task| std::fs::read_to_string(task.unwrap().path().join("comm")).ok());
    names.into_iter().any(|name| name.trim_end() == "openmrc-prober")
}

/// Waits until the thread has left the list of the process, soon after it has been joined.
fn await_end() {
    let gone = (0..4_000).any(|_| {
        std::thread::sleep(Duration::from_millis(5));
        !a_prober_runs()
    });
    assert!(gone, "the prober's thread goes on");
}

#[test]
fn what_cannot_be_probed_is_refused_with_its_reason() {
    let refused = |config: &Config| Prober::open(config).err();
    assert!(matches!(refused(&config(HERE, &[])), Some(Error::NoLoops)));
    // The first thing wrong is named; an address that no interface has is looked for last.
    let other = config(NOWHERE, &[NOWHERE]);
    for (rate, right) in [(0, false), (1, true), (MAX_RATE, true), (MAX_RATE + 1, false)] {
        let error = refused(&Config { rate, ..other.clone() });
        match right {
            true => assert!(matches!(error, Some(Error::Address(NOWHERE))), "{rate}: {error:?}"),
            false => assert!(matches!(error, Some(Error::Rate(told)) if told == rate), "{rate}: {error:?}"),
        }
    }
    for (micros, right) in [(999, false), (1_000, true)] {
        let error = refused(&Config { interval: Duration::from_micros(micros), ..other.clone() });
        match right {
            true => assert!(matches!(error, Some(Error::Address(NOWHERE))), "{micros} us: {error:?}"),
            false => assert!(matches!(error, Some(Error::Interval)), "{micros} us: {error:?}"),
        }
    }
}

/// One test, as it counts the threads of its process; those of the other tests end soon.
#[test]
fn probes_come_back_or_are_lost_and_the_thread_ends_with_its_prober() {
    let Some(mut prober) = opened(&config(HERE, &[HERE, NOWHERE, HERE])) else { return };
    let closed = taken(&prober, |closed| (0..3).all(|index| sum(closed, index).sent >= 50));
    assert!(a_prober_runs());
    let counts = [0, 1, 2].map(|index| sum(&closed, index));
    assert_eq!(counts.map(|count| count.received), [counts[0].sent, 0, counts[2].sent], "{counts:?}");
    for pair in closed.windows(2) {
        assert_eq!(pair[1].interval, pair[0].interval + 1, "each interval is taken once");
    }
    let totals = prober.totals();
    let (sent, received) = counts.iter().fold((0, 0), |(sent, received), count| {
        (sent + u64::from(count.sent), received + u64::from(count.received))
    });
    assert!(totals.sent >= sent && totals.received >= received, "{totals:?}");
    assert_eq!((totals.late, totals.repeated, totals.foreign, totals.unsent), (0, 0, 0, 0), "{totals:?}");
    prober.close();
    await_end();
    drop(prober);

    // Who does not take them loses the oldest.
    let mut short = config(HERE, &[HERE]);
    (short.interval, short.grace) = (Duration::from_millis(1), Duration::from_millis(1));
    let prober = opened(&short).unwrap();
    while prober.totals().sent < 1_000 {
        std::thread::sleep(Duration::from_millis(5));
    }
    let kept = prober.take().unwrap();
    assert_eq!(kept.len(), 64);
    assert!(kept[0].interval > 64, "{}", kept[0].interval);
    drop(prober);
    await_end();
}

#[test]
fn what_comes_back_is_read_during_an_interval_and_not_only_at_its_end() {
    // More probes in an interval than are read at a time, and than the kernel keeps.
    let many = Config { rate: 40_000, interval: Duration::from_millis(500), ..config(HERE, &[HERE]) };
    let Some(prober) = opened(&many) else { return };
    // The counts of an interval are unknown if this process stood still for as long as the queue holds.
    let known = |closed: &[Closed]| closed.iter().any(|interval| interval.counts[0].sent >= 5_000);
    let counts = sum(&taken(&prober, known), 0);
    assert_eq!(counts.received, counts.sent);
}

#[test]
fn an_interval_may_be_longer_than_any_clock() {
    let endless = Config { interval: Duration::MAX, grace: Duration::MAX, ..config(HERE, &[HERE]) };
    let Some(prober) = opened(&endless) else { return };
    std::thread::sleep(Duration::from_millis(50));
    assert_eq!(prober.take().unwrap(), [], "it is not over");
}
