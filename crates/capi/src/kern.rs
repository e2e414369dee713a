//! Copies between structures of the kernel's interface and of verbs (rdma-core's `ibv_copy_*_kern`). Libraries of
//! rdma-core call them; they take none of our objects.

use std::ffi::c_int;

use crate::abi::layout;
use crate::abi::verbs::{IbvAhAttr, IbvGid, IbvGlobalRoute, IbvQpAttr, IbvQpCap};

/// `struct ib_uverbs_ah_attr`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct KernelAhAttr {
    dgid: [u8; 16],
    flow_label: u32,
    sgid_index: u8,
    hop_limit: u8,
    traffic_class: u8,
    reserved: u8,
    dlid: u16,
    sl: u8,
    src_path_bits: u8,
    static_rate: u8,
    is_global: u8,
    port_num: u8,
    reserved2: u8,
}
layout!(KernelAhAttr, 32, 4, flow_label = 16, dlid = 24, port_num = 30);

/// `struct ib_uverbs_qp_attr`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct KernelQpAttr {
    qp_attr_mask: u32,
    qp_state: u32,
    cur_qp_state: u32,
    path_mtu: u32,
    path_mig_state: u32,
    qkey: u32,
    rq_psn: u32,
    sq_psn: u32,
    dest_qp_num: u32,
    qp_access_flags: u32,
    ah_attr: KernelAhAttr,
    alt_ah_attr: KernelAhAttr,
    cap: IbvQpCap,
    pkey_index: u16,
    alt_pkey_index: u16,
    en_sqd_async_notify: u8,
    sq_draining: u8,
    max_rd_atomic: u8,
    max_dest_rd_atomic: u8,
    min_rnr_timer: u8,
    port_num: u8,
    timeout: u8,
    retry_cnt: u8,
    rnr_retry: u8,
    alt_port_num: u8,
    alt_timeout: u8,
    reserved: [u8; 5],
}
layout!(KernelQpAttr, 144, 4, ah_attr = 40, alt_ah_attr = 72, cap = 104, pkey_index = 124, alt_timeout = 138);

/// `struct ib_user_path_rec`. Numbers of more than one byte keep their byte order.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct KernelPathRecord {
    dgid: [u8; 16],
    sgid: [u8; 16],
    dlid: u16,
    slid: u16,
    raw_traffic: u32,
    flow_label: u32,
    reversible: u32,
    mtu: u32,
    pkey: u16,
    hop_limit: u8,
    traffic_class: u8,
    numb_path: u8,
    sl: u8,
    mtu_selector: u8,
    rate_selector: u8,
    rate: u8,
    packet_life_time_selector: u8,
    packet_life_time: u8,
    preference: u8,
}
layout!(KernelPathRecord, 64, 4, dlid = 32, flow_label = 40, pkey = 52, numb_path = 56, preference = 63);

/// `struct ibv_sa_path_rec`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct PathRecord {
    dgid: IbvGid,
    sgid: IbvGid,
    dlid: u16,
    slid: u16,
    raw_traffic: c_int,
    flow_label: u32,
    hop_limit: u8,
    traffic_class: u8,
    reversible: c_int,
    numb_path: u8,
    pkey: u16,
    sl: u8,
    mtu_selector: u8,
    mtu: u8,
    rate_selector: u8,
    rate: u8,
    packet_life_time_selector: u8,
    packet_life_time: u8,
    preference: u8,
}
layout!(PathRecord, 64, 8, flow_label = 40, reversible = 48, pkey = 54, mtu = 58, preference = 63);

fn address_handle(from: &KernelAhAttr) -> IbvAhAttr {
    IbvAhAttr {
        grh: IbvGlobalRoute {
            dgid: IbvGid(from.dgid),
            flow_label: from.flow_label,
            sgid_index: from.sgid_index,
            hop_limit: from.hop_limit,
            traffic_class: from.traffic_class,
        },
        dlid: from.dlid,
        sl: from.sl,
        src_path_bits: from.src_path_bits,
        static_rate: from.static_rate,
        is_global: from.is_global,
        port_num: from.port_num,
    }
}

