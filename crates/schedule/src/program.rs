//! A rank's part of a collective operation as data: what it sends, what it receives, and what waits for what.
//! Programs are made by [`crate::algorithms`] from rank numbers and sizes alone, and executed by
//! `openmrc-collectives`.
//!
//! Between two ranks the messages of a program travel in the order in which it lists them, so the n-th message sent
//! is the n-th received.

/// Most bytes of a message that travel at once between hosts. What waits for a message byte by byte follows in parts of
/// this size.
pub const SLOT: usize = 256 << 10;

/// Number of a rank in its communicator.
pub type Rank = usize;

/// Which memory of an operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Memory {
    /// What the caller gives.
    Input,
    /// What the caller gets; may be the same memory as the input.
    Output,
    /// Memory of the operation itself.
    Scratch,
}

/// A range of bytes of an operation's memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Span {
    /// Which memory.
    pub memory: Memory,
    /// First byte.
    pub offset: usize,
    /// Number of bytes.
    pub len: usize,
}

impl Span {
    /// `len` bytes of the input.
    pub const fn input(offset: usize, len: usize) -> Span {
        Span { memory: Memory::Input, offset, len }
    }

    /// `len` bytes of the output.
    pub const fn output(offset: usize, len: usize) -> Span {
        Span { memory: Memory::Output, offset, len }
    }

    /// `len` bytes of the scratch memory.
    pub const fn scratch(offset: usize, len: usize) -> Span {
        Span { memory: Memory::Scratch, offset, len }
    }
}

/// A message to send.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Send {
    /// To whom.
    pub to: Rank,
    /// Its bytes.
    pub from: Span,
    /// What must have arrived before.
    pub after: Option<After>,
    /// The receiver reduces it with what it has; else it stores it as it is.
    pub reduced: bool,
}

/// What a message waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum After {
    /// The receive with this index, byte by byte. Both have the same length.
    Bytes(usize),
    /// The whole receive with this index.
    All(usize),
}

/// A message to receive.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Recv {
    /// From whom.
    pub from: Rank,
    /// Where its bytes go.
    pub to: Span,
    /// What they are reduced with; they are stored as they are if there is none.
    pub with: Option<Span>,
    /// The receive that writes what this one reduces with.
    pub after: Option<After>,
    /// The reduction ends here: an average is divided.
    pub last: bool,
}

/// Local work after all messages.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Finish {
    /// The parts, in this order, reduced into a span.
    Reduce {
        /// One part of each rank.
        parts: Vec<Span>,
        /// Where the result goes.
        to: Span,
    },
}

/// What one rank does.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Program {
    /// Bytes copied at the beginning, from and to.
    pub copies: Vec<(Span, Span)>,
    /// Messages to send; those to one rank leave in this order.
    pub sends: Vec<Send>,
    /// Messages to receive; those from one rank arrive in this order.
    pub recvs: Vec<Recv>,
    /// Local work at the end.
    pub finish: Option<Finish>,
    /// Bytes of scratch memory.
    pub scratch: usize,
}

impl Program {
    /// Adds a send of what is stored as it is; an empty one is left out, as its receiver does.
    pub fn send(&mut self, to: Rank, from: Span, after: Option<After>) {
        self.add(Send { to, from, after, reduced: false });
    }

    /// Adds a send of what the receiver reduces; an empty one is left out.
    pub fn send_reduced(&mut self, to: Rank, from: Span, after: Option<After>) {
        self.add(Send { to, from, after, reduced: true });
    }

    fn add(&mut self, send: Send) {
        if send.from.len > 0 {
            self.sends.push(send);
        }
    }

    /// Adds a receive and returns its index; an empty one is left out.
    pub fn recv(&mut self, recv: Recv) -> Option<usize> {
        if recv.to.len == 0 {
            return None;
        }
        self.recvs.push(recv);
        Some(self.recvs.len() - 1)
    }

    /// Adds a receive whose bytes are stored as they are.
    pub fn store(&mut self, from: Rank, to: Span) -> Option<usize> {
        self.recv(Recv { from, to, with: None, after: None, last: false })
    }

    /// Adds a copy at the beginning.
    pub fn copy(&mut self, from: Span, to: Span) {
        if from.len > 0 {
            self.copies.push((from, to));
        }
    }
}
