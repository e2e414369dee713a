//! Completion channels and completion queues, of both interfaces (docs/spec/c-interface.md, sections 3, 7.2 and 9).

use std::ffi::{c_int, c_void};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use openmrc_nic::{self as nic, Completion, Opcode, Status};

use crate::abi::extended::{IbvCqEx, pollers};
use crate::abi::verbs::*;
use crate::context::{AsyncQueue, CONTEXTS, Context, Target};
use crate::device::MAX_CQE;
use crate::errno::{EBUSY, EINVAL, Result};
use crate::ev_events::EvEvents;
use crate::events::{Acknowledged, EventQueue};
use crate::notifier::{Notification, Notifier};
use crate::registry::{Marked, Registry};

pub static CHANNELS: Registry<Channel> = Registry::new();
pub static CQS: Registry<Cq> = Registry::new();

/// Functions that read completions one by one.
pub type Pollers = [*mut c_void; pollers::COUNT];
pub type VerbsChannel = Marked<IbvCompChannel, Channel>;
pub type VerbsCq = Marked<IbvCqEx, Cq>;
/// An object of which the program knows only the address.
pub type MrcCq = Marked<(), Cq>;
pub type MrcChannel = Marked<(), Channel>;

/// Which completion queue a program polls.
pub const VERBS_CQ: u64 = u64::from_ne_bytes(*b"ibv.cq\0\0");
pub const MRC_CQ: u64 = u64::from_ne_bytes(*b"mrc.cq\0\0");

/// Which interface made an object.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Api {
    Verbs,
    Mrc,
}

/// A completion channel.
pub struct Channel {
    pub context: Arc<Context>,
    pub api: Api,
    pub queue: Arc<EventQueue<Notification>>,
    users: AtomicUsize,
    /// Of an MRC channel: the address of its context.
    pub parent: usize,
}

impl Channel {
    pub fn new(context: Arc<Context>, api: Api, parent: usize) -> Result<Self> {
        let queue = Arc::new(EventQueue::new()?);
        Ok(Channel { context, api, queue, users: AtomicUsize::new(0), parent })
    }

    /// The channel at this address.
    ///
    /// # Errors
    /// EINVAL if it is none of this interface.
    pub fn of<P>(channel: *const P, api: Api) -> Result<Arc<Self>> {
        CHANNELS.get(channel).and_then(|found| if found.api == api { Ok(found) } else { Err(EINVAL) })
    }

    /// Waits for a notification and gives the completion queue and its context.
    ///
    /// # Errors
    /// EINVAL; as [`EventQueue::wait`].
    ///
    /// # Safety
    /// Both are null or can be written.
    pub unsafe fn wait<Q>(
        channel: Result<Arc<Self>>,
        cq: *mut *mut Q,
        cq_context: *mut *mut c_void,
    ) -> Result<c_int> {
        // SAFETY: the caller's promise.
        let (cq, cq_context) = unsafe { cq.as_mut().zip(cq_context.as_mut()) }.ok_or(EINVAL)?;
        let event = channel?.queue.wait(|event| event.events.got())?;
        *cq = std::ptr::with_exposed_provenance_mut(event.cq);
        *cq_context = std::ptr::with_exposed_provenance_mut(event.cq_context);
        Ok(0)
    }
}

/// Where a completion queue gets what it holds from.
pub enum Source {
    /// Completions of work requests.
    Work(nic::CompletionQueue),
    /// Changes of paths.
    Ev(Arc<EvEvents>),
}

/// A completion queue.
pub struct Cq {
    pub context: Arc<Context>,
    pub source: Source,
    pub api: Api,
    /// Of an MRC queue: the address of its context.
    pub parent: usize,
    channel: Option<Arc<Channel>>,
    events: Arc<Acknowledged>,
    pub async_events: Arc<Acknowledged>,
    asked: usize,
    /// For completions of all queue pairs that use it.
    room: AtomicUsize,
    dying: AtomicBool,
    address: Arc<AtomicUsize>,
}

