//! The probe in the control class that measures the RTT of the idle path when a queue pair begins to send much
//! (docs/spec/congestion.md, "A good base_rtt at the start"). It passes the queues, so it must never prove that data is
//! lost.

use super::Requestor;
use super::acks::timestamp_sample;
use super::send_times::Stamp;
use crate::api::{Host, TrafficClass};
use crate::mrc::cc::CcProfile;
use crate::mrc::config::QpConfig;
use crate::mrc::paths::ConditionProbes;
use crate::mrc::shared::Shared;
use crate::time::Time;
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize)]
pub(super) enum StartProbe {
    /// To be sent after the first feedback, if more than this many packets are posted and not acknowledged: less than
    /// one bandwidth-delay product needs no congestion control.
    Wanted { packets: u32 },
    /// Sent at this time, with this sequence number in its id.
    Sent { at: Stamp, sequence: u8 },
    /// Answered, or not wanted.
    Done,
}

impl StartProbe {
    pub fn new(config: &QpConfig) -> Self {
        match &*config.cc {
            // The largest window is 1.5 bandwidth-delay products.
            CcProfile::Nscc(params) if config.requestor.options.start_probe => {
                let packets = params.max_wnd * 2 / 3 / u64::from(params.mtu.max(1));
                StartProbe::Wanted { packets: packets.min(u32::MAX.into()) as u32 }
            }
            _ => StartProbe::Done,
        }
    }
}

impl Requestor {
    /// Feedback has come: sends the probe if it is wanted.
    #[inline]
    pub(super) fn probe_at_start(&mut self, shared: &mut Shared, now: Time, host: &mut dyn Host) {
        let StartProbe::Wanted { packets } = self.start_probe else { return };
        if self.sendq.end() - self.window.base() <= u64::from(packets) {
            return;
        }
        let up = shared.ports_up;
        let Some(index) = shared.paths.select(now, up, up, None) else { return };
        shared.send_probe(now, index, TrafficClass::Control, host);
        self.start_probe = StartProbe::Sent { at: Stamp::at(now), sequence: shared.probes.last_sequence() };
    }

    /// The probe with this id is answered. If it is the one of the start, its RTT lowers that of the idle path.
    pub(super) fn start_probe_answered(&mut self, now: Time, id: u16, ticks: u16) {
        let StartProbe::Sent { at, sequence } = self.start_probe else { return };
        if sequence != ConditionProbes::sequence_of(id) {
            return;
        }
        self.start_probe = StartProbe::Done;
        if let Some(rtt) = timestamp_sample(now, ticks, at.age(now)) {
            self.flow.on_rtt(rtt);
        }
    }
}
