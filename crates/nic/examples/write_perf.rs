//! RDMA write bandwidth and latency between two processes on loopback:
//!
//! ```text
//! cargo run --release -p openmrc-nic --example write_perf -- bw [size] [seconds] [ports] [burst] [cpu,cpu]
//! cargo run --release -p openmrc-nic --example write_perf -- lat [size] [iterations] [ports]
//! ```

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};
use std::time::Duration;

use openmrc_nic::perf::{BwParams, LatParams, Role, Target, write_bw, write_lat};
use openmrc_nic::*;

type Outcome = std::result::Result<(), Box<dyn std::error::Error>>;

const BUFFER: usize = 32 << 20;

fn main() -> Outcome {
    let args: Vec<String> = std::env::args().collect();
    let arg = |i: usize, default: &str| args.get(i).cloned().unwrap_or_else(|| default.into());
    let server = std::env::var("WRITE_PERF_SERVER").is_ok();
    let lat = arg(1, "bw") == "lat";
    let size: u32 = arg(2, if lat { "2" } else { "1048576" }).parse()?;
    let amount: f64 = arg(3, if lat { "20000" } else { "3" }).parse()?;
    let ports: usize = arg(4, "8").parse()?;
    let burst: u8 = arg(5, "8").parse()?;
    let cpus: Vec<usize> = arg(6, "0,1").split(',').map(str::parse).collect::<std::result::Result<_, _>>()?;
    let cpu = cpus[usize::from(server)];
    pin(cpu);

    let node = if server { 2 } else { 1 };
    let mut config = DeviceConfig { ev_burst: burst, cpu: Some(cpu), ..DeviceConfig::loopback(node, ports) };
    if let Ok(window) = std::env::var("WINDOW") {
        config.fixed_window = Some(window.parse()?);
    }
    if let Ok(ack) = std::env::var("ACK") {
        config.ack_every_bytes = ack.parse()?;
    }
    if let Ok(delay) = std::env::var("ACK_DELAY") {
        config.ack_delay = Duration::from_micros(delay.parse()?);
    }
    let context = Device::new(config)?.open()?;
    let pd = context.alloc_pd()?;
    let cq = context.create_cq(4096)?;
    let (source, inbox) = (Buffer::zeroed(BUFFER), Buffer::zeroed(BUFFER));
    let access = Access::LOCAL_WRITE.with(Access::REMOTE_WRITE);
    let (source_region, inbox_region) = (pd.register(&source, access)?, pd.register(&inbox, access)?);
    let qp = pd.create_qp(&cq, &cq, QpCap { max_send_wr: 512, ..QpCap::default() }, false)?;

    let mine = format!("{} {} {}\n", qp.qp_num(), inbox_region.addr(), inbox_region.rkey());
    let mut child = None;
    let theirs = if server {
        print!("{mine}");
        std::io::stdout().flush()?;
        read_line(&mut BufReader::new(std::io::stdin()))?
    } else {
        let mut process = Command::new(&args[0])
            .args(&args[1..])
            .env("WRITE_PERF_SERVER", "1")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        process.stdin.as_mut().ok_or("no pipe")?.write_all(mine.as_bytes())?;
        let line = read_line(&mut BufReader::new(process.stdout.take().ok_or("no pipe")?))?;
        child = Some(process);
        line
    };
    let theirs: Vec<u64> =
        theirs.split_whitespace().map(str::parse).collect::<std::result::Result<_, _>>()?;
    let target = Target { addr: theirs[1], len: BUFFER as u64, rkey: theirs[2] as u32 };
    let remote = DeviceConfig::loopback(3 - node, ports);
    qp.modify(QpState::Init, &QpAttr::default())?;
    qp.modify(
        QpState::Rtr,
        &QpAttr {
            dest_qp_num: Some(theirs[0] as u32),
            rq_psn: Some(0),
            remote: Some(Device::new(remote)?.addresses()),
            ..QpAttr::default()
        },
    )?;
    qp.modify(QpState::Rts, &QpAttr { sq_psn: Some(0), ..QpAttr::default() })?;
    std::thread::sleep(Duration::from_millis(100));

    if lat {
        let params = LatParams { size, iterations: amount as u64, warmup: 1000, inline: true };
        let role = if server { Role::Server } else { Role::Client };
        let mut ns =
            write_lat(&context, &qp, &cq, &source_region, &inbox_region, &target, role, &params, None)?;
        ns.sort_unstable();
        if !server {
            let at = |q: f64| ns[((ns.len() - 1) as f64 * q) as usize] as f64 / 1e3;
            let quantiles = [0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 0.99].map(|q| format!("{:.2}", at(q)));
            println!("{size} B: us at 0 10 25 50 75 90 99 %: {}", quantiles.join(" "));
        }
    } else if server {
        // Until the client closes the pipe.
        let mut line = String::new();
        std::io::stdin().read_line(&mut line)?;
    } else {
        let params = BwParams {
            size,
            iterations: None,
            duration: Some(Duration::from_secs_f64(amount)),
            depth: 256.min((64 << 20) / size.max(1)).max(2),
            ..BwParams::default()
        };
        let result = write_bw(&context, &[&qp], &cq, &source_region, &target, &params, None)?;
        println!(
            "{size} B: {:.2} Gb/s, {:.0} k messages/s",
            result.goodput_bps() / 1e9,
            result.message_rate() / 1e3
        );
    }
    if std::env::var("STATS").is_ok() {
        let stats = context.stats()?;
        let who = if server { "server" } else { "client" };
        eprintln!("{who} {:?}", qp.stats()?);
        eprintln!("{who} turns {} sleeps {} {:?}", stats.iterations, stats.sleeps, stats.ports[0]);
        let causes: Vec<_> = stats.causes.iter().filter(|c| c.1 > 0).map(|(c, n)| (c.name(), n)).collect();
        eprintln!("{who} {causes:?}");
    }
    if let Some(mut child) = child {
        drop(child.stdin.take());
        child.wait()?;
    }
    Ok(())
}

fn read_line(from: &mut impl BufRead) -> std::io::Result<String> {
    let mut line = String::new();
    from.read_line(&mut line)?;
    Ok(line)
}

/// Binds this thread to a processor, so that the two sides do not share one.
fn pin(cpu: usize) {
    // SAFETY: the set is valid and of its size.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(cpu, &mut set);
        libc::sched_setaffinity(0, std::mem::size_of_val(&set), &set);
    }
}
