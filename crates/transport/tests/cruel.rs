//! Thousands of seeded runs through a hostile network (docs/spec/transport.md, "What must hold whatever the network
//! does").
//!
//! `OPENMRC_SEEDS=n` runs n seeds; `OPENMRC_SEED=x` runs only seed x, with a trace of every packet.

mod world;

use std::sync::Mutex;

use openmrc_transport::mrc::QueuePair;
use openmrc_transport::node::{MtuProgress, linger_time};
use openmrc_transport::{Fatal, PortSet, Span, Time};
use openmrc_wire::Aeth;
use world::driver::Outcome;
use world::ledger::FlowCounters;
use world::network::Health;
use world::seeds::{run_one, run_seeds};
use world::{Action, Dice, Expect, Impairments, Scenario, Traffic, World};

/// Checks that the outcome is one that the scenario allows.
fn judge(scenario: &Scenario, outcome: &Outcome) -> Result<(), String> {
    match scenario.expect {
        Expect::Completes if outcome.fatal.iter().any(Option::is_some) => {
            Err(format!("a queue pair failed: {:?}", outcome.fatal))
        }
        Expect::MayFail | Expect::MustFail
            if outcome.fatal.iter().flatten().any(|why| *why != Fatal::RetryExceeded) =>
        {
            Err(format!("a queue pair failed for the wrong reason: {:?}", outcome.fatal))
        }
        _ => outcome.flows.iter().try_for_each(no_storm),
    }
}

/// Checks that retransmissions are few, even of a message that cannot be delivered.
fn no_storm(flow: &FlowCounters) -> Result<(), String> {
    if flow.retransmitted > 20 * flow.first_sent + 1000 {
        return Err(format!("{} retransmissions of {} packets", flow.retransmitted, flow.first_sent));
    }
    Ok(())
}

#[test]
fn every_byte_arrives_and_every_completion_comes_once_and_in_order_whatever_the_network_does() {
    let total = Mutex::new(Totals::default());
    run_seeds::<QueuePair>("cruel", 20_000, Scenario::generate, |scenario, outcome| {
        total.lock().unwrap().add(outcome);
        judge(scenario, outcome)
    });
    total.into_inner().unwrap().check();
}

/// Totals of the impairments and errors over all runs: each must have occurred, or the runs prove nothing.
#[derive(Default, Debug)]
struct Totals {
    runs: u64,
    retransmitted: u64,
    lost: u64,
    feedback_lost: u64,
    trimmed: u64,
    marked: u64,
    duplicated: u64,
    reordered: u64,
    corrupted: u64,
    garbled: u64,
    stale: u64,
    garbage: u64,
    condemned: u64,
    returned: u64,
    psn_wraps: u64,
    failed: u64,
    flushed: u64,
    sent: u64,
    port_updates_sent: u64,
    port_updates_applied: u64,
    ports_contradicted: u64,
    requests_answered: u64,
    probes_unanswered: u64,
    peers_silent: u64,
}

impl Totals {
    fn add(&mut self, outcome: &Outcome) {
        let net = &outcome.network;
        self.runs += 1;
        self.lost += net.data_lost;
        self.feedback_lost += net.control_lost;
        self.trimmed += net.trimmed;
        self.marked += net.marked;
        self.duplicated += net.duplicated;
        self.reordered += net.reordered;
        self.corrupted += net.corrupted;
        self.garbled += net.garbled;
        self.stale += net.stale;
        self.garbage += net.garbage;
        self.condemned += outcome.condemned;
        self.returned += outcome.returned;
        for flow in &outcome.flows {
            self.sent += flow.first_sent;
            self.retransmitted += flow.retransmitted;
            self.psn_wraps += u64::from(flow.psn_wrapped);
            self.flushed += flow.flushed;
        }
        for node in &outcome.nodes {
            self.port_updates_sent += node.port_updates_sent;
            self.port_updates_applied += node.port_updates_applied;
            self.ports_contradicted += node.ports_contradicted;
            self.requests_answered += node.requests_answered;
            self.probes_unanswered += node.probes_unanswered;
        }
        self.peers_silent += outcome.silences;
        self.failed += outcome.fatal.iter().flatten().count() as u64;
    }

