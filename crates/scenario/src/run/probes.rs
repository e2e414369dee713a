//! Probes of hosts to themselves over their T0s and T1s, beside the traffic of a run (docs/operations.md, "Probes").

use openmrc_transport::loops::MAX_RATE;
use openmrc_transport::{Span, Time};

use super::{NetworkConfig, Routing, RunError};

/// A loop of a host.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ProbeLoop {
    /// Plane, and port of the host.
    pub plane: u32,
    /// Uplink of the T0; `None`: the loop turns at the T0.
    pub uplink: Option<u32>,
}

/// A host is scheduled away: it sends and counts nothing meanwhile. What comes waits for it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stall {
    /// The host.
    pub host: u32,
    /// From when,
    pub from: Time,
    /// and until when.
    pub until: Time,
}

/// What hosts probe, and how.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ProbeConfig {
    /// By host: its loops. A host without any probes nothing.
    pub loops: Vec<Vec<ProbeLoop>>,
    /// Probes a second of each host.
    pub rate: u32,
    /// Length of an interval for which probes are counted.
    pub interval: Span,
    /// For how long after an interval its probes may come back.
    pub grace: Span,
    /// Hosts that are scheduled away, in the order of time.
    pub stalls: Vec<Stall>,
}

impl ProbeConfig {
    /// Checks it against a network.
    pub(super) fn check(&self, network: &NetworkConfig) -> Result<(), RunError> {
        let range = |name, value: u64, allowed| Err(RunError::Probes { name, value, allowed });
        let shape = network.fabric.shape();
        if network.routing != Routing::SourceRouted {
            let message = "probes name their ways: `source`";
            return Err(RunError::Engine { field: &["network", "routing"], message });
        }
        if !(1..=MAX_RATE).contains(&self.rate) {
            return range("rate", self.rate.into(), "1 to 100000 a second");
        }
        if self.interval < Span::from_millis(1) {
            return range("interval, ns", self.interval.as_nanos(), "at least 1000000");
        }
        // A probe in flight has 16 bits for its number in the interval.
        if f64::from(self.rate) * self.interval.as_secs_f64() > 60_000.0 {
            return range("rate", self.rate.into(), "at most 60000 probes in an interval");
        }
        if self.loops.len() > shape.hosts as usize {
            return range("hosts", self.loops.len() as u64, "at most the hosts of the fabric");
        }
        for each in self.loops.iter().flatten() {
            if each.plane >= shape.planes {
                return range("plane", each.plane.into(), "a plane of the fabric");
            }
            if let Some(uplink) = each.uplink
                && (shape.tiers < 2 || uplink >= shape.uplinks[0])
            {
                return range("uplink", uplink.into(), "an uplink of a T0");
            }
        }
        if let Some(most) = self.loops.iter().map(Vec::len).max().filter(|&most| most > 65_535) {
            return range("loops of a host", most as u64, "at most 65535");
        }
        if let Some(stall) = self.stalls.iter().find(|stall| stall.host >= shape.hosts) {
            return range("host that stalls", stall.host.into(), "a host of the fabric");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use openmrc_fabric::{Fabric, Sizing};

    fn network() -> NetworkConfig {
        let shape = Sizing::new(16, 2, 2, 8).smallest().expect("a shape");
        NetworkConfig::new(Fabric::new(shape).expect("a fabric"), 100_000_000_000)
    }

    fn probes() -> ProbeConfig {
        ProbeConfig {
            loops: vec![vec![ProbeLoop { plane: 1, uplink: Some(3) }, ProbeLoop { plane: 0, uplink: None }]],
            rate: 500,
            interval: Span::from_millis(250),
            grace: Span::from_millis(500),
            stalls: Vec::new(),
        }
    }

    #[test]
    fn what_does_not_exist_is_refused_by_name() {
        assert_eq!(probes().check(&network()), Ok(()));
        let refused = |change: fn(&mut ProbeConfig)| {
            let mut probes = probes();
            change(&mut probes);
            probes.check(&network()).expect_err("it is wrong").to_string()
        };
        assert!(refused(|probes| probes.rate = 0).starts_with("probes: rate: 0"));
        assert!(refused(|probes| probes.interval = Span::ZERO).starts_with("probes: interval"));
        assert!(refused(|probes| probes.loops[0][0].plane = 2).starts_with("probes: plane: 2"));
        assert!(refused(|probes| probes.loops[0][0].uplink = Some(4)).starts_with("probes: uplink: 4"));
        assert!(refused(|probes| probes.loops = vec![Vec::new(); 17]).starts_with("probes: hosts: 17"));
        assert!(refused(|probes| probes.interval = Span::from_secs(200)).contains("60000"));
        let stall = |probes: &mut ProbeConfig| {
            probes.stalls = vec![Stall { host: 16, from: Time::ZERO, until: Time::ZERO }];
        };
        assert!(refused(stall).starts_with("probes: host that stalls: 16"));
        let ecmp = NetworkConfig { routing: Routing::Ecmp, ..network() };
        assert!(probes().check(&ecmp).is_err());
    }
}
