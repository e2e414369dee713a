//! What a communicator has done: one record per operation, the newest kept.

use std::collections::VecDeque;
use std::time::Duration;

use openmrc_schedule::{Algorithm, Rank, Shape};
use openmrc_sockets::monotonic_ns;

use crate::operation::Operation;
use crate::p2p::Ended;

/// Records that are kept until they are asked for.
const KEPT: usize = 65_536;

/// An operation that has ended.
#[derive(Clone, Debug)]
pub struct OperationRecord {
    /// Number of the call in its communicator; 0 of a message.
    pub number: u64,
    /// Name of the operation; `send` or `recv` of a message.
    pub name: &'static str,
    /// How it was executed.
    pub algorithm: &'static str,
    /// Bytes of the elements that all ranks agree on; of others, what this rank sent.
    pub bytes: u64,
    /// End, nanoseconds of the monotonic clock.
    pub end_ns: u64,
    /// From call to end.
    pub duration: Duration,
    /// Bytes sent through shared memory.
    pub shared_bytes: u64,
    /// Bytes sent over the network.
    pub network_bytes: u64,
    /// The root, or the other end of a message.
    pub peer: Rank,
    /// Tag of a message.
    pub tag: u64,
    /// Receivers and bytes of the messages that this rank sent for the operation, in order: see
    /// [`crate::Communicator::record_messages`].
    pub messages: Vec<(Rank, u64)>,
}

impl OperationRecord {
    /// The record of an operation that has just ended.
    pub(crate) fn of(operation: &mut Operation) -> OperationRecord {
        let messages = operation.take_recorded();
        let signature = &operation.signature;
        let size = crate::types::DataType::from_code(signature.dtype).map_or(1, |dtype| dtype.size() as u64);
        let [shared_bytes, network_bytes] = operation.bytes();
        let common = signature.count * size;
        OperationRecord {
            number: operation.number,
            name: Shape::name_of(signature.kind),
            algorithm: Algorithm::ALL.get(usize::from(signature.algorithm)).map_or("none", |a| a.name()),
            bytes: if common > 0 { common } else { shared_bytes + network_bytes },
            end_ns: monotonic_ns(),
            duration: operation.work.begun.elapsed(),
            shared_bytes,
            network_bytes,
            peer: signature.root as Rank,
            tag: 0,
            messages,
        }
    }

    /// The record of a message that has just ended.
    fn of_message(message: &Ended) -> OperationRecord {
        let bytes = message.len as u64;
        let sent = if message.is_send { bytes } else { 0 };
        OperationRecord {
            number: 0,
            name: if message.is_send { "send" } else { "recv" },
            algorithm: Algorithm::Direct.name(),
            bytes,
            end_ns: monotonic_ns(),
            duration: message.work.begun.elapsed(),
            shared_bytes: if message.is_local { sent } else { 0 },
            network_bytes: if message.is_local { 0 } else { sent },
            peer: message.peer,
            tag: message.tag,
            messages: Vec::new(),
        }
    }
}

/// The newest records, and sums of all.
#[derive(Default)]
pub(crate) struct Log {
    /// Records of operations have their messages.
    pub with_messages: bool,
    records: VecDeque<OperationRecord>,
    /// Operations that have ended.
    pub operations: u64,
    /// Bytes sent through shared memory.
    pub shared_bytes: u64,
    /// Bytes sent over the network.
    pub network_bytes: u64,
}

impl Log {
    pub(crate) fn add(&mut self, record: OperationRecord) {
        self.operations += 1;
        self.shared_bytes += record.shared_bytes;
        self.network_bytes += record.network_bytes;
        self.push(record);
    }

    /// Adds the record of a message; its bytes are counted elsewhere.
    pub(crate) fn add_message(&mut self, message: &Ended) {
        self.push(OperationRecord::of_message(message));
    }

    fn push(&mut self, record: OperationRecord) {
        if self.records.len() == KEPT {
            self.records.pop_front();
        }
        self.records.push_back(record);
    }

    /// The records since the last call.
    pub(crate) fn take(&mut self) -> Vec<OperationRecord> {
        self.records.drain(..).collect()
    }
}
