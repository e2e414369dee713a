//! What bad paths and slow ports take from the load of their plane: fitted to the packet engine, where entropy values are
//! condemned or skip turns.

use crate::faults::LinkState;

/// Fitted to a switch that is down, and to one at 3/4, 1/2 and 1/4 of its rate: what a bad path adds to the paths of its
/// plane, in healthy paths. A congested path holds up the flows that use it, so that it may be worse than none.
const DEAD_PATH: f64 = -0.3;
const SLOWNESS: f64 = 3.2;
/// Fitted to ring all-reduces over a slow switch: the same where paths are nearly idle.
const IDLE_SLOWNESS: f64 = 1.2;
/// Fitted to the same: the standard deviation between messages.
const DEAD_PATH_DEVIATION: f64 = 0.6;
const SLOWNESS_DEVIATION: f64 = 1.4;
/// The least that bad paths leave of a plane that still connects two hosts.
const LEAST_OF_PLANE: f64 = 0.05;
/// Fitted to a slow port of a receiver: the shares of a healthy plane's load that senders put on its plane, with a port
/// at these shares of its rate.
const SLOW_RECEIVER: [(f64, f64); 5] = [(0.0, 0.0), (0.25, 0.31), (0.5, 0.69), (0.75, 0.90), (1.0, 1.0)];

/// What a bad path between switches takes from its plane, in healthy paths.
#[derive(Clone, Copy, Default)]
pub(crate) struct BadPaths {
    dead: f64,
    /// Slow ones, each by the share of its rate that is missing.
    slow: f64,
}

impl BadPaths {
    /// Adds a link that is one of `paths`.
    pub fn add(&mut self, state: &LinkState, paths: f64) {
        if state.is_down() {
            self.dead += 1.0 / paths;
        } else {
            self.slow += (1.0 - state.carries()) / paths;
        }
    }

    /// The share of paths that are dead.
    pub fn dead(&self) -> f64 {
        self.dead
    }

    /// The share of its load that the plane loses for a flow, where uplinks have this load. Paths in reserve take the
    /// place of dead ones. `chance` is the flow's luck, a number of the normal distribution.
    pub fn taken(&self, has_reserve: bool, load: f64, chance: f64) -> f64 {
        let dead = if has_reserve { 0.0 } else { self.dead };
        let slowness = IDLE_SLOWNESS + (SLOWNESS - IDLE_SLOWNESS) * load;
        dead * (1.0 - load * (DEAD_PATH + chance * DEAD_PATH_DEVIATION))
            + self.slow * (slowness - load * chance * SLOWNESS_DEVIATION)
    }
}

/// The share of its load that a plane keeps with a share `left` of its paths.
pub(crate) fn load_of_plane(left: f64) -> f64 {
    left.clamp(LEAST_OF_PLANE, 1.0)
}

/// The share of its load that a plane keeps in which the receiver's port has this share of its rate.
pub(crate) fn load_of_slow_receiver(share: f64) -> f64 {
    let above =
        SLOW_RECEIVER.iter().position(|&(at, _)| at >= share).unwrap_or(SLOW_RECEIVER.len() - 1).max(1);
    let ((from, low), (to, high)) = (SLOW_RECEIVER[above - 1], SLOW_RECEIVER[above]);
    low + (high - low) * (share - from) / (to - from)
}