/// # Safety
/// As in rdma-core: both are there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_copy_ah_attr_from_kern(to: *mut IbvAhAttr, from: *const KernelAhAttr) {
    // SAFETY: the caller's promise.
    if let Some((to, from)) = unsafe { to.as_mut().zip(from.as_ref()) } {
        *to = address_handle(from);
    }
}

/// The state of the queue pair and the rate limit are not in the kernel's structure, or not copied by rdma-core.
///
/// # Safety
/// As in rdma-core: both are there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_copy_qp_attr_from_kern(to: *mut IbvQpAttr, from: *const KernelQpAttr) {
    // SAFETY: the caller's promise.
    let Some((to, from)) = (unsafe { to.as_mut().zip(from.as_ref()) }) else { return };
    *to = IbvQpAttr {
        qp_state: to.qp_state,
        cur_qp_state: from.cur_qp_state as c_int,
        path_mtu: from.path_mtu as c_int,
        path_mig_state: from.path_mig_state as c_int,
        qkey: from.qkey,
        rq_psn: from.rq_psn,
        sq_psn: from.sq_psn,
        dest_qp_num: from.dest_qp_num,
        qp_access_flags: from.qp_access_flags,
        cap: from.cap,
        ah_attr: address_handle(&from.ah_attr),
        alt_ah_attr: address_handle(&from.alt_ah_attr),
        pkey_index: from.pkey_index,
        alt_pkey_index: from.alt_pkey_index,
        en_sqd_async_notify: from.en_sqd_async_notify,
        sq_draining: from.sq_draining,
        max_rd_atomic: from.max_rd_atomic,
        max_dest_rd_atomic: from.max_dest_rd_atomic,
        min_rnr_timer: from.min_rnr_timer,
        port_num: from.port_num,
        timeout: from.timeout,
        retry_cnt: from.retry_cnt,
        rnr_retry: from.rnr_retry,
        alt_port_num: from.alt_port_num,
        alt_timeout: from.alt_timeout,
        rate_limit: to.rate_limit,
    };
}

/// # Safety
/// As in rdma-core: both are there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_copy_path_rec_from_kern(to: *mut PathRecord, from: *const KernelPathRecord) {
    // SAFETY: the caller's promise.
    let Some((to, from)) = (unsafe { to.as_mut().zip(from.as_ref()) }) else { return };
    *to = PathRecord {
        dgid: IbvGid(from.dgid),
        sgid: IbvGid(from.sgid),
        dlid: from.dlid,
        slid: from.slid,
        raw_traffic: from.raw_traffic as c_int,
        flow_label: from.flow_label,
        hop_limit: from.hop_limit,
        traffic_class: from.traffic_class,
        reversible: from.reversible as c_int,
        numb_path: from.numb_path,
        pkey: from.pkey,
        sl: from.sl,
        mtu_selector: from.mtu_selector,
        mtu: from.mtu as u8,
        rate_selector: from.rate_selector,
        rate: from.rate,
        packet_life_time_selector: from.packet_life_time_selector,
        packet_life_time: from.packet_life_time,
        preference: from.preference,
    };
}

/// # Safety
/// As in rdma-core: both are there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_copy_path_rec_to_kern(to: *mut KernelPathRecord, from: *const PathRecord) {
    // SAFETY: the caller's promise.
    let Some((to, from)) = (unsafe { to.as_mut().zip(from.as_ref()) }) else { return };
    *to = KernelPathRecord {
        dgid: from.dgid.0,
        sgid: from.sgid.0,
        dlid: from.dlid,
        slid: from.slid,
        raw_traffic: from.raw_traffic as u32,
        flow_label: from.flow_label,
        reversible: from.reversible as u32,
        mtu: u32::from(from.mtu),
        pkey: from.pkey,
        hop_limit: from.hop_limit,
        traffic_class: from.traffic_class,
        numb_path: from.numb_path,
        sl: from.sl,
        mtu_selector: from.mtu_selector,
        rate_selector: from.rate_selector,
        rate: from.rate,
        packet_life_time_selector: from.packet_life_time_selector,
        packet_life_time: from.packet_life_time,
        preference: from.preference,
    };
}
