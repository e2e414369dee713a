//! All profiles of an open device: what operations on them do, and what that is for the engine.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use openmrc_transport::PathEntry;
use openmrc_transport::mrc::EvState;
use parking_lot::Mutex;

use super::cc::{CcAlgorithm, CcChange, CcProfile};
use super::error::ProfileError;
use super::ev::{EvAttr, EvChange, EvProfile, MOST_EVS, Replace, worse};
use super::format::{EvFormatChange, EvFormatProfile};
use super::layout::{EvName, Frame};
use super::names::{EvEvent, Names};
use super::online::{Host, Online};
use super::state::{Kind, ProfileState, Step};
use super::table::Table;
use crate::config::MAX_PATHS;
use crate::driver::Driver;
use crate::error::{Error, Result};
use crate::events::PathEvent;
use crate::limits::MAX_PROFILES;

/// What a device offers a controller.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ProfileLimits {
    /// Profiles of one kind that are not in INIT.
    pub max_profiles: u32,
    /// Entropy values of all profiles together, with the device's own.
    pub ev_max_count: u32,
    /// Those that are left.
    pub ev_free_count: u32,
    /// Entropy values of one profile.
    pub ev_max_count_profile: u32,
    /// Most of them in rotation.
    pub ev_max_active: u32,
    /// Counts are rounded down to a multiple of this: every port has the same number.
    pub ev_count_align: u32,
    /// Bits of the fields of an EV format profile.
    pub ev_max_width: u32,
    /// Whether the device has paths of its own, for mode AUTO.
    pub has_auto: bool,
}

/// The profiles of an open device.
pub struct Profiles {
    pub(super) host: Host,
    pub(super) tables: Mutex<Tables>,
    ids: AtomicU64,
}

/// Profiles of all kinds, by id.
#[derive(Default)]
pub(super) struct Tables {
    formats: Table<EvFormatProfile>,
    evs: Table<KeptEv>,
    ccs: Table<KeptCc>,
}

/// An EV profile, and what the engine has of it.
#[derive(Clone, Default)]
pub(super) struct KeptEv {
    profile: EvProfile,
    online: Online,
}

/// A congestion control profile, and the engine's number while it is ONLINE.
#[derive(Clone, Default)]
pub(super) struct KeptCc {
    profile: CcProfile,
    number: Option<u16>,
}

impl Tables {
    /// An EV profile that is ONLINE.
    pub fn online(&mut self, id: u64) -> std::result::Result<(&EvProfile, &mut Online), ProfileError> {
        let state = self.evs.get(id).map_or_else(Default::default, |kept| kept.profile.state);
        let wrong =
            ProfileError::WrongState { operation: "using it", kind: Kind::Ev, allowed: "ONLINE", state };
        let kept = self.evs.get_mut(id).filter(|_| state == ProfileState::Online).ok_or(wrong)?;
        Ok((&kept.profile, &mut kept.online))
    }
}

impl Profiles {
    pub(crate) fn new(driver: &Arc<Driver>) -> Self {
        let names = Names::new(driver.shared.config.entropy.format);
        Profiles {
            host: Host { driver: Arc::clone(driver), names },
            tables: Mutex::default(),
            ids: AtomicU64::new(1),
        }
    }

    /// An id that no call has returned before, for callers that do not pick their own.
    pub fn new_id(&self) -> u64 {
        self.ids.fetch_add(1, Ordering::Relaxed)
    }

    fn is_srv6(&self) -> bool {
        self.host.driver.shared.config.entropy.is_srv6()
    }

    /// The device's own paths. In SRv6 mode it has none.
    fn own_paths(&self) -> Result<Vec<PathEntry>> {
        let engine = self.host.driver.lock_open()?;
        Ok(if self.is_srv6() { Vec::new() } else { engine.profiles.ev.get(0)?.profile.entries().to_vec() })
    }

    fn frame<'a>(&'a self, own: &'a [PathEntry]) -> Frame<'a> {
        let config = &self.host.driver.shared.config;
        Frame { entropy: &config.entropy, planes: config.ports.len() as u8, own }
    }

