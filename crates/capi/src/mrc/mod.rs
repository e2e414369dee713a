//! The functions of `mrc.h` (docs/spec/c-interface.md, section 3).

mod completions;
mod context;
mod events;
mod hints;
mod qps;

pub use completions::create_cq;
pub use context::{close_of, mrc_query_version};

use std::ffi::c_void;
use std::sync::Arc;

use crate::context::{AsyncQueue, Context};
use crate::cq::Api;
use crate::registry::{Marked, Registry};

pub static MRC_CONTEXTS: Registry<MrcContext> = Registry::new();

type MrcContextObject = Marked<(), MrcContext>;

/// The structures of which programs know only the address.
pub type Handle = *mut c_void;

/// A context of MRC on an open device: the parent of its own queues, queue pairs and hints.
pub struct MrcContext {
    pub context: Arc<Context>,
    /// The version that the program was compiled for; 0 is the newest.
    pub api_version: u32,
    queue: Arc<AsyncQueue>,
}

/// Whether an object belongs to an MRC context.
fn of(parent: usize) -> impl Fn(&Context, Api, usize) -> bool {
    move |_, api, of| api == Api::Mrc && of == parent
}
