//! Asking a peer which of its ports are up (docs/spec/transport.md, "Endpoint operations"). Anybody can forge a port
//! status update, so to a node that unknown nodes can reach it is only a reason to ask. A port that answers is up; one that
//! is silent while another port of the peer answers is down. If none answers, nothing is known and nothing must change.

use crate::api::PortSet;
use crate::time::{Span, Time};
use serde::{Deserialize, Serialize};

/// A silent port is taken for down once other answers have come to this many rounds. Requests and answers may be lost,
/// and a flood of forged updates makes many inquiries: at 3 % loss each way one inquiry in 10^5 is wrong about a port,
/// and one in 300 with two.
const ANSWERED_ROUNDS: u32 = 4;
/// Rounds that follow each other at the shortest interval, a quarter of [`Inquiry::grace`].
const QUICK_ROUNDS: u8 = 4;
/// Traffic that arrives from this round on was sent after the update: it shows that a port is still up.
const TRAFFIC_COUNTS_FROM: u8 = 3;
/// Rounds of an inquiry. A peer that has not answered by then cannot be reached; its ports stay what they were.
const MAX_ROUNDS: u8 = 10;
/// After an inquiry that changed nothing the next one waits this long at first, in units of [`Inquiry::grace`]. The
/// wait doubles up to [`LONGEST_WAIT`], so that a flood of forged updates costs a few packets per wait.
const FIRST_WAIT: u64 = 1;
const LONGEST_WAIT: u64 = 64;
/// Ports that are taken for down are asked again after this many units, then at doubling intervals up to
/// [`LONGEST_RECHECK`]: the update that says that they are back may be lost.
const FIRST_RECHECK: u64 = 16;
const LONGEST_RECHECK: Span = Span::from_secs(1);
/// Requests that an answer can still match.
const MAX_ASKED: usize = 64;
/// An answer may come this late, when its timestamp still tells something: 16 bits of 128 ns.
const LIFETIME: Span = Span(Span::WIRE_TICK.0 * u16::MAX as u64);

/// A request that was sent.
#[derive(Serialize, Deserialize)]
struct Asked {
    id: u16,
    port: u8,
    /// Its round, from 1; `None` if it belongs to an earlier inquiry.
    round: Option<u8>,
    sent: Time,
}

/// What is known of a peer's ports when it is asked.
#[derive(Clone, Copy)]
pub(super) struct Known {
    /// Ports on which it can be asked: it has an address there, and the port is up at this end.
    pub usable: PortSet,
    /// Ports that are taken for up.
    pub up: PortSet,
}

/// The next step of an inquiry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Step {
    /// Nothing to do.
    Wait,
    /// Ask on these ports, and record each request with [`Inquiry::asked`].
    Ask(PortSet),
    /// These ports are down.
    Down(PortSet),
}

/// What an answer shows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Answer {
    /// Nothing: no request that is not too old has this id and timestamp.
    Unexpected,
    /// It answers a request.
    Expected,
    /// This port is up again.
    Returned(u8),
}

/// The question which ports of one peer are up.
#[derive(Serialize, Deserialize)]
pub(super) struct Inquiry {
    /// Time that an answer may take.
    grace: Span,
    /// Ports in question now, and those that came into question meanwhile.
    open: PortSet,
    next: PortSet,
    rounds: u8,
    /// Rounds to which an answer has come, a bit each.
    answered: u32,
    /// Ports that were taken for down and have answered once. An answer can be guessed, so it takes two.
    returning: PortSet,
    /// This inquiry has changed something.
    changed: bool,
    asked: Vec<Asked>,
    due: Time,
    /// Earliest start of the next inquiry, and the wait after one that changes nothing.
    not_before: Time,
    wait: u64,
    recheck: Span,
}

