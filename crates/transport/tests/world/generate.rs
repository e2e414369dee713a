//! Generates a whole scenario from one `u64`: fabric, configuration, traffic, impairments and a schedule of failures.
//!
//! The outcome of every scenario is known. Either at least one path per direction stays up or recovers before the
//! retries end, and everything must complete; or retries are few and may be exhausted; or all paths fail for good and
//! every end with outstanding work must fail.

use std::sync::Arc;

use openmrc_transport::mrc::{
    CanSend, Capabilities, CcProfile, OutOfWindow, PathConfig, PathModel, QpConfig, RequestorOptions,
    ResponderOptions, SackBatching,
};
use openmrc_transport::node::{NodeConfig, PressureConfig};
use openmrc_transport::{EvProfile, PathEntry, PathId, PortSet, Span, Time};
use openmrc_wire::{Ev, Psn};

use super::Dice;
use super::network::{Health, Impairments};
use super::scenario::{Action, Expect, Pair, Post, Queues, Scenario, Traffic};

/// Largest duration of a schedule; afterwards only permanent failures remain.
const MAX_SCHEDULE: Span = Span::from_millis(20);
/// After the end of the schedule everything must be finished within this time: the longest back-off that an outage of
/// this duration can cause, and some rounds of probing at their slowest.
const PATIENCE: Span = Span::from_secs(20);

impl Scenario {
    /// The scenario of this seed.
    pub fn generate(seed: u64) -> Self {
        let mut dice = Dice::new(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ 0xC0DE);
        let dice = &mut dice;
        let nodes = dice.between(2, 4) as usize;
        let ports = dice.pick(&[1usize, 1, 2, 2, 3, 4, 4, 5, 8, 8]);
        let per_port = dice.log_between(1, 24) as usize;
        let mut scenario = Scenario {
            seed,
            profile: random_profile(ports, per_port, dice),
            rate: dice.pick(&[10, 25, 50, 100, 200, 400, 800]) * 1_000_000_000,
            latency: Span::from_nanos(dice.log_between(500, 30_000)),
            max_events: 3_000_000,
            ..Scenario::calm(nodes, ports, 1)
        };
        if dice.chance(0.6) {
            scenario.skew = Span(dice.below(scenario.latency.0));
        }
        if dice.chance(0.3) {
            scenario.timer_slack = Span::from_nanos(dice.log_between(100, 100_000));
        }
        if dice.chance(0.2) {
            scenario.idle_timeouts = 0.2;
        }
        scenario.epochs = (0..nodes).map(|_| Span(dice.below(1 << 62))).collect();
        scenario.expect = match dice.below(100) {
            0..85 => Expect::Completes,
            85..95 => Expect::MayFail,
            _ => Expect::MustFail,
        };
        let connections = dice.pick(&[1usize, 1, 1, 2, 2, 3, 4]);
        let budget = dice.log_between(40, 3000) / connections as u64;
        for number in 0..connections {
            let from = dice.below(nodes as u64) as usize;
            let to = (from + dice.between(1, nodes as u64 - 1) as usize) % nodes;
            let pair = random_pair(&scenario, number as u32, [from, to], budget.max(8), dice);
            scenario.pairs.push(pair);
        }
        random_keepalive(&mut scenario);
        scenario.queues = random_queues(&scenario, dice);
        scenario.node = random_node(&scenario, dice);
        scenario.impairments = random_impairments(&scenario, dice);
        let ends = random_schedule(&mut scenario, dice);
        scenario.deadline = ends + PATIENCE;
        scenario
    }
}

/// Some connections keep an eye on an idle peer. Dice of their own, so that everything else stays as it is.
fn random_keepalive(scenario: &mut Scenario) {
    let mut dice = Dice::new(scenario.seed ^ 0xA11E);
    for pair in &mut scenario.pairs {
        if dice.chance(0.3) {
            let period = Span::from_nanos(dice.log_between(1_000_000, 30_000_000));
            pair.configs.iter_mut().for_each(|config| config.requestor.keepalive = Some(period));
        }
    }
}

