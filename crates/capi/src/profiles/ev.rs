//! EV profiles: the entropy values that queue pairs spray over, and operations on them (spec: C interface, 6.4 and 6.5).

use std::collections::HashMap;
use std::sync::Arc;

use openmrc_transport::PathEntry;
use openmrc_transport::mrc::EvState;
use openmrc_wire::expansion::{EvField, EvString};
use openmrc_wire::{Ev, EvFormat};

use super::expansion::{Frame, Layout};
use super::generate;
use super::routes::{is_srv6, named};
use super::types::{Carried, EvProfile, Move, Online, State, Tables, key};
use crate::abi::ctl::*;
use crate::context::Context;
use crate::errno::{EBUSY, EINVAL, EOPNOTSUPP, Errno, Result};
use crate::qp::QPS;

/// Most entropy values of a profile: 256 in rotation and as many in reserve.
pub const MOST_EVS: u32 = 512;

const ENOENT: Errno = Errno(libc::ENOENT);

/// Attributes that a call gives.
#[derive(Clone)]
pub struct Change {
    pub step: Move,
    pub mode: Option<i32>,
    pub format: Option<u64>,
    pub count: Option<u32>,
    pub min_active: Option<u32>,
    pub event_mask: Option<i32>,
    pub fields: Option<Vec<EvField>>,
}

impl Change {
    /// Whether it gives what cannot be changed ONLINE.
    fn gives(&self) -> bool {
        self.mode.is_some()
            || self.format.is_some()
            || self.count.is_some()
            || self.min_active.is_some()
            || self.fields.is_some()
    }
}

/// Changes attributes, then the state. On an error nothing has changed.
///
/// # Errors
/// EINVAL; EBUSY while queue pairs use it, and for id 0; E2BIG, EOPNOTSUPP.
pub fn modify(context: &Context, id: u64, change: Change) -> Result<()> {
    if id == 0 {
        return Err(EBUSY);
    }
    let frame = Frame::of(context);
    let mut tables = context.profiles.lock();
    let mut profile = tables.evs.get(id);
    let to = change.step.target(profile.state)?;
    if change.gives() && (profile.state == State::Online || to == State::Init) {
        return Err(EINVAL);
    }
    if let Some(mask) = change.event_mask {
        check_event_mask(mask)?;
        profile.event_mask = mask;
    }
    if to != State::Init && profile.state != State::Online {
        apply(&frame, &tables, &mut profile, change)?;
    }
    match (profile.state, to) {
        (State::Init, State::Offline) => tables.evs.check_room(id)?,
        (State::Offline, State::Online) => go_online(&frame, &tables, id, &mut profile)?,
        (State::Online, State::Offline) => {
            // In its place, as on an error part of it may be gone.
            if let Some(kept) = tables.evs.get_mut(id) {
                kept.online.end(context)?;
            }
            profile.online = Online::default();
            if profile.mode != Some(EV_MODE_EXP) {
                profile.evs.clear();
            }
        }
        // Known controllers change the mask of a profile that is ONLINE.
        (State::Online, State::Online) => {
            for number in profile.online.numbers() {
                context.profiles.routes.set_mask(number, profile.event_mask);
            }
        }
        _ => {}
    }
    profile.state = to;
    tables.evs.set(id, profile, to);
    Ok(())
}

fn check_event_mask(mask: i32) -> Result<()> {
    if mask & !(EV_GOOD | EV_ASSUMED_BAD) == 0 { Ok(()) } else { Err(EINVAL) }
}

fn apply(frame: &Frame<'_>, tables: &Tables, profile: &mut EvProfile, change: Change) -> Result<()> {
    let before = (profile.mode, profile.count);
    if let Some(mode) = change.mode {
        if ![EV_MODE_AUTO, EV_MODE_EXP, EV_MODE_GEN].contains(&mode) {
            return Err(EINVAL);
        }
        if mode == EV_MODE_AUTO && frame.is_srv6() {
            // The device has no paths of its own there.
            return Err(EOPNOTSUPP);
        }
        profile.mode = Some(mode);
    }
    if let Some(format) = change.format {
        if tables.formats.get(format).state == State::Init {
            return Err(EINVAL);
        }
        profile.format = Some(format);
    }
    if let Some(count) = change.count {
        let align = u32::from(frame.planes);
        if count < align || count > MOST_EVS {
            return Err(EINVAL);
        }
        profile.count = Some(count / align * align);
    }
    if let Some(fields) = change.fields {
        profile.fields = Some(fields);
    }
    profile.min_active = change.min_active.or(profile.min_active);
    let mode = profile.mode.ok_or(EINVAL)?;
    if mode != EV_MODE_AUTO && (profile.format.is_none() || profile.count.is_none()) {
        return Err(EINVAL);
    }
    if let (Some(least), Some(count)) = (profile.min_active, profile.count)
        && least > count
    {
        return Err(EINVAL);
    }
    if profile.fields.is_some() {
        frame.check_fields(&frame.layout(tables, profile))?;
    }
    if mode == EV_MODE_EXP && before != (profile.mode, profile.count) {
        profile.evs = vec![MrcCtlEv::UNPOPULATED; profile.count.unwrap_or(0) as usize];
        profile.denied.clear();
    }
    Ok(())
}

