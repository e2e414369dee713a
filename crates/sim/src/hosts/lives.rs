//! What ends of connections do beside messages, where the transport asks for it: those that were destroyed answer their
//! peers for a while, and receivers post receives.

use serde::{Deserialize, Serialize};
use std::collections::HashMap;

use openmrc_scenario::LifeTotals;
use openmrc_scenario::run::{LifeConfig, ReceivesConfig};

use super::posts::End;
use crate::checkpoint::{CheckpointError, Reader, Writer};

/// A receiver's end of a connection.
#[derive(Clone, Copy, Serialize, Deserialize)]
struct Receiver {
    /// Messages that have not arrived.
    left: u32,
    /// Receives that are posted.
    receives: u32,
    /// Since when a message waits for one, picoseconds; [`NEVER`] if none does.
    waits_since: u64,
}

/// Instead of the time since when a message waits.
const NEVER: u64 = u64::MAX;

/// The ends of a partition's connections, by connection. Empty without lingering and receives.
#[derive(Default)]
pub(super) struct Lives {
    pub config: LifeConfig,
    receivers: Vec<Receiver>,
    /// By end: whether it was destroyed and answers its peer.
    lingering: Vec<bool>,
    /// By host: how many of them.
    at_host: HashMap<u32, u64>,
}

impl Lives {
    /// Connections with these numbers of messages.
    pub fn new(config: LifeConfig, messages: impl ExactSizeIterator<Item = u32>) -> Self {
        let connections = messages.len();
        let receives = config.receives.map_or(0, |receives| receives.posted);
        let receivers = match config.linger || config.receives.is_some() {
            true => messages.map(|left| Receiver { left, receives, waits_since: NEVER }).collect(),
            false => Vec::new(),
        };
        let lingering = if config.linger { vec![false; 2 * connections] } else { Vec::new() };
        Lives { config, receivers, lingering, at_host: HashMap::new() }
    }

    /// Writes what ends linger and which receives are posted.
    pub fn save(&self, to: &mut Writer<'_>) -> Result<(), CheckpointError> {
        to.put(&self.receivers)?;
        to.put(&self.lingering)?;
        to.put(&self.at_host)
    }

    /// Reads what [`Lives::save`] has written.
    pub fn load(&mut self, from: &mut Reader<'_>) -> Result<(), CheckpointError> {
        from.replace(&mut self.receivers)?;
        from.replace(&mut self.lingering)?;
        self.at_host = from.get()?;
        Ok(())
    }

    // Lingering.

    /// A message has arrived. Returns whether it was the last one of a connection whose ends linger.
    pub fn arrived(&mut self, connection: u32) -> bool {
        let Some(receiver) = self.receivers.get_mut(connection as usize) else { return false };
        receiver.left = receiver.left.saturating_sub(1);
        self.config.linger && receiver.left == 0
    }

    /// Whether an end was destroyed and answers its peer.
    #[inline]
    pub fn lingers(&self, end: End) -> bool {
        self.lingering.get(end.0 as usize).is_some_and(|&lingers| lingers)
    }

    /// An end at a host is destroyed and answers its peer from now on.
    pub fn begin_lingering(&mut self, end: End, host: u32, totals: &mut LifeTotals) {
        self.lingering[end.0 as usize] = true;
        let here = self.at_host.entry(host).or_default();
        *here += 1;
        totals.lingered += 1;
        totals.lingering_most = totals.lingering_most.max(*here);
    }

    /// An end answers its peer no longer.
    pub fn end_lingering(&mut self, end: End, host: u32) {
        self.lingering[end.0 as usize] = false;
        if let Some(here) = self.at_host.get_mut(&host) {
            *here -= 1;
        }
    }

    // Receives.

    /// A message takes a receive, at this time, or waits if there is none. Also returns when a receive is posted because of
    /// it, if one is.
    pub fn take_receive(
        &mut self,
        connection: u32,
        ReceivesConfig { posted, repost, .. }: ReceivesConfig,
        now: u64,
        totals: &mut LifeTotals,
    ) -> (bool, Option<u64>) {
        let Receiver { receives, waits_since, .. } = &mut self.receivers[connection as usize];
        let later = Some(now + repost.0);
        // Without receives in advance one is posted for each message when it has come.
        let on_demand = posted == 0;
        if *receives == 0 {
            let is_new = *waits_since == NEVER;
            if is_new {
                *waits_since = now;
                totals.receive_waits += 1;
            }
            return (false, later.filter(|_| is_new && on_demand));
        }
        *receives -= 1;
        let since = std::mem::replace(waits_since, NEVER);
        if since != NEVER {
            totals.receive_waited_ps += now - since;
        }
        (true, later.filter(|_| !on_demand))
    }

    /// A receive is posted. Returns whether a message waits for it.
    pub fn post_receive(&mut self, connection: u32) -> bool {
        let receiver = &mut self.receivers[connection as usize];
        receiver.receives += 1;
        receiver.waits_since != NEVER
    }
}
