//! An open device (docs/spec/c-interface.md, sections 7.3, 7.4 and 7.6). Contexts of verbs and of MRC share it.

use std::collections::HashMap;
use std::ffi::c_int;
use std::net::{IpAddr, SocketAddr};
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use openmrc_nic::{self as nic, PortState};
use openmrc_transport::Fatal;
use parking_lot::Mutex;

use crate::abi::ctl::MrcCtlCcNsccCfg;
use crate::abi::verbs::*;
use crate::device::{self, Device};
use crate::errno::{EINVAL, Result};
use crate::ev_events::EvQueues;
use crate::events::{Acknowledged, EventQueue};
use crate::interfaces;
use crate::registry::Registry;
use crate::told;

pub static CONTEXTS: Registry<Context> = Registry::new();

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
    pub fn without_object(event_type: c_int, element: u64) -> Self {
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
    /// Of a queue pair: a receive had a buffer.
    pub has_buffers: Option<Arc<AtomicBool>>,
}

impl Target {
    fn push(&self, event_type: c_int) {
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
    /// The queues that get events of ports.
    queues: Mutex<Vec<Arc<AsyncQueue>>>,
}

impl Router {
    pub fn add_queue(&self, queue: &Arc<AsyncQueue>) {
        self.queues.lock().push(Arc::clone(queue));
    }

    pub fn remove_queue(&self, queue: &Arc<AsyncQueue>) {
        self.queues.lock().retain(|each| !Arc::ptr_eq(each, queue));
    }

    pub fn push_to_all(&self, event: AsyncEvent) {
        let is_port =
            |event: &AsyncEvent| matches!(event.event_type, IBV_EVENT_PORT_ACTIVE | IBV_EVENT_PORT_ERR);
        for queue in &*self.queues.lock() {
            queue.push_bounded(event.clone(), MOST_PORT_EVENTS, is_port);
        }
    }

    pub fn dispatch(&self, event: nic::AsyncEvent) {
        match event {
            nic::AsyncEvent::PortUp(port) => {
                self.push_to_all(AsyncEvent::without_object(IBV_EVENT_PORT_ACTIVE, u64::from(port) + 1));
            }
            nic::AsyncEvent::PortDown(port) => {
                self.push_to_all(AsyncEvent::without_object(IBV_EVENT_PORT_ERR, u64::from(port) + 1));
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
                    let buffers = target.has_buffers.as_ref().is_some_and(|any| any.load(Ordering::Relaxed));
                    if reason == Fatal::AccessViolation && buffers {
                        let waits =
                            "the program waits for SENDs, which the peer cannot post: MRC has only WRITE";
                        told::once(format!("queue pair: ended by the peer; {waits}"));
                    }
                    target.push(event_type);
                }
            }
            nic::AsyncEvent::CqError { cq } => {
                if let Some(target) = self.cqs.lock().get(&cq) {
                    target.push(IBV_EVENT_CQ_ERR);
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
    pub base_port: u16,
    pub router: Arc<Router>,
    pub events: Arc<AsyncQueue>,
    pub ev_queues: Arc<EvQueues>,
    /// What the last query of each congestion control profile points to.
    pub shown_cc: Mutex<HashMap<u64, Arc<MrcCtlCcNsccCfg>>>,
    pub closed: AtomicBool,
    /// Address of its public part.
    pub object: usize,
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
            let (name, own) = (self.device.name(), own[0]);
            told::once(format!("device {name}: peer {first} refused, this device has the address {own}"));
            return Err(EINVAL);
        }
        let named = self.device.description.peers.get(&first).cloned();
        let Some(planes) = named.or_else(|| interfaces::planes_of(&own, first)) else {
            let name = self.device.name();
            told::once(format!(
                "device {name}: the addresses of peer {first} on planes 2 to {} are not known: peers in OPENMRC_CONFIG \
                 names them",
                own.len()
            ));
            return Err(EINVAL);
        };
        let udp_port = self.base_port.saturating_add(nic::number_slot_of(qp_num).into());
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
        let up = self.nic.port_states()?.get(plane).is_some_and(PortState::is_up);
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
