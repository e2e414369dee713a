//! EV profiles: the entropy values that queue pairs spray over, and operations on them (docs/spec/c-interface.md,
//! section 6.4 and 6.5).

use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;

use openmrc_transport::PathEntry;
use openmrc_transport::mrc::{EvState, PathConfig};
use openmrc_wire::expansion::EvField;

use super::engine::DEFAULT_ACTIVE;
use super::error::ProfileError;
use super::format::EvFormatProfile;
use super::generate;
use super::layout::{Carried, EvName, Frame, Layout};
use super::state::{Kind, ProfileState, Step, check_needed};
use crate::path::SegmentRoute;

/// Most entropy values of a profile: 256 in rotation and as many in reserve.
pub const MOST_EVS: u32 = 2 * PathConfig::MOST as u32;

/// How the entropy values of a profile are chosen.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum EvMode {
    /// The device takes its own.
    Auto,
    /// The controller gives each one.
    Explicit,
    /// The device draws them within the bounds of the profile's fields.
    Generated,
}

impl EvMode {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            EvMode::Auto => "auto",
            EvMode::Explicit => "explicit",
            EvMode::Generated => "generated",
        }
    }
}

/// Bits of the event mask: changes of entropy values that are events.
pub mod event_mask {
    /// Usable again.
    pub const GOOD: u32 = 1;
    /// Believed broken.
    pub const ASSUMED_BAD: u32 = 1 << 1;
    /// Both.
    pub const ALL: u32 = GOOD | ASSUMED_BAD;
}

