//! A setting as it is written in a file or a program, before its option says what type it has.

use std::fmt;
use std::net::IpAddr;
use std::time::Duration;

use openmrc_transport::mrc::{CanSend, OutOfWindow};
use openmrc_transport::node::PortMaskBase;
use openmrc_wire::{DscpMap, EntropyOrder, EvFormat, Named};

use super::EpOps;

/// A value of any type that TOML and Python share.
#[derive(Clone, PartialEq, Debug)]
pub enum Setting {
    /// Not set.
    Unset,
    /// Yes or no.
    Flag(bool),
    /// A whole number.
    Integer(i128),
    /// Any other number.
    Number(f64),
    /// Text.
    Text(String),
    /// A list.
    List(Vec<Setting>),
    /// Values by name.
    Table(Vec<(String, Setting)>),
    /// A value of another type, as its language shows it.
    Other(String),
}

impl fmt::Display for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let listed = |f: &mut fmt::Formatter<'_>, parts: Vec<String>, ends: [char; 2]| {
            write!(f, "{}{}{}", ends[0], parts.join(", "), ends[1])
        };
        match self {
            Setting::Unset => f.write_str("not set"),
            Setting::Flag(value) => write!(f, "{value}"),
            Setting::Integer(value) => write!(f, "{value}"),
            Setting::Number(value) => write!(f, "{value}"),
            Setting::Text(text) => write!(f, "{text:?}"),
            Setting::List(list) => listed(f, list.iter().map(Setting::to_string).collect(), ['[', ']']),
            Setting::Table(table) => {
                listed(f, table.iter().map(|(name, value)| format!("{name} = {value}")).collect(), ['{', '}'])
            }
            Setting::Other(shown) => f.write_str(shown),
        }
    }
}

/// How the values of an option are written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Form {
    /// Yes or no.
    Flag,
    /// A whole number.
    Integer,
    /// A number.
    Number,
    /// One of several names.
    Name,
    /// A list of whole numbers.
    Integers,
    /// A name, or a list of texts.
    NameOrTexts,
    /// Whole numbers by name.
    Table,
}

/// The type of an option.
pub(super) trait OptionType: Sized {
    /// How its values are written.
    const FORM: Form;

    /// The value of a setting; `None` if it is not one of this type.
    fn read(setting: &Setting) -> Option<Self>;

    /// The setting with this value.
    fn write(&self) -> Setting;

    /// The value where it is a number with a range.
    fn number(&self) -> Option<u64> {
        None
    }
}

macro_rules! integers {
    ($($type:ty),*) => {$(
        impl OptionType for $type {
            const FORM: Form = Form::Integer;

            fn read(setting: &Setting) -> Option<Self> {
                match setting {
                    Setting::Integer(value) => (*value).try_into().ok(),
                    _ => None,
                }
            }

            fn write(&self) -> Setting {
                Setting::Integer(*self as i128)
            }

            fn number(&self) -> Option<u64> {
                Some(*self as u64)
            }
        }
    )*};
}

integers!(u8, u16, u32, u64, usize);

impl OptionType for bool {
    const FORM: Form = Form::Flag;

    fn read(setting: &Setting) -> Option<Self> {
        match setting {
            Setting::Flag(value) => Some(*value),
            _ => None,
        }
    }

    fn write(&self) -> Setting {
        Setting::Flag(*self)
    }
}

/// Microseconds.
impl OptionType for Duration {
    const FORM: Form = Form::Number;

    fn read(setting: &Setting) -> Option<Self> {
        let micros = match setting {
            Setting::Integer(value) => *value as f64,
            Setting::Number(value) => *value,
            _ => return None,
        };
        Duration::try_from_secs_f64(micros * 1e-6).ok()
    }

    fn write(&self) -> Setting {
        Setting::Number(self.as_secs_f64() * 1e6)
    }
}

/// One that is not set stays what the device makes of it.
impl<T: OptionType> OptionType for Option<T> {
    const FORM: Form = T::FORM;

    fn read(setting: &Setting) -> Option<Self> {
        T::read(setting).map(Some)
    }

    fn write(&self) -> Setting {
        self.as_ref().map_or(Setting::Unset, T::write)
    }

