//! Runs in which the time of a message says too little about the next one: packets carry everything.

use openmrc_scenario::run::{
    LifeConfig, MrcCongestion, Overflow, Routing, Run, SwitchConfig, TransportConfig,
};
use openmrc_transport::mrc::LoadBalancing;

/// Why packets carry everything in this run; `None` if some messages may arrive without.
pub(crate) fn reason(run: &Run) -> Option<&'static str> {
    let TransportConfig::Mrc(mrc) = &run.transport else { return Some("the transport is not MRC") };
    let LifeConfig { prove_mtu, linger, receives } = mrc.life;
    let own = matches!(mrc.congestion, MrcCongestion::Custom(_))
        || !matches!(mrc.load_balancing, LoadBalancing::EvStates);
    let SwitchConfig { pfc, overflow, .. } =
        run.network.switch.unwrap_or_else(|| run.network.default_switch());
    let reasons = [
        (own, "the transport has parts of your own"),
        (prove_mtu || linger || receives.is_some(), "connections do more than send messages"),
        (run.network.software.is_some(), "NICs are software"),
        (run.network.routing != Routing::SourceRouted, "switches choose paths"),
        (pfc.is_some() || overflow != Overflow::Trim, "switches drop packets, or stop their peers"),
        (!run.record.is_nothing(), "packets and queues are recorded"),
        (run.probes.is_some(), "hosts probe"),
        (run.workload.pattern_ends.len() > 1, "several patterns of traffic run side by side"),
        (run.threads > 1, "it runs in several threads"),
    ];
    reasons.into_iter().find(|(applies, _)| *applies).map(|(_, reason)| reason)
}
