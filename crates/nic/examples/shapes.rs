//! Transfers among several devices of this machine over loopback: a pair, one to many, many to one, all to all. Prints
//! one JSON object: goodput, how even the shares are, and what the transport counted.
//!
//! ```text
//! shapes [--shape pair|scatter|incast|all] [--nodes N] [--mib MIB] [--memory MIB] [--ports P] [--buffer BYTES]
//!        [--control nscc|fixed]
//! ```
//!
//! Each flow sends `--mib`, from `--memory` of its own to `--memory` of its own, again and again. With less memory than the
//! processor's caches a pair is faster than any transfer of that size is.

use std::net::{IpAddr, Ipv4Addr};
use std::time::{Duration, Instant};

use openmrc_nic::*;

/// Bytes of a message.
const MESSAGE: usize = 1 << 20;

struct Options {
    shape: String,
    nodes: usize,
    mib: usize,
    memory: usize,
    ports: usize,
    buffer: usize,
    control: String,
}

fn options() -> std::result::Result<Options, lexopt::Error> {
    use lexopt::prelude::*;
    let mut options = Options {
        shape: "pair".into(),
        nodes: 8,
        mib: 64,
        memory: 64,
        ports: 8,
        buffer: 16 << 20,
        control: "default".into(),
    };
    let mut parser = lexopt::Parser::from_env();
    while let Some(argument) = parser.next()? {
        match argument {
            Long("shape") => options.shape = parser.value()?.string()?,
            Long("nodes") => options.nodes = parser.value()?.parse()?,
            Long("mib") => options.mib = parser.value()?.parse()?,
            Long("memory") => options.memory = parser.value()?.parse()?,
            Long("ports") => options.ports = parser.value()?.parse()?,
            Long("buffer") => options.buffer = parser.value()?.parse()?,
            Long("control") => options.control = parser.value()?.string()?,
            other => return Err(other.unexpected()),
        }
    }
    Ok(options)
}

/// A device with memory for what it sends and receives.
struct Host {
    context: Context,
    pd: ProtectionDomain,
    cq: CompletionQueue,
}

/// Registered memory of `mib` MiB, every page of which is there.
fn registered(host: &Host, mib: usize) -> MemoryRegion {
    let buffer = Buffer::zeroed(mib * MESSAGE);
    let region = host.pd.register(&buffer, Access::LOCAL_WRITE.with(Access::REMOTE_WRITE)).unwrap();
    for page in (0..mib * MESSAGE).step_by(4096) {
        buffer.write(page, &[1]);
    }
    region
}

fn host(options: &Options, index: usize) -> Host {
    let process = std::process::id() as u8;
    let addr = |port: usize| IpAddr::V4(Ipv4Addr::new(127, 1 + port as u8, 1 + index as u8, process));
    let mut config = DeviceConfig::with_addresses((0..options.ports).map(addr));
    config.sockets.receive_buffer = options.buffer / 2; // The kernel doubles it.
    config.entropy.per_port = Some((256 / options.ports).min(32) as u16);
    match options.control.as_str() {
        "nscc" => config.network.fixed_window = Some(0),
        "fixed" => config.network.fixed_window = Some(1 << 20),
        _ => {}
    }
    let context = Device::new(config).unwrap().open().unwrap();
    let pd = context.alloc_pd().unwrap();
    let cq = context.create_cq(4096).unwrap();
    Host { context, pd, cq }
}

fn to_rts(qp: &QueuePair, peer: &Host, peer_qp: &QueuePair) {
    let rtr = QpAttr {
        dest_qp_num: Some(peer_qp.qp_num()),
        remote: Some(peer.context.addresses()),
        rq_psn: Some(0),
        ..QpAttr::default()
    };
    qp.modify(QpState::Init, &QpAttr::default()).unwrap();
    qp.modify(QpState::Rtr, &rtr).unwrap();
    qp.modify(QpState::Rts, &QpAttr { sq_psn: Some(0), ..QpAttr::default() }).unwrap();
}

