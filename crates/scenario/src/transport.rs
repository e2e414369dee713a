//! The transport of the hosts: each with the parameters of its publication, and the network that it is meant for.

use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

use openmrc_transport::mrc::{
    LoadBalancing, NsccParams, PathConfig, PathModel, RequestorConfig, SwiftParams,
};
use openmrc_transport::rocev2::{self, DcqcnParams, RcConfig};
use openmrc_transport::{EvProfile, PathEntry, Span, mrc};
use openmrc_wire::Ev;

use crate::error::ScenarioError;
use crate::network::MeantFor;
use crate::numbers::{Amount, BitRate, Duration, Micros, PacketsPerRtt, PartialShare, Share, U32, Whole};
use crate::read::{self, by_kind};
use crate::run::{
    AdaptiveConfig, LifeConfig, MrcConfig, MrcCongestion, ReceivesConfig, Rocev2Config, TransportConfig,
    UetConfig,
};
use crate::run::{Encapsulation, NetworkConfig, Routing};
use crate::switch::Preset;

by_kind! {
    /// What hosts speak.
    pub enum Transport {
        /// MRC.
        "mrc" => Mrc,
        /// RoCEv2 reliable connections.
        "rocev2" => Rocev2,
        /// Ultra Ethernet in RUD mode.
        "uet" => Uet,
        /// Switches spray, NICs place out of order.
        "adaptive" => Adaptive,
    }
}

impl Default for Transport {
    fn default() -> Self {
        Transport::Mrc(Mrc::default())
    }
}

impl Transport {
    /// What the network is like where the scenario leaves it open.
    pub(crate) fn meant_for(&self) -> MeantFor {
        let (routing, preset) = match self {
            Transport::Mrc(_) => return MeantFor::MRC,
            Transport::Rocev2(_) => (Routing::Ecmp, Preset::Rocev2),
            Transport::Uet(_) => (Routing::Ecmp, Preset::Mrc),
            Transport::Adaptive(_) => (Routing::Adaptive, Preset::Adaptive),
        };
        MeantFor { routing, encapsulation: Encapsulation::Udp, preset }
    }

    /// Queue pairs of a connection.
    pub(crate) fn queue_pairs(&self) -> u64 {
        match self {
            Transport::Rocev2(rocev2) => rocev2.qps.get(),
            _ => 1,
        }
    }

    /// Entropy values that a connection sends on.
    pub(crate) fn evs(&self, network: &NetworkConfig) -> u64 {
        let shape = network.fabric.shape();
        let tops = shape.tiers as usize - 1;
        let paths = shape.uplinks[..tops].iter().map(|&up| u64::from(up)).product::<u64>();
        match self {
            Transport::Mrc(mrc) => mrc.ev_active.get().min(paths * u64::from(shape.planes)),
            Transport::Rocev2(_) => 1,
            Transport::Uet(uet) => uet.evs.get(),
            Transport::Adaptive(_) => u64::from(shape.planes),
        }
    }

    /// The transport of a run, with a user's own parts in it.
    pub(crate) fn config(
        &self,
        network: &NetworkConfig,
        own: OwnParts,
    ) -> Result<TransportConfig, ScenarioError> {
        if !matches!(self, Transport::Mrc(_) | Transport::Uet(_)) {
            own.refuse(self.kind())?;
        }
        Ok(match self {
            Transport::Mrc(mrc) => TransportConfig::Mrc(mrc.config(own)?),
            Transport::Rocev2(rocev2) => TransportConfig::Rocev2(rocev2.config(network.port_rate_bps)),
            Transport::Uet(uet) => TransportConfig::Uet(uet.config(own)),
            Transport::Adaptive(adaptive) => TransportConfig::Adaptive(adaptive.config(network)),
        })
    }

    /// A class of a user's own that the scenario names, with its field.
    pub(crate) fn named_class(&self) -> Option<(&'static str, &str)> {
        let (path_selector, congestion) = match self {
            Transport::Mrc(mrc) => (&mrc.path_selector, &mrc.congestion),
            Transport::Uet(uet) => (&uet.path_selector, &uet.congestion),
            Transport::Rocev2(_) | Transport::Adaptive(_) => return None,
        };
        let selector = path_selector.as_deref().map(|name| ("path_selector", name));
        selector.or_else(|| congestion.as_deref().map(|name| ("congestion", name)))
    }

