//! How messages change from one way to another: those that wait for their connection begin, are posted or are skipped; what
//! others join changes its pace, or goes back to packets.

use openmrc_sim::Order;

use crate::memo::Others;
use crate::policy::Policy;
use crate::traffic::{Message, Passing, Way};

impl Policy {
    /// The message that waits longest on a connection begins, if it is known when. `others`: how many are beside it.
    pub(crate) fn begin_held(
        &mut self,
        connection: u32,
        others: Option<Others>,
        now: u64,
        orders: &mut Vec<Order>,
    ) {
        let state = &self.traffic.connections[connection as usize];
        let Some(&message) = state.queue.front() else { return };
        let Way::Held { kind } = message.way else { return };
        let begin = message.begin.max(state.free_at);
        let others = others.unwrap_or_else(|| self.traffic.others(connection, None, begin));
        let passing = self.passing(connection, &message, kind, begin, others);
        self.traffic.skip_begins(connection);
        self.pass(connection, 0, passing, now, orders);
    }

    /// A message of a connection passes so from now on.
    fn pass(&mut self, connection: u32, place: usize, passing: Passing, now: u64, orders: &mut Vec<Order>) {
        let delivered = passing.delivered.max(now + 1);
        let message = &mut self.traffic.connections[connection as usize].queue[place];
        message.way = Way::Skipped(Passing { delivered, ..passing });
        orders.push(Order::Skip { message: message.index, delivered, answer: passing.answer });
    }

    /// Others have come to the ports of a connection, or have gone, at a time: what it skips changes its pace.
    pub(crate) fn change_pace(&mut self, connection: u32, since: u64, now: u64, orders: &mut Vec<Order>) {
        let state = &self.traffic.connections[connection as usize];
        let Some(&Message { bytes: all, way: Way::Skipped(before), .. }) = state.queue.front() else {
            return;
        };
        let others = self.traffic.others(connection, None, now);
        if before.last_byte <= since || before.others == others || state.goes_back {
            return;
        }
        let Some(pace) = self.pace(connection, all, others) else {
            self.go_back(vec![connection], orders);
            return;
        };
        let (begin, bytes) = (before.begin.max(since), before.left_at(since));
        let last_byte = (begin + (pace * f64::from(bytes)) as u64).max(begin + 1);
        let delivered = last_byte + self.latency(connection);
        self.pass(
            connection,
            0,
            Passing { begin, bytes, last_byte, delivered, others, ..before },
            now,
            orders,
        );
    }

    /// How many bytes a connection has posted that are not in place.
    pub(crate) fn posted(&self, connection: u32) -> u64 {
        let queue = &self.traffic.connections[connection as usize].queue;
        let posted = queue.iter().filter(|message| matches!(message.way, Way::Packets { .. }));
        posted.map(|message| u64::from(message.bytes)).sum()
    }

    /// Whether all messages that a connection has not posted may be skipped now.
    pub(crate) fn may_skip_waiting(&mut self, connection: u32, now: u64) -> bool {
        let mut last = None;
        for place in 0..self.traffic.connections[connection as usize].queue.len() {
            let message = self.traffic.connections[connection as usize].queue[place];
            if !matches!(message.way, Way::Waiting { .. }) || last == Some(message.bytes) {
                continue;
            }
            last = Some(message.bytes);
            let own = self.own_kind(connection, message.bytes);
            let is_alone = self.alone_from(connection, own, now).is_some();
            if self.skips(connection, message.bytes, is_alone, now).is_none() {
                return false;
            }
        }
        last.is_some()
    }

    /// Messages that a connection has not posted are skipped from now on.
    pub(crate) fn skip_waiting(&mut self, connection: u32, now: u64, orders: &mut Vec<Order>) {
        for place in 0..self.traffic.connections[connection as usize].queue.len() {
            let message = self.traffic.connections[connection as usize].queue[place];
            if let Way::Waiting { .. } = message.way {
                let kind = self.alone_kind(connection, message.bytes);
                self.traffic.connections[connection as usize].queue[place].way = Way::Held { kind };
            }
        }
        self.begin_held(connection, None, now, orders);
    }