    fn number(&self) -> Option<u64> {
        self.as_ref().and_then(T::number)
    }
}

impl OptionType for Vec<u16> {
    const FORM: Form = Form::Integers;

    fn read(setting: &Setting) -> Option<Self> {
        match setting {
            Setting::List(list) => list.iter().map(u16::read).collect(),
            _ => None,
        }
    }

    fn write(&self) -> Setting {
        Setting::List(self.iter().map(u16::write).collect())
    }
}

macro_rules! names {
    ($($type:ty),*) => {$(
        impl OptionType for $type {
            const FORM: Form = Form::Name;

            fn read(setting: &Setting) -> Option<Self> {
                match setting {
                    Setting::Text(name) => <$type>::named(name),
                    _ => None,
                }
            }

            fn write(&self) -> Setting {
                Setting::Text(self.name().to_owned())
            }
        }
    )*};
}

names!(EvFormat, EntropyOrder, OutOfWindow, CanSend);

/// The number of the bit.
impl OptionType for PortMaskBase {
    const FORM: Form = Form::Integer;

    fn read(setting: &Setting) -> Option<Self> {
        match setting {
            Setting::Integer(0) => Some(PortMaskBase::Zero),
            Setting::Integer(1) => Some(PortMaskBase::One),
            _ => None,
        }
    }

    fn write(&self) -> Setting {
        Setting::Integer(match self {
            PortMaskBase::Zero => 0,
            PortMaskBase::One => 1,
        })
    }
}

/// Code points by class; a class that is left out keeps its default.
impl OptionType for DscpMap {
    const FORM: Form = Form::Table;

    fn read(setting: &Setting) -> Option<Self> {
        let Setting::Table(table) = setting else { return None };
        let mut map = DscpMap::DEFAULT;
        for (name, value) in table {
            let class = classes(&mut map).into_iter().find(|(class, _)| class == name)?;
            *class.1 = u8::read(value)?;
        }
        Some(map)
    }

    fn write(&self) -> Setting {
        let mut map = *self;
        Setting::Table(classes(&mut map).map(|(name, code)| (name.to_owned(), code.write())).into())
    }
}

fn classes(map: &mut DscpMap) -> [(&'static str, &mut u8); 6] {
    let DscpMap { no_trim, trimmable, trimmable_retx, trimmed, trimmed_last_hop, control } = map;
    [
        ("no_trim", no_trim),
        ("trimmable", trimmable),
        ("trimmable_retx", trimmable_retx),
        ("trimmed", trimmed),
        ("trimmed_last_hop", trimmed_last_hop),
        ("control", control),
    ]
}

/// A name, or a list of addresses and prefixes such as 10.1.0.0/16.
impl OptionType for EpOps {
    const FORM: Form = Form::NameOrTexts;

    fn read(setting: &Setting) -> Option<Self> {
        match setting {
            Setting::Text(name) => match name.as_str() {
                "any" => Some(EpOps::Any),
                "peers" => Some(EpOps::Peers),
                "off" => Some(EpOps::Off),
                _ => None,
            },
            Setting::List(list) => list.iter().map(prefix).collect::<Option<_>>().map(EpOps::Prefixes),
            _ => None,
        }
    }

    fn write(&self) -> Setting {
        let name = |name: &str| Setting::Text(name.to_owned());
        match self {
            EpOps::Any => name("any"),
            EpOps::Peers => name("peers"),
            EpOps::Off => name("off"),
            EpOps::Prefixes(list) => {
                Setting::List(list.iter().map(|(addr, bits)| name(&format!("{addr}/{bits}"))).collect())
            }
        }
    }
}

fn prefix(setting: &Setting) -> Option<(IpAddr, u8)> {
    let Setting::Text(text) = setting else { return None };
    let (addr, bits) = text.split_once('/').map_or((text.as_str(), None), |(addr, bits)| (addr, Some(bits)));
    let addr: IpAddr = addr.parse().ok()?;
    let width = if addr.is_ipv4() { 32 } else { 128 };
    let bits = bits.map_or(Some(width), |bits| bits.parse().ok())?;
    (bits <= width).then_some((addr, bits))
}
