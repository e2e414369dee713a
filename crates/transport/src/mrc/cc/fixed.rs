//! A window that the receiver's penalty and drops shrink, and marks and round trips do not.

use super::{Ack, Congestion, Penalty};
use crate::time::Time;
use serde::{Deserialize, Serialize};

/// A fixed window. After the receiver has reduced it, it grows by one packet per round trip as soon as growth is
/// allowed, so that the senders of one receiver reach equal shares. A drop reduces it by half of what was dropped: where
/// it is larger than what the links and their queues hold, a few packets are dropped in a round trip, not the excess.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct FixedWindow {
    largest: f64,
    window: f64,
    mtu: u32,
}

impl FixedWindow {
    /// A window of this many bytes, and at least one packet of `mtu` bytes.
    pub fn new(bytes: u64, mtu: u32) -> Self {
        let largest = bytes.max(u64::from(mtu)) as f64;
        FixedWindow { largest, window: largest, mtu }
    }
}

impl Congestion for FixedWindow {
    #[inline]
    fn window(&self) -> f64 {
        self.window
    }

    fn set_window(&mut self, bytes: f64) {
        self.window = bytes.min(self.largest);
    }

    fn on_sack(&mut self, _now: Time, ack: &Ack) {
        if ack.penalty != Penalty::Pressing && self.window < self.largest {
            let grown = self.window + f64::from(self.mtu) * f64::from(ack.newly) / self.window;
            self.window = grown.min(self.largest);
        }
    }

    fn on_trim(&mut self, _now: Time, _bytes: u32, _in_flight: i64) {}

    fn on_loss(&mut self, _now: Time, _bytes: u32, _in_flight: i64) {}

    fn on_drop(&mut self, _now: Time, bytes: u32, _in_flight: i64) {
        self.window = (self.window - f64::from(bytes) / 2.0).max(2.0 * f64::from(self.mtu)).min(self.window);
    }
}
