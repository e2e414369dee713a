//! Structures and constants of `mrc.h` (docs/spec/c-interface.md, sections 2, 4 and 5).

use std::ffi::{c_int, c_void};

use super::layout;
use super::verbs::{IbvPd, IbvQpCap};

/// A version of the interface.
pub const fn version(major: u32, minor: u32, sub: u32) -> u32 {
    major << 24 | minor << 16 | sub
}

pub const CURRENT_VERSION: u32 = version(1, 0, 1);
pub const LATEST_VERSION: u32 = u32::MAX;
pub const LAST_SUPPORTED_VERSION: u32 = 0;
pub const VENDOR_CURRENT_VERSION: u32 = version(1, 0, 0);

pub const MAX_VENDOR_CFG_SIZE: usize = 128;

pub const MRC_PROTOCOL_VERSION_1: u32 = 1;

pub const MRC_DEVICE_CAP_TRIM_NACK: u32 = 1;
pub const MRC_DEVICE_CAP_DYNAMIC_MPR: u32 = 1 << 1;
pub const MRC_DEVICE_CAP_SVC_TIME: u32 = 1 << 2;

/// Bits of the mask of `mrc_query_qp_hint`.
pub mod hint_attr {
    pub const NUM_QPS_PER_PEER: u32 = 1;
    pub const NUM_SEND_PEERS: u32 = 1 << 1;
    pub const NUM_REMOTE_RECV_PEERS: u32 = 1 << 2;
    pub const VENDOR_CFG: u32 = 1 << 31;
}

/// Bits of the MRC mask of `mrc_modify_qp`.
pub mod qp_attr {
    pub const MAX_WIMM: u32 = 1;
    pub const MAX_WIMM_DEST: u32 = 1 << 1;
    pub const MPR: u32 = 1 << 2;
    pub const MPR_DEST: u32 = 1 << 3;
    pub const TIMEOUT: u32 = 1 << 4;
    pub const EV_PROFILE_ID: u32 = 1 << 5;
    pub const CC_PROFILE_ID: u32 = 1 << 6;
    pub const HINT: u32 = 1 << 7;
    pub const RETRY_CNT: u32 = 1 << 8;
    pub const CAP: u32 = 1 << 9;
    pub const VENDOR_CFG: u32 = 1 << 31;
}

pub const MRC_QP_CAP_TRIM_NACK_DEST_UNSUPPORTED: u32 = 1;
pub const MRC_QP_CAP_DYNAMIC_MPR: u32 = 1 << 1;
pub const MRC_QP_CAP_SVC_TIME_DEST_UNSUPPORTED: u32 = 1 << 2;

#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct MrcDeviceAttr {
    pub mrc_protocol_version: u32,
    pub max_wimm: u16,
    pub max_wimm_dest: u16,
    pub max_mpr: u8,
    pub mpr_resolution: u8,
    pub max_qp_hint: u32,
    pub cap: u32,
}
layout!(
    MrcDeviceAttr,
    20,
    4,
    mrc_protocol_version = 0,
    max_wimm = 4,
    max_wimm_dest = 6,
    max_mpr = 8,
    mpr_resolution = 9,
    max_qp_hint = 12,
    cap = 16
);

#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct MrcContextAttr {
    pub mrc_api_version_used: u32,
    pub mrc_vendor_api_version_used: u32,
}
layout!(MrcContextAttr, 8, 4, mrc_vendor_api_version_used = 4);

#[repr(C)]
#[derive(Clone, Copy)]
pub struct MrcQpHintAttr {
    pub num_qps_per_peer: c_int,
    pub num_send_peers: c_int,
    pub num_remote_recv_peers: c_int,
    pub vendor_cfg: [u8; MAX_VENDOR_CFG_SIZE],
}
layout!(
    MrcQpHintAttr,
    140,
    4,
    num_qps_per_peer = 0,
    num_send_peers = 4,
    num_remote_recv_peers = 8,
    vendor_cfg = 12
);

/// `struct mrc_qp_hint_init_attr`, which has only this member.
pub type MrcQpHintInitAttr = MrcQpHintAttr;

#[repr(C)]
#[derive(Clone, Copy)]
pub struct MrcQpInitAttr {
    pub qp_context: *mut c_void,
    pub send_cq: *mut c_void,
    pub recv_cq: *mut c_void,
    pub cap: IbvQpCap,
    pub sq_sig_all: c_int,
    pub pd: *mut IbvPd,
    pub send_ops_flags: u64,
    pub protocol_version: c_int,
}
layout!(
    MrcQpInitAttr,
    72,
    8,
    qp_context = 0,
    send_cq = 8,
    recv_cq = 16,
    cap = 24,
    sq_sig_all = 44,
    pd = 48,
    send_ops_flags = 56,
    protocol_version = 64
);

/// The two members of `profile` in `struct mrc_qp_attr`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct ProfileIds {
    pub ev_profile_id: u64,
    pub cc_profile_id: u64,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct MrcQpAttr {
    pub mpr: u8,
    pub mpr_dest: u8,
    pub max_wimm: u16,
    pub max_wimm_dest: u16,
    pub timeout: u8,
    pub profile: ProfileIds,
    pub linear_cnt: u8,
    pub exp_cnt: u8,
    pub qp_hint: *mut c_void,
    pub cap: u32,
    pub vendor_cfg: [u8; MAX_VENDOR_CFG_SIZE],
}
layout!(
    MrcQpAttr,
    176,
    8,
    mpr = 0,
    mpr_dest = 1,
    max_wimm = 2,
    max_wimm_dest = 4,
    timeout = 6,
    profile.ev_profile_id = 8,
    profile.cc_profile_id = 16,
    linear_cnt = 24,
    exp_cnt = 25,
    qp_hint = 32,
    cap = 40,
    vendor_cfg = 44
);

/// `struct mrc_async_event`, whose element is a union as in verbs.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct MrcAsyncEvent {
    pub element: u64,
    pub event_type: c_int,
}
layout!(MrcAsyncEvent, 16, 8, element = 0, event_type = 8);
