//! Both ends of a ping-pong of 2-byte writes in one thread, each end driven in its turn: what a round trip takes does not
//! depend on what else the machine does. Usage: `valgrind --tool=callgrind` or `strace -c`, then
//! `ping_pong mrc|udp ROUNDS [PORTS]`, with two numbers of rounds, for the difference.

#[path = "../tests/common/mod.rs"]
mod common;

use std::net::UdpSocket;

use common::{Options, device, pair_with};
use openmrc_nic::{SendData, SendWr};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let kind = arguments.next().unwrap_or_default();
    let rounds: u64 = arguments.next().map_or(Ok(100_000), |text| text.parse())?;
    let ports: usize = arguments.next().map_or(Ok(8), |text| text.parse())?;
    if kind == "udp" {
        udp(rounds)?
    } else {
        mrc(rounds, ports)?
    }
    Ok(())
}

/// The same with plain sockets, as `openmrc-bench udp-pingpong` uses them.
fn udp(rounds: u64) -> std::io::Result<()> {
    let ends = [UdpSocket::bind("127.0.0.1:0")?, UdpSocket::bind("127.0.0.1:0")?];
    ends[0].connect(ends[1].local_addr()?)?;
    ends[1].connect(ends[0].local_addr()?)?;
    let mut message = [1u8; 2];
    for _ in 0..rounds {
        for (from, to) in [(0, 1), (1, 0)] {
            ends[from].send(&message)?;
            ends[to].recv(&mut message)?;
        }
    }
    Ok(())
}

fn mrc(rounds: u64, ports: usize) -> openmrc_nic::Result<()> {
    let (a, b) = pair_with(device(ports), device(ports), &Options::default());
    let _polling = (a.context.polling(), b.context.polling());
    let mut completions = Vec::new();
    let mut turns = 0u64;
    for round in 0..rounds {
        let value = (round % 255) as u8 + 1;
        for (from, to) in [(&a, &b), (&b, &a)] {
            from.qp.post_send(&[SendWr {
                data: SendData::Inline(&[0, value]),
                signaled: round.is_multiple_of(16),
                ..from.request(to, 0, round, &[])
            }])?;
            // Posting sends nothing by itself: the turns of this end do, until the message has left.
            while to.region.peek(1) != Some(value) {
                from.context.progress();
                to.context.progress();
                turns += 1;
            }
            if !from.cq.is_empty() {
                completions.clear();
                from.cq.poll_into(64, &mut completions)?;
            }
            while from.qp.send_outstanding() + 2 >= from.qp.cap().max_send_wr as usize {
                from.context.progress();
                to.context.progress();
            }
        }
    }
    for end in [&a, &b] {
        let (mut packets, mut datagrams) = (0, 0);
        for port in end.context.stats()?.ports {
            packets += port.tx_packets;
            datagrams += port.rx_datagrams;
        }
        println!(
            "{:.3} packets sent, {:.3} datagrams received a round",
            packets as f64 / rounds as f64,
            datagrams as f64 / rounds as f64
        );
    }
    println!("{:.3} turns of both ends a message", turns as f64 / rounds as f64 / 2.0);
    Ok(())
}
