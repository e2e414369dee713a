//! Classic BPF: the few instructions of a socket filter that the packet sockets use (linux/filter.h).

use std::net::Ipv6Addr;

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

/// A program for a packet socket: it accepts what comes in as UDP over IPv6 in IPv6 to this address and these UDP ports,
/// with or without an SRH between the IP headers.
pub fn udp_in_ipv6(addr: Ipv6Addr, udp_ports: &[u16]) -> Vec<Instruction> {
    use Width::{Byte, Half, Word};
    /// Offset of the outer IPv6 header, and of what follows it.
    const OUTER: u32 = 14;
    const BEHIND: u32 = OUTER + 40;
    /// Offset of "next header" in an IPv6 header.
    const NEXT_HEADER: u32 = 6;
    const IPV6_IN: u32 = 41;
    const ROUTING: u32 = 43;
    const UDP: u32 = 17;
    /// A jump to the last instruction, which drops the packet. The loop below fills in the distance.
    const REFUSE: u8 = u8::MAX;
    let mut program = vec![
        load(Byte, PACKET_TYPE),
        jump(0, 0, REFUSE),
        load(Byte, OUTER + NEXT_HEADER),
        // X = offset of the inner header.
        set_x(BEHIND),
        jump(IPV6_IN, 7, 0),
        jump(ROUTING, 0, REFUSE),
        load(Byte, BEHIND),
        jump(IPV6_IN, 0, REFUSE),
        // The second byte of an SRH counts its length in units of eight bytes beyond the first eight.
        load(Byte, BEHIND + 1),
        shift_left(3),
        add(BEHIND + 8),
        X_IS_A,
        load_at_x(Byte, NEXT_HEADER),
        jump(UDP, 0, REFUSE),
    ];
    for (word, part) in addr.octets().chunks_exact(4).enumerate() {
        program.push(load_at_x(Word, 24 + 4 * word as u32));
        program.push(jump(u32::from_be_bytes([part[0], part[1], part[2], part[3]]), 0, REFUSE));
    }
    program.push(load_at_x(Half, 42));
    for (i, &udp_port) in udp_ports.iter().enumerate() {
        let others = (udp_ports.len() - 1 - i) as u8;
        program.push(jump(u32::from(udp_port), others, if others > 0 { 0 } else { REFUSE }));
    }
    program.push(ACCEPT);
    program.push(DROP);
    let last = program.len() - 1;
    for (i, instruction) in program.iter_mut().enumerate() {
        if instruction.jf == REFUSE {
            instruction.jf = (last - i - 1) as u8;
        }
    }
    program
}