    /// Posts messages of a connection that wait for it, until enough are posted behind the one that is on its way.
    pub(crate) fn post_waiting(&mut self, connection: u32, orders: &mut Vec<Order>) {
        let mut behind = 0;
        for (place, message) in self.traffic.connections[connection as usize].queue.iter_mut().enumerate() {
            if behind >= self.feed {
                return;
            }
            if let Way::Waiting { kind } = message.way {
                message.way = Way::Packets { kind };
                orders.push(Order::Send { message: message.index, bytes: message.bytes });
            }
            behind += if place == 0 { 0 } else { u64::from(message.bytes) };
        }
    }

    /// What a connection has on the way without packets goes by packets from now on.
    pub(crate) fn return_to_packets(&mut self, connection: u32, now: u64, orders: &mut Vec<Order>) {
        self.traffic.connections[connection as usize].goes_back = false;
        let mut free = self.traffic.connections[connection as usize].free_at;
        for place in 0..self.traffic.connections[connection as usize].queue.len() {
            let message = self.traffic.connections[connection as usize].queue[place];
            let begin = message.begin.max(free);
            let passing = match message.way {
                Way::Skipped(passing) => passing,
                // Its first byte has left, and the message before it is not in place yet.
                Way::Held { kind } if begin < now => {
                    let others = self.traffic.others(connection, None, begin);
                    self.traffic.skip_begins(connection);
                    self.passing(connection, &message, kind, begin, others)
                }
                Way::Held { .. } => {
                    let queue = &mut self.traffic.connections[connection as usize].queue;
                    queue[place].way = Way::Waiting { kind: None };
                    continue;
                }
                Way::Packets { .. } | Way::Waiting { .. } => {
                    free = u64::MAX;
                    continue;
                }
            };
            free = passing.last_byte;
            if now < passing.last_byte {
                self.send_rest(connection, place, passing, now, orders);
            } else if let Way::Held { .. } = message.way {
                self.pass(connection, place, passing, now, orders);
            }
        }
    }

    /// What has not left of a message goes by packets.
    fn send_rest(
        &mut self,
        connection: u32,
        place: usize,
        passing: Passing,
        now: u64,
        orders: &mut Vec<Order>,
    ) {
        let mtu = self.network.path_mtu.into();
        let message = &mut self.traffic.connections[connection as usize].queue[place];
        let Message { index, bytes, .. } = *message;
        message.way = Way::Packets { kind: None };
        let rest = passing.left_at(now).next_multiple_of(mtu).clamp(1, bytes);
        self.traffic.skip_ends(connection, now);
        self.totals.resumed += 1;
        if rest < bytes {
            self.count(bytes - rest);
        }
        orders.push(Order::Send { message: index, bytes: rest });
    }

    /// A connection goes by packets, and its times say nothing about messages that are alone. Returns whether it did not.
    fn goes_back(&mut self, connection: u32, orders: &mut Vec<Order>) -> bool {
        let state = &mut self.traffic.connections[connection as usize];
        let mut is_skipped = false;
        for message in &mut state.queue {
            match &mut message.way {
                Way::Packets { kind } | Way::Waiting { kind } => *kind = None,
                Way::Held { .. } | Way::Skipped(_) => is_skipped = true,
            }
        }
        let turns = is_skipped && !state.goes_back;
        if turns {
            state.goes_back = true;
            orders.push(Order::Resume { connection });
        }
        turns
    }

    /// Connections go by packets, and so does everything that meets them without packets.
    pub(crate) fn go_back(&mut self, mut connections: Vec<u32>, orders: &mut Vec<Order>) {
        while let Some(connection) = connections.pop() {
            if self.goes_back(connection, orders) {
                connections.extend(self.traffic.beside(connection));
            }
        }
    }
}
