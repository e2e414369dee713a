//! Queries of devices, ports, GIDs and partition keys (docs/spec/c-interface.md, sections 7.2 and 7.5).

use std::ffi::{c_int, c_uint, c_void};
use std::ptr;

use crate::abi::verbs::*;
use crate::context::{self, CONTEXTS};
use crate::device;
use crate::errno::{self, EINVAL};
use crate::returns::{e0, m1, minus};

/// # Safety
/// As in verbs.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_device(context: *mut IbvContext, attr: *mut IbvDeviceAttr) -> c_int {
    e0(|| {
        let attributes = CONTEXTS.get(context)?.device.attributes();
        // SAFETY: the program gives room for the structure.
        *unsafe { attr.as_mut() }.ok_or(EINVAL)? = attributes;
        Ok(())
    })
}

/// Writes the first `len` bytes of a port's attributes.
fn query_port(context: *mut IbvContext, port_num: u8, attr: *mut c_void, len: usize) -> c_int {
    e0(|| {
        let attributes = CONTEXTS.get(context)?.port_attributes(port_num)?;
        if attr.is_null() {
            return Err(EINVAL);
        }
        let known = len.min(size_of::<IbvPortAttr>());
        // SAFETY: the program gives room for this many bytes; the structure has no padding but at its end.
        unsafe {
            ptr::write_bytes(attr.cast::<u8>(), 0, len);
            ptr::copy_nonoverlapping((&raw const attributes).cast::<u8>(), attr.cast(), known);
        }
        Ok(())
    })
}

/// # Safety
/// As in verbs.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_port(context: *mut IbvContext, port_num: u8, attr: *mut c_void) -> c_int {
    query_port(context, port_num, attr, COMPAT_PORT_ATTR)
}

/// The speed of what a queue pair on this port sends over, in units of 100 Mb/s: all planes that are up, since every
/// queue pair is spread over them.
///
/// # Safety
/// As in verbs.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_port_speed(
    context: *mut IbvContext,
    port_num: u8,
    speed: *mut u64,
) -> c_int {
    e0(|| {
        let context = CONTEXTS.get(context)?;
        context.plane(port_num.into())?;
        let planes_up = context.nic.port_states()?.iter().filter(|port| port.is_up()).count() as u64;
        let link_rate_bps = context.device.description.config.network.link_rate_bps;
        // SAFETY: the program gives room for the number.
        *unsafe { speed.as_mut() }.ok_or(EINVAL)? = planes_up.saturating_mul(link_rate_bps) / 100_000_000;
        Ok(())
    })
}

/// `query_port` of an extended context.
pub extern "C" fn query_port_extended(
    context: *mut IbvContext,
    port_num: u8,
    attr: *mut c_void,
    len: usize,
) -> c_int {
    query_port(context, port_num, attr, len)
}

/// # Safety
/// As in verbs.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_gid(
    context: *mut IbvContext,
    port_num: u8,
    index: c_int,
    gid: *mut IbvGid,
) -> c_int {
    m1(|| {
        let context = CONTEXTS.get(context)?;
        context.plane(port_num.into())?;
        if !(0..device::GIDS as c_int).contains(&index) {
            return Err(EINVAL);
        }
        // SAFETY: the program gives room for a GID.
        *unsafe { gid.as_mut() }.ok_or(EINVAL)? = context.device.gid();
        Ok(0)
    })
}

fn gid_entry(context: &context::Context, port_num: u32, gid_index: u32) -> errno::Result<IbvGidEntry> {
    let plane = context.plane(port_num)?;
    if gid_index >= device::GIDS {
        return Err(EINVAL);
    }
    let ports = context.nic.port_states()?;
    let interface = ports.get(plane).and_then(|port| port.interface.as_deref());
    let index = interface.and_then(|name| openmrc_sockets::interface::index_of(name).ok());
    Ok(IbvGidEntry {
        gid: context.device.gid(),
        gid_index,
        port_num,
        gid_type: IBV_GID_TYPE_ROCE_V2,
        ndev_ifindex: index.unwrap_or(0),
    })
}

/// # Safety
/// As in verbs.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn _ibv_query_gid_ex(
    context: *mut IbvContext,
    port_num: u32,
    gid_index: u32,
    entry: *mut IbvGidEntry,
    flags: u32,
    entry_size: usize,
) -> c_int {
    e0(|| {
        let context = CONTEXTS.get(context)?;
        if flags != 0 || entry_size < size_of::<IbvGidEntry>() || entry.is_null() {
            return Err(EINVAL);
        }
        let found = gid_entry(&context, port_num, gid_index)?;
        // SAFETY: the program gives room for an entry of this size.
        unsafe {
            ptr::write_bytes(entry.cast::<u8>(), 0, entry_size);
            entry.write(found);
        }
        Ok(())
    })
}

/// # Safety
/// As in verbs.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn _ibv_query_gid_table(
    context: *mut IbvContext,
    entries: *mut IbvGidEntry,
    max_entries: usize,
    flags: u32,
    entry_size: usize,
) -> isize {
    let written = minus(|| {
        let context = CONTEXTS.get(context)?;
        if flags != 0 || entry_size < size_of::<IbvGidEntry>() || entries.is_null() {
            return Err(EINVAL);
        }
        let n = device::GIDS as usize;
        if max_entries < n {
            return Err(EINVAL);
        }
        for index in 0..n {
            let found = gid_entry(&context, 1, index as u32)?;
            // SAFETY: the program gives an array of entries of this size.
            unsafe {
                let entry = entries.byte_add(index * entry_size);
                ptr::write_bytes(entry.cast::<u8>(), 0, entry_size);
                entry.write_unaligned(found);
            }
        }
        Ok(n as c_int)
    });
    written as isize
}

/// The type in the numbers of sysfs.
///
/// # Safety
/// As in verbs.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_gid_type(
    context: *mut IbvContext,
    port_num: u8,
    index: c_uint,
    gid_type: *mut c_int,
) -> c_int {
    /// RoCE v2.
    const SYSFS_ROCE_V2: c_int = 1;
    m1(|| {
        gid_entry(&*CONTEXTS.get(context)?, port_num.into(), index)?;
        // SAFETY: the program gives room for a number.
        *unsafe { gid_type.as_mut() }.ok_or(EINVAL)? = SYSFS_ROCE_V2;
        Ok(0)
    })
}

/// # Safety
/// As in verbs.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_pkey(
    context: *mut IbvContext,
    port_num: u8,
    index: c_int,
    pkey: *mut u16,
) -> c_int {
    m1(|| {
        CONTEXTS.get(context)?.plane(port_num.into())?;
        if index != 0 {
            return Err(EINVAL);
        }
        // SAFETY: the program gives room for a key.
        *unsafe { pkey.as_mut() }.ok_or(EINVAL)? = 0xFFFF;
        Ok(0)
    })
}

/// # Safety
/// As in verbs.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_get_pkey_index(context: *mut IbvContext, port_num: u8, pkey: u16) -> c_int {
    m1(|| {
        CONTEXTS.get(context)?.plane(port_num.into())?;
        if pkey == 0xFFFF { Ok(0) } else { Err(EINVAL) }
    })
}
