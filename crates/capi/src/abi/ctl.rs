//! Structures and constants of `mrc_ctl.h` (docs/spec/c-interface.md, section 6).

use std::ffi::{c_char, c_int, c_void};

use super::layout;
use super::mrc::MAX_VENDOR_CFG_SIZE;
use super::verbs::IbvGid;

pub const MRC_CTL_PROTOCOL_VERSION_1: u32 = 1;

/// Bytes of an entropy value.
pub const EV_MAX_BYTES: usize = 32;

pub const OPT_CAP_EV_EVENT: u32 = 1 << 2;
pub const OPT_CAP_EV_EVENT_PRECISE_DROP_CNT: u32 = 1 << 4;
pub const OPT_CAP_EP_OP_EV_PROBE: u32 = 1 << 5;

pub const MRC_CTL_PORT_ADMIN_DISABLED: c_int = 0;
pub const MRC_CTL_PORT_ADMIN_ENABLED: c_int = 1;
pub const MRC_CTL_PORT_ADMIN_STATE: u32 = 1;

pub const EV_FMT_MODE_STEV: c_int = 1;
pub const EV_FMT_MODE_SRV6: c_int = 1 << 1;
pub const EV_FMT_MODE_UDP: c_int = 1 << 2;

pub const EV_FMT_OP_MODIFY_FIELDS: c_int = 0;
pub const EV_FMT_OP_QUERY_FIELDS: c_int = 1;

/// Bits that the masks of all kinds of profiles share.
pub mod profile_attr {
    pub const STATE: u32 = 1;
    pub const CUR_STATE: u32 = 1 << 1;
    pub const VENDOR_CFG: u32 = 1 << 31;
}

/// Bits of the mask of an EV format profile.
pub mod fmt_attr {
    pub const MODE: u32 = 1 << 2;
    pub const OP: u32 = 1 << 3;
}

/// Bits of the mask of an EV profile.
pub mod ev_attr {
    pub const MODE: u32 = 1 << 2;
    pub const FMT_ID: u32 = 1 << 3;
    pub const COUNT: u32 = 1 << 4;
    pub const MIN_ACTIVE: u32 = 1 << 5;
    pub const EVENT_MASK: u32 = 1 << 6;
    pub const EV_OP: u32 = 1 << 7;
    pub const EV_FIELDS_OP: u32 = 1 << 8;
}

/// Bits of the mask of a CC profile.
pub mod cc_attr {
    pub const ALGORITHM: u32 = 1 << 2;
    pub const CONFIG: u32 = 1 << 3;
}

pub const EV_GOOD: c_int = 1;
pub const EV_ASSUMED_BAD: c_int = 1 << 1;
pub const EV_DENIED: c_int = 1 << 2;

pub const EV_MODE_AUTO: c_int = 1;
pub const EV_MODE_EXP: c_int = 1 << 1;
pub const EV_MODE_GEN: c_int = 1 << 2;

pub const EV_OP_REPLACE_EV: c_int = 0;
pub const EV_OP_MODIFY_EV_STATE: c_int = 1;
pub const EV_OP_QUERY_EV_STATE: c_int = 2;
pub const EV_OP_QUERY_EV_ARRAY: c_int = 3;
pub const EV_OP_F_ALL_COPIES: u32 = 1;

pub const EV_FIELDS_OP_MODIFY_FIELDS: c_int = 0;
pub const EV_FIELDS_OP_QUERY_FIELDS: c_int = 1;

pub const EP_OP_EV_PROBE: c_int = 0;
pub const EP_OP_PORT_STATUS_UPDATE: c_int = 1;

#[repr(C)]
#[derive(Clone, Copy)]
pub struct MrcCtlDeviceAttr {
    pub mrc_ctl_protocol_version: u32,
    pub ev_max_fmt_profiles: u32,
    pub ev_max_profiles: u32,
    pub ev_max_count: u32,
    pub ev_free_count: u32,
    pub ev_max_count_profile: u32,
    pub ev_count_align: u32,
    pub ev_max_width: u32,
    pub ev_fmt_mode_mask: u32,
    pub ev_mode_mask: u32,
    pub ev_op_max_entries: u32,
    /// The structure `cc` begins on a boundary of eight bytes.
    pub gap: u32,
    pub cc_max_profiles: u32,
    pub algorithms: *const *const c_char,
    pub phy_port_mask: u32,
    pub opt_attr: u32,
}
layout!(
    MrcCtlDeviceAttr,
    72,
    8,
    ev_max_fmt_profiles = 4,
    ev_max_profiles = 8,
    ev_max_count = 12,
    ev_free_count = 16,
    ev_max_count_profile = 20,
    ev_count_align = 24,
    ev_max_width = 28,
    ev_fmt_mode_mask = 32,
    ev_mode_mask = 36,
    ev_op_max_entries = 40,
    cc_max_profiles = 48,
    algorithms = 56,
    phy_port_mask = 64,
    opt_attr = 68
);

#[repr(C)]
#[derive(Clone, Copy)]
pub struct MrcCtlPortAttr {
    pub port_admin_state: c_int,
}
layout!(MrcCtlPortAttr, 4, 4);

#[repr(C)]
#[derive(Clone, Copy)]
pub struct MrcCtlEvFmtField {
    pub width: u8,
}
layout!(MrcCtlEvFmtField, 1, 1);

#[repr(C)]
pub struct EvFmtOp {
    pub op: c_int,
    pub fmt_fields: *mut MrcCtlEvFmtField,
    pub fmt_field_count: c_int,
}

