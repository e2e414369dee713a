//! Arrays of path indices. An index takes one byte if there are at most 256 paths: a window of 1,024 packets has an
//! entry per packet.

use serde::{Deserialize, Serialize};

/// A path's index in its queue pair.
pub(in crate::mrc) type EvIndex = u16;

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(in crate::mrc) enum IndexArray {
    Narrow(Box<[u8]>),
    Wide(Box<[u16]>),
}

impl IndexArray {
    /// An array of `len` zeros, for indices below `paths`.
    pub fn new(len: usize, paths: usize) -> Self {
        if paths <= 1 << u8::BITS {
            IndexArray::Narrow(vec![0; len].into())
        } else {
            IndexArray::Wide(vec![0; len].into())
        }
    }

    #[inline(always)]
    pub fn get(&self, place: usize) -> EvIndex {
        match self {
            IndexArray::Narrow(list) => list[place].into(),
            IndexArray::Wide(list) => list[place],
        }
    }

    #[inline(always)]
    pub fn set(&mut self, place: usize, index: EvIndex) {
        match self {
            IndexArray::Narrow(list) => list[place] = index as u8,
            IndexArray::Wide(list) => list[place] = index,
        }
    }

    pub fn prefetch(&self, place: usize) {
        match self {
            IndexArray::Narrow(list) => prefetch_index::prefetch_index(list, place),
            IndexArray::Wide(list) => prefetch_index::prefetch_index(list, place),
        }
    }

    pub fn heap_bytes(&self) -> usize {
        match self {
            IndexArray::Narrow(list) => size_of_val(&**list),
            IndexArray::Wide(list) => size_of_val(&**list),
        }
    }
}
