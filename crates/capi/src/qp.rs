//! Queue pairs of both interfaces: creating, destroying, and their states (docs/spec/c-interface.md, sections 3 and
//! 7.6).

use std::ffi::{c_int, c_void};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use openmrc_nic::profiles::EvLease;
use openmrc_nic::{self as nic, QpCap, QpState, SendData, SendWr};
use parking_lot::Mutex;

use crate::abi::extended::{IbvQpEx, builders};
use crate::abi::mrc::MrcQpAttr;
use crate::abi::verbs::*;
use crate::built::Built;
use crate::context::{AsyncQueue, Context, Target};
use crate::cq::{self, Api, Cq};
use crate::device::{MAX_INLINE, MAX_QP, MAX_QP_WR, MAX_SGE};
use crate::errno::{EINVAL, ENOMEM, EOPNOTSUPP, Result};
use crate::events::Acknowledged;
use crate::hint::Hint;
use crate::memory::{PDS, Pd};
use crate::registry::{Marked, Registry};
use crate::told;

/// A key that no region has.
const NO_KEY: u32 = 0;
/// What a peer needs to answer, many times over.
const PATIENCE: Duration = Duration::from_secs(2);

pub static QPS: Registry<Qp> = Registry::new();

pub type VerbsQp = Marked<IbvQpEx, Qp>;
/// An object of which the program knows only the address.
pub type MrcQp = Marked<(), Qp>;

/// Which queue pair a program posts to.
pub const VERBS_QP: u64 = u64::from_ne_bytes(*b"ibv.qp\0\0");
pub const MRC_QP: u64 = u64::from_ne_bytes(*b"mrc.qp\0\0");

/// A queue pair.
pub struct Qp {
    pub context: Arc<Context>,
    pub nic: nic::QueuePair,
    pub api: Api,
    /// Of an MRC queue pair: the address of its context.
    pub parent: usize,
    pd: Arc<Pd>,
    send_cq: Arc<Cq>,
    recv_cq: Arc<Cq>,
    /// What it was made with.
    pub init: Init,
    /// What it was told, for queries.
    pub attributes: Mutex<Attributes>,
    pub async_events: Arc<Acknowledged>,
    dying: AtomicBool,
    /// A receive had a buffer, so the program may wait for a SEND.
    pub has_buffers: Arc<AtomicBool>,
    /// Requests that calls have begun to build.
    pub built: Mutex<Built>,
    /// Where the public part says its state; 0 if it has none.
    state: AtomicUsize,
}

/// What a queue pair is made with, in either interface.
#[derive(Clone, Copy)]
pub struct Init {
    pub qp_context: *mut c_void,
    pub send_cq: *mut c_void,
    pub recv_cq: *mut c_void,
    pub pd: *mut IbvPd,
    pub cap: IbvQpCap,
    pub sq_sig_all: c_int,
    pub send_ops_flags: u64,
    pub protocol_version: c_int,
}

// SAFETY: the pointers are names that go back to the program; nothing here follows them.
unsafe impl Send for Init {}
// SAFETY: as above.
unsafe impl Sync for Init {}

/// The attributes of a queue pair as the program set them.
#[derive(Default)]
pub struct Attributes {
    pub verbs: IbvQpAttr,
    pub mrc: Option<MrcQpAttr>,
    pub hint: Option<Arc<Hint>>,
    /// Its hold on the EV profile that it named.
    pub lease: Option<EvLease>,
}

// SAFETY: the pointer to a hint is a name that goes back to the program; nothing here follows it.
unsafe impl Send for Attributes {}

/// Bounds and least values of capacities; what the queue pair gets.
fn granted(asked: IbvQpCap) -> Result<IbvQpCap> {
    let limits = [
        (asked.max_send_wr, MAX_QP_WR),
        (asked.max_recv_wr, MAX_QP_WR),
        (asked.max_send_sge, MAX_SGE),
        (asked.max_recv_sge, MAX_SGE),
        (asked.max_inline_data, MAX_INLINE),
    ];
    if limits.iter().any(|(value, most)| value > most) {
        return Err(EINVAL);
    }
    Ok(IbvQpCap { max_send_wr: asked.max_send_wr.max(1), max_send_sge: asked.max_send_sge.max(1), ..asked })
}

