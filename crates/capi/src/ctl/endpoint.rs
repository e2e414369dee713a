//! Endpoint operations (docs/spec/c-interface.md, section 6.7).

use std::collections::{BTreeMap, HashSet};
use std::ffi::c_int;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use openmrc_nic::PortStatusUpdate;
use openmrc_nic::profiles::EvLease;
use openmrc_transport::PortSet;

use super::*;
use crate::abi::ctl::*;
use crate::abi::verbs::IbvGid;
use crate::context::Context;
use crate::errno::{EINVAL, EOPNOTSUPP, Errno, Result};
use crate::mrc::Handle;
use crate::returns::m1;

/// # Safety
/// As in `mrc_ctl.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mrc_ctl_ep_batch_send_wait(
    mrc_ctx: Handle,
    req_tc: u8,
    op_type: c_int,
    req: *mut MrcCtlEpReq,
    num_req: c_int,
    rsp_timeout: u32,
    rsp: *mut MrcCtlEpRsp,
    num_rsp: *mut c_int,
) -> c_int {
    m1(|| {
        let context = device_of(mrc_ctx)?;
        // SAFETY: the program gives a number, or null.
        let num_rsp = unsafe { num_rsp.as_mut() }.ok_or(EINVAL)?;
        *num_rsp = 0;
        if req_tc > 63 || !matches!(op_type, EP_OP_EV_PROBE | EP_OP_PORT_STATUS_UPDATE) {
            return Err(EINVAL);
        }
        // SAFETY: the program gives arrays of this length.
        let (requests, responses) = unsafe { (array(req, num_req)?, array(rsp, num_req)?) };
        check_requests(&context, op_type, requests)?;
        let timeout = Duration::from_nanos(rsp_timeout.into());
        let answers = by_peer(&context, requests, |peer, requests| match op_type {
            EP_OP_EV_PROBE => probe(&context, peer, requests, timeout),
            _ => send_port_status(&context, peer, requests, timeout),
        })?;
        for (to, answer) in responses.iter_mut().zip(&answers) {
            *to = *answer;
        }
        *num_rsp = answers.len() as c_int;
        if answers.len() == requests.len() { Ok(0) } else { Err(Errno(libc::ETIMEDOUT)) }
    })
}

fn check_requests(context: &Context, op_type: c_int, requests: &[MrcCtlEpReq]) -> Result<()> {
    let mut ids = HashSet::new();
    let mode = translate::format_code(context.device.description.config.entropy.format);
    for request in requests {
        if !ids.insert(request.req_id) || request.sgid != context.device.gid() {
            return Err(EINVAL);
        }
        if op_type == EP_OP_EV_PROBE && request.ev_fmt_mode != mode {
            return Err(EOPNOTSUPP);
        }
        // A port status update may go on any port.
        if op_type == EP_OP_EV_PROBE || request.req_ev.port != 0 {
            context.plane(request.req_ev.port.into())?;
        }
    }
    Ok(())
}

/// Asks every peer at the same time: the answers, in the order in which they came.
fn by_peer(
    context: &Context,
    requests: &[MrcCtlEpReq],
    ask: impl Fn(&[SocketAddr], &[&MrcCtlEpReq]) -> Result<Vec<Option<Duration>>> + Sync,
) -> Result<Vec<MrcCtlEpRsp>> {
    let mut by_peer: BTreeMap<[u8; 16], Vec<&MrcCtlEpReq>> = BTreeMap::new();
    for request in requests {
        by_peer.entry(request.dgid.0).or_default().push(request);
    }
    let one = |gid: [u8; 16], requests: &[&MrcCtlEpReq]| {
        let rtts = ask(&context.peer(IbvGid(gid), 0)?, requests)?;
        let answered = rtts.into_iter().zip(requests).filter_map(|(rtt, request)| {
            let rtt = u32::try_from(rtt?.as_nanos()).unwrap_or(u32::MAX);
            Some(MrcCtlEpRsp { req_id: request.req_id, port: request.req_ev.port, rtt, adj_svc_time: 0 })
        });
        Ok(answered.collect::<Vec<_>>())
    };
    let answers: Vec<Result<Vec<_>>> = std::thread::scope(|scope| {
        let threads: Vec<_> =
            by_peer.iter().map(|(&gid, requests)| scope.spawn(move || one(gid, requests))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap_or(Err(crate::errno::EIO))).collect()
    });
    let mut all = answers.into_iter().collect::<Result<Vec<_>>>()?.concat();
    all.sort_by_key(|answer| answer.rtt);
    Ok(all)
}

/// EV probes to a peer: their round-trip times.
fn probe(
    context: &Arc<Context>,
    peer: &[SocketAddr],
    requests: &[&MrcCtlEpReq],
    timeout: Duration,
) -> Result<Vec<Option<Duration>>> {
    let mut leases: Vec<(u64, EvLease)> = Vec::new();
    let mut path_of = |request: &&MrcCtlEpReq| {
        let ev = translate::ev_of(&request.req_ev).ok_or(EINVAL)?;
        let (id, path) = context.nic.profiles().known_path(|_| Some(ev))?.ok_or(EINVAL)?;
        // In SRv6 mode the paths to the peer have to stay until its answers are there.
        if id != 0 && leases.iter().all(|(held, _)| *held != id) {
            let mut lease = context.nic.profiles().lease(id)?;
            lease.paths_to(peer)?;
            leases.push((id, lease));
        }
        Ok(path)
    };
    let paths = requests.iter().map(&mut path_of).collect::<Result<Vec<_>>>()?;
    Ok(context.nic.ev_probe(peer, &paths, timeout)?.iter().map(|result| result.rtt).collect())
}

/// Port status updates to a peer: the round-trip times of their answers.
fn send_port_status(
    context: &Context,
    peer: &[SocketAddr],
    requests: &[&MrcCtlEpReq],
    timeout: Duration,
) -> Result<Vec<Option<Duration>>> {
    let planes = (1u32 << context.device.planes()) - 1;
    let update = |request: &&MrcCtlEpReq| {
        // Bit N is port N, and ports count from 1.
        let up = request.port_status >> 1;
        if request.port_status & 1 != 0 || up & !planes != 0 {
            return Err(EINVAL);
        }
        Ok(PortStatusUpdate { up: PortSet(up as u16), port: request.req_ev.port.checked_sub(1) })
    };
    let updates = requests.iter().map(update).collect::<Result<Vec<_>>>()?;
    Ok(context.nic.send_port_status(peer, &updates, timeout)?)
}
