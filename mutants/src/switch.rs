//! Which fault is on. Added to each crate into which faults are planted.

use std::fs::OpenOptions;
use std::io::Write as _;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};

/// Nobody has asked yet.
const UNKNOWN: u32 = u32::MAX;
/// No fault is on: the sites that are reached are written down.
const COVER: u32 = u32::MAX - 1;
/// More sites than any tree has.
const SITES: usize = 1 << 16;

static FAULT: AtomicU32 = AtomicU32::new(UNKNOWN);
static REACHED: [AtomicBool; SITES] = [const { AtomicBool::new(false) }; SITES];
static PATH: OnceLock<String> = OnceLock::new();

/// The number of the fault that is on, or 0.
#[inline]
pub fn fault(site: u32) -> u32 {
    match FAULT.load(Relaxed) {
        UNKNOWN => begin(site),
        COVER => reach(site),
        fault => fault,
    }
}

#[cold]
fn begin(site: u32) -> u32 {
    let fault = match std::env::var_os("MUTANT_COVER") {
        Some(_) => COVER,
        None => std::env::var("MUTANT").map_or(0, |number| number.parse().expect("MUTANT: a number")),
    };
    FAULT.store(fault, Relaxed);
    self::fault(site)
}

fn reach(site: u32) -> u32 {
    if !REACHED[site as usize].swap(true, Relaxed) {
        let path = PATH.get_or_init(|| std::env::var("MUTANT_COVER").expect("MUTANT_COVER: text"));
        let mut file = OpenOptions::new().create(true).append(true).open(path).expect("MUTANT_COVER: a file");
        writeln!(file, "{site}").expect("MUTANT_COVER: room for a line");
    }
    0
}
