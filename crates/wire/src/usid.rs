//! SRv6 micro-segment addresses, F3216: a path as one IPv6 address (docs/spec/wire.md, "SRv6 uSID path addresses"; RFC
//! 9800, NEXT-CSID flavor with a 32-bit locator block and 16-bit identifiers).
//!
//! ```text
//! | block, 32 bits | uSID 1 | uSID 2 | uSID 3 | uSID 4 | uSID 5 | uSID 6 |    16 bits each, 0 ends the list
//! ```

use core::net::Ipv6Addr;

/// Number of uSIDs that an address holds.
pub const MAX: usize = 6;

/// First uSID of a switch (the global identifiers block).
pub const GLOBAL_MIN: u16 = 0x0001;
/// Last uSID of a switch.
pub const GLOBAL_MAX: u16 = 0xDFFF;
/// First uSID of a switch's own links (the local identifiers block), up to 0xFFFF.
pub const LOCAL_MIN: u16 = 0xE000;

const BLOCK_SHIFT: u32 = 96;
const USID_BITS: u32 = 16;
/// The bits after the block.
const LIST: u128 = (1 << BLOCK_SHIFT) - 1;

/// Why a list of uSIDs cannot be an address, or an address is not a list of uSIDs.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum UsidError {
    /// More than six.
    #[error("{0} uSIDs do not fit one address, at most {MAX} do")]
    TooMany(usize),
    /// None.
    #[error("a path needs at least one uSID")]
    Empty,
    /// A zero before the last uSID. A switch whose next uSID is zero ends the path, or drops the packet.
    #[error("uSID {0} is 0, but another one follows it")]
    Hole(usize),
}

/// A path address: an IPv6 destination whose low 96 bits are the uSIDs that remain.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct UsidAddress(u128);

impl UsidAddress {
    /// The address of a path: `block` is the fabric's 32-bit prefix, `usids` are visited in order.
    ///
    /// # Errors
    /// If the list is empty, longer than [`MAX`], or holds a zero.
    pub const fn new(block: u32, usids: &[u16]) -> Result<Self, UsidError> {
        if usids.is_empty() {
            return Err(UsidError::Empty);
        }
        if usids.len() > MAX {
            return Err(UsidError::TooMany(usids.len()));
        }
        let mut address = (block as u128) << BLOCK_SHIFT;
        let mut i = 0;
        while i < usids.len() {
            if usids[i] == 0 {
                return Err(UsidError::Hole(i + 1));
            }
            address |= (usids[i] as u128) << slot_shift(i);
            i += 1;
        }
        Ok(UsidAddress(address))
    }

    /// Reads the address of a packet.
    ///
    /// # Errors
    /// If it holds no uSID, or one after a zero.
    pub const fn parse(address: Ipv6Addr) -> Result<Self, UsidError> {
        let path = UsidAddress(address.to_bits());
        if path.0 & LIST == 0 {
            return Err(UsidError::Empty);
        }
        let len = path.len();
        if path.0 & (LIST >> (len as u32 * USID_BITS)) != 0 {
            return Err(UsidError::Hole(len + 1));
        }
        Ok(path)
    }

    /// The destination address of the outer header.
    #[inline]
    pub const fn to_ipv6(self) -> Ipv6Addr {
        Ipv6Addr::from_bits(self.0)
    }

    /// The 32-bit locator block.
    #[inline]
    pub const fn block(self) -> u32 {
        (self.0 >> BLOCK_SHIFT) as u32
    }

    /// The uSID at index `i`, 0..6; 0 after the end of the list.
    #[inline]
    pub const fn get(self, i: usize) -> u16 {
        if i >= MAX { 0 } else { (self.0 >> slot_shift(i)) as u16 }
    }

    /// The uSID that routes the packet now; 0 at the end of the path.
    #[inline]
    pub const fn active(self) -> u16 {
        self.get(0)
    }

    /// Removes the active uSID, as a uN switch does: the others move up, and a zero is appended.
    #[inline]
    #[must_use]
    pub const fn shift(self) -> Self {
        UsidAddress(self.0 & !LIST | (self.0 << USID_BITS) & LIST)
    }

    /// Number of uSIDs before the first zero.
    #[inline]
    pub const fn len(self) -> usize {
        let mut len = 0;
        while self.get(len) != 0 {
            len += 1;
        }
        len
    }

    /// Whether the path has ended.
    #[inline]
    pub const fn is_empty(self) -> bool {
        self.active() == 0
    }

