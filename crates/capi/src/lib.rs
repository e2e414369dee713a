//! The MRC C interface, and verbs for unmodified programs, over the software MRC NIC (docs/spec/c-interface.md). One
//! shared object, `libopenmrc.so.0`, has all symbols. It does nothing until a program asks for devices.
//!
//! | module | subject |
//! |---|---|
//! | `abi` | structures and constants, with their layouts checked |
//! | `mrc`, `ctl`, `verbs`, `refused`, `strings`, `kern` | the functions that programs call |
//! | `sysfs`, `interpose` | files of devices, for programs that look them up; the functions that take their paths |
//! | `device`, `config`, `interfaces` | which devices there are, what they report, addresses of peers |
//! | `open`, `context`, `memory`, `cq`, `qp`, `hint` | objects of both interfaces |
//! | `modify`, `post`, `built` | states of queue pairs; work requests, and those that calls build |
//! | `ev_events`, `notifier` | the events of paths for a controller, notifications |
//! | `told`, `guests` | what a person is told on standard error; libraries that a device is skipped for |
//! | `registry`, `events`, `errno`, `returns`, `process` | pointers of programs, waiting, errors and what functions
//! return, forks |

mod abi;
mod built;
mod config;
mod context;
mod cq;
mod ctl;
mod device;
mod errno;
mod ev_events;
mod events;
mod guests;
mod hint;
mod interfaces;
mod interpose;
mod kern;
mod memory;
mod modify;
mod mrc;
mod notifier;
mod open;
mod post;
mod process;
mod qp;
mod refused;
mod registry;
mod returns;
mod strings;
mod sysfs;
mod told;
mod verbs;