fn go_online(frame: &Frame<'_>, tables: &Tables, id: u64, profile: &mut EvProfile) -> Result<()> {
    if profile.format.is_some_and(|format| tables.formats.get(format).state != State::Online) {
        return Err(EINVAL);
    }
    let layout = frame.layout(tables, profile);
    let (evs, carried) = match profile.mode {
        Some(EV_MODE_EXP) => (profile.evs.clone(), frame.carried_all(&layout, &profile.evs)?),
        Some(EV_MODE_GEN) => {
            let count = profile.count.unwrap_or(0) as usize;
            let usable = |value: &EvString| frame.check(&layout, &MrcCtlEv { val: value.0, port: 1 }).is_ok();
            let evs = generate::draw(&layout.fields, count, frame.planes.into(), id, usable);
            let carried = frame.carried_all(&layout, &evs)?;
            (evs, carried)
        }
        _ => {
            // Values of the device's own are what packets carry.
            let evs = own(frame, profile.count)?;
            let paths = evs.iter().map(|ev| own_path(frame.format, ev)).collect();
            (evs, Carried { paths, routes: Vec::new() })
        }
    };
    if evs.is_empty() {
        return Err(EINVAL);
    }
    (profile.evs, profile.online) = (evs, Online::new(carried));
    if !frame.is_srv6() {
        profile.make(frame.context, id, &[])?;
    }
    Ok(())
}

/// Entropy values of the device's own profile, equally many per port.
fn own(frame: &Frame<'_>, count: Option<u32>) -> Result<Vec<MrcCtlEv>> {
    let all = frame.context.nic.ev_profile(0)?;
    let planes = usize::from(frame.planes);
    let of_port: Vec<Vec<_>> =
        (0..planes).map(|port| all.iter().filter(|path| usize::from(path.port) == port).collect()).collect();
    let available = of_port.iter().map(Vec::len).min().unwrap_or(0);
    let share = count.map_or(available, |count| count as usize / planes);
    if share > available {
        return Err(EINVAL);
    }
    Ok((0..share).flat_map(|i| of_port.iter().map(move |list| named(frame.format, *list[i]))).collect())
}

/// The path of a value of the device's own.
fn own_path(format: EvFormat, ev: &MrcCtlEv) -> PathEntry {
    let bytes = [ev.val[0], ev.val[1], ev.val[2], ev.val[3]];
    let value = u32::from_be_bytes(bytes);
    let value = if format == EvFormat::Udp { value >> 16 } else { value };
    PathEntry { ev: Ev(value), port: ev.port - 1 }
}

/// The paths of an id whose profile is ONLINE, with what the program calls them; id 0 is the device's own.
pub fn paths(context: &Context, id: u64) -> Result<Vec<(MrcCtlEv, PathEntry)>> {
    let frame = Frame::of(context);
    if id == 0 {
        // In SRv6 mode the device has no paths of its own.
        let all = if is_srv6(frame.format) { Vec::new() } else { context.nic.ev_profile(0)? };
        return Ok(all.into_iter().map(|path| (named(frame.format, path), path)).collect());
    }
    let profile = context.profiles.lock().evs.get(id);
    if profile.state != State::Online {
        return Err(EINVAL);
    }
    Ok(profile.evs.into_iter().zip(profile.online.carried.paths).collect())
}

/// Replaces values of an EXPLICIT profile that is OFFLINE, or changes their state; in order, up to the first that fails.
///
/// # Errors
/// ENOENT if there is no such value; EINVAL.
pub fn operate(context: &Context, id: u64, op: i32, entries: &[MrcCtlEvOpEntry]) -> Result<()> {
    if id == 0 {
        return Err(EBUSY);
    }
    let frame = Frame::of(context);
    let mut tables = context.profiles.lock();
    let mut profile = tables.evs.get(id);
    let layout = frame.layout(&tables, &profile);
    let mut result = if profile.state == State::Init { Err(EINVAL) } else { Ok(()) };
    for entry in entries {
        result = result.and_then(|()| match op {
            EV_OP_REPLACE_EV => replace(&frame, &layout, &mut profile, entry),
            EV_OP_MODIFY_EV_STATE => set_state(&frame, &mut profile, entry),
            _ => Err(EINVAL),
        });
        if result.is_err() {
            break;
        }
    }
    let state = profile.state;
    if let Some(kept) = tables.evs.get_mut(id).filter(|_| state != State::Init) {
        *kept = profile;
    }
    result
}

