//! Measures the data packets per second that two queue pairs exchange over a network without cost: the share of the
//! transport in the cost of everything built on it.
//!
//! `cargo run --release -p openmrc-transport --example speed [messages] [bytes]`

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use openmrc_transport::mrc::{CcProfile, PathConfig, PathModel, QpConfig, QueuePair};
use openmrc_transport::{
    AccessError, EvProfile, Fatal, Host, NoReceive, PathEntry, PortSet, Readiness, Received, RecvDone,
    SendDone, Span, Time, Transmit, Transport, WorkRequest,
};
use openmrc_wire::Ev;

#[derive(Default)]
struct Wire {
    feedback: VecDeque<Transmit>,
    done: u64,
}

impl Host for Wire {
    fn write(&mut self, _rkey: u32, _va: u64, _len: u32) -> Result<(), AccessError> {
        Ok(())
    }
    fn transmit(&mut self, transmit: Transmit) {
        self.feedback.push_back(transmit);
    }
    fn send_done(&mut self, _done: SendDone) {
        self.done += 1;
    }
    fn recv_done(&mut self, _done: RecvDone) -> Result<(), NoReceive> {
        Ok(())
    }
    fn may_probe_path(&mut self, _now: Time) -> bool {
        true
    }
    fn fatal(&mut self, why: Fatal) {
        panic!("{why}");
    }
}

fn received(transmit: &Transmit) -> Received {
    Received { packet: transmit.packet, ev: transmit.ev, port: transmit.port, ecn_ce: false, trim: None }
}

fn main() {
    let mut args = std::env::args().skip(1).map(|a| a.parse::<u64>().expect("a number"));
    let (messages, bytes) = (args.next().unwrap_or(20_000), args.next().unwrap_or(1 << 20));
    let paths: Vec<_> = (0..256u32).map(|i| PathEntry { ev: Ev(i), port: (i % 8) as u8 }).collect();
    let profile = Arc::new(EvProfile::new(&paths).expect("paths"));
    let paths = PathConfig::new(profile, PathModel::new(Span::from_micros(12), true));
    let cc = Arc::new(CcProfile::nscc(800_000_000_000, Span::from_micros(12), 4096, true));
    let make = |local, remote| {
        QueuePair::new(Time::ZERO, &QpConfig::new(local, remote, paths.clone(), cc.clone())).expect("config")
    };
    let (mut a, mut b) = (make(1, 2), make(2, 1));
    let (mut at_a, mut at_b) = (Wire::default(), Wire::default());
    let all = PortSet::first(8);
    // The packets of a round trip; each is serialized at 800 Gb/s.
    let mut flying: VecDeque<Transmit> = VecDeque::new();
    let mut now = Time(1);
    let mut posted = 0;
    let begin = Instant::now();
    let mut packets = 0u64;
    while at_a.done < messages {
        while posted < messages
            && a.post_send(
                now,
                WorkRequest {
                    handle: posted,
                    len: bytes as u32,
                    remote_va: 0,
                    rkey: 1,
                    imm: None,
                    solicited: false,
                },
            )
            .is_ok()
        {
            posted += 1;
        }
        now += Span::from_nanos(42);
        if let Some(transmit) = a.poll_transmit(now, all) {
            packets += 1;
            flying.push_back(transmit);
        }
        if (flying.len() > 150 || a.readiness() != Readiness::Ready)
            && let Some(transmit) = flying.pop_front()
        {
            b.handle_packet(now, &received(&transmit), &mut at_b);
        }
        if b.poll_timeout() <= now {
            b.handle_timeout(now, &mut at_b);
        }
        while let Some(transmit) = at_b.feedback.pop_front() {
            a.handle_packet(now, &received(&transmit), &mut at_a);
        }
        while let Some(transmit) = at_a.feedback.pop_front() {
            b.handle_packet(now, &received(&transmit), &mut at_b);
        }
        if a.poll_timeout() <= now {
            a.handle_timeout(now, &mut at_a);
        }
    }
    let seconds = begin.elapsed().as_secs_f64();
    println!(
        "{packets} data packets, {} retransmitted, {:.0} ns each, {:.2} M/s",
        a.stats().retransmits,
        seconds / packets as f64 * 1e9,
        packets as f64 / seconds / 1e6
    );
}
