//! Virtual time of a partition: what time it is, which events are still to come, and which go to other partitions.

use std::sync::Arc;

use crate::calendar::Calendar;
use crate::checkpoint::{CheckpointError, Reader, Writer};
use crate::event::{Event, Kind};
use crate::groups::{Address, Groups};
use crate::long_queue::LongQueue;
use crate::mailbox::Mail;

/// The time and the calendar.
pub(crate) struct Clock {
    /// Time of the current event, picoseconds.
    pub now: u64,
    /// Latest time reached. `now` may be earlier: the nodes of a calendar slot are served one after the other.
    pub end: u64,
    /// Events to come.
    pub calendar: Calendar,
    /// By partition: what it will be sent at the end of the slot.
    pub mail: Vec<Mail>,
    groups: Arc<Groups>,
    partition: u32,
}

impl Clock {
    /// Time zero, with a calendar whose slots are at most `width` picoseconds wide and which covers `reach`
    /// picoseconds.
    pub fn new(groups: &Arc<Groups>, partition: u32, width: u64, reach: u64) -> Self {
        Clock {
            now: 0,
            end: 0,
            calendar: Calendar::new(groups.nodes(partition).to_vec(), width, reach),
            mail: (0..groups.division.partitions()).map(|_| Mail::default()).collect(),
            groups: Arc::clone(groups),
            partition,
        }
    }

    /// Writes the time and the events to come. There is no mail between two slots.
    pub fn save(&self, to: &mut Writer<'_>) -> Result<(), CheckpointError> {
        to.put(&(self.now, self.end))?;
        to.put(&self.calendar)
    }

    /// Reads what [`Clock::save`] has written.
    pub fn load(&mut self, from: &mut Reader<'_>) -> Result<(), CheckpointError> {
        (self.now, self.end) = from.get()?;
        self.calendar = from.get()?;
        Ok(())
    }

    /// The time of an event has come.
    #[inline(always)]
    pub fn advance(&mut self, time: u64) {
        self.now = time;
        self.end = self.end.max(time);
    }

    /// The shortest time in which one node can affect another, picoseconds.
    #[inline]
    pub fn lookahead(&self) -> u64 {
        self.calendar.lookahead()
    }

    /// Schedules an event.
    #[inline(always)]
    pub fn push(&mut self, event: Event, to: Address) {
        if to.is_elsewhere() {
            self.mail[to.partition()].push(event, to);
        } else {
            self.calendar.push(event, to.group());
        }
    }

    /// Schedules a packet's event once more: it arrives next at port `at`.
    #[inline(always)]
    pub fn push_on(&mut self, event: &Event, time: u64, at: u32, flags: u8, to: Address) {
        if to.is_elsewhere() {
            self.mail[to.partition()].push(Event { time, at, flags, ..*event }, to);
        } else {
            self.calendar.push_on(event, time, at, flags, to.group());
        }
    }

    /// Tells another partition of a queue.
    pub fn report_queue(&mut self, queue: LongQueue, to: Address) {
        self.mail[to.partition()].queues.push(queue);
    }

    /// Schedules an event of `at` (a queue pair, message or port) at a host.
    #[inline]
    pub fn push_at_host(&mut self, time: u64, kind: Kind, at: u32, host: u32) {
        self.push_to_host(Event::plain(time, kind, at, host));
    }

    /// Schedules an event at the host that its `dst` names.
    #[inline]
    pub fn push_to_host(&mut self, event: Event) {
        self.push(event, self.groups.of_host(self.partition, event.dst));
    }

    /// Schedules an event before everything else in its slot, at no node in particular.
    pub fn push_everywhere(&mut self, time: u64, kind: Kind, at: u32) {
        self.push(Event::plain(time, kind, at, 0), Address::EVERYWHERE);
    }
}
