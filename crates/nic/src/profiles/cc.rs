//! Congestion control profiles: the algorithm, its parameters and their ranges (docs/spec/c-interface.md, section 6.4;
//! congestion, Numbers).

use std::sync::Arc;

use openmrc_transport::Span;
use openmrc_transport::mrc::{
    CcProfile as Algorithm, DEFAULT_PATH_MTU, NsccParams, PATH_MTU_RANGE, PathModel,
};

use super::engine::CcProfileConfig;
use super::error::ProfileError;
use super::state::{Kind, ProfileState, Step, check_needed};
use crate::config::NetworkConfig;

/// Congestion control algorithms.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CcAlgorithm {
    /// NSCC of UET 1.0, section 3.6.13.
    Nscc,
    /// A window that never changes.
    None,
}

impl CcAlgorithm {
    /// Its name in the interface.
    pub const fn name(self) -> &'static str {
        match self {
            CcAlgorithm::Nscc => "uet-1.0-nscc",
            CcAlgorithm::None => "none",
        }
    }
}

/// Parameters of an algorithm. None: the value follows from the device's network.
#[derive(Clone, Copy, PartialEq, Default, Debug)]
pub struct CcConfig {
    /// Round-trip time of a full packet on the longest idle path.
    pub base_rtt: Option<Span>,
    /// Payload bytes per packet.
    pub path_mtu: Option<u16>,
    /// Rate of all planes of the sender together, bits per second.
    pub link_rate_bps: Option<u64>,
    /// Whether switches trim packets.
    pub trimming: Option<bool>,
    /// NONE: the window, bytes.
    pub window: Option<u64>,
    /// Largest and initial window, bytes.
    pub max_wnd: Option<u64>,
    /// Target of the queueing delay.
    pub target_qdelay: Option<Span>,
    /// Proportional increase, bytes per byte acknowledged and picosecond below target.
    pub alpha: Option<f64>,
    /// Fair increase, bytes.
    pub fi: Option<f64>,
    /// Increase once per adjust period, bytes.
    pub eta: Option<f64>,
    /// Fast increase per byte acknowledged.
    pub fi_scale: Option<f64>,
    /// Gain of multiplicative decrease.
    pub gamma: Option<f64>,
    /// Least factor of one decrease.
    pub max_md_jump: Option<f64>,
    /// Quick adapt acts if less than max_wnd / 2^qa_gate was achieved.
    pub qa_gate: Option<u32>,
    /// Quick adapt acts above this delay.
    pub qa_threshold: Option<Span>,
    /// Quick adapt never acts.
    pub disable_qa: Option<bool>,
    /// The window is adjusted after this time ...
    pub adjust_period: Option<Span>,
    /// ... or after more than this many bytes.
    pub adjust_bytes: Option<u32>,
}

impl CcConfig {
    /// Checks that each parameter is in range and belongs to the algorithm.
    fn check(&self, algorithm: CcAlgorithm) -> Result<(), ProfileError> {
        let span = |value: Option<Span>| value.map(|span| span.0 as f64);
        let whole = |value: Option<u64>| value.map(|value| value as f64);
        let (any, positive) = (0.0..=f64::MAX, f64::MIN_POSITIVE..=f64::MAX);
        let mtu = f64::from(*PATH_MTU_RANGE.start())..=f64::from(*PATH_MTU_RANGE.end());
        let numbers = [
            ("base_rtt", span(self.base_rtt), &positive, "more than 0"),
            ("path_mtu", self.path_mtu.map(f64::from), &mtu, "256 to 8192"),
            ("link_rate_bps", whole(self.link_rate_bps), &positive, "more than 0"),
            ("window", whole(self.window), &positive, "more than 0"),
            ("max_wnd", whole(self.max_wnd), &positive, "more than 0"),
            ("target_qdelay", span(self.target_qdelay), &positive, "more than 0"),
            ("alpha", self.alpha, &any, "0 or more"),
            ("fi", self.fi, &any, "0 or more"),
            ("eta", self.eta, &any, "0 or more"),
            ("fi_scale", self.fi_scale, &any, "0 or more"),
            ("gamma", self.gamma, &any, "0 or more"),
            ("max_md_jump", self.max_md_jump, &(0.0..=1.0), "0 to 1"),
            ("qa_gate", self.qa_gate.map(f64::from), &(0.0..=63.0), "0 to 63"),
            ("adjust_period", span(self.adjust_period), &positive, "more than 0"),
            ("adjust_bytes", self.adjust_bytes.map(f64::from), &positive, "more than 0"),
        ];
        for (name, value, range, allowed) in numbers {
            if let Some(value) = value.filter(|value| !range.contains(value)) {
                return Err(ProfileError::value(name, value, allowed));
            }
        }
        let foreign = match algorithm {
            CcAlgorithm::Nscc => self.window.is_some().then_some("window"),
            CcAlgorithm::None => self.of_nscc(),
        };
        match foreign {
            None => Ok(()),
            Some(name) => Err(ProfileError::value(
                name,
                "set",
                match algorithm {
                    CcAlgorithm::Nscc => "None with uet-1.0-nscc, whose largest window is max_wnd,",
                    CcAlgorithm::None => "None with algorithm none, which has a window only,",
                },
            )),
        }
    }

