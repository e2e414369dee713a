//! Functions of a node apart from its queue pairs: port status, EV probes, scheduling, and the loss of all ports.

mod world;

use std::sync::Arc;

use openmrc_transport::mrc::QueuePair;
use openmrc_transport::node::{
    MAX_EV_PROBES, Node, NodeConfig, NodeHost, PeerId, PortMaskBase, PortTrust, PressureConfig, ProbeTimeout,
    QpId, ReceiveQueueEmpty, Route,
};
use openmrc_transport::{
    AccessError, Fatal, PortSet, Received, RecvDone, SendDone, Span, Time, TrafficClass, Transmit,
};
use openmrc_wire::{Ev, Packet, Psn};
use world::measure::{micros, millis};
use world::network::Health;
use world::{Action, Expect, Scenario, Traffic, World};

/// A driver that only records the packets of its node.
#[derive(Default)]
struct Notes {
    requests: Vec<(PeerId, Route, Packet)>,
    probes: Vec<Result<Span, ProbeTimeout>>,
}

impl NodeHost for Notes {
    fn write(&mut self, _qp: QpId, _rkey: u32, _va: u64, _len: u32) -> Result<(), AccessError> {
        Ok(())
    }
    fn feedback(&mut self, _qp: QpId, _transmit: Transmit) {}
    fn send_done(&mut self, _qp: QpId, _done: SendDone) {}
    fn recv_done(&mut self, _qp: QpId, _done: RecvDone) -> Result<(), ReceiveQueueEmpty> {
        Ok(())
    }
    fn fatal(&mut self, _qp: QpId, _why: Fatal) {}
    fn transmit_request(&mut self, peer: PeerId, route: Route, packet: Packet, _class: TrafficClass) {
        self.requests.push((peer, route, packet));
    }
    fn probe_done(&mut self, _peer: PeerId, _id: u16, result: Result<Span, ProbeTimeout>) {
        self.probes.push(result);
    }
}

const RTT: Span = Span::from_micros(10);

/// A node with this number of ports and one peer, number 7.
fn node(ports: usize) -> Node<QueuePair> {
    node_with(ports, |_| {})
}

fn node_with(ports: usize, change: impl FnOnce(&mut NodeConfig)) -> Node<QueuePair> {
    let config = NodeConfig::hardware(PortSet::first(ports), RTT, PressureConfig::Off);
    let mut config = NodeConfig { seed: 3, ..config };
    change(&mut config);
    let mut node = Node::new(&Arc::new(config));
    node.add_peer(Time::ZERO, 7, PortSet::first(ports));
    node
}

fn received(packet: Packet, port: u8) -> Received {
    Received { packet, ev: Ev(7), port, ecn_ce: false, trim: None }
}

#[test]
fn a_port_going_down_is_told_on_the_others_in_turn_with_doubling_pauses_and_not_for_ever() {
    let (mut node, mut notes) = (node(4), Notes::default());
    node.set_own_ports(Time::ZERO, PortSet::first(4).without(2), &mut notes);
    let mut sent_at = vec![Time::ZERO];
    while node.poll_timeout() != Time::NEVER {
        let due = node.poll_timeout();
        let before = notes.requests.len();
        node.handle_timeout(due, &mut notes);
        sent_at.extend((before < notes.requests.len()).then_some(due));
    }
    let ports: Vec<_> = notes.requests.iter().map(|(_, route, _)| *route).collect();
    let expected = [0, 1, 3, 0, 1, 3, 0, 1].map(Route::Port);
    assert_eq!(ports, expected);
    let pauses: Vec<_> = sent_at.windows(2).map(|pair| pair[1].since(pair[0]).0 / RTT.0).collect();
    assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 64]);
}

#[test]
fn an_answer_ends_the_repetition_and_a_newer_state_replaces_an_older_one() {
    let (mut a, mut b) = (node(2), node(2));
    let (mut at_a, mut at_b) = (Notes::default(), Notes::default());
    a.set_own_ports(Time(0), PortSet(1), &mut at_a);
    a.set_own_ports(Time(1), PortSet(3), &mut at_a);
    assert_eq!(at_a.requests.len(), 2);
    // The newer one overtakes the older one.
    for (_, _, packet) in at_a.requests.iter().rev() {
        assert!(b.handle_endpoint(Time(2), 7, &received(*packet, 0), &mut at_b));
    }
    assert_eq!(b.peer_ports(7), PortSet(3), "a late update changes nothing");
    assert_eq!(at_b.requests.len(), 2, "a late update is answered");
    // The answer to the older update does not stop the repetition of the newer one.
    assert!(!a.handle_endpoint(Time(3), 7, &received(at_b.requests[1].2, 0), &mut at_a));
    assert_ne!(a.poll_timeout(), Time::NEVER);
    assert!(a.handle_endpoint(Time(3), 7, &received(at_b.requests[0].2, 0), &mut at_a));
    a.handle_timeout(a.poll_timeout(), &mut at_a);
    assert_eq!((at_a.requests.len(), a.poll_timeout()), (2, Time::NEVER));
}