impl Inquiry {
    pub fn new(grace: Span) -> Self {
        Inquiry {
            grace,
            open: PortSet::EMPTY,
            next: PortSet::EMPTY,
            rounds: 0,
            answered: 0,
            returning: PortSet::EMPTY,
            changed: false,
            asked: Vec::new(),
            due: Time::NEVER,
            not_before: Time::ZERO,
            wait: 0,
            recheck: Span::ZERO,
        }
    }

    /// When [`Self::advance`] must be called.
    #[inline]
    pub fn due(&self) -> Time {
        self.due
    }

    /// These ports are in question.
    pub fn question(&mut self, now: Time, ports: PortSet) {
        self.next = PortSet((self.next.0 | ports.0) & !self.open.0);
        if self.open.is_empty() && !self.next.is_empty() {
            self.due = self.due.min(now.max(self.not_before));
        }
    }

    /// Does what is due.
    pub fn advance(&mut self, now: Time, known: Known) -> Step {
        if now < self.due {
            return Step::Wait;
        }
        let was_open = !self.open.is_empty();
        // A port that has gone down at this end meanwhile cannot be asked about.
        self.open = self.open.and(known.usable);
        if was_open && self.open.is_empty() {
            self.finish(now);
            return Step::Wait;
        }
        if self.open.is_empty() {
            let down = PortSet(known.usable.0 & !known.up.0);
            let wanted = std::mem::take(&mut self.next);
            self.open = PortSet(wanted.0 | down.0).and(known.usable);
            (self.rounds, self.answered, self.returning, self.changed) = (0, 0, PortSet::EMPTY, false);
            self.asked.iter_mut().for_each(|asked| asked.round = None);
            if self.open.is_empty() {
                self.due = Time::NEVER;
                return Step::Wait;
            }
        } else if self.answered.count_ones() >= ANSWERED_ROUNDS {
            let down = PortSet(self.open.0 & !self.returning.0);
            let stays = PortSet(known.up.0 & !down.0);
            // What is taken for up may have changed meanwhile, and an answer on a port that was down is not enough to
            // use that port. The last plane is not given up.
            let some_stay = !stays.is_empty();
            self.changed |= some_stay && stays != known.up;
            self.finish(now);
            return if some_stay { Step::Down(down) } else { Step::Wait };
        } else if self.rounds == MAX_ROUNDS {
            self.finish(now);
            return Step::Wait;
        }
        self.due = now + self.grace.over(4).times(1 << (self.rounds + 1).saturating_sub(QUICK_ROUNDS));
        let ask = PortSet(self.open.0 | self.witness(known).0);
        self.rounds += 1;
        Step::Ask(ask)
    }

    /// A port that is not in question, another one in each round: its answer shows that the peer is alive.
    fn witness(&self, known: Known) -> PortSet {
        let others = PortSet(known.usable.0 & !self.open.0);
        let good = if others.and(known.up).is_empty() { others } else { others.and(known.up) };
        let turn = usize::from(self.rounds) % (good.len().max(1) as usize);
        good.iter().nth(turn).map_or(PortSet::EMPTY, PortSet::one)
    }

    /// The request of this round on a port has this id.
    pub fn asked(&mut self, now: Time, port: u8, id: u16) {
        if self.asked.len() == MAX_ASKED {
            self.asked.remove(0);
        }
        self.asked.push(Asked { id, port, round: Some(self.rounds), sent: now });
    }

    /// An answer with this id and reflected timestamp has come.
    pub fn answered(&mut self, now: Time, id: u16, ticks: u16, up: PortSet) -> Answer {
        let lifetime = LIFETIME.max(self.grace.times(2));
        self.asked.retain(|a| now.since(a.sent) <= lifetime);
        let Some(index) = self.asked.iter().position(|a| a.id == id && is_reflected(ticks, a.sent, now))
        else {
            return Answer::Unexpected;
        };
        let Asked { port, round, .. } = self.asked.remove(index);
        if let Some(round) = round {
            self.answered |= 1 << round;
        }
        let returned = !up.contains(port);
        if returned && !self.returning.contains(port) {
            self.returning = self.returning.with(port);
            return Answer::Expected;
        }
        if returned {
            self.changed = true;
            self.recheck = Span::ZERO;
        }
        if self.open.contains(port) {
            self.open = self.open.without(port);
            if self.open.is_empty() {
                self.finish(now);
            }
        }
        if returned { Answer::Returned(port) } else { Answer::Expected }
    }

