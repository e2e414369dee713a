//! Capacities and attributes of a queue pair, by the steps of its life (docs/spec/transport.md, "Queue pair life").

use std::fmt;
use std::net::SocketAddr;

use openmrc_transport::Span;
use openmrc_transport::mrc::{
    Capabilities, DEFAULT_MPR, QpConfig, RequestorConfig, ResponderConfig, RetrySchedule,
};

use crate::error::{Error, Result};
use crate::memory_table::Access;

pub use openmrc_transport::mrc::DEFAULT_PATH_MTU;

pub use openmrc_transport::presets::software::TIMEOUT as DEFAULT_TIMEOUT;

/// Default of [`QpAttr::access`].
pub const DEFAULT_ACCESS: Access = Access::REMOTE_WRITE;

/// Default of [`QpAttr::exp_cnt`]. When the linear retries and these have ended, a peer has been silent for 34 s: more
/// than twice the 15 s for which a debugger, a snapshot of a virtual machine or a full disk may stop a process.
pub const DEFAULT_EXP_CNT: u8 = 9;

/// The retries of a queue pair whose attributes leave them out.
pub fn default_retries() -> RetrySchedule {
    let timeout = QpConfig::timeout_from_exponent(DEFAULT_TIMEOUT);
    RetrySchedule { timeout, exp_cnt: DEFAULT_EXP_CNT, ..RetrySchedule::from(&RequestorConfig::default()) }
}

/// This [`QpAttr::receive_wait_ms`] has no end.
pub const RECEIVE_WAIT_FOREVER: u32 = u32::MAX;

/// How much a queue pair can hold.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct QpCap {
    /// Sends outstanding, 1..=32768.
    pub max_send_wr: u32,
    /// Receives posted, 0..=65536.
    pub max_recv_wr: u32,
    /// Segments in a scatter list, 1..=16.
    pub max_send_sge: u32,
    /// Bytes of an inline payload, 0..=4096.
    pub max_inline_data: u32,
}

impl QpCap {
    /// The most that a queue pair can be made with.
    pub const MAX: QpCap =
        QpCap { max_send_wr: 32_768, max_recv_wr: 65_536, max_send_sge: 16, max_inline_data: 4096 };
}

impl Default for QpCap {
    /// What perftest asks for, rounded up.
    fn default() -> Self {
        QpCap { max_send_wr: 128, max_recv_wr: 512, max_send_sge: 4, max_inline_data: 256 }
    }
}

