//! The nodes and links of a multi-plane fabric, with their names, numbers and addresses (docs/spec/fabric.md).
//!
//! Everything is arithmetic on a [`Fabric`], a small `Copy` value. Nothing is stored per switch, link or path, so
//! 131,072 hosts cost no more than 16. The planner, the switch configurations, the software NIC and the simulator use
//! the same functions.
//!
//! * [`shape`]: the numbers that define a fabric; the smallest fabric for a number of hosts.
//! * [`fabric`]: switches, ports and links by number; the other end of a link; the next hop of a packet.
//! * [`path`]: entropy value <-> path.
//! * [`address`]: uSIDs, path addresses and forwarding tables; the addresses of link ends.
//! * [`names`]: names such as `p3/t0-17` and `h12:p3--p3/t0-0:down12`.
//! * [`trace`]: what a path address in a capture means.
#![forbid(unsafe_code)]

pub mod address;
pub mod fabric;
pub mod names;
pub mod path;
pub mod shape;
pub mod trace;

pub use address::{AddressError, AddressPlan, Entry, LinkPrefix};
pub use fabric::{Counts, End, Fabric, Link, Node, Route, Switch};
pub use names::NameError;
pub use path::{EvError, EvLayout, Path, Step};
pub use shape::{Ratio, Shape, ShapeError, Sizing};
pub use trace::{Trace, TraceError};
