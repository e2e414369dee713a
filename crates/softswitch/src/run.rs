//! The loop that runs a switch on the packet sockets of its ports.

use std::io;
use std::os::fd::RawFd;
use std::time::{Duration, Instant};

use openmrc_sockets::{PollSet, thread};
use openmrc_wire::link::ETHERNET_LEN;

use crate::config::Config;
use crate::queue::Frame;
use crate::socket::{BATCH, PortSocket};
use crate::switch::{Counters, Switch};

/// Longest frame: an MTU of 9216 and the Ethernet header.
const FRAME_LEN: usize = 9216 + ETHERNET_LEN;

/// Why a switch cannot start, or has stopped.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The configuration is not valid.
    #[error(transparent)]
    Config(#[from] crate::config::ConfigError),
    /// The socket of a port failed, or could not be opened.
    #[error("port {0}: {1}")]
    Port(String, io::Error),
    /// The system refused to wait.
    #[error("waiting for frames: {0}")]
    Wait(io::Error),
}

/// Runs a switch in the current network namespace until `stop` becomes readable. Calls `ready` once it forwards.
///
/// # Errors
/// [`RunError`] if it cannot start, or one of its sockets fails.
pub fn run(config: &Config, stop: RawFd, ready: impl FnOnce()) -> Result<Counters, RunError> {
    let mut switch = Switch::new(config)?;
    let mut sockets = config
        .ports
        .iter()
        .map(|port| PortSocket::open(&port.name).map_err(|e| RunError::Port(port.name.clone(), e)))
        .collect::<Result<Vec<_>, _>>()?;
    let mut polled = PollSet::new(sockets.iter().map(PortSocket::fd).chain([stop]));
    let mut pool = Pool::default();
    let mut arriving: Vec<Frame> = Vec::with_capacity(BATCH);
    let mut leaving: Vec<Frame> = Vec::with_capacity(BATCH);
    let clock = Instant::now();
    let now = || clock.elapsed().as_nanos() as u64;
    thread::use_exact_timers();
    ready();
    loop {
        let timeout = switch.next_departure().map(|at| Duration::from_nanos(at.saturating_sub(now())));
        polled.wait(timeout).map_err(RunError::Wait)?;
        if polled.is_readable(sockets.len()) {
            return Ok(switch.counters);
        }
        for (port, socket) in sockets.iter_mut().enumerate() {
            if !polled.is_readable(port) {
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
        for (port, socket) in sockets.iter_mut().enumerate() {
            loop {
                leaving.extend(std::iter::from_fn(|| switch.transmit(port, now)).take(BATCH));
                if leaving.is_empty() {
                    break;
                }
                // The interface is down or full. The frames are lost, as on a cable that is cut.
                switch.counters.dropped_at_interface += (leaving.len() - socket.send(&leaving)) as u64;
                leaving.drain(..).for_each(|frame| pool.give(frame));
            }
        }
    }
}

/// Frame buffers that are not in use.
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