    /// The same with everything filled in.
    pub(crate) fn filled(&self, network: &NetworkConfig) -> Self {
        match self.clone() {
            Transport::Rocev2(rocev2) => Transport::Rocev2(rocev2.filled(network.port_rate_bps)),
            Transport::Adaptive(adaptive) => Transport::Adaptive(adaptive.filled(network)),
            filled @ (Transport::Mrc(_) | Transport::Uet(_)) => filled,
        }
    }
}

/// A user's own parts, in place of those of MRC or UET.
#[derive(Default)]
pub struct OwnParts {
    /// Instead of NSCC.
    pub congestion: Option<mrc::CustomCc>,
    /// Instead of EV states, or of UET's load balancing.
    pub path_selector: Option<mrc::CustomSelector>,
}

impl OwnParts {
    /// Whether there are any.
    pub(crate) fn are_any(&self) -> bool {
        self.congestion.is_some() || self.path_selector.is_some()
    }

    fn refuse(&self, kind: &str) -> Result<(), ScenarioError> {
        if !self.are_any() {
            return Ok(());
        }
        let message =
            format!("path_selector and congestion stand in for parts of mrc and uet: transport is {kind}");
        Err(ScenarioError::at("transport", message))
    }
}

/// MRC with the specification's defaults.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Mrc {
    /// Paths in rotation.
    pub ev_active: Whole<1, MOST_PATHS>,
    /// Paths in reserve.
    pub ev_backup: Whole<0, MOST_PATHS>,
    /// In-flight window, units of 128 PSNs.
    pub mpr: Whole<1, 255>,
    /// A congestion window that never changes, bytes, instead of NSCC.
    pub fixed_window: Option<Amount>,
    /// Whether receivers slow down senders that overrun their ports (docs/spec/congestion.md).
    pub destination_control: bool,
    /// Whether a sender whose only packet is trimmed on the last hop waits longer before each next one.
    pub spacing: bool,
    /// Whether a connection proves its path MTU before its first message, as NICs do: in a round trip, or for about a
    /// second if a plane does not answer. A plane that carries short packets only fails the connection.
    pub prove_mtu: bool,
    /// Whether queue pairs are destroyed as soon as their host has sent or received all, and answer their peers for a
    /// while, as NICs' do. Else a receiver's stays until its sender knows that all has arrived.
    pub linger: bool,
    /// Every message needs a receive of its receiver; none does if left open.
    pub receives: Option<Receives>,
    /// A class of your own in place of EV states, as `module.Class`: Python only, and one thread.
    pub path_selector: Option<String>,
    /// A class of your own in place of NSCC, in the same form.
    pub congestion: Option<String>,
}

/// Receives of each connection: how soon its receiver is ready for the next message.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Receives {
    /// Posted at the beginning.
    pub posted: Whole<0, U32>,
    /// A receive is posted again this long after a message has taken it. If none is posted at the beginning, one is posted
    /// this long after a message has come that waits for it.
    #[serde(default)]
    pub repost_us: Micros,
    /// How long a message waits that finds none, before its queue pair fails; as long as it takes if left open.
    #[serde(default)]
    pub wait_us: Option<Micros>,
}

/// Most paths in rotation, and most in reserve.
const MOST_PATHS: u64 = PathConfig::MOST as u64;

impl Default for Mrc {
    /// Those of a queue pair ([`PathConfig::new`], [`RequestorConfig`]), and destination flow control as the
    /// specification has it (docs/spec/congestion.md).
    fn default() -> Self {
        let paths = default_paths();
        Mrc {
            ev_active: Whole::of(paths.active.into()),
            ev_backup: Whole::of(paths.backup.into()),
            mpr: Whole::of(RequestorConfig::default().mpr.into()),
            fixed_window: None,
            destination_control: true,
            spacing: true,
            prove_mtu: false,
            linger: false,
            receives: None,
            path_selector: None,
            congestion: None,
        }
    }
}

/// How a queue pair uses its paths by default; the path in it stands for any.
fn default_paths() -> PathConfig {
    match EvProfile::new(&[PathEntry { ev: Ev(0), port: 0 }]) {
        Ok(profile) => PathConfig::new(profile.into(), PathModel::new(Span::ZERO, true)),
        Err(error) => unreachable!("a profile has one path at least: {error}"),
    }
}

