//! A controller's profiles of an open device, below `openmrc.controller`. Converts; `openmrc_nic::profiles` decides.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::Duration;

use openmrc_nic::profiles::{
    CcAlgorithm, CcChange, CcConfig, EvAttr, EvChange, EvFormatChange, EvMode, EvName, ProfileState, Replace,
    Step,
};
use openmrc_nic::{Error, PathEvent, SegmentRoute};
use openmrc_transport::mrc::EvState;
use openmrc_transport::{EvChange as Change, PathEntry, Span};
use openmrc_wire::expansion::{EvField, EvString};
use openmrc_wire::{Ev, EvFormat};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyInt};

use super::context::Context;
use super::convert::{address_pairs, duration, optional, out_of_range, socket_addresses};
use super::error::OrRaise;
use crate::wire::Mirror;

/// An entropy value as a number, and its port.
type Number<'py> = (Bound<'py, PyInt>, u8);

/// A field of an EV profile: width, init, min, max, mask.
pub type Field = (u32, u32, u32, u32, u32);

pub fn field_of((width, init, min, max, mask): Field) -> EvField {
    EvField { width, init, min, max, mask }
}

/// An SRv6 route: a value, its outer destination, and the segment of an SRH.
type Route<'py> = (Number<'py>, IpAddr, Option<IpAddr>);

/// The right-aligned bytes of a number.
fn string(number: &Bound<'_, PyInt>) -> PyResult<EvString> {
    let bytes = number.call_method1("to_bytes", (32, "big"));
    let bytes = bytes.map_err(|_| out_of_range(number, "the value of an Ev", "0 to 2^256 - 1"))?;
    Ok(EvString(bytes.extract()?))
}

fn state_of(name: &str) -> ProfileState {
    match name {
        "init" => ProfileState::Init,
        "offline" => ProfileState::Offline,
        _ => ProfileState::Online,
    }
}

fn state_name(state: ProfileState) -> &'static str {
    match state {
        ProfileState::Init => "init",
        ProfileState::Offline => "offline",
        ProfileState::Online => "online",
    }
}

/// What a call wants of the state, by name.
fn step(state: Option<String>) -> Step {
    Step { to: state.as_deref().map(state_of), from: None }
}

fn mode_of(name: &str) -> EvMode {
    match name {
        "auto" => EvMode::Auto,
        "explicit" => EvMode::Explicit,
        _ => EvMode::Generated,
    }
}

fn ev_state_of(name: &str) -> EvState {
    match name {
        "good" => EvState::Good,
        "skip" => EvState::Skip,
        "assumed_bad" => EvState::AssumedBad,
        _ => EvState::Denied,
    }
}

fn ev_state_name(state: EvState) -> &'static str {
    match state {
        EvState::Good => "good",
        EvState::Skip => "skip",
        EvState::AssumedBad => "assumed_bad",
        EvState::Denied => "denied",
    }
}

/// The profiles of an open device, by id.
#[pyclass(frozen, module = "openmrc._core")]
pub struct Profiles(Py<Context>);

impl Profiles {
    fn profiles(&self) -> &openmrc_nic::profiles::Profiles {
        self.0.get().context.profiles()
    }

    /// The value of a profile that a number means.
    fn name(&self, py: Python<'_>, id: u64, (number, port): &Number<'_>) -> PyResult<EvName> {
        let bits = py.detach(|| self.profiles().value_bits(id)).or_raise()?;
        EvName::of_number(string(number)?, *port, bits).map_err(Error::from).or_raise()
    }

    /// The number and port of a value of a profile.
    fn shown<'py>(&self, py: Python<'py>, ev: &EvName, bits: u32) -> PyResult<(Bound<'py, PyAny>, u8)> {
        let bytes = PyBytes::new(py, &ev.number(bits).0);
        Ok((py.get_type::<PyInt>().call_method1("from_bytes", (bytes, "big"))?, ev.port))
    }
}

#[pymethods]
impl Profiles {
    #[new]
    fn new(context: Py<Context>) -> Self {
        Profiles(context)
    }

