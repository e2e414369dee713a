//! Bytes of state of each thing in a run, as an engine says them: what the estimate of memory multiplies.

/// Bytes of state of each thing in a run of a network and a transport.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Footprint {
    /// A port.
    pub per_port: u64,
    /// A host.
    pub per_host: u64,
    /// A host that sends or receives takes these as well.
    pub per_active_host: u64,
    /// A message in the engine, until the run has ended.
    pub per_message: u64,
    /// A message in the results: its row of columns, and the lists that the summary is made of.
    pub per_result: u64,
    /// A connection.
    pub per_connection: u64,
    /// Both queue pairs of an open connection.
    pub per_open_connection: u64,
    /// A packet in the network: its contents and its event.
    pub per_packet: u64,
}
