//! Measurements for the tests of behaviour.

use openmrc_transport::{EvChange, PathId, Span, Time};

use super::{Subject, World};

/// Payload bytes per second that each flow delivers between two moments.
pub fn goodput<T: Subject>(world: &mut World<T>, from: Time, to: Time) -> Vec<f64> {
    world.run_until(from);
    let before: Vec<u64> = world.flows.iter().map(|f| f.counters.placed_bytes).collect();
    world.run_until(to);
    let seconds = to.since(from).as_secs_f64();
    world.flows.iter().zip(before).map(|(f, b)| (f.counters.placed_bytes - b) as f64 / seconds).collect()
}

/// Jain's index: 1 if all shares are equal, 1/n if one share is everything.
pub fn jain(shares: &[f64]) -> f64 {
    let sum: f64 = shares.iter().sum();
    let squares: f64 = shares.iter().map(|x| x * x).sum();
    sum * sum / (shares.len() as f64 * squares)
}

/// Payload bytes per second that one port can carry in full packets.
pub fn line_rate(rate: u64, path_mtu: u16) -> f64 {
    // Ethernet with preamble and gap 38, IPv6 40, UDP 8, BTH 12, METH 4, TSETH 4, RETH 16, iCRC 4.
    let overhead = 38 + 40 + 8 + 12 + 4 + 4 + 16 + 4;
    rate as f64 / 8.0 * f64::from(path_mtu) / (f64::from(path_mtu) + f64::from(overhead))
}

/// Time at which an end first condemned a path after `from`.
pub fn condemned_at<T: Subject>(world: &World<T>, end: usize, path: PathId, from: Time) -> Option<Time> {
    change_at(world, end, path, from, EvChange::AssumedBad)
}

/// Time at which an end first restored a path after `from`.
pub fn returned_at<T: Subject>(world: &World<T>, end: usize, path: PathId, from: Time) -> Option<Time> {
    change_at(world, end, path, from, EvChange::Good)
}

fn change_at<T: Subject>(
    world: &World<T>,
    end: usize,
    path: PathId,
    from: Time,
    change: EvChange,
) -> Option<Time> {
    let mut events = world.ev_events(end).iter();
    events.find(|(t, e)| *t >= from && e.path == path && e.change == change).map(|(t, _)| *t)
}

/// `n` microseconds after the beginning.
pub const fn micros(n: u64) -> Time {
    Time(Span::from_micros(n).0)
}

/// `n` milliseconds after the beginning.
pub const fn millis(n: u64) -> Time {
    Time(Span::from_millis(n).0)
}
