//! The flows on their way and their shares of the links. When flows come and go, only those are shared out anew that are
//! connected with them by links that can be full.

use crate::links::{LinkId, Links, Use};
use crate::max_min::MaxMin;
use crate::timing::Timing;

/// The number of a flow on its way.
pub(crate) type FlowId = u32;

/// A message on its way.
pub(crate) struct Flow {
    pub task: u32,
    pub src: u32,
    pub dst: u32,
    /// Bytes on the cable that have not left.
    remaining: f64,
    /// Bytes a picosecond, all planes together.
    rate: f64,
    /// When `remaining` was true.
    since: u64,
    /// How often its rate has changed: an event of an earlier rate is void.
    pub generation: u32,
    /// Its luck, a number of the normal distribution.
    chance: f64,
    /// It has had no share yet.
    is_new: bool,
    /// What it has lost arrives at this time at the earliest.
    pub not_before: u64,
    /// The highest load of the uplinks on its way so far, as a share.
    pub load: f64,
    uses: Vec<Use>,
    /// By use: its place among the members of the link.
    places: Vec<u32>,
    is_free: bool,
}

impl Flow {
    /// What has left at its rate until now.
    fn go_on(&mut self, now: u64) {
        self.remaining = (self.remaining - self.rate * (now - self.since) as f64).max(0.0);
        self.since = now;
    }

    fn set_rate(&mut self, rate: f64) {
        self.rate = rate;
        self.generation = self.generation.wrapping_add(1);
    }
}

/// A flow and which of its uses a link is.
#[derive(Clone, Copy)]
struct Member {
    flow: FlowId,
    number: u32,
}

/// All flows on their way.
pub(crate) struct Shares {
    flows: Vec<Flow>,
    free: Vec<FlowId>,
    /// By link: the flows that use it.
    members: Vec<Vec<Member>>,
    /// Links whose flows have to be shared out anew.
    dirty: Vec<LinkId>,
    /// Flows that have begun since the links were shared out.
    begun: Vec<FlowId>,
    region: Region,
    solver: MaxMin,
    crossing: Crossing,
}

/// Flows that are shared out together.
#[derive(Default)]
struct Region {
    flows: Vec<FlowId>,
    links: Vec<LinkId>,
    /// By link: its number in the solver.
    numbers: Vec<u32>,
    /// The round in which a link and a flow were found last.
    link_seen: Vec<u32>,
    flow_seen: Vec<u32>,
    round: u32,
}

/// What flows cross the uplinks of blocks with, all planes together, whether these can be full or not.
struct Crossing {
    /// By level: the first of its blocks.
    first: [usize; 4],
    /// By block, up and down: bytes a picosecond, and flows.
    rates: Vec<[f64; 2]>,
    flows: Vec<[u32; 2]>,
    /// By block: what it carries.
    capacity: Vec<f64>,
    /// By host: the flows that it sends.
    of_hosts: Vec<u32>,
    /// What a host can send.
    host_rate: f64,
}

/// When a flow's last byte will leave, at the rate that it has now.
pub(crate) struct Departure {
    pub at: u64,
    pub flow: FlowId,
    pub generation: u32,
}

/// From this load on uplinks are full, as far as contention goes.
const FULL: f64 = 0.8;
/// Departures are told to the nanosecond, so that flows that are alike depart together.
const GRAIN: u64 = 1_000;

impl Shares {
    pub fn new(links: &Links, timing: &Timing) -> Self {
        Shares {
            flows: Vec::new(),
            free: Vec::new(),
            members: vec![Vec::new(); links.len()],
            dirty: Vec::new(),
            begun: Vec::new(),
            region: Region::default(),
            solver: MaxMin::default(),
            crossing: Crossing::new(links, timing),
        }
    }

    pub fn flow(&self, id: FlowId) -> &Flow {
        &self.flows[id as usize]
    }

    /// The flows on their way.
    pub fn on_their_way(&self) -> impl Iterator<Item = FlowId> + use<> {
        let ids: Vec<FlowId> =
            (0..).zip(&self.flows).filter(|(_, flow)| !flow.is_free).map(|(id, _)| id).collect();
        ids.into_iter()
    }

    /// A message begins, of this number of bytes on the cable.
    pub fn begin(
        &mut self,
        links: &Links,
        (task, chance): (u32, f64),
        (src, dst): (u32, u32),
        wire: f64,
        now: u64,
    ) -> FlowId {
        let id = self.free.pop().unwrap_or_else(|| {
            self.flows.push(Flow {
                task: 0,
                src: 0,
                dst: 0,
                remaining: 0.0,
                rate: 0.0,
                since: 0,
                generation: 0,
                chance: 0.0,
                is_new: true,
                not_before: 0,
                load: 0.0,
                uses: Vec::new(),
                places: Vec::new(),
                is_free: true,
            });
            self.flows.len() as u32 - 1
        });
        let flow = &mut self.flows[id as usize];
        (flow.task, flow.chance, flow.src, flow.dst) = (task, chance, src, dst);
        (flow.is_new, flow.not_before) = (true, 0);
        (flow.remaining, flow.rate, flow.since, flow.load) = (wire, 0.0, now, 0.0);
        flow.is_free = false;
        self.crossing.count(links, (src, dst), 1);
        self.begun.push(id);
        id
    }

