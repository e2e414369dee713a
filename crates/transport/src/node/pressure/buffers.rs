//! Pressure by how full the receive buffers are. To MRC a packet lost without a trace is a broken path, so a socket that
//! overflows would condemn healthy paths. As responder, each queue pair therefore advertises the window that the buffers can
//! hold among those that receive now (dynamic MPR), and asks its sender to slow down while they fill.

use super::Pressure;
use crate::api::Transport;
use crate::node::table::{Place, Table};
use crate::time::{Span, Time};

/// With fewer bytes than this from one look to the next no buffer fills, and the driver need not be asked.
const TRICKLE: u64 = 64 << 10;

/// A buffer filled beyond this share slows senders down, in proportion ...
const FILL_LOW: f64 = 0.25;
/// ... and beyond this one as much as possible.
const FILL_HIGH: f64 = 0.75;

const MAX_PENALTY: f64 = 127.0;

/// The receive buffers of the ports that are up, as the driver sees them.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Buffers {
    /// Bytes that all of them can hold, as the host counts them.
    pub bytes: u64,
    /// Share of the fullest one that is in use, 0 to 1.
    pub fill: f64,
    /// Host memory that a full packet takes in a buffer.
    pub packet: u32,
}

/// When to look, and what was found.
pub(in crate::node) struct BufferWatch {
    interval: Span,
    next: Time,
    penalty: u8,
    /// Queue pairs that have received since the last look, and those of the look before.
    receivers: Vec<Place>,
    earlier: Vec<Place>,
    /// Bytes received since the last look.
    bytes: u64,
}

impl BufferWatch {
    pub fn new(interval: Span) -> Self {
        BufferWatch {
            interval,
            next: Time::NEVER,
            penalty: 0,
            receivers: Vec::new(),
            earlier: Vec::new(),
            bytes: 0,
        }
    }

    pub fn due(&self) -> Time {
        self.next
    }

    #[inline]
    pub fn received(&mut self, bytes: u32) {
        self.bytes += u64::from(bytes);
    }

    /// A queue pair receives, for the first time since the last look.
    pub fn receives(&mut self, now: Time, place: Place) {
        self.receivers.push(place);
        if self.next == Time::NEVER {
            self.next = now + self.interval;
        }
    }

    /// A buffer was full. The next look is a whole interval away, so that the pressure lasts for a while.
    pub fn overflowed<Q: Transport>(&mut self, now: Time, table: &mut Table<Q>) {
        self.penalty = MAX_PENALTY as u8;
        for &place in self.receivers.iter().chain(&self.earlier) {
            if let Some(qp) = table.get_mut(place).and_then(|entry| entry.qp.as_mut()) {
                qp.set_receive_pressure(self.penalty.into());
            }
        }
        self.next = now + self.interval;
    }

    /// Looks at the buffers and tells every queue pair that has received since the last look.
    pub fn look<Q: Transport>(&mut self, now: Time, table: &mut Table<Q>, buffers: impl FnOnce() -> Buffers) {
        let trickle = std::mem::take(&mut self.bytes) < TRICKLE;
        let buffers = buffers();
        let penalty = if trickle { 0 } else { penalty(buffers.fill) };
        let pressure = Pressure { penalty, restore: penalty == 0 };
        let relieved = std::mem::replace(&mut self.penalty, penalty) > 0;
        let mut receivers = std::mem::take(&mut self.receivers);
        let mpr = fair_mpr(&buffers, receivers.len());
        for &place in &receivers {
            if let Some(entry) = table.get_mut(place) {
                entry.receiving = false;
                if let Some(qp) = &mut entry.qp {
                    qp.set_advertised_mpr(mpr);
                    qp.set_receive_pressure(pressure);
                }
            }
        }
        // Those that have stopped receiving keep no penalty for the next time.
        let earlier = std::mem::take(&mut self.earlier);
        for &place in earlier.iter().filter(|_| relieved) {
            if let Some(qp) = table.get_mut(place).and_then(|entry| entry.qp.as_mut()) {
                qp.set_receive_pressure(pressure);
            }
        }
        // One more look after the last data, to take the penalty back.
        let done = receivers.is_empty() && penalty == 0;
        self.next = if done { Time::NEVER } else { now + self.interval };
        if receivers.is_empty() && penalty > 0 {
            self.earlier = earlier;
        } else {
            std::mem::swap(&mut self.earlier, &mut receivers);
        }
    }
}

/// The penalty for buffers filled to this share.
fn penalty(fill: f64) -> u8 {
    ((fill - FILL_LOW) / (FILL_HIGH - FILL_LOW) * MAX_PENALTY).clamp(0.0, MAX_PENALTY) as u8
}

/// The window for each of `receivers`, units of 128 PSNs: half of what the buffers hold, for the load of the ports is never
/// quite even.
fn fair_mpr(buffers: &Buffers, receivers: usize) -> u8 {
    let packets = buffers.bytes / u64::from(buffers.packet.max(1)) / 2;
    (packets / receivers.max(1) as u64 / 128).clamp(1, u64::from(u8::MAX)) as u8
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_penalty_grows_with_the_filling() {
        assert_eq!([0.0, 0.25, 0.5, 0.75, 1.0].map(penalty), [0, 0, 63, 127, 127]);
    }

    #[test]
    fn the_windows_of_all_receivers_fit_the_buffers_until_each_has_the_least() {
        let buffers = Buffers { bytes: 8 * (8 << 20), fill: 0.0, packet: 5120 };
        for receivers in [1usize, 2, 5, 20, 1000] {
            let mpr = u64::from(fair_mpr(&buffers, receivers));
            let worst = receivers as u64 * mpr * 128 * 5120;
            assert!(mpr == 1 || worst <= buffers.bytes / 2, "{receivers} receivers");
        }
        assert_eq!(fair_mpr(&buffers, 1_000_000), 1);
    }
}
