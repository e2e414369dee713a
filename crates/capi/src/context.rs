//! An open device (spec: C interface, sections 7.3, 7.4 and 7.6). Contexts of verbs and of MRC share it.

use std::collections::HashMap;
use std::ffi::{c_int, c_void};
use std::net::{IpAddr, SocketAddr};
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use openmrc_nic as nic;
use openmrc_transport::Fatal;
use parking_lot::Mutex;

use crate::abi::verbs::*;
use crate::device::{self, Device};
use crate::errno::{EINVAL, Errno, Result};
use crate::events::{Acknowledged, EventQueue};
use crate::profiles::Profiles;
use crate::registry::Registry;
use crate::{interfaces, process};

pub static CONTEXTS: Registry<Context> = Registry::new();

/// Devices that share an address differ in their UDP port: base port + slot.
const SLOTS: u8 = 64;
/// The slot is the upper six bits of a queue pair's number.
const SLOT_SHIFT: u32 = 18;

/// Port events that wait for a program that does not take them.
const MOST_PORT_EVENTS: usize = 1024;

/// An asynchronous event: its type, and the address of its object or the number of its port.
#[derive(Clone)]
pub struct AsyncEvent {
    pub event_type: c_int,
    pub element: u64,
    /// Counts it until the program acknowledges it; none for events of ports and of the device.
    pub acks: Option<Arc<Acknowledged>>,
}

impl AsyncEvent {
    fn without_object(event_type: c_int, element: u64) -> Self {
        AsyncEvent { event_type, element, acks: None }
    }

    /// Whether its object is at this address.
    pub fn is_of(&self, object: usize) -> bool {
        self.acks.is_some() && self.element == object as u64
    }
}

/// A queue of asynchronous events: one of a verbs context, one of each MRC context.
pub type AsyncQueue = EventQueue<AsyncEvent>;

/// Waits for the next event, whose object then waits for its acknowledgement.
///
/// # Errors
/// As [`EventQueue::wait`].
pub fn next_event(queue: &AsyncQueue) -> Result<AsyncEvent> {
    queue.wait(|event| event.acks.iter().for_each(|acks| acks.got()))
}

/// Where events of an object go.
pub struct Target {
    pub queue: Arc<AsyncQueue>,
    /// The object's address.
    pub object: usize,
    /// Where a queue pair's public part says its state; 0 if it has none.
    pub state: usize,
    pub acks: Option<Arc<Acknowledged>>,
}

impl Target {
    fn tell(&self, event_type: c_int) {
        let element = self.object as u64;
        self.queue.push(AsyncEvent { event_type, element, acks: self.acks.clone() });
    }
}

/// Finds the program's objects for events of the NIC. Its locks are taken with the engine's lock held.
#[derive(Default)]
pub struct Router {
    /// By queue pair number.
    pub qps: Mutex<HashMap<u32, Target>>,
    /// By handle of the completion queue.
    pub cqs: Mutex<HashMap<u32, Target>>,
    /// Everybody who is told of ports.
    queues: Mutex<Vec<Arc<AsyncQueue>>>,
}

impl Router {
    pub fn add_queue(&self, queue: &Arc<AsyncQueue>) {
        self.queues.lock().push(Arc::clone(queue));
    }

    pub fn remove_queue(&self, queue: &Arc<AsyncQueue>) {
        self.queues.lock().retain(|each| !Arc::ptr_eq(each, queue));
    }

    fn tell_all(&self, event: AsyncEvent) {
        let is_port =
            |event: &AsyncEvent| matches!(event.event_type, IBV_EVENT_PORT_ACTIVE | IBV_EVENT_PORT_ERR);
        for queue in &*self.queues.lock() {
            queue.push_bounded(event.clone(), MOST_PORT_EVENTS, is_port);
        }
    }

    fn tell(&self, event: nic::AsyncEvent) {
        match event {
            nic::AsyncEvent::PortUp(port) => {
                self.tell_all(AsyncEvent::without_object(IBV_EVENT_PORT_ACTIVE, u64::from(port) + 1));
            }
            nic::AsyncEvent::PortDown(port) => {
                self.tell_all(AsyncEvent::without_object(IBV_EVENT_PORT_ERR, u64::from(port) + 1));
            }
            nic::AsyncEvent::QpFatal { qp_num, reason } => {
                let event_type = match reason {
                    Fatal::AccessViolation => IBV_EVENT_QP_ACCESS_ERR,
                    Fatal::InvalidRequest | Fatal::WimmLimit | Fatal::NoReceive => IBV_EVENT_QP_REQ_ERR,
                    _ => IBV_EVENT_QP_FATAL,
                };
                if let Some(target) = self.qps.lock().get(&qp_num) {
                    if target.state != 0 {
                        // SAFETY: the field of a public part that lives at least until its target is removed.
                        let state =
                            unsafe { AtomicU32::from_ptr(ptr::with_exposed_provenance_mut(target.state)) };
                        state.store(IBV_QPS_ERR as u32, Ordering::Release);
                    }
                    target.tell(event_type);
                }
            }
            nic::AsyncEvent::CqError { cq } => {
                if let Some(target) = self.cqs.lock().get(&cq) {
                    target.tell(IBV_EVENT_CQ_ERR);
                }
            }
            nic::AsyncEvent::PeerPorts { .. }
            | nic::AsyncEvent::PeerSilent { .. }
            | nic::AsyncEvent::PeerHeard { .. } => {}
        }
    }
}

/// An open device.
pub struct Context {
    pub device: &'static Device,
    pub nic: nic::Context,
    /// UDP port of slot 0.
    base_port: u16,
    pub router: Arc<Router>,
    pub events: Arc<AsyncQueue>,
    pub profiles: Profiles,
    pub closed: AtomicBool,
    object: usize,
}

