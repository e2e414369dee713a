//! Messages that arrive without packets, because it is known how long they take. A [`Skipper`] decides which; the hosts
//! follow its orders.

use openmrc_scenario::SkipTotals;

/// Decides which messages arrive without packets. Times are picoseconds.
pub trait Skipper: Send + Sync {
    /// A message is due at its sender.
    fn due(&mut self, message: u32, now: u64, orders: &mut Vec<Order>);

    /// Whether a message of [`Order::Skip`] arrives now: not if it has gone back to packets.
    fn arrives(&mut self, message: u32, now: u64) -> bool;

    /// The last byte of a message is in place at its receiver, with packets or without.
    fn delivered(&mut self, message: u32, now: u64, orders: &mut Vec<Order>);

    /// The sender of a message that went by packets knows what became of it.
    fn completed(&mut self, message: u32, success: bool, now: u64, orders: &mut Vec<Order>);

    /// The sender of a connection goes back to packets, or goes on with them ([`Order::Resume`]).
    fn resume(&mut self, connection: u32, now: u64, orders: &mut Vec<Order>);

    /// Something breaks or is repaired.
    fn fault(&mut self, now: u64, orders: &mut Vec<Order>);

    /// What was skipped so far.
    fn totals(&self) -> SkipTotals;
}

/// What hosts are to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Order {
    /// The last `bytes` bytes of a message go by packets, from now on. Only at the host whose event it is.
    Send {
        /// The message.
        message: u32,
        /// How many of its bytes.
        bytes: u32,
    },
    /// A message is in place at a time.
    Skip {
        /// The message.
        message: u32,
        /// When.
        delivered: u64,
        /// How long after that its sender knows.
        answer: u32,
    },
    /// The sender of a connection is to go back to packets, or to go on with them, as soon as it can be told.
    Resume {
        /// The connection.
        connection: u32,
    },
}
