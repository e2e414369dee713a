//! One collective operation under way: its program, its memory, and the progress of its messages. A state machine
//! driven by [`Operation::progress`], which never waits.

use std::sync::Arc;

use openmrc_nic::MemoryRegion;
use openmrc_schedule::{Finish, Program, Rank, Span};

use crate::error::{Error, Result};
use crate::header::{Header, Signature};
use crate::kernels;
use crate::layout::{COLLECTIVE, READ_LEAST, READ_MOST};
use crate::link::Link;
use crate::local::Home;
use crate::memory::OperationMemory;
use crate::messages::Messages;
use crate::types::{DataType, ReduceOp};
use crate::work::WorkState;

/// What an operation does with elements.
#[derive(Clone, Copy)]
pub struct Reduction {
    pub dtype: DataType,
    pub op: ReduceOp,
    pub ranks: u32,
}

/// An operation.
pub struct Operation {
    /// Its number in the communicator.
    pub number: u64,
    pub signature: Signature,
    pub work: Arc<WorkState>,
    program: Program,
    reduction: Option<Reduction>,
    memory: OperationMemory,
    messages: Messages,
}

impl Operation {
    /// Begins an operation among `ranks` with its copies. The memory contains every span of the program.
    pub fn new(
        number: u64,
        signature: Signature,
        program: Program,
        reduction: Option<Reduction>,
        memory: OperationMemory,
        ranks: usize,
        work: Arc<WorkState>,
    ) -> Operation {
        for &(from, to) in &program.copies {
            let len = from.len;
            let (from, to) = (memory.read(from), memory.write(to));
            if !std::ptr::eq(from, to) {
                // SAFETY: the memory contains both; a part may overlap itself only if it is the same.
                unsafe { std::ptr::copy(from, to, len) };
            }
        }
        let messages = Messages::new(&program, ranks);
        Operation { number, signature, work, program, reduction, memory, messages }
    }

    /// Registers the memory that the NIC reads. `register` makes a region of an address and a length.
    pub fn register(
        &mut self,
        links: &[Option<Link>],
        register: impl Fn(*mut u8, usize) -> Result<MemoryRegion>,
    ) -> Result<()> {
        self.memory.register(&self.program, links, register)
    }

    /// Sends and receives what can be; returns whether anything happened.
    ///
    /// # Errors
    /// A peer called something else, or the NIC failed.
    pub fn progress(&mut self, links: &mut [Option<Link>], home: &Home) -> Result<bool> {
        let mut worked = false;
        for link in links.iter_mut().flatten() {
            worked |= self.receive(link, home)?;
            worked |= self.send(link, home)?;
            for _ in 0..link.take_read() {
                self.messages.completed(link.peer);
                worked = true;
            }
        }
        Ok(worked)
    }

    /// Whether all messages are sent and received, and the NIC no longer needs its memory.
    pub fn is_done(&self) -> bool {
        self.messages.are_done()
    }

    /// The NIC has completed a send of it to a peer.
    pub fn completed(&mut self, peer: Rank) {
        self.messages.completed(peer);
    }

    /// Local work at the end.
    pub fn finish(&mut self) {
        let (Some(Finish::Reduce { parts, to }), Some(how)) = (&self.program.finish, self.reduction) else {
            return;
        };
        let parts: Vec<*const u8> = parts.iter().map(|&part| self.memory.read(part)).collect();
        let n = to.len / how.dtype.size();
        let to = self.memory.write(*to);
        // SAFETY: the memory contains every span of the program; all messages have arrived.
        unsafe {
            kernels::reduce_all(how.dtype, how.op, to, &parts, n);
            if how.op == ReduceOp::Avg {
                kernels::divide(how.dtype, to, n, how.ranks);
            }
        }
    }

    /// Ends it. The memory is the caller's again before anybody learns that the work has ended.
    pub fn end(self, result: Result<()>) {
        let work = Arc::clone(&self.work);
        drop(self);
        work.complete(result);
    }

    /// Ranks from which or to which something is missing.
    pub fn waits_for(&self) -> impl Iterator<Item = (Rank, &'static str)> {
        self.messages.waits_for()
    }

    /// Whether a message from a rank is missing.
    pub fn expects(&self, peer: Rank) -> bool {
        self.messages.next_recv(peer).is_some()
    }

    /// Whether it still needs a peer.
    pub fn needs(&self, peer: Rank) -> bool {
        self.messages.need(peer)
    }

    /// From now on the messages that are sent are recorded.
    pub fn record_messages(&mut self) {
        self.messages.recorded = Some(Vec::new());
    }

