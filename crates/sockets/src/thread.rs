//! Settings of a thread that serves sockets. Each improves speed or capacity; if the system refuses one, the program
//! goes on without it.

use std::mem;

/// `struct sched_attr` of `<linux/sched/types.h>`, its first version.
#[repr(C)]
#[derive(Default)]
struct SchedAttr {
    size: u32,
    policy: u32,
    flags: u64,
    nice: i32,
    priority: u32,
    runtime: u64,
    deadline: u64,
    period: u64,
}

/// Ends the sleeps of the calling thread on time. By default the kernel may prolong each by 50 us (timer slack).
pub fn use_exact_timers() {
    // SAFETY: no pointers.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1) };
}

/// Lets the calling thread interrupt a running thread of the same priority when it wakes up. Linux 6.12 and later do so
/// for a thread that asks for shorter slices of processor time than the other has, which is some milliseconds by default.
/// The thread gets no more processor time than before.
pub fn use_short_slices() {
    /// The shortest that the kernel grants.
    const SLICE_NS: u64 = 100_000;
    let size = size_of::<SchedAttr>() as u32;
    let mut attr = SchedAttr { size, ..SchedAttr::default() };
    // SAFETY: the kernel writes up to `size` bytes of the first structure, and reads as many of it.
    unsafe {
        if libc::syscall(libc::SYS_sched_getattr, 0, &raw mut attr, size, 0) == 0
            && attr.policy == libc::SCHED_OTHER as u32
        {
            attr.runtime = SLICE_NS;
            libc::syscall(libc::SYS_sched_setattr, 0, &raw const attr, 0);
        }
    }
}

/// The processor that the calling thread runs on, at this moment.
#[inline]
pub fn current_cpu() -> u32 {
    // SAFETY: no arguments.
    unsafe { libc::sched_getcpu() as u32 }
}

/// Keeps the calling thread on one processor.
pub fn run_on_cpu(cpu: usize) {
    if cpu >= libc::CPU_SETSIZE as usize {
        return;
    }
    // SAFETY: an all-zero set is the empty set; the index was checked; the call only reads the set.
    unsafe {
        let mut set: libc::cpu_set_t = mem::zeroed();
        libc::CPU_SET(cpu, &mut set);
        libc::sched_setaffinity(0, size_of_val(&set), &set);
    }
}

/// Raises the limit of open descriptors to the process's hard limit.
pub fn raise_descriptor_limit() {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` is a valid place for the result and then a valid request.
    unsafe {
        if libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) == 0 && limit.rlim_cur < limit.rlim_max {
            limit.rlim_cur = limit.rlim_max;
            libc::setrlimit(libc::RLIMIT_NOFILE, &limit);
        }
    }
}

/// The limit of open descriptors, as it is now.
pub fn descriptor_limit() -> usize {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` is a valid place for the result.
    unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) };
    limit.rlim_cur.try_into().unwrap_or(usize::MAX)
}