    /// What the device offers.
    ///
    /// # Errors
    /// [`Error::Closed`].
    pub fn limits(&self) -> Result<ProfileLimits> {
        let own = self.own_paths()?;
        let frame = self.frame(&own);
        let used: usize = self.tables.lock().evs.values().map(|kept| kept.profile.evs.len()).sum();
        let planes = u32::from(frame.planes);
        Ok(ProfileLimits {
            max_profiles: MAX_PROFILES,
            ev_max_count: MAX_PATHS as u32,
            ev_free_count: MAX_PATHS.saturating_sub(own.len() + used) as u32,
            ev_max_count_profile: MOST_EVS / planes * planes,
            ev_max_active: MOST_EVS / 2,
            ev_count_align: planes,
            ev_max_width: frame.most_bits(),
            has_auto: !frame.is_srv6(),
        })
    }

    // --- EV format profiles ----------------------------------------------------------------------------------------

    /// Changes attributes, then the state. On an error nothing has changed.
    ///
    /// # Errors
    /// [`Error::Profile`]; [`Error::Busy`] for id 0, and while an EV profile that uses it is ONLINE.
    pub fn modify_ev_format(&self, id: u64, change: &EvFormatChange) -> Result<()> {
        check_not_own(id)?;
        let own = self.own_paths()?;
        let mut tables = self.tables.lock();
        let user = || {
            let uses = |kept: &KeptEv| {
                kept.profile.state == ProfileState::Online && kept.profile.attr.format_profile == Some(id)
            };
            tables.evs.iter().find(|(_, kept)| uses(kept)).map(|(id, _)| id)
        };
        let after = tables.formats.of(id).after(&self.frame(&own), change, user)?;
        let state = after.state;
        Ok(tables.formats.set(Kind::EvFormat, id, after, state)?)
    }

    /// An EV format profile.
    ///
    /// # Errors
    /// [`Error::OtherProcess`].
    pub fn ev_format(&self, id: u64) -> Result<EvFormatProfile> {
        self.host.driver.shared.check_process()?;
        Ok(if id == 0 { EvFormatProfile::own(&self.frame(&[])) } else { self.tables.lock().formats.of(id) })
    }

    // --- EV profiles -----------------------------------------------------------------------------------------------

    /// Changes attributes, then the state. On an error nothing has changed.
    ///
    /// # Errors
    /// [`Error::Profile`]; [`Error::Busy`] for id 0, and while queue pairs use it; what the engine says of its paths.
    pub fn modify_ev(&self, id: u64, change: &EvChange) -> Result<()> {
        check_not_own(id)?;
        let own = self.own_paths()?;
        let mut tables = self.tables.lock();
        let kept = tables.evs.of(id);
        let after = kept.profile.after(&self.frame(&own), id, change, |id| tables.formats.of(id))?;
        let (before, now) = (kept.profile.state, after.state);
        tables.evs.check_room(Kind::Ev, id, now)?;
        let mut online = kept.online;
        match (before, now) {
            (ProfileState::Offline, ProfileState::Online) => online = Online::begin(&self.host, id, &after)?,
            (ProfileState::Online, ProfileState::Offline) => {
                // In its place, as on an error part of it may be gone.
                if let Some(kept) = tables.evs.get_mut(id) {
                    kept.online.end(&self.host, id)?;
                }
                online = Online::default();
            }
            (ProfileState::Online, ProfileState::Online) => {
                online.numbers().for_each(|number| self.host.names.set_mask(number, after.event_mask()));
            }
            _ => {}
        }
        Ok(tables.evs.set(Kind::Ev, id, KeptEv { profile: after, online }, now)?)
    }

