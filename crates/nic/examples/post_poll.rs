//! Nanoseconds of a post and a poll, on a queue pair in ERROR, where both need nothing but the calling thread. The same
//! through the C interface is `benches/c/post_poll.c`. Usage: `post_poll ITERATIONS`.

use std::time::Instant;

use openmrc_nic::{Access, Buffer, Device, DeviceConfig, QpAttr, QpCap, QpState, SendData, SendWr, Sge};

fn main() -> openmrc_nic::Result<()> {
    let iterations: u64 = std::env::args().nth(1).and_then(|text| text.parse().ok()).unwrap_or(1_000_000);
    let context = Device::new(DeviceConfig::loopback(99, 2))?.open()?;
    let pd = context.alloc_pd()?;
    let cq = context.create_cq(64)?;
    let memory = Buffer::zeroed(1 << 16);
    let region = pd.register(&memory, Access::LOCAL_WRITE.with(Access::REMOTE_WRITE))?;
    let qp = pd.create_qp(&cq, &cq, QpCap { max_send_wr: 64, ..QpCap::default() }, false)?;
    qp.modify(QpState::Init, &QpAttr::default())?;
    qp.modify(QpState::Error, &QpAttr::default())?;
    let sge = [Sge { addr: region.addr(), len: 64, lkey: region.lkey() }];
    let request = SendWr {
        wr_id: 0,
        data: SendData::Sges(&sge),
        remote_addr: region.addr(),
        rkey: region.rkey(),
        imm: None,
        signaled: true,
        solicited: false,
    };
    let mut taken = 0;
    let mut run = |n: u64| -> openmrc_nic::Result<()> {
        for _ in 0..n {
            qp.post_send(std::slice::from_ref(&request))?;
            taken += cq.poll_each(1, |completion| {
                std::hint::black_box(completion);
            })? as u64;
        }
        Ok(())
    };
    run(iterations / 10)?;
    let begin = Instant::now();
    run(iterations)?;
    let ns = begin.elapsed().as_nanos() as f64 / iterations as f64;
    assert_eq!(taken, iterations + iterations / 10);
    println!("{{\"ns\": {ns:.2}}}");
    Ok(())
}
