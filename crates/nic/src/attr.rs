//! Capacities and attributes of a queue pair, by the steps of its life (docs/spec/transport.md, "Queue pair life").

use std::net::SocketAddr;

use openmrc_transport::Span;
use openmrc_transport::mrc::{Capabilities, QpConfig, RequestorConfig, RetrySchedule};

use crate::memory_table::Access;
use crate::qp_state::{AttrMask, QpState};

pub use openmrc_transport::mrc::DEFAULT_PATH_MTU;

pub use openmrc_transport::presets::software::TIMEOUT as DEFAULT_TIMEOUT;

/// Default of [`QpAttr::exp_cnt`]. When the linear retries and these have ended, a peer has been silent for 34 s: more
/// than twice the 15 s for which a debugger, a snapshot of a virtual machine or a full disk may stop a process.
pub const DEFAULT_EXP_CNT: u8 = 9;

/// The retries of a queue pair whose attributes leave them out.
pub fn default_retries() -> RetrySchedule {
    let timeout = QpConfig::timeout_from_exponent(DEFAULT_TIMEOUT);
    RetrySchedule { timeout, exp_cnt: DEFAULT_EXP_CNT, ..RetrySchedule::from(&RequestorConfig::default()) }
}

/// This [`QpAttr::receive_wait_ms`] has no end.
pub const RECEIVE_WAIT_FOREVER: u32 = u32::MAX;

/// How much a queue pair can hold.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct QpCap {
    /// Sends outstanding, 1..=32768.
    pub max_send_wr: u32,
    /// Receives posted, 0..=65536.
    pub max_recv_wr: u32,
    /// Segments in a scatter list, 1..=16.
    pub max_send_sge: u32,
    /// Bytes of an inline payload, 0..=4096.
    pub max_inline_data: u32,
}

impl QpCap {
    /// The most that a queue pair can be made with.
    pub const MAX: QpCap =
        QpCap { max_send_wr: 32_768, max_recv_wr: 65_536, max_send_sge: 16, max_inline_data: 4096 };
}

impl Default for QpCap {
    /// What perftest asks for, rounded up.
    fn default() -> Self {
        QpCap { max_send_wr: 128, max_recv_wr: 512, max_send_sge: 4, max_inline_data: 256 }
    }
}

/// Attributes of a queue pair. In `modify`, those given are set; in `query`, those known are given.
///
/// `remote` holds the peer's address per port; the queue pair uses the ports where both ends have one.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct QpAttr {
    /// Access rights of the peer, as far as a region allows them too; default [`Access::REMOTE_WRITE`].
    pub access: Option<Access>,
    /// The peer's queue pair number.
    pub dest_qp_num: Option<u32>,
    /// First PSN expected.
    pub rq_psn: Option<u32>,
    /// First PSN sent.
    pub sq_psn: Option<u32>,
    /// The peer's addresses, by port.
    pub remote: Option<Vec<SocketAddr>>,
    /// Payload bytes per packet, 256 to 8192; default 4096. With all headers it must fit the interface's MTU.
    pub path_mtu: Option<u16>,
    /// In-flight window as requestor, units of 128 PSNs; default 8. At most the peer's `mpr_dest`.
    pub mpr: Option<u8>,
    /// In-flight window as responder, units of 128 PSNs; default 8.
    pub mpr_dest: Option<u8>,
    /// Messages with immediate in flight as requestor; default 128. At most the peer's `max_wimm_dest`.
    pub max_wimm: Option<u16>,
    /// Messages with immediate in flight as responder; default 128.
    pub max_wimm_dest: Option<u16>,
    /// ACK timeout: 1.024 us x 2^timeout, 0..=24; default [`DEFAULT_TIMEOUT`].
    pub timeout: Option<u8>,
    /// Retries at a fixed interval, at most 7; default 7.
    pub linear_cnt: Option<u8>,
    /// Retries with doubling interval after those, at most 25, which is for ever; default
    /// [`DEFAULT_EXP_CNT`].
    pub exp_cnt: Option<u8>,
    /// A peer that was silent for this many milliseconds is probed, even while nothing is under way, and
    /// [`AsyncEvent::PeerSilent`](crate::AsyncEvent::PeerSilent) is raised if it does not answer; 0, the default: off.
    pub keepalive_ms: Option<u32>,
    /// Verbs' RNR, at both ends: how many milliseconds a message with immediate waits for a receive before it is
    /// refused; [`RECEIVE_WAIT_FOREVER`] never refuses it. With any value but 0, this waiting does not use up the
    /// retries. Default 0: MRC refuses it at once.
    pub receive_wait_ms: Option<u32>,
    /// What the peer can do, and dynamic MPR if both ends enable it; default the specification's.
    pub caps: Option<Capabilities>,
    /// Destination flow control: the receiver's penalty shrinks the window; default the device's.
    pub dfc: Option<bool>,
    /// EV profile; 0 is the device's own.
    pub ev_profile_id: Option<u16>,
    /// Congestion control profile; 0 is the device's own.
    pub cc_profile_id: Option<u16>,
    /// Seed of the queue pair's choices: order of its paths, jitter of its probes; default random.
    pub seed: Option<u64>,
}

