//! What polling a completion queue returns: how and for which work request a completion came (docs/spec/api.md,
//! "Objects").

/// How a work request ended, as in ibverbs.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Status {
    /// It succeeded.
    Success,
    /// The message is longer than the queue pair can send.
    LocLenErr,
    /// A scatter list named memory that is not registered, or not for this queue pair.
    LocProtErr,
    /// It was not executed, because the queue pair went to ERROR before.
    WrFlushErr,
    /// The peer refused access to its memory.
    RemAccessErr,
    /// The peer could not execute it: it had no receive posted, or too many immediates in flight.
    RemOpErr,
    /// The peer found the request invalid.
    RemInvReqErr,
    /// The peer did not answer within the retries.
    RetryExcErr,
}

impl Status {
    /// Its name in ibverbs, without the prefix.
    pub const fn name(self) -> &'static str {
        match self {
            Status::Success => "SUCCESS",
            Status::LocLenErr => "LOC_LEN_ERR",
            Status::LocProtErr => "LOC_PROT_ERR",
            Status::WrFlushErr => "WR_FLUSH_ERR",
            Status::RemAccessErr => "REM_ACCESS_ERR",
            Status::RemOpErr => "REM_OP_ERR",
            Status::RemInvReqErr => "REM_INV_REQ_ERR",
            Status::RetryExcErr => "RETRY_EXC_ERR",
        }
    }
}

/// The kind of a work request.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Opcode {
    /// A send: RDMA WRITE, with or without immediate.
    RdmaWrite,
    /// A receive: a message with immediate has arrived.
    RecvRdmaWithImm,
}

impl Opcode {
    /// Its name in ibverbs, without the prefix.
    pub const fn name(self) -> &'static str {
        match self {
            Opcode::RdmaWrite => "RDMA_WRITE",
            Opcode::RecvRdmaWithImm => "RECV_RDMA_WITH_IMM",
        }
    }
}

/// The end of a work request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Completion {
    /// The application's identifier of the work request.
    pub wr_id: u64,
    /// How it ended.
    pub status: Status,
    /// Its kind.
    pub opcode: Opcode,
    /// Bytes of the message.
    pub byte_len: u32,
    /// The immediate of a receive.
    pub imm_data: Option<u32>,
    /// The queue pair.
    pub qp_num: u32,
    /// Of a receive: the peer's queue pair.
    pub src_qp: u32,
}
