//! Which devices there are: from `OPENMRC_DEVICES`, `OPENMRC_CONFIG` or this host's interfaces
//! (docs/spec/c-interface.md, section 1). The file's keys are the NIC's options of a device, and the fields of
//! `openmrc.testing.Impairment`.

use std::collections::BTreeMap;
use std::io::Read;
use std::net::IpAddr;

use openmrc_nic::{DeviceConfig, ImpairDescription, ImpairRule, PortConfig, Setting};
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
    udp_port: Option<u16>,
    /// Everything else: the options of a device.
    #[serde(flatten)]
    options: BTreeMap<String, toml::Value>,
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
    let Entry { name, addresses, peers, impair, impair_seed, udp_port, options } = entry;
    let of = |why: String| format!("device {name}: {why}");
    if name.is_empty()
        || name.len() > 63
        || !name.bytes().all(|b| b.is_ascii_alphanumeric() || b"_-".contains(&b))
    {
        return Err(of("a name has 1 to 63 letters, digits, _ and -".into()));
    }
    let mut config = DeviceConfig::with_addresses(addresses);
    config.name.clone_from(&name);
    // The limit is the program's own choice.
    config.sockets.raise_descriptor_limit = false;
    for (option, value) in options {
        config.set(&option, &setting(value)).map_err(|error| of(format!("OPENMRC_CONFIG: {error}")))?;
    }
    if let Some(udp_port) = udp_port {
        config.ports.iter_mut().for_each(|port: &mut PortConfig| port.udp_port = udp_port);
    }
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

/// A value of TOML as the NIC reads it.
fn setting(value: toml::Value) -> Setting {
    match value {
        toml::Value::Boolean(value) => Setting::Flag(value),
        toml::Value::Integer(value) => Setting::Integer(value.into()),
        toml::Value::Float(value) => Setting::Number(value),
        toml::Value::String(text) => Setting::Text(text),
        toml::Value::Array(list) => Setting::List(list.into_iter().map(setting).collect()),
        toml::Value::Table(table) => {
            Setting::Table(table.into_iter().map(|(name, value)| (name, setting(value))).collect())
        }
        toml::Value::Datetime(value) => Setting::Other(value.to_string()),
    }
}
