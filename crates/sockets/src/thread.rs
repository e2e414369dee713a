//! Settings of a thread that serves sockets. Each improves speed or capacity; if the system refuses one, the program
//! goes on without it.

use std::mem;

/// Ends the sleeps of the calling thread on time. By default the kernel may prolong each by 50 us (timer slack).
pub fn use_exact_timers() {
    // SAFETY: no pointers.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1) };
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
