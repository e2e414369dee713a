//! Files that programs look up for a device, under /sys/class/infiniband, /sys/class/infiniband_verbs and
//! /dev/infiniband (docs/spec/c-interface.md, section 7.9). Nothing of it is on a disk: `interpose` answers for these
//! paths. `OPENMRC_SYSFS=0` leaves them out.

use std::ffi::CStr;

use crate::device::{self, Device};

const CLASS: &str = "/sys/class/infiniband";
const VERBS_CLASS: &str = "/sys/class/infiniband_verbs";
const NODES: &str = "/dev/infiniband";

/// The PCI directory of a device whose interface has none. Its last part must look like a PCI address.
const NO_PCI: &str = "/sys/devices/pci0000:00/0000:00:00.0";

/// Numbers of the kernel's driver for `/dev/infiniband/uverbs<n>`.
pub const UVERBS_MAJOR: u32 = 231;
pub const UVERBS_FIRST_MINOR: u32 = 192;

/// What is at a path.
pub enum Entry {
    File(String),
    Directory,
    /// A character device, of this number among those of verbs.
    Node(u32),
    /// A file of the system, at this path.
    Elsewhere(String),
    Missing,
}

/// A path about a device, without links.
pub struct Found {
    pub canonical: String,
    pub entry: Entry,
    /// Where the path itself is a symbolic link: what it says.
    pub link: Option<String>,
}

impl Found {
    fn new(canonical: String, entry: Entry) -> Self {
        Found { canonical, entry, link: None }
    }
}

/// Whether a path begins like one of a device; looked at for every path that the program uses.
#[inline]
pub fn may_be_ours(path: &CStr) -> bool {
    let path = path.to_bytes();
    path.starts_with(CLASS.as_bytes())
        || path.starts_with(NODES.as_bytes())
        || path.starts_with(NO_PCI.as_bytes())
}

/// What a path is about; `None` if it is about no device of ours.
pub fn find(path: &CStr) -> Option<Found> {
    if !may_be_ours(path) || std::env::var_os("OPENMRC_SYSFS").is_some_and(|value| value == "0") {
        return None;
    }
    let path = path.to_str().ok()?;
    let below = |root: &str| path.strip_prefix(root).filter(|rest| rest.is_empty() || rest.starts_with('/'));
    let devices = device::unless_being_made();
    if devices.is_empty() {
        return None;
    }
    if let Some(rest) = below(CLASS) {
        let Some((name, rest)) = first(rest) else { return directory(CLASS) };
        let device = devices.iter().find(|device| device.name() == name)?;
        return Some(of_device(device, rest));
    }
    if let Some(rest) = below(VERBS_CLASS) {
        let Some((name, rest)) = first(rest) else { return directory(VERBS_CLASS) };
        let device = devices.iter().find(|device| device.node_name() == name)?;
        return Some(of_node(device, rest));
    }
    if let Some(rest) = below(NODES) {
        let Some((name, rest)) = first(rest) else { return directory(NODES) };
        let device = devices.iter().find(|each| each.name() == name || each.node_name() == name)?;
        let node = Entry::Node(device.number);
        return Some(Found::new(path.into(), if rest.is_empty() { node } else { Entry::Missing }));
    }
    // Where a program gets to from the class, on a machine without that PCI device.
    if devices.iter().any(|device| pci_directory(device).is_none()) {
        return without_pci(below(NO_PCI)?);
    }
    None
}

/// A directory of the system, if it has that, or one of ours.
fn directory(path: &str) -> Option<Found> {
    (!device::exists(path)).then(|| Found::new(path.into(), Entry::Directory))
}

/// The first part of a path and the rest.
fn first(path: &str) -> Option<(&str, &str)> {
    let path = path.trim_start_matches('/');
    let end = path.find('/').unwrap_or(path.len());
    (end > 0).then(|| (&path[..end], path[end..].trim_matches('/')))
}

/// The PCI directory of the interface of plane 1.
fn pci_directory(device: &Device) -> Option<String> {
    let addr = device.description.config.ports[0].addr;
    let name = crate::interfaces::interface_of(addr)?;
    let link = std::fs::canonicalize(format!("/sys/class/net/{name}/device")).ok()?;
    let path = link.to_str()?.to_owned();
    let last = path.rsplit('/').next()?;
    (last.len() == 12 && last.as_bytes()[4] == b':' && last.as_bytes()[10] == b'.').then_some(path)
}

fn without_pci(rest: &str) -> Option<Found> {
    let path = format!("{NO_PCI}{rest}");
    if device::exists(NO_PCI) {
        return None;
    }
    let entry = match rest.trim_matches('/') {
        "" => Entry::Directory,
        "numa_node" => Entry::File("-1\n".into()),
        _ => Entry::Missing,
    };
    Some(Found::new(path, entry))
}