    fn check(&self) {
        println!("{self:#?}");
        if self.runs < 1000 {
            return;
        }
        for (what, count) in [
            ("retransmission", self.retransmitted),
            ("loss", self.lost),
            ("loss of feedback", self.feedback_lost),
            ("trimming", self.trimmed),
            ("marking", self.marked),
            ("duplication", self.duplicated),
            ("reordering", self.reordered),
            ("corruption", self.corrupted),
            ("garbled trimmed header", self.garbled),
            ("stale packet", self.stale),
            ("meaningless packet", self.garbage),
            ("condemned path", self.condemned),
            ("returned path", self.returned),
            ("PSN wrap", self.psn_wraps),
            ("failed queue pair", self.failed),
            ("flushed send", self.flushed),
            ("port status update that changed something", self.port_updates_applied),
            ("port put back by traffic", self.ports_contradicted),
            ("unanswered EV probe", self.probes_unanswered),
            ("peer called silent", self.peers_silent),
        ] {
            assert!(count > 100, "only {count} times in {} runs: {what}", self.runs);
        }
    }
}

/// Whatever an attacker on the path adds, a message with a hole ends in an error at both ends, never in success. The
/// world checks that what completes is complete.
#[test]
fn a_hole_in_a_message_is_an_error_never_a_success() {
    let total = Mutex::new((0, 0));
    let scenario = |seed| {
        let mut scenario = Scenario::generate(seed);
        scenario.impairments.holes = 0.01;
        scenario.expect = Expect::MayFail;
        // A peer in ERROR whose NAK does not arrive can only be given up.
        let configs = scenario.pairs.iter_mut().flat_map(|pair| &mut pair.configs);
        configs.for_each(|config| config.requestor.exp_cnt = config.requestor.exp_cnt.min(4));
        scenario
    };
    run_seeds::<QueuePair>("cruel", 1_000, scenario, |_, outcome| {
        let mut total = total.lock().unwrap();
        total.0 += outcome.network.holes;
        for why in outcome.fatal.iter().flatten() {
            match why {
                Fatal::InvalidRequest | Fatal::RemoteNak(Aeth::NAK_INVALID_REQUEST) => total.1 += 1,
                Fatal::RetryExceeded => {}
                other => return Err(format!("a queue pair failed for the wrong reason: {other:?}")),
            }
        }
        Ok(())
    });
    let (holes, errors) = total.into_inner().unwrap();
    assert!(holes > 1000 && errors > 100, "{holes} holes, {errors} errors");
}

/// Feedback that an attacker on the path makes up may end a connection or slow it down. It may not complete a message
/// that has not arrived (the world checks that), nor leave a message without an end.
#[test]
fn forged_feedback_within_the_window_leaves_no_message_half_done_or_without_an_end() {
    let total = Mutex::new((0, 0, 0));
    let scenario = |seed| {
        let mut scenario = Scenario::generate(seed);
        scenario.impairments.forgeries = [0.001, 0.01, 0.1][seed as usize % 3];
        scenario.expect = Expect::MayFail;
        // A requestor that takes a lost packet for arrived can only give up.
        let configs = scenario.pairs.iter_mut().flat_map(|pair| &mut pair.configs);
        configs.for_each(|config| config.requestor.exp_cnt = config.requestor.exp_cnt.min(4));
        scenario
    };
    run_seeds::<QueuePair>("cruel", 2_000, scenario, |_, outcome| {
        let mut total = total.lock().unwrap();
        total.0 += outcome.network.forgeries;
        let failed = outcome.fatal.iter().flatten().count() as u64;
        if outcome.network.forgeries > 0 {
            total.1 += failed;
            total.2 += outcome.fatal.len() as u64 - failed;
        }
        Ok(())
    });
    let (forgeries, failed, alive) = total.into_inner().unwrap();
    println!("{forgeries} forgeries; of the ends that met one, {failed} failed and {alive} did not");
    assert!(forgeries > 1000 && failed > 100 && alive > 100, "{forgeries}, {failed}, {alive}");
}

/// A scenario whose receives are posted late, one or several at a time. Half of the networks are calm, and their
/// senders have hardly any retries: the wait for a receive must not use them up.
fn with_late_receives(seed: u64) -> Scenario {
    let mut scenario = Scenario::generate(seed);
    let mut dice = Dice::new(seed ^ 0x0EC1);
    let is_calm = scenario.expect == Expect::Completes && dice.chance(0.5);
    if is_calm {
        scenario.impairments = Impairments::calm();
        scenario.actions.clear();
        scenario.queues = None;
        scenario.timer_slack = Span::ZERO;
    }
    (scenario.receives, scenario.receive_wait) = (dice.below(3), Span(u64::MAX));
    let begin = scenario.actions.last().map_or(Time::ZERO, |(time, _)| *time);
    let mut end_of_all = begin;
    for (number, pair) in scenario.pairs.iter_mut().enumerate() {
        for config in &mut pair.configs {
            config.requestor.peer_waits = true;
            if is_calm {
                (config.requestor.linear_cnt, config.requestor.exp_cnt) = (1, 1);
            }
        }
        // The peer is asked a few times in each interval: thousands of them do.
        let longest = pair.configs[0].requestor.timeout.as_nanos() * 5_000;
        for end in [2 * number, 2 * number + 1] {
            let mut time = Time::ZERO;
            for _ in 0..dice.below(20) {
                time += Span::from_nanos(dice.log_between(100, longest / 50));
                scenario.actions.push((time, Action::Receives { end, count: dice.between(1, 30) }));
            }
            time += Span::from_nanos(dice.log_between(100, longest));
            scenario.actions.push((time, Action::Receives { end, count: u64::MAX }));
            end_of_all = end_of_all.max(time);
        }
    }
    scenario.actions.sort_by_key(|(time, _)| *time);
    scenario.deadline += end_of_all.since(begin);
    scenario
}