impl Cq {
    /// A completion queue whose object is made later; see [`Cq::publish`].
    pub fn new(
        context: Arc<Context>,
        (api, parent): (Api, usize),
        cqe: c_int,
        cq_context: *mut c_void,
        channel: Option<Arc<Channel>>,
        make: impl FnOnce(&Context, usize, Notifier) -> Result<Source>,
    ) -> Result<Self> {
        if !(1..=MAX_CQE).contains(&cqe) {
            return Err(EINVAL);
        }
        let address = Arc::new(AtomicUsize::new(0));
        let events = Arc::new(Acknowledged::default());
        let notifier = Notifier {
            address: Arc::clone(&address),
            cq_context: cq_context.expose_provenance(),
            events: Arc::clone(&events),
            channel: channel.as_ref().map(|channel| Arc::clone(&channel.queue)),
        };
        let source = make(&context, cqe as usize, notifier)?;
        if let Some(channel) = &channel {
            channel.users.fetch_add(1, Ordering::AcqRel);
        }
        Ok(Cq {
            context,
            source,
            api,
            parent,
            channel,
            events,
            async_events: Arc::default(),
            asked: cqe as usize,
            room: AtomicUsize::new(0),
            dying: AtomicBool::new(false),
            address,
        })
    }

    /// For completions of work requests.
    pub fn of_work(context: &Context, cqe: usize, notifier: Notifier) -> Result<Source> {
        Ok(Source::Work(context.nic.create_notifying_cq(cqe, Arc::new(move || notifier.notify()))?))
    }

    /// Its object is at this address; its asynchronous events go to `queue`.
    pub fn publish(self: Arc<Self>, address: usize, queue: &Arc<AsyncQueue>) {
        self.address.store(address, Ordering::Release);
        if let Source::Work(nic) = &self.source {
            let acks = Some(Arc::clone(&self.async_events));
            let target =
                Target { queue: Arc::clone(queue), object: address, state: 0, acks, has_buffers: None };
            self.context.router.cqs.lock().insert(nic.handle(), target);
        }
        CQS.insert(address, self);
    }

    pub fn work(&self) -> Result<&nic::CompletionQueue> {
        match &self.source {
            Source::Work(nic) => Ok(nic),
            Source::Ev(_) => Err(EINVAL),
        }
    }

    /// A queue pair uses it, with this many work requests. It has room for all of them, so that no flush overruns it.
    pub fn attach(&self, requests: usize) {
        self.change_room(requests as isize);
    }

    /// That queue pair is gone.
    pub fn detach(&self, requests: usize) {
        self.change_room(-(requests as isize));
    }

    fn change_room(&self, by: isize) {
        let room = self.room.fetch_add(by as usize, Ordering::AcqRel).wrapping_add_signed(by);
        if let Source::Work(nic) = &self.source {
            nic.set_capacity(self.asked + room);
        }
    }

    pub fn acknowledge(&self, events: u32) {
        self.events.acknowledge(events.into());
    }

    /// # Errors
    /// EIO if it has overrun, after what it held.
    pub fn arm(&self, solicited_only: bool) -> Result<()> {
        match &self.source {
            Source::Work(nic) => {
                nic.check_process()?;
                if solicited_only { nic.arm_solicited() } else { nic.arm() }
            }
            Source::Ev(events) => events.arm(),
        }
        Ok(())
    }

    /// Removes up to `entries` completions into the array at `wc`.
    ///
    /// # Errors
    /// EINVAL; EIO if it has overrun.
    ///
    /// # Safety
    /// The array has this many entries.
    #[inline]
    pub unsafe fn poll(&self, entries: c_int, wc: *mut IbvWc) -> Result<c_int> {
        let nic = self.work()?;
        if entries <= 0 || wc.is_null() {
            return if entries == 0 { Ok(0) } else { Err(EINVAL) };
        }
        let mut next = wc;
        let polled = nic.poll_each(entries as usize, |completion| {
            // SAFETY: at most `entries` are given, and the array has that many.
            unsafe {
                next.write(work_completion(&completion));
                next = next.add(1);
            }
        });
        Ok(polled? as c_int)
    }
}

