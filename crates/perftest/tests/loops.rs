//! The loops between two devices of one process: what they count is what has arrived, and they end when they are told.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::atomic::{AtomicBool, AtomicU16, Ordering};
use std::time::Duration;

use openmrc_nic::{
    CompletionQueue, Context, Device, DeviceConfig, EntropyConfig, Error, ProtectionDomain, QpAttr, QpCap,
    QpState, QueuePair,
};
use openmrc_perftest::{
    BandwidthParams, BandwidthResult, Control, LatencyParams, Memory, Role, Target, write_bw, write_lat,
};

const SLOTS: usize = 16;
const SIZE: u32 = 5000;

/// One end: a device with its queue pairs, and memory to send from and to be written to.
struct End {
    context: Context,
    domain: ProtectionDomain,
    queue: CompletionQueue,
    pairs: Vec<QueuePair>,
    source: Memory,
    inbox: Memory,
}

/// A device on addresses of 127/8 that no other device of these tests has, also in other processes.
fn device() -> Device {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let number = ((std::process::id() as u16) << 5) | (NEXT.fetch_add(1, Ordering::Relaxed) % 32);
    let [high, low] = number.to_be_bytes();
    let config =
        DeviceConfig::with_addresses((101..103).map(|p| IpAddr::V4(Ipv4Addr::new(127, p, high, low))));
    let entropy = EntropyConfig { per_port: Some(4), ..config.entropy };
    Device::new(DeviceConfig { entropy, seed: Some(1), ..config }).unwrap()
}

impl End {
    fn open(pairs: usize) -> End {
        let context = device().open().unwrap();
        let domain = context.alloc_pd().unwrap();
        let queue = context.create_cq(1024).unwrap();
        let pairs =
            (0..pairs).map(|_| domain.create_qp(&queue, &queue, QpCap::default(), false).unwrap()).collect();
        let memory = || Memory::new(&domain, SLOTS * SIZE as usize).unwrap();
        let (source, inbox) = (memory(), memory());
        End { context, queue, pairs, source, inbox, domain }
    }

    fn target(&self) -> Target {
        let region = self.inbox.region();
        Target { addr: region.addr(), len: region.len() as u64, rkey: region.rkey() }
    }

    fn bandwidth(
        &self,
        peer: &End,
        params: &BandwidthParams,
        control: &Control,
    ) -> Result<BandwidthResult, Error> {
        let pairs: Vec<_> = self.pairs.iter().collect();
        write_bw(&self.context, &pairs, &self.queue, self.source.region(), &peer.target(), params, control)
    }

    fn latency(&self, peer: &End, role: Role, params: &LatencyParams, stop: &AtomicBool) -> Vec<u64> {
        let (source, inbox) = (self.source.region(), self.inbox.region());
        let target = peer.target();
        write_lat(&self.context, &self.pairs[0], &self.queue, source, inbox, &target, role, params, stop)
            .unwrap()
    }
}

fn connected(pairs: usize) -> (End, End) {
    let (a, b) = (End::open(pairs), End::open(pairs));
    for (here, there) in [(&a, &b), (&b, &a)] {
        for (qp, peer) in here.pairs.iter().zip(&there.pairs) {
            qp.modify(QpState::Init, &QpAttr::default()).unwrap();
            let rtr = QpAttr {
                dest_qp_num: Some(peer.qp_num()),
                remote: Some(there.context.addresses()),
                rq_psn: Some(7),
                ..QpAttr::default()
            };
            qp.modify(QpState::Rtr, &rtr).unwrap();
            qp.modify(QpState::Rts, &QpAttr { sq_psn: Some(7), ..QpAttr::default() }).unwrap();
        }
    }
    (a, b)
}

fn params() -> BandwidthParams {
    BandwidthParams {
        size: SIZE,
        iterations: Some(1000),
        duration: None,
        depth: 64,
        post_list: 8,
        signal_every: 4,
        inline: false,
        polling: true,
        bucket: Duration::from_millis(1),
    }
}