impl Qp {
    /// A queue pair in RESET whose object is made later. `init.cap` becomes what is granted.
    pub fn new(api: Api, parent: usize, context: &Arc<Context>, init: &mut Init) -> Result<Arc<Self>> {
        let pd = PDS.get(init.pd)?;
        if !Arc::ptr_eq(&pd.context, context) {
            return Err(EINVAL);
        }
        let send_cq = cq::for_qp(init.send_cq, context, api)?;
        let recv_cq = cq::for_qp(init.recv_cq, context, api)?;
        let cap = granted(init.cap)?;
        if QPS.all(|qp| Arc::ptr_eq(&qp.context, context)).len() >= MAX_QP as usize {
            return Err(ENOMEM);
        }
        let nic = pd.nic.create_qp(
            send_cq.work()?,
            recv_cq.work()?,
            QpCap {
                max_send_wr: cap.max_send_wr,
                max_recv_wr: cap.max_recv_wr,
                max_send_sge: cap.max_send_sge,
                // For `end_with_peer`.
                max_inline_data: cap.max_inline_data.max(1),
            },
            init.sq_sig_all != 0,
        )?;
        init.cap = cap;
        pd.users.fetch_add(1, Ordering::AcqRel);
        send_cq.attach(cap.max_send_wr as usize);
        recv_cq.attach(cap.max_recv_wr as usize);
        Ok(Arc::new(Qp {
            context: Arc::clone(context),
            nic,
            api,
            parent,
            pd,
            send_cq,
            recv_cq,
            init: *init,
            attributes: Mutex::default(),
            async_events: Arc::default(),
            dying: AtomicBool::new(false),
            has_buffers: Arc::default(),
            built: Mutex::default(),
            state: AtomicUsize::new(0),
        }))
    }

    /// Its object is at this address, and its state at `state` (0: nowhere); its asynchronous events go to `queue`.
    pub fn publish(self: Arc<Self>, address: usize, state: usize, queue: &Arc<AsyncQueue>) {
        self.state.store(state, Ordering::Release);
        let acks = Some(Arc::clone(&self.async_events));
        let has_buffers = Some(Arc::clone(&self.has_buffers));
        let target = Target { queue: Arc::clone(queue), object: address, state, acks, has_buffers };
        self.context.router.qps.lock().insert(self.nic.qp_num(), target);
        QPS.insert(address, self);
    }

