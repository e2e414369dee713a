//! One collective operation on its way: its program, how far each message is, and its memory. It is a state machine that
//! is driven by [`Operation::progress`] and never waits.

use std::collections::VecDeque;
use std::sync::Arc;

use openmrc_nic::MemoryRegion;

use crate::error::{Error, Result};
use crate::header::{Header, Signature};
use crate::kernels;
use crate::layout::{COLLECTIVE, SLOT_DATA};
use crate::link::Link;
use crate::local::Home;
use crate::program::{After, Finish, Memory, Program, Rank, Span};
use crate::types::{DataType, ReduceOp};
use crate::work::WorkState;

/// The memory of an operation, as addresses: the caller keeps it valid until the operation has ended.
#[derive(Clone, Copy)]
pub struct Buffers {
    pub input: *const u8,
    pub output: *mut u8,
}

// SAFETY: the caller promises that the memory may be used from any thread until the operation has ended.
unsafe impl Send for Buffers {}

/// What an operation does with elements.
#[derive(Clone, Copy)]
pub struct Reduction {
    pub dtype: DataType,
    pub op: ReduceOp,
    pub ranks: u32,
}

/// How far the messages with one peer are.
#[derive(Default)]
struct Lists {
    /// Messages not sent completely, as indices of the program.
    sends: VecDeque<usize>,
    recvs: VecDeque<usize>,
}

/// An operation.
pub struct Operation {
    /// Its number in the communicator.
    pub number: u64,
    pub signature: Signature,
    program: Program,
    buffers: Buffers,
    reduction: Option<Reduction>,
    scratch: Vec<u8>,
    /// A copy of the input, where it is scaled before it is used.
    scaled: Option<Vec<u8>>,
    /// Registered memory: of input, output and scratch.
    regions: [Option<MemoryRegion>; 3],
    lists: Vec<Lists>,
    sent: Vec<usize>,
    received: Vec<usize>,
    /// Sends that the NIC has not completed.
    pub outstanding: usize,
    /// Messages that are left, both ways.
    left: usize,
    pub work: Arc<WorkState>,
    /// Bytes sent through shared memory, and over the network.
    pub bytes: [u64; 2],
}

impl Operation {
    /// Begins an operation with its copies.
    ///
    /// # Safety
    /// The buffers have the sizes that the program uses, and stay valid and untouched by others until the work has ended.
    pub unsafe fn new(
        number: u64,
        signature: Signature,
        program: Program,
        buffers: Buffers,
        reduction: Option<Reduction>,
        ranks: usize,
        work: Arc<WorkState>,
    ) -> Operation {
        let mut lists: Vec<Lists> = (0..ranks).map(|_| Lists::default()).collect();
        program.sends.iter().enumerate().for_each(|(i, send)| lists[send.to].sends.push_back(i));
        program.recvs.iter().enumerate().for_each(|(i, recv)| lists[recv.from].recvs.push_back(i));
        let operation = Operation {
            number,
            signature,
            sent: vec![0; program.sends.len()],
            received: vec![0; program.recvs.len()],
            left: program.sends.len() + program.recvs.len(),
            scratch: vec![0; program.scratch],
            scaled: None,
            regions: [const { None }; 3],
            lists,
            outstanding: 0,
            buffers,
            reduction,
            program,
            work,
            bytes: [0; 2],
        };
        for &(from, to) in &operation.program.copies {
            let len = from.len;
            let (from, to) = (operation.read(from), operation.write(to));
            if !std::ptr::eq(from, to) {
                // SAFETY: the caller's promise; a part may overlap itself only if it is the same.
                unsafe { std::ptr::copy(from, to, len) };
            }
        }
        operation
    }

    /// Uses a scaled copy of the input.
    ///
    /// # Safety
    /// The input has `len` elements.
    pub unsafe fn scale_input(&mut self, len: usize, factor: f64, dtype: DataType) {
        let mut scaled = vec![0u8; len * dtype.size()];
        // SAFETY: both have `len` elements.
        unsafe { kernels::scale(dtype, scaled.as_mut_ptr(), self.buffers.input, len, factor) };
        self.buffers.input = scaled.as_ptr();
        self.scaled = Some(scaled);
    }

    /// Registers the memory that the NIC reads. `register` makes a region of an address and a length.
    pub fn register(
        &mut self,
        links: &[Option<Link>],
        register: impl Fn(*mut u8, usize) -> Result<MemoryRegion>,
    ) -> Result<()> {
        let mut ends = [0usize; 3];
        for send in &self.program.sends {
            let remote = links[send.to].as_ref().is_some_and(|link| !link.is_local());
            if remote && send.from.len > crate::remote::COPIED {
                let end = &mut ends[send.from.memory as usize];
                *end = (*end).max(send.from.offset + send.from.len);
            }
        }
        let bases = [self.buffers.input.cast_mut(), self.buffers.output, self.scratch.as_mut_ptr()];
        for i in 0..3 {
            if ends[i] > 0 {
                self.regions[i] = Some(register(bases[i], ends[i])?);
            }
        }
        Ok(())
    }

    fn read(&self, span: Span) -> *const u8 {
        // SAFETY: programs stay within the memory that `new`'s caller promised.
        unsafe {
            match span.memory {
                Memory::Input => self.buffers.input.add(span.offset),
                Memory::Output => self.buffers.output.add(span.offset).cast_const(),
                Memory::Scratch => self.scratch.as_ptr().add(span.offset),
            }
        }
    }