#[test]
fn unknown_nodes_are_answered_and_not_believed() {
    let (mut a, mut b) = (node(2), node(2));
    let (mut at_a, mut at_b) = (Notes::default(), Notes::default());
    a.set_own_ports(Time(0), PortSet(2), &mut at_a);
    assert!(b.handle_endpoint(Time(1), 99, &received(at_a.requests[0].2, 1), &mut at_b));
    assert_eq!(at_b.requests[0].1, Route::Reply { ev: Ev(7), port: 1 });
    assert_eq!((b.peer_ports(99), b.peer_ports(7)), (PortSet::EMPTY, PortSet::first(2)));
    assert_eq!(b.stats().port_updates_applied, 0);
}

#[test]
fn an_update_that_leaves_no_port_is_not_believed() {
    let (mut a, mut b) = (node(2), node(2));
    let (mut at_a, mut at_b) = (Notes::default(), Notes::default());
    a.probe(Time(0), 7, Route::Port(0), RTT, &mut at_a).unwrap();
    let (_, _, mut packet) = at_a.requests[0];
    if let openmrc_wire::Body::EndpointRequest(request) = &mut packet.body {
        request.op = openmrc_wire::EndpointOp::PortStatusUpdate;
        request.port_status_mask = 0b1_1000;
    }
    assert!(b.handle_endpoint(Time(1), 7, &received(packet, 0), &mut at_b));
    assert_eq!(b.peer_ports(7), PortSet::first(2));
}

/// A port status update with this mask, the `id`-th of a node.
fn update_with(id: u16, mask: u32) -> Packet {
    let (mut a, mut at_a) = (node(4), Notes::default());
    a.probe(Time(0), 7, Route::Port(0), RTT, &mut at_a).unwrap();
    let (_, _, mut packet) = at_a.requests[0];
    let openmrc_wire::Body::EndpointRequest(request) = &mut packet.body else { panic!("a request") };
    assert_eq!(request.port_status_mask, 0, "a probe says nothing of ports");
    request.op = openmrc_wire::EndpointOp::PortStatusUpdate;
    request.port_status_mask = mask;
    packet.psn = Psn::new(id.into());
    packet
}

#[test]
fn a_peer_may_count_its_ports_from_0_or_from_1_and_that_is_remembered() {
    // Masks of a peer with four ports, and the ports that are then up.
    let cases: [&[(u32, u16)]; 4] = [
        &[(0b0_1101, 0b1101), (0b0_0110, 0b0110), (0b0_1100, 0b1100)],
        &[(0b1_1010, 0b1101), (0b0_1100, 0b0110), (0b0_0110, 0b0011)],
        // Neither the first nor the last port is up: as this node counts, until one of them is.
        &[(0b0_0110, 0b0110), (0b1_0110, 0b1011), (0b0_0110, 0b0011)],
        &[(0b1_1110, 0b1111), (0b0_0111, 0b0111), (0b0_0110, 0b0110)],
    ];
    for updates in cases {
        let (mut b, mut at_b) = (node(4), Notes::default());
        for (id, &(mask, up)) in (1..).zip(updates) {
            assert!(b.handle_endpoint(Time(1), 7, &received(update_with(id, mask), 0), &mut at_b));
            assert_eq!(b.peer_ports(7), PortSet(up), "{mask:#b} of {updates:?}");
        }
    }
}

#[test]
fn a_node_counts_its_own_ports_as_it_is_told() {
    for (base, mask) in [(PortMaskBase::Zero, 0b1011), (PortMaskBase::One, 0b1_0110)] {
        let (mut a, mut notes) = (node_with(4, |config| config.port_mask_base = base), Notes::default());
        a.set_own_ports(Time(0), PortSet(0b1011), &mut notes);
        let openmrc_wire::Body::EndpointRequest(request) = notes.requests[0].2.body else {
            panic!("a request")
        };
        assert_eq!(request.port_status_mask, mask);
        // A mask that shows nothing is read in the same way.
        assert!(a.handle_endpoint(Time(1), 7, &received(update_with(1, 0b110), 0), &mut notes));
        assert_eq!(a.peer_ports(7), PortSet(if base == PortMaskBase::Zero { 0b110 } else { 0b11 }));
    }
}

