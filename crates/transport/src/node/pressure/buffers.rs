//! Pressure by how full the receive buffers are (docs/spec/congestion.md, "On a SACK").
//!
//! A socket neither marks nor trims. When several senders together send more than its buffer holds, packets are lost
//! without a NACK, which looks like a broken path. So the receiver makes its senders shrink their windows before that
//! happens, and reports it when it has happened ([`Pressure::OVERFLOW`]). Windows shrink in proportion and grow by one
//! packet per round trip, so the shares of the senders become even (Chiu and Jain 1989).

use crate::api::{Pressure, Transport};
use crate::mrc::PSNS_PER_MPR;
use crate::node::ids::Slot;
use crate::node::table::{Receiving, Table};
use crate::time::{Span, Time};
use serde::{Deserialize, Serialize};

/// If fewer bytes than this arrive between two looks, no buffer fills.
const TRICKLE: u64 = 64 << 10;

/// While a buffer is filled beyond this share, windows shrink by a twentieth a round trip ...
const GIVE_WAY_ABOVE: f64 = 0.7;
const GIVE_WAY: u8 = 6;
/// ... and beyond this one by a quarter.
const SHRINK_ABOVE: f64 = 0.9;
const SHRINK: u8 = 32;

/// After this long without data an incast is over.
const OVER_AFTER: Span = Span::from_millis(20);

/// The receive buffers of the ports that are up, as the driver sees them.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Buffers {
    /// Bytes that all of them can hold, as the host counts them.
    pub bytes: u64,
    /// Bytes that were in them when the driver looked last.
    pub queued: u64,
    /// The largest share of each that was in use since the driver was asked last, 0 to 1; the mean of those in use.
    pub fill: f64,
    /// Host memory that a full packet takes in a buffer.
    pub packet: u32,
}

/// State of the receive buffers, and the resulting pressure.
#[derive(Serialize, Deserialize)]
pub(in crate::node) struct BufferWatch {
    interval: Span,
    next: Time,
    /// Current pressure, and the window of each sender, units of [`PSNS_PER_MPR`].
    pressure: Pressure,
    mpr: u8,
    /// Bytes still to be received while an overflow is reported: what was in the buffers when it happened, so that
    /// windows shrink for about a round trip.
    overflow_left: u64,
    /// Overflows so far, modulo 2^8: every queue pair has to report the latest to its sender.
    overflows: u8,
    /// Queue pairs that have received since the last look, and how many had before.
    receivers: Vec<Slot>,
    earlier: usize,
    /// Bytes received since the last look.
    bytes: u64,
    /// When data came in last.
    received_at: Time,
}

impl BufferWatch {
    pub fn new(interval: Span) -> Self {
        BufferWatch {
            interval,
            next: Time::NEVER,
            pressure: Pressure::NONE,
            mpr: u8::MAX,
            overflow_left: 0,
            overflows: 0,
            receivers: Vec::new(),
            earlier: 0,
            bytes: 0,
            received_at: Time::ZERO,
        }
    }

    pub fn due(&self) -> Time {
        self.next
    }

    /// Whether a queue pair has not reported the last overflow to its sender.
    #[inline]
    pub fn has_unreported_overflow(&self, receiving: &Receiving) -> bool {
        receiving.reported != self.overflows
    }

    /// The pressure that a queue pair reports to its sender now.
    #[inline]
    pub fn pressure(&self, receiving: &mut Receiving) -> Pressure {
        if !self.has_unreported_overflow(receiving) {
            return self.pressure;
        }
        receiving.reported = self.overflows;
        Pressure::OVERFLOW
    }

    /// Overflows so far, modulo 2^8.
    pub fn overflows(&self) -> u8 {
        self.overflows
    }

    /// The window of each sender, units of [`PSNS_PER_MPR`].
    #[inline]
    pub fn mpr(&self) -> u8 {
        self.mpr
    }

