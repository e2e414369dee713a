//! The devices of this process, and what they report (docs/spec/c-interface.md, sections 7.3 and 7.5).

use std::ffi::{c_char, c_int, c_void};
use std::hash::{BuildHasher as _, BuildHasherDefault, DefaultHasher};
use std::net::IpAddr;
use std::sync::OnceLock;

use openmrc_nic::{QpCap, limits};
use parking_lot::Mutex;

use crate::abi::verbs::*;
use crate::config::{self, Description};
use crate::errno::{EINVAL, Result};
use crate::told;

/// A device. It lives as long as the process.
#[repr(C)]
pub struct Device {
    pub public: IbvDevice,
    pub description: Description,
    /// Its `uverbs<number>`.
    pub number: u32,
}

// SAFETY: nothing of it changes after it was made; the two pointers in the public part are null.
unsafe impl Sync for Device {}
// SAFETY: as above.
unsafe impl Send for Device {}

/// `max_qp` and the other limits that a device reports.
pub const MAX_QP: u32 = limits::MAX_QPS;
/// Of the send queue and of the receive queue.
pub const MAX_QP_WR: u32 = QpCap::MAX.max_send_wr;
pub const MAX_SGE: u32 = QpCap::MAX.max_send_sge;
pub const MAX_CQE: c_int = limits::MAX_CQE as c_int;
pub const MAX_INLINE: u32 = QpCap::MAX.max_inline_data;
/// Entries of the GID table, which are all the same: clients default to the first or to the last.
pub const GIDS: u32 = 4;
/// A locally administered number, as there is no vendor. Programs take 0 for a device that did not answer.
const VENDOR: u32 = 0x02_6D72;
/// A part number that no application knows, so that none expects vendor features.
const VENDOR_PART: u32 = 0x6D_7263;

static DEVICES: OnceLock<Vec<&'static Device>> = OnceLock::new();
/// Held while they are made, which looks up files.
static MAKING: Mutex<()> = Mutex::new(());

/// The devices; made at the first call that finds the environment in order.
///
/// # Errors
/// EINVAL, with one line on standard error.
pub fn all() -> Result<&'static [&'static Device]> {
    let _making = MAKING.lock();
    if DEVICES.get().is_none() {
        let described = config::devices().map_err(|why| {
            told::once(why);
            EINVAL
        })?;
        // Numbers of the system's devices are theirs.
        let free = (0..).filter(|number| !exists(&format!("/sys/class/infiniband_verbs/uverbs{number}")));
        let numbered = described.into_iter().zip(free);
        let made =
            numbered.map(|(d, number)| &*Box::leak(Box::new(Device::new(d, number)))).collect::<Vec<_>>();
        if DEVICES.get_or_init(|| made).is_empty() {
            told::once(
                "no device: no interface but loopback is up with an address; OPENMRC_DEVICES names some"
                    .into(),
            );
        }
    }
    Ok(DEVICES.get().map_or(&[], Vec::as_slice))
}

/// Whether the system has a file, asked past `interpose`, which looks for devices.
pub fn exists(path: &str) -> bool {
    let Ok(path) = std::ffi::CString::new(path) else { return false };
    // SAFETY: a string that ends with zero.
    unsafe { libc::syscall(libc::SYS_faccessat, libc::AT_FDCWD, path.as_ptr(), libc::F_OK) == 0 }
}

/// The devices, for one who looks up a file; none while they are made.
pub fn unless_being_made() -> &'static [&'static Device] {
    if DEVICES.get().is_none() && MAKING.try_lock().is_some() {
        let _ = all();
    }
    DEVICES.get().map_or(&[], Vec::as_slice)
}

/// The device at this address.
///
/// # Errors
/// EINVAL if there is none.
pub fn at(device: *const IbvDevice) -> Result<&'static Device> {
    let known = DEVICES.get().map_or(&[][..], Vec::as_slice);
    known.iter().copied().find(|each| std::ptr::eq(&raw const each.public, device)).ok_or(EINVAL)
}

