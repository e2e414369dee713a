/* Sizes and offsets of every structure (docs/spec/c-interface.md, sections 5, 6.3 and 7), against our headers and those of
 * libibverbs-dev; and the type of every function. */
#include <assert.h>
#include <mrc_ctl.h>
#include <stddef.h>

#ifdef __cplusplus
#define ASSERT(what) static_assert(what, #what)
#else
#define ASSERT(what) _Static_assert(what, #what)
#endif
#define SIZE(type, size) ASSERT(sizeof(struct type) == (size))
#define AT(type, field, offset) ASSERT(offsetof(struct type, field) == (offset))
#define IS(constant, value) ASSERT((long long)(constant) == (value))

#define BIT31 (-2147483648LL)

SIZE(mrc_device_attr, 20); AT(mrc_device_attr, wimm_attr.max_wimm, 4); AT(mrc_device_attr, wimm_attr.max_wimm_dest, 6);
AT(mrc_device_attr, mpr_attr.max_mpr, 8); AT(mrc_device_attr, mpr_attr.mpr_resolution, 9);
AT(mrc_device_attr, qp_attr.max_qp_hint, 12); AT(mrc_device_attr, cap, 16);
SIZE(mrc_context_attr, 8); AT(mrc_context_attr, mrc_vendor_api_version_used, 4);
SIZE(mrc_qp_hint_attr, 140); AT(mrc_qp_hint_attr, num_send_peers, 4); AT(mrc_qp_hint_attr, num_remote_recv_peers, 8);
AT(mrc_qp_hint_attr, vendor_cfg, 12); SIZE(mrc_qp_hint_init_attr, 140);
SIZE(mrc_qp_init_attr, 72); AT(mrc_qp_init_attr, send_cq, 8); AT(mrc_qp_init_attr, recv_cq, 16);
AT(mrc_qp_init_attr, cap, 24); AT(mrc_qp_init_attr, sq_sig_all, 44); AT(mrc_qp_init_attr, pd, 48);
AT(mrc_qp_init_attr, send_ops_flags, 56); AT(mrc_qp_init_attr, protocol_version, 64);
SIZE(mrc_qp_attr, 176); AT(mrc_qp_attr, mpr.mpr_dest, 1); AT(mrc_qp_attr, wimm.max_wimm, 2);
AT(mrc_qp_attr, wimm.max_wimm_dest, 4); AT(mrc_qp_attr, timeout, 6); AT(mrc_qp_attr, profile.ev_profile_id, 8);
AT(mrc_qp_attr, profile.cc_profile_id, 16); AT(mrc_qp_attr, retry.linear_cnt, 24); AT(mrc_qp_attr, retry.exp_cnt, 25);
AT(mrc_qp_attr, qp_hint, 32); AT(mrc_qp_attr, cap, 40); AT(mrc_qp_attr, vendor_cfg, 44);
SIZE(mrc_async_event, 16); AT(mrc_async_event, event_type, 8);