impl Mrc {
    fn config(&self, own: OwnParts) -> Result<MrcConfig, ScenarioError> {
        let congestion = match (own.congestion, self.fixed_window) {
            (Some(_), Some(_)) => {
                let message = "congestion: the transport has a fixed_window";
                return Err(ScenarioError::at("transport", message));
            }
            (Some(class), None) => MrcCongestion::Custom(class),
            (None, Some(bytes)) => MrcCongestion::FixedWindow(bytes.get()),
            (None, None) => MrcCongestion::Nscc,
        };
        Ok(MrcConfig {
            ev_active: self.ev_active.u16(),
            ev_backup: self.ev_backup.u16(),
            mpr: self.mpr.u8(),
            congestion,
            load_balancing: own.path_selector.map_or(LoadBalancing::EvStates, LoadBalancing::Custom),
            destination_control: self.destination_control,
            spacing: self.spacing,
            life: LifeConfig {
                prove_mtu: self.prove_mtu,
                linger: self.linger,
                receives: self.receives.map(Receives::config),
            },
        })
    }
}

impl Receives {
    fn config(self) -> ReceivesConfig {
        ReceivesConfig {
            posted: self.posted.u32(),
            repost: self.repost_us.span(),
            longest_wait: self.wait_us.map(Micros::span),
        }
    }
}

impl Default for MrcConfig {
    fn default() -> Self {
        match Mrc::default().config(OwnParts::default()) {
            Ok(config) => config,
            Err(error) => unreachable!("no window and no parts of a user's own: {error}"),
        }
    }
}

/// RoCEv2 reliable connections, by default over PFC (docs/spec/baselines.md).
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Rocev2 {
    /// Queue pairs that share each message; each has one path, and one plane, in turn.
    pub qps: Whole<1, 64>,
    /// What is sent again after a loss.
    pub recovery: Recovery,
    /// Rate control with the published best settings, or others; `false`: everybody sends at line rate.
    pub dcqcn: DcqcnChoice,
    /// Retransmission timeout.
    pub timeout_us: Duration,
    /// Timeouts in a row before a connection ends; 255 for no end.
    pub retry_count: Whole<0, 255>,
    /// Packets in flight at most.
    pub window: Whole<1, { 1 << 20 }>,
    /// An ACK for every n packets, and for the last of a message.
    pub ack_every: Whole<1, { 1 << 16 }>,
}

impl Default for Rocev2 {
    /// Those of [`RcConfig::new`], which says where they come from; one queue pair, as applications have.
    fn default() -> Self {
        let transport = RcConfig::new(1, 1, 1);
        Rocev2 {
            qps: Whole::of(1),
            recovery: match transport.recovery {
                rocev2::Recovery::GoBackN => Recovery::GoBackN,
                rocev2::Recovery::SelectiveRepeat => Recovery::SelectiveRepeat,
            },
            dcqcn: DcqcnChoice::On(true),
            timeout_us: Duration::from_span(transport.timeout),
            retry_count: Whole::of(transport.retry_count.into()),
            window: Whole::of(transport.window.into()),
            ack_every: Whole::of(transport.ack_every.into()),
        }
    }
}

/// What is sent again after a loss.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Recovery {
    /// Everything from the lost packet on.
    GoBackN,
    /// What is missing.
    SelectiveRepeat,
}

impl From<Recovery> for rocev2::Recovery {
    fn from(recovery: Recovery) -> Self {
        match recovery {
            Recovery::GoBackN => rocev2::Recovery::GoBackN,
            Recovery::SelectiveRepeat => rocev2::Recovery::SelectiveRepeat,
        }
    }
}

impl Rocev2 {
    fn config(&self, port_rate_bps: u64) -> Rocev2Config {
        let dcqcn = match &self.dcqcn {
            DcqcnChoice::On(on) => on.then(Dcqcn::default),
            DcqcnChoice::With(dcqcn) => Some(dcqcn.clone()),
        };
        Rocev2Config {
            qps: self.qps.u32(),
            recovery: self.recovery.into(),
            dcqcn: dcqcn.is_some(),
            dcqcn_params: dcqcn.map(|dcqcn| dcqcn.config(port_rate_bps)),
            timeout: self.timeout_us.span(),
            retry_count: self.retry_count.u8(),
            window: self.window.u32(),
            ack_every: self.ack_every.u32(),
        }
    }

    fn filled(self, port_rate_bps: u64) -> Self {
        let dcqcn = match self.dcqcn {
            DcqcnChoice::On(true) => DcqcnChoice::With(Dcqcn::default().filled(port_rate_bps)),
            DcqcnChoice::On(false) => DcqcnChoice::On(false),
            DcqcnChoice::With(dcqcn) => DcqcnChoice::With(dcqcn.filled(port_rate_bps)),
        };
        Rocev2 { dcqcn, ..self }
    }
}