#[test]
fn a_message_waits_for_its_receive_and_nothing_is_lost_repeated_or_given_up_meanwhile() {
    let total = Mutex::new((0, 0, 0));
    run_seeds::<QueuePair>("cruel", 500, with_late_receives, |scenario, outcome| {
        let mut total = total.lock().unwrap();
        total.0 += outcome.flows.iter().map(|flow| flow.received).sum::<u64>();
        total.1 += u64::from(outcome.finished > Time::ZERO + Span::from_millis(20));
        total.2 += outcome.fatal.iter().flatten().count();
        judge(scenario, outcome)
    });
    let (received, long, failed) = total.into_inner().unwrap();
    println!("{received} immediates; {long} runs waited for long; {failed} ends failed, as they may");
    assert!(received > 10_000 && long > 50 && failed > 10, "{received}, {long}, {failed}");
}

/// Late receives, and a wait that some of them outlast. The world checks that no message is refused before its time.
fn with_short_waits(seed: u64) -> Scenario {
    let mut scenario = with_late_receives(seed);
    let longest =
        scenario.pairs.iter().map(|pair| pair.configs[0].requestor.timeout.as_nanos() * 5_000).max();
    let mut dice = Dice::new(seed ^ 0x5017);
    scenario.receive_wait = Span::from_nanos(dice.log_between(100, longest.unwrap_or(100)));
    scenario.expect = Expect::MayFail;
    // A sender whose peer is in ERROR, and whose NAK was lost, can only give up.
    let configs = scenario.pairs.iter_mut().flat_map(|pair| &mut pair.configs);
    configs.for_each(|config| config.requestor.exp_cnt = config.requestor.exp_cnt.min(4));
    scenario
}

#[test]
fn a_message_that_waits_for_too_long_is_refused_and_both_ends_learn_it() {
    let total = Mutex::new((0, 0, 0));
    run_seeds::<QueuePair>("cruel", 500, with_short_waits, |_, outcome| {
        let mut total = total.lock().unwrap();
        for why in outcome.fatal.iter().flatten() {
            match why {
                Fatal::NoReceive => total.0 += 1,
                Fatal::RemoteNak(Aeth::NAK_REMOTE_OPERATIONAL) => total.1 += 1,
                Fatal::RetryExceeded => {}
                other => return Err(format!("a queue pair failed for the wrong reason: {other:?}")),
            }
        }
        total.2 += usize::from(outcome.fatal.iter().all(Option::is_none));
        Ok(())
    });
    let (refused, told, unharmed) = total.into_inner().unwrap();
    println!("{refused} ends refused a message, {told} peers were told; {unharmed} runs had no error");
    assert!(refused > 50 && told > 50 && unharmed > 50, "{refused}, {told}, {unharmed}");
}

/// A scenario whose applications destroy their queue pairs as soon as all is done as far as they know. Peers whose last
/// acknowledgements are lost ask again; without an answer they give up.
fn with_ends_destroyed(seed: u64, linger: impl Fn(Span) -> Span) -> Scenario {
    let mut scenario = Scenario::generate(seed);
    let timeout = scenario.pairs.iter().flat_map(|pair| &pair.configs).map(|c| c.requestor.timeout).max();
    scenario.linger = timeout.map(linger);
    scenario
}

#[test]
fn a_destroyed_queue_pair_answers_until_its_peer_knows_that_all_has_arrived() {
    let answers = Mutex::new(0);
    let scenario = |seed| with_ends_destroyed(seed, linger_time);
    run_seeds::<QueuePair>("cruel", 1_000, scenario, |scenario, outcome| {
        *answers.lock().unwrap() += outcome.answers_after;
        judge(scenario, outcome)
    });
    let answers = answers.into_inner().unwrap();
    println!("{answers} packets of destroyed queue pairs");
    assert!(answers > 1_000, "{answers}");
}

