//! Virtual time: what time it is, and which events are still to come.

use crate::calendar::Calendar;
use crate::event::{Event, Kind};
use crate::groups::NodeGroups;

/// The time and the calendar.
pub(crate) struct Clock {
    /// Time of the current event, picoseconds.
    pub now: u64,
    /// Latest time reached. `now` may be earlier: the nodes of a calendar slot are served one after the other.
    pub end: u64,
    /// Events to come.
    pub calendar: Calendar,
    groups: NodeGroups,
}

impl Clock {
    /// Time zero, with a calendar whose slots are at most `width` picoseconds wide and which covers `reach`
    /// picoseconds.
    pub fn new(groups: NodeGroups, width: u64, reach: u64) -> Self {
        let calendar = Calendar::new(groups.first_nodes().to_vec(), width, reach);
        Clock { now: 0, end: 0, calendar, groups }
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

    /// Schedules an event at a node of `group`.
    #[inline(always)]
    pub fn push(&mut self, event: Event, group: u32) {
        self.calendar.push(event, group);
    }

    /// Schedules an event of `at` (a queue pair, message or port) at a host.
    #[inline]
    pub fn push_at_host(&mut self, time: u64, kind: Kind, at: u32, host: u32) {
        self.push_to_host(Event::plain(time, kind, at, host));
    }

    /// Schedules an event at the host that its `dst` names.
    #[inline]
    pub fn push_to_host(&mut self, event: Event) {
        self.calendar.push(event, self.groups.of_host(event.dst));
    }

    /// Schedules an event before everything else in its slot, at no node in particular.
    pub fn push_everywhere(&mut self, time: u64, kind: Kind, at: u32) {
        self.calendar.push(Event::plain(time, kind, at, 0), NodeGroups::EVERYWHERE);
    }
}
