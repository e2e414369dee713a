//! A recorded job, replayed: Chakra execution traces, one file for each rank.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};

use openmrc_transport::Span;
use openmrc_workload::{
    Task, Workload, chakra,
    replay::{self, Groups},
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::error::ScenarioError;
use crate::files;
use crate::numbers::{Host, Micros};
use crate::ranks::{Volume, check_ranks, count, members, ranks_exist};

/// A recorded job: computations take the time that they took, communication what the fabric gives it.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Recorded {
    /// When the pattern begins.
    #[serde(default)]
    pub start_us: Micros,
    /// Prefix of the names of the files: `job` of `job.0.et`, `job.1.et` and so on, and of `job.groups.json`.
    pub file: String,
    /// Hosts in rank order; if left open the first hosts, one for each rank.
    #[serde(default)]
    pub ranks: Option<Vec<Host>>,
    /// What the files say.
    #[serde(skip)]
    job: Workload,
}

impl Recorded {
    pub(crate) fn check(&self) -> Result<(), ScenarioError> {
        check_ranks(self.ranks.as_deref())
    }

    pub(crate) fn check_fit(&self, hosts: u32) -> Result<(), ScenarioError> {
        ranks_exist(self.ranks.as_deref(), hosts)
    }

    /// The same with what its files say, between hosts of a fabric of this many.
    ///
    /// # Errors
    /// If a file cannot be read or is no trace, or the ranks do not agree; the message names the file.
    pub(crate) fn with_file(mut self, hosts: u32) -> Result<Self, ScenarioError> {
        self.check_fit(hosts)?;
        let there = count(self.ranks.as_deref(), hosts);
        let hosts = members(self.ranks.as_deref(), hosts);
        self.job = read(&self.file, there, &hosts).map_err(|message| ScenarioError {
            in_file: true,
            ..ScenarioError::at("file", format!("{}{message}", self.file))
        })?;
        Ok(self)
    }

    pub(crate) fn volume(&self) -> Volume {
        let connections = self.job.connections.iter().filter(|ends| ends.src != ends.dst).count();
        Volume::new(self.job.tasks.len() as u64, connections as u64)
    }

    /// The longest computation of a rank.
    pub(crate) fn computation_us(&self) -> f64 {
        let mut by_host: HashMap<u32, u64> = HashMap::new();
        for task in &self.job.tasks {
            if let Task::Compute { host, takes, .. } = *task {
                *by_host.entry(host).or_default() += takes.0;
            }
        }
        by_host.values().map(|&takes| Span(takes).as_secs_f64() * 1e6).fold(0.0, f64::max)
    }

    /// Nodes of all ranks.
    pub(crate) fn nodes(&self) -> usize {
        self.job.nodes.len()
    }

    /// Hosts that send.
    pub(crate) fn senders(&self) -> f64 {
        let between = self.job.connections.iter().filter(|ends| ends.src != ends.dst);
        between.map(|ends| ends.src).collect::<HashSet<_>>().len() as f64
    }

    /// Bytes of the longest message.
    pub(crate) fn longest(&self) -> u32 {
        self.job.tasks.iter().filter_map(Task::bytes).max().unwrap_or(0)
    }

    pub(crate) fn workload(&self) -> Workload {
        self.job.clone()
    }
}

/// Reads the traces. Errors go on after the name that the scenario gives.
fn read(prefix: &str, most: u64, hosts: &[u32]) -> Result<Workload, String> {
    let file = |suffix: &str| PathBuf::from(format!("{prefix}.{suffix}"));
    let mut traces = Vec::new();
    while file(&format!("{}.et", traces.len())).exists() || traces.is_empty() {
        let suffix = format!("{}.et", traces.len());
        let bytes = files::read(&file(&suffix)).map_err(|what| format!(".{suffix}: {what}"))?;
        traces.push(chakra::read(&bytes).map_err(|what| format!(".{suffix}: {what}"))?);
    }
    if traces.len() as u64 > most {
        return Err(format!(": it has {} ranks, but there are {most} hosts", traces.len()));
    }
    let groups =
        groups(&file("groups.json"), traces.len()).map_err(|what| format!(".groups.json: {what}"))?;
    replay::workload(&traces, &groups, &hosts[..traces.len()]).map_err(|what| format!(": {what}"))
}

/// Names of groups, and their ranks; there need be no such file.
fn groups(path: &Path, ranks: usize) -> Result<Groups, String> {
    if !path.exists() {
        return Ok(Groups::new());
    }
    let text = files::read_text(path)?;
    let groups: Groups = serde_json::from_str(&text).map_err(|error| error.to_string())?;
    for (name, members) in &groups {
        let mut sorted = members.clone();
        sorted.sort_unstable();
        sorted.dedup();
        if sorted.len() != members.len() || sorted.last().is_none_or(|&last| last >= ranks) {
            return Err(format!("group {name:?} is no list of different ranks from 0 to {}", ranks - 1));
        }
    }
    Ok(groups)
}
