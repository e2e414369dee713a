//! Work requests that calls build, one after the other, between `wr_start` and `wr_complete`
//! (docs/spec/c-interface.md, section 7.8).

use openmrc_nic::{QueuePair, SendData, SendWr, Sge};
use smallvec::SmallVec;

use crate::abi::verbs::{IBV_SEND_FENCE, IBV_SEND_INLINE, IBV_SEND_SIGNALED, IBV_SEND_SOLICITED};
use crate::errno::{EINVAL, Errno, Result};

/// The requests of a queue pair that are being built.
#[derive(Default)]
pub struct Built {
    requests: Vec<Request>,
    /// Why one of them cannot be; said at the end.
    wrong: Option<Errno>,
}

struct Request {
    wr_id: u64,
    flags: u32,
    rkey: u32,
    remote_addr: u64,
    imm: Option<u32>,
    data: Data,
}

enum Data {
    Pieces(SmallVec<[Sge; 4]>),
    Inline(Vec<u8>),
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
        let data = Data::Pieces(SmallVec::new());
        self.requests.push(Request { wr_id, flags, rkey, remote_addr, imm, data });
    }

    pub fn set_pieces(&mut self, pieces: &[Sge]) {
        self.set(Data::Pieces(pieces.iter().copied().collect()));
    }

    pub fn set_inline(&mut self, bytes: Vec<u8>) {
        self.set(Data::Inline(bytes));
    }

    fn set(&mut self, data: Data) {
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
        let list: SmallVec<[SendWr<'_>; 16]> = requests.iter().map(Request::as_posted).collect();
        Ok(qp.post_send(&list)?)
    }
}

impl Request {
    fn as_posted(&self) -> SendWr<'_> {
        SendWr {
            wr_id: self.wr_id,
            data: match &self.data {
                Data::Pieces(pieces) => SendData::Sges(pieces),
                Data::Inline(bytes) => SendData::Inline(bytes),
            },
            remote_addr: self.remote_addr,
            rkey: self.rkey,
            imm: self.imm,
            signaled: self.flags & IBV_SEND_SIGNALED != 0,
            solicited: self.flags & IBV_SEND_SOLICITED != 0,
        }
    }
}