/// DCQCN on, off, or on with settings.
#[derive(Clone, PartialEq, Debug, Serialize, JsonSchema)]
#[serde(untagged)]
pub enum DcqcnChoice {
    /// On with its defaults, or off.
    On(bool),
    /// On with these settings.
    With(Dcqcn),
}

impl<'de> Deserialize<'de> for DcqcnChoice {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match Value::deserialize(deserializer)? {
            Value::Bool(on) => Ok(DcqcnChoice::On(on)),
            settings => read::inner(settings).map(DcqcnChoice::With),
        }
    }
}

/// Rate control of RoCEv2, as published (Zhu et al., SIGCOMM 2015; docs/spec/baselines.md).
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Dcqcn {
    /// Weight of a congestion notification in the estimate.
    pub g: Share,
    /// The estimate decays after this time without a congestion notification.
    pub alpha_timer_us: Duration,
    /// The rate rises after this time; 300 as first published, tuned since.
    pub rate_timer_us: Duration,
    /// The rate rises after this many bytes.
    pub byte_counter: Amount,
    /// Steps of fast recovery: F.
    pub fast_recovery: Whole<0, U32>,
    /// Additive increase; 5 Mb/s for every 10 Gb/s of a port's rate if left open.
    pub additive_bps: Option<BitRate>,
    /// Hyper increase; ten times the additive increase if left open.
    pub hyper_bps: Option<BitRate>,
    /// The rate never falls below this.
    pub least_bps: BitRate,
    /// A receiver sends at most one congestion notification in this time for each queue pair.
    pub cnp_interval_us: Duration,
}

impl Default for Dcqcn {
    /// Those of [`DcqcnParams::for_rate`], which says where they come from.
    fn default() -> Self {
        let published = DcqcnParams::for_rate(1);
        Dcqcn {
            g: Share::of(published.g),
            alpha_timer_us: Duration::from_span(published.alpha_timer),
            rate_timer_us: Duration::from_span(published.rate_timer),
            byte_counter: Whole::of(published.byte_counter),
            fast_recovery: Whole::of(published.fast_recovery.into()),
            additive_bps: None,
            hyper_bps: None,
            least_bps: BitRate::of(published.least_bps),
            cnp_interval_us: Duration::from_span(published.cnp_interval),
        }
    }
}

impl Dcqcn {
    fn config(&self, port_rate_bps: u64) -> DcqcnParams {
        let published = DcqcnParams::for_rate(port_rate_bps);
        let additive_bps = self.additive_bps.map_or(published.additive_bps, BitRate::get);
        DcqcnParams {
            line_rate_bps: published.line_rate_bps,
            g: self.g.get(),
            alpha_timer: self.alpha_timer_us.span(),
            rate_timer: self.rate_timer_us.span(),
            byte_counter: self.byte_counter.get(),
            fast_recovery: self.fast_recovery.u32(),
            additive_bps,
            hyper_bps: self.hyper_bps.map_or(10.0 * additive_bps, BitRate::get),
            least_bps: self.least_bps.get(),
            cnp_interval: self.cnp_interval_us.span(),
        }
    }

    fn filled(self, port_rate_bps: u64) -> Self {
        let config = self.config(port_rate_bps);
        let (additive, hyper) = (BitRate::of(config.additive_bps), BitRate::of(config.hyper_bps));
        Dcqcn { additive_bps: Some(additive), hyper_bps: Some(hyper), ..self }
    }
}

impl Default for Rocev2Config {
    /// Without parameters of DCQCN, which follow from a port's rate.
    fn default() -> Self {
        Rocev2Config { dcqcn_params: None, ..Rocev2::default().config(1) }
    }
}

/// Ultra Ethernet in RUD mode (docs/spec/baselines.md). Sprays over entropy values that switches hash; NSCC, trimming,
/// selective retransmission; knows nothing of broken paths.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Uet {
    /// How entropy values are chosen.
    pub load_balancing: Spraying,
    /// Entropy values of a queue pair, all planes together.
    pub evs: Whole<1, 256>,
    /// In-flight window, units of 128 PSNs.
    pub mpr: Whole<1, 255>,
    /// Whether receivers slow down senders that overrun their ports (UET 1.0 section 3.6.13), as with MRC.
    pub destination_control: bool,
    /// Whether a sender whose only packet is trimmed on the last hop waits longer before each next one, as with MRC.
    pub spacing: bool,
    /// A class of your own in place of `load_balancing`, as `module.Class`: Python only, and one thread.
    pub path_selector: Option<String>,
    /// A class of your own in place of NSCC, in the same form.
    pub congestion: Option<String>,
}

