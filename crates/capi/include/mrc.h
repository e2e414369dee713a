/* SPDX-License-Identifier: Apache-2.0 */
/* The MRC application interface, version 1.0.1: RDMA writes over every path of a multi-plane network.
 *
 * Devices, protection domains and memory regions are those of verbs. Return values:
 *   E0  0, or the positive errno value, which is also in errno
 *   M1  0, or -1 with errno set
 *   P   a pointer, or NULL with errno set
 * NULL for a pointer that is required, and an object of another library, are EINVAL. */
#ifndef _MRC_API_H_
#define _MRC_API_H_

#include <stdint.h>
#include <infiniband/verbs.h>
#include <mrc_api_ver.h>

#ifdef __cplusplus
extern "C" {
#endif

#define MRC_MAX_VENDOR_CFG_SIZE 128

struct mrc_context;
struct mrc_qp_hint;
struct mrc_qp;
struct mrc_cq;
struct mrc_comp_channel;

enum mrc_protocol_version {
	MRC_PROTOCOL_VERSION_0 = 0, /* the device's default */
	MRC_PROTOCOL_VERSION_1 = 1 << 0,
};

/* mrc_device_attr.cap */
enum mrc_device_cap {
	MRC_DEVICE_CAP_TRIM_NACK = 1 << 0,
	MRC_DEVICE_CAP_DYNAMIC_MPR = 1 << 1,
	MRC_DEVICE_CAP_SVC_TIME = 1 << 2,
};

enum mrc_qp_hint_attr_mask {
	MRC_QP_HINT_NUM_QPS_PER_PEER = 1 << 0,
	MRC_QP_HINT_NUM_SEND_PEERS = 1 << 1,
	MRC_QP_HINT_NUM_REMOTE_RECV_PEERS = 1 << 2,
	MRC_QP_HINT_VENDOR_CFG = -2147483647 - 1, /* bit 31 */
};

/* All are optional in mrc_modify_qp. Each comes at its step or an earlier one. */
enum mrc_qp_attr_mask {
	MRC_QP_MAX_WIMM = 1 << 0,      /* RTS */
	MRC_QP_MAX_WIMM_DEST = 1 << 1, /* RTR */
	MRC_QP_MPR = 1 << 2,           /* RTS */
	MRC_QP_MPR_DEST = 1 << 3,      /* RTR */
	MRC_QP_TIMEOUT = 1 << 4,       /* RTS, and while in RTS */
	MRC_QP_EV_PROFILE_ID = 1 << 5, /* INIT */
	MRC_QP_CC_PROFILE_ID = 1 << 6, /* INIT */
	MRC_QP_HINT = 1 << 7,          /* INIT */
	MRC_QP_RETRY_CNT = 1 << 8,     /* RTS, and while in RTS */
	MRC_QP_CAP = 1 << 9,           /* RTR */
	MRC_QP_VENDOR_CFG = -2147483647 - 1, /* bit 31 */
};

/* mrc_qp_attr.cap */
enum mrc_qp_cap {
	MRC_QP_CAP_TRIM_NACK_DEST_UNSUPPORTED = 1 << 0, /* the peer does not answer trimmed packets */
	MRC_QP_CAP_DYNAMIC_MPR = 1 << 1,                /* both ends can change the window */
	MRC_QP_CAP_SVC_TIME_DEST_UNSUPPORTED = 1 << 2,  /* the peer does not take out its service time */
};

struct mrc_device_attr {
	uint32_t mrc_protocol_version; /* bits of enum mrc_protocol_version */
	struct {
		uint16_t max_wimm;
		uint16_t max_wimm_dest;
	} wimm_attr;
	struct {
		uint8_t max_mpr; /* units of 128 PSNs */
		uint8_t mpr_resolution;
	} mpr_attr;
	struct {
		uint32_t max_qp_hint;
	} qp_attr;
	uint32_t cap; /* enum mrc_device_cap */
};

struct mrc_context_attr {
	uint32_t mrc_api_version_used; /* MRC_API_VER_USED; 0 is the newest */
	uint32_t mrc_vendor_api_version_used;
};

/* How many; 0 is not told. */
struct mrc_qp_hint_attr {
	int num_qps_per_peer;      /* queue pairs of this hint that send to one peer at a time */
	int num_send_peers;        /* peers sent to at a time */
	int num_remote_recv_peers; /* queue pairs of all senders that target this one's peer at a time */
	uint8_t vendor_cfg[MRC_MAX_VENDOR_CFG_SIZE];
};

struct mrc_qp_hint_init_attr {
	struct mrc_qp_hint_attr attr;
};

struct mrc_qp_init_attr {
	void *qp_context;
	struct mrc_cq *send_cq;
	struct mrc_cq *recv_cq;
	struct ibv_qp_cap cap;
	int sq_sig_all;
	struct ibv_pd *pd;
	uint64_t send_ops_flags; /* IBV_QP_EX_WITH_RDMA_WRITE, IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM; 0 is both */
	enum mrc_protocol_version protocol_version;
};

struct mrc_qp_attr {
	struct {
		uint8_t mpr; /* window as requestor and as responder, units of 128 PSNs */
		uint8_t mpr_dest;
	} mpr;
	struct {
		uint16_t max_wimm; /* messages with immediate in flight as requestor and as responder */
		uint16_t max_wimm_dest;
	} wimm;
	uint8_t timeout; /* 1.024 us x 2^timeout, at most 24 */
	struct {
		uint64_t ev_profile_id; /* 0 is the device's own */
		uint64_t cc_profile_id;
	} profile;
	struct {
		uint8_t linear_cnt; /* at most 7 */
		uint8_t exp_cnt;    /* with doubling interval; at most 25, which is for ever */
	} retry;
	struct mrc_qp_hint *qp_hint; /* NULL is none */
	uint32_t cap;                /* enum mrc_qp_cap */
	uint8_t vendor_cfg[MRC_MAX_VENDOR_CFG_SIZE];
};

struct mrc_async_event {
	union {
		struct mrc_cq *cq;
		struct mrc_qp *qp;
		int port_num;
	} element;
	enum ibv_event_type event_type;
};

/* --- device and context ------------------------------------------------------------------------------------------- */

/* M1. A device of another library: 0, *supported 0. */
int mrc_query_device(struct ibv_context *context, struct mrc_device_attr *attr, int *supported);

#if MRC_API_VER_USED >= MRC_API_VER(1U, 0U, 1U)
/* M1. mcontext may be NULL. */
int mrc_query_device_ex(struct ibv_context *context, struct mrc_context *mcontext, struct mrc_device_attr *attr,
			int *supported);
#endif

/* NULL pointers are skipped. */
void mrc_query_version(uint32_t *current_version, uint32_t *last_supported_version, uint32_t *vendor_version,
		       uint32_t *last_supported_vendor_version);

/* P. EOPNOTSUPP for a version that is newer than the library's. context_attr may be NULL. */
struct mrc_context *mrc_create_context(struct ibv_context *vcontext, struct mrc_context_attr *context_attr);

/* M1. Destroys what is left on it. */
int mrc_destroy_context(struct mrc_context *mrc_ctx);

/* --- completions -------------------------------------------------------------------------------------------------- */

/* E0. *channel is NULL on failure. */
int mrc_create_comp_channel(struct mrc_context *mrc_ctx, struct mrc_comp_channel **channel);

/* M1. The descriptor is readable while an event waits, may be made O_NONBLOCK, and belongs to the channel. */
int mrc_get_comp_channel_fd(struct mrc_comp_channel *channel, int *fd);

/* E0. EBUSY while a completion queue uses it. */
int mrc_destroy_comp_channel(struct mrc_comp_channel *channel);

/* P. cqe 1 to 2^22; channel may be NULL; comp_vector below ibv_context.num_comp_vectors. */
struct mrc_cq *mrc_create_cq(struct mrc_context *mrc_ctx, int cqe, void *cq_context, struct mrc_comp_channel *channel,
			     int comp_vector);

/* The number of completions, or -1. Fewer than asked for: no more are there. */
int mrc_poll_cq(struct mrc_cq *cq, int num_entries, struct ibv_wc *wc);

/* E0. EBUSY while a queue pair uses it. Waits until all events got of it are acknowledged. */
int mrc_destroy_cq(struct mrc_cq *cq);

/* E0. One event at the next completion, or at once if one waits. solicited_only: at errors, and at receives whose sender
 * asked for it. */
int mrc_req_notify_cq(struct mrc_cq *cq, int solicited_only);

/* M1. Waits for an event, unless the descriptor is O_NONBLOCK: EAGAIN. */
int mrc_get_cq_event(struct mrc_comp_channel *channel, struct mrc_cq **cq, void **cq_context);

void mrc_ack_cq_events(struct mrc_cq *cq, unsigned int nevents);

/* --- queue pairs -------------------------------------------------------------------------------------------------- */

/* P. */
struct mrc_qp_hint *mrc_create_qp_hint(struct mrc_context *mrc_ctx, struct mrc_qp_hint_init_attr *init_attr);

/* M1. EBUSY while a queue pair has it. */
int mrc_destroy_qp_hint(struct mrc_qp_hint *qp_hint);

/* M1. Fills what the mask names. */
int mrc_query_qp_hint(struct mrc_qp_hint *qp_hint, struct mrc_qp_hint_attr *qp_hint_attr, int qp_hint_attr_mask);

/* M1. */
int mrc_modify_qp_hint(struct mrc_qp_hint *qp_hint, struct mrc_qp_hint_attr *qp_hint_attr, int qp_hint_attr_mask);

/* P. In RESET. Writes what is granted into mrc_qp_attr->cap. */
struct mrc_qp *mrc_create_qp(struct mrc_context *mrc_ctx, struct mrc_qp_init_attr *mrc_qp_attr);

/* E0. Waits until its asynchronous events that were got are acknowledged. */
int mrc_destroy_qp(struct mrc_qp *qp);

/* E0. A pointer may be NULL if its mask is 0; init_attr always may. */
int mrc_query_qp(struct mrc_qp *qp, struct ibv_qp_attr *vattr, int vattr_mask, struct mrc_qp_attr *mrc_attr,
		 int mrc_attr_mask, struct mrc_qp_init_attr *init_attr);

/* E0. On an error nothing has changed. */
int mrc_modify_qp(struct mrc_qp *qp, struct ibv_qp_attr *vattr, int vattr_mask, struct mrc_qp_attr *mrc_attr,
		  int mrc_attr_mask);

/* M1. */
int mrc_get_qpn(struct mrc_qp *qp, uint32_t *qpn);

/* M1. Segments are not looked at. */
int mrc_post_recv(struct mrc_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad_wr);

/* E0. IBV_WR_RDMA_WRITE and IBV_WR_RDMA_WRITE_WITH_IMM. */
int mrc_post_send(struct mrc_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad_wr);

/* --- asynchronous events ------------------------------------------------------------------------------------------ */

/* M1. Waits; ECANCELED when the context is destroyed. */
int mrc_get_async_event(struct mrc_context *mrc_ctx, struct mrc_async_event *event);

void mrc_ack_async_event(struct mrc_async_event *event);

#ifdef __cplusplus
}
#endif

#endif