    /// An id that no call has returned before.
    fn new_id(&self) -> u64 {
        self.profiles().new_id()
    }

    /// What the device offers.
    fn limits<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let limits = py.detach(|| self.profiles().limits()).or_raise()?;
        let out = PyDict::new(py);
        out.set_item("max_profiles", limits.max_profiles)?;
        out.set_item("ev_max_count", limits.ev_max_count)?;
        out.set_item("ev_free_count", limits.ev_free_count)?;
        out.set_item("ev_max_count_profile", limits.ev_max_count_profile)?;
        out.set_item("ev_max_active", limits.ev_max_active)?;
        out.set_item("ev_count_align", limits.ev_count_align)?;
        out.set_item("ev_max_width", limits.ev_max_width)?;
        out.set_item("has_auto", limits.has_auto)?;
        Ok(out)
    }

    // --- EV format profiles ------------------------------------------------------------------------------------

    fn modify_ev_format(
        &self,
        py: Python<'_>,
        id: u64,
        state: Option<String>,
        ev_format: Option<String>,
        widths: Option<Vec<u32>>,
    ) -> PyResult<()> {
        let ev_format = ev_format.map(Mirror::<EvFormat>::to_core).transpose()?;
        let change = EvFormatChange { step: step(state), ev_format, widths };
        py.detach(|| self.profiles().modify_ev_format(id, &change)).or_raise()
    }

    /// State, format, and bits of each field.
    fn ev_format(&self, py: Python<'_>, id: u64) -> PyResult<(&'static str, Option<String>, Vec<u32>)> {
        let profile = py.detach(|| self.profiles().ev_format(id)).or_raise()?;
        let format = profile.ev_format.map(Mirror::<EvFormat>::from_core);
        Ok((state_name(profile.state), format, profile.widths))
    }

    // --- EV profiles -------------------------------------------------------------------------------------------

    /// `attributes` has those of `openmrc.controller.EvProfileAttr`, `format_profile` as an id, `fields` and `routes` as
    /// tuples; None: not given.
    fn modify_ev(
        &self,
        py: Python<'_>,
        id: u64,
        state: Option<String>,
        attributes: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let mode: Option<String> = optional!(attributes, "mode", "a mode")?;
        let fields: Option<Vec<Field>> = optional!(attributes, "fields", "EvFields")?;
        let peer: Option<Vec<(String, u16)>> = optional!(attributes, "peer", "(address, UDP port) pairs")?;
        let routes: Option<Vec<Route<'_>>> = optional!(attributes, "routes", "IPv6 addresses")?;
        let route = |((number, port), destination, segment): Route<'_>| {
            let name = EvName { value: string(&number)?, port };
            let route = SegmentRoute { destination: destination.to_core()?, segment: segment.to_core()? };
            Ok((name, route))
        };
        let attr = EvAttr {
            mode: mode.as_deref().map(mode_of),
            format_profile: optional!(attributes, "format_profile", "an EvFormatProfile")?,
            count: optional!(attributes, "count", "0 to 2^32 - 1")?,
            active: optional!(attributes, "active", "0 to 65535")?,
            min_active: optional!(attributes, "min_active", "0 to 2^32 - 1")?,
            event_mask: optional!(attributes, "event_mask", "an EvEventMask")?,
            ports: optional!(attributes, "ports", "a list of ports")?,
            fields: fields.map(|fields| fields.into_iter().map(field_of).collect()),
            peer: peer.map(socket_addresses).transpose()?,
            routes: routes
                .map(|list| list.into_iter().map(route).collect::<PyResult<HashMap<_, _>>>())
                .transpose()?,
            seed: optional!(attributes, "seed", "0 to 2^64 - 1")?,
        };
        let change = EvChange { step: step(state), attr };
        py.detach(|| self.profiles().modify_ev(id, &change)).or_raise()
    }

    fn ev_state(&self, py: Python<'_>, id: u64) -> PyResult<&'static str> {
        py.detach(|| self.profiles().ev(id)).or_raise().map(|profile| state_name(profile.state))
    }

    /// The attributes, with their defaults where the profile knows them; those of Python's own objects are left out.
    fn ev<'py>(&self, py: Python<'py>, id: u64) -> PyResult<Bound<'py, PyDict>> {
        let profile = py.detach(|| self.profiles().ev(id)).or_raise()?;
        profile.check_not_init("query").map_err(Error::from).or_raise()?;
        let out = PyDict::new(py);
        let (count, min_active, mask) = (profile.count(), profile.min_active(), profile.event_mask());
        let attr = profile.attr;
        out.set_item("mode", attr.mode.map(EvMode::name))?;
        out.set_item("count", count)?;
        out.set_item("active", attr.active)?;
        out.set_item("min_active", min_active)?;
        out.set_item("event_mask", mask)?;
        // A list of bytes would become `bytes`.
        let ports = attr.ports.map(|ports| ports.into_iter().map(u32::from).collect::<Vec<_>>());
        out.set_item("ports", ports)?;
        let fields = attr.fields.map(|fields| {
            let row = |f: EvField| (f.width, f.init, f.min, f.max, f.mask);
            fields.into_iter().map(row).collect::<Vec<Field>>()
        });
        out.set_item("fields", fields)?;
        out.set_item("peer", attr.peer.map(|peer| address_pairs(&peer)))?;
        out.set_item("seed", attr.seed)?;
        Ok(out)
    }

    /// Every value as (number, port), None where there is none yet.
    #[allow(clippy::type_complexity)]
    fn evs<'py>(&self, py: Python<'py>, id: u64) -> PyResult<Vec<Option<(Bound<'py, PyAny>, u8)>>> {
        let (profile, bits) =
            py.detach(|| Ok((self.profiles().ev(id)?, self.profiles().value_bits(id)?))).or_raise()?;
        profile.check_not_init("query_evs").map_err(Error::from).or_raise()?;
        profile.evs.iter().map(|ev| ev.as_ref().map(|ev| self.shown(py, ev, bits)).transpose()).collect()
    }

    /// Replaces a value, or an unpopulated entry; returns how often.
    fn replace_ev(
        &self,
        py: Python<'_>,
        id: u64,
        current: Option<Number<'_>>,
        new: Number<'_>,
        state: &str,
        all_copies: bool,
    ) -> PyResult<usize> {
        let current = current.map(|ev| self.name(py, id, &ev)).transpose()?;
        let new = self.name(py, id, &new)?;
        let entry = Replace { current, new, state: ev_state_of(state), all_copies };
        py.detach(|| self.profiles().replace_ev(id, &entry)).or_raise()
    }

    /// Denies or allows a value; returns how many queue pairs use it.
    fn set_ev_state(&self, py: Python<'_>, id: u64, ev: Number<'_>, state: &str) -> PyResult<usize> {
        let (ev, state) = (self.name(py, id, &ev)?, ev_state_of(state));
        py.detach(|| self.profiles().set_ev_state(id, ev, state)).or_raise()
    }

    /// The state of a value.
    fn query_ev_state(&self, py: Python<'_>, id: u64, ev: Number<'_>) -> PyResult<&'static str> {
        let ev = self.name(py, id, &ev)?;
        let mut state = EvState::Good;
        py.detach(|| self.profiles().ev_states(id, &[ev], |_, found| state = found)).or_raise()?;
        Ok(ev_state_name(state))
    }

    /// The attribute `ev_profile_id` for queue pairs; None if it is not ONLINE, or has no peer in SRv6 mode.
    fn ev_number(&self, py: Python<'_>, id: u64) -> Option<u16> {
        py.detach(|| self.profiles().ev_number(id))
    }

    /// What packets carry of a value that some profile has, as (port, entropy value); None if none has it.
    fn known_path(&self, py: Python<'_>, ev: Number<'_>) -> PyResult<Option<(u8, u32)>> {
        let (number, port) = (string(&ev.0)?, ev.1);
        let name = |bits: u32| EvName::of_number(number, port, bits).ok();
        let found = py.detach(|| self.profiles().known_path(name)).or_raise()?;
        Ok(found.map(|(_, path)| (path.port, path.ev.0)))
    }

    /// An EV event as the controller wants it: the number of the value. None if its profile's mask holds it back.
    fn named_event<'py>(
        &self,
        py: Python<'py>,
        profile: u16,
        path: (u8, u32),
        state: &str,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        let change = if state == "good" { Change::Good } else { Change::AssumedBad };
        let path = PathEntry { port: path.0, ev: Ev(path.1) };
        let event = PathEvent { time_ns: 0, qp_num: 0, profile, ev: path.ev, port: path.port, change };
        let Some(event) = self.profiles().event(&event) else { return Ok(None) };
        let bits = py.detach(|| self.profiles().value_bits(event.id)).or_raise()?;
        self.shown(py, &event.ev, bits).map(|(number, _)| Some(number))
    }

    // --- congestion control profiles ---------------------------------------------------------------------------

    /// `config` has the attributes of `openmrc.controller.CcProfileAttr`; None: not given.
    fn modify_cc(
        &self,
        py: Python<'_>,
        id: u64,
        state: Option<String>,
        algorithm: Option<String>,
        config: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        let algorithm = algorithm.map(|name| match name == CcAlgorithm::Nscc.name() {
            true => CcAlgorithm::Nscc,
            false => CcAlgorithm::None,
        });
        let config = config.map(cc_config).transpose()?;
        let change = CcChange { step: step(state), algorithm, config };
        py.detach(|| self.profiles().modify_cc(id, &change)).or_raise()
    }

    /// State, and algorithm.
    fn cc(&self, py: Python<'_>, id: u64) -> (&'static str, Option<&'static str>) {
        let profile = py.detach(|| self.profiles().cc(id));
        (state_name(profile.state), profile.algorithm.map(CcAlgorithm::name))
    }

    /// The attribute `cc_profile_id` for queue pairs; None if it is not ONLINE.
    fn cc_number(&self, py: Python<'_>, id: u64) -> Option<u16> {
        py.detach(|| self.profiles().cc_number(id))
    }
}