    /// Whether ports are in question now.
    pub fn is_open(&self) -> bool {
        !self.open.is_empty()
    }

    /// A packet of a queue pair has arrived on a port.
    pub fn heard(&mut self, now: Time, port: u8, up: PortSet) {
        if self.rounds >= TRAFFIC_COUNTS_FROM && self.open.contains(port) && up.contains(port) {
            self.open = self.open.without(port);
            if self.open.is_empty() {
                self.finish(now);
            }
        }
    }

    /// The inquiry is over. Whether ports are down, which are to be asked again, shows when the time has come.
    fn finish(&mut self, now: Time) {
        self.open = PortSet::EMPTY;
        self.wait = if self.changed { 0 } else { (self.wait * 2).clamp(FIRST_WAIT, LONGEST_WAIT) };
        self.not_before = now + self.grace.times(self.wait);
        self.recheck = self.recheck.times(2).max(self.grace.times(FIRST_RECHECK)).min(LONGEST_RECHECK);
        let again = now + self.recheck;
        self.due = if self.next.is_empty() { again } else { again.min(self.not_before) };
    }
}

/// Whether an answer at `now` may reflect the timestamp of a request that was sent at `sent`. A responder may move the
/// timestamp on by the time for which it held the request.
pub(super) fn is_reflected(ticks: u16, sent: Time, now: Time) -> bool {
    let age = now.since(sent).0 / Span::WIRE_TICK.0;
    age >= u64::from(u16::MAX) || u64::from(ticks.wrapping_sub(sent.wire_ticks())) <= age + 1
}

#[cfg(test)]
mod tests {
    use super::*;

    const GRACE: Span = Span::from_micros(100);

    /// Asks about port 0 of eight, where only these are up, until the inquiry ends. In each round the port answers of
    /// which the round's number is taken.
    fn outcome(up: PortSet, up_later: PortSet, answers: [u8; 4]) -> Step {
        let mut inquiry = Inquiry::new(GRACE);
        let usable = PortSet::first(8);
        let mut now = Time(1_000_000);
        let mut id = 0;
        inquiry.question(now, PortSet::one(0));
        for port in answers {
            let Step::Ask(ports) = inquiry.advance(now, Known { usable, up }) else {
                panic!("it does not ask")
            };
            for asked in ports.iter() {
                id += 1;
                inquiry.asked(now, asked, id);
                if asked == port {
                    let answer = inquiry.answered(now + Span(1), id, now.wire_ticks(), up);
                    assert_eq!(answer, Answer::Expected);
                }
            }
            now = now.max(inquiry.due());
        }
        inquiry.advance(now, Known { usable, up: up_later })
    }

    #[test]
    fn a_silent_port_is_down_once_others_have_answered() {
        let up = PortSet::first(8);
        assert_eq!(outcome(up, up, [1, 2, 3, 4]), Step::Down(PortSet::one(0)));
        let two = PortSet::first(2);
        assert_eq!(outcome(two, two, [1, 1, 1, 1]), Step::Down(PortSet(0b1111_1101)));
    }

    #[test]
    fn the_last_port_is_not_given_up_because_others_have_answered_once() {
        let last = PortSet::one(0);
        assert_eq!(outcome(last, last, [1, 2, 3, 4]), Step::Wait);
    }

    #[test]
    fn the_last_port_is_not_given_up_where_the_others_have_gone_meanwhile() {
        assert_eq!(outcome(PortSet::first(8), PortSet::one(0), [1, 2, 3, 4]), Step::Wait);
    }

