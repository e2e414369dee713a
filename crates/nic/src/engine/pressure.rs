//! Keeping the receive buffers from overflowing. To MRC a packet lost without a trace is a broken path, so a socket that
//! overflows would condemn paths that are well. As responder, each queue pair therefore advertises the window that the
//! buffers can hold among those that receive now (dynamic MPR), and asks its sender to slow down while they fill
//! (`rcv_cwnd_pen`; spec: congestion, destination flow control).

use openmrc_transport::node::Pressure;
use openmrc_transport::{Span, Time, Transport as _};

use super::{Engine, Qp};
use crate::attr::DEFAULT_PATH_MTU;
use crate::port::Port;

/// How often the buffers are looked at while data comes in.
const INTERVAL: Span = Span::from_micros(500);

/// With fewer bytes than this from one look to the next no buffer fills, and the system need not be asked.
const TRICKLE: usize = 64 << 10;

/// Kernel memory of a queued packet beside its payload: its descriptor and unused room.
const OVERHEAD: usize = 1024;

/// A buffer filled beyond this share slows senders down, in proportion ...
const FILL_LOW: f64 = 0.25;
/// ... and beyond this one as much as possible.
const FILL_HIGH: f64 = 0.75;

const MAX_PENALTY: f64 = 127.0;

/// When to look, and what was found.
pub(super) struct BufferWatch {
    next: Time,
    penalty: u8,
    /// Queue pairs that have received since the last look, and those of the look before.
    receivers: Vec<u32>,
    earlier: Vec<u32>,
    /// Bytes received since the last look.
    bytes: usize,
}

impl BufferWatch {
    pub fn new() -> Self {
        BufferWatch { next: Time::NEVER, penalty: 0, receivers: Vec::new(), earlier: Vec::new(), bytes: 0 }
    }

    /// When to look at the buffers.
    pub fn next_look(&self) -> Time {
        self.next
    }

    /// So many bytes have come in.
    #[inline]
    pub fn received(&mut self, bytes: usize) {
        self.bytes += bytes;
    }

    /// Queue pair `index` receives, for the first time since the last look.
    pub fn receives(&mut self, now: Time, index: u32) {
        self.receivers.push(index);
        if self.next == Time::NEVER {
            self.next = now + INTERVAL;
        }
    }
}

/// The penalty for buffers filled to this share.
fn penalty(fill: f64) -> u8 {
    ((fill - FILL_LOW) / (FILL_HIGH - FILL_LOW) * MAX_PENALTY).clamp(0.0, MAX_PENALTY) as u8
}

/// The window for each of `receivers`, units of 128 PSNs: half of what buffers of so many bytes hold, for the load of
/// the ports is never quite even.
fn fair_mpr(buffers: usize, packet: usize, receivers: usize) -> u8 {
    let packets = buffers / (packet + OVERHEAD) / 2;
    (packets / receivers.max(1) / 128).clamp(1, usize::from(u8::MAX)) as u8
}

impl Engine {
    /// Looks at the buffers and tells every queue pair that has received since the last look.
    pub(super) fn relieve_pressure(&mut self, now: Time) {
        let trickle = std::mem::take(&mut self.pressure.bytes) < TRICKLE;
        let share = |port: &Port| port.rx.queued() as f64 / port.rx.buffer.max(1) as f64;
        let fill = if trickle { 0.0 } else { self.ports.iter().map(share).fold(0.0, f64::max) };
        let penalty = penalty(fill);
        let pressure = Pressure { penalty, restore: penalty == 0 };
        let relieved = std::mem::replace(&mut self.pressure.penalty, penalty) > 0;
        let buffers: usize = self.ports.iter().filter(|p| p.is_up()).map(|p| p.rx.buffer).sum();
        let mut receivers = std::mem::take(&mut self.pressure.receivers);
        for &index in &receivers {
            if let Some(Qp { transport: Some(transport), io }) = self.qps[index as usize].as_deref_mut() {
                let mtu = usize::from(io.attr.path_mtu.unwrap_or(DEFAULT_PATH_MTU));
                transport.set_advertised_mpr(fair_mpr(buffers, mtu, receivers.len()));
                transport.set_receive_pressure(pressure);
                io.receiving = false;
            }
        }
        // Those that have stopped receiving keep no penalty for the next time.
        let earlier = std::mem::take(&mut self.pressure.earlier);
        for &index in earlier.iter().filter(|_| relieved) {
            if let Some(Qp { transport: Some(transport), .. }) = self.qps[index as usize].as_deref_mut() {
                transport.set_receive_pressure(pressure);
            }
        }
        // One more look after the last data, to take the penalty back.
        let done = receivers.is_empty() && penalty == 0;
        self.pressure.next = if done { Time::NEVER } else { now + INTERVAL };
        if receivers.is_empty() && penalty > 0 {
            self.pressure.earlier = earlier;
        } else {
            std::mem::swap(&mut self.pressure.earlier, &mut receivers);
        }
    }
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
        let (buffers, packet) = (8 * (8 << 20), 4096);
        for receivers in [1usize, 2, 5, 20, 1000] {
            let mpr = usize::from(fair_mpr(buffers, packet, receivers));
            let worst = receivers * mpr * 128 * (packet + OVERHEAD);
            assert!(mpr == 1 || worst <= buffers / 2, "{receivers} receivers");
        }
        assert_eq!(fair_mpr(buffers, packet, 1_000_000), 1);
    }
}
