//! Work requests that calls build, one after the other, between `wr_start` and `wr_complete`
//! (docs/spec/c-interface.md, section 7.8).

use openmrc_nic::{OwnedSendData, OwnedSendWr, QueuePair, SendWr, Sge};
use smallvec::SmallVec;

use crate::abi::verbs::{IBV_SEND_FENCE, IBV_SEND_INLINE, IBV_SEND_SIGNALED, IBV_SEND_SOLICITED};
use crate::errno::{EINVAL, Errno, Result};

/// The requests of a queue pair that are being built.
#[derive(Default)]
pub struct Built {
    requests: Vec<OwnedSendWr>,
    /// Why one of them cannot be; said at the end.
    wrong: Option<Errno>,
}

impl Built {
    pub fn start(&mut self) {
        self.requests.clear();
        self.wrong = None;
    }

    /// An operation begins; what it writes is set next.
    pub fn write(&mut self, (wr_id, flags): (u64, u32), rkey: u32, remote_addr: u64, imm: Option<u32>) {
        let known = IBV_SEND_FENCE | IBV_SEND_SIGNALED | IBV_SEND_SOLICITED | IBV_SEND_INLINE;
        if flags & !known != 0 {
            self.fail(EINVAL);
        }
        self.requests.push(OwnedSendWr {
            wr_id,
            data: OwnedSendData::Sges(SmallVec::new()),
            remote_addr,
            rkey,
            imm,
            signaled: flags & IBV_SEND_SIGNALED != 0,
            solicited: flags & IBV_SEND_SOLICITED != 0,
        });
    }

    pub fn set_pieces(&mut self, pieces: &[Sge]) {
        self.set(OwnedSendData::Sges(pieces.iter().copied().collect()));
    }

    pub fn set_inline(&mut self, bytes: Vec<u8>) {
        self.set(OwnedSendData::Inline(bytes));
    }

    fn set(&mut self, data: OwnedSendData) {
        match self.requests.last_mut() {
            Some(request) => request.data = data,
            None => self.fail(EINVAL),
        }
    }

    pub fn fail(&mut self, errno: Errno) {
        self.wrong.get_or_insert(errno);
    }

    /// Posts all of them, or none.
    ///
    /// # Errors
    /// What was wrong with one of them; as for posting.
    pub fn complete(&mut self, qp: &QueuePair) -> Result<()> {
        let requests = std::mem::take(&mut self.requests);
        if let Some(errno) = self.wrong.take() {
            return Err(errno);
        }
        let list: SmallVec<[SendWr<'_>; 16]> = requests.iter().map(OwnedSendWr::as_wr).collect();
        Ok(qp.post_send(&list)?)
    }
}