/// Hardware or software, with or without destination flow control.
fn random_node(scenario: &Scenario, dice: &mut Dice) -> NodeConfig {
    let (ports, base_rtt) = (PortSet::first(scenario.ports), scenario.base_rtt(4096));
    let rate_bps = scenario.rate * scenario.ports as u64;
    let pressure = match dice.below(4) {
        0 => PressureConfig::Off,
        1 => PressureConfig::Buffers { interval: base_rtt.times(dice.between(1, 20)) },
        _ => PressureConfig::LastHop { rate_bps, period: base_rtt },
    };
    if dice.chance(0.5) {
        NodeConfig::hardware(ports, base_rtt, pressure)
    } else {
        NodeConfig::software(ports, base_rtt, dice.pick(&[1, 2, 4, 15]), pressure)
    }
}

fn random_profile(ports: usize, per_port: usize, dice: &mut Dice) -> Arc<EvProfile> {
    // Any distinct entropy values are valid.
    let salt = dice.u64() as u32 | 1;
    let mut number = dice.u64() as u32;
    let mut paths = Vec::new();
    for port in 0..ports as u8 {
        for _ in 0..per_port {
            number = number.wrapping_add(1);
            paths.push(PathEntry { ev: Ev(number.wrapping_mul(salt)), port });
        }
    }
    Arc::new(EvProfile::new(&paths).expect("there are paths"))
}

fn random_pair(scenario: &Scenario, number: u32, nodes: [usize; 2], budget: u64, dice: &mut Dice) -> Pair {
    let path_mtu = match dice.below(8) {
        0 => dice.between(64, 2048) as u16 * 4,
        _ => dice.pick(&[256, 512, 1024, 2048, 4096, 8192]),
    };
    let trimming = dice.chance(0.8);
    let base_rtt = scenario.base_rtt(path_mtu);
    // Operators sometimes configure a wrong base RTT.
    let believed_rtt =
        if dice.chance(0.15) { base_rtt.scaled(dice.pick(&[0.4, 0.7, 2.0, 5.0])) } else { base_rtt };
    let rate = scenario.rate * scenario.ports as u64;
    let cc = Arc::new(if dice.chance(0.7) {
        CcProfile::nscc(rate, believed_rtt, path_mtu, trimming)
    } else {
        let packets = dice.log_between(1, 400);
        CcProfile::FixedWindow(packets * (u64::from(path_mtu) + 100))
    });
    let model = PathModel::new(believed_rtt, trimming || matches!(*cc, CcProfile::FixedWindow(_)));
    let caps = Capabilities {
        // Without it data is not trimmed; and a peer may send no NACK for trimmed packets though it said so.
        trim_nack: trimming || dice.chance(0.5),
        dynamic_mpr: dice.chance(0.8),
        service_time: dice.chance(0.5),
        overflow_reports: scenario.seed & 1 == 1,
    };
    let (linear_cnt, exp_cnt) = match scenario.expect {
        Expect::Completes => (dice.between(0, 7) as u8, 25),
        Expect::MayFail | Expect::MustFail => (dice.between(0, 7) as u8, dice.between(0, 6) as u8),
    };
    let timeout = QpConfig::timeout_from_exponent(dice.between(3, 9) as u8);
    let mut configs = [0u32, 1].map(|side| {
        let mut config =
            QpConfig::new(0, 0, PathConfig::new(Arc::clone(&scenario.profile), model), Arc::clone(&cc));
        config.local_qp = 0x100 + number * 2 + side;
        config.remote_qp = 0x100 + number * 2 + (1 - side);
        config.seed = dice.u64();
        config.path_mtu = path_mtu;
        config.caps = caps;
        config.requestor.timeout = timeout;
        config.requestor.linear_cnt = linear_cnt;
        config.requestor.exp_cnt = exp_cnt;
        config.responder.ack_every_bytes = dice.pick(&[1, 4096, 16 * 1024, 16 * 1024, 64 * 1024]);
        config.responder.batching = if dice.chance(0.3) { SackBatching::Turn } else { SackBatching::None };
        config.responder.options = ResponderOptions {
            out_of_window: if dice.chance(0.7) { OutOfWindow::Nack } else { OutOfWindow::Silent },
            trim_nack: trimming,
            service_time: dice.chance(0.3),
            wimm_nak_syndrome: dice.pick(&[0x65, 0x61]),
        };
        config.acks_immediates = config.seed & 1 == 1;
        config.requestor.options = RequestorOptions {
            can_send: if dice.chance(0.8) { CanSend::Mtu } else { CanSend::Any },
            dfc: dice.chance(0.8),
            start_probe: dice.chance(0.8),
            spacing: dice.chance(0.8),
        };
        config.paths.rotation_turns = dice.pick(&[0, 1, 2, 16]);
        config.responder.ack_delay = Span::from_nanos(dice.log_between(200, 20_000));
        config.paths.burst = dice.pick(&[1, 1, 1, 2, 4, 16]);
        let all = (scenario.ports * scenario.profile.paths_per_port()).min(256) as u64;
        let active = dice.between(scenario.ports as u64, all) as u16;
        config.paths.active = active;
        config.paths.backup = if dice.chance(0.7) {
            (all as u16) - active
        } else {
            dice.below(all + 1 - u64::from(active)) as u16
        };
        config.paths.min_active =
            if dice.chance(0.5) { (active / 4).max(1) } else { dice.between(1, u64::from(active)) as u16 };
        config.requestor.max_send_wr = dice.log_between(1, 128) as usize;
        config
    });
    for side in 0..2 {
        // The result of the negotiation: each end's limits as requestor are the other's as responder.
        let mpr = dice.log_between(1, 16) as u8;
        configs[side].requestor.mpr = mpr;
        // Sometimes they disagree, and the responder's window is the smaller one.
        let less = caps.dynamic_mpr && dice.chance(0.05) && mpr > 1;
        configs[1 - side].responder.mpr_dest = if less { dice.between(1, u64::from(mpr)) as u8 } else { mpr };
        let wimm = dice.log_between(1, 200) as u16;
        configs[side].requestor.max_wimm = wimm;
        configs[1 - side].responder.max_wimm_dest = wimm;
        let start = match dice.below(4) {
            0 => Psn::new(0),
            1 => Psn::new(dice.u64() as u32),
            _ => Psn::new(0).offset(-(dice.below(budget) as i32)),
        };
        configs[side].requestor.sq_psn = start;
        configs[1 - side].responder.rq_psn = start;
    }
    let forward = random_traffic(path_mtu, budget, dice);
    let backward = match dice.below(3) {
        0 => Traffic::none(),
        1 => random_traffic(path_mtu, (budget / 8).max(2), dice),
        _ => random_traffic(path_mtu, budget, dice),
    };
    let traffic = [forward, backward];
    let region = [0, 1].map(|side| {
        let Traffic::List(posts) = &traffic[side] else { return 0 };
        let longest = posts.iter().map(|p| p.len).max().unwrap_or(0) as u64;
        // From space for one message at a time to space for many.
        (longest + dice.log_between(64, 1 << 18)) as usize
    });
    Pair { nodes, configs, traffic, region }
}

