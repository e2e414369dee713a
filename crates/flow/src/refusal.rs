//! What the flow engine cannot do: refused before anything runs, with the field and the way out.

use openmrc_scenario::run::{
    Effect, LifeConfig, MrcCongestion, NetworkConfig, Overflow, Routing, Run, RunError, TransportConfig,
};
use openmrc_transport::mrc::LoadBalancing;

/// Refuses what only the packet engine can do.
///
/// # Errors
/// [`RunError::Engine`] for the first such thing.
pub(crate) fn check(run: &Run) -> Result<(), RunError> {
    let found = transport(&run.transport).or_else(|| network(&run.network)).or_else(|| rest(run));
    found.map_or(Ok(()), |(field, message)| Err(RunError::Engine { field, message }))
}

/// A field, and what is wrong with it.
type Refusal = (&'static [&'static str], &'static str);

fn network(network: &NetworkConfig) -> Option<Refusal> {
    let switch = network.switch.unwrap_or_else(|| network.default_switch());
    if network.software.is_some() {
        return Some((
            &["network", "software"],
            "the flow engine has NICs in hardware only: leave it open, or `engine: packets`",
        ));
    }
    if network.routing != Routing::SourceRouted {
        return Some((
            &["network", "routing"],
            "the flow engine sprays over named paths: `source`, or `engine: packets`",
        ));
    }
    if switch.pfc.is_some() || switch.overflow != Overflow::Trim {
        return Some((
            &["network", "switch"],
            "the flow engine was fitted to switches that trim: preset `mrc`, or `engine: packets`",
        ));
    }
    None
}

fn transport(transport: &TransportConfig) -> Option<Refusal> {
    let TransportConfig::Mrc(mrc) = transport else {
        return Some((
            &["transport", "kind"],
            "the flow engine knows `mrc` only: that, or `engine: packets`",
        ));
    };
    let of_its_own = "the flow engine sprays and shares links as MRC does: without parts of your own, or \
                      `engine: packets`";
    let LifeConfig { prove_mtu, linger, receives } = mrc.life;
    if matches!(mrc.congestion, MrcCongestion::Custom(_))
        || !matches!(mrc.load_balancing, LoadBalancing::EvStates)
    {
        return Some((&["transport"], of_its_own));
    }
    let in_use: [(bool, &'static [&'static str]); 6] = [
        (matches!(mrc.congestion, MrcCongestion::FixedWindow(_)), &["transport", "fixed_window"]),
        (!mrc.destination_control, &["transport", "destination_control"]),
        (!mrc.spacing, &["transport", "spacing"]),
        (prove_mtu, &["transport", "prove_mtu"]),
        (linger, &["transport", "linger"]),
        (receives.is_some(), &["transport", "receives"]),
    ];
    let message = "the flow engine knows its default only: leave it open, or `engine: packets`";
    in_use.into_iter().find(|(is_used, _)| *is_used).map(|(_, field)| (field, message))
}

fn rest(run: &Run) -> Option<Refusal> {
    let lossy = |effect: Effect| matches!(effect, Effect::Loss(_) | Effect::BitErrors(_) | Effect::Mtu(_));
    if run.faults.iter().any(|fault| lossy(fault.change.effect())) {
        return Some((
            &["faults"],
            "the flow engine has links that are down or slow; for loss, bit errors and a small MTU \
             `engine: packets`",
        ));
    }
    if run.probes.is_some() {
        return Some((&["probes"], "the flow engine has no packets: `engine: packets`"));
    }
    if !run.record.is_nothing() {
        return Some((
            &["record"],
            "the flow engine has no packets or queues to record: leave it out, or `engine: packets`",
        ));
    }
    if run.threads > 1 {
        return Some((&["threads"], "the flow engine runs in one thread: 1, or `engine: packets`"));
    }
    None
}
