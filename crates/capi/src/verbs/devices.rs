//! Devices of verbs (docs/spec/c-interface.md, section 7.2).

use std::ffi::{c_char, c_int};
use std::ptr;

use crate::abi::verbs::*;
use crate::errno;
use crate::returns::{m1, pointer};
use crate::{device, guests, open};

/// # Safety
/// As in verbs.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_get_device_list(num_devices: *mut c_int) -> *mut *mut IbvDevice {
    pointer(|| {
        let devices = device::all()?;
        let mut list: Vec<*mut IbvDevice> =
            devices.iter().map(|device| (&raw const device.public).cast_mut()).collect();
        list.push(ptr::null_mut());
        // SAFETY: the array is the program's until it calls `ibv_free_device_list`.
        unsafe {
            let bytes = size_of_val(list.as_slice());
            let array = libc::malloc(bytes).cast::<*mut IbvDevice>();
            if array.is_null() {
                return Err(errno::ENOMEM);
            }
            ptr::copy_nonoverlapping(list.as_ptr(), array, list.len());
            if let Some(num_devices) = num_devices.as_mut() {
                *num_devices = devices.len() as c_int;
            }
            Ok(array)
        }
    })
}

/// # Safety
/// As in verbs.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_free_device_list(list: *mut *mut IbvDevice) {
    // SAFETY: made by malloc in `ibv_get_device_list`, or null.
    unsafe { libc::free(list.cast()) };
}

/// # Safety
/// As in verbs.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_get_device_name(device: *mut IbvDevice) -> *const c_char {
    pointer(|| Ok(device::at(device)?.public.name.as_ptr().cast_mut())).cast_const()
}

/// # Safety
/// As in verbs.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_get_device_guid(device: *mut IbvDevice) -> u64 {
    device::at(device).map_or(0, |device| device.guid())
}

/// # Safety
/// As in verbs.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_get_device_index(_device: *mut IbvDevice) -> c_int {
    -1
}

/// # Safety
/// As in verbs.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_open_device(device: *mut IbvDevice) -> *mut IbvContext {
    pointer(|| {
        let device = device::at(device)?;
        if guests::is_refused(device.name()) { Err(errno::EOPNOTSUPP) } else { open::open(device) }
    })
}

/// # Safety
/// As in verbs.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_close_device(context: *mut IbvContext) -> c_int {
    m1(|| open::close(context).map(|()| 0))
}
