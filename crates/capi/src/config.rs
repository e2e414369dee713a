//! Which devices there are: from `OPENMRC_DEVICES`, `OPENMRC_CONFIG` or this host's interfaces
//! (docs/spec/c-interface.md, section 1). The file's keys have the names and units of `openmrc.verbs.Device` and
//! `openmrc.testing.Impairment`.

use std::collections::BTreeMap;
use std::io::Read;
use std::net::IpAddr;
use std::time::Duration;

use openmrc_nic::{DeviceConfig, ImpairDescription, ImpairRule, PortConfig};
use openmrc_wire::EvFormat;
use serde::Deserialize;

use crate::interfaces;

/// Limit of the file.
const MOST_BYTES: u64 = 1 << 20;

/// A device as it was described.
pub struct Description {
    pub config: DeviceConfig,
    /// Peers whose addresses do not follow from this device's: by the address on plane 1, one per plane.
    pub peers: BTreeMap<IpAddr, Vec<IpAddr>>,
    pub impairments: Vec<ImpairRule>,
    pub seed: u64,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    device: Vec<Entry>,
}

#[derive(Deserialize, Default)]
struct Entry {
    name: String,
    #[serde(default)]
    addresses: Vec<IpAddr>,
    #[serde(default)]
    peers: BTreeMap<IpAddr, Vec<IpAddr>>,
    #[serde(default)]
    impair: Vec<ImpairDescription>,
    #[serde(default)]
    impair_seed: u64,
    #[serde(flatten)]
    settings: Settings,
}

/// What a device takes beside its addresses; `None` is the NIC's default.
#[derive(Deserialize, Default)]
struct Settings {
    udp_port: Option<u16>,
    /// `udp`, `structured` or `srv6`.
    ev_format: Option<String>,
    evs_per_port: Option<u16>,
    ev_burst: Option<u8>,
    receive_buffer: Option<usize>,
    send_buffer: Option<usize>,
    segmentation: Option<bool>,
    /// Raise the process's limit of open descriptors. The program's own choice otherwise.
    raise_descriptor_limit: Option<bool>,
    network_trims: Option<bool>,
    base_rtt_us: Option<f64>,
    link_rate_bps: Option<u64>,
    fixed_window: Option<u64>,
    ack_every_bytes: Option<u32>,
    ack_delay_us: Option<f64>,
    spin_us: Option<f64>,
    cpu: Option<usize>,
    seed: Option<u64>,
    max_qps: Option<u32>,
    /// Keys that are none of these.
    #[serde(flatten)]
    unknown: BTreeMap<String, toml::Value>,
}

/// The devices that the environment describes, or what is wrong with it, in one line.
pub fn devices() -> Result<Vec<Description>, String> {
    let mut entries = match std::env::var("OPENMRC_CONFIG") {
        Ok(value) if !value.is_empty() => read(&value)?.device,
        _ => Vec::new(),
    };
    match std::env::var("OPENMRC_DEVICES") {
        Ok(value) if !value.is_empty() => entries = named(&value, entries)?,
        _ if entries.is_empty() => entries = found(),
        _ => {}
    }
    let described: Vec<_> = entries.into_iter().map(description).collect::<Result<_, _>>()?;
    let mut names: Vec<_> = described.iter().map(|d| d.config.name.clone()).collect();
    names.sort();
    match names.windows(2).find(|two| two[0] == two[1]) {
        Some(two) => Err(format!("two devices have the name {}", two[0])),
        None => Ok(described),
    }
}

/// A file, or its text where the value has a line break.
fn read(value: &str) -> Result<File, String> {
    let text = match value.contains('\n') {
        true => value.to_owned(),
        false => regular(value).map_err(|e| format!("OPENMRC_CONFIG: {value}: {e}"))?,
    };
    toml::from_str(&text).map_err(|e| format!("OPENMRC_CONFIG: {}", e.to_string().trim().replace('\n', " ")))
}

/// The text of a regular file. A pipe would block the program that loads this library, a device has no end.
fn regular(path: &str) -> std::io::Result<String> {
    if !std::fs::metadata(path)?.is_file() {
        return Err(std::io::Error::other("a regular file is expected"));
    }
    let mut text = String::new();
    std::fs::File::open(path)?.take(MOST_BYTES + 1).read_to_string(&mut text)?;
    if text.len() as u64 > MOST_BYTES {
        return Err(std::io::Error::other(format!("it is longer than {MOST_BYTES} bytes")));
    }
    Ok(text)
}

