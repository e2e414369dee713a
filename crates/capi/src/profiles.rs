//! Profiles of a device, by the ids that programs pick (spec: C interface, section 6.4).

use crate::errno::{EINVAL, Result};

/// The profiles of one open device.
#[derive(Default)]
pub struct Profiles;

impl Profiles {
    /// The NIC's number of an EV profile that is ONLINE.
    pub fn ev_number(&self, id: u64) -> Result<u16> {
        if id == 0 { Ok(0) } else { Err(EINVAL) }
    }

    /// The NIC's number of a CC profile that is ONLINE.
    pub fn cc_number(&self, id: u64) -> Result<u16> {
        if id == 0 { Ok(0) } else { Err(EINVAL) }
    }
}
