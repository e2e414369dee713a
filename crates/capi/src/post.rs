//! Work requests: chains of them, posted up to the first that is refused (docs/spec/c-interface.md, section 7.7).

use std::ffi::c_int;
use std::sync::atomic::Ordering;
use std::{ptr, slice};

use openmrc_nic::{RecvWr, SendData, SendList, SendWr, Sge};
use smallvec::SmallVec;

use crate::abi::verbs::*;
use crate::cq::Api;
use crate::errno::{EINVAL, EOPNOTSUPP, Errno, Result};
use crate::qp::Qp;
use crate::told;

/// The longest message.
const MAX_LENGTH: u64 = 1 << 31;

/// The work requests of a chain, one after the other.
struct Chain<'a> {
    next: *mut IbvSendWr,
    /// The one that was given last.
    last: *mut IbvSendWr,
    cap: &'a IbvQpCap,
    /// The inline payload of the send that was given last.
    inline: SmallVec<[u8; 256]>,
    /// The operation of one that was refused.
    refused: Option<c_int>,
}

impl SendList for Chain<'_> {
    type Error = Errno;

    #[inline]
    fn next(&mut self) -> Option<Result<SendWr<'_>>> {
        // SAFETY: the program gives a chain of requests that ends with null.
        let request = unsafe { self.next.as_ref() }?;
        self.last = self.next;
        self.next = request.next;
        Some(self.request(request))
    }
}

impl Chain<'_> {
    #[inline]
    fn request(&mut self, from: &IbvSendWr) -> Result<SendWr<'_>> {
        let with_imm = match from.opcode {
            IBV_WR_RDMA_WRITE => false,
            IBV_WR_RDMA_WRITE_WITH_IMM => true,
            other => {
                self.refused = Some(other);
                return Err(EOPNOTSUPP);
            }
        };
        let known = IBV_SEND_FENCE | IBV_SEND_SIGNALED | IBV_SEND_SOLICITED | IBV_SEND_INLINE;
        if from.send_flags & !known != 0 {
            return Err(EINVAL);
        }
        // SAFETY: the program gives an array of this length.
        let pieces = unsafe { segments(from.sg_list, from.num_sge, self.cap.max_send_sge)? };
        let length: u64 = pieces.iter().map(|piece| u64::from(piece.len)).sum();
        let data = if from.send_flags & IBV_SEND_INLINE == 0 {
            if length > MAX_LENGTH {
                return Err(EINVAL);
            }
            SendData::Sges(pieces)
        } else {
            if length > u64::from(self.cap.max_inline_data) {
                return Err(EINVAL);
            }
            SendData::Inline(self.gather(pieces))
        };
        Ok(SendWr {
            wr_id: from.wr_id,
            data,
            remote_addr: from.remote_addr,
            rkey: from.rkey,
            imm: with_imm.then(|| u32::from_be(from.imm_data)),
            signaled: from.send_flags & IBV_SEND_SIGNALED != 0,
            solicited: from.send_flags & IBV_SEND_SOLICITED != 0,
        })
    }

    /// Copies an inline payload, whose keys are not read.
    fn gather(&mut self, pieces: &[Sge]) -> &[u8] {
        self.inline.clear();
        for piece in pieces {
            let (begin, len) = (self.inline.len(), piece.len as usize);
            self.inline.resize(begin + len, 0);
            let from = ptr::with_exposed_provenance::<u8>(piece.addr as usize);
            // An empty piece may have any address.
            if len > 0 {
                // SAFETY: the program gives readable memory, and there is room for as much.
                unsafe { ptr::copy_nonoverlapping(from, self.inline[begin..].as_mut_ptr(), len) };
            }
        }
        &self.inline
    }
}

/// A list of segments.
///
/// # Safety
/// `list` is null or has `count` segments.
#[inline]
unsafe fn segments<'a>(list: *const IbvSge, count: c_int, most: u32) -> Result<&'a [Sge]> {
    match u32::try_from(count) {
        Ok(0) => Ok(&[]),
        // SAFETY: the caller's promise.
        Ok(count) if count <= most && !list.is_null() => {
            Ok(unsafe { slice::from_raw_parts(list, count as usize) })
        }
        _ => Err(EINVAL),
    }
}

/// Posts a chain of sends. The first that is refused goes to `bad`; those before it stay posted.
///
/// # Errors
/// EINVAL, ENOMEM for a full queue, EOPNOTSUPP for an operation that is not in MRC. A SEND ends both queue pairs: the
/// peer waits for it.
///
/// # Safety
/// `wr` is null or a chain of requests that ends with null; `bad` is null or can be written.
#[inline]
pub unsafe fn send(qp: &Qp, wr: *mut IbvSendWr, bad: *mut *mut IbvSendWr) -> Result<()> {
    if wr.is_null() {
        return Err(EINVAL);
    }
    let mut chain = Chain { next: wr, last: wr, cap: &qp.init.cap, inline: SmallVec::new(), refused: None };
    let (_, result) = qp.nic.post_send_each(&mut chain);
    // SAFETY: the caller's promise.
    if result.is_err()
        && let Some(bad) = unsafe { bad.as_mut() }
    {
        *bad = chain.last;
    }
    if let Some(opcode) = chain.refused {
        told::refused("queue pair", told::operation(opcode), "MRC has only WRITE");
        // A program for MRC knows that there are none.
        let sends = matches!(opcode, IBV_WR_SEND | IBV_WR_SEND_WITH_IMM | IBV_WR_SEND_WITH_INV);
        if sends && qp.api == Api::Verbs {
            qp.end_with_peer();
        }
    }
    result
}

/// Posts a chain of receives, whose segments are not looked at.
///
/// # Errors
/// EINVAL, ENOMEM for a full queue.
///
/// # Safety
/// As [`send`].
#[inline]
pub unsafe fn recv(qp: &Qp, wr: *mut IbvRecvWr, bad: *mut *mut IbvRecvWr) -> Result<()> {
    if wr.is_null() {
        return Err(EINVAL);
    }
    let (mut next, mut last) = (wr, wr);
    let chain = std::iter::from_fn(|| {
        // SAFETY: the program gives a chain of requests that ends with null.
        let request = unsafe { next.as_ref() }?;
        last = next;
        next = request.next;
        if request.num_sge > 0 {
            qp.has_buffers.store(true, Ordering::Relaxed);
        }
        let fits = u32::try_from(request.num_sge).is_ok_and(|n| n <= qp.init.cap.max_recv_sge.max(1));
        Some(if fits { Ok(RecvWr { wr_id: request.wr_id }) } else { Err(EINVAL) })
    });
    let (_, result) = qp.nic.post_recv_each::<Errno>(chain);
    // SAFETY: the caller's promise.
    if result.is_err()
        && let Some(bad) = unsafe { bad.as_mut() }
    {
        *bad = last;
    }
    result
}