    /// Receivers and lengths of the messages sent, if they are recorded.
    pub fn take_recorded(&mut self) -> Vec<(Rank, u64)> {
        self.messages.recorded.take().unwrap_or_default()
    }

    /// Bytes sent through shared memory, and over the network.
    pub fn bytes(&self) -> [u64; 2] {
        self.messages.bytes
    }

    /// Takes the next message that has arrived, and no more than that: what follows from it is sent while it is in cache,
    /// and before the peer runs out of work.
    fn receive(&mut self, link: &mut Link, home: &Home) -> Result<bool> {
        let Some((index, done)) = self.messages.next_recv(link.peer) else { return Ok(false) };
        let Some(message) = link.arrived(home, COLLECTIVE) else { return Ok(false) };
        if message.header.operation < self.number {
            return Ok(false); // A stray of an operation that has ended here.
        }
        let recv = self.program.recvs[index];
        self.check(&message.header, link.peer, recv.to.len, done)?;
        link.reached = self.number;
        let len = message.header.len as usize;
        let ready =
            recv.after.map_or(usize::MAX, |after| self.messages.ready(&self.program, after, recv.to.len));
        if ready < done + len {
            return Ok(false);
        }
        let part = Span { offset: recv.to.offset + done, len, ..recv.to };
        let to = self.memory.write(part);
        if recv.with.is_some() && message.header.source != 0 {
            return Err(Error::device("a message", "what is reduced must be in a slot"));
        }
        match (recv.with, self.reduction) {
            (Some(with), Some(how)) => {
                let with = self.memory.read(Span { offset: with.offset + done, ..with });
                let n = len / how.dtype.size();
                // SAFETY: the memory contains every span of the program; the message is in its slot.
                unsafe {
                    kernels::reduce(how.dtype, how.op, to, with, message.data, n);
                    if recv.last && how.op == ReduceOp::Avg {
                        kernels::divide(how.dtype, to, n, how.ranks);
                    }
                }
            }
            // SAFETY: as above.
            _ => {
                let stored = unsafe { link.store(&message, to) }?;
                // A peer that has aborted says so before its memory is used otherwise.
                if !stored || home.aborted() != 0 {
                    return Ok(false);
                }
            }
        }
        link.take(home, COLLECTIVE)?;
        self.messages.received(link.peer, len, recv.to.len);
        Ok(true)
    }

    /// Whether a message belongs to this operation and is the next part of a message of `total` bytes.
    fn check(&self, header: &Header, rank: Rank, total: usize, offset: usize) -> Result<()> {
        let same = header.operation == self.number
            && header.signature == self.signature
            && header.total == total as u64
            && header.offset == offset as u64
            && header.len > 0
            && header.len <= header.total - header.offset.min(header.total);
        if same {
            return Ok(());
        }
        let sizes = header.signature == self.signature && header.operation == self.number;
        let describe = |what: &Signature, number: u64, bytes: u64| {
            let size = if sizes { format!(" with {bytes} bytes for the other") } else { String::new() };
            format!("{} as call {number}{size}", what.describe())
        };
        Err(Error::Mismatch {
            rank,
            theirs: describe(&header.signature, header.operation, header.total),
            ours: describe(&self.signature, self.number, total as u64),
        })
    }

    fn send(&mut self, link: &mut Link, home: &Home) -> Result<bool> {
        let mut worked = false;
        let reader = link.is_reader(home);
        while let Some((index, sent)) = self.messages.next_send(link.peer) {
            let send = self.program.sends[index];
            let total = send.from.len;
            let ready = send.after.map_or(total, |after| self.messages.ready(&self.program, after, total));
            if ready <= sent || link.lost.is_some() || !link.can_send(COLLECTIVE) {
                break;
            }
            let data = self.memory.read(Span { offset: send.from.offset + sent, ..send.from });
            let read = reader && !send.reduced && ready - sent >= READ_LEAST;
            let len = (ready - sent).min(if read { READ_MOST } else { link.longest() });
            let header = Header {
                operation: self.number,
                signature: self.signature,
                total: total as u64,
                offset: sent as u64,
                len: len as u64,
                source: if read { data.expose_provenance() as u64 } else { 0 },
            };
            let lkey = self.memory.lkey(send.from);
            // SAFETY: the range lies in the operation's memory, which stays until the NIC has completed the send; a program
            // does not write what it sends before it has arrived.
            let held = unsafe { link.send(COLLECTIVE, &header, data, lkey, self.number + 1) }?;
            self.messages.sent(link.peer, len, total, usize::from(!link.is_local()), held);
            worked = true;
        }
        Ok(worked)
    }
}
