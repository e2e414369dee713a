//! Names of numbers, and conversions of rates. They take none of our objects; they are here for programs that are linked
//! without libibverbs.

use std::ffi::{CStr, c_char, c_int};

fn named(names: &[&'static CStr], number: c_int, otherwise: &'static CStr) -> *const c_char {
    usize::try_from(number).ok().and_then(|i| names.get(i).copied()).unwrap_or(otherwise).as_ptr()
}

#[unsafe(no_mangle)]
pub extern "C" fn ibv_wc_status_str(status: c_int) -> *const c_char {
    const NAMES: [&CStr; 24] = [
        c"success",
        c"local length error",
        c"local QP operation error",
        c"local EE context operation error",
        c"local protection error",
        c"work request flushed",
        c"memory window bind error",
        c"bad response",
        c"local access error",
        c"remote invalid request",
        c"remote access error",
        c"remote operation error",
        c"retries exceeded",
        c"receiver not ready: retries exceeded",
        c"local RDD violation",
        c"remote invalid RD request",
        c"remote aborted",
        c"invalid EE context number",
        c"invalid EE context state",
        c"fatal error",
        c"response timeout",
        c"general error",
        c"tag matching error",
        c"tag matching rendezvous incomplete",
    ];
    named(&NAMES, status, c"unknown status")
}

#[unsafe(no_mangle)]
pub extern "C" fn ibv_event_type_str(event: c_int) -> *const c_char {
    const NAMES: [&CStr; 20] = [
        c"completion queue error",
        c"queue pair error",
        c"invalid request",
        c"access violation",
        c"communication established",
        c"send queue drained",
        c"path migrated",
        c"path migration failed",
        c"device error",
        c"port active",
        c"port error",
        c"LID changed",
        c"P_Key table changed",
        c"subnet manager changed",
        c"shared receive queue error",
        c"shared receive queue below its limit",
        c"last work request reached",
        c"client must register again",
        c"GID table changed",
        c"work queue error",
    ];
    named(&NAMES, event, c"unknown event")
}

#[unsafe(no_mangle)]
pub extern "C" fn ibv_node_type_str(node_type: c_int) -> *const c_char {
    const NAMES: [&CStr; 8] = [
        c"unknown",
        c"InfiniBand channel adapter",
        c"InfiniBand switch",
        c"InfiniBand router",
        c"iWARP NIC",
        c"usNIC",
        c"usNIC UDP",
        c"unspecified",
    ];
    named(&NAMES, node_type, c"unknown")
}

#[unsafe(no_mangle)]
pub extern "C" fn ibv_port_state_str(state: c_int) -> *const c_char {
    const NAMES: [&CStr; 6] =
        [c"PORT_NOP", c"PORT_DOWN", c"PORT_INIT", c"PORT_ARMED", c"PORT_ACTIVE", c"PORT_ACTIVE_DEFER"];
    named(&NAMES, state, c"invalid state")
}

/// `enum ibv_rate`, the multiple of 2.5 Gb/s (0: none), and Mb/s.
const RATES: [(c_int, c_int, c_int); 21] = [
    (2, 1, 2_500),
    (5, 2, 5_000),
    (3, 4, 10_000),
    (6, 8, 20_000),
    (4, 12, 30_000),
    (7, 16, 40_000),
    (8, 24, 60_000),
    (9, 32, 80_000),
    (10, 48, 120_000),
    (11, 0, 14_062),
    (12, 0, 56_250),
    (13, 0, 112_500),
    (14, 0, 168_750),
    (15, 10, 25_781),
    (16, 40, 103_125),
    (17, 80, 206_250),
    (18, 120, 309_375),
    (19, 11, 28_125),
    (20, 20, 50_000),
    (21, 160, 400_000),
    (22, 240, 600_000),
];

#[unsafe(no_mangle)]
pub extern "C" fn ibv_rate_to_mult(rate: c_int) -> c_int {
    RATES.iter().find(|each| each.0 == rate && each.1 > 0).map_or(-1, |each| each.1)
}

#[unsafe(no_mangle)]
pub extern "C" fn mult_to_ibv_rate(mult: c_int) -> c_int {
    RATES.iter().find(|each| each.1 == mult && mult > 0).map_or(0, |each| each.0)
}

#[unsafe(no_mangle)]
pub extern "C" fn ibv_rate_to_mbps(rate: c_int) -> c_int {
    RATES.iter().find(|each| each.0 == rate).map_or(-1, |each| each.2)
}

#[unsafe(no_mangle)]
pub extern "C" fn mbps_to_ibv_rate(mbps: c_int) -> c_int {
    RATES.iter().find(|each| each.2 == mbps).map_or(0, |each| each.0)
}

/// Forks need nothing: no memory is pinned.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_dontfork_range(_base: *mut std::ffi::c_void, _size: usize) -> c_int {
    0
}

/// As [`ibv_dontfork_range`].
#[unsafe(no_mangle)]
pub extern "C" fn ibv_dofork_range(_base: *mut std::ffi::c_void, _size: usize) -> c_int {
    0
}
