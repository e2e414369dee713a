//! Profiles of one kind by id, as many as there is room for.

use std::collections::HashMap;

use super::error::ProfileError;
use super::state::{Kind, ProfileState};
use crate::limits::MAX_PROFILES;

const MOST: usize = MAX_PROFILES as usize;

/// The profiles of one kind that are not in INIT.
pub(super) struct Table<T> {
    entries: HashMap<u64, T>,
}

impl<T> Default for Table<T> {
    fn default() -> Self {
        Table { entries: HashMap::new() }
    }
}

impl<T: Default + Clone> Table<T> {
    /// The profile of an id, which may be in INIT.
    pub fn of(&self, id: u64) -> T {
        self.entries.get(&id).cloned().unwrap_or_default()
    }

    pub fn get(&self, id: u64) -> Option<&T> {
        self.entries.get(&id)
    }

    pub fn get_mut(&mut self, id: u64) -> Option<&mut T> {
        self.entries.get_mut(&id)
    }

    /// # Errors
    /// [`ProfileError::NoRoom`] if one more does not fit.
    pub fn check_room(&self, kind: Kind, id: u64, state: ProfileState) -> Result<(), ProfileError> {
        let fits = self.entries.len() < MOST || self.entries.contains_key(&id) || state == ProfileState::Init;
        if fits { Ok(()) } else { Err(ProfileError::NoRoom { kind, most: MOST }) }
    }

    /// Keeps a profile; in INIT, its id is free again.
    ///
    /// # Errors
    /// As [`Table::check_room`].
    pub fn set(&mut self, kind: Kind, id: u64, profile: T, state: ProfileState) -> Result<(), ProfileError> {
        self.check_room(kind, id, state)?;
        match state {
            ProfileState::Init => self.entries.remove(&id),
            _ => self.entries.insert(id, profile),
        };
        Ok(())
    }

    pub fn iter(&self) -> impl Iterator<Item = (u64, &T)> {
        self.entries.iter().map(|(&id, profile)| (id, profile))
    }

    pub fn values(&self) -> impl Iterator<Item = &T> {
        self.entries.values()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_room_for_so_many_profiles_of_a_kind_that_are_not_in_init() {
        let mut table = Table::<u8>::default();
        let set = |table: &mut Table<u8>, id, state| table.set(Kind::Cc, id, 1, state);
        for id in 0..MOST as u64 {
            set(&mut table, id, ProfileState::Offline).unwrap();
        }
        assert!(matches!(set(&mut table, 9999, ProfileState::Offline), Err(ProfileError::NoRoom { .. })));
        set(&mut table, 3, ProfileState::Online).unwrap();
        set(&mut table, 3, ProfileState::Init).unwrap();
        set(&mut table, 9999, ProfileState::Offline).unwrap();
    }
}