#[test]
fn without_lingering_some_peers_never_learn_that_their_messages_have_arrived() {
    let failed = Mutex::new(0);
    let scenario = |seed| {
        let mut scenario = with_ends_destroyed(seed, |_| Span::ZERO);
        scenario.expect = Expect::MayFail;
        let configs = scenario.pairs.iter_mut().flat_map(|pair| &mut pair.configs);
        configs.for_each(|config| config.requestor.exp_cnt = config.requestor.exp_cnt.min(4));
        scenario
    };
    let completes = |seed| Scenario::generate(seed).expect == Expect::Completes;
    run_seeds::<QueuePair>("cruel", 300, scenario, |scenario, outcome| {
        if completes(scenario.seed) {
            *failed.lock().unwrap() += outcome.fatal.iter().flatten().count();
        }
        judge(scenario, outcome)
    });
    let failed = failed.into_inner().unwrap();
    println!("{failed} ends gave up");
    assert!(failed > 10, "{failed}");
}

/// A scenario in which both ends prove their path MTU and send nothing else, where some planes carry short packets only.
/// Nobody forges answers.
fn with_narrow_planes(seed: u64) -> Scenario {
    let mut scenario = Scenario::generate(seed);
    let narrow = narrow_planes(&scenario);
    let health = Health::narrow(200);
    scenario.actions = narrow.iter().map(|port| (Time::ZERO, Action::Plane { port, health })).collect();
    scenario.pairs.iter_mut().for_each(|pair| pair.traffic = [Traffic::none(), Traffic::none()]);
    scenario.impairments.garbage = 0.0;
    (scenario.proves_mtu, scenario.expect) = (true, Expect::MayFail);
    scenario
}

/// The planes that are narrow in the scenario with this seed: each with a probability of one quarter.
fn narrow_planes(scenario: &Scenario) -> PortSet {
    let mut dice = Dice::new(scenario.seed ^ 0x3A44);
    let ports = (0..scenario.ports as u8).filter(|_| dice.chance(0.25));
    ports.fold(PortSet::EMPTY, PortSet::with)
}

/// What a proof has shown, if it has ended and no narrow plane has passed for a wide one.
fn ended_truly(progress: &Option<MtuProgress>, narrow: PortSet) -> Result<MtuProgress, String> {
    let progress = progress.ok_or("a proof has not ended")?;
    if !progress.full.and(narrow).is_empty() {
        return Err(format!("{progress:?}, and the narrow planes are {narrow:?}"));
    }
    Ok(progress)
}

#[test]
fn no_network_makes_a_narrow_plane_pass_for_a_wide_one() {
    let total = Mutex::new((0, 0, 0));
    run_seeds::<QueuePair>("cruel", 1_000, with_narrow_planes, |scenario, outcome| {
        let narrow = narrow_planes(scenario);
        let mut total = total.lock().unwrap();
        for progress in &outcome.mtu {
            let progress = ended_truly(progress, narrow)?;
            total.0 += progress.full.len();
            total.1 += progress.narrow().and(narrow).len();
            total.2 += PortSet(progress.asked.0 & !narrow.0 & !progress.full.0).len();
        }
        Ok(())
    });
    let (wide, narrow, missed) = total.into_inner().unwrap();
    println!("{wide} wide and {narrow} narrow planes were found, {missed} wide ones were not");
    assert!(wide > 1_000 && narrow > 300 && missed < wide / 10, "{wide}, {narrow}, {missed}");
}

/// A scenario in which both ends prove their path MTU while ports go down and come back, nodes stall and clocks jump, and
/// then send; some planes carry short packets only.
fn with_proofs_before_traffic(seed: u64) -> Scenario {
    let mut scenario = Scenario::generate(seed);
    let narrow = narrow_planes(&scenario);
    let health = Health::narrow(200);
    // Planes stay as they are, so that it is known what a proof may show.
    scenario.actions.retain(|(_, action)| {
        !matches!(action, Action::Path { .. } | Action::Plane { .. } | Action::Direction { .. })
    });
    let planes = narrow.iter().map(|port| (Time::ZERO, Action::Plane { port, health }));
    scenario.actions.splice(0..0, planes);
    // A proof that is not answered takes a second more.
    scenario.deadline += Span::from_secs(2);
    scenario.impairments.garbage = 0.0;
    // Nobody forges answers.
    for (_, action) in &mut scenario.actions {
        if let Action::Impairments(impairments) = action {
            impairments.garbage = 0.0;
        }
    }
    scenario.proves_mtu = true;
    if scenario.expect != Expect::Completes || !narrow.is_empty() {
        scenario.expect = Expect::MayFail;
    }
    // An application does not begin where packets of full size do not arrive.
    if !narrow.is_empty() {
        scenario.pairs.iter_mut().for_each(|pair| pair.traffic = [Traffic::none(), Traffic::none()]);
    }
    scenario
}

