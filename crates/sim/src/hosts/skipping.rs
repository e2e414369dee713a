//! Hosts follow the orders of a [`crate::skips::Skipper`]: messages arrive without packets, or go back to them.

use super::Hosts;
use crate::clock::Clock;
use crate::event::{Event, Kind};
use crate::fabric::FabricState;
use crate::skips::{Order, Skipper};
use crate::stats::Stats;

impl Hosts {
    /// Asks the skipper, if there is one, and schedules what it orders. Returns the messages that go by packets now, with
    /// their bytes.
    pub(super) fn ask_skipper(
        &mut self,
        here: u32,
        clock: &mut Clock,
        ask: impl FnOnce(&mut dyn Skipper, u64, &mut Vec<Order>),
    ) -> Vec<(u32, u32)> {
        let Some(skipper) = &mut self.skipper else { return Vec::new() };
        let mut orders = std::mem::take(&mut self.orders);
        ask(skipper.as_mut(), clock.now, &mut orders);
        let mut sends = Vec::new();
        for order in orders.drain(..) {
            match order {
                Order::Send { message, bytes } => sends.push((message, bytes)),
                Order::Skip { message, delivered, answer } => {
                    let connection = self.common.posts.messages[message as usize].connection;
                    let dst = self.common.posts.ends(connection).dst;
                    let event = Event::plain(delivered, Kind::Skipped, message, dst);
                    clock.push_to_host(Event { packet: answer, ..event });
                }
                Order::Resume { connection } => {
                    let src = self.common.posts.ends(connection).src;
                    // Another host learns of it no faster than by a packet.
                    let time = clock.now + if src == here { 0 } else { clock.lookahead() };
                    clock.push_at_host(time, Kind::Resume, connection, src);
                }
            }
        }
        self.orders = orders;
        sends
    }

    /// The rest of a message goes by packets.
    pub(super) fn send_rest(
        &mut self,
        (index, bytes): (u32, u32),
        clock: &mut Clock,
        fabric: &mut FabricState,
        stats: &mut Stats,
    ) {
        let message = &mut self.common.posts.messages[index as usize];
        message.placed = message.bytes - bytes;
        self.post(index, clock, fabric, stats);
    }

    /// A message may be in place that was skipped.
    #[cold]
    pub fn skipped_arrives(
        &mut self,
        event: &Event,
        clock: &mut Clock,
        fabric: &mut FabricState,
        stats: &mut Stats,
    ) {
        let (index, here) = (event.at, event.dst);
        if !self.skipper.as_mut().is_some_and(|skipper| skipper.arrives(index, clock.now)) {
            return;
        }
        let message = &mut self.common.posts.messages[index as usize];
        message.placed = message.bytes;
        message.delivered = clock.now;
        let src = self.common.posts.connections[message.connection as usize].ends.src;
        clock.push_at_host(clock.now + u64::from(event.packet), Kind::Finish, index, src);
        self.common.completions.delivered.push(index);
        self.settle(here, clock, fabric, stats);
    }

    /// The sender of a message that was skipped knows that it is in place.
    #[cold]
    pub fn skipped_completes(&mut self, event: &Event, clock: &mut Clock, stats: &mut Stats) {
        self.finish(event.at, true, clock, &mut stats.totals.hosts);
    }

    /// The sender of a connection goes back to packets.
    #[cold]
    pub fn resume(&mut self, event: &Event, clock: &mut Clock, fabric: &mut FabricState, stats: &mut Stats) {
        let (connection, here) = (event.at, event.dst);
        for send in
            self.ask_skipper(here, clock, |skipper, now, orders| skipper.resume(connection, now, orders))
        {
            self.send_rest(send, clock, fabric, stats);
        }
    }

    /// Something breaks or is repaired, at no host in particular.
    #[cold]
    pub fn tell_skipper_of_fault(&mut self, clock: &mut Clock) {
        let nobody = u32::MAX;
        let sends = self.ask_skipper(nobody, clock, |skipper, now, orders| skipper.fault(now, orders));
        debug_assert!(sends.is_empty(), "a fault is no event of a host");
    }
}
