//! Everything behind a communicator's lock: the links, the operations in the order of their calls, point-to-point
//! messages, and what is done when a peer is lost or the communicator is aborted. It never waits.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use openmrc_nic::{Completion, Opcode, Status};
use openmrc_schedule::Rank;

use crate::abort::{AbortCode, AbortKind};
use crate::agreement::{Agreement, TELL_ALL};
use crate::error::{Error, Result};
use crate::header::Signature;
use crate::layout::COLLECTIVE;
use crate::link::{ENDED, Link, Medium};
use crate::local::Home;
use crate::memory::Lent;
use crate::network::Network;
use crate::operation::Operation;
use crate::p2p::{Incoming, Outgoing, P2P_BIT, PointToPoint};
use crate::record::{Log, OperationRecord};
use crate::remote::{ABORT_ID, Notice};
use crate::types::DataType;
use crate::work::WorkState;

/// How long an abort may take to reach the peers before the operations of this rank end.
const FAREWELL: Duration = Duration::from_millis(200);

/// A communicator that is being given up.
struct Ending {
    error: Error,
    /// Aborts on their way to peers of other hosts.
    aborts: usize,
    deadline: Instant,
}

/// Why the communicator has failed, or is about to.
#[derive(Default)]
struct End {
    /// It has failed.
    failed: Option<Error>,
    /// It is being given up.
    ending: Option<Ending>,
}

/// Collective operations in the order of their calls.
#[derive(Default)]
struct Operations {
    queue: VecDeque<Operation>,
    /// Operations called.
    calls: u64,
}

/// State of a communicator.
pub struct Core {
    pub rank: Rank,
    pub links: Vec<Option<Link>>,
    pub home: Home,
    pub network: Network,
    operations: Operations,
    agreement: Agreement,
    p2p: PointToPoint,
    end: End,
    pub log: Log,
}

impl Core {
    pub fn new(rank: Rank, ranks: usize, home: Home, network: Network) -> Core {
        Core {
            rank,
            links: (0..ranks).map(|_| None).collect(),
            home,
            network,
            operations: Operations::default(),
            agreement: Agreement::new(ranks),
            p2p: PointToPoint::new(ranks),
            end: End::default(),
            log: Log::default(),
        }
    }

    pub fn add_link(&mut self, link: Link) {
        if let Medium::Remote(remote) = &link.medium {
            self.network.add(remote.qp.qp_num(), link.peer);
        }
        let peer = link.peer;
        self.links[peer] = Some(link);
    }

    /// Number of the next operation.
    pub fn next_call(&mut self) -> u64 {
        self.operations.calls += 1;
        self.operations.calls
    }

    /// Whether nothing is under way.
    pub fn is_idle(&self) -> bool {
        self.operations.queue.is_empty() && self.p2p.is_idle()
    }

    /// Whether it has failed and everything that waited has ended.
    pub fn has_failed(&self) -> bool {
        self.end.failed.is_some()
    }

    /// Closes it: every later call ends with an error.
    pub fn close(&mut self) {
        self.end.failed.get_or_insert(Error::Closed);
        self.links.iter_mut().for_each(|link| *link = None);
    }

    /// Why the communicator has failed, or is about to.
    pub fn error(&self) -> Option<&Error> {
        self.end.failed.as_ref().or(self.end.ending.as_ref().map(|ending| &ending.error))
    }

    /// Takes over an operation, and does what can be done at once.
    pub fn submit(&mut self, mut operation: Operation) {
        if let Some(error) = self.error() {
            operation.end(Err(error.clone()));
            return;
        }
        let network = &self.network;
        if let Err(error) = operation.register(&self.links, |data, len| network.register(data, len)) {
            operation.end(Err(error.clone()));
            // The other ranks wait for this one.
            self.fail(error, AbortKind::Device, self.rank);
            return;
        }
        if self.log.with_messages {
            operation.record_messages();
        }
        let agreed = self.agreement.called(operation.number, &operation.signature);
        self.operations.queue.push_back(operation);
        if let Err(error) = agreed {
            self.mismatch(error);
        }
        self.progress();
    }