impl Default for Uet {
    fn default() -> Self {
        Uet {
            // REPS, Bonato et al., 2024.
            load_balancing: Spraying::Reps,
            // As many as a queue pair can name.
            evs: Whole::of(256),
            // As MRC's: a comparison differs in paths and failures only (docs/spec/baselines.md).
            mpr: Mrc::default().mpr,
            destination_control: Mrc::default().destination_control,
            spacing: Mrc::default().spacing,
            path_selector: None,
            congestion: None,
        }
    }
}

/// How UET chooses entropy values.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Spraying {
    /// At random.
    Oblivious,
    /// Again those whose packets arrived unmarked (REPS, Bonato et al., 2024).
    Reps,
    /// Each in turn; one that was marked or trimmed misses a turn.
    Skip,
}

impl Uet {
    fn config(&self, own: OwnParts) -> UetConfig {
        UetConfig {
            congestion: own.congestion.map_or(MrcCongestion::Nscc, MrcCongestion::Custom),
            load_balancing: match (own.path_selector, self.load_balancing) {
                (Some(class), _) => LoadBalancing::Custom(class),
                (None, Spraying::Oblivious) => LoadBalancing::Oblivious,
                (None, Spraying::Reps) => LoadBalancing::Reps,
                (None, Spraying::Skip) => LoadBalancing::EvSkip,
            },
            evs: self.evs.u16(),
            mpr: self.mpr.u8(),
            destination_control: self.destination_control,
            spacing: self.spacing,
        }
    }
}

impl Default for UetConfig {
    fn default() -> Self {
        Uet::default().config(OwnParts::default())
    }
}

/// Switches spray, NICs place out of order, over PFC (docs/spec/baselines.md). The rate is Swift's (Kumar et al.,
/// SIGCOMM
/// 2020), in place of RTT-based control that is not published.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Adaptive {
    /// In-flight window, units of 128 PSNs.
    pub mpr: Whole<1, 255>,
    /// Round-trip time aimed at; 1.75 base RTTs, where NSCC aims, if left open.
    pub target_us: Option<Duration>,
    /// Gain of the decrease.
    pub beta: Share,
    /// Most of the window that is given up at once.
    pub max_decrease: PartialShare,
    /// Increase; 1 at 100 Gb/s and 12 us, scaled with the bandwidth-delay product, if left open.
    pub increase: Option<PacketsPerRtt>,
}

impl Default for Adaptive {
    /// Those of [`SwiftParams::for_network`], which says where they come from.
    fn default() -> Self {
        let published = SwiftParams::for_network(1, Span(1), 1);
        Adaptive {
            // A window that does not limit Swift.
            mpr: Whole::of(16),
            target_us: None,
            beta: Share::of(published.beta),
            max_decrease: PartialShare::of(published.max_decrease),
            increase: None,
        }
    }
}

impl Adaptive {
    fn swift(&self, network: &NetworkConfig) -> SwiftParams {
        let published = SwiftParams::for_network(
            network.host_rate_bps(),
            network.base_rtt(),
            network.nominal_packet_bytes(),
        );
        let base_target = self.target_us.map_or(published.base_target, Duration::span);
        SwiftParams {
            base_target,
            scaling_range: base_target.times(4),
            beta: self.beta.get(),
            max_decrease: self.max_decrease.get(),
            increase: self.increase.map_or(published.increase, PacketsPerRtt::get),
            ..published
        }
    }

    fn config(&self, network: &NetworkConfig) -> AdaptiveConfig {
        AdaptiveConfig { swift: Some(self.swift(network)), mpr: self.mpr.u8() }
    }

    fn filled(self, network: &NetworkConfig) -> Self {
        let swift = self.swift(network);
        let (target, increase) = (Duration::from_span(swift.base_target), PacketsPerRtt::of(swift.increase));
        Adaptive { target_us: Some(target), increase: Some(increase), ..self }
    }
}

impl Default for AdaptiveConfig {
    /// Swift's parameters follow from the network.
    fn default() -> Self {
        AdaptiveConfig { swift: None, mpr: Adaptive::default().mpr.u8() }
    }
}

impl NetworkConfig {
    /// Size of a full packet that windows count in, bytes.
    pub fn nominal_packet_bytes(&self) -> u32 {
        u32::from(self.path_mtu) + NsccParams::OVERHEAD
    }
}