#[test]
fn a_proof_ends_in_its_time_and_leaves_no_trace_in_the_messages_after_it() {
    let total = Mutex::new((0, 0, 0, 0));
    run_seeds::<QueuePair>("cruel", 1_000, with_proofs_before_traffic, |scenario, outcome| {
        let narrow = narrow_planes(scenario);
        let mut total = total.lock().unwrap();
        for progress in &outcome.mtu {
            let progress = ended_truly(progress, narrow)?;
            // It says of each port that was asked what it has shown.
            let told = PortSet(progress.full.0 | progress.narrow().0 | progress.silent().0);
            if progress.asked.0 & !told.0 != 0 {
                return Err(format!("says nothing of some ports: {progress:?}"));
            }
            total.0 += usize::from(progress.is_complete());
            total.1 += usize::from(!progress.narrow().is_empty());
            total.2 += usize::from(!progress.silent().is_empty());
        }
        total.3 += outcome.flows.iter().map(|flow| flow.completed).sum::<u64>();
        judge(scenario, outcome)
    });
    let (complete, narrow, silent, completed) = total.into_inner().unwrap();
    println!(
        "{complete} complete, {narrow} with narrow ports, {silent} with silent ones; {completed} messages"
    );
    assert!(complete > 500 && narrow > 100 && completed > 10_000, "{complete}, {narrow}, {silent}");
}

/// Late receives, and ends that are destroyed as soon as all is done as far as they know.
fn with_late_receives_and_ends_destroyed(seed: u64) -> Scenario {
    let mut scenario = with_late_receives(seed);
    let timeout = scenario.pairs.iter().flat_map(|pair| &pair.configs).map(|c| c.requestor.timeout).max();
    scenario.linger = timeout.map(linger_time);
    scenario
}

#[test]
fn a_receiver_that_is_destroyed_after_its_last_late_receive_still_tells_its_sender() {
    let total = Mutex::new((0, 0));
    run_seeds::<QueuePair>("cruel", 500, with_late_receives_and_ends_destroyed, |scenario, outcome| {
        let mut total = total.lock().unwrap();
        total.0 += outcome.flows.iter().map(|flow| flow.received).sum::<u64>();
        total.1 += outcome.answers_after;
        judge(scenario, outcome)
    });
    let (received, answers) = total.into_inner().unwrap();
    println!("{received} immediates, {answers} packets of destroyed queue pairs");
    assert!(received > 10_000 && answers > 500, "{received}, {answers}");
}

#[test]
fn every_destroyed_queue_pair_is_gone_after_its_time_and_nothing_is_left_to_do() {
    let (mut gone, mut alive) = (0, 0);
    for seed in 0..200 {
        let scenario = with_ends_destroyed(seed, linger_time);
        let linger = scenario.linger.unwrap_or_default();
        let mut world = World::<QueuePair>::new(scenario, false);
        let outcome = world.run().unwrap_or_else(|text| panic!("seed {seed}: {text}"));
        world.run_until(outcome.finished + linger.times(2));
        for end in &world.ends {
            let is_retired = end.record.retired.is_some();
            assert_eq!(end.record.is_gone, is_retired, "seed {seed}");
            gone += usize::from(is_retired);
            alive += usize::from(!is_retired);
        }
    }
    println!("{gone} are gone, {alive} were not destroyed: they or their peers were in ERROR");
    assert!(gone > 500, "{gone}");
}

#[test]
fn the_same_seed_gives_the_same_run() {
    for seed in 0..300 {
        let run =
            || run_one::<QueuePair>(Scenario::generate(seed), false).map(|o| (o.hash, o.finished, o.events));
        assert_eq!(run(), run(), "seed {seed}");
    }
}

#[test]
fn different_seeds_give_different_runs() {
    let mut hashes: Vec<_> = (0..300)
        .filter_map(|seed| run_one::<QueuePair>(Scenario::generate(seed), false).ok())
        .map(|o| o.hash)
        .collect();
    let runs = hashes.len();
    hashes.sort_unstable();
    hashes.dedup();
    assert_eq!(hashes.len(), runs);
}