fn random_traffic(path_mtu: u16, budget: u64, dice: &mut Dice) -> Traffic {
    let mtu = u64::from(path_mtu);
    let immediates = dice.pick(&[0.0, 0.1, 0.5, 1.0]);
    let longest = dice.log_between(1, 128).min(budget) * mtu;
    let pauses = if dice.chance(0.3) { Span::from_nanos(dice.log_between(100, 200_000)) } else { Span::ZERO };
    let habit = dice.below(6);
    let mut not_before =
        Time::ZERO + if dice.chance(0.2) { dice.span(Span::from_micros(500)) } else { Span::ZERO };
    let (mut posts, mut packets) = (Vec::new(), 0);
    // A few megabytes at most: every byte is copied and compared.
    let most = budget.min(6 * 1024 * 1024 / mtu);
    while packets < most {
        let kind = if habit < 4 { dice.below(6) } else { habit };
        let len = match kind {
            0 => 0,
            1 => dice.between(1, mtu),
            2 => mtu * dice.between(1, (longest / mtu).max(1)),
            3 => dice.log_between(1, longest),
            4 => longest,
            _ => mtu,
        };
        packets += len.div_ceil(mtu).max(1);
        let imm = dice.chance(immediates).then(|| dice.u64() as u32);
        posts.push(Post { len: len as u32, imm, not_before });
        if dice.chance(0.3) {
            not_before += dice.span(pauses);
        }
    }
    Traffic::List(posts)
}

fn random_queues(scenario: &Scenario, dice: &mut Dice) -> Option<Queues> {
    if dice.chance(0.4) {
        return None;
    }
    let plane_bdp = (scenario.rate as f64 / 8.0 * scenario.base_rtt(4096).as_secs_f64()) as u64;
    let trims = scenario.pairs.iter().all(|p| p.configs[0].caps.trim_nack);
    let room = |dice: &mut Dice| dice.log_between(9_000, (4 * plane_bdp).max(20_000));
    Some(Queues {
        trim_at: trims.then(|| room(dice)),
        drop_at: if trims { u64::MAX } else { room(dice) },
        mark_between: dice.chance(0.5).then_some((plane_bdp / 5, plane_bdp * 4 / 5 + 1)),
    })
}