    /// Sends bytes to a rank.
    pub fn send(&mut self, to: Rank, tag: u64, data: Lent, dtype: DataType, work: Arc<WorkState>) {
        let mut message = Outgoing::new(self.p2p.next_id(), tag, data, dtype, work);
        if let Some(error) = self.error() {
            message.end(Err(error.clone()));
            return;
        }
        let remote = self.links[to].as_ref().is_some_and(|link| !link.is_local());
        if remote && message.data.len() > crate::remote::COPIED {
            match self.network.register(message.data.data(), message.data.len()) {
                Ok(region) => message.region = Some(region),
                Err(error) => {
                    message.end(Err(error));
                    return;
                }
            }
        }
        self.p2p.post_send(to, message);
        self.progress();
    }

    /// Receives a message.
    pub fn recv(&mut self, receive: Incoming) {
        if let Some(error) = self.error() {
            receive.end(Err(error.clone()));
            return;
        }
        self.p2p.post_recv(receive, &self.links);
        self.progress();
    }

    /// Does what can be done; returns whether anything happened.
    pub fn progress(&mut self) -> bool {
        if self.end.failed.is_some() {
            return false;
        }
        if self.end.ending.is_some() {
            return self.progress_ending();
        }
        match self.try_progress() {
            Ok(worked) => worked,
            Err(error) => {
                self.mismatch(error);
                true
            }
        }
    }

    /// Ranks have called different operations, or the NIC has failed.
    fn mismatch(&mut self, error: Error) {
        let (kind, subject) = match &error {
            Error::Mismatch { rank, .. } => (AbortKind::Mismatch, *rank),
            _ => (AbortKind::Device, self.rank),
        };
        self.fail(error, kind, subject);
    }

    fn progress_ending(&mut self) -> bool {
        let polled = self.poll_network();
        let over =
            |ending: &Ending| ending.aborts == 0 || Instant::now() >= ending.deadline || polled.is_err();
        if let Some(ending) = self.end.ending.take_if(|ending| over(ending)) {
            self.end(ending.error);
            return true;
        }
        polled.unwrap_or(false)
    }

    fn try_progress(&mut self) -> Result<bool> {
        let mut worked = self.poll_network()?;
        let code = self.home.aborted();
        if code != 0 {
            self.aborted_by_peer(code);
            return Ok(true);
        }
        while let Some(operation) = self.operations.queue.front_mut() {
            worked |= operation.progress(&mut self.links, &self.home)?;
            if !operation.is_done() {
                break;
            }
            operation.finish();
            if let Some(mut operation) = self.operations.queue.pop_front() {
                self.agreement.ended(operation.number, operation.signature);
                self.log.add(OperationRecord::of(&mut operation));
                operation.end(Ok(()));
            }
            worked = true;
        }
        worked |= self.p2p.progress(&mut self.links, &self.home)?;
        self.p2p.ended.drain(..).for_each(|message| self.log.add_message(&message));
        for (rank, number, theirs) in std::mem::take(&mut self.p2p.announced) {
            self.announced(rank, number, theirs)?;
        }
        if !worked {
            self.check_strays()?;
        }
        Ok(worked)
    }

    /// A rank has announced a call.
    fn announced(&mut self, rank: Rank, number: u64, theirs: Signature) -> Result<()> {
        if let Some(link) = &mut self.links[rank] {
            link.reached = link.reached.max(number);
        }
        let Operations { queue, calls } = &self.operations;
        let ours = queue.iter().find(|operation| operation.number == number).map(|o| o.signature);
        self.agreement.announced(rank, number, theirs, ours, *calls)
    }

    /// Finds messages that no operation will take, because this rank has called something else.
    fn check_strays(&self) -> Result<()> {
        let front = self.operations.queue.front();
        let current = front.map_or(self.operations.calls + 1, |operation| operation.number);
        for link in self.links.iter().flatten() {
            let Some(message) = link.arrived(&self.home, COLLECTIVE) else { continue };
            let number = message.header.operation;
            let unexpected =
                number == current && front.is_some_and(|operation| !operation.expects(link.peer));
            if number < current || unexpected {
                let ours = front.filter(|_| unexpected).map(|operation| operation.signature);
                return Err(self.agreement.stray(link.peer, number, &message.header.signature, ours));
            }
        }
        Ok(())
    }

