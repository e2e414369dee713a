//! Queue pairs of `mrc.h` (docs/spec/c-interface.md, section 3).

use std::ffi::c_int;
use std::sync::Arc;

use super::*;
use crate::abi::mrc::*;
use crate::abi::verbs::*;
use crate::cq::{Api, CQS};
use crate::errno::{EINVAL, EOPNOTSUPP, Result};
use crate::memory::PDS;
use crate::modify::{self, Change};
use crate::post;
use crate::qp::{self, Init, MRC_QP, MrcQp, QPS, Qp};
use crate::returns::{e0, m1, pointer};

/// # Safety
/// As in `mrc.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mrc_create_qp(mrc_ctx: Handle, attr: *mut MrcQpInitAttr) -> Handle {
    pointer(|| {
        let parent = MRC_CONTEXTS.get(mrc_ctx)?;
        // SAFETY: the program gives a structure, or null.
        let attr = unsafe { attr.as_mut() }.ok_or(EINVAL)?;
        const OPERATIONS: u64 = 1 | 1 << 1;
        if attr.send_ops_flags & !OPERATIONS != 0 || !matches!(attr.protocol_version, 0 | 1) {
            return Err(EOPNOTSUPP);
        }
        let mut init = Init {
            qp_context: attr.qp_context,
            send_cq: attr.send_cq,
            recv_cq: attr.recv_cq,
            pd: attr.pd,
            cap: attr.cap,
            sq_sig_all: attr.sq_sig_all,
            send_ops_flags: attr.send_ops_flags,
            protocol_version: attr.protocol_version,
        };
        for cq in [init.send_cq, init.recv_cq] {
            if CQS.get(cq)?.parent != mrc_ctx.addr() {
                return Err(EINVAL);
            }
        }
        PDS.get(init.pd)?;
        let qp = Qp::new(Api::Mrc, mrc_ctx.addr(), &parent.context, &mut init)?;
        attr.cap = init.cap;
        let object = MrcQp::make((), Arc::as_ptr(&qp), MRC_QP);
        qp.publish(object.expose_provenance(), 0, &parent.queue);
        Ok(object.cast())
    })
}

/// # Safety
/// As in `mrc.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mrc_destroy_qp(qp: Handle) -> c_int {
    // SAFETY: queue pairs of MRC have no public part.
    e0(|| unsafe { qp::destroy(qp.cast::<()>(), Api::Mrc) })
}

fn queue_pair(qp: Handle) -> Result<Arc<Qp>> {
    QPS.get(qp).and_then(|found| if found.api == Api::Mrc { Ok(found) } else { Err(EINVAL) })
}

/// # Safety
/// As in `mrc.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mrc_query_qp(
    qp: Handle,
    vattr: *mut IbvQpAttr,
    vattr_mask: c_int,
    mrc_attr: *mut MrcQpAttr,
    mrc_attr_mask: c_int,
    init_attr: *mut MrcQpInitAttr,
) -> c_int {
    e0(|| {
        let core = queue_pair(qp)?;
        if (vattr.is_null() && vattr_mask != 0) || (mrc_attr.is_null() && mrc_attr_mask != 0) {
            return Err(EINVAL);
        }
        let (verbs, mrc) = modify::query(&core);
        let init = &core.init;
        // SAFETY: the program gives structures, or null.
        unsafe {
            if let Some(to) = vattr.as_mut() {
                *to = verbs;
            }
            if let Some(to) = mrc_attr.as_mut() {
                *to = mrc;
            }
            if let Some(to) = init_attr.as_mut() {
                *to = MrcQpInitAttr {
                    qp_context: init.qp_context,
                    send_cq: init.send_cq,
                    recv_cq: init.recv_cq,
                    cap: init.cap,
                    sq_sig_all: init.sq_sig_all,
                    pd: init.pd,
                    send_ops_flags: init.send_ops_flags,
                    protocol_version: init.protocol_version,
                };
            }
        }
        Ok(())
    })
}

/// # Safety
/// As in `mrc.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mrc_modify_qp(
    qp: Handle,
    vattr: *mut IbvQpAttr,
    vattr_mask: c_int,
    mrc_attr: *mut MrcQpAttr,
    mrc_attr_mask: c_int,
) -> c_int {
    e0(|| {
        let core = queue_pair(qp)?;
        let none = IbvQpAttr::default();
        // SAFETY: the program gives structures, or null.
        let (verbs, mrc) = unsafe { (vattr.as_ref(), mrc_attr.as_ref()) };
        if verbs.is_none() && vattr_mask != 0 {
            return Err(EINVAL);
        }
        let change = Change {
            verbs: verbs.unwrap_or(&none),
            verbs_mask: vattr_mask as u32,
            mrc,
            mrc_mask: mrc_attr_mask as u32,
        };
        modify::modify(&core, &change)
    })
}

/// # Safety
/// As in `mrc.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mrc_get_qpn(qp: Handle, qpn: *mut u32) -> c_int {
    m1(|| {
        let core = queue_pair(qp)?;
        // SAFETY: the program gives room for a number, or null.
        *unsafe { qpn.as_mut() }.ok_or(EINVAL)? = core.nic.qp_num();
        Ok(0)
    })
}

/// # Safety
/// As in `mrc.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mrc_post_recv(qp: Handle, wr: *mut IbvRecvWr, bad_wr: *mut *mut IbvRecvWr) -> c_int {
    // SAFETY: the caller's promise.
    m1(|| unsafe { post::recv(qp::core(qp.cast::<()>(), MRC_QP)?, wr, bad_wr) }.map(|()| 0))
}

/// # Safety
/// As in `mrc.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mrc_post_send(qp: Handle, wr: *mut IbvSendWr, bad_wr: *mut *mut IbvSendWr) -> c_int {
    // SAFETY: the caller's promise.
    e0(|| unsafe { post::send(qp::core(qp.cast::<()>(), MRC_QP)?, wr, bad_wr) })
}
