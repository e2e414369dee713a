//! The part of a queue pair that engine and application share: its send queue, its receive queue and its state. The
//! application posts and the engine takes; neither waits for the other.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use openmrc_transport::Time;
use openmrc_transport::node::Slot;
use parking_lot::Mutex;

use crate::attr::QpCap;
use crate::completion::{Completion, Opcode, Status};
use crate::completion_ring::CqShared;
use crate::qp_state::QpState;
use crate::work_request::Wqe;

/// The part of a queue pair that engine and application share.
pub(crate) struct QpShared {
    pub num: u32,
    /// Its slot in the node's table.
    pub slot: Slot,
    pub cap: QpCap,
    pub sq_sig_all: bool,
    pub send_cq: Arc<CqShared>,
    pub recv_cq: Arc<CqShared>,
    state: AtomicU8,
    /// Number of the peer's queue pair.
    pub peer_num: AtomicU32,
    /// Sends that the engine has not taken yet.
    pub pending: Mutex<VecDeque<Wqe>>,
    /// Number of sends that have not completed, including `pending`.
    pub send_outstanding: AtomicUsize,
    /// `wr_id`s of the posted receives.
    pub receives: Mutex<VecDeque<u64>>,
    /// A message with immediate waits for a receive: posting the next one notifies the engine. Changes with
    /// `receives` locked.
    pub needs_receive: AtomicBool,
    /// The engine has been notified of new entries in `pending` or `receives`.
    pub submitted: AtomicBool,
    /// With keepalive: when the peer was found silent, nanoseconds of `CLOCK_MONOTONIC`; 0 while it is heard.
    silent_since: AtomicU64,
}

impl QpShared {
    pub fn new(
        num: u32,
        slot: Slot,
        cap: QpCap,
        sq_sig_all: bool,
        send_cq: Arc<CqShared>,
        recv_cq: Arc<CqShared>,
    ) -> Self {
        QpShared {
            num,
            slot,
            cap,
            sq_sig_all,
            send_cq,
            recv_cq,
            state: AtomicU8::new(QpState::Reset as u8),
            peer_num: AtomicU32::new(0),
            pending: Mutex::new(VecDeque::with_capacity(cap.max_send_wr as usize)),
            send_outstanding: AtomicUsize::new(0),
            receives: Mutex::new(VecDeque::new()),
            needs_receive: AtomicBool::new(false),
            submitted: AtomicBool::new(false),
            silent_since: AtomicU64::new(0),
        }
    }

    /// When the peer was found silent, nanoseconds of `CLOCK_MONOTONIC`; 0 while it is heard.
    pub fn silent_since_ns(&self) -> u64 {
        self.silent_since.load(Ordering::Acquire)
    }

    pub fn set_silent_since(&self, since: Option<Time>) {
        self.silent_since.store(since.map_or(0, |at| at.0 / 1000), Ordering::Release);
    }

    pub fn state(&self) -> QpState {
        const STATES: [QpState; 4] = [QpState::Reset, QpState::Init, QpState::Rtr, QpState::Rts];
        let value = self.state.load(Ordering::Acquire);
        STATES.into_iter().find(|&s| s as u8 == value).unwrap_or(QpState::Error)
    }

    pub fn set_state(&self, state: QpState) {
        self.state.store(state as u8, Ordering::Release);
    }

    /// Back to RESET: everything outstanding is forgotten, without completions.
    pub fn reset(&self) {
        self.set_state(QpState::Reset);
        self.set_silent_since(None);
        self.pending.lock().clear();
        let mut receives = self.receives.lock();
        receives.clear();
        self.needs_receive.store(false, Ordering::Relaxed);
        drop(receives);
        self.send_outstanding.store(0, Ordering::Release);
        for cq in [&self.send_cq, &self.recv_cq] {
            cq.forget(self.num);
        }
    }

    /// The completion of a send.
    pub fn send_completion(&self, wqe: &Wqe, status: Status) -> Completion {
        Completion {
            wr_id: wqe.wr_id,
            status,
            opcode: Opcode::RdmaWrite,
            byte_len: wqe.len,
            imm_data: None,
            qp_num: self.num,
            src_qp: 0,
        }
    }

    /// The completion of a receive.
    pub fn recv_completion(&self, wr_id: u64, status: Status, byte_len: u32, imm: Option<u32>) -> Completion {
        Completion {
            wr_id,
            status,
            opcode: Opcode::RecvRdmaWithImm,
            byte_len,
            imm_data: imm,
            qp_num: self.num,
            src_qp: self.peer_num.load(Ordering::Relaxed),
        }
    }
}