    /// The last byte of a flow has left.
    pub fn end(&mut self, links: &Links, id: FlowId) {
        self.leave(id);
        let flow = &mut self.flows[id as usize];
        let rate = flow.rate;
        flow.set_rate(0.0);
        flow.is_free = true;
        self.crossing.change(links, (flow.src, flow.dst), -rate);
        self.crossing.count(links, (flow.src, flow.dst), -1);
        self.free.push(id);
    }

    /// A flow has lost these bytes: they leave once more, and arrive at `again` at the earliest.
    pub fn lose(&mut self, id: FlowId, bytes: f64, again: u64) {
        let flow = &mut self.flows[id as usize];
        flow.remaining += bytes;
        flow.not_before = flow.not_before.max(again);
    }

    /// Bytes of a flow that are lost if what it sends in a period of `span` is.
    pub fn sent_in(&self, id: FlowId, span: f64) -> f64 {
        let flow = &self.flows[id as usize];
        (flow.rate * span).min(flow.remaining)
    }

    /// The links have changed: every flow finds its way anew. One that has none stands still.
    pub fn find_ways(&mut self, links: &Links, now: u64) {
        self.members.clear();
        self.members.resize(links.len(), Vec::new());
        self.dirty.clear();
        self.begun.clear();
        for id in self.on_their_way() {
            self.flows[id as usize].go_on(now);
            self.enter(links, id);
            let flow = &mut self.flows[id as usize];
            if flow.uses.is_empty() {
                self.crossing.change(links, (flow.src, flow.dst), -flow.rate);
                flow.set_rate(0.0);
            }
        }
    }

    fn enter(&mut self, links: &Links, id: FlowId) {
        let flow = &mut self.flows[id as usize];
        let load = self.crossing.expected_load(links, (flow.src, flow.dst));
        links.uses((flow.src, flow.dst), (load, flow.chance), &mut flow.uses);
        flow.places.clear();
        for (number, used) in (0..).zip(&flow.uses) {
            let members = &mut self.members[used.link as usize];
            flow.places.push(members.len() as u32);
            members.push(Member { flow: id, number });
            // What comes back on the same links leaves less to the flows there.
            self.dirty.extend([used.link, Links::opposite(used.link)]);
        }
        // It begins when a plane connects its hosts.
        flow.is_new &= !flow.uses.is_empty();
    }

    fn leave(&mut self, id: FlowId) {
        let flow = &self.flows[id as usize];
        let mut moved = Vec::new();
        for (used, &place) in flow.uses.iter().zip(&flow.places) {
            let members = &mut self.members[used.link as usize];
            members.swap_remove(place as usize);
            if let Some(&member) = members.get(place as usize) {
                moved.push((member, place));
            }
            self.dirty.extend([used.link, Links::opposite(used.link)]);
        }
        for (member, place) in moved {
            self.flows[member.flow as usize].places[member.number as usize] = place;
        }
    }

    /// Shares the links out anew where flows have come or gone. Hands out the departures of flows whose rate has
    /// changed.
    pub fn share_out(&mut self, links: &Links, timing: &Timing, now: u64, mut out: impl FnMut(Departure)) {
        for id in self.begun.clone() {
            self.enter(links, id);
        }
        self.count_losses(links, timing);
        self.find_region();
        self.solver.clear();
        for i in 0..self.region.links.len() {
            let link = self.region.links[i];
            let number = self.solver.link(self.usable(links, timing, link));
            self.region.numbers[link as usize] = number;
        }
        for &id in &self.region.flows {
            self.solver.flow();
            for used in &self.flows[id as usize].uses {
                self.solver.uses(self.region.numbers[used.link as usize], used.weight);
            }
        }
        let rates = self.solver.solve();
        for (&id, &rate) in self.region.flows.iter().zip(rates) {
            let flow = &mut self.flows[id as usize];
            self.crossing.change(links, (flow.src, flow.dst), rate - flow.rate);
            // Shares are found a little after a flow has begun: it has had its share all the time.
            if std::mem::take(&mut flow.is_new) {
                flow.rate = rate;
            }
            flow.go_on(now);
            flow.set_rate(rate);
            if rate > 0.0 {
                let at = now + (flow.remaining / rate).ceil() as u64;
                let at = at.next_multiple_of(GRAIN);
                out(Departure { at, flow: id, generation: flow.generation });
            }
        }
        for &id in &self.region.flows {
            let flow = &mut self.flows[id as usize];
            flow.load = flow.load.max(self.crossing.load(links, (flow.src, flow.dst)));
        }
    }

    /// Whether flows have come or gone since the links were shared out.
    pub fn is_due(&self) -> bool {
        !self.dirty.is_empty() || !self.begun.is_empty()
    }

