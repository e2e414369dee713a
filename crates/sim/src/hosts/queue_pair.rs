//! A queue pair of either transport.

use openmrc_scenario::HostTotals;
use openmrc_transport::Pressure;
use openmrc_transport::{
    Fatal, Host, MtuQuestion, PortSet, PostError, Readiness, Received, Time, Transmit, Transport, WorkRequest,
};
use openmrc_transport::{mrc, rocev2};
use serde::{Deserialize, Serialize};

/// A queue pair. A match costs less than an indirect call.
#[derive(Serialize, Deserialize)]
pub(super) enum QueuePair {
    Mrc(Box<mrc::QueuePair>),
    Rocev2(Box<rocev2::QueuePair>),
}

macro_rules! each {
    ($self:ident, $qp:ident => $e:expr) => {
        match $self {
            QueuePair::Mrc($qp) => $e,
            QueuePair::Rocev2($qp) => $e,
        }
    };
}

impl Transport for QueuePair {
    fn post_send(&mut self, now: Time, wr: WorkRequest) -> Result<(), PostError> {
        each!(self, qp => qp.post_send(now, wr))
    }
    #[inline]
    fn handle_packet(&mut self, now: Time, received: &Received, host: &mut impl Host) {
        each!(self, qp => qp.handle_packet(now, received, host))
    }
    fn handle_timeout(&mut self, now: Time, host: &mut dyn Host) {
        each!(self, qp => qp.handle_timeout(now, host))
    }
    #[inline]
    fn poll_transmit(&mut self, now: Time, ports: PortSet) -> Option<Transmit> {
        each!(self, qp => qp.poll_transmit(now, ports))
    }
    #[inline]
    fn poll_timeout(&self) -> Time {
        each!(self, qp => qp.poll_timeout())
    }
    #[inline]
    fn readiness(&self) -> Readiness {
        each!(self, qp => qp.readiness())
    }
    fn set_ports_up(&mut self, now: Time, local: PortSet, peer: PortSet) {
        each!(self, qp => qp.set_ports_up(now, local, peer))
    }
    fn abort(&mut self, now: Time, why: Fatal, host: &mut dyn Host) {
        each!(self, qp => qp.abort(now, why, host))
    }
    fn retire(&mut self, now: Time, host: &mut dyn Host) {
        each!(self, qp => qp.retire(now, host))
    }
    fn mtu_question(&self) -> Option<MtuQuestion> {
        each!(self, qp => qp.mtu_question())
    }
    fn receives_posted(&mut self, now: Time, host: &mut dyn Host) {
        each!(self, qp => qp.receives_posted(now, host))
    }
    #[inline]
    fn is_waiting(&self) -> bool {
        each!(self, qp => qp.is_waiting())
    }
    #[inline]
    fn set_receive_pressure(&mut self, pressure: Pressure) {
        each!(self, qp => qp.set_receive_pressure(pressure))
    }
    fn set_advertised_mpr(&mut self, mpr: u8) {
        each!(self, qp => qp.set_advertised_mpr(mpr))
    }
    fn report_early(&mut self, now: Time, host: &mut dyn Host) {
        each!(self, qp => qp.report_early(now, host))
    }
}

impl QueuePair {
    /// Loads it into the cache.
    #[inline(always)]
    pub fn prefetch(&self) {
        if let QueuePair::Mrc(qp) = self {
            qp.prefetch();
        }
    }

    /// Loads its roles.
    #[inline(always)]
    pub fn prefetch_roles(&self) {
        if let QueuePair::Mrc(qp) = self {
            qp.prefetch_roles();
        }
    }

    /// Loads the memory that its roles have elsewhere.
    #[inline(always)]
    pub fn prefetch_heap(&self) {
        if let QueuePair::Mrc(qp) = self {
            qp.prefetch_heap();
        }
    }

    /// Bytes of it and of the memory that it has elsewhere.
    pub fn bytes(&self) -> usize {
        match self {
            QueuePair::Mrc(qp) => qp.state_bytes().0,
            // Its queue grows with what is posted.
            QueuePair::Rocev2(qp) => size_of_val(&**qp),
        }
    }

    /// Adds its counters.
    pub fn add_up(&self, totals: &mut HostTotals) {
        match self {
            QueuePair::Mrc(qp) => {
                let stats = qp.stats();
                totals.retransmits += u64::from(stats.retransmits);
                totals.spurious += u64::from(stats.spurious);
                totals.timeouts += u64::from(stats.timeouts);
                totals.condemned += u64::from(stats.condemned);
                totals.path_probes += u64::from(stats.path_probes);
            }
            QueuePair::Rocev2(qp) => {
                let stats = qp.stats();
                totals.retransmits += stats.retransmits;
                totals.timeouts += stats.timeouts;
            }
        }
    }

    /// Whether it answers its peer after it was destroyed: not in ERROR.
    pub fn can_linger(&self) -> bool {
        matches!(self, QueuePair::Mrc(qp) if qp.error().is_none())
    }
}