    /// The remaining uSIDs, in order.
    #[inline]
    pub fn iter(self) -> impl ExactSizeIterator<Item = u16> + Clone {
        (0..self.len()).map(move |i| self.get(i))
    }

    /// The /48 prefix `block:usid::` that a switch matches for a uSID.
    pub const fn prefix(block: u32, usid: u16) -> Ipv6Addr {
        Ipv6Addr::from_bits((block as u128) << BLOCK_SHIFT | (usid as u128) << slot_shift(0))
    }
}

/// Whether a uSID names a switch.
pub const fn is_global(usid: u16) -> bool {
    usid >= GLOBAL_MIN && usid <= GLOBAL_MAX
}

/// Whether a uSID names one of a switch's own links.
pub const fn is_local(usid: u16) -> bool {
    usid >= LOCAL_MIN
}

#[inline]
const fn slot_shift(i: usize) -> u32 {
    BLOCK_SHIFT - USID_BITS * (i as u32 + 1)
}

impl core::fmt::Debug for UsidAddress {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "UsidAddress({self})")
    }
}

impl core::fmt::Display for UsidAddress {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        self.to_ipv6().fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const BLOCK: u32 = 0x5F00_0000;

    #[test]
    fn a_two_tier_path_is_written_in_order() {
        let path = UsidAddress::new(BLOCK, &[0x0011, 0x0102, 0x0012, 0xE00C]).unwrap();
        assert_eq!(path.to_ipv6(), "5f00:0:11:102:12:e00c::".parse::<Ipv6Addr>().unwrap());
        assert_eq!(path.to_string(), "5f00:0:11:102:12:e00c::");
        assert_eq!(format!("{path:?}"), "UsidAddress(5f00:0:11:102:12:e00c::)");
        assert_eq!(path.active(), 0x0011);
        assert_eq!(path.block(), BLOCK);
        assert!(path.iter().eq([0x0011, 0x0102, 0x0012, 0xE00C]));
        assert_eq!(path.shift().to_ipv6(), "5f00:0:102:12:e00c::".parse::<Ipv6Addr>().unwrap());
        assert_eq!(UsidAddress::prefix(BLOCK, 0x0102), "5f00:0:102::".parse::<Ipv6Addr>().unwrap());
    }

    #[test]
    fn invalid_lists_are_refused() {
        assert_eq!(UsidAddress::new(BLOCK, &[]), Err(UsidError::Empty));
        assert_eq!(UsidAddress::new(BLOCK, &[1; 7]), Err(UsidError::TooMany(7)));
        assert_eq!(UsidAddress::new(BLOCK, &[1, 0, 2]), Err(UsidError::Hole(2)));
        let parse = |s: &str| UsidAddress::parse(s.parse().unwrap());
        assert_eq!(parse("5f00::"), Err(UsidError::Empty));
        assert_eq!(parse("5f00:0:1:0:2::"), Err(UsidError::Hole(2)));
        assert_eq!(parse("5f00:0:0:1::"), Err(UsidError::Hole(1)));
    }

    #[test]
    fn switches_and_links_have_separate_ranges() {
        assert!(!is_global(0) && is_global(1) && is_global(0xDFFF) && !is_global(0xE000));
        assert!(!is_local(0xDFFF) && is_local(0xE000) && is_local(0xFFFF));
    }

    proptest! {
        #[test]
        fn shifting_visits_the_list_in_order(block: u32, usids in prop::collection::vec(1..=u16::MAX, 1..=MAX)) {
            let path = UsidAddress::new(block, &usids).unwrap();
            prop_assert_eq!(UsidAddress::parse(path.to_ipv6()), Ok(path));
            prop_assert!(path.iter().eq(usids.iter().copied()));
            let mut at = path;
            for &usid in &usids {
                prop_assert!(!at.is_empty());
                prop_assert_eq!(at.active(), usid);
                prop_assert_eq!(at.block(), block);
                at = at.shift();
            }
            prop_assert!(at.is_empty());
        }

        #[test]
        fn any_address_can_be_parsed(bits: u128) {
            match UsidAddress::parse(Ipv6Addr::from_bits(bits)) {
                Ok(path) => prop_assert_eq!(path.iter().len(), path.len()),
                Err(UsidError::Hole(place)) => prop_assert!(place <= MAX),
                Err(error) => prop_assert_eq!(error, UsidError::Empty),
            }
        }
    }
}
