//! The latency of a datagram between two polling processes: half the round trip of a ping-pong.
//!
//! Each side polls a non-blocking `recv` on its own core, as an RDMA latency test polls memory. The figure contains no
//! sleep, no wake-up and no interrupt.

use std::hint::{black_box, spin_loop};
use std::io::ErrorKind;
use std::net::UdpSocket;
use std::time::{Duration, Instant};

use crate::sys::{self, Error};

/// Round trips before the measured ones.
const WARM_UP: usize = 2_000;
/// Without an answer for this long, the other side has ended.
const STALL: Duration = Duration::from_secs(1);

/// Measures `iterations` round trips of `size` bytes; returns the one-way latencies in microseconds as JSON.
pub fn run(size: usize, iterations: usize, cpus: (usize, usize)) -> Result<String, Error> {
    let here = UdpSocket::bind("127.0.0.1:0")?;
    let there = UdpSocket::bind("127.0.0.1:0")?;
    here.connect(there.local_addr()?)?;
    there.connect(here.local_addr()?)?;
    here.set_nonblocking(true)?;
    there.set_nonblocking(true)?;

    let _child = sys::fork(cpus.1, || answer(&there, size))?;
    sys::pin(cpus.0)?;
    let mut buffer = vec![1u8; size];
    let mut round_trips = Vec::with_capacity(iterations);
    for iteration in 0..WARM_UP + iterations {
        let start = Instant::now();
        here.send(&buffer)?;
        if !poll(&here, &mut buffer, Some(start))? {
            return Err(format!("no answer within {STALL:?}").into());
        }
        if iteration >= WARM_UP {
            round_trips.push(start.elapsed().as_nanos() as u64);
        }
    }
    round_trips.sort_unstable();
    let one_way = |fraction: f64| percentile(&round_trips, fraction) as f64 / 2.0 / 1e3;
    Ok(format!(
        "{{\"benchmark\": \"udp-pingpong\", \"size_bytes\": {size}, \"iterations\": {iterations}, \
         \"min_us\": {:.3}, \"p50_us\": {:.3}, \"p99_us\": {:.3}, \"p999_us\": {:.3}, \"max_us\": {:.3}, \
         \"cpus\": [{}, {}]}}",
        one_way(0.0),
        one_way(0.50),
        one_way(0.99),
        one_way(0.999),
        one_way(1.0),
        cpus.0,
        cpus.1,
    ))
}

/// The other process: sends every datagram back until it is killed.
fn answer(socket: &UdpSocket, size: usize) -> Result<(), Error> {
    let mut buffer = vec![0u8; size];
    loop {
        poll(socket, &mut buffer, None)?;
        socket.send(black_box(&buffer))?;
    }
}

/// Polls until a datagram arrives; false if `since` is given and more than [`STALL`] ago.
fn poll(socket: &UdpSocket, buffer: &mut [u8], since: Option<Instant>) -> Result<bool, Error> {
    loop {
        for _ in 0..1024 {
            match socket.recv(buffer) {
                Ok(_) => return Ok(true),
                Err(error) if error.kind() == ErrorKind::WouldBlock => spin_loop(),
                Err(error) => return Err(error.into()),
            }
        }
        if since.is_some_and(|start| start.elapsed() > STALL) {
            return Ok(false);
        }
    }
}

/// The nearest-rank percentile of sorted values.
fn percentile(sorted: &[u64], fraction: f64) -> u64 {
    let rank = (fraction * sorted.len() as f64).ceil() as usize;
    sorted[rank.clamp(1, sorted.len()) - 1]
}

#[cfg(test)]
mod tests {
    use super::percentile;

    #[test]
    fn percentiles_are_nearest_rank() {
        let values: Vec<u64> = (1..=200).collect();
        assert_eq!(percentile(&values, 0.0), 1);
        assert_eq!(percentile(&values, 0.50), 100);
        assert_eq!(percentile(&values, 0.99), 198);
        assert_eq!(percentile(&values, 0.999), 200);
        assert_eq!(percentile(&values, 1.0), 200);
        assert_eq!(percentile(&[7], 0.99), 7);
    }
}