/// Every attribute of a queue pair, for a macro that is called with all of them: documentation, name, type, default if it
/// is a number of its own, the steps at which it is taken, and what is allowed. A new attribute is a new entry here; the
/// faces for Python and C do not compile, or their tests fail, until they have it as well.
#[macro_export]
macro_rules! qp_attributes {
    ($callback:ident) => {
        $callback! {
            /// Access rights of the peer, as far as a region allows them too; default [`DEFAULT_ACCESS`].
            access: Access = DEFAULT_ACCESS, UntilRtr, words("a combination of LOCAL_WRITE and REMOTE_WRITE");
            /// The peer's queue pair number.
            dest_qp_num: u32, NeededAtRtr, numbers(1, 0xff_ffff);
            /// First PSN expected.
            rq_psn: u32, NeededAtRtr, numbers(0, 0xff_ffff);
            /// First PSN sent.
            sq_psn: u32, NeededAtRts, numbers(0, 0xff_ffff);
            /// The peer's addresses, by port.
            remote: Vec<SocketAddr>, NeededAtRtr, words("a list of (address, UDP port), one per port of the peer,");
            /// Payload bytes per packet, 256 to 8192; default 4096. With all headers it must fit the interface's MTU.
            path_mtu: u16 = DEFAULT_PATH_MTU, AtRtr, numbers(256, 8192);
            /// In-flight window as requestor, units of 128 PSNs; default 8. At most the peer's `mpr_dest`.
            mpr: u8 = DEFAULT_MPR, UntilRts, numbers(1, 255);
            /// In-flight window as responder, units of 128 PSNs; default 8.
            mpr_dest: u8 = DEFAULT_MPR, UntilRtr, numbers(1, 255);
            /// Messages with immediate in flight as requestor; default 128. At most the peer's `max_wimm_dest`.
            max_wimm: u16 = RequestorConfig::default().max_wimm, UntilRts, numbers(1, 16384);
            /// Messages with immediate in flight as responder; default 128.
            max_wimm_dest: u16 = ResponderConfig::default().max_wimm_dest, UntilRtr, numbers(1, 16384);
            /// ACK timeout: 1.024 us x 2^timeout, 0..=24; default [`DEFAULT_TIMEOUT`].
            timeout: u8 = DEFAULT_TIMEOUT, UntilRts, numbers(0, 24);
            /// Retries at a fixed interval, at most 7; default 7.
            linear_cnt: u8 = RequestorConfig::default().linear_cnt, UntilRts, numbers(0, 7);
            /// Retries with doubling interval after those, at most 25, which is for ever; default
            /// [`DEFAULT_EXP_CNT`].
            exp_cnt: u8 = DEFAULT_EXP_CNT, UntilRts, numbers(0, 25);
            /// A peer that was silent for this many milliseconds is probed, even while nothing is under way, and
            /// [`AsyncEvent::PeerSilent`](crate::AsyncEvent::PeerSilent) is raised if it does not answer; 0, the default: off.
            keepalive_ms: u32 = 0, UntilRts, numbers(0, u32::MAX as u64);
            /// Verbs' RNR, at both ends: how many milliseconds a message with immediate waits for a receive before it is
            /// refused; [`RECEIVE_WAIT_FOREVER`] never refuses it. With any value but 0, this waiting does not use up the
            /// retries. Default 0: MRC refuses it at once.
            receive_wait_ms: u32 = 0, UntilRts, numbers(0, u32::MAX as u64);
            /// What the peer can do, and dynamic MPR if both ends enable it; default the specification's.
            caps: Capabilities, UntilRtr, words("a combination of Capabilities");
            /// Destination flow control: the receiver's penalty shrinks the window; default the device's.
            dfc: bool, UntilRts, words("True or False");
            /// EV profile; 0 is the device's own.
            ev_profile_id: u16 = 0, UntilRtr, numbers(0, u16::MAX as u64);
            /// Congestion control profile; 0 is the device's own.
            cc_profile_id: u16 = 0, UntilRtr, numbers(0, u16::MAX as u64);
            /// Seed of the queue pair's choices: order of its paths, jitter of its probes; default random.
            seed: u64, UntilRtr, numbers(0, u64::MAX);
        }
    };
}

