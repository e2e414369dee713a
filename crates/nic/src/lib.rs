//! A software MRC NIC over UDP sockets, IPv4 and IPv6, without privileges; or, with them, over SRv6 frames that it builds
//! itself.
//!
//! A [`Device`] has 1 to 16 ports, each a plane of the fabric: an address of this host. Opened, it is a [`Context`] with
//! an engine that drives `openmrc_transport` on real packets; on it are made the objects that whoever knows verbs
//! knows: [`ProtectionDomain`], [`MemoryRegion`], [`CompletionQueue`], [`QueuePair`].
//!
//! | module | subject |
//! |---|---|
//! | [`device`], [`context`] | configuration and defaults; opening, driving, closing |
//! | [`pd`], [`memory`], [`buffer`], [`cq`], [`qp`], [`qp_state`], [`attr`] | the verbs objects |
//! | [`profile`], [`events`], [`stats`] | for a controller: paths, what happens to them, counters |
//! | [`impair`], `impairer` | a bad network on purpose: the rules, and their application |
//! | `shared`, `engine` | who drives the engine; everything behind its lock: sending, receiving, deadlines |
//! | `port`, `peer`, `path`, `socket`, `frames`, `nexthop` | where packets go, by what, and SRv6 mode's next hops |
//! | `arena`, `tx`, `sys` | runs of packets put together for one system call; the clock |

mod arena;
pub mod attr;
pub mod buffer;
pub mod context;
pub mod cq;
pub mod device;
mod engine;
pub mod error;
pub mod events;
mod frames;
pub mod impair;
mod impairer;
pub mod memory;
mod nexthop;
mod path;
pub mod pd;
mod peer;
mod port;
pub mod profile;
pub mod qp;
pub mod qp_state;
mod shared;
mod socket;
pub mod stats;
mod sys;
mod tx;

pub use attr::{QpAttr, QpCap, QpInfo};
pub use buffer::Buffer;
pub use context::{Context, PortState, ProbeResult};
pub use cq::{Completion, CompletionQueue, Opcode, Status};
pub use device::{DEFAULT_UDP_PORT, Device, DeviceConfig, PortConfig};
pub use error::{Error, Result};
pub use events::{AsyncEvent, PathEvent};
pub use impair::{EvSelection, ImpairRule, Impairment, PacketClass};
pub use memory::{Access, MemoryRegion};
pub use openmrc_sockets::monotonic_ns;
pub use path::SegmentRoute;
pub use pd::ProtectionDomain;
pub use profile::{CcProfileConfig, EvProfileConfig};
pub use qp::{QueuePair, RecvWr, SendData, SendWr, Sge};
pub use qp_state::QpState;
pub use shared::Polling;
pub use stats::{Cause, Causes, ContextStats, PathStats, PortStats};