/// `rest` below `/sys/class/infiniband/NAME`, which is a link into the directory of the PCI device.
fn of_device(device: &Device, rest: &str) -> Found {
    let pci = pci_directory(device);
    let parent = pci.clone().unwrap_or_else(|| NO_PCI.into());
    let own = format!("{parent}/infiniband/{}", device.name());
    let mut canonical = own.clone();
    let mut link = rest.is_empty().then(|| format!("../..{}", &own["/sys".len()..]));
    for part in rest.split('/').filter(|part| !part.is_empty() && *part != ".") {
        link = None;
        if part == ".." {
            canonical.truncate(canonical.rfind('/').unwrap_or(0));
        } else if part == "device" && canonical == own {
            canonical.clone_from(&parent);
            link = Some("../../../".to_owned() + parent.rsplit('/').next().unwrap_or_default());
        } else {
            canonical = format!("{canonical}/{part}");
        }
    }
    let entry =
        match canonical.strip_prefix(own.as_str()).filter(|rest| rest.is_empty() || rest.starts_with('/')) {
            Some(rest) => content(device, rest.trim_start_matches('/')),
            None if pci.is_none() && canonical == format!("{parent}/infiniband") => Entry::Directory,
            None => match canonical.strip_prefix(NO_PCI).filter(|_| pci.is_none()).and_then(without_pci) {
                Some(found) => found.entry,
                None => Entry::Elsewhere(canonical.clone()),
            },
        };
    Found { canonical, entry, link }
}

/// `rest` below `/sys/class/infiniband_verbs/uverbs<n>`.
fn of_node(device: &Device, rest: &str) -> Found {
    let here = format!("{VERBS_CLASS}/{}/{rest}", device.node_name());
    let minor = UVERBS_FIRST_MINOR + device.number;
    match rest {
        "" => Found::new(here.trim_end_matches('/').into(), Entry::Directory),
        "ibdev" => Found::new(here, Entry::File(format!("{}\n", device.name()))),
        "abi_version" => Found::new(here, Entry::File("1\n".into())),
        "dev" => Found::new(here, Entry::File(format!("{UVERBS_MAJOR}:{minor}\n"))),
        _ if rest == "device" || rest.starts_with("device/") => of_device(device, rest),
        _ => Found::new(here, Entry::Missing),
    }
}

/// What is at a place below a device's directory.
fn content(device: &Device, place: &str) -> Entry {
    let guid = |value: u64| {
        let bytes = value.to_ne_bytes();
        let quad = |i: usize| format!("{:02x}{:02x}", bytes[2 * i], bytes[2 * i + 1]);
        format!("{}:{}:{}:{}\n", quad(0), quad(1), quad(2), quad(3))
    };
    Entry::File(match place {
        "" | "ports" => return Entry::Directory,
        "node_type" => "1: CA\n".into(),
        "node_guid" | "sys_image_guid" => guid(device.guid()),
        "node_desc" => format!("openmrc {}\n", device.name()),
        "fw_ver" => format!("{}\n", env!("CARGO_PKG_VERSION")),
        "hca_type" | "board_id" => "openmrc\n".into(),
        "hw_rev" => "0x0\n".into(),
        _ => {
            let Some(rest) = place.strip_prefix("ports/") else { return Entry::Missing };
            let (port, rest) = rest.split_once('/').unwrap_or((rest, ""));
            match port.parse::<u8>() {
                Ok(port) if (1..=device.planes()).contains(&port) => return of_port(device, port, rest),
                _ => return Entry::Missing,
            }
        }
    })
}

fn of_port(device: &Device, port: u8, place: &str) -> Entry {
    let (kind, index) = place.rsplit_once('/').unwrap_or((place, ""));
    let is_gid = || index.parse::<u32>().is_ok_and(|index| index < device::GIDS);
    let text = match (kind, index) {
        ("", "") | ("gids" | "pkeys" | "gid_attrs", "") | ("gid_attrs", "types" | "ndevs") => {
            return Entry::Directory;
        }
        ("state", "") => "4: ACTIVE".into(),
        ("phys_state", "") => "5: LinkUp".into(),
        ("rate", "") => format!("{} Gb/sec", device.description.config.network.link_rate_bps / 1_000_000_000),
        ("link_layer", "") => "Ethernet".into(),
        ("lid" | "sm_lid", "") => "0x0".into(),
        ("lid_mask_count" | "sm_sl", "") => "0".into(),
        ("cap_mask", "") => "0x00000000".into(),
        ("pkeys", "0") => "0xffff".into(),
        ("gid_attrs/types", _) if is_gid() => "RoCE v2".into(),
        ("gid_attrs/ndevs", _) if is_gid() => {
            let addr = device.description.config.ports[usize::from(port) - 1].addr;
            let Some(name) = crate::interfaces::interface_of(addr) else { return Entry::Missing };
            name
        }
        ("gids", _) if is_gid() => {
            let gid = device.gid().0;
            let groups: Vec<_> = gid.chunks(2).map(|two| format!("{:02x}{:02x}", two[0], two[1])).collect();
            groups.join(":")
        }
        _ => return Entry::Missing,
    };
    Entry::File(text + "\n")
}