SIZE(mrc_ctl_device_attr, 72); AT(mrc_ctl_device_attr, ev.ev_max_fmt_profiles, 4); AT(mrc_ctl_device_attr, ev.ev_max_profiles, 8);
AT(mrc_ctl_device_attr, ev.ev_max_count, 12); AT(mrc_ctl_device_attr, ev.ev_free_count, 16);
AT(mrc_ctl_device_attr, ev.ev_max_count_profile, 20); AT(mrc_ctl_device_attr, ev.ev_count_align, 24);
AT(mrc_ctl_device_attr, ev.ev_max_width, 28); AT(mrc_ctl_device_attr, ev.ev_fmt_mode_mask, 32);
AT(mrc_ctl_device_attr, ev.ev_mode_mask, 36); AT(mrc_ctl_device_attr, ev.ev_op_max_entries, 40);
AT(mrc_ctl_device_attr, cc.cc_max_profiles, 48); AT(mrc_ctl_device_attr, cc.algorithms, 56);
AT(mrc_ctl_device_attr, phy_port_mask, 64); AT(mrc_ctl_device_attr, opt_attr, 68);
SIZE(mrc_ctl_port_attr, 4); SIZE(mrc_ctl_ev_fmt_field, 1);
SIZE(mrc_ctl_ev_fmt_profile_attr, 168); AT(mrc_ctl_ev_fmt_profile_attr, cur_profile_state, 4);
AT(mrc_ctl_ev_fmt_profile_attr, ev_fmt_mode, 8); AT(mrc_ctl_ev_fmt_profile_attr, ev_fmt_op.op, 16);
AT(mrc_ctl_ev_fmt_profile_attr, ev_fmt_op.fmt_fields, 24); AT(mrc_ctl_ev_fmt_profile_attr, ev_fmt_op.fmt_field_count, 32);
AT(mrc_ctl_ev_fmt_profile_attr, vendor_cfg, 40);
SIZE(mrc_ctl_ev, 33); AT(mrc_ctl_ev, port, 32);
SIZE(mrc_ctl_ev_field, 20); AT(mrc_ctl_ev_field, init_val, 4); AT(mrc_ctl_ev_field, min_val, 8);
AT(mrc_ctl_ev_field, max_val, 12); AT(mrc_ctl_ev_field, mask, 16);
SIZE(mrc_ctl_ev_op_entry, 76); AT(mrc_ctl_ev_op_entry, ev_new, 33); AT(mrc_ctl_ev_op_entry, state, 68);
AT(mrc_ctl_ev_op_entry, flags, 72);
SIZE(mrc_ctl_ev_profile_attr, 216); AT(mrc_ctl_ev_profile_attr, ev_mode, 8); AT(mrc_ctl_ev_profile_attr, ev_fmt_profile_id, 16);
AT(mrc_ctl_ev_profile_attr, ev_count, 24); AT(mrc_ctl_ev_profile_attr, ev_min_active, 28);
AT(mrc_ctl_ev_profile_attr, ev_event_mask, 32); AT(mrc_ctl_ev_profile_attr, ev_op.op, 40);
AT(mrc_ctl_ev_profile_attr, ev_op.entries, 48); AT(mrc_ctl_ev_profile_attr, ev_op.entry_count, 56);
AT(mrc_ctl_ev_profile_attr, ev_fields_op.op, 64); AT(mrc_ctl_ev_profile_attr, ev_fields_op.fields, 72);
AT(mrc_ctl_ev_profile_attr, ev_fields_op.field_count, 80); AT(mrc_ctl_ev_profile_attr, vendor_cfg, 88);
SIZE(mrc_ctl_cc_profile_attr, 152); AT(mrc_ctl_cc_profile_attr, algorithm, 8); AT(mrc_ctl_cc_profile_attr, cc_config, 16);
AT(mrc_ctl_cc_profile_attr, vendor_cfg, 24);
SIZE(mrc_ctl_cc_nscc_cfg, 52); AT(mrc_ctl_cc_nscc_cfg, adjust_bytes_threshold, 4); AT(mrc_ctl_cc_nscc_cfg, adjust_period_threshold, 8);
AT(mrc_ctl_cc_nscc_cfg, base_rtt, 12); AT(mrc_ctl_cc_nscc_cfg, eta, 16); AT(mrc_ctl_cc_nscc_cfg, fi, 20);
AT(mrc_ctl_cc_nscc_cfg, fi_scale, 24); AT(mrc_ctl_cc_nscc_cfg, gamma, 28); AT(mrc_ctl_cc_nscc_cfg, max_md_jump, 32);
AT(mrc_ctl_cc_nscc_cfg, max_cwnd, 36); AT(mrc_ctl_cc_nscc_cfg, qa_gate, 40); AT(mrc_ctl_cc_nscc_cfg, qa_threshold, 44);
AT(mrc_ctl_cc_nscc_cfg, target_delay, 48);
#if MRC_CTL_API_VER_USED >= MRC_CTL_API_VER(1, 0, 1)
SIZE(mrc_ctl_ev_event, 56); AT(mrc_ctl_ev_event, state, 48);
#else
SIZE(mrc_ctl_ev_event, 48);
#endif
AT(mrc_ctl_ev_event, ev, 8); AT(mrc_ctl_ev_event, drop_count, 44);
SIZE(mrc_ctl_ep_req, 88); AT(mrc_ctl_ep_req, sgid, 8); AT(mrc_ctl_ep_req, dgid, 24); AT(mrc_ctl_ep_req, ev_fmt_mode, 40);
AT(mrc_ctl_ep_req, req_ev, 44); AT(mrc_ctl_ep_req, op.port_status_update.port_status, 80);
SIZE(mrc_ctl_ep_rsp, 12); AT(mrc_ctl_ep_rsp, port, 2); AT(mrc_ctl_ep_rsp, rtt, 4); AT(mrc_ctl_ep_rsp, adj_svc_time, 8);