    /// What messages that have begun lose because others are on their way: those that arrive together at a host are
    /// trimmed in their first round trip; those of hosts with several contend for full uplinks.
    fn count_losses(&mut self, links: &Links, timing: &Timing) {
        for id in std::mem::take(&mut self.begun) {
            let flow = &self.flows[id as usize];
            let Some(last_hop) = flow.uses.iter().find(|used| links.ends_at_host(used.link)) else {
                continue;
            };
            let members = &self.members[last_hop.link as usize];
            // A host that sends to many sends to each at a share of its rate.
            let share = |member: &Member| {
                1.0 / f64::from(self.crossing.of_host(self.flows[member.flow as usize].src))
            };
            let senders: f64 = members.iter().map(share).sum();
            let is_contended = members.len() > 1
                && self.crossing.of_host(flow.src) > 1
                && self.crossing.expected_load(links, (flow.src, flow.dst)) > FULL;
            let mut lost = timing.trimmed(flow.remaining, senders);
            if is_contended {
                lost += timing.contended(flow.remaining);
            }
            self.flows[id as usize].remaining += lost;
        }
    }

    /// What data can use of a group of links.
    fn usable(&self, links: &Links, timing: &Timing, link: LinkId) -> f64 {
        let own = self.members[link as usize].len();
        let back = self.members[Links::opposite(link) as usize].len();
        // Feedback for what goes the other way has priority.
        let feedback = timing.feedback * (back as f64 / own.max(1) as f64).min(1.0);
        let crowded = if links.ends_at_host(link) { timing.crowded(own) } else { 1.0 };
        links.capacity(link) * crowded / (1.0 + feedback)
    }

    fn find_region(&mut self) {
        let region = &mut self.region;
        region.round += 1;
        region.flows.clear();
        region.links.clear();
        region.link_seen.resize(self.members.len(), 0);
        region.numbers.resize(self.members.len(), 0);
        region.flow_seen.resize(self.flows.len(), 0);
        let mut next = 0;
        let found = |region: &mut Region, link: LinkId| {
            if std::mem::replace(&mut region.link_seen[link as usize], region.round) != region.round {
                region.links.push(link);
            }
        };
        for link in self.dirty.drain(..) {
            found(region, link);
        }
        while let Some(&link) = region.links.get(next) {
            next += 1;
            for member in &self.members[link as usize] {
                let seen = &mut region.flow_seen[member.flow as usize];
                if std::mem::replace(seen, region.round) != region.round {
                    region.flows.push(member.flow);
                    for used in &self.flows[member.flow as usize].uses {
                        found(region, used.link);
                    }
                }
            }
        }
    }
}

impl Crossing {
    fn new(links: &Links, timing: &Timing) -> Self {
        let fabric = links.fabric();
        let planes = f64::from(fabric.shape().planes);
        let (mut first, mut capacity) = ([0; 4], Vec::new());
        for level in 0..fabric.top() {
            first[usize::from(level)] = capacity.len();
            let of_block = planes * timing.port_rate * crate::links::uplinks_of_block(fabric, level) as f64;
            capacity.resize(capacity.len() + fabric.blocks(level) as usize, of_block);
        }
        Crossing {
            first,
            rates: vec![[0.0; 2]; capacity.len()],
            flows: vec![[0; 2]; capacity.len()],
            capacity,
            of_hosts: vec![0; fabric.shape().hosts as usize],
            host_rate: planes * timing.port_rate,
        }
    }

    /// The blocks that a flow leaves, and those that it enters.
    fn blocks(&self, links: &Links, (src, dst): (u32, u32)) -> impl Iterator<Item = (usize, usize)> + use<> {
        let (fabric, first) = (*links.fabric(), self.first);
        (0..fabric.turn(src, dst)).flat_map(move |level| {
            let block = |host| first[usize::from(level)] + fabric.block_of(level, host) as usize;
            [(block(src), 0), (block(dst), 1)]
        })
    }

    fn change(&mut self, links: &Links, ends: (u32, u32), by: f64) {
        for (block, direction) in self.blocks(links, ends) {
            self.rates[block][direction] += by;
        }
    }

    /// A flow comes or goes.
    fn count(&mut self, links: &Links, ends: (u32, u32), by: i32) {
        for (block, direction) in self.blocks(links, ends) {
            let flows = &mut self.flows[block][direction];
            *flows = flows.wrapping_add_signed(by);
        }
        let flows = &mut self.of_hosts[ends.0 as usize];
        *flows = flows.wrapping_add_signed(by);
    }

    /// The flows that a host sends.
    fn of_host(&self, host: u32) -> u32 {
        self.of_hosts[host as usize].max(1)
    }

    /// The highest load on a flow's way, if all hosts there send as much as they can, each to as many as its own.
    fn expected_load(&self, links: &Links, ends: (u32, u32)) -> f64 {
        let each = self.host_rate / f64::from(self.of_host(ends.0));
        let loads = self
            .blocks(links, ends)
            .map(|(block, to)| f64::from(self.flows[block][to]) * each / self.capacity[block]);
        loads.fold(0.0, f64::max).min(1.0)
    }

    /// The highest load on a flow's way.
    fn load(&self, links: &Links, ends: (u32, u32)) -> f64 {
        let loads = self.blocks(links, ends).map(|(block, to)| self.rates[block][to] / self.capacity[block]);
        loads.fold(0.0, f64::max)
    }
}