    #[test]
    fn a_timestamp_is_reflected_if_it_lies_between_the_request_and_now() {
        let (sent, tick) = (Time(1 << 50), Span::WIRE_TICK.0);
        let is_reflected = |ticks: u16, age: u64| {
            is_reflected(sent.wire_ticks().wrapping_add(ticks), sent, Time(sent.0 + age * tick))
        };
        assert!(is_reflected(0, 100) && is_reflected(50, 100) && is_reflected(101, 100));
        assert!(!is_reflected(102, 100) && !is_reflected(u16::MAX, 100));
        // Nothing is known of a time in which the clock of the wire went round.
        assert!(!is_reflected(u16::MAX, 65_533) && is_reflected(u16::MAX, 65_535));
    }

    /// An inquiry of a peer with eight ports, all of them usable.
    struct Asking {
        inquiry: Inquiry,
        now: Time,
        up: PortSet,
        /// The requests of the last round: port and id.
        asked: Vec<(u8, u16)>,
        last_id: u16,
    }

    impl Asking {
        fn new(up: PortSet) -> Self {
            let (inquiry, now) = (Inquiry::new(GRACE), Time(1_000_000));
            Asking { inquiry, now, up, asked: Vec::new(), last_id: 0 }
        }

        fn question(&mut self, ports: PortSet) {
            self.inquiry.question(self.now, ports);
        }

        /// Does what is due next.
        fn advance(&mut self) -> Step {
            self.now = self.now.max(self.inquiry.due());
            let known = Known { usable: PortSet::first(8), up: self.up };
            let step = self.inquiry.advance(self.now, known);
            if let Step::Ask(ports) = step {
                self.asked.clear();
                for port in ports.iter() {
                    self.last_id += 1;
                    self.asked.push((port, self.last_id));
                    self.inquiry.asked(self.now, port, self.last_id);
                }
            }
            step
        }

        /// The next round; the ports that it asks.
        fn ask(&mut self) -> PortSet {
            let Step::Ask(ports) = self.advance() else { panic!("it does not ask") };
            ports
        }

        fn answer(&mut self, port: u8) -> Answer {
            let id = self.asked.iter().find(|asked| asked.0 == port).expect("it was asked").1;
            self.inquiry.answered(self.now, id, self.now.wire_ticks(), self.up)
        }

        /// Goes on to the end of the inquiry; of the ports that are asked only these answer.
        fn finish(&mut self, answering: PortSet) -> Step {
            loop {
                match self.advance() {
                    Step::Ask(ports) => ports.and(answering).iter().for_each(|port| {
                        self.answer(port);
                    }),
                    step => return step,
                }
            }
        }

        /// Time until this, in quarters of the grace time.
        fn quarters_until(&self, due: Time) -> u64 {
            due.since(self.now).0 / GRACE.over(4).0
        }
    }

    #[test]
    fn a_silent_peer_is_asked_in_four_quick_rounds_and_six_at_doubling_intervals() {
        let mut asking = Asking::new(PortSet::first(8));
        asking.question(PortSet::one(0));
        assert_eq!(asking.inquiry.due(), asking.now);
        for quarters in [1, 1, 1, 1, 2, 4, 8, 16, 32, 64] {
            assert!(asking.ask().contains(0));
            assert_eq!(asking.quarters_until(asking.inquiry.due()), quarters);
            assert!(asking.inquiry.is_open());
        }
        assert_eq!(asking.advance(), Step::Wait);
        assert!(!asking.inquiry.is_open());
    }

    #[test]
    fn each_round_asks_what_is_in_question_and_another_port_in_turn() {
        let mut asking = Asking::new(PortSet(0b0001_1111));
        // Ports that are down are asked along, and port 1 once although it is in question twice.
        asking.question(PortSet(0b0100_0010));
        asking.question(PortSet(0b0000_0010));
        for witness in [0, 2, 3, 4, 0] {
            assert_eq!(asking.ask(), PortSet(0b1110_0010).with(witness));
        }
    }

