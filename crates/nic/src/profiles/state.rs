//! The states of profiles of every kind: the steps between them, and what each needs and takes
//! (docs/spec/c-interface.md, section 6.4).

use std::fmt;

use super::error::ProfileError;

/// State of a profile.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum ProfileState {
    /// Nothing is set.
    #[default]
    Init,
    /// Attributes are set and can be changed.
    Offline,
    /// Queue pairs can use it.
    Online,
}

impl fmt::Display for ProfileState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ProfileState::Init => "INIT",
            ProfileState::Offline => "OFFLINE",
            ProfileState::Online => "ONLINE",
        })
    }
}

/// The kinds of profiles.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Layout of entropy values.
    EvFormat,
    /// Entropy values.
    Ev,
    /// Congestion control.
    Cc,
}

impl fmt::Display for Kind {
    /// With its article.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Kind::EvFormat => "an EV format profile",
            Kind::Ev => "an EV profile",
            Kind::Cc => "a congestion control profile",
        })
    }
}

/// The steps: from a state to others.
const STEPS: [(ProfileState, &[ProfileState]); 3] = [
    (ProfileState::Init, &[ProfileState::Offline]),
    (ProfileState::Offline, &[ProfileState::Online, ProfileState::Init]),
    (ProfileState::Online, &[ProfileState::Offline]),
];

/// Attributes of a kind by the states that need and take them. OFFLINE takes all.
struct Rules {
    kind: Kind,
    needed_offline: &'static [&'static str],
    needed_online: &'static [&'static str],
    settable_online: &'static [&'static str],
}

/// Known controllers change the event mask of a profile that is ONLINE.
const RULES: [Rules; 3] = [
    Rules {
        kind: Kind::EvFormat,
        needed_offline: &["ev_format"],
        needed_online: &["widths"],
        settable_online: &[],
    },
    Rules {
        kind: Kind::Ev,
        needed_offline: &["mode", "format_profile", "count"],
        needed_online: &[],
        settable_online: &["event_mask"],
    },
    Rules {
        kind: Kind::Cc,
        needed_offline: &["algorithm"],
        needed_online: &["config"],
        settable_online: &[],
    },
];

impl Kind {
    fn rules(self) -> &'static Rules {
        RULES.iter().find(|rules| rules.kind == self).unwrap_or(&RULES[0])
    }
}

/// What a call wants of a profile's state.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Step {
    /// The state to go to; none: the present one.
    pub to: Option<ProfileState>,
    /// What the caller takes the present state for.
    pub from: Option<ProfileState>,
}

impl Step {
    /// The state to go to, for a call that gives these attributes.
    ///
    /// # Errors
    /// [`ProfileError::CurState`], [`ProfileError::Step`], [`ProfileError::NotSettable`].
    pub(super) fn target(
        self,
        kind: Kind,
        state: ProfileState,
        given: &[&'static str],
    ) -> Result<ProfileState, ProfileError> {
        if let Some(said) = self.from.filter(|said| *said != state) {
            return Err(ProfileError::CurState { kind, said, state });
        }
        let to = self.to.unwrap_or(state);
        let known = STEPS.iter().find(|(from, _)| *from == state).map_or(&[][..], |(_, to)| *to);
        if to != state && !known.contains(&to) {
            let allowed = known.iter().map(ToString::to_string).collect::<Vec<_>>().join(" or ");
            return Err(ProfileError::Step { kind, from: state, to, allowed });
        }
        let takes = |name: &&str| match (state, to) {
            (_, ProfileState::Init) => false,
            (ProfileState::Online, _) => kind.rules().settable_online.contains(name),
            _ => true,
        };
        let excess: Vec<_> = given.iter().copied().filter(|name| !takes(name)).collect();
        match excess.is_empty() {
            true => Ok(to),
            false => Err(ProfileError::NotSettable { kind, from: state, to, names: excess.join(", ") }),
        }
    }
}

/// Checks that a profile has what a state needs, which may have been given in this call or before.
///
/// # Errors
/// [`ProfileError::Missing`].
pub(super) fn check_needed(
    kind: Kind,
    from: ProfileState,
    to: ProfileState,
    has: impl Fn(&str) -> bool,
) -> Result<(), ProfileError> {
    let rules = kind.rules();
    let needed: &[&[&str]] = match to {
        ProfileState::Init => &[],
        ProfileState::Offline => &[rules.needed_offline],
        ProfileState::Online => &[rules.needed_offline, rules.needed_online],
    };
    let missing: Vec<_> = needed.iter().flat_map(|names| names.iter().copied()).filter(|n| !has(n)).collect();
    match missing.is_empty() {
        true => Ok(()),
        false => Err(ProfileError::Missing { kind, from, to, names: missing.join(", ") }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ProfileState::{Init, Offline, Online};

    #[test]
    fn a_profile_goes_from_init_to_online_and_back_by_these_steps_only() {
        let known = [(Init, Offline), (Offline, Online), (Offline, Init), (Online, Offline)];
        for from in [Init, Offline, Online] {
            for to in [Init, Offline, Online] {
                let target = Step { to: Some(to), from: Some(from) }.target(Kind::Cc, from, &[]);
                assert_eq!(target.is_ok(), from == to || known.contains(&(from, to)), "{from} to {to}");
                let said = Step { to: None, from: Some(to) }.target(Kind::Cc, from, &[]);
                assert_eq!(said.is_ok(), from == to);
            }
        }
    }

    #[test]
    fn attributes_are_taken_on_the_way_to_offline_and_online_and_only_some_in_online() {
        let takes = |kind, state, to, name| Step { to, from: None }.target(kind, state, &[name]).is_ok();
        for (state, to, taken) in [
            (Init, None, false),
            (Init, Some(Offline), true),
            (Offline, None, true),
            (Offline, Some(Online), true),
            (Offline, Some(Init), false),
            (Online, None, false),
            (Online, Some(Offline), false),
        ] {
            assert_eq!(takes(Kind::Ev, state, to, "count"), taken, "{state} {to:?}");
        }
        assert!(takes(Kind::Ev, Online, None, "event_mask"));
        assert!(!takes(Kind::Cc, Online, None, "config"));
    }

    #[test]
    fn what_a_state_needs_is_named() {
        let has = |name: &str| name == "mode";
        let error = check_needed(Kind::Ev, Init, Offline, has).unwrap_err();
        assert_eq!(error.to_string(), "INIT to OFFLINE of an EV profile needs format_profile, count as well");
        assert!(check_needed(Kind::Ev, Offline, Init, |_| false).is_ok());
    }
}