fn main() {
    let options = options().unwrap_or_else(|error| {
        eprintln!("shapes: {error}");
        std::process::exit(2);
    });
    let n = options.nodes;
    let flows: Vec<(usize, usize)> = match options.shape.as_str() {
        "pair" => vec![(0, 1)],
        "scatter" => (1..=n).map(|to| (0, to)).collect(),
        "incast" => (1..=n).map(|from| (from, 0)).collect(),
        "all" => (0..n).flat_map(|a| (0..n).filter(move |&b| b != a).map(move |b| (a, b))).collect(),
        other => {
            eprintln!("shapes: no shape {other}: pair, scatter, incast, all");
            std::process::exit(2);
        }
    };
    let nodes = flows.iter().map(|&(a, b)| a.max(b)).max().unwrap_or(0) + 1;
    let hosts: Vec<Host> = (0..nodes).map(|index| host(&options, index)).collect();
    let cap = QpCap { max_send_wr: options.mib.max(16) as u32, ..QpCap::default() };
    let memory = options.memory.min(options.mib).max(1);
    let regions: Vec<(MemoryRegion, MemoryRegion)> = flows
        .iter()
        .map(|&(from, to)| (registered(&hosts[from], memory), registered(&hosts[to], memory)))
        .collect();
    let qps: Vec<(QueuePair, QueuePair)> = flows
        .iter()
        .map(|&(from, to)| {
            let make = |host: &Host| host.pd.create_qp(&host.cq, &host.cq, cap, false).unwrap();
            let (a, b) = (make(&hosts[from]), make(&hosts[to]));
            to_rts(&a, &hosts[to], &b);
            to_rts(&b, &hosts[from], &a);
            (a, b)
        })
        .collect();
    let start = Instant::now();
    for (flow, ((mine, theirs), (qp, _))) in regions.iter().zip(&qps).enumerate() {
        for number in 0..options.mib {
            let offset = (number % memory * MESSAGE) as u64;
            let sges = [Sge { addr: mine.addr() + offset, len: MESSAGE as u32, lkey: mine.lkey() }];
            qp.post_send(&[SendWr {
                wr_id: flow as u64,
                data: SendData::Sges(&sges),
                remote_addr: theirs.addr() + offset,
                rkey: theirs.rkey(),
                imm: None,
                signaled: true,
                solicited: false,
            }])
            .unwrap();
        }
    }
    // Bytes of each flow when the first one ended: its share.
    let mut done = vec![0usize; flows.len()];
    let mut failed = 0;
    let mut shares: Option<Vec<usize>> = None;
    let mut completions = Vec::new();
    while done.iter().sum::<usize>() + failed < flows.len() * options.mib {
        std::thread::sleep(Duration::from_micros(500));
        for host in &hosts {
            host.cq.poll_into(4096, &mut completions).unwrap();
        }
        for completion in completions.drain(..) {
            match completion.status {
                Status::Success => done[completion.wr_id as usize] += 1,
                _ => failed += 1,
            }
        }
        if shares.is_none() && done.contains(&options.mib) {
            shares = Some(done.clone());
        }
        if start.elapsed() > Duration::from_secs(120) {
            eprintln!("shapes: not done after 120 s: {done:?}");
            break;
        }
    }
    let seconds = start.elapsed().as_secs_f64();
    let shares = shares.unwrap_or_else(|| done.clone());
    let mean = shares.iter().sum::<usize>() as f64 / shares.len() as f64;
    let stats: Vec<_> = qps.iter().map(|(qp, _)| qp.stats().unwrap()).collect();
    let sum = |value: &dyn Fn(&openmrc_transport::mrc::QpStats) -> u64| stats.iter().map(value).sum::<u64>();
    let overflows: u64 =
        hosts.iter().map(|host| host.context.stats().unwrap().causes.get(Cause::SocketOverflow)).sum();
    println!(
        "{{\"shape\": \"{}\", \"flows\": {}, \"control\": \"{}\", \"ports\": {}, \"receive_buffer\": {}, \"seconds\": \
         {seconds:.3}, \"goodput_gbps\": {:.3}, \"least_share\": {:.3}, \"most_share\": {:.3}, \"failed\": {failed}, \
         \"overflow\": {overflows}, \"packets\": {}, \"retransmits\": {}, \"spurious\": {}, \"timeouts\": {}, \
         \"condemned\": {}}}",
        options.shape,
        flows.len(),
        options.control,
        options.ports,
        hosts[0].context.port_states().unwrap()[0].receive_buffer,
        (done.iter().sum::<usize>() * MESSAGE) as f64 * 8e-9 / seconds,
        *shares.iter().min().unwrap_or(&0) as f64 / mean,
        *shares.iter().max().unwrap_or(&0) as f64 / mean,
        sum(&|s| s.data_packets),
        sum(&|s| u64::from(s.retransmits)),
        sum(&|s| u64::from(s.spurious)),
        sum(&|s| u64::from(s.timeouts)),
        sum(&|s| u64::from(s.condemned)),
    );
}