SIZE(ibv_device, 664); AT(ibv_device, node_type, 16); AT(ibv_device, name, 24); AT(ibv_device, ibdev_path, 408);
SIZE(ibv_context, 328); AT(ibv_context, ops, 8); AT(ibv_context, ops.poll_cq, 96); AT(ibv_context, ops.req_notify_cq, 104);
AT(ibv_context, ops.post_send, 208); AT(ibv_context, ops.post_recv, 216); AT(ibv_context, cmd_fd, 264);
AT(ibv_context, async_fd, 268); AT(ibv_context, num_comp_vectors, 272); AT(ibv_context, abi_compat, 320);
SIZE(ibv_pd, 16); SIZE(ibv_mr, 48); AT(ibv_mr, lkey, 36); AT(ibv_mr, rkey, 40); SIZE(ibv_comp_channel, 16);
SIZE(ibv_cq, 128); AT(ibv_cq, cqe, 28); AT(ibv_cq, comp_events_completed, 120); SIZE(ibv_qp, 160); AT(ibv_qp, qp_num, 52);
AT(ibv_qp, state, 56); AT(ibv_qp, events_completed, 152);
SIZE(verbs_context, 648); AT(verbs_context, query_port, 0); AT(verbs_context, sz, 312); AT(verbs_context, context, 320);
SIZE(ibv_device_attr, 232); AT(ibv_device_attr, max_qp, 108); AT(ibv_device_attr, phys_port_cnt, 227);
SIZE(ibv_port_attr, 52); AT(ibv_port_attr, link_layer, 46); AT(ibv_port_attr, port_cap_flags2, 48);
SIZE(ibv_gid_entry, 32); SIZE(ibv_qp_cap, 20); SIZE(ibv_qp_init_attr, 64); AT(ibv_qp_init_attr, sq_sig_all, 56);
SIZE(ibv_qp_attr, 144); AT(ibv_qp_attr, ah_attr, 56); AT(ibv_qp_attr, timeout, 130); SIZE(ibv_ah_attr, 32);
SIZE(ibv_sge, 16); SIZE(ibv_send_wr, 128); AT(ibv_send_wr, wr.rdma.remote_addr, 40); AT(ibv_send_wr, wr.rdma.rkey, 48);
SIZE(ibv_recv_wr, 32); SIZE(ibv_wc, 48); AT(ibv_wc, src_qp, 32); SIZE(ibv_async_event, 16);

IS(MRC_QP_HINT_VENDOR_CFG, BIT31); IS(MRC_QP_VENDOR_CFG, BIT31); IS(MRC_CTL_EV_FMT_VENDOR_CFG, BIT31);
IS(MRC_CTL_EV_UNKNOWN, BIT31); IS(MRC_CTL_EV_PROFILE_VENDOR_CFG, BIT31); IS(MRC_CTL_CC_PROFILE_VENDOR_CFG, BIT31);
IS(MRC_QP_CAP, 512); IS(MRC_QP_HINT, 128); IS(MRC_CTL_EV_PROFILE_EV_FIELDS_OP, 256); IS(MRC_CTL_EV_DENIED, 4);
IS(MRC_API_VER_LATEST, 0xFFFFFFFFLL); IS(MRC_API_CURRENT_VERSION, 0x01000001); IS(MRC_VENDOR_API_CURRENT_VERSION, 0x01000000);
IS(MRC_CTL_API_CURRENT_VERSION, 0x01000001); IS(MRC_API_LAST_SUPPORTED_VERSION, 0);
ASSERT(sizeof(enum mrc_qp_cap) == 4 && sizeof(mrc_ctl_ev_t) == 32);

#define TYPED(name, returns, ...) extern returns (*typed_##name)(__VA_ARGS__); returns (*typed_##name)(__VA_ARGS__) = name