    #[test]
    fn a_question_during_an_inquiry_waits_for_the_next_one_and_hurries_nothing() {
        let mut asking = Asking::new(PortSet::first(8));
        asking.question(PortSet::EMPTY);
        assert_eq!(asking.inquiry.due(), Time::NEVER, "nothing is in question");
        asking.question(PortSet::one(0));
        asking.ask();
        let due = asking.inquiry.due();
        asking.question(PortSet(0b1001));
        assert_eq!(asking.inquiry.due(), due);
        assert_eq!(asking.answer(0), Answer::Expected);
        // Nothing has changed, so it begins after the grace time, and port 0 has answered.
        assert_eq!(asking.quarters_until(asking.inquiry.due()), 4);
        assert_eq!(asking.ask(), PortSet(0b1001), "port 3, and port 0 as the first that is not in question");
        asking.answer(0);
        assert!(asking.inquiry.is_open());
        asking.answer(3);
        assert!(!asking.inquiry.is_open());
    }

    #[test]
    fn after_inquiries_without_a_result_the_next_waits_twice_as_long_up_to_64_times_the_grace() {
        let mut asking = Asking::new(PortSet::first(8));
        let next_wait = |asking: &mut Asking, port| {
            asking.question(PortSet::one(port));
            asking.quarters_until(asking.inquiry.due()) / 4
        };
        for wait in [0, 1, 2, 4, 8, 16, 32, 64, 64, 64] {
            assert_eq!(next_wait(&mut asking, 0), wait);
            assert_eq!(asking.finish(PortSet::EMPTY), Step::Wait);
        }
        assert_eq!(next_wait(&mut asking, 0), 64);
        // A result ends the waiting.
        assert_eq!(asking.finish(PortSet::first(8).without(0)), Step::Down(PortSet::one(0)));
        asking.up = asking.up.without(0);
        assert_eq!(next_wait(&mut asking, 1), 0);
        // Port 1 answers, and port 0 is found down as before: that is no result.
        assert_eq!(asking.finish(asking.up), Step::Down(PortSet::one(0)));
        assert_eq!(next_wait(&mut asking, 1), 1);
    }

    #[test]
    fn an_inquiry_after_which_no_port_would_stay_is_without_a_result() {
        let mut asking = Asking::new(PortSet::one(0));
        asking.question(PortSet::one(0));
        // Each of the others answers once, which is not enough to use it.
        for port in 1..=4 {
            assert!(asking.ask().contains(port));
            assert_eq!(asking.answer(port), Answer::Expected);
        }
        assert_eq!(asking.advance(), Step::Wait);
        asking.question(PortSet::one(0));
        assert_eq!(asking.quarters_until(asking.inquiry.due()), 4);
    }

    #[test]
    fn traffic_of_the_third_round_or_later_shows_that_a_port_in_question_is_up() {
        for rounds in 1..6 {
            let mut asking = Asking::new(PortSet::first(8).without(2));
            asking.question(PortSet(0b111));
            for _ in 0..rounds {
                asking.ask();
            }
            // Port 2 is down until it answers, and port 5 is not in question.
            for port in [0, 1, 2, 5] {
                asking.inquiry.heard(asking.now, port, asking.up);
            }
            let open = if rounds < 3 { PortSet(0b111) } else { PortSet::one(2) };
            assert_eq!(asking.inquiry.open, open, "round {rounds}");
        }
    }

    #[test]
    fn traffic_without_a_question_changes_nothing() {
        let mut asking = Asking::new(PortSet::first(8));
        asking.inquiry.heard(asking.now, 0, asking.up);
        assert_eq!(asking.inquiry.due(), Time::NEVER);
        asking.question(PortSet::one(0));
        asking.finish(PortSet::EMPTY);
        let due = asking.inquiry.due();
        asking.now += Span(1);
        (0..8).for_each(|port| asking.inquiry.heard(asking.now, port, asking.up));
        assert_eq!(asking.inquiry.due(), due);
    }
}
