//! Structures of the extended verbs: completion queues that are polled one completion at a time, queue pairs whose
//! requests are built by calls, and what is given to make them (docs/spec/c-interface.md, section 7.8).

use std::ffi::{c_int, c_void};

use super::verbs::*;

/// Functions of [`IbvCqEx`], by their place.
pub mod pollers {
    pub const START_POLL: usize = 0;
    pub const NEXT_POLL: usize = 1;
    pub const END_POLL: usize = 2;
    pub const READ_OPCODE: usize = 3;
    pub const READ_VENDOR_ERR: usize = 4;
    pub const READ_BYTE_LEN: usize = 5;
    pub const READ_IMM_DATA: usize = 6;
    pub const READ_QP_NUM: usize = 7;
    pub const READ_SRC_QP: usize = 8;
    pub const READ_WC_FLAGS: usize = 9;
    pub const READ_SLID: usize = 10;
    pub const READ_SL: usize = 11;
    pub const READ_DLID_PATH_BITS: usize = 12;
    pub const COUNT: usize = 18;
}

/// `struct ibv_cq_ex`. Every completion queue of verbs has its size; one that was not made as such has no functions.
#[repr(C)]
pub struct IbvCqEx {
    pub base: IbvCq,
    pub comp_mask: u32,
    pub status: c_int,
    pub wr_id: u64,
    pub pollers: [*mut c_void; pollers::COUNT],
    /// The completion that is read; programs do not know of it.
    pub current: IbvWc,
}

/// Functions of [`IbvQpEx`], by their place.
pub mod builders {
    pub const RDMA_WRITE: usize = 5;
    pub const RDMA_WRITE_IMM: usize = 6;
    pub const SET_INLINE_DATA: usize = 13;
    pub const SET_INLINE_DATA_LIST: usize = 14;
    pub const SET_SGE: usize = 15;
    pub const SET_SGE_LIST: usize = 16;
    pub const START: usize = 17;
    pub const COMPLETE: usize = 18;
    pub const ABORT: usize = 19;
    pub const COUNT: usize = 21;
}

/// `struct ibv_qp_ex`. Every queue pair of verbs has its size.
#[repr(C)]
pub struct IbvQpEx {
    pub base: IbvQp,
    pub comp_mask: u64,
    pub wr_id: u64,
    pub wr_flags: u32,
    pub builders: [*mut c_void; builders::COUNT],
}

#[cfg(target_arch = "x86_64")]
mod x86_64 {
    use super::*;
    use crate::abi::layout;
    layout!(IbvCqEx, 336, 8, comp_mask = 128, status = 132, wr_id = 136, pollers = 144, current = 288);
    layout!(IbvQpEx, 352, 8, comp_mask = 160, wr_id = 168, wr_flags = 176, builders = 184);
}

/// Bits of [`IbvCqInitAttrEx::wc_flags`] that every completion has: length, immediate, numbers, and addresses, which are
/// zero.
pub const STANDARD_WC_FLAGS: u64 = 0x7F;
/// The only known bit of [`IbvCqInitAttrEx::comp_mask`] that is taken; both flags are without effect.
pub const CQ_ATTR_FLAGS: u32 = 1;
pub const KNOWN_CQ_FLAGS: u32 = 3;

#[repr(C)]
pub struct IbvCqInitAttrEx {
    pub cqe: u32,
    pub cq_context: *mut c_void,
    pub channel: *mut IbvCompChannel,
    pub comp_vector: u32,
    pub wc_flags: u64,
    pub comp_mask: u32,
    pub flags: u32,
    pub parent_domain: *mut IbvPd,
}
super::layout!(
    IbvCqInitAttrEx,
    56,
    8,
    cq_context = 8,
    channel = 16,
    comp_vector = 24,
    wc_flags = 32,
    comp_mask = 40
);

pub const QP_ATTR_PD: u32 = 1;
pub const QP_ATTR_CREATE_FLAGS: u32 = 1 << 2;
pub const QP_ATTR_SEND_OPS: u32 = 1 << 6;
pub const WITH_RDMA_WRITE: u64 = 1;
pub const WITH_RDMA_WRITE_WITH_IMM: u64 = 1 << 1;

#[repr(C)]
pub struct IbvQpInitAttrEx {
    pub qp_context: *mut c_void,
    pub send_cq: *mut IbvCq,
    pub recv_cq: *mut IbvCq,
    pub srq: *mut c_void,
    pub cap: IbvQpCap,
    pub qp_type: c_int,
    pub sq_sig_all: c_int,
    pub comp_mask: u32,
    pub pd: *mut IbvPd,
    pub xrcd: *mut c_void,
    pub create_flags: u32,
    pub max_tso_header: u16,
    pub rwq_ind_tbl: *mut c_void,
    pub rx_hash: [u64; 3],
    pub source_qpn: u32,
    pub send_ops_flags: u64,
}

super::layout!(
    IbvQpInitAttrEx,
    136,
    8,
    comp_mask = 60,
    pd = 64,
    create_flags = 80,
    rwq_ind_tbl = 88,
    source_qpn = 120,
    send_ops_flags = 128
);

/// Bytes of `struct ibv_device_attr_ex` before the number of ports, which is in its end since rdma-core 36.
pub const PORTS_IN_DEVICE_ATTR_EX: usize = 396;

/// `struct ibv_data_buf`.
#[repr(C)]
pub struct IbvDataBuf {
    pub addr: *const u8,
    pub length: usize,
}
