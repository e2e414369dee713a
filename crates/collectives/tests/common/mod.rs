//! Ranks as threads of one process, each with a device of its own on loopback.

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use openmrc_collectives::{Communicator, Lent, Options, Rendezvous};
use openmrc_nic::{Context, Device, DeviceConfig};

/// Devices of `ranks` hosts with `planes` planes.
pub fn devices(ranks: usize, planes: usize) -> Vec<Context> {
    use std::sync::atomic::{AtomicU8, Ordering};
    static NEXT: AtomicU8 = AtomicU8::new(1);
    (0..ranks)
        .map(|_| {
            let host = NEXT.fetch_add(1, Ordering::Relaxed);
            let process = std::process::id() as u8;
            let addr = |plane: usize| IpAddr::V4(Ipv4Addr::new(127, 1 + plane as u8, host, process));
            Device::new(DeviceConfig::with_addresses((0..planes).map(addr))).unwrap().open().unwrap()
        })
        .collect()
}

/// Connects all ranks.
pub fn connect(devices: &[Context], options: &Options) -> Vec<Communicator> {
    let ranks = devices.len();
    let waiting: Vec<Rendezvous> = devices
        .iter()
        .enumerate()
        .map(|(rank, device)| {
            Rendezvous::new(device, rank, ranks, &format!("h{rank}"), options.clone()).unwrap()
        })
        .collect();
    let cards: Vec<Vec<Vec<u8>>> =
        (0..ranks).map(|to| waiting.iter().map(|from| from.card(to).to_vec()).collect()).collect();
    waiting.into_iter().zip(&cards).map(|(rendezvous, cards)| rendezvous.connect(cards).unwrap()).collect()
}

/// Runs `body` as every rank at once.
pub fn in_parallel<R: Send>(comms: &[Communicator], body: impl Fn(&Communicator) -> R + Sync) -> Vec<R> {
    std::thread::scope(|scope| {
        let threads: Vec<_> = comms.iter().map(|comm| scope.spawn(|| body(comm))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

/// A time limit that only a hang reaches.
pub const LONG: Duration = Duration::from_secs(60);

/// Memory of a test that an operation reads; the test keeps it until the operation has ended.
pub fn lent<T>(data: &[T]) -> Lent {
    // SAFETY: tests wait for their operations before the memory ends or is used otherwise.
    unsafe { Lent::new(data.as_ptr().cast_mut().cast(), size_of_val(data), Box::new(())) }
}

/// Memory that an operation writes.
pub fn lent_mut<T>(data: &mut [T]) -> Lent {
    // SAFETY: as above.
    unsafe { Lent::new(data.as_mut_ptr().cast(), size_of_val(data), Box::new(())) }
}