/// `name=address,address;name=...`; settings of the same name come from the file.
fn named(value: &str, mut known: Vec<Entry>) -> Result<Vec<Entry>, String> {
    let mut entries = Vec::new();
    for one in value.split(';').filter(|one| !one.trim().is_empty()) {
        let wrong = |why: String| format!("OPENMRC_DEVICES: {}: {why}", one.trim());
        let (name, list) =
            one.trim().split_once('=').ok_or_else(|| wrong("write name=address,address".into()))?;
        let addresses = list
            .split(',')
            .map(|text| text.trim().parse().map_err(|_| wrong(format!("{text:?} is no IP address"))))
            .collect::<Result<_, _>>()?;
        let place = known.iter().position(|entry| entry.name == name);
        let entry = place.map(|place| known.remove(place)).unwrap_or_default();
        entries.push(Entry { name: name.to_owned(), addresses, ..entry });
    }
    Ok(entries)
}

/// One device for each interface that is up, with its first address.
fn found() -> Vec<Entry> {
    let addresses = interfaces::usable().into_iter();
    let entry = |(i, addr)| Entry { name: format!("mrc{i}"), addresses: vec![addr], ..Entry::default() };
    addresses.enumerate().map(entry).collect()
}

fn description(entry: Entry) -> Result<Description, String> {
    let Entry { name, addresses, peers, impair, impair_seed, settings } = entry;
    let of = |why: String| format!("device {name}: {why}");
    if name.is_empty()
        || name.len() > 63
        || !name.bytes().all(|b| b.is_ascii_alphanumeric() || b"_-".contains(&b))
    {
        return Err(of("a name has 1 to 63 letters, digits, _ and -".into()));
    }
    if let Some(key) = settings.unknown.keys().next() {
        return Err(of(format!("OPENMRC_CONFIG: there is no setting {key}")));
    }
    let mut config = DeviceConfig::with_addresses(addresses);
    config.name.clone_from(&name);
    settings.apply(&mut config).map_err(of)?;
    let config = openmrc_nic::Device::new(config).map_err(|e| e.to_string())?.config().clone();
    for (gid, planes) in &peers {
        let fits = planes.len() <= config.ports.len() && planes.first() == Some(gid);
        if !fits || planes.iter().any(|addr| addr.is_ipv4() != config.ports[0].addr.is_ipv4()) {
            return Err(of(format!("peers: {gid} needs its own address first, then one per further plane")));
        }
    }
    let ports = config.ports.len();
    let impairments = impair
        .iter()
        .map(|rule| rule.rule(ports))
        .collect::<Result<_, _>>()
        .map_err(|e| of(e.to_string()))?;
    Ok(Description { config, peers, impairments, seed: impair_seed })
}

fn micros(name: &str, value: f64) -> Result<Duration, String> {
    Duration::try_from_secs_f64(value / 1e6).map_err(|_| format!("{name} is {value}: no length of time"))
}

impl Settings {
    fn apply(self, config: &mut DeviceConfig) -> Result<(), String> {
        macro_rules! take {
            ($($name:ident => $($field:ident).+),* $(,)?) => {
                $(if let Some(value) = self.$name { config.$($field).+ = value; })*
            };
        }
        take! {
            ev_burst => sockets.burst,
            receive_buffer => sockets.receive_buffer,
            send_buffer => sockets.send_buffer,
            segmentation => sockets.segmentation,
            network_trims => network.trims,
            link_rate_bps => network.link_rate_bps,
            ack_every_bytes => sacks.every_bytes,
            max_qps => max_qps,
        }
        if let Some(udp_port) = self.udp_port {
            config.ports.iter_mut().for_each(|port: &mut PortConfig| port.udp_port = udp_port);
        }
        match self.ev_format.as_deref() {
            None => {}
            Some("udp") => config.entropy.format = EvFormat::Udp,
            Some("structured" | "stev") => config.entropy.format = EvFormat::Structured,
            Some("srv6") => config.entropy.format = EvFormat::Srv6,
            Some(other) => return Err(format!("ev_format is {other:?}: udp, structured or srv6 is allowed")),
        }
        config.sockets.raise_descriptor_limit = self.raise_descriptor_limit.unwrap_or(false);
        config.entropy.per_port = self.evs_per_port.or(config.entropy.per_port);
        config.network.fixed_window = self.fixed_window.or(config.network.fixed_window);
        config.thread.cpu = self.cpu.or(config.thread.cpu);
        config.seed = self.seed.or(config.seed);
        for (name, value, to) in [
            ("base_rtt_us", self.base_rtt_us, &mut config.network.base_rtt),
            ("ack_delay_us", self.ack_delay_us, &mut config.sacks.delay),
            ("spin_us", self.spin_us, &mut config.thread.spin),
        ] {
            if let Some(value) = value {
                *to = micros(name, value)?;
            }
        }
        Ok(())
    }
}