    fn write(&self, span: Span) -> *mut u8 {
        self.read(span).cast_mut()
    }

    /// Sends and receives what can be; returns whether anything happened.
    ///
    /// # Errors
    /// A peer called something else, or the NIC failed.
    pub fn progress(&mut self, links: &mut [Option<Link>], home: &Home) -> Result<bool> {
        let mut worked = false;
        for link in links.iter_mut().flatten() {
            worked |= self.receive(link, home)?;
            worked |= self.send(link)?;
        }
        Ok(worked)
    }

    /// Whether all messages are sent and received, and the NIC needs no memory of it any more.
    pub fn is_done(&self) -> bool {
        self.left == 0 && self.outstanding == 0
    }

    /// Local work at the end.
    pub fn finish(&mut self) {
        let (Some(Finish::Reduce { parts, to }), Some(how)) = (&self.program.finish, self.reduction) else {
            return;
        };
        let parts: Vec<*const u8> = parts.iter().map(|&part| self.read(part)).collect();
        let n = to.len / how.dtype.size();
        let to = self.write(*to);
        // SAFETY: programs stay within the memory that `new`'s caller promised; all messages have arrived.
        unsafe {
            kernels::reduce_all(how.dtype, how.op, to, &parts, n);
            if how.op == ReduceOp::Avg {
                kernels::divide(how.dtype, to, n, how.ranks);
            }
        }
    }

    /// Ranks from which or to which something is missing.
    pub fn waits_for(&self) -> impl Iterator<Item = (Rank, &'static str)> {
        self.lists.iter().enumerate().filter_map(|(rank, lists)| {
            match (lists.recvs.is_empty(), lists.sends.is_empty()) {
                (false, _) => Some((rank, "data")),
                (true, false) => Some((rank, "room")),
                _ => None,
            }
        })
    }

    /// Whether it still needs a peer.
    pub fn needs(&self, peer: Rank) -> bool {
        !self.lists[peer].recvs.is_empty() || !self.lists[peer].sends.is_empty()
    }

    fn receive(&mut self, link: &mut Link, home: &Home) -> Result<bool> {
        let mut worked = false;
        while let Some(&index) = self.lists[link.peer].recvs.front() {
            let Some(message) = link.arrived(home, COLLECTIVE) else { break };
            let recv = self.program.recvs[index];
            let done = self.received[index];
            self.check(&message.header, link.peer, recv.to.len, done)?;
            let len = message.header.len as usize;
            if recv.after.is_some_and(|after| self.ready(after, recv.to.len) < done + len) {
                break;
            }
            let part = Span { offset: recv.to.offset + done, len, ..recv.to };
            let to = self.write(part);
            match (recv.with, self.reduction) {
                (Some(with), Some(how)) => {
                    let with = self.read(Span { offset: with.offset + done, ..with });
                    let n = len / how.dtype.size();
                    // SAFETY: programs stay within the memory that `new`'s caller promised; the message is in its slot.
                    unsafe {
                        kernels::reduce(how.dtype, how.op, to, with, message.data, n);
                        if recv.last && how.op == ReduceOp::Avg {
                            kernels::divide(how.dtype, to, n, how.ranks);
                        }
                    }
                }
                // SAFETY: as above.
                _ => unsafe { std::ptr::copy_nonoverlapping(message.data, to, len) },
            }
            link.take(home, COLLECTIVE)?;
            worked = true;
            self.received[index] = done + len;
            if done + len == recv.to.len {
                self.lists[link.peer].recvs.pop_front();
                self.left -= 1;
            }
        }
        Ok(worked)
    }

    /// How many of its `len` bytes a message may use.
    fn ready(&self, after: After, len: usize) -> usize {
        match after {
            After::Bytes(recv) => self.received[recv],
            After::All(recv) if self.received[recv] == self.program.recvs[recv].to.len => len,
            After::All(_) => 0,
        }
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

    fn send(&mut self, link: &mut Link) -> Result<bool> {
        let mut worked = false;
        while let Some(&index) = self.lists[link.peer].sends.front() {
            let send = self.program.sends[index];
            let sent = self.sent[index];
            let ready = send.after.map_or(send.from.len, |after| self.ready(after, send.from.len));
            if ready <= sent || link.lost.is_some() || !link.can_send(COLLECTIVE) {
                break;
            }
            let len = (ready - sent).min(SLOT_DATA);
            let header = Header {
                operation: self.number,
                signature: self.signature,
                total: send.from.len as u64,
                offset: sent as u64,
                len: len as u64,
            };
            let data = self.read(Span { offset: send.from.offset + sent, ..send.from });
            let lkey = self.regions[send.from.memory as usize].as_ref().map(MemoryRegion::lkey);
            // SAFETY: the range lies in the operation's memory, which stays until `outstanding` is 0; a program does not
            // write what it sends before it has arrived.
            self.outstanding +=
                usize::from(unsafe { link.send(COLLECTIVE, &header, data, lkey, self.number + 1) }?);
            self.bytes[usize::from(!link.is_local())] += len as u64;
            worked = true;
            self.sent[index] = sent + len;
            if sent + len == send.from.len {
                self.lists[link.peer].sends.pop_front();
                self.left -= 1;
            }
        }
        Ok(worked)
    }
}
