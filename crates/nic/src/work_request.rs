//! Work requests: as the application posts them, and as a send is kept until it completes (docs/spec/api.md,
//! "Objects").

use openmrc_transport::mrc::MAX_MESSAGE;
use smallvec::SmallVec;

use crate::attr::QpCap;
use crate::error::{Error, Result};

/// A piece of registered memory. It has the layout of `struct ibv_sge`.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
#[repr(C)]
pub struct Sge {
    /// Address of the first byte.
    pub addr: u64,
    /// Length in bytes.
    pub len: u32,
    /// [`crate::MemoryRegion::lkey`].
    pub lkey: u32,
}

/// The payload of a send.
#[derive(Clone, Copy, Debug)]
pub enum SendData<'a> {
    /// Registered memory, which must not change until the send has completed.
    Sges(&'a [Sge]),
    /// Any bytes, at most `max_inline_data`. They are copied while posting.
    Inline(&'a [u8]),
}

/// Sends one after the other, each of which lasts until the next is asked for.
pub trait SendList {
    /// Why one cannot be executed.
    type Error;

    /// The next send; `None` behind the last.
    fn next(&mut self) -> Option<std::result::Result<SendWr<'_>, Self::Error>>;
}

/// An RDMA WRITE, with immediate if `imm` is given.
#[derive(Clone, Copy, Debug)]
pub struct SendWr<'a> {
    /// Identifier that the completion returns.
    pub wr_id: u64,
    /// Its payload.
    pub data: SendData<'a>,
    /// Address in the peer's memory.
    pub remote_addr: u64,
    /// Key of the peer's region.
    pub rkey: u32,
    /// Immediate. The message then consumes a receive of the peer.
    pub imm: Option<u32>,
    /// Raise a completion. An error always raises one.
    pub signaled: bool,
    /// Ask for a solicited event at the peer.
    pub solicited: bool,
}

/// The payload of a send that a face builds before it posts.
#[derive(Clone, Debug)]
pub enum OwnedSendData {
    /// Registered memory.
    Sges(SmallVec<[Sge; 4]>),
    /// Bytes to copy while posting.
    Inline(Vec<u8>),
}

/// A send that a face builds before it posts: a [`SendWr`] with a payload of its own.
#[derive(Clone, Debug)]
pub struct OwnedSendWr {
    /// As of [`SendWr`].
    pub wr_id: u64,
    /// As of [`SendWr`].
    pub data: OwnedSendData,
    /// As of [`SendWr`].
    pub remote_addr: u64,
    /// As of [`SendWr`].
    pub rkey: u32,
    /// As of [`SendWr`].
    pub imm: Option<u32>,
    /// As of [`SendWr`].
    pub signaled: bool,
    /// As of [`SendWr`].
    pub solicited: bool,
}

impl OwnedSendWr {
    /// The request to post.
    pub fn as_wr(&self) -> SendWr<'_> {
        SendWr {
            wr_id: self.wr_id,
            data: match &self.data {
                OwnedSendData::Sges(sges) => SendData::Sges(sges),
                OwnedSendData::Inline(bytes) => SendData::Inline(bytes),
            },
            remote_addr: self.remote_addr,
            rkey: self.rkey,
            imm: self.imm,
            signaled: self.signaled,
            solicited: self.solicited,
        }
    }
}

/// A receive: lets the peer send one message with immediate. It has no buffer, as the message names its remote address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RecvWr {
    /// Identifier that the completion returns.
    pub wr_id: u64,
}

/// A send, kept until it completes.
#[derive(Clone, Debug, Default)]
pub(crate) struct Wqe {
    pub wr_id: u64,
    pub remote_addr: u64,
    pub rkey: u32,
    pub len: u32,
    pub imm: Option<u32>,
    pub signaled: bool,
    pub solicited: bool,
    pub data: WqeData,
}

/// Its payload.
#[derive(Clone, Debug)]
pub(crate) enum WqeData {
    Sges(SmallVec<[Sge; 2]>),
    Inline(SmallVec<[u8; 64]>),
}

impl Default for WqeData {
    fn default() -> Self {
        WqeData::Sges(SmallVec::new())
    }
}

impl Wqe {
    /// What a request asks for, if a queue pair with these capacities can hold it.
    pub fn new(request: &SendWr<'_>, cap: &QpCap, sq_sig_all: bool) -> Result<Self> {
        let (data, len) = match request.data {
            SendData::Sges(sges) => {
                if sges.len() > cap.max_send_sge as usize {
                    return Err(Error::invalid(format!(
                        "a scatter list of {} segments: the queue pair takes {}",
                        sges.len(),
                        cap.max_send_sge
                    )));
                }
                let len: u64 = sges.iter().map(|s| u64::from(s.len)).sum();
                // The keys of empty segments are not checked.
                (WqeData::Sges(sges.iter().copied().filter(|s| s.len > 0).collect()), len)
            }
            SendData::Inline(bytes) => {
                if bytes.len() > cap.max_inline_data as usize {
                    return Err(Error::invalid(format!(
                        "{} bytes inline: the queue pair takes {}",
                        bytes.len(),
                        cap.max_inline_data
                    )));
                }
                (WqeData::Inline(SmallVec::from_slice(bytes)), bytes.len() as u64)
            }
        };
        if len > u64::from(MAX_MESSAGE) {
            return Err(Error::invalid(format!(
                "a message of {len} bytes: the longest is {MAX_MESSAGE} bytes"
            )));
        }
        Ok(Wqe {
            wr_id: request.wr_id,
            remote_addr: request.remote_addr,
            rkey: request.rkey,
            len: len as u32,
            imm: request.imm,
            signaled: request.signaled || sq_sig_all,
            solicited: request.solicited,
            data,
        })
    }
}
