//! Choices that have a name in files, in programs and in messages.

/// An enumeration whose values have names.
pub trait Named: Copy + PartialEq + Sized + 'static {
    /// Every value with its name.
    const NAMES: &'static [(Self, &'static str)];

    /// The name of this value.
    fn name(self) -> &'static str {
        Self::NAMES.iter().find(|(value, _)| *value == self).map_or("", |(_, name)| name)
    }

    /// The value with this name.
    fn named(name: &str) -> Option<Self> {
        Self::NAMES.iter().find(|(_, one)| *one == name).map(|(value, _)| *value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ev::EvFormat;

    #[test]
    fn a_name_leads_to_its_value_and_back() {
        for &(value, name) in EvFormat::NAMES {
            assert_eq!((value.name(), EvFormat::named(name)), (name, Some(value)));
        }
        assert_eq!(EvFormat::named("another"), None);
    }
}
