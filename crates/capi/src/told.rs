//! What a person is told on standard error: why a device was skipped or a call was refused, once per process and reason.
//! Programs often say only that something failed, or take another transport without a word. `OPENMRC_QUIET=1` turns it
//! off.

use std::collections::BTreeSet;
use std::ffi::c_int;

use parking_lot::Mutex;

/// Reasons that are remembered. A program with more of them has been told enough.
const MOST: usize = 256;

/// Says it, unless it was said before.
pub fn once(line: String) {
    static SAID: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
    if std::env::var_os("OPENMRC_QUIET").is_some_and(|value| !value.is_empty() && value != "0") {
        return;
    }
    // In the child of a fork it may be locked for ever.
    let Some(mut said) = SAID.try_lock() else { return };
    if said.len() < MOST && said.insert(line.clone()) {
        eprintln!("openmrc: {line}");
    }
}

/// What MRC has not, and what somebody asked for.
pub fn refused(subject: &str, what: &str, instead: &str) {
    once(format!("{subject}: {what} refused, {instead}"));
}

/// An operation's name.
pub fn operation(opcode: c_int) -> &'static str {
    const NAMES: [&str; 16] = [
        "RDMA_WRITE",
        "RDMA_WRITE_WITH_IMM",
        "SEND",
        "SEND_WITH_IMM",
        "RDMA_READ",
        "ATOMIC_CMP_AND_SWP",
        "ATOMIC_FETCH_AND_ADD",
        "LOCAL_INV",
        "BIND_MW",
        "SEND_WITH_INV",
        "TSO",
        "DRIVER1",
        "an unknown operation",
        "an unknown operation",
        "FLUSH",
        "ATOMIC_WRITE",
    ];
    usize::try_from(opcode).ok().and_then(|i| NAMES.get(i)).copied().unwrap_or("an unknown operation")
}

/// The name of a type of queue pair.
pub fn qp_type(number: c_int) -> &'static str {
    match number {
        2 => "RC",
        3 => "UC",
        4 => "UD",
        8 => "RAW_PACKET",
        9 | 10 => "XRC",
        0xFF => "a type of a vendor",
        _ => "an unknown type",
    }
}
