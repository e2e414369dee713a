//! EV format profiles: the fields of entropy values (docs/spec/c-interface.md, section 6.4).

use openmrc_wire::{EvFormat, Named};

use super::error::ProfileError;
use super::layout::Frame;
use super::state::{Kind, ProfileState, Step, check_needed};

/// An EV format profile.
#[derive(Clone, Default, Debug)]
pub struct EvFormatProfile {
    /// Its state.
    pub state: ProfileState,
    /// Where packets carry the values.
    pub ev_format: Option<EvFormat>,
    /// Bits of each field; none while they were not given.
    pub widths: Vec<u32>,
}

/// Attributes that a call gives.
#[derive(Clone, Default, Debug)]
pub struct EvFormatChange {
    /// What it wants of the state.
    pub step: Step,
    /// Where packets carry the values. Both SRv6 formats are one: the widths say whether there is an SRH.
    pub ev_format: Option<EvFormat>,
    /// Bits of each field, from the most significant on.
    pub widths: Option<Vec<u32>>,
}

impl EvFormatProfile {
    /// That of the device itself.
    pub(super) fn own(frame: &Frame<'_>) -> Self {
        let format = frame.entropy.format;
        EvFormatProfile {
            state: ProfileState::Online,
            ev_format: Some(format),
            widths: vec![format.path_bits()],
        }
    }

    /// The profile after a call. `user` says which EV profile that is ONLINE has it.
    pub(super) fn after(
        &self,
        frame: &Frame<'_>,
        change: &EvFormatChange,
        user: impl FnOnce() -> Option<u64>,
    ) -> Result<Self, ProfileError> {
        let given = [(change.ev_format.is_some(), "ev_format"), (change.widths.is_some(), "widths")];
        let given: Vec<_> = given.iter().filter(|(is, _)| *is).map(|(_, name)| *name).collect();
        let to = change.step.target(Kind::EvFormat, self.state, &given)?;
        if to == ProfileState::Init {
            return Ok(EvFormatProfile::default());
        }
        let mut after = self.clone();
        if let Some(format) = change.ev_format {
            let fits = |srv6: bool| if srv6 { frame.is_srv6() } else { format == frame.entropy.format };
            if !fits(matches!(format, EvFormat::Srv6 | EvFormat::Srv6Srh)) {
                return Err(ProfileError::Unsupported {
                    name: "ev_format",
                    value: format.name().to_owned(),
                    allowed: format!("its ev_format is {}", frame.entropy.format.name()),
                });
            }
            after.ev_format = Some(format);
        }
        if let Some(widths) = &change.widths {
            frame.check_widths(widths)?;
            after.widths.clone_from(widths);
        }
        check_needed(Kind::EvFormat, self.state, to, |name| match name {
            "widths" => !after.widths.is_empty(),
            _ => after.ev_format.is_some(),
        })?;
        if (self.state, to) == (ProfileState::Online, ProfileState::Offline)
            && let Some(id) = user()
        {
            return Err(ProfileError::InUse(format!(
                "EV profile {id}, which is ONLINE, uses this EV format profile: take it OFFLINE first"
            )));
        }
        after.state = to;
        Ok(after)
    }
}