    /// A parameter that only NSCC has.
    fn of_nscc(&self) -> Option<&'static str> {
        let CcConfig { base_rtt: _, trimming: _, window: _, .. } = self;
        [
            ("path_mtu", self.path_mtu.is_some()),
            ("link_rate_bps", self.link_rate_bps.is_some()),
            ("max_wnd", self.max_wnd.is_some()),
            ("target_qdelay", self.target_qdelay.is_some()),
            ("alpha", self.alpha.is_some()),
            ("fi", self.fi.is_some()),
            ("eta", self.eta.is_some()),
            ("fi_scale", self.fi_scale.is_some()),
            ("gamma", self.gamma.is_some()),
            ("max_md_jump", self.max_md_jump.is_some()),
            ("qa_gate", self.qa_gate.is_some()),
            ("qa_threshold", self.qa_threshold.is_some()),
            ("disable_qa", self.disable_qa.is_some()),
            ("adjust_period", self.adjust_period.is_some()),
            ("adjust_bytes", self.adjust_bytes.is_some()),
        ]
        .into_iter()
        .find_map(|(name, given)| given.then_some(name))
    }

    /// What the engine takes.
    pub(super) fn resolve(&self, algorithm: CcAlgorithm, network: &NetworkConfig) -> CcProfileConfig {
        let trims = self.trimming.unwrap_or(network.trims);
        let device_rtt = Span::from_nanos(network.base_rtt.as_nanos().min(1 << 53) as u64);
        let base_rtt = self.base_rtt.unwrap_or(device_rtt);
        let model = PathModel::new(base_rtt, trims);
        if algorithm == CcAlgorithm::None {
            let window = self.window.unwrap_or_else(|| network.window());
            return CcProfileConfig { cc: Arc::new(Algorithm::FixedWindow(window)), model };
        }
        let rate = self.link_rate_bps.unwrap_or(network.link_rate_bps);
        let mtu = self.path_mtu.unwrap_or(DEFAULT_PATH_MTU);
        let mut params = NsccParams::for_network(rate, base_rtt, mtu, trims);
        macro_rules! take {
            ($($name:ident),*) => { $(if let Some(value) = self.$name { params.$name = value; })* };
        }
        take!(max_wnd, target_qdelay, alpha, fi, eta, fi_scale, gamma, max_md_jump);
        take!(qa_gate, qa_threshold, disable_qa, adjust_period, adjust_bytes);
        let model = PathModel { target_qdelay: params.target_qdelay, ..model };
        CcProfileConfig { cc: Arc::new(Algorithm::Nscc(Arc::new(params))), model }
    }
}

/// A congestion control profile.
#[derive(Clone, Default, Debug)]
pub struct CcProfile {
    /// Its state.
    pub state: ProfileState,
    /// The algorithm.
    pub algorithm: Option<CcAlgorithm>,
    /// Its parameters, as they were given.
    pub config: Option<CcConfig>,
}

/// Attributes that a call gives.
#[derive(Clone, Default, Debug)]
pub struct CcChange {
    /// What it wants of the state.
    pub step: Step,
    /// The algorithm. Another one than before forgets the parameters.
    pub algorithm: Option<CcAlgorithm>,
    /// All parameters.
    pub config: Option<CcConfig>,
}

impl CcProfile {
    /// That of the device itself.
    pub(super) fn own(network: &NetworkConfig) -> Self {
        let algorithm =
            if network.default_window().is_some() { CcAlgorithm::None } else { CcAlgorithm::Nscc };
        CcProfile { state: ProfileState::Online, algorithm: Some(algorithm), config: None }
    }