fn replace(
    frame: &Frame<'_>,
    layout: &Layout,
    profile: &mut EvProfile,
    entry: &MrcCtlEvOpEntry,
) -> Result<()> {
    let wrong_state = !matches!(entry.state, 0 | EV_GOOD | EV_DENIED);
    if profile.mode != Some(EV_MODE_EXP)
        || profile.state != State::Offline
        || wrong_state
        || entry.flags & !EV_OP_F_ALL_COPIES != 0
    {
        return Err(EINVAL);
    }
    if entry.ev != MrcCtlEv::UNPOPULATED && !(1..=frame.planes).contains(&entry.ev.port) {
        return Err(EINVAL);
    }
    frame.check(layout, &entry.ev_new)?;
    let all = entry.flags & EV_OP_F_ALL_COPIES != 0;
    let mut found = false;
    for ev in profile.evs.iter_mut().filter(|ev| **ev == entry.ev) {
        if all || !found {
            *ev = entry.ev_new;
        }
        found = true;
    }
    if !found {
        return Err(ENOENT);
    }
    if entry.state == EV_DENIED {
        profile.denied.insert(key(&entry.ev_new));
    } else {
        profile.denied.remove(&key(&entry.ev_new));
    }
    Ok(())
}

fn set_state(frame: &Frame<'_>, profile: &mut EvProfile, entry: &MrcCtlEvOpEntry) -> Result<()> {
    if !matches!(entry.state, EV_GOOD | EV_DENIED)
        || !(1..=frame.planes).contains(&entry.ev.port)
        || entry.flags & !EV_OP_F_ALL_COPIES != 0
    {
        return Err(EINVAL);
    }
    let place = profile.evs.iter().position(|ev| *ev == entry.ev).ok_or(ENOENT)?;
    let denied = entry.state == EV_DENIED;
    for number in profile.online.numbers() {
        frame.context.nic.set_ev_denied(number, profile.online.carried.paths[place], denied)?;
    }
    if denied {
        profile.denied.insert(key(&entry.ev));
    } else {
        profile.denied.remove(&key(&entry.ev));
    }
    Ok(())
}

/// The entropy values of a profile.
///
/// # Errors
/// EINVAL in INIT.
pub fn values(context: &Context, id: u64) -> Result<Vec<MrcCtlEv>> {
    if id == 0 {
        return Ok(paths(context, 0)?.into_iter().map(|(ev, _)| ev).collect());
    }
    let profile = context.profiles.lock().evs.get(id);
    if profile.state == State::Init { Err(EINVAL) } else { Ok(profile.evs) }
}

/// The states of values: DENIED, or the worst at any queue pair of the profile, or GOOD.
///
/// # Errors
/// ENOENT if one is not in the profile; EINVAL. `found` is called for those before it.
pub fn states(context: &Context, id: u64, evs: &[MrcCtlEv], mut found: impl FnMut(usize, i32)) -> Result<()> {
    let planes = context.device.planes();
    let held = values(context, id)?;
    let denied = context.profiles.lock().evs.get(id).denied;
    let by_path = worst_states(context, id);
    // Not ONLINE: no queue pair uses it.
    let named = paths(context, id).unwrap_or_default();
    let names: HashMap<_, _> = named.iter().map(|(ev, path)| (key(ev), *path)).collect();
    for (place, ev) in evs.iter().enumerate() {
        if !(1..=planes).contains(&ev.port) {
            return Err(EINVAL);
        }
        if !held.contains(ev) {
            return Err(ENOENT);
        }
        let state = match denied.contains(&key(ev)) {
            true => EV_DENIED,
            false => names.get(&key(ev)).and_then(|path| by_path.get(path)).copied().unwrap_or(EV_GOOD),
        };
        found(place, state);
    }
    Ok(())
}

/// States of paths at the queue pairs of a profile; the worst of each.
fn worst_states(context: &Context, id: u64) -> HashMap<PathEntry, i32> {
    let uses = |qp: &crate::qp::Qp| {
        std::ptr::eq(Arc::as_ptr(&qp.context), context)
            && qp.record.lock().mrc.map_or(0, |mrc| mrc.profile.ev_profile_id) == id
    };
    let mut worst = HashMap::new();
    for (_, qp) in QPS.all(uses) {
        for (path, state) in qp.nic.ev_states().unwrap_or_default() {
            let state = match state {
                EvState::Good | EvState::Skip => EV_GOOD,
                EvState::AssumedBad => EV_ASSUMED_BAD,
                EvState::Denied => EV_DENIED,
            };
            let kept = worst.entry(path).or_insert(EV_GOOD);
            *kept = (*kept).max(state);
        }
    }
    worst
}