#if MRC_API_VER_USED >= MRC_API_VER(1, 0, 1)
TYPED(mrc_query_device_ex, int, struct ibv_context *, struct mrc_context *, struct mrc_device_attr *, int *);
#endif
TYPED(mrc_query_device, int, struct ibv_context *, struct mrc_device_attr *, int *);
TYPED(mrc_query_version, void, uint32_t *, uint32_t *, uint32_t *, uint32_t *);
TYPED(mrc_create_context, struct mrc_context *, struct ibv_context *, struct mrc_context_attr *);
TYPED(mrc_destroy_context, int, struct mrc_context *);
TYPED(mrc_create_comp_channel, int, struct mrc_context *, struct mrc_comp_channel **);
TYPED(mrc_get_comp_channel_fd, int, struct mrc_comp_channel *, int *);
TYPED(mrc_destroy_comp_channel, int, struct mrc_comp_channel *);
TYPED(mrc_create_cq, struct mrc_cq *, struct mrc_context *, int, void *, struct mrc_comp_channel *, int);
TYPED(mrc_poll_cq, int, struct mrc_cq *, int, struct ibv_wc *);
TYPED(mrc_destroy_cq, int, struct mrc_cq *);
TYPED(mrc_create_qp_hint, struct mrc_qp_hint *, struct mrc_context *, struct mrc_qp_hint_init_attr *);
TYPED(mrc_destroy_qp_hint, int, struct mrc_qp_hint *);
TYPED(mrc_query_qp_hint, int, struct mrc_qp_hint *, struct mrc_qp_hint_attr *, int);
TYPED(mrc_modify_qp_hint, int, struct mrc_qp_hint *, struct mrc_qp_hint_attr *, int);
TYPED(mrc_create_qp, struct mrc_qp *, struct mrc_context *, struct mrc_qp_init_attr *);
TYPED(mrc_destroy_qp, int, struct mrc_qp *);
TYPED(mrc_query_qp, int, struct mrc_qp *, struct ibv_qp_attr *, int, struct mrc_qp_attr *, int, struct mrc_qp_init_attr *);
TYPED(mrc_modify_qp, int, struct mrc_qp *, struct ibv_qp_attr *, int, struct mrc_qp_attr *, int);
TYPED(mrc_get_qpn, int, struct mrc_qp *, uint32_t *);
TYPED(mrc_post_recv, int, struct mrc_qp *, struct ibv_recv_wr *, struct ibv_recv_wr **);
TYPED(mrc_post_send, int, struct mrc_qp *, struct ibv_send_wr *, struct ibv_send_wr **);
TYPED(mrc_get_async_event, int, struct mrc_context *, struct mrc_async_event *);
TYPED(mrc_ack_async_event, void, struct mrc_async_event *);
TYPED(mrc_req_notify_cq, int, struct mrc_cq *, int);
TYPED(mrc_get_cq_event, int, struct mrc_comp_channel *, struct mrc_cq **, void **);
TYPED(mrc_ack_cq_events, void, struct mrc_cq *, unsigned int);
#if MRC_CTL_API_VER_USED >= MRC_CTL_API_VER(1, 0, 1)
TYPED(mrc_ctl_query_device_ex, int, struct ibv_context *, struct mrc_context *, struct mrc_ctl_device_attr *, int *);
#endif
TYPED(mrc_ctl_query_device, int, struct ibv_context *, struct mrc_ctl_device_attr *);
TYPED(mrc_ctl_query_version, void, uint32_t *, uint32_t *, uint32_t *, uint32_t *);
TYPED(mrc_ctl_query_port, int, struct mrc_context *, uint8_t, struct mrc_ctl_port_attr *, int);
TYPED(mrc_ctl_modify_port, int, struct mrc_context *, uint8_t, struct mrc_ctl_port_attr *, int);
TYPED(mrc_ctl_modify_ev_fmt_profile, int, struct mrc_context *, uint64_t, struct mrc_ctl_ev_fmt_profile_attr *, int);
TYPED(mrc_ctl_query_ev_fmt_profile, int, struct mrc_context *, uint64_t, struct mrc_ctl_ev_fmt_profile_attr *, int);
TYPED(mrc_ctl_modify_ev_profile, int, struct mrc_context *, uint64_t, struct mrc_ctl_ev_profile_attr *, int);
TYPED(mrc_ctl_query_ev_profile, int, struct mrc_context *, uint64_t, struct mrc_ctl_ev_profile_attr *, int);
TYPED(mrc_ctl_modify_cc_profile, int, struct mrc_context *, uint64_t, struct mrc_ctl_cc_profile_attr *, int);
TYPED(mrc_ctl_query_cc_profile, int, struct mrc_context *, uint64_t, struct mrc_ctl_cc_profile_attr *, int);
TYPED(mrc_ctl_create_ev_event_cq, struct mrc_cq *, struct mrc_context *, int, void *, struct mrc_comp_channel *, int);
TYPED(mrc_ctl_poll_ev_event, int, struct mrc_cq *, int, struct mrc_ctl_ev_event *);
TYPED(mrc_ctl_ep_batch_send_wait, int, struct mrc_context *, uint8_t, enum mrc_ctl_ep_op_type, struct mrc_ctl_ep_req *, int,
      uint32_t, struct mrc_ctl_ep_rsp *, int *);