    /// The profile after a call.
    pub(super) fn after(&self, change: &CcChange) -> Result<Self, ProfileError> {
        let given = [(change.algorithm.is_some(), "algorithm"), (change.config.is_some(), "config")];
        let given: Vec<_> = given.iter().filter(|(is, _)| *is).map(|(_, name)| *name).collect();
        let to = change.step.target(Kind::Cc, self.state, &given)?;
        if to == ProfileState::Init {
            return Ok(CcProfile::default());
        }
        let mut after = self.clone();
        if let Some(algorithm) = change.algorithm.filter(|&each| Some(each) != self.algorithm) {
            after.algorithm = Some(algorithm);
            after.config = None;
        }
        after.config = change.config.or(after.config);
        let none = after.algorithm == Some(CcAlgorithm::None);
        check_needed(Kind::Cc, self.state, to, |name| match name {
            "config" => none || after.config.is_some(),
            _ => after.algorithm.is_some(),
        })?;
        if let (Some(algorithm), Some(config)) = (after.algorithm, &after.config) {
            config.check(algorithm)?;
        }
        after.state = to;
        Ok(after)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offline(algorithm: CcAlgorithm, config: Option<CcConfig>) -> Result<CcProfile, ProfileError> {
        let step = Step { to: Some(ProfileState::Offline), from: None };
        CcProfile::default().after(&CcChange { step, algorithm: Some(algorithm), config })
    }

    #[test]
    fn each_parameter_has_its_range() {
        let bad = [
            (CcConfig { max_md_jump: Some(1.5), ..CcConfig::default() }, "max_md_jump is 1.5: 0 to 1"),
            (CcConfig { eta: Some(f64::NAN), ..CcConfig::default() }, "eta is NaN"),
            (CcConfig { gamma: Some(-1.0), ..CcConfig::default() }, "gamma is -1"),
            (CcConfig { qa_gate: Some(64), ..CcConfig::default() }, "qa_gate is 64: 0 to 63"),
            (CcConfig { base_rtt: Some(Span::ZERO), ..CcConfig::default() }, "base_rtt is 0"),
            (CcConfig { path_mtu: Some(100), ..CcConfig::default() }, "path_mtu is 100: 256 to 8192"),
            (CcConfig { window: Some(1), ..CcConfig::default() }, "window is set"),
        ];
        for (config, words) in bad {
            let error = offline(CcAlgorithm::Nscc, Some(config)).unwrap_err().to_string();
            assert!(error.starts_with(words), "{error}");
        }
        let gain = CcConfig { gamma: Some(0.8), ..CcConfig::default() };
        assert!(offline(CcAlgorithm::None, Some(gain)).unwrap_err().to_string().starts_with("gamma is set"));
        let window =
            CcConfig { window: Some(4096), base_rtt: Some(Span::from_micros(9)), ..CcConfig::default() };
        assert!(offline(CcAlgorithm::None, Some(window)).is_ok());
    }

    #[test]
    fn nscc_needs_its_parameters_to_go_online_and_another_algorithm_forgets_them() {
        let online = Step { to: Some(ProfileState::Online), from: None };
        let bare = offline(CcAlgorithm::Nscc, None).unwrap();
        let go = |profile: &CcProfile| profile.after(&CcChange { step: online, ..CcChange::default() });
        assert!(go(&bare).unwrap_err().to_string().contains("needs config"));
        let given = CcChange { config: Some(CcConfig::default()), ..CcChange::default() };
        let full = bare.after(&given).unwrap();
        assert!(go(&full).is_ok());
        let other = CcChange { algorithm: Some(CcAlgorithm::None), ..CcChange::default() };
        let other = full.after(&other).unwrap();
        assert_eq!(other.config, None);
        assert!(go(&other).is_ok());
    }

    #[test]
    fn what_is_not_given_follows_from_the_network() {
        let network = NetworkConfig { fixed_window: Some(77_000), ..NetworkConfig::default() };
        let fixed = CcConfig::default().resolve(CcAlgorithm::None, &network);
        assert!(matches!(*fixed.cc, Algorithm::FixedWindow(77_000)));
        let config = CcConfig { max_wnd: Some(5_000), ..CcConfig::default() };
        let Algorithm::Nscc(params) = &*config.resolve(CcAlgorithm::Nscc, &network).cc else {
            panic!("NSCC was asked for")
        };
        let base_rtt = Span::from_nanos(network.base_rtt.as_nanos() as u64);
        let usual = NsccParams::for_network(network.link_rate_bps, base_rtt, DEFAULT_PATH_MTU, network.trims);
        assert_eq!((params.max_wnd, params.eta), (5_000, usual.eta));
    }
}
