//! Which nodes and links a multi-plane fabric has, how they are named, numbered and addressed (spec: fabric).
//!
//! Everything here is arithmetic on a [`Fabric`], a small `Copy` value: nothing is stored per switch, per link or
//! per path, so 131,072 hosts cost what 16 cost. The planner, the switch configurations, the software NIC and the
//! simulator all use the same functions.
//!
//! * [`shape`]: how many of what; the smallest fabric for a number of hosts.
//! * [`fabric`]: switches, ports and links by number; who is at the other end; where a packet goes next.
//! * [`path`]: entropy value <-> path.
//! * [`address`]: uSIDs, path addresses and forwarding tables; the addresses of link ends.
//! * [`names`]: `p3/t0-17`, `h12:p3--p3/t0-0:down12` and back.
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
