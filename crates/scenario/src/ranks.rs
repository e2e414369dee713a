//! Hosts that patterns name, and how much patterns send.

use std::collections::HashSet;

use crate::error::ScenarioError;
use crate::numbers::Host;

/// How much a pattern sends, known before it is laid out.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Volume {
    /// Messages; computations count too.
    pub messages: u64,
    /// Connections between different hosts.
    pub connections: u64,
}

impl Volume {
    pub(crate) const fn new(messages: u64, connections: u64) -> Self {
        Volume { messages, connections }
    }
}

/// Hosts that a pattern names, or all of them.
pub(crate) fn members(ranks: Option<&[Host]>, hosts: u32) -> Vec<u32> {
    ranks.map_or_else(|| (0..hosts).collect(), |ranks| ranks.iter().map(|host| host.u32()).collect())
}

/// How many hosts a pattern names, or how many there are.
pub(crate) fn count(ranks: Option<&[Host]>, hosts: u32) -> u64 {
    ranks.map_or(hosts.into(), |ranks| ranks.len() as u64)
}

/// Ordered pairs of different ranks.
pub(crate) fn all_pairs(ranks: u64) -> u64 {
    ranks * ranks.saturating_sub(1)
}

/// Checks that there are two ranks at least, on different hosts.
pub(crate) fn check_ranks(ranks: Option<&[Host]>) -> Result<(), ScenarioError> {
    let Some(ranks) = ranks else { return Ok(()) };
    if ranks.len() < 2 {
        return Err(ScenarioError::at("ranks", format!("{} are too few: at least 2", ranks.len())));
    }
    different("ranks", ranks)
}

/// Checks that no host is named twice.
pub(crate) fn different(field: &'static str, hosts: &[Host]) -> Result<(), ScenarioError> {
    let mut seen = HashSet::new();
    match hosts.iter().position(|host| !seen.insert(host.get())) {
        Some(index) => {
            let message = format!("h{} is named twice", hosts[index].get());
            Err(ScenarioError::at(index, message).inside(field))
        }
        None => Ok(()),
    }
}

/// Checks that the ranks that are named exist.
pub(crate) fn ranks_exist(ranks: Option<&[Host]>, hosts: u32) -> Result<(), ScenarioError> {
    all_exist("ranks", ranks.unwrap_or_default(), hosts)
}

/// Checks that all of these hosts exist.
pub(crate) fn all_exist(field: &'static str, named: &[Host], hosts: u32) -> Result<(), ScenarioError> {
    for (index, &host) in named.iter().enumerate() {
        exists(host, hosts).map_err(|error| error.inside(index).inside(field))?;
    }
    Ok(())
}

/// Checks that a host exists.
pub(crate) fn exists(host: Host, hosts: u32) -> Result<(), ScenarioError> {
    if host.u32() < hosts {
        return Ok(());
    }
    let (host, last) = (host.get(), hosts - 1);
    Err(ScenarioError::new(format!("host h{host} does not exist, the fabric has h0 to h{last}")))
}
