//! The limits of this machine without openmrc: plain UDP sockets over loopback, used as efficiently as possible.
//!
//! `benches/run.py` divides openmrc's figures by these from the same run, so that the ratio depends on openmrc and not
//! on the machine. Every subcommand prints one JSON object on standard output.

mod ceiling;
mod pingpong;
mod sys;

use std::process::ExitCode;
use std::time::Duration;

use ceiling::{Delivery, Load, MAX_DATAGRAM, SocketLocation};
use lexopt::prelude::*;

const USAGE: &str = "\
usage: openmrc-bench udp-ceiling  [--size BYTES] [--segments N] [--deliver HOW] [--seconds S] [--window DATAGRAMS]
                                  [--cpus TX,RX] [--between NAMESPACE@ADDRESS,NAMESPACE@ADDRESS]
       openmrc-bench udp-pingpong [--size BYTES] [--iterations N] [--cpus A,B]

udp-ceiling   one sender, one receiver, one core each: received Gb/s and packets per second, nothing lost; over
              loopback, or from one network namespace to another. With --segments the kernel cuts and joins messages
              of N datagrams (UDP_SEGMENT, UDP_GRO), one message a call. --deliver says what happens to a
              received payload: copy (default) from a small buffer to the destination, direct (the kernel writes to the
              destination), none (it stays in the small buffer).
udp-pingpong  two processes polling non-blocking sockets: half the round trip in microseconds, p50 and p99";

struct Options {
    command: String,
    size: Option<usize>,
    segments: usize,
    delivery: Delivery,
    seconds: f64,
    window: u64,
    iterations: usize,
    cpus: Option<(usize, usize)>,
    between: Option<[SocketLocation; 2]>,
}

fn parse() -> Result<Options, lexopt::Error> {
    let mut options = Options {
        command: String::new(),
        size: None,
        segments: 1,
        delivery: Delivery::Copy,
        seconds: 2.0,
        window: 400,
        iterations: 100_000,
        cpus: None,
        between: None,
    };
    let mut parser = lexopt::Parser::from_env();
    while let Some(argument) = parser.next()? {
        match argument {
            Value(command) if options.command.is_empty() => options.command = command.string()?,
            Long("size") | Short('s') => options.size = Some(parser.value()?.parse()?),
            Long("segments") => options.segments = parser.value()?.parse()?,
            Long("deliver") => {
                let how = parser.value()?.string()?;
                options.delivery = Delivery::parse(&how)
                    .ok_or_else(|| format!("--deliver takes copy, direct or none, not {how:?}"))?;
            }
            Long("seconds") | Short('D') => options.seconds = parser.value()?.parse()?,
            Long("window") => options.window = parser.value()?.parse()?,
            Long("iterations") | Short('n') => options.iterations = parser.value()?.parse()?,
            Long("cpus") => options.cpus = Some(parse_cpus(&parser.value()?.string()?)?),
            Long("between") => options.between = Some(parse_between(&parser.value()?.string()?)?),
            Long("help") | Short('h') => {
                println!("{USAGE}");
                std::process::exit(0);
            }
            _ => return Err(argument.unexpected()),
        }
    }
    if options.size.is_some_and(|size| size == 0 || size > MAX_DATAGRAM) {
        return Err(format!("--size must be from 1 to {MAX_DATAGRAM} bytes").into());
    }
    if !(options.seconds > 0.0 && options.seconds <= 3600.0) {
        return Err("--seconds must be above 0 and at most 3600".into());
    }
    if options.iterations == 0 || options.window == 0 {
        return Err("--iterations and --window must be at least 1".into());
    }
    Ok(options)
}

fn parse_between(text: &str) -> Result<[SocketLocation; 2], lexopt::Error> {
    let place = |text: &str| {
        let (namespace, address) = text.split_once('@')?;
        Some(SocketLocation { namespace: Some(namespace.to_owned()), address: address.parse().ok()? })
    };
    text.split_once(',')
        .and_then(|(from, to)| Some([place(from)?, place(to)?]))
        .ok_or_else(|| format!("--between takes NAMESPACE@ADDRESS,NAMESPACE@ADDRESS, not {text:?}").into())
}

fn parse_cpus(text: &str) -> Result<(usize, usize), lexopt::Error> {
    text.split_once(',')
        .and_then(|(a, b)| Some((a.trim().parse().ok()?, b.trim().parse().ok()?)))
        .ok_or_else(|| format!("--cpus takes two CPU numbers such as 0,1, not {text:?}").into())
}

fn main() -> ExitCode {
    let options = match parse() {
        Ok(options) => options,
        Err(error) => {
            eprintln!("error: {error}\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    let result = sys::two_cpus(options.cpus).and_then(|cpus| match options.command.as_str() {
        "udp-ceiling" => {
            let duration = Duration::from_secs_f64(options.seconds);
            let places =
                options.between.unwrap_or_else(|| [SocketLocation::loopback(), SocketLocation::loopback()]);
            let load = Load {
                size: options.size.unwrap_or(4096),
                segments: options.segments,
                delivery: options.delivery,
            };
            ceiling::run(&load, duration, options.window, cpus, &places)
        }
        "udp-pingpong" => pingpong::run(options.size.unwrap_or(2), options.iterations, cpus),
        other => Err(format!("no benchmark {other:?}; there are udp-ceiling and udp-pingpong").into()),
    });
    match result {
        Ok(json) => {
            println!("{json}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}
