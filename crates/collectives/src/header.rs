//! The head of every message: the operation and kind it belongs to, so that ranks that call different operations get
//! an error.

use openmrc_schedule::{Algorithm, Shape};

use crate::types::{DataType, ReduceOp};

/// Bytes of a head in a slot.
pub const HEADER_LEN: usize = 64;

/// Arguments that must be equal at all ranks. Integers are those of this machine: ranks of other byte order are
/// refused when connecting.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C)]
pub struct Signature {
    /// Elements, or 0 where ranks may differ.
    pub count: u64,
    /// The root, or 0.
    pub root: u32,
    /// [`Shape::code`], or [`Signature::P2P`].
    pub kind: u8,
    /// [`DataType`].
    pub dtype: u8,
    /// [`ReduceOp`], or 255.
    pub op: u8,
    /// [`Algorithm`].
    pub algorithm: u8,
}

impl Signature {
    /// The kind of point-to-point messages.
    pub const P2P: u8 = 255;

    /// In words, for errors.
    pub fn describe(&self) -> String {
        if self.kind == Self::P2P {
            return "send".into();
        }
        let name = Shape::name_of(self.kind);
        let dtype = DataType::from_code(self.dtype).map_or("unknown type", DataType::name);
        let mut words =
            if self.count > 0 { format!("{name} of {} {dtype}", self.count) } else { name.to_string() };
        if let Some(op) = ReduceOp::from_code(self.op) {
            words += &format!(", {}", op.name());
        }
        if (4..=7).contains(&self.kind) {
            words += &format!(", root {}", self.root);
        }
        if let Some(algorithm) = Algorithm::ALL.get(usize::from(self.algorithm)) {
            words += &format!(" ({})", algorithm.name());
        }
        words
    }
}

/// The head of a message or of a part of one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C)]
pub struct Header {
    /// Number of the operation in its communicator; of point-to-point messages, their tag.
    pub operation: u64,
    /// What was called.
    pub signature: Signature,
    /// Bytes of the whole message.
    pub total: u64,
    /// Bytes of the message before this part.
    pub offset: u64,
    /// Bytes of this part.
    pub len: u64,
    /// Where they lie in the memory of the sender, which the receiver reads; 0: in the slot.
    pub source: u64,
}

const _: () = assert!(size_of::<Header>() <= HEADER_LEN);
