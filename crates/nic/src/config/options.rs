//! The options of a device, all in one list: names, types, defaults, documentation and what is allowed. The structs of
//! a [`DeviceConfig`] are made from it, and so are the fields of Python's `Device`; a file that `OPENMRC_CONFIG` names
//! takes every option. A new option is a new entry here.

use std::time::Duration;

use openmrc_transport::Span;
use openmrc_transport::node::PortMaskBase;
use openmrc_transport::presets::software;
use openmrc_wire::{DscpMap, EntropyOrder, EvFormat};

use super::setting::{Form, OptionType, Setting};
use super::{DeviceConfig, EpOps};
use crate::attr::{Allowed, numbers, words};
use crate::error::{Error, Result};

/// An option of a device.
#[derive(Clone, Copy, Debug)]
pub struct DeviceOption {
    /// Its name in files and programs.
    pub name: &'static str,
    /// What it does, one line of text after the other.
    pub doc: &'static str,
    /// How its values are written.
    pub form: Form,
    /// Its values.
    pub allowed: Allowed,
    set: fn(&mut DeviceConfig, &Setting) -> bool,
    get: fn(&DeviceConfig) -> Setting,
    number: fn(&DeviceConfig) -> Option<u64>,
}

impl DeviceOption {
    /// Its value if nobody sets it.
    pub fn default(&self) -> Setting {
        (self.get)(&DeviceConfig::default())
    }
}

impl DeviceConfig {
    /// Sets an option by its name. One that is set to [`Setting::Unset`] keeps its value.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if there is no such option or the value is not of its type. Ranges are checked when
    /// the device is made.
    pub fn set(&mut self, name: &str, setting: &Setting) -> Result<()> {
        let Some(option) = DEVICE_OPTIONS.iter().find(|option| option.name == name) else {
            let names: Vec<_> = DEVICE_OPTIONS.iter().map(|option| option.name).collect();
            return Err(Error::invalid(format!(
                "there is no setting {name}: a device has {}",
                names.join(", ")
            )));
        };
        if *setting == Setting::Unset || (option.set)(self, setting) {
            return Ok(());
        }
        Err(Error::invalid(format!("{name} is {setting}: {} is allowed", option.allowed)))
    }

    /// Checks every number against its range.
    pub(crate) fn check_ranges(&self) -> Result<()> {
        DEVICE_OPTIONS.iter().try_for_each(|option| option.allowed.check(option.name, (option.number)(self)))
    }
}

/// A duration of the transport, as it is configured.
fn duration(span: Span) -> Duration {
    Duration::from_nanos(span.as_nanos())
}