fn text<const N: usize>(text: &str) -> [c_char; N] {
    let mut out = [0; N];
    // The last byte stays zero.
    for (to, from) in out[..N - 1].iter_mut().zip(text.bytes()) {
        *to = from as c_char;
    }
    out
}

impl Device {
    fn new(description: Description, number: u32) -> Self {
        let name = description.config.name.as_str();
        let node = format!("uverbs{number}");
        Device {
            public: IbvDevice {
                ops: [std::ptr::null_mut::<c_void>(); 2],
                node_type: IBV_NODE_CA,
                transport_type: IBV_TRANSPORT_IB,
                name: text(name),
                dev_path: text(&format!("/sys/class/infiniband_verbs/{node}")),
                dev_name: text(&node),
                ibdev_path: text(&format!("/sys/class/infiniband/{name}")),
            },
            description,
            number,
        }
    }

    pub fn name(&self) -> &str {
        &self.description.config.name
    }

    /// The name of its file under /dev/infiniband.
    pub fn node_name(&self) -> String {
        format!("uverbs{}", self.number)
    }

    /// How many planes it has.
    pub fn planes(&self) -> u8 {
        self.description.config.ports.len() as u8
    }

    /// Its address on plane 1, which is every entry of its GID table.
    pub fn gid(&self) -> IbvGid {
        gid_of(self.description.config.ports[0].addr)
    }

    /// The same for a name and host wherever it is opened, in network order, and never 0.
    pub fn guid(&self) -> u64 {
        let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        let hash = BuildHasherDefault::<DefaultHasher>::default();
        let number = hash.hash_one((host.trim(), self.name(), self.gid().0)) | 1;
        // Locally administered, not of a group.
        (number & !(0x03 << 56) | 0x02 << 56).to_be()
    }

    pub fn attributes(&self) -> IbvDeviceAttr {
        let mut fw_ver = [0; 64];
        let version = env!("CARGO_PKG_VERSION").as_bytes();
        fw_ver[..version.len()].copy_from_slice(version);
        IbvDeviceAttr {
            fw_ver,
            node_guid: self.guid(),
            sys_image_guid: self.guid(),
            max_mr_size: 1 << 63,
            page_size_cap: !0xFFF,
            vendor_id: VENDOR,
            vendor_part_id: VENDOR_PART,
            hw_ver: 0,
            max_qp: MAX_QP as c_int,
            max_qp_wr: MAX_QP_WR as c_int,
            device_cap_flags: 0,
            max_sge: MAX_SGE as c_int,
            max_sge_rd: 0,
            max_cq: 1 << 16,
            max_cqe: MAX_CQE,
            max_mr: 1 << 20,
            max_pd: 1 << 15,
            lacking: [0; 20],
            max_pkeys: 1,
            local_ca_ack_delay: 0,
            phys_port_cnt: 1,
        }
    }

    /// Codes of width and speed whose product is the device's rate.
    pub fn width_and_speed(&self) -> (u8, u8) {
        /// Gb/s, and the codes.
        const RATES: [(u64, u8, u8); 6] =
            [(25, 1, 32), (50, 1, 64), (100, 2, 32), (200, 2, 64), (400, 2, 128), (800, 4, 128)];
        let rate = self.description.config.network.link_rate_bps / 1_000_000_000;
        let fitting = RATES.iter().rev().find(|(gbps, ..)| *gbps <= rate).unwrap_or(&RATES[0]);
        (fitting.1, fitting.2)
    }
}

/// An address as a GID: IPv4 in its mapped form.
pub fn gid_of(addr: IpAddr) -> IbvGid {
    IbvGid(match addr {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    })
}

/// The address that a GID stands for.
///
/// # Errors
/// EINVAL for an address that is not one node's.
pub fn address_of(gid: IbvGid) -> Result<IpAddr> {
    let addr = IpAddr::from(gid.0).to_canonical();
    if addr.is_unspecified() || addr.is_multicast() { Err(EINVAL) } else { Ok(addr) }
}