fn random_impairments(scenario: &Scenario, dice: &mut Dice) -> Impairments {
    let mut impairments = Impairments::calm();
    if dice.chance(0.08) {
        return impairments;
    }
    let rtt = scenario.base_rtt(4096);
    let trims = scenario.pairs.iter().all(|p| p.configs[0].caps.trim_nack);
    if dice.chance(0.35) {
        impairments.loss = dice.log_probability(0.0005, 0.3);
    }
    if dice.chance(0.3) {
        impairments.control_loss = dice.log_probability(0.001, 0.5);
    }
    if dice.chance(0.2) {
        impairments.burst = dice.log_probability(0.0005, 0.02);
        impairments.burst_length = rtt.scaled(dice.pick(&[0.2, 1.0, 5.0, 20.0]));
    }
    // Without NACKs a network normally does not trim; sometimes one does.
    if dice.chance(if trims { 0.35 } else { 0.035 }) {
        impairments.trim = dice.log_probability(0.001, 0.5);
        impairments.last_hop = dice.pick(&[0.0, 0.5, 1.0]);
        impairments.garble_trimmed = dice.pick(&[0.0, 0.0, 0.1]);
    }
    if dice.chance(0.3) {
        impairments.mark = dice.log_probability(0.001, 1.0);
    }
    if dice.chance(0.3) {
        impairments.duplicate = dice.log_probability(0.001, 0.3);
        impairments.duplicate_delay = rtt.scaled(dice.pick(&[0.01, 1.0, 10.0, 300.0]));
    }
    if dice.chance(0.3) {
        impairments.reorder = dice.log_probability(0.001, 0.5);
        impairments.reorder_delay = rtt.scaled(dice.pick(&[0.05, 0.5, 3.0, 20.0]));
    }
    if dice.chance(0.3) {
        impairments.jitter = rtt.scaled(dice.pick(&[0.05, 0.5, 2.0]));
    }
    if dice.chance(0.2) {
        impairments.corrupt = dice.log_probability(0.0005, 0.05);
    }
    if dice.chance(0.2) {
        impairments.stale = dice.log_probability(0.001, 0.1);
    }
    if dice.chance(0.1) {
        impairments.garbage = dice.log_probability(0.001, 0.1);
    }
    impairments
}

