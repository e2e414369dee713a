//! What a partition has for each of its hosts.

use std::ops::{Index, IndexMut, Range};

/// Values of a partition's hosts, by their numbers among all hosts.
pub(super) struct ByHost<T> {
    first: u32,
    list: Vec<T>,
}

impl<T> ByHost<T> {
    /// A value for each of these hosts.
    pub fn new(hosts: Range<u32>, make: impl Fn() -> T) -> Self {
        ByHost { first: hosts.start, list: hosts.map(|_| make()).collect() }
    }

    /// A value for each of these hosts, which may depend on its number.
    pub fn by_number(hosts: Range<u32>, make: impl Fn(u32) -> T) -> Self {
        ByHost { first: hosts.start, list: hosts.map(make).collect() }
    }

    /// No values.
    pub fn empty() -> Self {
        ByHost { first: 0, list: Vec::new() }
    }

    /// Whether there are none.
    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// The value of a host, if it is one of these.
    #[inline(always)]
    pub fn get(&self, host: u32) -> Option<&T> {
        self.list.get(host.wrapping_sub(self.first) as usize)
    }

    /// The same, to change it.
    pub fn get_mut(&mut self, host: u32) -> Option<&mut T> {
        self.list.get_mut(host.wrapping_sub(self.first) as usize)
    }

    /// All values, to change them, with their hosts.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (u32, &mut T)> {
        (self.first..).zip(&mut self.list)
    }

    /// All values.
    pub fn iter(&self) -> std::slice::Iter<'_, T> {
        self.list.iter()
    }
}

impl<T> Index<u32> for ByHost<T> {
    type Output = T;
    #[inline(always)]
    fn index(&self, host: u32) -> &T {
        &self.list[host.wrapping_sub(self.first) as usize]
    }
}

impl<T> IndexMut<u32> for ByHost<T> {
    #[inline(always)]
    fn index_mut(&mut self, host: u32) -> &mut T {
        &mut self.list[host.wrapping_sub(self.first) as usize]
    }
}