fn work_completion(from: &Completion) -> IbvWc {
    let status = match from.status {
        Status::Success => 0,
        Status::LocLenErr => 1,
        Status::LocProtErr => 4,
        Status::WrFlushErr => 5,
        Status::RemInvReqErr => 9,
        Status::RemAccessErr => 10,
        Status::RemOpErr => 11,
        Status::RetryExcErr => 12,
    };
    IbvWc {
        wr_id: from.wr_id,
        status,
        opcode: match from.opcode {
            Opcode::RdmaWrite => IBV_WC_RDMA_WRITE,
            Opcode::RecvRdmaWithImm => IBV_WC_RECV_RDMA_WITH_IMM,
        },
        vendor_err: 0,
        byte_len: from.byte_len,
        imm_data: from.imm_data.unwrap_or_default().to_be(),
        qp_num: from.qp_num,
        src_qp: from.src_qp,
        wc_flags: if from.imm_data.is_some() { IBV_WC_WITH_IMM } else { 0 },
        pkey_index: 0,
        slid: 0,
        sl: 0,
        dlid_path_bits: 0,
    }
}

/// # Errors
/// EBUSY while a completion queue uses it.
///
/// # Safety
/// `P` is the public part of its objects.
pub unsafe fn destroy_channel<P: 'static>(channel: *mut P, api: Api) -> Result<()> {
    let core = CHANNELS.remove(channel, |channel| match channel.users.load(Ordering::Acquire) {
        _ if channel.api != api => Err(EINVAL),
        0 => Ok(()),
        _ => Err(EBUSY),
    })?;
    core.queue.close();
    // SAFETY: the caller's promise, and it was removed once.
    unsafe { Marked::<P, Channel>::retire(channel.cast()) };
    Ok(())
}

/// Waits until all events that the program got of it are acknowledged.
///
/// # Errors
/// EBUSY while a queue pair uses it.
///
/// # Safety
/// `P` is the public part of its objects.
pub unsafe fn destroy<P: 'static>(cq: *mut P, api: Api) -> Result<()> {
    let core = CQS.get(cq)?;
    if core.api != api || core.dying.swap(true, Ordering::AcqRel) {
        return Err(EINVAL);
    }
    if let Source::Work(nic) = &core.source
        && let Err(error) = nic.check_unused()
    {
        core.dying.store(false, Ordering::Release);
        return Err(error.into());
    }
    // SAFETY: the caller's promise, and only one thread gets here.
    unsafe { finish::<P>(cq.addr(), &core, true) };
    Ok(())
}

/// # Safety
/// As [`destroy`]; it is called once.
unsafe fn finish<P: 'static>(address: usize, core: &Arc<Cq>, waits: bool) {
    let queue = match &core.source {
        Source::Work(nic) => core.context.router.cqs.lock().remove(&nic.handle()).map(|target| target.queue),
        Source::Ev(events) => {
            events.close();
            None
        }
    };
    if let Some(queue) = queue {
        queue.remove(|event| event.is_of(address));
    }
    if let Some(channel) = &core.channel {
        channel.queue.remove(|event| event.cq == address);
    }
    if waits {
        core.events.wait();
        core.async_events.wait();
    }
    if let Some(channel) = &core.channel {
        channel.users.fetch_sub(1, Ordering::AcqRel);
    }
    let object = std::ptr::with_exposed_provenance_mut::<Marked<P, Cq>>(address);
    if CQS.remove(object, |_| Ok(())).is_ok() {
        // SAFETY: the caller's promise.
        unsafe { Marked::retire(object) };
    }
}

/// What is left of those for which `fits` holds, without waiting for anybody.
pub fn destroy_where(fits: impl Fn(&Context, Api, usize) -> bool) {
    for (address, cq) in CQS.all(|cq| fits(&cq.context, cq.api, cq.parent)) {
        // SAFETY: the interface says what its public part is; nobody else destroys objects of a context that is closed.
        unsafe {
            match cq.api {
                Api::Verbs => finish::<IbvCqEx>(address, &cq, false),
                Api::Mrc => finish::<()>(address, &cq, false),
            }
        }
    }
    for (address, channel) in CHANNELS.all(|channel| fits(&channel.context, channel.api, channel.parent)) {
        channel.users.store(0, Ordering::Release);
        let object = std::ptr::with_exposed_provenance_mut::<()>(address);
        // SAFETY: as above.
        let _ = unsafe {
            match channel.api {
                Api::Verbs => destroy_channel(object.cast::<IbvCompChannel>(), Api::Verbs),
                Api::Mrc => destroy_channel(object, Api::Mrc),
            }
        };
    }
}

