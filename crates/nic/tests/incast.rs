//! Many senders into one receiver whose sockets hold little: the receiver slows them down, and its overflows are not
//! taken for broken paths (docs/spec/congestion.md, "On a SACK").

mod common;

use std::collections::HashSet;

use common::*;
use openmrc_nic::*;
use openmrc_transport::EvChange;
use openmrc_transport::mrc::QpStats;

const PORTS: usize = 8;
/// Bytes of a message. Each sender sends several, from different offsets of its pattern to different places.
const MESSAGE: usize = 1 << 20;
const MESSAGES: usize = 8;
const SHIFT: usize = 4096;
/// What an unprivileged socket gets (`net.core.rmem_max`); the kernel doubles what it is asked for.
const SOCKET_BUFFER: usize = 212_992;

/// Senders, each a device of its own, connected to one receiver with small socket buffers.
struct Incast {
    senders: Vec<End>,
    receiver: End,
    /// The receiver's queue pairs: they live as long as this.
    _qps: Vec<QueuePair>,
}

impl Incast {
    fn new(senders: usize) -> Self {
        let config = DeviceConfig {
            sockets: SocketConfig { receive_buffer: SOCKET_BUFFER / 2, ..SocketConfig::default() },
            ..device(PORTS)
        };
        let buffer = senders * MESSAGES * MESSAGE;
        let receiver = End::open(config, &Options { buffer, ..Options::default() });
        for port in receiver.context.port_states().unwrap() {
            assert_eq!(port.receive_buffer, SOCKET_BUFFER);
        }
        let caps = Some(Capabilities::OWN);
        let attr = QpAttr { timeout: Some(14), exp_cnt: Some(25), caps, ..QpAttr::default() };
        let (senders, _qps) = (0..senders)
            .map(|index| {
                let buffer = MESSAGE + MESSAGES * SHIFT;
                let sender = End::open(device(PORTS), &Options { buffer, ..Options::default() });
                sender.buffer.write(0, &pattern(buffer, index as u64));
                let qp = receiver.pd.create_qp(&receiver.cq, &receiver.cq, QpCap::default(), false).unwrap();
                connect((&sender.context, &sender.qp), (&receiver.context, &qp), &attr);
                (sender, qp)
            })
            .unzip();
        Incast { senders, receiver, _qps }
    }

    /// Every sender sends all its messages. They arrive whole.
    fn run(&self) {
        for (index, sender) in self.senders.iter().enumerate() {
            for message in 0..MESSAGES {
                let to = (index * MESSAGES + message) * MESSAGE;
                sender.write(&self.receiver, message * SHIFT, to, MESSAGE, message as u64);
            }
        }
        for (index, sender) in self.senders.iter().enumerate() {
            assert_eq!(sender.wait_success(MESSAGES), (0..MESSAGES as u64).collect::<Vec<_>>());
            let sent = pattern(MESSAGE + MESSAGES * SHIFT, index as u64);
            for message in 0..MESSAGES {
                let at = (index * MESSAGES + message) * MESSAGE;
                let arrived = self.receiver.buffer.read(at, MESSAGE);
                assert!(arrived == sent[message * SHIFT..][..MESSAGE], "sender {index}, message {message}");
            }
        }
    }

    fn stats(&self) -> Vec<QpStats> {
        self.senders.iter().map(|sender| sender.qp.stats().unwrap()).collect()
    }
}

#[test]
fn an_incast_into_small_buffers_condemns_no_path() {
    let incast = Incast::new(16);
    incast.run();
    let stats = incast.stats();
    let receiver = incast.receiver.context.stats().unwrap();
    let dropped = incast.receiver.cause(Cause::SocketOverflow);
    let condemned: Vec<_> = stats.iter().map(|s| s.condemned).collect();
    let explained: u32 = stats.iter().map(|s| s.overflowed).sum();
    println!("{dropped} dropped in {} overflows, {explained} explained", receiver.node.overflows);
    assert!(condemned.iter().all(|&n| n == 0), "{dropped} dropped, condemned {condemned:?}: {stats:#?}");
    assert_eq!(dropped > 0, receiver.node.overflows > 0);
    assert!(explained > 0 || stats.iter().all(|s| s.lost == 0), "losses without an overflow: {stats:#?}");
}

#[test]
fn under_incast_a_plane_that_is_dead_is_condemned_and_the_others_carry_everything() {
    const DEAD: u8 = 3;
    let incast = Incast::new(4);
    let drop = ImpairRule { ports: 1 << DEAD, ..ImpairRule::new(Impairment::Drop) };
    for sender in &incast.senders {
        sender.context.set_impairments(vec![drop.clone()], 1).unwrap();
    }
    incast.receiver.context.set_impairments(vec![drop], 1).unwrap();
    incast.run();
    for (sender, stats) in incast.senders.iter().zip(incast.stats()) {
        assert!(stats.condemned > 0, "{stats:#?}");
        let mut ports = HashSet::new();
        while let Some(event) = sender.context.path_events().next() {
            if event.change == EvChange::AssumedBad {
                ports.insert(event.port);
            }
        }
        // Where the machine is busy, others may be condemned for a moment too: what comes late is taken for lost.
        assert!(ports.contains(&DEAD), "condemned {ports:?}: {stats:#?}");
    }
}