#[repr(C)]
pub struct MrcCtlEvFmtProfileAttr {
    pub profile_state: c_int,
    pub cur_profile_state: c_int,
    pub ev_fmt_mode: c_int,
    pub ev_fmt_op: EvFmtOp,
    pub vendor_cfg: [u8; MAX_VENDOR_CFG_SIZE],
}
layout!(
    MrcCtlEvFmtProfileAttr,
    168,
    8,
    cur_profile_state = 4,
    ev_fmt_mode = 8,
    ev_fmt_op.op = 16,
    ev_fmt_op.fmt_fields = 24,
    ev_fmt_op.fmt_field_count = 32,
    vendor_cfg = 40
);

/// An entropy value and its port, counted from 1. All zeros is an unpopulated place.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MrcCtlEv {
    pub val: [u8; EV_MAX_BYTES],
    pub port: u8,
}
layout!(MrcCtlEv, 33, 1, port = 32);

impl MrcCtlEv {
    pub const UNPOPULATED: MrcCtlEv = MrcCtlEv { val: [0; EV_MAX_BYTES], port: 0 };
}

#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MrcCtlEvField {
    pub width: u32,
    pub init_val: u32,
    pub min_val: u32,
    pub max_val: u32,
    pub mask: u32,
}
layout!(MrcCtlEvField, 20, 4, init_val = 4, min_val = 8, max_val = 12, mask = 16);

#[repr(C)]
#[derive(Clone, Copy)]
pub struct MrcCtlEvOpEntry {
    pub ev: MrcCtlEv,
    pub ev_new: MrcCtlEv,
    pub state: c_int,
    pub flags: u32,
}
layout!(MrcCtlEvOpEntry, 76, 4, ev = 0, ev_new = 33, state = 68, flags = 72);

#[repr(C)]
pub struct EvOp {
    pub op: c_int,
    pub entries: *mut MrcCtlEvOpEntry,
    pub entry_count: c_int,
}

#[repr(C)]
pub struct EvFieldsOp {
    pub op: c_int,
    pub fields: *mut MrcCtlEvField,
    pub field_count: c_int,
}

#[repr(C)]
pub struct MrcCtlEvProfileAttr {
    pub profile_state: c_int,
    pub cur_profile_state: c_int,
    pub ev_mode: c_int,
    pub ev_fmt_profile_id: u64,
    pub ev_count: u32,
    pub ev_min_active: u32,
    pub ev_event_mask: c_int,
    pub ev_op: EvOp,
    pub ev_fields_op: EvFieldsOp,
    pub vendor_cfg: [u8; MAX_VENDOR_CFG_SIZE],
}
layout!(
    MrcCtlEvProfileAttr,
    216,
    8,
    cur_profile_state = 4,
    ev_mode = 8,
    ev_fmt_profile_id = 16,
    ev_count = 24,
    ev_min_active = 28,
    ev_event_mask = 32,
    ev_op.op = 40,
    ev_op.entries = 48,
    ev_op.entry_count = 56,
    ev_fields_op.op = 64,
    ev_fields_op.fields = 72,
    ev_fields_op.field_count = 80,
    vendor_cfg = 88
);

#[repr(C)]
pub struct MrcCtlCcProfileAttr {
    pub profile_state: c_int,
    pub cur_profile_state: c_int,
    pub algorithm: *const c_char,
    pub cc_config: *const c_void,
    pub vendor_cfg: [u8; MAX_VENDOR_CFG_SIZE],
}
layout!(MrcCtlCcProfileAttr, 152, 8, cur_profile_state = 4, algorithm = 8, cc_config = 16, vendor_cfg = 24);

#[repr(C)]
#[derive(Clone, Copy, Default, PartialEq, Debug)]
pub struct MrcCtlCcNsccCfg {
    pub disable_qa: u8,
    pub adjust_bytes_threshold: u32,
    pub adjust_period_threshold: u32,
    pub base_rtt: u32,
    pub eta: f32,
    pub fi: f32,
    pub fi_scale: f32,
    pub gamma: f32,
    pub max_md_jump: f32,
    pub max_cwnd: u32,
    pub qa_gate: u8,
    pub qa_threshold: u32,
    pub target_delay: u32,
}
layout!(
    MrcCtlCcNsccCfg,
    52,
    4,
    adjust_bytes_threshold = 4,
    adjust_period_threshold = 8,
    base_rtt = 12,
    eta = 16,
    fi = 20,
    fi_scale = 24,
    gamma = 28,
    max_md_jump = 32,
    max_cwnd = 36,
    qa_gate = 40,
    qa_threshold = 44,
    target_delay = 48
);

#[repr(C)]
#[derive(Clone, Copy)]
pub struct MrcCtlEvEvent {
    pub profile_id: u64,
    pub ev: MrcCtlEv,
    pub drop_count: u32,
    pub state: c_int,
}
layout!(MrcCtlEvEvent, 56, 8, ev = 8, drop_count = 44, state = 48);

/// Bytes of [`MrcCtlEvEvent`] for programs of control API versions below 1.0.1, which have no `state`.
pub const OLD_EV_EVENT: usize = 48;

#[repr(C)]
#[derive(Clone, Copy)]
pub struct MrcCtlEpReq {
    pub req_id: u16,
    pub sgid: IbvGid,
    pub dgid: IbvGid,
    pub ev_fmt_mode: c_int,
    pub req_ev: MrcCtlEv,
    pub port_status: u32,
}
layout!(MrcCtlEpReq, 88, 8, sgid = 8, dgid = 24, ev_fmt_mode = 40, req_ev = 44, port_status = 80);

#[repr(C)]
#[derive(Clone, Copy)]
pub struct MrcCtlEpRsp {
    pub req_id: u16,
    pub port: u8,
    pub rtt: u32,
    pub adj_svc_time: u8,
}
layout!(MrcCtlEpRsp, 12, 4, port = 2, rtt = 4, adj_svc_time = 8);