macro_rules! device_options {
    (
        $(
            $(#[$of_group:meta])*
            $group:ident: $config:ident {
                $(
                    $(#[doc = $doc:literal])*
                    $name:ident => $field:ident: $type:ty = $default:expr, $allowed:expr;
                )*
            }
        )*
        @elsewhere {
            $(
                $(#[doc = $doc_elsewhere:literal])*
                $name_elsewhere:ident => $($path:ident).+, $allowed_elsewhere:expr;
            )*
        }
    ) => {
        $(
            $(#[$of_group])*
            pub struct $config {
                $($(#[doc = $doc])* pub $field: $type,)*
            }

            impl Default for $config {
                fn default() -> Self {
                    $config { $($field: $default,)* }
                }
            }
        )*

        /// Every option of a device beside its name and ports.
        pub const DEVICE_OPTIONS: &[DeviceOption] = &[
            $($(device_options!(@option $name, concat!($($doc, "\n"),*), $allowed, $group.$field),)*)*
            $(device_options!(
                @option $name_elsewhere, concat!($($doc_elsewhere, "\n"),*), $allowed_elsewhere, $($path).+
            ),)*
        ];
    };
    (@option $name:ident, $doc:expr, $allowed:expr, $($path:ident).+) => {
        DeviceOption {
            name: stringify!($name),
            doc: $doc,
            form: form(|config| &config.$($path).+),
            allowed: $allowed,
            set: |config, setting| match OptionType::read(setting) {
                Some(value) => {
                    config.$($path).+ = value;
                    true
                }
                None => false,
            },
            get: |config| config.$($path).+.write(),
            number: |config| config.$($path).+.number(),
        }
    };
}

/// The form of the field that `_of` returns.
const fn form<T: OptionType>(_of: fn(&DeviceConfig) -> &T) -> Form {
    T::FORM
}

/// For options that are yes or no.
const FLAG: Allowed = words("True or False");
const MICROSECONDS: Allowed = words("a number of microseconds, from 0 on,");

device_options! {
    /// Entropy values: where packets carry them, and those of the default EV profile.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    entropy: EntropyConfig {
        /// Where packets carry entropy values; the same at both ends of a connection. `udp`, the default: the UDP
        /// source port. `structured`: flow label and source port. Both use UDP sockets. `srv6` and `srv6_srh`: the NIC
        /// builds the outer header itself, which needs CAP_NET_RAW; its paths come from EV profiles, each for one peer.
        ev_format => format: EvFormat = EvFormat::Udp, words("udp, structured, srv6 or srv6_srh");
        /// Which half of a 32-bit entropy is the UDP source port, in packets sent and in what is reflected; default
        /// `flow_label_high`: the low half. In a peer's feedback both orders are understood (docs/spec/wire.md, "Where
        /// the entropy value goes").
        entropy_order => order: EntropyOrder = EntropyOrder::default(), words("flow_label_high or source_port_high");
        /// Bits of the values of the default EV profile in UDP mode: 16, the default, or over IPv6 also 32, for fabrics
        /// that hash the flow label.
        auto_bits => auto_bits: u8 = 16, words("16 or 32");
        /// Entropy values per port in the default EV profile, half of them active and half in reserve; default 256
        /// divided by the number of ports, so that 128 are active (docs/spec/paths.md, "EV set").
        evs_per_port => per_port: Option<u16> = None, numbers(1, super::MAX_PATHS as u64);
    }

    /// Sockets, and how many packets one system call takes.
    #[derive(Clone, PartialEq, Eq, Debug)]
    sockets: SocketConfig {
        /// Receive buffer of each port's socket, bytes; default 16 MiB: four windows of 8 x 128 packets of 4096 bytes.
        /// Without CAP_NET_ADMIN the kernel may grant less (net.core.rmem_max).
        receive_buffer => receive_buffer: usize = 16 << 20, words("a number of bytes");
        /// Send buffer of each path's socket, bytes; default 1 MiB: 16 runs of 64 KiB.
        send_buffer => send_buffer: usize = 1 << 20, words("a number of bytes");
        /// Several packets of one path share a system call (UDP GSO and GRO), where the kernel supports it; default
        /// yes.
        segmentation => segmentation: bool = true, FLAG;
        /// Most consecutive packets on one path. There are fewer if they do not fit one system call, and at most 8 if
        /// they are not ready at the same time. Default 15: the packets of 4096 bytes that fit. Hardware uses 1.
        ev_burst => burst: u8 = software::BURST, numbers(1, 255);
        /// UDP ports on which every port receives in addition to its own, at most 4; default none. MRC 1.0 prints 4971
        /// as its default, RoCEv2 has 4791. Answers go to the address that the peer gave.
        udp_ports => more_udp_ports: Vec<u16> = Vec::new(), words("a sequence of numbers, 1 to 65535,");
        /// Sockets that send have no descriptors: an io_uring has them, which takes one. Default: where the process may
        /// have fewer than 16,384 descriptors, as a packet that leaves alone costs 0.4 us more. If the kernel is older
        /// than 6.1 or forbids it, they have descriptors.
        io_uring => io_uring: Option<bool> = None, FLAG;
        /// Raise the process's limit of open descriptors to its hard limit: each path has a socket. Default yes; in a
        /// program that uses the C library no, as the limit is the program's own choice there.
        raise_descriptor_limit => raise_descriptor_limit: bool = true, FLAG;
    }

    /// What the device assumes of its network.
    #[derive(Clone, Copy, PartialEq, Debug)]
    network: NetworkConfig {
        /// DSCP code points by class; default those of the specification (docs/spec/wire.md, "DSCP").
        dscp => dscp: DscpMap = DscpMap::DEFAULT, words("code points by class, such as an openmrc.wire.DscpMap,");
        /// Whether the switches of this network trim packets; default no: a host's own network does not.
        network_trims => trims: bool = false, FLAG;
        /// Round-trip time of an idle path, microseconds: the initial value of loss detection and congestion control.
        /// Default 500: the delay is in the scheduling of the hosts' processors, not in the network.
        base_rtt_us => base_rtt: Duration = duration(software::BASE_RTT), MICROSECONDS;
        /// Rate of all ports together, bits per second, from which the default NSCC profile is derived; default
        /// 25 Gb/s.
        link_rate_bps => link_rate_bps: u64 = 25_000_000_000, numbers(1, u64::MAX);
        /// Window of the default congestion control profile, bytes; 0: `uet-1.0-nscc` controls congestion. Default:
        /// that where the network trims, else 1 MiB. Sockets neither mark nor trim, and scheduling looks like queueing
        /// to NSCC. Drops shrink a fixed window; it grows back by a packet in a round trip.
        fixed_window => fixed_window: Option<u64> = None, numbers(0, u64::MAX);
    }

    /// When a responder sends a SACK unasked.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    sacks: SackConfig {
        /// As responder, bytes received after which it sends a SACK, a small packet counting as 1024; default 128 KiB,
        /// as a SACK costs a system call at each end.
        ack_every_bytes => every_bytes: u32 = software::ACK_EVERY_BYTES, words("0 to 2^32 - 1");
        /// As responder, longest time from a packet to a SACK, microseconds; default 50.
        ack_delay_us => delay: Duration = duration(software::ACK_DELAY), MICROSECONDS;
    }

    /// Endpoint requests, which are not part of a queue pair.
    #[derive(Clone, PartialEq, Eq, Debug)]
    endpoint: EndpointConfig {
        /// Nodes whose endpoint requests (EV probes, port status updates) are answered: `any`, the default; `peers`,
        /// those of queue pairs; `off`, none; or peers and these prefixes, such as 10.1.0.0/16. Nodes that are no peers
        /// get at most 10,000 answers per second each and 100,000 together.
        ep_ops => answered: EpOps = EpOps::default(), words("any, peers, off or a list of prefixes");
        /// Bit of a port status mask that means the first port, 0 or 1: in updates sent, and in those of a peer of
        /// which neither the first nor the last port has been up. Default 0; readings of the specification differ
        /// (docs/spec/wire.md, "ERTH").
        port_mask_base => port_mask_base: PortMaskBase = PortMaskBase::default(), words("0 or 1");
    }

    /// The engine's thread.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    thread: ThreadConfig {
        /// How long an idle engine polls before it sleeps, microseconds; default 0: the host's processors have other
        /// work.
        spin_us => spin: Duration = Duration::ZERO, MICROSECONDS;
        /// Processor to which the engine's thread is bound; default any.
        cpu => cpu: Option<usize> = None, words("a processor's number");
    }

    @elsewhere {
        /// As responder, the answer to a PSN beyond the window: `nack`, at most one per round trip, the default; or
        /// `silent`. Readings of the specification differ (docs/spec/transport.md, "Responder").
        oor => choices.responder.out_of_window, words("nack or silent");
        /// As responder, take the service time out of every reflected timestamp; default no, and then only the delayed
        /// SACK does (docs/spec/wire.md, "TSETH").
        svc_time => choices.responder.service_time, FLAG;
        /// As responder, the NAK for too many messages with immediate in flight: 0x65, the default, or 0x61. Readings
        /// of the specification differ (docs/spec/wire.md, "AETH").
        wimm_nak_syndrome => choices.responder.wimm_nak_syndrome, words("0x65 or 0x61");
        /// As requestor, when the congestion window lets a packet go: `mtu`, the default, while a full packet fits;
        /// `any`, while there is any room. Readings differ (docs/spec/congestion.md, "Sending").
        can_send => choices.requestor.can_send, words("mtu or any");
        /// As requestor, destination flow control: the receiver's penalty shrinks the window; default yes. A queue pair
        /// has an attribute of this name for its own (docs/spec/congestion.md, "On a SACK").
        dfc => choices.requestor.dfc, FLAG;
        /// As requestor with NSCC, measure the RTT of the idle path by one probe in the control class when much is to
        /// be sent; default yes (docs/spec/congestion.md, "A good base_rtt at the start").
        start_probe => choices.requestor.start_probe, FLAG;
        /// Full turns after which the order of the paths is drawn anew; 0: never. Default 16 (docs/spec/paths.md,
        /// "Choosing the EV of the next packet").
        rotation_turns => choices.rotation_turns, numbers(0, u16::MAX as u64);
        /// Seed of all randomness except memory keys; default from the operating system.
        seed => seed, numbers(0, u64::MAX);
        /// Most queue pairs, 1 to 16384; default 16384.
        max_qps => max_qps, numbers(1, 1 << 14);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_option_reads_what_it_writes_and_refuses_another_type() {
        for option in DEVICE_OPTIONS {
            let mut config = DeviceConfig::loopback(1, 2);
            config.set(option.name, &option.default()).unwrap();
            assert_eq!(config, DeviceConfig::loopback(1, 2), "{}", option.name);
            let wrong = Setting::Other("a socket".into());
            let error = config.set(option.name, &wrong).unwrap_err().to_string();
            assert_eq!(error, format!("{} is a socket: {} is allowed", option.name, option.allowed));
        }
    }

    #[test]
    fn no_two_options_share_a_name_or_a_field() {
        for (i, option) in DEVICE_OPTIONS.iter().enumerate() {
            assert!(!DEVICE_OPTIONS[..i].iter().any(|other| other.name == option.name), "{}", option.name);
            let other = match (option.form, option.name) {
                (Form::Flag, _) => Setting::Flag(option.default() == Setting::Flag(false)),
                (Form::Integer, "port_mask_base") => Setting::Integer(1),
                (Form::Integer | Form::Number, _) => Setting::Integer(77),
                (Form::Name, "ev_format") => Setting::Text("srv6".into()),
                (Form::Name, "entropy_order") => Setting::Text("source_port_high".into()),
                (Form::Name, "oor") => Setting::Text("silent".into()),
                (Form::Name, _) => Setting::Text("any".into()),
                (Form::Integers, _) => Setting::List(vec![Setting::Integer(5000)]),
                (Form::NameOrTexts, _) => Setting::List(vec![Setting::Text("10.1.0.0/16".into())]),
                (Form::Table, _) => Setting::Table(vec![("control".into(), Setting::Integer(48))]),
            };
            let mut config = DeviceConfig::default();
            config.set(option.name, &other).unwrap();
            let changed: Vec<_> =
                DEVICE_OPTIONS.iter().filter(|o| (o.get)(&config) != o.default()).map(|o| o.name).collect();
            assert_eq!(changed, [option.name]);
        }
    }

    #[test]
    fn an_unknown_option_is_refused_with_the_known_ones() {
        let error = DeviceConfig::default().set("ev_brust", &Setting::Integer(1)).unwrap_err().to_string();
        assert!(error.contains("ev_brust") && error.contains("ev_burst"), "{error}");
    }
}
