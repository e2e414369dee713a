//! Memory of a queue pair with both roles: it limits the number of queue pairs of a NIC.

use std::sync::Arc;

use openmrc_transport::mrc::{CcProfile, PathConfig, PathModel, QpConfig, QueuePair};
use openmrc_transport::{EvProfile, PathEntry, Span, Time, Transport as _};
use openmrc_wire::Ev;

fn queue_pair(active: u16, backup: u16) -> QueuePair {
    let paths: Vec<_> =
        (0..64u32).flat_map(|i| (0..8).map(move |port| PathEntry { ev: Ev(i), port })).collect();
    let paths = Arc::new(EvProfile::new(&paths).unwrap());
    let cc = Arc::new(CcProfile::nscc(800_000_000_000, Span::from_micros(12), 4096, true));
    let model = PathModel::new(Span::from_micros(12), true);
    let paths = PathConfig { active, backup, ..PathConfig::new(paths, model) };
    let config = QpConfig::new(1, 2, paths, cc);
    let mut qp = QueuePair::new(Time::ZERO, &config).unwrap();
    // The responder is allocated when it is first used.
    qp.set_advertised_mpr(8);
    qp
}

#[test]
fn state_per_qp_is_below_4_kib_at_mpr_8_with_128_evs() {
    let (bytes, _) = queue_pair(128, 128).state_bytes();
    let (without_backup, _) = queue_pair(128, 0).state_bytes();
    println!(
        "state per QP at MPR 8: {bytes} bytes with 128 EVs and 128 in reserve, {without_backup} with 128 EVs alone \
         ({} of them inline); each posted work request takes {} bytes beside that",
        size_of::<QueuePair>(),
        QueuePair::BYTES_PER_WORK_REQUEST
    );
    assert!(bytes < 4096, "{bytes} bytes");
}