    /// Ends this queue pair and its peer's with an error, and waits until that is so: what the peer waits for cannot come,
    /// and the program may exit when it is told. A write to no region of the peer does it, as in verbs.
    pub fn end_with_peer(&self) {
        let write = SendWr {
            wr_id: 0,
            data: SendData::Inline(&[0]),
            remote_addr: 0,
            rkey: NO_KEY,
            imm: None,
            signaled: false,
            solicited: false,
        };
        let until = Instant::now() + PATIENCE;
        if self.nic.post_send(&[write]).is_ok() {
            while self.nic.state() == QpState::Rts && Instant::now() < until {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    }

    /// The public part says the present state.
    pub fn show_state(&self) {
        let state = self.state.load(Ordering::Acquire);
        if state != 0 {
            // SAFETY: a field of the public part, which is there until the queue pair is destroyed.
            unsafe { AtomicI32::from_ptr(std::ptr::with_exposed_provenance_mut(state)) }
                .store(state_code(self.nic.state()), Ordering::Release);
        }
    }
}

/// A state's number in verbs.
pub fn state_code(state: QpState) -> c_int {
    match state {
        QpState::Reset => IBV_QPS_RESET,
        QpState::Init => IBV_QPS_INIT,
        QpState::Rtr => IBV_QPS_RTR,
        QpState::Rts => IBV_QPS_RTS,
        QpState::Error => IBV_QPS_ERR,
    }
}

/// # Errors
/// EOPNOTSUPP for another type than RC, or with a shared receive queue; EINVAL; ENOMEM.
pub fn create_verbs(pd: *mut IbvPd, attr: &mut IbvQpInitAttr) -> Result<*mut IbvQp> {
    let context = Arc::clone(&PDS.get(pd)?.context);
    if attr.qp_type != IBV_QPT_RC {
        told::refused("queue pair", told::qp_type(attr.qp_type), "MRC has only RC");
        return Err(EOPNOTSUPP);
    }
    if !attr.srq.is_null() {
        told::refused("queue pair", "a shared receive queue", "MRC has none");
        return Err(EOPNOTSUPP);
    }
    let mut init = Init {
        qp_context: attr.qp_context,
        send_cq: attr.send_cq.cast(),
        recv_cq: attr.recv_cq.cast(),
        pd,
        cap: attr.cap,
        sq_sig_all: attr.sq_sig_all,
        send_ops_flags: 0,
        protocol_version: 0,
    };
    let qp = Qp::new(Api::Verbs, 0, &context, &mut init)?;
    attr.cap = init.cap;
    let base = IbvQp {
        // SAFETY: the domain is in the table, so its public part is there.
        context: unsafe { (*pd).context },
        qp_context: attr.qp_context,
        pd,
        send_cq: attr.send_cq,
        recv_cq: attr.recv_cq,
        srq: std::ptr::null_mut(),
        handle: qp.nic.qp_num(),
        qp_num: qp.nic.qp_num(),
        state: IBV_QPS_RESET,
        qp_type: IBV_QPT_RC,
        mutex: Opaque([0; _]),
        cond: Opaque([0; _]),
        events_completed: 0,
    };
    let public = IbvQpEx {
        base,
        comp_mask: 0,
        wr_id: 0,
        wr_flags: 0,
        builders: [std::ptr::null_mut(); builders::COUNT],
    };
    let object = VerbsQp::make(public, Arc::as_ptr(&qp), VERBS_QP);
    // SAFETY: the object was just made.
    let state = unsafe { &raw mut (*object).public.base.state }.expose_provenance();
    let queue = Arc::clone(&context.events);
    qp.publish(object.expose_provenance(), state, &queue);
    Ok(object.cast())
}

/// Drops what is outstanding. Acknowledgements that are owed are sent first, and for a while the number still answers
/// duplicates of its peer. Waits until the asynchronous events that the program got are acknowledged.
///
/// # Errors
/// EINVAL.
///
/// # Safety
/// `P` is the public part of its objects.
pub unsafe fn destroy<P: 'static>(qp: *mut P, api: Api) -> Result<()> {
    let core = QPS.get(qp)?;
    if core.api != api || core.dying.swap(true, Ordering::AcqRel) {
        return Err(EINVAL);
    }
    // SAFETY: the caller's promise, and only one thread gets here.
    unsafe { finish::<P>(qp.addr(), &core, true) };
    Ok(())
}

/// # Safety
/// As [`destroy`]; it is called once.
unsafe fn finish<P: 'static>(address: usize, core: &Arc<Qp>, waits: bool) {
    let target = core.context.router.qps.lock().remove(&core.nic.qp_num());
    if let Some(target) = target {
        target.queue.remove(|event| event.is_of(address));
    }
    if waits {
        core.async_events.wait();
        core.nic.retire();
    } else {
        core.nic.destroy();
    }
    drop(core.attributes.lock().lease.take());
    core.send_cq.detach(core.init.cap.max_send_wr as usize);
    core.recv_cq.detach(core.init.cap.max_recv_wr as usize);
    core.pd.users.fetch_sub(1, Ordering::AcqRel);
    if let Some(hint) = core.attributes.lock().hint.take() {
        hint.release();
    }
    let object = std::ptr::with_exposed_provenance_mut::<Marked<P, Qp>>(address);
    if QPS.remove(object, |_| Ok(())).is_ok() {
        // SAFETY: the caller's promise.
        unsafe { Marked::retire(object) };
    }
}

/// What is left of those for which `fits` holds, without waiting for anybody.
pub fn destroy_where(fits: impl Fn(&Context, Api, usize) -> bool) {
    for (address, qp) in QPS.all(|qp| fits(&qp.context, qp.api, qp.parent)) {
        // SAFETY: the interface says what its public part is; nobody else destroys objects of a context that is closed.
        unsafe {
            match qp.api {
                Api::Verbs => finish::<IbvQpEx>(address, &qp, false),
                Api::Mrc => finish::<()>(address, &qp, false),
            }
        }
    }
}

/// What is left on a context that is closed.
pub fn destroy_of(context: &Arc<Context>) {
    destroy_where(|of, _, _| std::ptr::eq(of, Arc::as_ptr(context)));
}

/// The core of a queue pair that is posted to.
///
/// # Errors
/// EINVAL if it is none of this interface.
///
/// # Safety
/// As [`Marked::core`].
#[inline]
pub unsafe fn core<'a, P>(qp: *const P, magic: u64) -> Result<&'a Qp> {
    // SAFETY: the caller's promise.
    unsafe { Marked::<P, Qp>::core(qp, magic) }.ok_or(EINVAL)
}
