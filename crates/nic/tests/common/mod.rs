//! Two devices of one process, connected over loopback. Every pair has its own addresses, so tests can run in parallel.

#![allow(dead_code)] // Not every test file uses everything.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant};

use openmrc_nic::*;

/// A limit against hanging. Longer than any of these tests takes on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(30);

static NEXT_DEVICE: AtomicU16 = AtomicU16::new(0);

/// Addresses in 127/8 that no other device uses: the second octet is the port, the other two identify the device, also
/// among test processes that run in parallel.
fn addresses(ports: usize) -> impl Iterator<Item = IpAddr> {
    let device = ((std::process::id() as u16) << 5) | (NEXT_DEVICE.fetch_add(1, Ordering::Relaxed) % 32);
    let [high, low] = device.to_be_bytes();
    (0..ports).map(move |port| IpAddr::V4(Ipv4Addr::new(127, port as u8 + 1, high, low)))
}

/// A device with few paths, so that many devices fit the descriptor limit.
pub fn device(ports: usize) -> DeviceConfig {
    let config = DeviceConfig::with_addresses(addresses(ports));
    DeviceConfig { entropy: EntropyConfig { per_port: Some(8), ..config.entropy }, seed: Some(1), ..config }
}

/// One end of a connection.
pub struct End {
    pub context: Context,
    pub pd: ProtectionDomain,
    pub cq: CompletionQueue,
    pub buffer: Buffer,
    pub region: MemoryRegion,
    pub qp: QueuePair,
}

/// How an end is created.
pub struct Options {
    pub buffer: usize,
    pub access: Access,
    pub cap: QpCap,
    pub cqe: usize,
    pub attr: QpAttr,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            buffer: 1 << 20,
            access: Access::LOCAL_WRITE.with(Access::REMOTE_WRITE),
            cap: QpCap::default(),
            cqe: 4096,
            attr: QpAttr { caps: Some(Capabilities::OWN), ..QpAttr::default() },
        }
    }
}

impl End {
    pub fn open(config: DeviceConfig, options: &Options) -> End {
        let context = Device::new(config).unwrap().open().unwrap();
        let pd = context.alloc_pd().unwrap();
        let cq = context.create_cq(options.cqe).unwrap();
        let buffer = Buffer::zeroed(options.buffer);
        let region = pd.register(&buffer, options.access).unwrap();
        let qp = pd.create_qp(&cq, &cq, options.cap, false).unwrap();
        End { context, pd, cq, buffer, region, qp }
    }

    /// Posts a write of `len` bytes from offset `from` of our buffer to offset `to` of the peer's.
    pub fn write(&self, peer: &End, from: usize, to: usize, len: usize, wr_id: u64) {
        self.qp.post_send(&[self.request(peer, to, wr_id, &[self.sge(from, len)])]).unwrap();
    }

    pub fn sge(&self, from: usize, len: usize) -> Sge {
        Sge { addr: self.region.addr() + from as u64, len: len as u32, lkey: self.region.lkey() }
    }

    /// A write of `sges` to offset `to` of the peer's buffer.
    pub fn request<'a>(&self, peer: &End, to: usize, wr_id: u64, sges: &'a [Sge]) -> SendWr<'a> {
        SendWr {
            wr_id,
            data: SendData::Sges(sges),
            remote_addr: peer.region.addr() + to as u64,
            rkey: peer.region.rkey(),
            imm: None,
            signaled: true,
            solicited: false,
        }
    }

    /// Waits for `n` completions.
    pub fn wait(&self, n: usize) -> Vec<Completion> {
        let mut out = Vec::new();
        let deadline = Instant::now() + PATIENCE;
        while out.len() < n {
            assert!(Instant::now() < deadline, "{} of {n} completions: {out:?}", out.len());
            self.cq.wait(Duration::from_millis(100));
            self.cq.poll_into(n - out.len(), &mut out).unwrap();
        }
        out
    }

    /// Waits for `n` successful completions and returns their `wr_id`s.
    pub fn wait_success(&self, n: usize) -> Vec<u64> {
        let done = self.wait(n);
        assert!(done.iter().all(|c| c.status == Status::Success), "{done:?}");
        done.iter().map(|c| c.wr_id).collect()
    }

    pub fn cause(&self, cause: Cause) -> u64 {
        self.context.stats().unwrap().causes.get(cause)
    }
}

/// Connects two queue pairs and takes both to RTS.
pub fn connect(a: (&Context, &QueuePair), b: (&Context, &QueuePair), attr: &QpAttr) {
    for ((_, qp), (peer_context, peer_qp)) in [(a, b), (b, a)] {
        to_rts(qp, peer_qp.qp_num(), peer_context.addresses(), attr);
    }
}

pub fn to_rts(qp: &QueuePair, dest_qp_num: u32, remote: Vec<SocketAddr>, attr: &QpAttr) {
    qp.modify(QpState::Init, &QpAttr::default()).unwrap();
    let rtr = QpAttr {
        dest_qp_num: Some(dest_qp_num),
        remote: Some(remote),
        rq_psn: Some(0xFF_FFF0),
        timeout: None,
        linear_cnt: None,
        exp_cnt: None,
        keepalive_ms: None,
        mpr: None,
        max_wimm: None,
        ..attr.clone()
    };
    qp.modify(QpState::Rtr, &rtr).unwrap();
    let rts = QpAttr {
        sq_psn: Some(0xFF_FFF0),
        timeout: attr.timeout,
        linear_cnt: attr.linear_cnt,
        exp_cnt: attr.exp_cnt,
        keepalive_ms: attr.keepalive_ms,
        mpr: attr.mpr,
        max_wimm: attr.max_wimm,
        ..QpAttr::default()
    };
    qp.modify(QpState::Rts, &rts).unwrap();
}

/// Two connected ends of `ports` planes.
pub fn pair(ports: usize) -> (End, End) {
    pair_with(device(ports), device(ports), &Options::default())
}

pub fn pair_with(a: DeviceConfig, b: DeviceConfig, options: &Options) -> (End, End) {
    let (a, b) = (End::open(a, options), End::open(b, options));
    connect((&a.context, &a.qp), (&b.context, &b.qp), &options.attr);
    (a, b)
}

/// Pseudo-random bytes.
pub fn pattern(len: usize, seed: u64) -> Vec<u8> {
    let mut x = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    (0..len)
        .map(|_| {
            x ^= x << 13;
            x ^= x >> 7;
            x ^= x << 17;
            x as u8
        })
        .collect()
}

/// Says why a test does not run here. As root in CI everything is there, so that it fails.
pub fn skipped(why: &str) {
    // SAFETY: no pointers.
    let is_root = unsafe { libc::geteuid() } == 0;
    assert!(!is_root || std::env::var_os("CI").is_none(), "{why}");
    println!("skipped: {why}");
}

/// Whether there is iproute2; if not, says so.
pub fn has_ip() -> bool {
    let there = std::process::Command::new("ip").arg("-V").output().is_ok();
    if !there {
        skipped("no ip: package iproute2");
    }
    there
}