    /// Announces an operation that waits.
    fn announce(&mut self, now: Instant) -> Result<()> {
        let Some(front) = self.operations.queue.front() else { return Ok(()) };
        let all = now.duration_since(front.work.begun) >= TELL_ALL;
        let (number, signature) = (front.number, front.signature);
        if !self.agreement.must_tell(number, all) {
            return Ok(());
        }
        let awaited: Vec<Rank> = front.waits_for().map(|(rank, _)| rank).collect();
        let mut links = self.links.iter_mut().flatten().filter(|link| all || awaited.contains(&link.peer));
        links.try_for_each(|link| link.announce(number, signature))
    }

    /// A peer that is not watched here has ended.
    pub fn peer_ended(&mut self, peer: Rank, reason: &str) {
        if let Some(Some(link)) = self.links.get_mut(peer)
            && !link.is_local()
        {
            link.lost.get_or_insert_with(|| reason.into());
        }
    }

    /// The ranks that have not called the oldest operation; empty as long as that is not known.
    pub fn not_called(&self) -> Vec<Rank> {
        let Some(front) = self.operations.queue.front() else { return Vec::new() };
        if !self.agreement.is_told(front.number) {
            return Vec::new();
        }
        let late = self.links.iter().flatten().filter(|link| link.reached < front.number);
        late.map(|link| link.peer).collect()
    }

    /// Handles what the NIC has completed.
    fn poll_network(&mut self) -> Result<bool> {
        let completions = self.network.poll()?;
        let result = completions.iter().try_for_each(|completion| self.completed(completion));
        let any = !completions.is_empty();
        self.network.handled(completions);
        result.map(|()| any)
    }

    fn completed(&mut self, completion: &Completion) -> Result<()> {
        let Some(peer) = self.network.peer(completion.qp_num) else { return Ok(()) };
        let Some(link) = &mut self.links[peer] else { return Ok(()) };
        if completion.wr_id == ABORT_ID && completion.opcode == Opcode::RdmaWrite {
            self.end.ending.iter_mut().for_each(|ending| ending.aborts -= 1);
        }
        if let (Opcode::RdmaWrite, Medium::Remote(remote)) = (completion.opcode, &link.medium) {
            remote.pending.set(remote.pending.get().saturating_sub(1));
        }
        if completion.status != Status::Success {
            link.lost.get_or_insert_with(|| match completion.status {
                Status::RetryExcErr => "it does not answer".into(),
                status => status.name().into(),
            });
            return Ok(());
        }
        match completion.opcode {
            Opcode::RdmaWrite => match completion.wr_id {
                0 | ABORT_ID => {}
                id if id & P2P_BIT != 0 => self.p2p.completed(peer, id),
                id => {
                    let queue = &mut self.operations.queue;
                    if let Some(operation) = queue.iter_mut().find(|operation| operation.number + 1 == id) {
                        operation.completed(peer);
                    }
                }
            },
            Opcode::RecvRdmaWithImm => {
                let notice = completion.imm_data.and_then(Notice::decode);
                let (Some(notice), Medium::Remote(remote)) = (notice, &mut link.medium) else {
                    return Ok(());
                };
                remote.notice(notice)?;
                if let Notice::Abort(code) = notice {
                    self.aborted_by_peer(code);
                }
            }
        }
        Ok(())
    }

    /// Whether peers of other hosts have everything that was sent to them.
    pub fn is_delivered(&self) -> bool {
        self.links.iter().flatten().all(|link| match &link.medium {
            Medium::Remote(remote) => link.lost.is_some() || remote.pending.get() == 0,
            Medium::Local(_) => true,
        })
    }

    /// Checks for peers that have ended and operations whose time is over. Called periodically.
    pub fn check(&mut self, now: Instant) {
        for link in self.links.iter_mut().flatten() {
            if let Medium::Local(local) = &link.medium
                && link.lost.is_none()
                && local.has_ended()
            {
                link.lost = Some(ENDED.into());
            }
        }
        // What a peer wrote before it ended still counts.
        while self.progress() {}
        if self.error().is_some() {
            return;
        }
        if let Some((error, peer)) = self.lost_and_needed() {
            self.fail(error, AbortKind::Lost, peer);
        } else if let Some(error) = self.overdue(now) {
            self.fail(error, AbortKind::Timeout, self.rank);
        } else if let Err(error) = self.announce(now) {
            self.mismatch(error);
        }
    }

