//! The engine's clock, and randomness from the operating system.

use std::io;

use openmrc_transport::Time;

pub(crate) use openmrc_sockets::memory::is_readable;
pub(crate) use openmrc_sockets::realtime_ns;

/// The time now, by `CLOCK_MONOTONIC`: every [`Time`] in this crate is of this clock.
#[inline]
pub(crate) fn now() -> Time {
    Time(openmrc_sockets::monotonic_ns() * 1000)
}

/// Random bits from the operating system's generator.
pub(crate) fn random_u64() -> io::Result<u64> {
    getrandom::u64().map_err(|e| io::Error::other(format!("no randomness: {e}")))
}