/// What is left on a context that is closed.
pub fn destroy_of(context: &Arc<Context>) {
    destroy_where(|of, _, _| std::ptr::eq(of, Arc::as_ptr(context)));
}

/// # Errors
/// EINVAL, EMFILE.
pub fn create_verbs_channel(context: *mut IbvContext) -> Result<*mut IbvCompChannel> {
    let channel = Arc::new(Channel::new(CONTEXTS.get(context)?, Api::Verbs, 0)?);
    let public = IbvCompChannel { context, fd: channel.queue.fd(), refcnt: 0 };
    let object = VerbsChannel::make(public, Arc::as_ptr(&channel), 0);
    CHANNELS.insert(object.expose_provenance(), channel);
    Ok(object.cast())
}

/// A queue, with the functions that read its completions one by one, or none.
///
/// # Errors
/// EINVAL.
pub fn create_verbs(
    context: *mut IbvContext,
    cqe: c_int,
    cq_context: *mut c_void,
    channel: *mut IbvCompChannel,
    comp_vector: c_int,
    pollers: Pollers,
) -> Result<*mut IbvCqEx> {
    let core = CONTEXTS.get(context)?;
    if comp_vector != 0 {
        return Err(EINVAL);
    }
    let via = channel_of(channel, &core, Api::Verbs)?;
    let cq = Arc::new(Cq::new(core, (Api::Verbs, 0), cqe, cq_context, via, Cq::of_work)?);
    let base = IbvCq {
        context,
        channel,
        cq_context,
        handle: cq.work()?.handle(),
        cqe,
        mutex: Opaque([0; _]),
        cond: Opaque([0; _]),
        comp_events_completed: 0,
        async_events_completed: 0,
    };
    // SAFETY: zeros are a completion.
    let current = unsafe { std::mem::zeroed() };
    let public = IbvCqEx { base, comp_mask: 0, status: 0, wr_id: 0, pollers, current };
    let object = VerbsCq::make(public, Arc::as_ptr(&cq), VERBS_CQ);
    let queue = Arc::clone(&cq.context.events);
    cq.publish(object.expose_provenance(), &queue);
    Ok(object.cast())
}

/// The channel that a program names, which may be none.
///
/// # Errors
/// EINVAL if it is not of this context and interface.
pub fn channel_of<P>(channel: *mut P, context: &Arc<Context>, api: Api) -> Result<Option<Arc<Channel>>> {
    if channel.is_null() {
        return Ok(None);
    }
    let found = CHANNELS.get(channel)?;
    if found.api == api && Arc::ptr_eq(&found.context, context) { Ok(Some(found)) } else { Err(EINVAL) }
}

/// A queue of completions of work requests for queue pairs of this context and interface.
///
/// # Errors
/// EINVAL.
pub fn for_qp<P>(cq: *const P, context: &Arc<Context>, api: Api) -> Result<Arc<Cq>> {
    let found = CQS.get(cq)?;
    found.work()?;
    let fits = found.api == api && Arc::ptr_eq(&found.context, context);
    if fits && !found.dying.load(Ordering::Acquire) { Ok(found) } else { Err(EINVAL) }
}

/// The core of a queue that is polled.
///
/// # Errors
/// EINVAL if it is none of this interface.
///
/// # Safety
/// As [`Marked::core`].
#[inline]
pub unsafe fn core<'a, P>(cq: *const P, magic: u64) -> Result<&'a Cq> {
    // SAFETY: the caller's promise.
    unsafe { Marked::<P, Cq>::core(cq, magic) }.ok_or(EINVAL)
}