    fn lost_and_needed(&self) -> Option<(Error, Rank)> {
        self.links.iter().flatten().find_map(|link| {
            let reason = link.lost.clone()?;
            let lost = |work: &WorkState, missing: String| {
                let (rank, host, operation) = (link.peer, link.host.clone(), work.subject.describe());
                Some((Error::PeerLost { rank, host, reason, operation, missing }, link.peer))
            };
            if let Some(operation) = self.operations.queue.iter().find(|o| o.needs(link.peer)) {
                return lost(&operation.work, self.missing());
            }
            let mut works = self.p2p.works();
            let (work, _, what) = works.find(|(_, rank, _)| *rank == Some(link.peer))?;
            lost(work, format!("{what} was missing"))
        })
    }

    fn overdue(&self, now: Instant) -> Option<Error> {
        let late = |work: &WorkState| work.deadline().is_some_and(|deadline| now >= deadline);
        let collective = self.operations.queue.iter().map(|operation| (&operation.work, self.missing()));
        let messages = self.p2p.works().map(|(work, rank, what)| {
            let peer = rank.map_or("any rank".into(), |rank| format!("rank {rank}"));
            (work, format!("{what} of {peer} is missing"))
        });
        collective.chain(messages).find(|(work, _)| late(work)).map(|(work, missing)| Error::Timeout {
            operation: work.subject.describe(),
            after: work.timeout,
            missing,
        })
    }

    /// The earliest end of a time limit.
    pub fn next_deadline(&self) -> Option<Instant> {
        let works = self.operations.queue.iter().map(|operation| &operation.work);
        let limits = works.chain(self.p2p.works().map(|(work, ..)| work)).filter_map(|work| work.deadline());
        limits.chain(self.end.ending.iter().map(|ending| ending.deadline)).min()
    }

    /// Ranks for which the oldest operation waits.
    pub fn waits_for(&self) -> Vec<(Rank, &'static str)> {
        self.operations.queue.front().map(|operation| operation.waits_for().collect()).unwrap_or_default()
    }

    fn missing(&self) -> String {
        let waits = self.waits_for();
        let parts: Vec<String> = waits
            .iter()
            .map(|(rank, what)| {
                let host = self.links[*rank].as_ref().map_or("?", |link| &link.host);
                format!("{what} of rank {rank} on {host}")
            })
            .collect();
        let missing = match parts.len() {
            0 => "nothing was missing".into(),
            1 => format!("{} is missing", parts[0]),
            _ => format!("{} are missing", parts.join(", ")),
        };
        let late: Vec<String> = self.not_called().iter().map(|rank| format!("rank {rank}")).collect();
        if late.is_empty() { missing } else { format!("{missing}; not called by {}", late.join(", ")) }
    }

    fn aborted_by_peer(&mut self, code: u32) {
        if self.error().is_none() {
            // Peers that read this rank's memory must know before the callers use it for something else.
            for link in self.links.iter().flatten() {
                if let Medium::Local(local) = &link.medium
                    && local.is_read()
                {
                    local.abort(code);
                }
            }
            let error = Error::Aborted(AbortCode::decode(code).describe());
            self.end(error);
        }
    }

    /// The communicator has failed: everything that waits ends with the error, and the peers are notified.
    pub fn fail(&mut self, error: Error, kind: AbortKind, subject: Rank) {
        if self.error().is_some() {
            return;
        }
        let code = AbortCode { kind, sender: self.rank, subject }.encode();
        let links = self.links.iter_mut().flatten().filter(|link| link.lost.is_none());
        let aborts = links.map(|link| usize::from(link.abort(code))).sum();
        if aborts == 0 {
            self.end(error);
        } else {
            self.end.ending = Some(Ending { error, aborts, deadline: Instant::now() + FAREWELL });
        }
    }

    fn end(&mut self, error: Error) {
        // Closing the queue pairs ends the sends under way: then the NIC no longer reads the callers' memory.
        for link in self.links.iter().flatten() {
            if let Medium::Remote(remote) = &link.medium {
                remote.stop();
            }
        }
        let works: Vec<Arc<WorkState>> = self.p2p.works().map(|(work, ..)| Arc::clone(work)).collect();
        self.p2p.clear();
        let operations = std::mem::take(&mut self.operations.queue);
        let works: Vec<_> = operations.iter().map(|o| Arc::clone(&o.work)).chain(works).collect();
        drop(operations);
        works.iter().for_each(|work| work.complete(Err(error.clone())));
        self.end.failed = Some(error);
    }