#[test]
fn an_ev_probe_gives_its_round_trip_or_a_timeout_and_only_who_was_asked_can_answer() {
    let (mut a, mut b) = (node(2), node(2));
    let (mut at_a, mut at_b) = (Notes::default(), Notes::default());
    let path = Route::Path { ev: Ev(5), path: 5, port: 1 };
    let timeout = Span::from_micros(50);
    a.probe(Time(0), 7, path, timeout, &mut at_a).unwrap();
    a.probe(Time(0), 7, path, timeout, &mut at_a).unwrap();
    assert!(b.handle_endpoint(Time(0), 9, &received(at_a.requests[0].2, 1), &mut at_b));
    let reply = received(at_b.requests[0].2, 1);
    assert!(
        !a.handle_endpoint(Time(10), 4, &reply, &mut at_a),
        "the answer does not come from the peer that was probed"
    );
    assert!(a.handle_endpoint(Time(12_000_000), 7, &reply, &mut at_a));
    assert!(!a.handle_endpoint(Time(13_000_000), 7, &reply, &mut at_a));
    a.handle_timeout(a.poll_timeout(), &mut at_a);
    assert_eq!(at_a.probes, [Ok(Span::from_micros(12)), Err(ProbeTimeout)]);
    assert_eq!(a.poll_timeout(), Time::NEVER);
}

#[test]
fn no_two_outstanding_probes_have_the_same_id() {
    let (mut a, mut notes) = (node(1), Notes::default());
    let mut ids: Vec<_> =
        (0..MAX_EV_PROBES).map(|_| a.probe(Time(0), 7, Route::Port(0), RTT, &mut notes).unwrap()).collect();
    assert_eq!(a.probe(Time(0), 7, Route::Port(0), RTT, &mut notes), None);
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), MAX_EV_PROBES);
}

// --- in a network ----------------------------------------------------------------------------------------------------

fn one_flow(ports: usize, traffic: Traffic) -> Scenario {
    let mut scenario = Scenario::calm(2, ports, 8);
    let config = scenario.config();
    scenario.connect([0, 1], &config, [traffic, Traffic::none()]);
    scenario.pairs[0].region = [4 << 20, 0];
    scenario
}

const ENDLESS: Traffic = Traffic::Endless { len: 256 * 1024, imm: false };

#[test]
fn a_peer_knows_of_a_lost_port_after_half_a_round_trip() {
    let mut scenario = one_flow(4, ENDLESS);
    scenario.at(micros(300), Action::Port { node: 1, port: 2, up: false });
    let mut world = World::<QueuePair>::new(scenario, false);
    world.run_until(micros(300));
    assert_eq!(world.believed_ports(0, 1), PortSet::first(4));
    // 4 us one way.
    world.run_until(micros(305));
    assert_eq!(world.believed_ports(0, 1), PortSet::first(4).without(2));
    world.run_until(millis(1));
    assert_eq!(world.node_stats(1).port_updates_sent, 1, "answered at once");
}

#[test]
fn a_peer_that_misses_every_update_of_a_return_learns_of_it_from_the_traffic() {
    let mut scenario = Scenario::calm(2, 4, 8);
    let config = scenario.config();
    scenario.connect([0, 1], &config, [ENDLESS, ENDLESS]);
    scenario.at(micros(300), Action::Port { node: 1, port: 2, up: false });
    // Node 1 cannot announce that its port is up: all its packets are lost for longer than it repeats the update.
    scenario.at(micros(500), Action::Direction { from: 1, to: 0, health: Health::DEAD });
    scenario.at(micros(510), Action::Port { node: 1, port: 2, up: true });
    scenario.at(millis(5), Action::Direction { from: 1, to: 0, health: Health::GOOD });
    let mut world = World::<QueuePair>::new(scenario, false);
    world.run_until(millis(5));
    assert_eq!(world.believed_ports(0, 1), PortSet::first(4).without(2));
    world.run_until(millis(20));
    assert_eq!(world.believed_ports(0, 1), PortSet::first(4));
    assert_eq!(world.node_stats(0).ports_contradicted, 1);
    let before = world.sent_by_port(0)[2];
    world.run_until(millis(21));
    assert!(world.sent_by_port(0)[2] > before + 1000);
}

/// Node 0 loses its first port and node 1 its second: no plane has a port at both ends.
fn no_common_plane(linear_cnt: u8, exp_cnt: u8) -> Scenario {
    let mut scenario = Scenario::calm(2, 2, 8);
    let mut config = scenario.config();
    (config.requestor.linear_cnt, config.requestor.exp_cnt) = (linear_cnt, exp_cnt);
    scenario.connect([0, 1], &config, [Traffic::of(200, 64 * 1024), Traffic::none()]);
    scenario.at(micros(100), Action::Port { node: 1, port: 1, up: false });
    scenario.at(micros(200), Action::Port { node: 0, port: 0, up: false });
    scenario
}

