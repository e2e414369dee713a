//! The kernel's clocks, in nanoseconds.

/// Nanoseconds of `CLOCK_MONOTONIC`, which all processes of a machine share.
#[inline]
pub fn monotonic_ns() -> u64 {
    clock_ns(libc::CLOCK_MONOTONIC)
}

/// Nanoseconds of `CLOCK_REALTIME`, with which the kernel stamps received messages.
#[inline]
pub fn realtime_ns() -> u64 {
    clock_ns(libc::CLOCK_REALTIME)
}

#[inline]
fn clock_ns(clock: libc::clockid_t) -> u64 {
    let mut ts = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `ts` is a valid place for the result; these clocks always exist on Linux.
    unsafe { libc::clock_gettime(clock, &mut ts) };
    from_timespec(ts)
}

/// Nanoseconds of a time stamp.
#[inline]
pub(crate) fn from_timespec(ts: libc::timespec) -> u64 {
    ts.tv_sec as u64 * 1_000_000_000 + ts.tv_nsec as u64
}

/// A time-out in the kernel's form.
pub(crate) fn to_timespec(timeout: std::time::Duration) -> libc::timespec {
    libc::timespec {
        tv_sec: timeout.as_secs().min(i64::MAX as u64) as libc::time_t,
        tv_nsec: timeout.subsec_nanos() as _,
    }
}
