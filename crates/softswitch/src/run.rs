//! Drives a switch on the packet sockets of its ports.

use std::io;
use std::os::fd::RawFd;
use std::time::Instant;

use crate::config::Config;
use crate::queue::Frame;
use crate::socket::{self, BATCH, PacketSocket};
use crate::switch::{Counters, Switch};

/// Longest frame: an MTU of 9216 and the Ethernet header.
const FRAME_LEN: usize = 9216 + 14;

/// Why a switch does not run.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// It is told nonsense.
    #[error(transparent)]
    Config(#[from] crate::config::ConfigError),
    /// A port's interface is not there or not allowed.
    #[error("port {0}: {1}")]
    Port(String, io::Error),
    /// The system refuses to wait.
    #[error("waiting for frames: {0}")]
    Wait(io::Error),
}

/// Runs a switch in the current network namespace until `stop` becomes readable; calls `ready` once it forwards.
///
/// # Errors
/// [`RunError`] if it cannot start, or one of its sockets fails.
pub fn run(config: &Config, stop: RawFd, ready: impl FnOnce()) -> Result<Counters, RunError> {
    let mut switch = Switch::new(config)?;
    let sockets = config
        .ports
        .iter()
        .map(|port| PacketSocket::open(&port.name).map_err(|e| RunError::Port(port.name.clone(), e)))
        .collect::<Result<Vec<_>, _>>()?;
    let mut fds: Vec<RawFd> = sockets.iter().map(PacketSocket::fd).collect();
    fds.push(stop);
    let mut readable = vec![false; fds.len()];
    let mut pool = Pool::default();
    let mut arriving: Vec<Frame> = Vec::with_capacity(BATCH);
    let mut leaving: Vec<Frame> = Vec::with_capacity(BATCH);
    let clock = Instant::now();
    let now = || clock.elapsed().as_nanos() as u64;
    socket::sleep_exactly();
    ready();
    loop {
        let timeout = switch.next_departure().map(|at| at.saturating_sub(now()));
        socket::wait(&fds, &mut readable, timeout).map_err(RunError::Wait)?;
        if readable[sockets.len()] {
            return Ok(switch.counters);
        }
        for (port, socket) in sockets.iter().enumerate() {
            if !readable[port] {
                continue;
            }
            arriving.resize_with(BATCH, || pool.take());
            let count = socket
                .receive(&mut arriving)
                .map_err(|e| RunError::Port(config.ports[port].name.clone(), e))?;
            for frame in arriving.drain(..count) {
                if let Some(frame) = switch.receive(port, frame) {
                    pool.give(frame);
                }
            }
        }
        let now = now();
        for (port, socket) in sockets.iter().enumerate() {
            loop {
                leaving.extend(std::iter::from_fn(|| switch.transmit(port, now)).take(BATCH));
                if leaving.is_empty() {
                    break;
                }
                // What the interface does not take is lost, as on a cable that is cut.
                switch.counters.dropped_at_interface += (leaving.len() - socket.send(&leaving)) as u64;
                leaving.drain(..).for_each(|frame| pool.give(frame));
            }
        }
    }
}

/// Buffers that are not in use.
#[derive(Default)]
struct Pool(Vec<Frame>);

impl Pool {
    fn take(&mut self) -> Frame {
        self.0.pop().unwrap_or_else(|| Frame { buffer: vec![0; FRAME_LEN].into_boxed_slice(), len: 0 })
    }

    fn give(&mut self, frame: Frame) {
        self.0.push(frame);
    }
}
