//! Classic BPF: the few instructions of a socket filter that the packet sockets use (linux/filter.h).

use libc::{
    BPF_ABS, BPF_ADD, BPF_ALU, BPF_B, BPF_H, BPF_IMM, BPF_IND, BPF_JEQ, BPF_JMP, BPF_K, BPF_LD, BPF_LDX,
    BPF_LSH, BPF_MISC, BPF_RET, BPF_TAX, BPF_W,
};

/// One instruction (`struct sock_filter`).
pub type Instruction = libc::sock_filter;

/// Offset at which [`load`] finds the packet type; it is 0 for a packet to this host's MAC address.
pub const PACKET_TYPE: u32 = (libc::SKF_AD_OFF + libc::SKF_AD_PKTTYPE) as u32;

/// How much a load reads, in network byte order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Width {
    /// One byte.
    Byte,
    /// Two bytes.
    Half,
    /// Four bytes.
    Word,
}

impl Width {
    const fn code(self) -> u32 {
        match self {
            Width::Byte => BPF_B,
            Width::Half => BPF_H,
            Width::Word => BPF_W,
        }
    }
}

const fn statement(code: u32, k: u32) -> Instruction {
    Instruction { code: code as u16, jt: 0, jf: 0, k }
}

/// A = the value at `offset` of the packet.
pub const fn load(width: Width, offset: u32) -> Instruction {
    statement(BPF_LD | width.code() | BPF_ABS, offset)
}

/// A = the value at X + `offset` of the packet.
pub const fn load_at_x(width: Width, offset: u32) -> Instruction {
    statement(BPF_LD | width.code() | BPF_IND, offset)
}

/// X = `value`.
pub const fn set_x(value: u32) -> Instruction {
    statement(BPF_LDX | BPF_W | BPF_IMM, value)
}

/// A = A * 2^`bits`.
pub const fn shift_left(bits: u32) -> Instruction {
    statement(BPF_ALU | BPF_LSH | BPF_K, bits)
}

/// A = A + `value`.
pub const fn add(value: u32) -> Instruction {
    statement(BPF_ALU | BPF_ADD | BPF_K, value)
}

/// X = A.
pub const X_IS_A: Instruction = statement(BPF_MISC | BPF_TAX, 0);

/// Skips `equal` instructions if A is `value`, `different` instructions otherwise.
pub const fn jump(value: u32, equal: u8, different: u8) -> Instruction {
    Instruction { code: (BPF_JMP | BPF_JEQ | BPF_K) as u16, jt: equal, jf: different, k: value }
}

/// Accepts the packet, whole.
pub const ACCEPT: Instruction = statement(BPF_RET | BPF_K, u32::MAX);

/// Drops the packet.
pub const DROP: Instruction = statement(BPF_RET | BPF_K, 0);