fn cc_config(from: &Bound<'_, PyAny>) -> PyResult<CcConfig> {
    let span = |duration: Duration| Span::from_nanos(duration.as_nanos() as u64);
    macro_rules! number {
        ($name:literal) => {
            optional!(from, $name, "a number")?
        };
    }
    macro_rules! micros {
        ($name:literal) => {{
            let value: Option<f64> = optional!(from, $name, "a number of microseconds")?;
            value.map(|value| duration(value, 1e-6, $name)).transpose()?.map(span)
        }};
    }
    let alpha: Option<f64> = number!("alpha_per_us");
    Ok(CcConfig {
        base_rtt: micros!("base_rtt_us"),
        path_mtu: optional!(from, "path_mtu", "256 to 8192")?,
        link_rate_bps: optional!(from, "link_rate_bps", "1 to 2^64 - 1")?,
        trimming: optional!(from, "trimming", "True or False")?,
        window: optional!(from, "window", "1 to 2^64 - 1")?,
        max_wnd: optional!(from, "max_wnd", "1 to 2^64 - 1")?,
        target_qdelay: micros!("target_qdelay_us"),
        // The core counts in picoseconds.
        alpha: alpha.map(|per_us| per_us / 1e6),
        fi: number!("fi"),
        eta: number!("eta"),
        fi_scale: number!("fi_scale"),
        gamma: number!("gamma"),
        max_md_jump: number!("max_md_jump"),
        qa_gate: optional!(from, "qa_gate", "0 to 63")?,
        qa_threshold: micros!("qa_threshold_us"),
        disable_qa: optional!(from, "disable_qa", "True or False")?,
        adjust_period: micros!("adjust_period_us"),
        adjust_bytes: optional!(from, "adjust_bytes", "1 to 2^32 - 1")?,
    })
}