#[test]
fn with_no_port_up_posted_writes_end_when_retries_are_exhausted() {
    // Also if nothing was in flight when the last port went down: the write is posted later.
    for not_before in [Time::ZERO, millis(1)] {
        let mut scenario = no_common_plane(3, 1);
        let timeout = scenario.pairs[0].configs[0].requestor.timeout;
        if let Traffic::List(posts) = &mut scenario.pairs[0].traffic[0] {
            posts.iter_mut().for_each(|post| post.not_before = not_before);
        }
        scenario.expect = Expect::MustFail;
        let mut world = World::<QueuePair>::new(scenario, false);
        let outcome = world.run().unwrap();
        assert_eq!(outcome.fatal, [Some(Fatal::RetryExceeded), None]);
        let begun = not_before.max(micros(200));
        assert!(outcome.finished.since(begun) <= timeout.times(12), "{:?}", outcome.finished);
    }
}

#[test]
fn with_no_port_up_a_write_goes_on_when_a_port_returns_in_time() {
    let mut scenario = no_common_plane(7, 7);
    scenario.at(millis(2), Action::Port { node: 0, port: 0, up: true });
    let outcome = World::<QueuePair>::new(scenario, false).run().unwrap();
    assert_eq!(outcome.fatal, [None, None]);
    assert!(outcome.finished > millis(2));
}

#[test]
fn queue_pairs_of_a_software_node_take_turns_of_a_run() {
    let mut scenario = Scenario::calm(3, 1, 8);
    let ports = PortSet::first(1);
    scenario.node = NodeConfig::software(ports, Span::from_micros(8), 5, PressureConfig::Off);
    let config = scenario.config();
    scenario.connect([0, 1], &config, [ENDLESS, Traffic::none()]);
    scenario.connect([0, 2], &config, [ENDLESS, Traffic::none()]);
    let mut world = World::<QueuePair>::new(scenario, false);
    world.log = Some(Vec::new());
    world.run_until(micros(100));
    let log = world.log.take().unwrap();
    let runs: Vec<_> = log[..100].chunk_by(|a, b| a.1 == b.1).map(<[_]>::len).collect();
    assert!(runs.iter().all(|&run| run == 5), "{runs:?}");
}

/// Two nodes with four ports, of which the first end proves its path MTU of 4096 and then sends.
fn proving(change: impl FnOnce(&mut Scenario)) -> World<QueuePair> {
    let mut scenario = Scenario::calm(2, 4, 8);
    let config = scenario.config();
    scenario.connect([0, 1], &config, [Traffic::of(10, 40_000), Traffic::none()]);
    change(&mut scenario);
    let mut world = World::<QueuePair>::new(scenario, false);
    world.prove_mtu(0);
    world
}

#[test]
fn a_network_that_carries_the_path_mtu_has_proven_it_after_a_round_trip_and_nothing_of_that_stays() {
    let mut world = proving(|_| ());
    world.run_until(micros(11));
    let progress = world.ends[0].record.mtu.flatten().expect("the proof has ended");
    assert_eq!(
        (progress.path_mtu, progress.full, progress.asked),
        (4096, PortSet::first(4), PortSet::first(4))
    );
    let outcome = world.run().unwrap();
    assert_eq!((outcome.flows[0].completed, outcome.flows[0].retransmitted), (10, 0));
}

#[test]
fn a_plane_that_carries_short_packets_only_is_found_after_a_second_of_doubling_turns() {
    let narrow = Health::narrow(1500);
    let mut world = proving(|s| {
        s.at(Time::ZERO, Action::Plane { port: 2, health: narrow });
    });
    world.run_until(millis(1_100));
    assert_eq!(world.ends[0].record.mtu, Some(None), "it may still be answered");
    world.run_until(millis(1_120));
    let progress = world.ends[0].record.mtu.flatten().expect("the proof has ended");
    assert_eq!((progress.full, progress.narrow()), (PortSet::first(4).without(2), PortSet::one(2)));
}

#[test]
fn a_plane_that_carries_nothing_is_asked_about_and_not_waited_for() {
    let mut world = proving(|s| {
        s.node.port_trust = PortTrust::Confirmed;
        s.at(Time::ZERO, Action::Plane { port: 1, health: Health::DEAD });
    });
    world.run_until(millis(100));
    let progress = world.ends[0].record.mtu.flatten().expect("the proof has ended");
    assert_eq!((progress.narrow(), progress.full), (PortSet::EMPTY, PortSet::first(4).without(1)));
    assert_eq!(world.believed_ports(0, 1), PortSet::first(4).without(1));
}
