//! What the policy knows of times: kinds of messages as things are at their hosts, paces, and what is recorded.

use openmrc_transport::random::mix;

use crate::memo::{Kind, KindId, Others, Standing, Taken, What};
use crate::policy::Policy;
use crate::traffic::{Message, Passing, Row, Way};

/// Messages in a row whose time is recorded. A single short one may leave early or late by more than kinds may deviate, and
/// the next one makes up for it.
const ROW: u32 = 64;
/// Packets of a message, at least, if it is to be timed by its row.
const ROW_PACKETS: u64 = 32;

impl Policy {
    /// From the departure of a message's last byte until it is in place, picoseconds.
    pub(crate) fn latency(&self, connection: u32) -> u64 {
        self.latencies[usize::from(self.traffic.connections[connection as usize].turn)]
    }

    /// Whether messages of this length can be timed by their row.
    pub(crate) fn fits_row(&self, bytes: u32) -> bool {
        u64::from(bytes) >= ROW_PACKETS * u64::from(self.network.path_mtu)
    }

    /// The kind of a message that is due now, if it is alone.
    pub(crate) fn own_kind(&mut self, connection: u32, bytes: u32) -> KindId {
        let (load, receives) = (self.traffic.load(connection), self.traffic.sender_receives(connection));
        let state = &mut self.traffic.connections[connection as usize];
        let kind = Kind { what: What::Message { bytes }, turn: state.turn, load, receives };
        match state.kind {
            Some((last, id)) if last == kind => id,
            _ => {
                let id = self.memo.id(kind);
                state.kind = Some((kind, id));
                id
            }
        }
    }

    /// The kind of a row on a connection with so many others beside it.
    pub(crate) fn row_kind(&mut self, connection: u32, others: Others) -> KindId {
        let what = What::Row(others);
        let kind = if others == 0 {
            let turn = self.traffic.connections[connection as usize].turn;
            let receives = self.traffic.sender_receives(connection);
            Kind { what, turn, load: self.traffic.load(connection), receives }
        } else {
            Kind { what, turn: 0, load: 0, receives: false }
        };
        self.memo.id(kind)
    }

    /// Picoseconds of a byte of a message with so many others beside it, if they are known.
    pub(crate) fn pace(&mut self, connection: u32, bytes: u32, others: Others) -> Option<f64> {
        let row = self.row_kind(connection, others);
        let of_row = self.memo.pace(row);
        if of_row.is_some() || others != 0 {
            return of_row;
        }
        let own = self.own_kind(connection, bytes);
        let known = self.memo.standing(own) == Standing::Known;
        let mean = self.memo.mean(own).filter(|_| known)?;
        Some(mean.saturating_sub(self.latency(connection)) as f64 / f64::from(bytes))
    }

    /// How long a message of a kind takes in the mean, from its begin until it is in place.
    pub(crate) fn expected(&self, connection: u32, bytes: u32, kind: KindId) -> Option<u64> {
        match self.memo.pace(kind) {
            Some(pace) if self.memo.is_row(kind) => {
                Some((pace * f64::from(bytes)) as u64 + self.latency(connection))
            }
            _ => self.memo.mean(kind),
        }
    }

    /// How a message passes that begins at a time with so many others beside it. `kind` was its kind when it was due.
    pub(crate) fn passing(
        &mut self,
        connection: u32,
        message: &Message,
        kind: KindId,
        begin: u64,
        others: Others,
    ) -> Passing {
        let latency = self.latency(connection);
        let Message { index, bytes, .. } = *message;
        let is_own = others == 0 && !self.memo.is_row(kind);
        let Taken { delivered, answer } = if is_own {
            self.memo.take(kind, self.network.seed ^ mix(index.into()))
        } else {
            let pace = self.pace(connection, bytes, others);
            let took = match pace {
                Some(pace) => (pace * f64::from(bytes)) as u64 + latency,
                None => self.expected(connection, bytes, kind).unwrap_or(latency),
            };
            Taken { delivered: took, answer: u32::try_from(latency).unwrap_or(u32::MAX) }
        };
        let delivered = begin + delivered;
        let last_byte = delivered.saturating_sub(latency).max(begin + 1);
        Passing { begin, bytes, last_byte, delivered, answer, others }
    }

    /// When the last byte of all messages of a connection will have left, if that is known.
    pub(crate) fn free_at(&self, connection: u32) -> Option<u64> {
        let (state, latency) = (&self.traffic.connections[connection as usize], self.latency(connection));
        state.queue.iter().try_fold(state.free_at, |free, message| match message.way {
            Way::Skipped(Passing { last_byte, .. }) => Some(last_byte),
            Way::Packets { kind: Some(kind) } | Way::Waiting { kind: Some(kind) } | Way::Held { kind } => {
                let takes = self.expected(connection, message.bytes, kind)?;
                Some(message.begin.max(free) + takes.saturating_sub(latency))
            }
            Way::Packets { kind: None } | Way::Waiting { kind: None } => None,
        })
    }

    /// A message has arrived by packets between others that did. `is_alone`: nobody joined it.
    pub(crate) fn add_to_row(&mut self, connection: u32, message: &Message, is_alone: bool, now: u64) {
        let others = self.traffic.others(connection, None, now);
        let since = self.traffic.connections[connection as usize].free_at;
        let counts = message.begin <= since && self.fits_row(message.bytes) && (is_alone || others != 0);
        if !counts {
            self.traffic.connections[connection as usize].row = None;
            return;
        }
        let kind = self.row_kind(connection, others);
        let left = now.saturating_sub(self.latency(connection));
        let state = &mut self.traffic.connections[connection as usize];
        let mut row = match state.row {
            Some(row) if row.kind == kind => row,
            _ => Row { kind, since, messages: 0, bytes: 0 },
        };
        row.messages += 1;
        row.bytes += u64::from(message.bytes);
        state.row = Some(row).filter(|row| row.messages < ROW);
        if row.messages == ROW {
            self.memo.record_row(kind, row.bytes, left.saturating_sub(row.since));
        }
    }
}