/// Declares the attributes of an EV profile once: as they are kept, as a call gives them, and by name.
macro_rules! attributes {
    ($($(#[$doc:meta])* $name:ident: $kind:ty),* $(,)?) => {
        /// Attributes of an EV profile, as far as they were given.
        #[derive(Clone, Default, Debug)]
        pub struct EvAttr { $($(#[$doc])* pub $name: Option<$kind>,)* }

        impl EvAttr {
            /// The names of those that are given.
            fn given(&self) -> Vec<&'static str> {
                [$((self.$name.is_some(), stringify!($name))),*]
                    .into_iter().filter(|(is, _)| *is).map(|(_, name)| name).collect()
            }

            /// Takes over those that `newer` gives.
            fn update(&mut self, newer: &EvAttr) {
                $(if newer.$name.is_some() { self.$name.clone_from(&newer.$name); })*
            }
        }
    };
}

attributes! {
    /// How the values are chosen.
    mode: EvMode,
    /// Id of the EV format profile; for mode AUTO none is needed.
    format_profile: u64,
    /// Number of values, 1 to 512, rounded down to a multiple of the number of ports; for mode AUTO all of the device
    /// by default.
    count: u32,
    /// How many of them are in rotation, at most 256; default half of them, at most 128.
    active: u16,
    /// With fewer usable ones in rotation than this, condemned ones are tried again; default a quarter of the count. At
    /// most as many as are in rotation count.
    min_active: u32,
    /// Changes that are events: bits of [`event_mask`]; default none.
    event_mask: u32,
    /// Ports to use; default all.
    ports: Vec<u8>,
    /// What the values are expanded by, and their bounds; default a field with a full mask for each of the format.
    fields: Vec<EvField>,
    /// SRv6: the node at which the paths end, its address per port; default the peer of each queue pair.
    peer: Vec<SocketAddr>,
    /// SRv6: the routes of values that are not expanded, by what [`EvName::number`] gives for the value.
    routes: HashMap<EvName, SegmentRoute>,
    /// GENERATED: decides which values are drawn; default the profile's id.
    seed: u64,
}

/// Attributes that a call gives, and what it wants of the state.
#[derive(Clone, Default, Debug)]
pub struct EvChange {
    /// What it wants of the state.
    pub step: Step,
    /// The attributes.
    pub attr: EvAttr,
}

/// An EV profile.
#[derive(Clone, Default, Debug)]
pub struct EvProfile {
    /// Its state.
    pub state: ProfileState,
    /// Its attributes, as they were given; the count as it was rounded.
    pub attr: EvAttr,
    /// Its values. In mode EXPLICIT from OFFLINE on, with none where there is no value yet; in the others while it is
    /// ONLINE.
    pub evs: Vec<Option<EvName>>,
    /// Those that the controller denies. They stay denied until INIT.
    pub(super) denied: HashSet<EvName>,
    /// While it is ONLINE: what packets carry of the values.
    pub(super) carried: Carried,
}

impl EvProfile {
    /// That of the device itself.
    pub(super) fn own(frame: &Frame<'_>) -> Self {
        let evs = frame.own.iter().map(|path| Some(EvName::of_path(frame.entropy.format, *path))).collect();
        let attr = EvAttr {
            mode: Some(EvMode::Auto),
            count: Some(frame.own.len() as u32),
            event_mask: Some(event_mask::ALL),
            ..EvAttr::default()
        };
        let carried = Carried { paths: frame.own.to_vec(), routes: Vec::new() };
        EvProfile { state: ProfileState::Online, attr, evs, denied: HashSet::new(), carried }
    }

    /// The number of values.
    pub fn count(&self) -> u32 {
        self.attr.count.unwrap_or(self.evs.len() as u32)
    }

    /// See [`EvAttr::min_active`].
    pub fn min_active(&self) -> u32 {
        self.attr.min_active.unwrap_or(self.count() / 4)
    }

    /// See [`EvAttr::event_mask`].
    pub fn event_mask(&self) -> u32 {
        self.attr.event_mask.unwrap_or(0)
    }

    /// Whether the controller denies a value.
    pub fn is_denied(&self, ev: &EvName) -> bool {
        self.denied.contains(ev)
    }

    /// The least number of usable values in rotation, as the engine takes it.
    pub(super) fn least_in_rotation(&self) -> u16 {
        let half = self.evs.len().div_ceil(2).min(DEFAULT_ACTIVE.into()) as u16;
        self.min_active().min(self.attr.active.unwrap_or(half).into()) as u16
    }

    /// While it is ONLINE: what packets carry of a value.
    pub fn path_of(&self, ev: &EvName) -> Option<PathEntry> {
        let place = self.evs.iter().position(|each| each.as_ref() == Some(ev))?;
        self.carried.paths.get(place).copied()
    }

    /// Every value that is set, with its path.
    pub(super) fn named_paths(&self) -> impl Iterator<Item = (EvName, PathEntry)> + '_ {
        self.evs.iter().zip(&self.carried.paths).filter_map(|(ev, path)| Some(((*ev)?, *path)))
    }

    /// The profile after a call. `format_of` gives the EV format profile of an id.
    pub(super) fn after(
        &self,
        frame: &Frame<'_>,
        id: u64,
        change: &EvChange,
        format_of: impl Fn(u64) -> EvFormatProfile,
    ) -> Result<Self, ProfileError> {
        let to = change.step.target(Kind::Ev, self.state, &change.attr.given())?;
        if to == ProfileState::Init {
            return Ok(EvProfile::default());
        }
        let mut after = self.clone();
        after.attr.update(&change.attr);
        after.check_attributes(frame)?;
        let auto = after.attr.mode == Some(EvMode::Auto);
        check_needed(Kind::Ev, self.state, to, |name| match name {
            "mode" => after.attr.mode.is_some(),
            "format_profile" => auto || after.attr.format_profile.is_some(),
            _ => auto || after.attr.count.is_some(),
        })?;
        let format = after.attr.format_profile.map(&format_of);
        if self.state != ProfileState::Online {
            let named = change.attr.format_profile.and(format.as_ref());
            if let Some(format) = named.filter(|format| format.state == ProfileState::Init) {
                return Err(ProfileError::Format { state: format.state, needed: "OFFLINE or ONLINE" });
            }
            after.take_attributes(frame, format.as_ref(), &self.attr)?;
        }
        match (self.state, to) {
            (ProfileState::Offline, ProfileState::Online) => after.go_online(frame, id, format.as_ref())?,
            (ProfileState::Online, ProfileState::Offline) => {
                after.carried = Carried::default();
                if after.attr.mode != Some(EvMode::Explicit) {
                    after.evs.clear();
                }
            }
            _ => {}
        }
        after.state = to;
        Ok(after)
    }

    /// Checks each attribute, and rounds the count.
    fn check_attributes(&mut self, frame: &Frame<'_>) -> Result<(), ProfileError> {
        let attr = &mut self.attr;
        if attr.mode == Some(EvMode::Auto) && frame.is_srv6() {
            return Err(ProfileError::Unsupported {
                name: "mode",
                value: EvMode::Auto.name().to_owned(),
                allowed: "in SRv6 mode it has no paths of its own: explicit, generated is allowed".to_owned(),
            });
        }
        if let Some(ports) = &attr.ports {
            let mut different = ports.clone();
            different.sort_unstable();
            different.dedup();
            if ports.is_empty() || different.len() != ports.len() {
                return Err(ProfileError::value("ports", format!("{ports:?}"), "a list of different ports"));
            }
            ports.iter().try_for_each(|&port| frame.check_port(port))?;
        }
        let align = attr.ports.as_ref().map_or(u32::from(frame.planes), |ports| ports.len() as u32);
        if let Some(count) = &mut attr.count {
            if !(align..=MOST_EVS).contains(count) {
                return Err(ProfileError::value("count", count, format!("{align} to {MOST_EVS}")));
            }
            *count = *count / align * align;
        }
        let most = attr.count.unwrap_or(MOST_EVS);
        if let Some(least) = attr.min_active.filter(|&least| least > most) {
            return Err(ProfileError::value("min_active", least, format!("0 to {most}, the count,")));
        }
        let most = most.min(PathConfig::MOST.into());
        if let Some(active) = attr.active.filter(|&active| active == 0 || u32::from(active) > most) {
            return Err(ProfileError::value("active", active, format!("1 to {most}")));
        }
        if let Some(mask) = attr.event_mask.filter(|mask| mask & !event_mask::ALL != 0) {
            return Err(ProfileError::value("event_mask", mask, "a sum of GOOD (1) and ASSUMED_BAD (2)"));
        }
        if !frame.is_srv6() && (attr.peer.is_some() || attr.routes.is_some()) {
            let name = if attr.peer.is_some() { "peer" } else { "routes" };
            return Err(ProfileError::value(name, "set", "None without SRv6"));
        }
        Ok(())
    }

    /// What depends on several attributes. The entries of explicit values begin anew where mode or count change.
    fn take_attributes(
        &mut self,
        frame: &Frame<'_>,
        format: Option<&EvFormatProfile>,
        before: &EvAttr,
    ) -> Result<(), ProfileError> {
        if self.attr.fields.is_some() {
            frame.check_fields(&self.layout(frame, format))?;
        }
        let is_explicit = self.attr.mode == Some(EvMode::Explicit);
        if (self.attr.mode, self.attr.count) != (before.mode, before.count) {
            let entries = if is_explicit { self.attr.count.unwrap_or(0) } else { 0 };
            self.evs = vec![None; entries as usize];
            self.denied.clear();
        }
        Ok(())
    }

    /// By what its values are expanded.
    pub(super) fn layout(&self, frame: &Frame<'_>, format: Option<&EvFormatProfile>) -> Layout<'_> {
        static NONE: std::sync::LazyLock<HashMap<EvName, SegmentRoute>> =
            std::sync::LazyLock::new(HashMap::new);
        let widths = format.map(|format| format.widths.as_slice());
        frame.layout(widths, self.attr.fields.as_deref(), self.attr.routes.as_ref().unwrap_or(&NONE))
    }

    fn go_online(
        &mut self,
        frame: &Frame<'_>,
        id: u64,
        format: Option<&EvFormatProfile>,
    ) -> Result<(), ProfileError> {
        if let Some(format) = format.filter(|format| format.state != ProfileState::Online) {
            return Err(ProfileError::Format { state: format.state, needed: "ONLINE" });
        }
        let layout = self.layout(frame, format);
        let all: Vec<u8> = (0..frame.planes).collect();
        let ports = self.attr.ports.as_deref().unwrap_or(&all);
        let (evs, carried) = match self.attr.mode {
            Some(EvMode::Explicit) => {
                let evs: Vec<_> = self.evs.iter().flatten().copied().collect();
                let count = self.evs.len();
                if evs.len() < count {
                    return Err(ProfileError::Unpopulated { missing: count - evs.len(), count });
                }
                let carried = frame.carried_all(&layout, &evs)?;
                (evs, carried)
            }
            Some(EvMode::Generated) => {
                let usable =
                    |value: &_| frame.check(&layout, &EvName { value: *value, port: ports[0] }).is_ok();
                let seed = self.attr.seed.unwrap_or(id);
                let evs = generate::draw(&layout.fields, self.count() as usize, ports, seed, usable);
                if evs.is_empty() {
                    return Err(ProfileError::NoValue);
                }
                let carried = frame.carried_all(&layout, &evs)?;
                (evs, carried)
            }
            _ => own(frame, ports, self.attr.count)?,
        };
        self.evs = evs.into_iter().map(Some).collect();
        self.carried = carried;
        Ok(())
    }

    /// The place of a value.
    fn find(&self, ev: Option<EvName>) -> Result<usize, ProfileError> {
        let held = self.evs.iter().flatten().count();
        let unknown = ProfileError::UnknownEv { ev, held, count: self.evs.len() };
        self.evs.iter().position(|each| *each == ev).ok_or(unknown)
    }

    /// Replaces a value (none: an unpopulated entry), in the first entry that has it or in all; returns how often.
    pub(super) fn replace(
        &mut self,
        frame: &Frame<'_>,
        format: Option<&EvFormatProfile>,
        entry: &Replace,
    ) -> Result<usize, ProfileError> {
        if self.state != ProfileState::Offline {
            return Err(wrong_state("replace_ev", "OFFLINE", self.state));
        }
        let mode = self.attr.mode.unwrap_or(EvMode::Auto);
        if mode != EvMode::Explicit {
            return Err(ProfileError::NotExplicit(mode.name()));
        }
        let denied = is_denial(entry.state)?;
        entry.current.map_or(Ok(()), |ev| frame.check_port(ev.port))?;
        frame.check(&self.layout(frame, format), &entry.new)?;
        let first = self.find(entry.current)?;
        let mut replaced = 0;
        for (place, ev) in self.evs.iter_mut().enumerate() {
            if *ev == entry.current && (entry.all_copies || place == first) {
                *ev = Some(entry.new);
                replaced += 1;
            }
        }
        self.mark(entry.new, denied);
        Ok(replaced)
    }

    /// Denies a value, or allows it; while it is ONLINE, its path.
    pub(super) fn set_state(
        &mut self,
        frame: &Frame<'_>,
        ev: EvName,
        state: EvState,
    ) -> Result<Option<PathEntry>, ProfileError> {
        self.check_not_init("modify_ev_state")?;
        let denied = is_denial(state)?;
        frame.check_port(ev.port)?;
        let place = self.find(Some(ev))?;
        self.mark(ev, denied);
        Ok(self.carried.paths.get(place).copied())
    }

    fn mark(&mut self, ev: EvName, denied: bool) {
        if denied {
            self.denied.insert(ev);
        } else {
            self.denied.remove(&ev);
        }
    }

    /// The state of a value: DENIED if the controller says so, else the worst at a queue pair of the profile. SKIP is
    /// reported as GOOD.
    pub(super) fn state_of(
        &self,
        frame: &Frame<'_>,
        ev: EvName,
        at_queue_pairs: &HashMap<PathEntry, EvState>,
    ) -> Result<EvState, ProfileError> {
        self.check_not_init("query_ev_state")?;
        frame.check_port(ev.port)?;
        let place = self.find(Some(ev))?;
        if self.denied.contains(&ev) {
            return Ok(EvState::Denied);
        }
        let worst = self.carried.paths.get(place).and_then(|path| at_queue_pairs.get(path));
        Ok(match worst {
            None | Some(EvState::Skip) => EvState::Good,
            Some(state) => *state,
        })
    }

    /// # Errors
    /// [`ProfileError::WrongState`] in INIT, where there is nothing to ask for.
    pub fn check_not_init(&self, operation: &'static str) -> Result<(), ProfileError> {
        match self.state {
            ProfileState::Init => Err(wrong_state(operation, "OFFLINE or ONLINE", self.state)),
            _ => Ok(()),
        }
    }
}

/// One entry of the operation REPLACE_EV.
#[derive(Clone, Copy, Debug)]
pub struct Replace {
    /// The value to replace; none: an unpopulated entry.
    pub current: Option<EvName>,
    /// What takes its place.
    pub new: EvName,
    /// The state of the new one.
    pub state: EvState,
    /// Every entry that holds `current`, not one of them.
    pub all_copies: bool,
}

fn wrong_state(operation: &'static str, allowed: &'static str, state: ProfileState) -> ProfileError {
    ProfileError::WrongState { operation, kind: Kind::Ev, allowed, state }
}

/// A controller sets GOOD or DENIED; the other states are the transport's.
fn is_denial(state: EvState) -> Result<bool, ProfileError> {
    match state {
        EvState::Good => Ok(false),
        EvState::Denied => Ok(true),
        EvState::Skip => Err(ProfileError::value("state", "SKIP", "GOOD or DENIED")),
        EvState::AssumedBad => Err(ProfileError::value("state", "ASSUMED_BAD", "GOOD or DENIED")),
    }
}

/// The worse of two states.
pub(super) fn worse(one: EvState, other: EvState) -> EvState {
    let rank = |state| match state {
        EvState::Good => 0,
        EvState::Skip => 1,
        EvState::AssumedBad => 2,
        EvState::Denied => 3,
    };
    if rank(one) >= rank(other) { one } else { other }
}

/// Values of the device's own profile, equally many per port.
fn own(frame: &Frame<'_>, ports: &[u8], count: Option<u32>) -> Result<(Vec<EvName>, Carried), ProfileError> {
    let of_port = |port: &u8| frame.own.iter().filter(|path| path.port == *port).collect::<Vec<_>>();
    let of_ports: Vec<Vec<_>> = ports.iter().map(of_port).collect();
    let available = of_ports.iter().map(Vec::len).min().unwrap_or(0);
    let share = count.map_or(available, |count| count as usize / ports.len());
    if share > available || available == 0 {
        let most = available * ports.len();
        return Err(ProfileError::value(
            "count",
            count.unwrap_or(0),
            format!("up to {most}, all of the device,"),
        ));
    }
    let paths: Vec<_> = (0..share).flat_map(|i| of_ports.iter().map(move |list| *list[i])).collect();
    let evs = paths.iter().map(|path| EvName::of_path(frame.entropy.format, *path)).collect();
    Ok((evs, Carried { paths, routes: Vec::new() }))
}