/// Opens a device; the address of its public part.
///
/// # Errors
/// The kernel's; EADDRINUSE if 64 processes have opened it.
pub fn open(device: &'static Device) -> Result<*mut IbvContext> {
    process::check()?;
    process::opens();
    let events = Arc::new(AsyncQueue::new()?);
    let (nic, base_port) = process::without_signals(|| open_nic(device))?;
    if !device.description.impairments.is_empty() {
        nic.set_impairments(device.description.impairments.clone(), device.description.seed)?;
    }
    let router = Arc::new(Router::default());
    router.add_queue(&events);
    let sink = Arc::clone(&router);
    nic.give_events_to(Box::new(move |event| sink.tell(event)));
    let profiles = Profiles::default();
    let routes = Arc::clone(&profiles.routes);
    let format = device.description.config.entropy.format;
    nic.give_path_events_to(Box::new(move |event| routes.tell(format, event)));
    let object = Box::into_raw(Box::new(public_part(device, events.fd())));
    // SAFETY: the object was just made; the pointer keeps the provenance of the whole.
    let context = unsafe { &raw mut (*object).context };
    let core = Context {
        device,
        nic,
        base_port,
        router,
        events,
        profiles,
        closed: AtomicBool::new(false),
        object: object.expose_provenance(),
    };
    CONTEXTS.insert(context.addr(), Arc::new(core));
    Ok(context)
}

/// Takes the first free slot.
fn open_nic(device: &Device) -> Result<(nic::Context, u16)> {
    let base = device.description.config.ports[0].udp_port;
    for slot in 0..SLOTS {
        let mut config = device.description.config.clone();
        let Some(udp_port) = base.checked_add(u16::from(slot)) else { break };
        config.ports.iter_mut().for_each(|port| port.udp_port = udp_port);
        config.number_slot = Some(slot);
        config.choices.acks_immediates = true;
        // Programs poll, or spin on memory, and wait for their own completions in between.
        config.choices.answers_behind_data = true;
        config.thread.callers_drive = true;
        match nic::Device::new(config)?.open() {
            Ok(context) => return Ok((context, base)),
            Err(nic::Error::Os { source, .. }) if source.raw_os_error() == Some(libc::EADDRINUSE) => {}
            Err(error) => {
                // Nothing else tells the user which address or limit it was.
                eprintln!("openmrc: device {}: {error}", device.name());
                return Err(error.into());
            }
        }
    }
    Err(Errno(libc::EADDRINUSE))
}

fn public_part(device: &'static Device, async_fd: c_int) -> VerbsContext {
    let mut members = [ptr::null_mut::<c_void>(); extended::COUNT];
    members[extended::QUERY_PORT] = crate::verbs::query_port_extended as *mut c_void;
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
            cmd_fd: -1,
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
pub fn report_fatal() {
    let event = AsyncEvent::without_object(IBV_EVENT_DEVICE_FATAL, 0);
    for (_, context) in CONTEXTS.all(|_| true) {
        context.router.tell_all(event.clone());
    }
}

impl Context {
    /// Its ports' addresses, by plane.
    fn own(&self) -> Vec<IpAddr> {
        self.device.description.config.ports.iter().map(|port| port.addr).collect()
    }

    /// Whether a port number of a program names a plane.
    pub fn plane(&self, port_num: u32) -> Result<usize> {
        if (1..=u32::from(self.device.planes())).contains(&port_num) {
            Ok(port_num as usize - 1)
        } else {
            Err(EINVAL)
        }
    }

    /// The address of a peer on every plane, from its GID and a queue pair's number.
    ///
    /// # Errors
    /// EINVAL if the address is not one node's, or those on the other planes are not known.
    pub fn peer(&self, gid: IbvGid, qp_num: u32) -> Result<Vec<SocketAddr>> {
        let first = device::address_of(gid)?;
        let own = self.own();
        if first.is_ipv4() != own[0].is_ipv4() {
            return Err(EINVAL);
        }
        let named = self.device.description.peers.get(&first).cloned();
        let planes = named.or_else(|| interfaces::planes_of(&own, first)).ok_or(EINVAL)?;
        let udp_port = self.base_port + (qp_num >> SLOT_SHIFT) as u16;
        Ok(planes.into_iter().map(|addr| SocketAddr::new(addr, udp_port)).collect())
    }

    /// Code of the largest path MTU that fits every plane: 1 is 256, 5 is 4096.
    pub fn active_mtu(&self) -> c_int {
        let most = self.nic.largest_path_mtu().unwrap_or(0);
        (1..=5).rev().find(|code| most >= mtu_of(*code)).unwrap_or(1)
    }

    /// What a port reports.
    pub fn port_attributes(&self, port_num: u8) -> Result<IbvPortAttr> {
        let plane = self.plane(port_num.into())?;
        let up = self.nic.port_states()?.get(plane).is_some_and(|port| port.admin_up && port.link_up);
        let (active_width, active_speed) = self.device.width_and_speed();
        Ok(IbvPortAttr {
            state: if up { IBV_PORT_ACTIVE } else { IBV_PORT_DOWN },
            max_mtu: 5,
            active_mtu: self.active_mtu(),
            gid_tbl_len: device::GIDS as c_int,
            max_msg_sz: 1 << 31,
            pkey_tbl_len: 1,
            max_vl_num: 1,
            active_width,
            active_speed,
            phys_state: if up { 5 } else { 3 },
            link_layer: IBV_LINK_LAYER_ETHERNET,
            ..IbvPortAttr::default()
        })
    }
}

/// Bytes of a path MTU by its code.
pub fn mtu_of(code: c_int) -> usize {
    128 << code
}