#[test]
fn a_run_counts_every_message_once_and_its_bytes_have_arrived() {
    for (pairs, polling, inline) in [(1, true, false), (3, false, false), (2, true, true)] {
        let (a, b) = connected(pairs);
        b.inbox.clear().unwrap();
        let size = if inline { 200 } else { SIZE };
        let control = Control::default();
        let result =
            a.bandwidth(&b, &BandwidthParams { size, polling, inline, ..params() }, &control).unwrap();
        let bytes = 1000 * u64::from(size);
        assert_eq!((result.messages, result.bytes), (1000, bytes));
        assert_eq!(result.buckets.iter().sum::<u64>(), bytes);
        assert_eq!(result.posted.iter().sum::<u64>(), bytes);
        assert_eq!(control.bytes.load(Ordering::Relaxed), bytes);
        assert!(a.pairs.iter().all(|qp| qp.send_outstanding() == 0));
        let sent = a.source.region().copy_out(0, size as usize);
        assert_eq!(b.inbox.region().copy_out(0, size as usize), sent);
    }
}

#[test]
fn a_run_without_an_end_ends_when_it_is_told() {
    let (a, b) = connected(1);
    let control = Control::default();
    let endless = BandwidthParams { iterations: None, duration: Some(Duration::MAX), ..params() };
    std::thread::scope(|scope| {
        let run = scope.spawn(|| a.bandwidth(&b, &endless, &control).unwrap());
        while control.bytes.load(Ordering::Relaxed) == 0 && !run.is_finished() {
            std::thread::yield_now();
        }
        control.stop.store(true, Ordering::Relaxed);
        let result = run.join().unwrap();
        assert_eq!(result.bytes, result.messages * u64::from(SIZE));
    });
    assert_eq!(a.pairs[0].send_outstanding(), 0);
}

#[test]
fn messages_that_do_not_fit_are_refused_before_anything_is_sent() {
    let (a, b) = connected(1);
    let control = Control::default();
    let long = BandwidthParams { size: SLOTS as u32 * SIZE + 1, ..params() };
    let endless = BandwidthParams { iterations: None, ..params() };
    for wrong in [long, endless] {
        let error = a.bandwidth(&b, &wrong, &control).err().expect("a refusal");
        assert!(matches!(error, Error::InvalidArgument(_)), "{error}");
    }
    assert_eq!(a.pairs[0].stats().unwrap().data_packets, 0);
}

#[test]
fn a_message_that_the_peer_refuses_ends_the_run_with_its_status() {
    let (a, b) = connected(1);
    let pairs = [&a.pairs[0]];
    let wrong = Target { rkey: !b.target().rkey, ..b.target() };
    let run =
        write_bw(&a.context, &pairs, &a.queue, a.source.region(), &wrong, &params(), &Control::default());
    assert!(matches!(run, Err(Error::MessageFailed { .. })));
}

#[test]
fn the_client_measures_every_round_and_the_server_answers_it() {
    for (size, inline, iterations) in [(2, true, 300), (SIZE, false, 50)] {
        let (a, b) = connected(1);
        a.inbox.clear().unwrap();
        b.inbox.clear().unwrap();
        let params = LatencyParams { size, iterations, warmup: 20, inline };
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let server = scope.spawn(|| b.latency(&a, Role::Server, &params, &stop));
            assert_eq!(a.latency(&b, Role::Client, &params, &stop).len() as u64, iterations);
            assert_eq!(server.join().unwrap(), []);
        });
        let last = ((params.iterations + params.warmup - 1) % 255) as u8 + 1;
        assert_eq!(a.inbox.region().peek(size as usize - 1), Some(last));
    }
}

#[test]
fn a_client_whose_server_never_answers_ends_when_it_is_told() {
    let (a, b) = connected(1);
    a.inbox.clear().unwrap();
    let stop = AtomicBool::new(false);
    let params = LatencyParams { size: 2, iterations: 300, warmup: 0, inline: true };
    std::thread::scope(|scope| {
        let client = scope.spawn(|| a.latency(&b, Role::Client, &params, &stop));
        while b.inbox.region().peek(1) != Some(1) && !client.is_finished() {
            b.context.progress();
            std::thread::yield_now();
        }
        stop.store(true, Ordering::Relaxed);
        assert_eq!(client.join().unwrap(), []);
    });
    // Its domain outlives what is registered in it.
    drop((a.domain, b.domain));
}