/// Fills the schedule; returns its end.
fn random_schedule(scenario: &mut Scenario, dice: &mut Dice) -> Time {
    let paths = scenario.profile.entries().len() as u64;
    let (nodes, ports) = (scenario.nodes as u64, scenario.ports as u64);
    let rtt = scenario.base_rtt(4096);
    // Most failures happen while there is still traffic.
    let horizon = rtt.times(dice.log_between(2, 300));
    let horizon = if horizon > MAX_SCHEDULE { MAX_SCHEDULE } else { horizon };
    let when = |dice: &mut Dice| Time::ZERO + dice.span(horizon);
    let mut actions = Vec::new();

    // One plane never fails for good.
    let spared = dice.below(ports) as u8;
    let lasting = |dice: &mut Dice, actions: &mut Vec<(Time, Action)>| {
        for path in 0..paths as PathId {
            if scenario.profile.entries()[path as usize].port != spared && dice.chance(0.4) {
                let (from, to) = (dice.below(nodes) as usize, dice.below(nodes) as usize);
                actions.push((when(dice), Action::Path { from, to, path, health: Health::DEAD }));
            }
        }
    };
    if dice.chance(0.15) {
        lasting(dice, &mut actions);
    }
    if dice.chance(0.15) {
        let path = dice.below(paths) as PathId;
        let (from, to) = (dice.below(nodes) as usize, dice.below(nodes) as usize);
        let health = Health {
            passes: dice.pick(&[0.5, 0.9, 0.99]),
            marks: dice.pick(&[0.0, 0.0, 1.0]),
            ..Health::GOOD
        };
        actions.push((when(dice), Action::Path { from, to, path, health }));
    }
    if dice.chance(0.15) && ports > 1 {
        // Planes fail one after another, some for good.
        let mut time = when(dice);
        for port in (0..ports as u8).filter(|&p| p != spared) {
            if dice.chance(0.6) {
                actions.push((time, Action::Plane { port, health: Health::DEAD }));
                if dice.chance(0.5) {
                    let back = time + dice.span(horizon);
                    actions.push((back, Action::Plane { port, health: Health::GOOD }));
                }
                time += dice.span(rtt.times(20));
            }
        }
    }
    if dice.chance(0.15) {
        // Every path of both directions or of one direction fails, and recovers.
        let time = when(dice);
        let back = time + rtt.times(dice.log_between(1, 400));
        let whole = dice.chance(0.5);
        for pair in &scenario.pairs {
            let [a, b] = pair.nodes;
            for (from, to) in if whole { vec![(a, b), (b, a)] } else { vec![(b, a)] } {
                actions.push((time, Action::Direction { from, to, health: Health::DEAD }));
                actions.push((back, Action::Direction { from, to, health: Health::GOOD }));
            }
        }
    }
    if dice.chance(0.15) {
        // Ports flap. Ports of the spared plane come up again.
        for _ in 0..dice.between(1, 4) {
            let (node, port) = (dice.below(nodes) as usize, dice.below(ports) as u8);
            let time = when(dice);
            actions.push((time, Action::Port { node, port, up: false }));
            if port == spared || dice.chance(0.7) {
                actions.push((time + dice.span(horizon), Action::Port { node, port, up: true }));
            }
        }
    }
    if dice.chance(0.15) {
        for _ in 0..dice.between(1, 3) {
            let (node, length) = (dice.below(nodes) as usize, rtt.times(dice.log_between(1, 200)));
            actions.push((when(dice), Action::Stall { node, length }));
        }
    }
    if dice.chance(0.15) {
        for _ in 0..dice.between(1, 3) {
            let (node, length) =
                (dice.below(nodes) as usize, Span::from_nanos(dice.log_between(100, 1_000_000_000)));
            actions.push((when(dice), Action::Jump { node, length }));
        }
    }
    let ends = scenario.pairs.len() as u64 * 2;
    if dice.chance(0.15) {
        for path in 0..paths as PathId {
            let end = dice.below(ends) as usize;
            let time = when(dice);
            let again = dice.chance(0.5);
            if scenario.profile.entries()[path as usize].port != spared && dice.chance(0.3) {
                actions.push((time, Action::Deny { end, path, denied: true }));
                if again {
                    actions.push((time + dice.span(horizon), Action::Deny { end, path, denied: false }));
                }
            }
        }
    }
    if dice.chance(0.1) {
        let end = dice.below(ends) as usize;
        let time = when(dice);
        actions.push((time, Action::Pressure { end, penalty: dice.between(1, 127) as u8 }));
        actions.push((time + dice.span(horizon), Action::Pressure { end, penalty: 0 }));
    }
    if dice.chance(0.15) {
        let end = dice.below(ends) as usize;
        let config = &scenario.pairs[end / 2].configs[end % 2];
        if config.caps.dynamic_mpr {
            for _ in 0..3 {
                let mpr = dice.between(1, u64::from(config.responder.mpr_dest)) as u8;
                actions.push((when(dice), Action::AdvertiseMpr { end, mpr }));
            }
        }
    }
    if dice.chance(0.15) {
        for _ in 0..dice.between(1, 6) {
            let (node, path) = (dice.below(nodes) as usize, dice.below(paths) as PathId);
            let peer = (node + dice.between(1, nodes - 1) as usize) % scenario.nodes;
            let timeout = rtt.scaled(dice.pick(&[0.5, 3.0, 100.0]));
            actions.push((when(dice), Action::EvProbe { node, peer, path, timeout }));
        }
    }
    if dice.chance(0.1) {
        // The impairments end, or change.
        let calmer = if dice.chance(0.5) { Impairments::calm() } else { random_impairments(scenario, dice) };
        actions.push((when(dice), Action::Impairments(calmer)));
    }
    if scenario.expect == Expect::MustFail {
        let time = when(dice);
        actions.retain(|(t, _)| *t < time);
        for pair in &scenario.pairs {
            let [a, b] = pair.nodes;
            actions.push((time, Action::Direction { from: a, to: b, health: Health::DEAD }));
            if dice.chance(0.7) {
                actions.push((time, Action::Direction { from: b, to: a, health: Health::DEAD }));
            }
        }
    }
    actions.sort_by_key(|(time, _)| *time);
    let over = actions.last().map_or(Time::ZERO, |(time, _)| *time);
    scenario.actions = actions;
    over
}
