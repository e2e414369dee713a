//! Opening and closing a device (docs/spec/c-interface.md, sections 7.3 and 7.6). Closing a device destroys every
//! object that is left on it.

use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use openmrc_nic as nic;
use parking_lot::Mutex;

use crate::abi::verbs::*;
use crate::context::{AsyncEvent, AsyncQueue, CONTEXTS, Context, Router};
use crate::device::Device;
use crate::errno::{Errno, Result};
use crate::ev_events::EvQueues;
use crate::{process, told};

/// Devices that share an address differ in their UDP port: base port + slot.
const LAST_SLOT: u8 = u8::MAX;

/// Opens a device; the address of its public part.
///
/// # Errors
/// The kernel's; EADDRINUSE if 256 contexts share its addresses.
pub fn open(device: &'static Device) -> Result<*mut IbvContext> {
    process::check()?;
    process::opens(report_fatal);
    let events = Arc::new(AsyncQueue::new()?);
    let (nic, base_port) = process::without_signals(|| open_nic(device))?;
    if !device.description.impairments.is_empty() {
        nic.set_impairments(device.description.impairments.clone(), device.description.seed)?;
    }
    let router = Arc::new(Router::default());
    router.add_queue(&events);
    let sink = Arc::clone(&router);
    nic.give_events_to(Box::new(move |event| sink.dispatch(event)));
    let ev_queues = Arc::new(EvQueues::default());
    // The device has the sink, and the profiles have the device: they are not kept from here.
    let (queues, profiles) = (Arc::clone(&ev_queues), Arc::downgrade(nic.profiles()));
    nic.give_path_events_to(Box::new(move |event| {
        if let Some(event) = profiles.upgrade().and_then(|profiles| profiles.event(&event)) {
            queues.push(&event);
        }
    }));
    let object = Box::into_raw(Box::new(public_part(device, events.fd())));
    // SAFETY: the object was just made; the pointer keeps the provenance of the whole.
    let context = unsafe { &raw mut (*object).context };
    let core = Context {
        device,
        nic,
        base_port,
        router,
        events,
        ev_queues,
        shown_cc: Mutex::default(),
        closed: AtomicBool::new(false),
        object: object.expose_provenance(),
    };
    CONTEXTS.insert(context.addr(), Arc::new(core));
    Ok(context)
}

/// Takes the first free slot.
fn open_nic(device: &Device) -> Result<(nic::Context, u16)> {
    let base = device.description.config.ports[0].udp_port;
    for slot in 0..=LAST_SLOT {
        let mut config = device.description.config.clone();
        let Some(udp_port) = base.checked_add(u16::from(slot)) else { break };
        config.ports.iter_mut().for_each(|port| port.udp_port = udp_port);
        config.number_slot = Some(slot);
        config.choices.acks_immediates = true;
        // Programs poll, or spin on memory, and wait for their own completions in between.
        config.choices.answers_behind_data = true;
        config.callers_drive = true;
        match nic::Device::new(config)?.open() {
            Ok(context) => return Ok((context, base)),
            Err(nic::Error::Os { source, .. }) if source.raw_os_error() == Some(libc::EADDRINUSE) => {}
            Err(error) => {
                // Nothing else tells the user which address or limit it was.
                let full = matches!(&error, nic::Error::Os { source, .. } if source.raw_os_error() == Some(libc::EMFILE));
                let hint = if full {
                    "; fewer evs_per_port, raise_descriptor_limit = true or io_uring = true, in OPENMRC_CONFIG help"
                } else {
                    ""
                };
                told::once(format!("device {}: {error}{hint}", device.name()));
                return Err(error.into());
            }
        }
    }
    let all = format!(
        "UDP ports {base} to {} are in use: an address has room for {} contexts",
        base.saturating_add(LAST_SLOT.into()),
        u16::from(LAST_SLOT) + 1
    );
    told::once(format!("device {}: {all}", device.name()));
    Err(Errno(libc::EADDRINUSE))
}

fn public_part(device: &'static Device, async_fd: c_int) -> VerbsContext {
    let mut members = [ptr::null_mut::<c_void>(); extended::COUNT];
    members[extended::QUERY_PORT] = crate::verbs::query_port_extended as *mut c_void;
    members[extended::CREATE_CQ_EX] = crate::verbs::create_cq_ex as *mut c_void;
    members[extended::QUERY_DEVICE_EX] = crate::verbs::query_device_ex as *mut c_void;
    members[extended::CREATE_QP_EX] = crate::verbs::create_qp_ex as *mut c_void;
    members[extended::SIZE] = ptr::without_provenance_mut(size_of::<VerbsContext>());
    let mut ops = [ptr::null_mut::<c_void>(); ops::COUNT];
    ops[ops::POLL_CQ] = crate::verbs::poll_cq as *mut c_void;
    ops[ops::REQ_NOTIFY_CQ] = crate::verbs::req_notify_cq as *mut c_void;
    ops[ops::POST_SEND] = crate::verbs::post_send as *mut c_void;
    ops[ops::POST_RECV] = crate::verbs::post_recv as *mut c_void;
    ops[ops::BIND_MW] = crate::verbs::refuse as *mut c_void;
    ops[ops::DEALLOC_MW] = crate::verbs::refuse as *mut c_void;
    ops[ops::POST_SRQ_RECV] = crate::verbs::refuse as *mut c_void;
    VerbsContext {
        members,
        context: IbvContext {
            device: (&raw const device.public).cast_mut(),
            ops,
            // No kernel takes commands. Programs duplicate the descriptor before `ibv_import_device` refuses it.
            cmd_fd: async_fd,
            async_fd,
            num_comp_vectors: 1,
            mutex: Opaque([0; _]),
            abi_compat: ptr::without_provenance_mut(usize::MAX),
        },
    }
}

/// Closes a device and everything on it.
///
/// # Errors
/// EINVAL if it is not open.
pub fn close(context: *mut IbvContext) -> Result<()> {
    let core = CONTEXTS.remove(context, |_| Ok(()))?;
    core.closed.store(true, Ordering::Release);
    crate::mrc::close_of(&core);
    crate::qp::destroy_of(&core);
    crate::cq::destroy_of(&core);
    crate::memory::destroy_of(&core);
    core.events.close();
    core.nic.close();
    // SAFETY: made by `open` and removed once; the program may not use it any more.
    drop(unsafe { Box::from_raw(ptr::with_exposed_provenance_mut::<VerbsContext>(core.object)) });
    Ok(())
}

/// Every context gets DEVICE_FATAL.
fn report_fatal() {
    let event = AsyncEvent::without_object(IBV_EVENT_DEVICE_FATAL, 0);
    for (_, context) in CONTEXTS.all(|_| true) {
        context.router.push_to_all(event.clone());
    }
}