    /// A queue pair has received data.
    #[inline]
    pub fn received(&mut self, now: Time, slot: Slot, receiving: &mut Receiving, bytes: u32) {
        self.bytes += u64::from(bytes);
        if !std::mem::replace(&mut receiving.active, true) {
            self.receivers.push(slot);
            if self.next == Time::NEVER {
                self.next = now + self.interval;
            }
        }
        if self.overflow_left > 0 {
            self.overflow_left = self.overflow_left.saturating_sub(u64::from(bytes));
            if self.overflow_left == 0 {
                self.pressure = Pressure::HOLD;
            }
        }
    }

    /// A buffer was full and packets were dropped.
    pub fn overflowed(&mut self, now: Time, buffers: &Buffers) {
        self.overflows = self.overflows.wrapping_add(1);
        self.pressure = Pressure::OVERFLOW;
        self.overflow_left = buffers.queued.max(1);
        self.next = self.next.min(now + self.interval);
    }

    /// Looks at the buffers.
    pub fn look<Q: Transport>(&mut self, now: Time, table: &mut Table<Q>, buffers: impl FnOnce() -> Buffers) {
        let buffers = buffers();
        let receiving = self.receivers.len();
        for slot in self.receivers.drain(..) {
            if let Some(entry) = table.get_mut(slot) {
                entry.receiving.active = false;
            }
        }
        if receiving > 0 {
            self.received_at = now;
            self.next = now + self.interval;
        } else if now.since(self.received_at) < OVER_AFTER {
            self.next = self.received_at + OVER_AFTER;
            return;
        } else {
            self.next = Time::NEVER;
            self.overflow_left = 0;
        }
        let windows = fair_windows(&buffers, receiving.max(std::mem::replace(&mut self.earlier, receiving)));
        self.mpr = windows.clamp(1.0, f64::from(u8::MAX)) as u8;
        let trickle = std::mem::take(&mut self.bytes) < TRICKLE;
        if self.overflow_left == 0 {
            let fill = if trickle { 0.0 } else { buffers.fill };
            self.pressure = pressure(fill, windows >= 1.0);
        }
    }
}

/// The pressure while the buffers are filled to this share. Windows may return to what they were only where the
/// buffers hold them.
fn pressure(fill: f64, windows_fit: bool) -> Pressure {
    if fill > SHRINK_ABOVE {
        SHRINK.into()
    } else if fill > GIVE_WAY_ABOVE {
        GIVE_WAY.into()
    } else if windows_fit {
        Pressure::NONE
    } else {
        Pressure::GROW
    }
}

