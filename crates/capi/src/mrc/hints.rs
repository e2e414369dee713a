//! Hints of `mrc.h` (docs/spec/c-interface.md, section 3).

use openmrc_nic::limits;
use std::ffi::c_int;
use std::ptr;
use std::sync::Arc;

use super::*;
use crate::abi::mrc::*;
use crate::errno::EINVAL;
use crate::hint::{self, Counts, HINTS, Hint, HintObject};
use crate::modify;
use crate::returns::{m1, pointer};

/// # Safety
/// As in `mrc.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mrc_create_qp_hint(mrc_ctx: Handle, init_attr: *mut MrcQpHintInitAttr) -> Handle {
    pointer(|| {
        MRC_CONTEXTS.get(mrc_ctx)?;
        // SAFETY: the program gives a structure, or null.
        let attr = unsafe { init_attr.as_ref() }.ok_or(EINVAL)?;
        let counts = Counts {
            qps_per_peer: attr.num_qps_per_peer,
            send_peers: attr.num_send_peers,
            remote_recv_peers: attr.num_remote_recv_peers,
        };
        if counts.qps_per_peer < 0 || counts.send_peers < 0 || counts.remote_recv_peers < 0 {
            return Err(EINVAL);
        }
        if HINTS.all(|hint| hint.parent == mrc_ctx.addr()).len() >= limits::MAX_QP_HINTS as usize {
            return Err(crate::errno::ENOMEM);
        }
        let object = HintObject::make((), ptr::null(), 0);
        HINTS.insert(object.expose_provenance(), Arc::new(Hint::new(mrc_ctx.addr(), counts)));
        Ok(object.cast())
    })
}

/// # Safety
/// As in `mrc.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mrc_destroy_qp_hint(qp_hint: Handle) -> c_int {
    m1(|| hint::destroy(qp_hint).map(|()| 0))
}

const HINT_COUNTS: u32 =
    hint_attr::NUM_QPS_PER_PEER | hint_attr::NUM_SEND_PEERS | hint_attr::NUM_REMOTE_RECV_PEERS;

/// # Safety
/// As in `mrc.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mrc_query_qp_hint(qp_hint: Handle, attr: *mut MrcQpHintAttr, mask: c_int) -> c_int {
    m1(|| {
        let counts = *HINTS.get(qp_hint)?.counts.lock();
        // SAFETY: the program gives room for a structure, or null.
        let attr = unsafe { attr.as_mut() }.ok_or(EINVAL)?;
        let mask = mask as u32;
        if mask & !(HINT_COUNTS | hint_attr::VENDOR_CFG) != 0 {
            return Err(EINVAL);
        }
        for (bit, to, value) in [
            (hint_attr::NUM_QPS_PER_PEER, &mut attr.num_qps_per_peer, counts.qps_per_peer),
            (hint_attr::NUM_SEND_PEERS, &mut attr.num_send_peers, counts.send_peers),
            (hint_attr::NUM_REMOTE_RECV_PEERS, &mut attr.num_remote_recv_peers, counts.remote_recv_peers),
        ] {
            if mask & bit != 0 {
                *to = value;
            }
        }
        if mask & hint_attr::VENDOR_CFG != 0 {
            attr.vendor_cfg = [0; _];
        }
        Ok(0)
    })
}

/// # Safety
/// As in `mrc.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mrc_modify_qp_hint(qp_hint: Handle, attr: *mut MrcQpHintAttr, mask: c_int) -> c_int {
    m1(|| {
        let hint = HINTS.get(qp_hint)?;
        // SAFETY: the program gives a structure, or null.
        let attr = unsafe { attr.as_ref() }.ok_or(EINVAL)?;
        let mask = mask as u32;
        if mask & !(HINT_COUNTS | hint_attr::VENDOR_CFG) != 0 {
            return Err(EINVAL);
        }
        modify::check_vendor_cfg(&attr.vendor_cfg, mask & hint_attr::VENDOR_CFG != 0)?;
        let mut counts = hint.counts.lock();
        let mut new = *counts;
        for (bit, to, value) in [
            (hint_attr::NUM_QPS_PER_PEER, &mut new.qps_per_peer, attr.num_qps_per_peer),
            (hint_attr::NUM_SEND_PEERS, &mut new.send_peers, attr.num_send_peers),
            (hint_attr::NUM_REMOTE_RECV_PEERS, &mut new.remote_recv_peers, attr.num_remote_recv_peers),
        ] {
            if mask & bit != 0 {
                if value < 0 {
                    return Err(EINVAL);
                }
                *to = value;
            }
        }
        *counts = new;
        Ok(0)
    })
}