/// A queue pair as `query` shows it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct QpInfo {
    /// Where it is in its life.
    pub state: QpState,
    /// Its attributes, as far as they are set.
    pub attr: QpAttr,
    /// What it can hold.
    pub cap: QpCap,
    /// Whether every send raises a completion.
    pub sq_sig_all: bool,
}

impl QpAttr {
    /// How long a message with immediate waits for a receive.
    pub(crate) fn receive_wait(&self) -> Span {
        match self.receive_wait_ms.unwrap_or(0) {
            RECEIVE_WAIT_FOREVER => Span(u64::MAX),
            ms => Span::from_millis(ms.into()),
        }
    }

    /// Which attributes are given.
    pub fn mask(&self) -> AttrMask {
        let given = [
            (self.access.is_some(), AttrMask::ACCESS_FLAGS),
            (self.dest_qp_num.is_some(), AttrMask::DEST_QP_NUM),
            (self.rq_psn.is_some(), AttrMask::RQ_PSN),
            (self.sq_psn.is_some(), AttrMask::SQ_PSN),
            (self.remote.is_some(), AttrMask::REMOTE_ADDRESS),
            (self.path_mtu.is_some(), AttrMask::PATH_MTU),
            (self.mpr.is_some(), AttrMask::MPR),
            (self.mpr_dest.is_some(), AttrMask::MPR_DEST),
            (self.max_wimm.is_some(), AttrMask::MAX_WIMM),
            (self.max_wimm_dest.is_some(), AttrMask::MAX_WIMM_DEST),
            (self.timeout.is_some(), AttrMask::TIMEOUT),
            (self.linear_cnt.is_some(), AttrMask::LINEAR_CNT),
            (self.exp_cnt.is_some(), AttrMask::EXP_CNT),
            (self.keepalive_ms.is_some(), AttrMask::KEEPALIVE_MS),
            (self.receive_wait_ms.is_some(), AttrMask::RECEIVE_WAIT_MS),
            (self.caps.is_some(), AttrMask::CAP),
            (self.dfc.is_some(), AttrMask::DFC),
            (self.ev_profile_id.is_some(), AttrMask::EV_PROFILE_ID),
            (self.cc_profile_id.is_some(), AttrMask::CC_PROFILE_ID),
            (self.seed.is_some(), AttrMask::SEED),
        ];
        given.into_iter().filter(|(is, _)| *is).fold(AttrMask::NONE, |mask, (_, bit)| mask.or(bit))
    }

    /// Takes over what `newer` gives.
    pub(crate) fn update(&mut self, newer: &QpAttr) {
        macro_rules! take {
            ($($field:ident),*) => { $(if newer.$field.is_some() { self.$field.clone_from(&newer.$field); })* };
        }
        take!(
            access,
            dest_qp_num,
            rq_psn,
            sq_psn,
            remote,
            path_mtu,
            mpr,
            mpr_dest,
            max_wimm,
            max_wimm_dest,
            timeout,
            linear_cnt,
            exp_cnt,
            keepalive_ms,
            receive_wait_ms,
            caps,
            dfc,
            ev_profile_id,
            cc_profile_id,
            seed
        );
    }
}