macro_rules! define {
    ($($(#[$doc:meta])* $name:ident: $type:ty $(= $default:expr)?, $step:ident, $allowed:expr;)*) => {
        /// Attributes of a queue pair. In `modify`, those given are set; in `query`, those known are given.
        ///
        /// `remote` holds the peer's address per port; the queue pair uses the ports where both ends have one.
        #[derive(Clone, PartialEq, Eq, Default, Debug)]
        pub struct QpAttr {
            $($(#[$doc])* pub $name: Option<$type>,)*
        }

        /// Every attribute, in the order of the bits of an [`AttrMask`].
        pub const ATTRIBUTES: &[Attribute] =
            &[$(Attribute { name: stringify!($name), step: Step::$step, allowed: $allowed }),*];

        impl QpAttr {
            /// What an attribute is that was left out, where that is a value of its own.
            pub fn defaults() -> QpAttr {
                #[allow(clippy::needless_update)] // Not every attribute has a default.
                QpAttr { $($($name: Some($default),)?)* ..QpAttr::default() }
            }

            /// Which attributes are given.
            pub fn mask(&self) -> AttrMask {
                let given = [$(self.$name.is_some()),*];
                AttrMask(given.into_iter().enumerate().fold(0, |mask, (i, given)| mask | u32::from(given) << i))
            }

            /// Takes over what `newer` gives.
            pub(crate) fn update(&mut self, newer: &QpAttr) {
                $(if newer.$name.is_some() { self.$name.clone_from(&newer.$name); })*
            }

            /// Checks the numbers that are given against what is allowed.
            ///
            /// # Errors
            /// [`Error::InvalidArgument`] names the attribute, its value and its range.
            pub(crate) fn check(&self) -> Result<()> {
                $(if let Some(value) = &self.$name { $allowed.check(stringify!($name), value.number())?; })*
                Ok(())
            }
        }
    };
}

qp_attributes!(define);

/// An attribute in the list of all.
#[derive(Clone, Copy, Debug)]
pub struct Attribute {
    /// Its name, which is the same in Python.
    pub name: &'static str,
    /// When it is taken.
    pub step: Step,
    /// Its values.
    pub allowed: Allowed,
}

/// The values of an attribute.
#[derive(Clone, Copy, Debug)]
pub enum Allowed {
    /// Numbers.
    Numbers {
        /// The smallest.
        least: u64,
        /// The largest.
        most: u64,
    },
    /// Values of another type, in words.
    Words(&'static str),
}

pub(crate) const fn numbers(least: u64, most: u64) -> Allowed {
    Allowed::Numbers { least, most }
}

pub(crate) const fn words(words: &'static str) -> Allowed {
    Allowed::Words(words)
}

impl Allowed {
    pub(crate) fn check(self, name: &str, value: Option<u64>) -> Result<()> {
        match (self, value) {
            (Allowed::Numbers { least, most }, Some(value)) if !(least..=most).contains(&value) => {
                Err(Error::invalid(format!("{name} is {value}: {self} is allowed")))
            }
            _ => Ok(()),
        }
    }
}

impl fmt::Display for Allowed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Allowed::Numbers { least, most: u64::MAX } => write!(f, "{least} to 2^64 - 1"),
            Allowed::Numbers { least, most } => write!(f, "{least} to {most}"),
            Allowed::Words(words) => f.write_str(words),
        }
    }
}

/// The value of an attribute, if it is a number.
trait Number {
    fn number(&self) -> Option<u64>;
}

macro_rules! number {
    ($($type:ty => $number:expr),* $(,)?) => {
        $(impl Number for $type {
            fn number(&self) -> Option<u64> {
                let number: fn(&$type) -> Option<u64> = $number;
                number(self)
            }
        })*
    };
}

number! {
    u8 => |&n| Some(n.into()),
    u16 => |&n| Some(n.into()),
    u32 => |&n| Some(n.into()),
    u64 => |&n| Some(n),
    bool => |_| None,
    Access => |_| None,
    Capabilities => |_| None,
    Vec<SocketAddr> => |_| None,
}

impl QpAttr {
    /// How long a message with immediate waits for a receive.
    pub(crate) fn receive_wait(&self) -> Span {
        match self.receive_wait_ms.unwrap_or(0) {
            RECEIVE_WAIT_FOREVER => Span(u64::MAX),
            ms => Span::from_millis(ms.into()),
        }
    }
}

/// A set of `modify` attributes, one bit each.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct AttrMask(pub u32);

/// When an attribute is taken. MRC's attributes are optional: one that is left out keeps its default, and one may come at
/// an earlier step than its own, not at a later one. A profile may still come at RTR: in SRv6 mode it belongs to one peer,
/// whose address is an attribute of that step.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// INIT or RTR.
    UntilRtr,
    /// RTR only.
    AtRtr,
    /// RTR only, and there it is needed.
    NeededAtRtr,
    /// INIT, RTR or RTS.
    UntilRts,
    /// RTS only, and there it is needed.
    NeededAtRts,
}

/// The attributes of a step.
pub(crate) const fn attributes_of(step: Step) -> AttrMask {
    let (mut mask, mut i) = (0, 0);
    while i < ATTRIBUTES.len() {
        if ATTRIBUTES[i].step as u8 == step as u8 {
            mask |= 1 << i;
        }
        i += 1;
    }
    AttrMask(mask)
}

impl AttrMask {
    /// No attribute.
    pub const NONE: AttrMask = AttrMask(0);

    /// The union of both sets.
    #[must_use]
    pub const fn or(self, other: AttrMask) -> AttrMask {
        AttrMask(self.0 | other.0)
    }

    /// The attributes of `self` that are not in `other`.
    #[must_use]
    pub const fn minus(self, other: AttrMask) -> AttrMask {
        AttrMask(self.0 & !other.0)
    }

    /// Whether the set is empty.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }
}

impl fmt::Display for AttrMask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let given = ATTRIBUTES.iter().enumerate().filter(|(i, _)| self.0 >> i & 1 == 1);
        let mut names = given.map(|(_, attribute)| attribute.name);
        f.write_str(names.next().unwrap_or("none"))?;
        names.try_for_each(|name| write!(f, ", {name}"))
    }
}
