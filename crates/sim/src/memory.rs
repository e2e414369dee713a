//! Memory of the simulated hosts: message `i` is written to the 4 GiB that begin at address `i << 32`.

/// The key of every host's memory.
pub(crate) const RKEY: u32 = 1;

/// The address of a message's first byte.
pub(crate) fn address_of(message: u32) -> u64 {
    u64::from(message) << 32
}

/// The message that an address belongs to.
#[inline]
pub(crate) fn message_at(address: u64) -> u32 {
    (address >> 32) as u32
}
