//! A software MRC NIC: over UDP sockets (IPv4 or IPv6) without privileges, or over SRv6 frames with CAP_NET_RAW.
//!
//! A [`Device`] has 1 to 16 ports. Each port is an address of this host and one plane of the fabric. An open device is
//! a [`Context`] with an engine that drives `openmrc_transport` on real packets. The context creates the verbs objects:
//! [`ProtectionDomain`], [`MemoryRegion`], [`CompletionQueue`], [`QueuePair`].
//!
//! | module | subject |
//! |---|---|
//! | [`device`], [`context`] | configuration and its defaults; an open device |
//! | [`limits`] | what a device offers |
//! | [`pd`], [`memory`], [`buffer`], [`cq`], [`qp`], [`qp_state`], [`attr`] | the verbs objects |
//! | [`work_request`], [`completion`] | what is posted, and how it ended |
//! | `memory_table`, `work_queues`, `completion_ring` | the part of regions, queue pairs and completion queues that the engine shares |
//! | [`profiles`], [`events`], [`stats`] | for a controller: EV and congestion control profiles, events, counters |
//! | [`impair`], `impairer` | a bad network on purpose: the rules, and their application |
//! | `driver`, `driving` | which thread drives the engine |
//! | `engine`, `shared` | everything under its lock: sending, receiving, timers; what it shares with the application |
//! | `network`: `port`, `peer`, `path` | the ends and paths of packets |
//! | `datapath`: `socket`, `frames`, `nexthop` | UDP sockets, or SRv6 frames and their next hops |
//! | `piece`, `arena`, `tx`, `sys` | packets assembled in runs for one system call; the clock |

mod arena;
pub mod attr;
pub mod buffer;
pub mod completion;
mod completion_ring;
pub mod config;
pub mod context;
pub mod cq;
mod datapath;
pub mod device;
mod driver;
mod driving;
mod engine;
pub mod error;
pub mod events;
mod frames;
mod handover;
mod identification;
pub mod impair;
mod impairer;
pub mod limits;
pub mod memory;
mod memory_table;
mod network;
mod nexthop;
mod path;
pub mod pd;
mod peer;
mod piece;
mod port;
pub mod profiles;
pub mod qp;
pub mod qp_state;
mod shared;
mod socket;
pub mod stats;
mod sync;
mod sys;
mod tx;
mod work_queues;
pub mod work_request;

pub use attr::{QpAttr, QpCap};
pub use buffer::Buffer;
pub use completion::{Completion, Opcode, Status};
pub use completion_ring::Notify;
pub use config::{
    DEFAULT_UDP_PORT, DEVICE_OPTIONS, DeviceConfig, EndpointConfig, EntropyConfig, EpOps, NetworkConfig,
    PortConfig, QpChoices, SackConfig, Setting, SocketConfig, ThreadConfig, number_slot_of,
};
pub use context::{Context, PortState, ProbeResult};
pub use cq::CompletionQueue;
pub use device::Device;
pub use driver::Polling;
pub use error::{Error, Result};
pub use events::{AsyncEvent, EventReader, PathEvent};
pub use impair::{EvSelection, ImpairDescription, ImpairRule, Impairment, PacketClass};
pub use memory::MemoryRegion;
pub use memory_table::Access;
pub use openmrc_sockets::monotonic_ns;
pub use openmrc_transport::mrc::Capabilities;
pub use path::SegmentRoute;
pub use pd::ProtectionDomain;
pub use port::PortStatusUpdate;
pub use profiles::engine::{CcProfileConfig, EvProfileConfig};
pub use qp::QueuePair;
pub use qp_state::{QpInfo, QpState};
pub use stats::{Cause, Causes, ContextStats, PathStats, PortStats};
pub use work_request::{OwnedSendData, OwnedSendWr, RecvWr, SendData, SendList, SendWr, Sge};