    /// As [`Profiles::modify_ev`], with an operation on values between attributes and state; before INIT has ended there
    /// are no values, so that there the operation comes last. What was done before an error stays done.
    ///
    /// # Errors
    /// Those of [`Profiles::modify_ev`] and of the operation.
    pub fn modify_ev_with<E: From<Error>>(
        &self,
        id: u64,
        change: EvChange,
        operation: impl FnOnce() -> std::result::Result<(), E>,
    ) -> std::result::Result<(), E> {
        if self.ev(id)?.state == ProfileState::Init {
            self.modify_ev(id, &change)?;
            return operation();
        }
        let EvChange { step: Step { to, from }, attr } = change;
        self.modify_ev(id, &EvChange { step: Step { to: None, from }, attr })?;
        operation()?;
        Ok(self.modify_ev(id, &EvChange { step: Step { to, from: None }, attr: EvAttr::default() })?)
    }

    /// An EV profile.
    ///
    /// # Errors
    /// [`Error::OtherProcess`]; [`Error::Closed`] for id 0.
    pub fn ev(&self, id: u64) -> Result<EvProfile> {
        self.host.driver.shared.check_process()?;
        match id {
            0 => Ok(EvProfile::own(&self.frame(&self.own_paths()?))),
            id => Ok(self.tables.lock().evs.of(id).profile),
        }
    }

    /// Ids of the EV profiles that are not in INIT.
    fn ev_ids(&self) -> Vec<u64> {
        self.tables.lock().evs.iter().map(|(id, _)| id).collect()
    }

    /// Bits of a value of the profile, where a controller writes it as a number: 16 in UDP mode, 256 where packets cannot
    /// carry it, else 32.
    ///
    /// # Errors
    /// [`Error::Closed`].
    pub fn value_bits(&self, id: u64) -> Result<u32> {
        self.host.driver.shared.check_process()?;
        let tables = self.tables.lock();
        let profile = tables.evs.of(id).profile;
        let format = profile.attr.format_profile.map(|id| tables.formats.of(id));
        Ok(profile.layout(&self.frame(&[]), format.as_ref()).value_bits())
    }

    /// The engine's number of a profile that is ONLINE: the attribute `ev_profile_id` of a queue pair. `None` in SRv6
    /// mode without a peer, where each peer has its own ([`Profiles::lease`]).
    pub fn ev_number(&self, id: u64) -> Option<u16> {
        self.tables.lock().evs.get(id).and_then(|kept| kept.online.lasting())
    }

    /// The path of a value that some profile has, and that profile's id. `name` gives the value by the bits of its number.
    ///
    /// # Errors
    /// [`Error::Closed`].
    pub fn known_path(&self, name: impl Fn(u32) -> Option<EvName>) -> Result<Option<(u64, PathEntry)>> {
        for id in self.ev_ids().into_iter().chain([0]) {
            let path = |ev| Ok::<_, Error>(self.ev(id)?.path_of(&ev));
            if let Some(path) = name(self.value_bits(id)?).map(path).transpose()?.flatten() {
                return Ok(Some((id, path)));
            }
        }
        Ok(None)
    }

    /// Replaces a value of an EXPLICIT profile that is OFFLINE; returns how often.
    ///
    /// # Errors
    /// [`Error::Profile`], [`Error::Busy`] for id 0.
    pub fn replace_ev(&self, id: u64, entry: &Replace) -> Result<usize> {
        check_not_own(id)?;
        let own = self.own_paths()?;
        let mut tables = self.tables.lock();
        let format = tables.evs.of(id).profile.attr.format_profile.map(|id| tables.formats.of(id));
        let frame = self.frame(&own);
        match tables.evs.get_mut(id) {
            Some(kept) => Ok(kept.profile.replace(&frame, format.as_ref(), entry)?),
            None => Ok(EvProfile::default().replace(&frame, None, entry)?),
        }
    }

