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
        if ack.penalty != Penalty::Pressing {
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

#[cfg(test)]
mod tests {
    use super::*;

    const MTU: u32 = 4000;

    fn ack(newly: u32, penalty: Penalty) -> Ack {
        Ack { newly, in_flight: 0, rtt: None, ecn: false, penalty }
    }

    #[test]
    fn a_window_that_was_reduced_grows_by_a_packet_a_round_trip_up_to_its_size() {
        let mut cc = FixedWindow::new(40_000, MTU);
        cc.on_sack(Time(1), &ack(40_000, Penalty::None));
        assert_eq!(cc.window(), 40_000.0);
        cc.set_window(20_000.0);
        for (newly, penalty, window) in [
            (20_000, Penalty::Pressing, 20_000.0),
            (20_000, Penalty::Easing, 24_000.0),
            (12_000, Penalty::None, 26_000.0),
            (u32::MAX, Penalty::None, 40_000.0),
        ] {
            cc.on_sack(Time(1), &ack(newly, penalty));
            assert_eq!(cc.window(), window, "{newly} {penalty:?}");
        }
        cc.set_window(50_000.0);
        assert_eq!(cc.window(), 40_000.0);
        assert_eq!(FixedWindow::new(1, MTU).window(), f64::from(MTU));
    }

    #[test]
    fn a_drop_takes_half_of_what_was_dropped_and_leaves_two_packets() {
        let mut cc = FixedWindow::new(40_000, MTU);
        for (dropped, window) in
            [(4_000, 38_000.0), (1, 37_999.5), (50_000, 12_999.5), (10_000, 8_000.0), (4_000, 8_000.0)]
        {
            cc.on_drop(Time(1), dropped, 0);
            assert_eq!(cc.window(), window, "{dropped}");
        }
        // A smaller one is not raised.
        cc.set_window(5_000.0);
        cc.on_drop(Time(1), 4_000, 0);
        assert_eq!(cc.window(), 5_000.0);
        cc.on_trim(Time(1), 4_000, 0);
        cc.on_loss(Time(1), 4_000, 0);
        assert_eq!(cc.window(), 5_000.0);
    }
}
