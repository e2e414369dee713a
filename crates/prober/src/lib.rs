//! Probes of a host to itself, as SRv6 loops in the data plane (docs/operations.md, "Probes").
//!
//! A probe needs no peer and no table of probes that are on their way: it carries its loop, its interval and its number
//! in that interval, under a keyed hash. What comes back is counted for the interval in which it was sent, if that is
//! still open.
//!
//! | module | subject |
//! |---|---|
//! | [`packet`] | a probe as bytes, and the key that proves whose it is |
//! | [`prober`] | the sockets and the thread |
//!
//! Which loop is probed when, and what is counted, is decided in [`openmrc_transport::loops`].
#![forbid(unsafe_code)]

pub mod packet;
mod port;
pub mod prober;

pub use openmrc_transport::loops::{Closed, Count, Probe, Totals};
pub use packet::Key;
pub use prober::{Config, Error, Loop, Prober};