    /// Bytes of point-to-point messages, through shared memory and over the network.
    pub fn p2p_bytes(&self) -> [u64; 2] {
        self.p2p.bytes
    }
}

/// How often peers and time limits are looked at while nothing arrives.
pub const CHECK_INTERVAL: Duration = Duration::from_millis(100);

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr};

    use openmrc_nic::{Device, DeviceConfig};
    use openmrc_schedule::{Algorithm, Shape};

    use super::*;
    use crate::card::Card;
    use crate::layout::COPIED_MOST;
    use crate::local::LocalLink;
    use crate::memory::OperationMemory;
    use crate::operation::Reduction;
    use crate::types::{DataType, ReduceOp};
    use crate::work::Subject;

    const RANKS: usize = 2;

    /// Two ranks of this process that share memory, and that nobody drives.
    fn cores() -> Vec<Core> {
        let addr = IpAddr::V4(Ipv4Addr::new(127, 77, 0, std::process::id() as u8));
        let context = Device::new(DeviceConfig::with_addresses([addr])).unwrap().open().unwrap();
        let homes: Vec<Home> = (0..RANKS).map(|_| Home::new(RANKS).unwrap()).collect();
        let cards: Vec<Card> = homes.iter().enumerate().map(|(rank, home)| card(rank, home)).collect();
        let mut cores = Vec::new();
        for (rank, home) in homes.into_iter().enumerate() {
            let peer = &cards[1 - rank];
            let medium = Medium::Local(Box::new(LocalLink::open(&peer.local, &home, rank).unwrap()));
            let mut core = Core::new(rank, RANKS, home, Network::open(&context, RANKS).unwrap());
            core.add_link(Link::new(peer, medium));
            cores.push(core);
        }
        cores
    }

    fn card(rank: Rank, home: &Home) -> Card {
        Card {
            rank,
            ranks: RANKS,
            host_name: "h".into(),
            local: home.card(),
            qp_num: 0,
            psn: 0,
            path_mtu: 4096,
            rkey: 0,
            rings: [0; 2],
            planes: Vec::new(),
        }
    }

    /// Begins an all_reduce of `data` by the ring, in place.
    fn all_reduce(core: &mut Core, data: &mut [f32]) {
        let (shape, dtype, op) = (Shape::AllReduce { count: data.len() }, DataType::Float32, ReduceOp::Sum);
        let (kind, algorithm) = (shape.code(), Algorithm::Ring as u8);
        let signature = Signature {
            count: data.len() as u64,
            root: 0,
            kind,
            dtype: dtype as u8,
            op: op as u8,
            algorithm,
        };
        let program = shape.program(Algorithm::Ring, core.rank, RANKS, dtype.size());
        // SAFETY: the data has the sizes of the shape, and outlives the test's use of the core.
        let memory = unsafe {
            let lent = Lent::new(data.as_mut_ptr().cast(), size_of_val(data), Box::new(()));
            OperationMemory::new(lent, None, program.scratch)
        };
        let work = Arc::new(WorkState::new(Subject::Collective(signature), Duration::from_secs(60)));
        let reduction = Some(Reduction { dtype, op, ranks: RANKS as u32 });
        let number = core.next_call();
        core.submit(Operation::new(number, signature, program, reduction, memory, RANKS, work));
    }

    #[test]
    fn what_was_received_is_passed_on_before_the_next_message_is_taken() {
        const PARTS: usize = 2;
        let mut cores = cores();
        let mut data = vec![vec![1f32; RANKS * PARTS * COPIED_MOST / size_of::<f32>()]; RANKS];
        let sent = |core: &Core| core.operations.queue[0].bytes()[0] as usize / COPIED_MOST;
        all_reduce(&mut cores[0], &mut data[0]);
        assert_eq!(sent(&cores[0]), PARTS);
        // Two messages wait for the other rank. It sends its own two, and the first of the two that it has reduced.
        all_reduce(&mut cores[1], &mut data[1]);
        assert_eq!(sent(&cores[1]), PARTS + 1);
        while cores.iter_mut().any(Core::progress) {}
        assert!(cores.iter().all(Core::is_idle));
        assert!(data.iter().flatten().all(|&x| x == 2.0));
    }
}