/// The window for each of `receivers`, units of [`PSNS_PER_MPR`]: half of what the buffers hold, for the load of the
/// ports is never quite even.
fn fair_windows(buffers: &Buffers, receivers: usize) -> f64 {
    let packets = buffers.bytes as f64 / f64::from(buffers.packet.max(1)) / 2.0;
    packets / receivers.max(1) as f64 / f64::from(PSNS_PER_MPR)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mrc::QueuePair;

    #[test]
    fn the_pressure_grows_with_the_filling() {
        let told = [0.0, 0.6, 0.8, 0.95].map(|fill| pressure(fill, false).penalty);
        assert_eq!(told, [0, 0, GIVE_WAY, SHRINK]);
        assert!(
            told.iter().all(|&penalty| penalty < Pressure::OVERFLOW.penalty),
            "only drops are an overflow"
        );
    }

    #[test]
    fn windows_return_to_what_they_were_only_where_the_buffers_hold_them() {
        let buffers = |bytes| Buffers { bytes, queued: 0, fill: 0.0, packet: 5120 };
        assert!(!pressure(0.0, fair_windows(&buffers(212_992), 1) >= 1.0).restore);
        assert!(pressure(0.0, fair_windows(&buffers(8 * 212_992), 1) >= 1.0).restore);
        assert!(!pressure(0.0, fair_windows(&buffers(8 * 212_992), 16) >= 1.0).restore);
        for receivers in [1usize, 2, 5, 20, 1000] {
            let windows = fair_windows(&buffers(8 * (8 << 20)), receivers);
            assert!(receivers as f64 * windows * 128.0 * 5120.0 <= 8.0 * f64::from(8 << 20) / 2.0 + 1.0);
        }
    }

    const INTERVAL: Span = Span::from_micros(100);

    /// A watch of buffers filled to this share, and a queue pair that feeds it.
    struct Fed {
        watch: BufferWatch,
        receiving: Receiving,
        table: Table<QueuePair>,
        fill: f64,
    }

    impl Fed {
        fn new(fill: f64) -> Self {
            let (watch, table) = (BufferWatch::new(INTERVAL), Table::default());
            Fed { watch, receiving: Receiving::default(), table, fill }
        }

        fn receive(&mut self, now: Time, bytes: u64) {
            self.watch.received(now, 0, &mut self.receiving, bytes as u32);
        }

        /// Looks when that is due; returns when.
        fn look(&mut self) -> Time {
            let (now, fill) = (self.watch.due(), self.fill);
            self.watch.look(now, &mut self.table, || Buffers {
                bytes: 1 << 20,
                queued: 0,
                fill,
                packet: 5120,
            });
            self.receiving.active = false;
            now
        }
    }

    #[test]
    fn it_looks_until_nothing_has_come_in_for_as_long_as_an_incast_may_pause() {
        let mut fed = Fed::new(0.95);
        assert_eq!(fed.watch.due(), Time::NEVER);
        fed.receive(Time(5), TRICKLE);
        let first = fed.look();
        assert_eq!(first, Time(5) + INTERVAL);
        // Data came in until now: it looks once more after the interval, and the pressure stays during the pause.
        assert_eq!(fed.look(), first + INTERVAL);
        assert_eq!(fed.watch.pressure(&mut fed.receiving).penalty, SHRINK);
        assert_eq!(fed.watch.due(), first + OVER_AFTER);
        fed.look();
        assert_eq!(fed.watch.due(), Time::NEVER);
        assert_eq!(fed.watch.pressure(&mut fed.receiving).penalty, 0);
    }

    #[test]
    fn a_trickle_presses_nobody() {
        for (bytes, penalty) in [(1, 0), (TRICKLE - 1, 0), (TRICKLE, SHRINK), (TRICKLE + 1, SHRINK)] {
            let mut fed = Fed::new(0.95);
            // What came in before the last look is not counted again.
            for _ in 0..3 {
                let now = fed.watch.due().min(Time(5));
                fed.receive(now, bytes);
                fed.look();
                assert_eq!(fed.watch.pressure(&mut fed.receiving).penalty, penalty, "{bytes} bytes");
            }
        }
    }

    #[test]
    fn the_filling_presses_from_beyond_each_threshold_on() {
        let table = [
            (GIVE_WAY_ABOVE, Pressure::NONE, Pressure::GROW),
            (GIVE_WAY_ABOVE + 1e-9, GIVE_WAY.into(), GIVE_WAY.into()),
            (SHRINK_ABOVE, GIVE_WAY.into(), GIVE_WAY.into()),
            (SHRINK_ABOVE + 1e-9, SHRINK.into(), SHRINK.into()),
        ];
        for (fill, fits, does_not_fit) in table {
            assert_eq!([pressure(fill, true), pressure(fill, false)], [fits, does_not_fit], "{fill}");
        }
    }

    #[test]
    fn each_sender_gets_its_share_of_half_of_what_the_buffers_hold() {
        // (Packets that the buffers hold, receivers), the window in units of 128 packets, and whether windows return.
        let table = [
            ((16_384, 1), 64, true),
            ((16_384, 4), 16, true),
            ((16_384, 100), 1, false),
            // Exactly one unit for each is enough.
            ((1024, 4), 1, true),
            ((1023, 4), 1, false),
            // The field of a SACK has 8 bits.
            ((65_279, 1), 254, true),
            ((1 << 30, 1), 255, true),
        ];
        for ((packets, receivers), mpr, restore) in table {
            let (mut watch, mut table) = (BufferWatch::new(INTERVAL), Table::<QueuePair>::default());
            assert_eq!(watch.mpr(), u8::MAX, "nothing is held back before the first look");
            for slot in 0..receivers {
                watch.received(Time(5), slot, &mut Receiving::default(), 1);
            }
            let buffers = Buffers { bytes: packets * 5120, queued: 0, fill: 0.0, packet: 5120 };
            watch.look(watch.due(), &mut table, || buffers);
            let told = watch.pressure(&mut Receiving::default());
            assert_eq!((watch.mpr(), told.penalty, told.restore), (mpr, 0, restore), "{packets} packets");
        }
    }

    #[test]
    fn without_an_overflow_what_comes_in_changes_no_pressure() {
        let mut fed = Fed::new(0.0);
        for _ in 0..3 {
            fed.receive(Time(5), 10_000);
            assert_eq!(fed.watch.pressure(&mut fed.receiving), Pressure::NONE);
        }
    }

    #[test]
    fn an_overflow_is_reported_until_what_was_queued_has_come_in_and_to_each_sender_once_at_least() {
        let mut fed = Fed::new(0.0);
        let mut others = [Receiving::default(); 2];
        fed.receive(Time(5), 10_000);
        assert_eq!(fed.watch.pressure(&mut others[0]), Pressure::NONE);
        assert_eq!(fed.watch.due(), Time(5) + INTERVAL);
        fed.watch.overflowed(Time(7), &Buffers { bytes: 1 << 20, queued: 30_000, fill: 1.0, packet: 5120 });
        assert_eq!((fed.watch.overflows(), fed.watch.due()), (1, Time(5) + INTERVAL));
        assert!(fed.watch.has_unreported_overflow(&fed.receiving));
        // Up to the last byte, and then windows are held. A look at buffers that are empty again ends nothing.
        for (bytes, told) in [(20_000, Pressure::OVERFLOW), (9999, Pressure::OVERFLOW), (1, Pressure::HOLD)] {
            fed.receive(Time(8), bytes);
            assert_eq!(fed.watch.pressure(&mut fed.receiving), told, "{bytes} bytes");
            assert!(!fed.watch.has_unreported_overflow(&fed.receiving));
            if told == Pressure::OVERFLOW {
                fed.look();
            }
        }
        // Another queue pair has not told its sender yet.
        let told = [(); 2].map(|()| fed.watch.pressure(&mut others[0]));
        assert_eq!(told, [Pressure::OVERFLOW, Pressure::HOLD]);
        fed.look();
        assert_eq!(fed.watch.pressure(&mut fed.receiving), Pressure::GROW);
        // The next overflow is another one.
        fed.watch.overflowed(Time(9), &Buffers { bytes: 1 << 20, queued: 0, fill: 1.0, packet: 5120 });
        assert_eq!(fed.watch.overflows(), 2);
        assert!(others.iter().all(|receiving| fed.watch.has_unreported_overflow(receiving)));
        fed.receive(Time(10), 1);
        assert_eq!(fed.watch.pressure(&mut fed.receiving), Pressure::OVERFLOW);
        assert_eq!(fed.watch.pressure(&mut fed.receiving), Pressure::HOLD);
    }

    #[test]
    fn an_overflow_at_a_node_that_has_received_nothing_is_looked_at_after_the_interval() {
        let mut fed = Fed::new(0.0);
        fed.watch.overflowed(Time(7), &Buffers { bytes: 1 << 20, queued: 30_000, fill: 1.0, packet: 5120 });
        assert_eq!(fed.watch.due(), Time(7) + INTERVAL);
    }
}