    /// Denies a value or allows it again; returns how many queue pairs use its path.
    ///
    /// # Errors
    /// [`Error::Profile`], [`Error::Busy`] for id 0.
    pub fn set_ev_state(&self, id: u64, ev: EvName, state: EvState) -> Result<usize> {
        check_not_own(id)?;
        let own = self.own_paths()?;
        let mut tables = self.tables.lock();
        let mut kept = tables.evs.of(id);
        let path = kept.profile.set_state(&self.frame(&own), ev, state)?;
        let mut users = 0;
        for (number, path) in kept.online.numbers().filter_map(|number| Some((number, path?))) {
            users += self.host.driver.set_ev_denied(number, path, state == EvState::Denied)?;
        }
        let now = kept.profile.state;
        tables.evs.set(Kind::Ev, id, kept, now)?;
        Ok(users)
    }

    /// The states of values, in order up to the first that fails: DENIED, or the worst at any queue pair of the profile.
    ///
    /// # Errors
    /// [`Error::Profile`]; `found` was called for those before it.
    pub fn ev_states(&self, id: u64, evs: &[EvName], mut found: impl FnMut(usize, EvState)) -> Result<()> {
        let own = self.own_paths()?;
        let frame = self.frame(&own);
        let (profile, numbers) = match id {
            0 => (EvProfile::own(&frame), vec![0]),
            id => {
                let kept = self.tables.lock().evs.of(id);
                let numbers = kept.online.numbers().collect();
                (kept.profile, numbers)
            }
        };
        let mut worst = HashMap::new();
        let engine = self.host.driver.lock_open()?;
        for (path, state) in engine.ev_states_of(&numbers) {
            let kept = worst.entry(path).or_insert(state);
            *kept = worse(*kept, state);
        }
        drop(engine);
        profile.check_not_init("query_ev_state")?;
        for (place, ev) in evs.iter().enumerate() {
            found(place, profile.state_of(&frame, *ev, &worst)?);
        }
        Ok(())
    }

    /// An event of a path under its controller's name; `None` if the profile's mask holds it back.
    pub fn event(&self, event: &PathEvent) -> Option<EvEvent> {
        self.host.names.event(event)
    }

    // --- congestion control profiles -------------------------------------------------------------------------------

    /// Changes attributes, then the state. On an error nothing has changed.
    ///
    /// # Errors
    /// [`Error::Profile`]; [`Error::Busy`] for id 0, and while queue pairs use it.
    pub fn modify_cc(&self, id: u64, change: &CcChange) -> Result<()> {
        check_not_own(id)?;
        self.host.driver.shared.check_process()?;
        let mut tables = self.tables.lock();
        let mut kept = tables.ccs.of(id);
        let after = kept.profile.after(change)?;
        let (before, now) = (kept.profile.state, after.state);
        tables.ccs.check_room(Kind::Cc, id, now)?;
        match (before, now) {
            (ProfileState::Offline, ProfileState::Online) => {
                let algorithm = after.algorithm.unwrap_or(CcAlgorithm::None);
                let config = after.config.unwrap_or_default();
                let config = config.resolve(algorithm, &self.host.driver.shared.config.network);
                kept.number = Some(self.host.driver.lock_open()?.profiles.cc.add(config)?);
            }
            (ProfileState::Online, ProfileState::Offline) => {
                if let Some(number) = kept.number.take() {
                    self.host.driver.lock_open()?.destroy_cc_profile(number)?;
                }
            }
            _ => {}
        }
        kept.profile = after;
        Ok(tables.ccs.set(Kind::Cc, id, kept, now)?)
    }

    /// A congestion control profile.
    pub fn cc(&self, id: u64) -> CcProfile {
        match id {
            0 => CcProfile::own(&self.host.driver.shared.config.network),
            id => self.tables.lock().ccs.of(id).profile,
        }
    }

    /// The engine's number of a profile that is ONLINE: the attribute `cc_profile_id` of a queue pair.
    pub fn cc_number(&self, id: u64) -> Option<u16> {
        self.tables.lock().ccs.get(id).and_then(|kept| kept.number)
    }
}

/// Id 0 cannot be changed.
fn check_not_own(id: u64) -> Result<()> {
    if id == 0 { Err(ProfileError::Own.into()) } else { Ok(()) }
}
