//! The congestion window of a queue pair: a controller computes it, and [`Window::apply`] is the only other place that
//! changes it.

use super::{CcProfile, Congestion, Controller};
use serde::{Deserialize, Serialize};

/// Why the window changes, apart from what the controller makes of round trips, marks and losses.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) enum Change {
    /// The last hop has trimmed a packet while this many bytes were in use. Of the rest of the window nothing is known:
    /// it must not let all that was trimmed leave once more.
    Trimmed {
        /// Bytes in flight, and at least one packet.
        used: f64,
    },
    /// The receiver's penalty takes `shed` bytes away from `filled`, what was in use when its SACK came.
    Pressed {
        /// The window before the SACK.
        before: f64,
        /// Bytes of it that were in use.
        filled: f64,
        /// Bytes to take away.
        shed: f64,
    },
    /// A buffer of the receiver was full and has dropped this many bytes.
    Overflowed {
        /// Nominal size of the packet.
        bytes: u32,
    },
    /// The receiver has no penalty any more: the window is at least what it was before it.
    Restored,
    /// Packets are spaced: one at a time.
    Spaced,
}

/// A window in whole bytes, rounded up.
fn whole(window: f64) -> u32 {
    window.ceil() as u32
}

#[derive(Serialize, Deserialize)]
pub(super) struct Window {
    pub(super) controller: Controller,
    /// The window before the receiver's penalty, bytes; 0 if there is none.
    saved: u32,
    /// The largest window before the last hop trimmed packets of this flight; 0 if it did not. A penalty that follows
    /// saves half of it: the whole one would be trimmed once more, as others get theirs back too \[choice\].
    before_trimming: u32,
}

impl Window {
    pub(super) fn new(profile: &CcProfile, mtu: u32) -> Self {
        Window { controller: profile.controller(mtu), saved: 0, before_trimming: 0 }
    }

    /// Its size, bytes.
    #[inline]
    pub(super) fn bytes(&self) -> f64 {
        self.controller.window()
    }

    /// Whether the receiver presses, or has pressed and the window has not returned.
    pub(super) fn is_pressed(&self) -> bool {
        self.saved > 0
    }

    /// Nothing is in flight any more.
    pub(super) fn on_idle(&mut self) {
        self.before_trimming = 0;
        self.controller.on_idle();
    }

    /// Changes the window. `mtu` is the nominal size of a full packet, the least that a penalty leaves.
    pub(super) fn apply(&mut self, change: Change, mtu: f64) {
        let present = self.bytes();
        let bytes = match change {
            Change::Trimmed { used } => {
                if self.saved == 0 {
                    self.before_trimming = self.before_trimming.max(whole(present));
                }
                present.min(used)
            }
            Change::Pressed { before, filled, shed } => {
                if self.saved == 0 {
                    self.saved = whole(before).max(std::mem::take(&mut self.before_trimming) / 2);
                }
                (filled - shed).max(mtu)
            }
            Change::Overflowed { bytes } => {
                if self.saved == 0 {
                    self.saved = whole(present);
                }
                (present - f64::from(bytes)).max(mtu)
            }
            Change::Restored => present.max(std::mem::take(&mut self.saved).into()),
            Change::Spaced => mtu,
        };
        self.controller.set_window(bytes);
    }
}
