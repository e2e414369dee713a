//! A node: everything around its queue pairs.

pub mod endpoint;
mod pressure;
pub mod ready;

pub use pressure::{DestinationControl, Pressure};
