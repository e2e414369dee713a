//! How long a write takes to become visible to a thread that has polled its completion queue for ten milliseconds and
//! then spins on its memory without polling. Prints one JSON object for each case: microseconds from just before the post
//! until the receiving thread reads the value. Usage: `spin_on_memory [ROUNDS]`.
//!
//! | case | the receiving thread, before it spins on memory |
//! |---|---|
//! | idle | sleeps: the engine's thread drives |
//! | polled | polls an empty queue |
//! | armed | polls an empty queue, then arms it |
//! | traffic | polls while small writes arrive |
//! | guard | polls an empty queue in polling mode |
//! | udp | the reference: a plain socket, on which another thread of the receiver sleeps until the datagram comes |

#[path = "../tests/common/mod.rs"]
mod common;

use std::net::UdpSocket;
use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use common::{End, Options, connect, device};
use openmrc_nic::{Completion, QpAttr, SendData, SendWr};

/// How long both ends poll before each write.
const POLLING: Duration = Duration::from_millis(10);

#[derive(Clone, Copy, PartialEq, Debug)]
enum Case {
    Idle,
    Polled,
    Armed,
    Traffic,
    Guard,
    Udp,
}

fn end() -> End {
    End::open(openmrc_nic::DeviceConfig { callers_drive: true, ..device(8) }, &Options::default())
}

/// Polls until `until`; completions are dropped.
fn poll(end: &End, until: Instant, room: &mut Vec<Completion>) {
    while Instant::now() < until {
        room.clear();
        end.cq.poll_into(16, room).unwrap();
    }
}

fn write(from: &End, to: &End, offset: usize, value: u64) {
    from.qp
        .post_send(&[SendWr {
            data: SendData::Inline(&value.to_ne_bytes()),
            ..from.request(to, offset, value, &[])
        }])
        .unwrap();
}

/// The reference, microseconds of each round, sorted: the least that waking a thread takes on this machine.
fn measure_udp(rounds: usize) -> Vec<f64> {
    let (from, to) = (UdpSocket::bind("127.0.0.1:0").unwrap(), UdpSocket::bind("127.0.0.1:0").unwrap());
    let (addr, value, barrier) = (to.local_addr().unwrap(), AtomicU64::new(0), Barrier::new(2));
    let spin = |until: Instant| while Instant::now() < until {};
    let mut times: Vec<f64> = std::thread::scope(|scope| {
        let (value, barrier) = (&value, &barrier);
        scope.spawn(move || {
            let mut bytes = [0; 8];
            for _ in 0..rounds {
                to.recv(&mut bytes).unwrap();
                value.store(u64::from_ne_bytes(bytes), Ordering::Release);
            }
        });
        let sender = scope.spawn(move || {
            let post = |round: u64| {
                barrier.wait();
                spin(Instant::now() + POLLING + Duration::from_micros(20 + round * 37 % 400));
                let posted = Instant::now();
                from.send_to(&(round + 1).to_ne_bytes(), addr).unwrap();
                barrier.wait();
                posted
            };
            (0..rounds as u64).map(post).collect::<Vec<_>>()
        });
        let see = |round: u64| {
            barrier.wait();
            spin(Instant::now() + POLLING);
            while value.load(Ordering::Acquire) != round + 1 {
                std::hint::spin_loop();
            }
            let seen = Instant::now();
            barrier.wait();
            seen
        };
        let seen: Vec<_> = (0..rounds as u64).map(see).collect();
        let posted = sender.join().unwrap();
        seen.iter().zip(posted).map(|(seen, posted)| (*seen - posted).as_secs_f64() * 1e6).collect()
    });
    times.sort_by(f64::total_cmp);
    times
}

/// Microseconds of each round, sorted.
fn measure(case: Case, rounds: usize) -> Vec<f64> {
    let (a, b) = (end(), end());
    connect((&a.context, &a.qp), (&b.context, &b.qp), &QpAttr::default());
    let barrier = Barrier::new(2);
    let mut times = Vec::with_capacity(rounds);
    std::thread::scope(|scope| {
        let (from, to, barrier) = (&a, &b, &barrier);
        let sender = scope.spawn(move || {
            let (mut room, mut posted) = (Vec::new(), Vec::with_capacity(rounds));
            for round in 0..rounds {
                barrier.wait();
                let begin = Instant::now();
                // The receiver stops earlier, by another time in each round.
                let until = begin + POLLING + Duration::from_micros(20 + round as u64 * 37 % 400);
                while case == Case::Traffic && begin.elapsed() < POLLING {
                    if from.qp.send_outstanding() < 16 {
                        write(from, to, 64, 1);
                    }
                    poll(from, Instant::now() + Duration::from_micros(20), &mut room);
                }
                poll(from, until, &mut room);
                posted.push(Instant::now());
                write(from, to, 0, round as u64 + 1);
                // It sleeps until the value has been seen: on two processors the other one is free.
                barrier.wait();
            }
            posted
        });
        let (mut room, mut seen) = (Vec::new(), Vec::with_capacity(rounds));
        let value = |end: &End| {
            let mut bytes = [0; 8];
            bytes.iter_mut().enumerate().for_each(|(i, byte)| *byte = end.region.peek(i).unwrap_or(0));
            u64::from_ne_bytes(bytes)
        };
        for round in 0..rounds {
            barrier.wait();
            let guard = (case == Case::Guard).then(|| b.context.polling());
            match case {
                Case::Idle => std::thread::sleep(POLLING),
                _ => poll(&b, Instant::now() + POLLING, &mut room),
            }
            if case == Case::Armed {
                b.cq.arm();
            }
            while value(&b) != round as u64 + 1 {
                std::hint::spin_loop();
            }
            seen.push(Instant::now());
            drop(guard);
            barrier.wait();
        }
        let posted = sender.join().unwrap();
        times.extend(seen.iter().zip(posted).map(|(seen, posted)| (*seen - posted).as_secs_f64() * 1e6));
    });
    times.sort_by(f64::total_cmp);
    times
}

fn main() {
    let rounds = std::env::args().nth(1).and_then(|text| text.parse().ok()).unwrap_or(200);
    for case in [Case::Idle, Case::Polled, Case::Armed, Case::Traffic, Case::Guard, Case::Udp] {
        let times = if case == Case::Udp { measure_udp(rounds) } else { measure(case, rounds) };
        let at = |share: f64| times[((times.len() - 1) as f64 * share) as usize];
        println!(
            "{{\"case\": \"{}\", \"p10\": {:.1}, \"p50\": {:.1}, \"p90\": {:.1}, \"p99\": {:.1}}}",
            format!("{case:?}").to_lowercase(),
            at(0.1),
            at(0.5),
            at(0.9),
            at(0.99)
        );
    }
}
