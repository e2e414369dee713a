//! The primitives of [`crate::handover`]. The test that checks it in all interleavings has others in their place.

pub(crate) use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering, fence};

pub(crate) use parking_lot::Mutex;
