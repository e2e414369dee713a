/* SPDX-License-Identifier: Apache-2.0 */
/* The MRC control interface, version 1.0.1: profiles of entropy values and of congestion control, events of paths,
 * endpoint operations, ports.
 *
 * A profile exists for every 64-bit id, in state INIT, until it is configured. Id 0 is the device's own and always ONLINE.
 * Return values: M1 is 0, or -1 with errno set; P is a pointer, or NULL with errno set. */
#ifndef _MRC_CTL_API_H_
#define _MRC_CTL_API_H_

#include <stdint.h>
#include <infiniband/verbs.h>
#include <mrc.h>
#include <mrc_ctl_api_ver.h>

#ifdef __cplusplus
extern "C" {
#endif

#define MRC_CTL_MAX_VENDOR_CFG_SIZE 128
#define MRC_CTL_EV_MAX_BYTES 32

enum mrc_ctl_protocol_version {
	MRC_CTL_PROTOCOL_VERSION_0 = 0,
	MRC_CTL_PROTOCOL_VERSION_1 = 1 << 0,
};

/* INIT -> OFFLINE -> ONLINE -> OFFLINE -> INIT. INIT forgets everything. */
enum mrc_ctl_profile_state {
	MRC_CTL_PROFILE_INIT = 0,
	MRC_CTL_PROFILE_OFFLINE = 1,
	MRC_CTL_PROFILE_ONLINE = 2,
};

/* mrc_ctl_device_attr.opt_attr */
enum mrc_ctl_attr_opt {
	MRC_CTL_OPT_CAP_EV_PROFILE_MODIFY_ONLINE = 1 << 0,
	MRC_CTL_OPT_CAP_CC_PROFILE_MODIFY_ONLINE = 1 << 1,
	MRC_CTL_OPT_CAP_EV_EVENT = 1 << 2,
	MRC_CTL_OPT_CAP_EV_EXPLICIT_RANGE = 1 << 3, /* explicit values must be one contiguous range */
	MRC_CTL_OPT_CAP_EV_EVENT_PRECISE_DROP_CNT = 1 << 4,
	MRC_CTL_OPT_CAP_EP_OP_EV_PROBE = 1 << 5,
};

enum mrc_ctl_port_admin_state {
	MRC_CTL_PORT_ADMIN_DISABLED = 0,
	MRC_CTL_PORT_ADMIN_ENABLED = 1,
};

enum mrc_ctl_port_attr_mask {
	MRC_CTL_PORT_ADMIN_STATE = 1 << 0,
};

enum mrc_ctl_ev_fmt_mode {
	MRC_CTL_EV_FMT_MODE_STEV = 1 << 0,
	MRC_CTL_EV_FMT_MODE_SRV6 = 1 << 1, /* with or without SRH */
	MRC_CTL_EV_FMT_MODE_UDP = 1 << 2,
};

enum mrc_ctl_ev_fmt_op {
	MRC_CTL_EV_FMT_OP_MODIFY_FIELDS = 0,
	MRC_CTL_EV_FMT_OP_QUERY_FIELDS = 1,
};

enum mrc_ctl_ev_fmt_profile_attr_mask {
	MRC_CTL_EV_FMT_PROFILE_STATE = 1 << 0,
	MRC_CTL_EV_FMT_PROFILE_CUR_STATE = 1 << 1,
	MRC_CTL_EV_FMT_PROFILE_MODE = 1 << 2,
	MRC_CTL_EV_FMT_PROFILE_OP = 1 << 3,
	MRC_CTL_EV_FMT_VENDOR_CFG = -2147483647 - 1, /* bit 31 */
};

enum mrc_ctl_ev_state {
	MRC_CTL_EV_GOOD = 1 << 0,
	MRC_CTL_EV_ASSUMED_BAD = 1 << 1,
	MRC_CTL_EV_DENIED = 1 << 2,
	MRC_CTL_EV_UNKNOWN = -2147483647 - 1, /* bit 31 */
};

enum mrc_ctl_ev_mode {
	MRC_CTL_EV_MODE_AUTO = 1 << 0,
	MRC_CTL_EV_MODE_EXP = 1 << 1,
	MRC_CTL_EV_MODE_GEN = 1 << 2,
};

enum mrc_ctl_ev_op {
	MRC_CTL_EV_OP_REPLACE_EV = 0,
	MRC_CTL_EV_OP_MODIFY_EV_STATE = 1,
	MRC_CTL_EV_OP_QUERY_EV_STATE = 2,
	MRC_CTL_EV_OP_QUERY_EV_ARRAY = 3,
};

enum mrc_ctl_ev_fields_op {
	MRC_CTL_EV_FIELDS_OP_MODIFY_FIELDS = 0,
	MRC_CTL_EV_FIELDS_OP_QUERY_FIELDS = 1,
};

enum mrc_ctl_ev_profile_attr_mask {
	MRC_CTL_EV_PROFILE_STATE = 1 << 0,
	MRC_CTL_EV_PROFILE_CUR_STATE = 1 << 1,
	MRC_CTL_EV_PROFILE_MODE = 1 << 2,
	MRC_CTL_EV_PROFILE_FMT_ID = 1 << 3,
	MRC_CTL_EV_PROFILE_COUNT = 1 << 4,
	MRC_CTL_EV_PROFILE_MIN_ACTIVE = 1 << 5,
	MRC_CTL_EV_PROFILE_EVENT_MASK = 1 << 6,
	MRC_CTL_EV_PROFILE_EV_OP = 1 << 7,
	MRC_CTL_EV_PROFILE_EV_FIELDS_OP = 1 << 8,
	MRC_CTL_EV_PROFILE_VENDOR_CFG = -2147483647 - 1, /* bit 31 */
};

enum mrc_ctl_ev_op_flags {
	MRC_CTL_EV_OP_F_ALL_COPIES = 1 << 0,
};

enum mrc_ctl_cc_profile_attr_mask {
	MRC_CTL_CC_PROFILE_STATE = 1 << 0,
	MRC_CTL_CC_PROFILE_CUR_STATE = 1 << 1,
	MRC_CTL_CC_PROFILE_ALGORITHM = 1 << 2,
	MRC_CTL_CC_PROFILE_CONFIG = 1 << 3,
	MRC_CTL_CC_PROFILE_VENDOR_CFG = -2147483647 - 1, /* bit 31 */
};

enum mrc_ctl_ep_op_type {
	MRC_CTL_EP_OP_EV_PROBE = 0,
	MRC_CTL_EP_OP_PORT_STATUS_UPDATE = 1,
};

/* An entropy value as a string of bits: the first is the most significant one of byte 0. UDP: the first 2 bytes, STEV: the
 * first 4, both big-endian. SRv6: bytes 0 to 15 the address, 16 to 31 the segment. */
typedef uint8_t mrc_ctl_ev_t[MRC_CTL_EV_MAX_BYTES];

struct mrc_ctl_device_attr {
	uint32_t mrc_ctl_protocol_version;
	struct {
		uint32_t ev_max_fmt_profiles;
		uint32_t ev_max_profiles;
		uint32_t ev_max_count;
		uint32_t ev_free_count;
		uint32_t ev_max_count_profile;
		uint32_t ev_count_align;
		uint32_t ev_max_width;
		uint32_t ev_fmt_mode_mask;
		uint32_t ev_mode_mask;
		uint32_t ev_op_max_entries; /* 0: no limit */
	} ev;
	struct {
		uint32_t cc_max_profiles;
		const char **algorithms; /* ends with NULL */
	} cc;
	uint32_t phy_port_mask; /* bit N is port N; ports count from 1 */
	uint32_t opt_attr;      /* enum mrc_ctl_attr_opt */
};

struct mrc_ctl_port_attr {
	enum mrc_ctl_port_admin_state port_admin_state;
};

struct mrc_ctl_ev_fmt_field {
	uint8_t width;
};

struct mrc_ctl_ev_fmt_profile_attr {
	enum mrc_ctl_profile_state profile_state;
	enum mrc_ctl_profile_state cur_profile_state;
	enum mrc_ctl_ev_fmt_mode ev_fmt_mode;
	struct {
		enum mrc_ctl_ev_fmt_op op;
		struct mrc_ctl_ev_fmt_field *fmt_fields;
		int fmt_field_count;
	} ev_fmt_op;
	uint8_t vendor_cfg[MRC_CTL_MAX_VENDOR_CFG_SIZE];
};

struct mrc_ctl_ev {
	mrc_ctl_ev_t val;
	uint8_t port; /* counts from 1 */
};

/* A place of an EXPLICIT profile without an entropy value. */
#ifdef __cplusplus
#define MRC_CTL_EV_UNPOPULATED (mrc_ctl_ev())
#else
#define MRC_CTL_EV_UNPOPULATED ((struct mrc_ctl_ev){{0}, 0})
#endif

struct mrc_ctl_ev_field {
	uint32_t width;
	uint32_t init_val;
	uint32_t min_val; /* bounds of the number that the bits of mask form; both 0: all that they can */
	uint32_t max_val;
	uint32_t mask;
};

struct mrc_ctl_ev_op_entry {
	struct mrc_ctl_ev ev;
	struct mrc_ctl_ev ev_new;
	enum mrc_ctl_ev_state state;
	uint32_t flags; /* enum mrc_ctl_ev_op_flags */
};

struct mrc_ctl_ev_profile_attr {
	enum mrc_ctl_profile_state profile_state;
	enum mrc_ctl_profile_state cur_profile_state;
	enum mrc_ctl_ev_mode ev_mode;
	uint64_t ev_fmt_profile_id;
	uint32_t ev_count;
	uint32_t ev_min_active;
	int ev_event_mask; /* MRC_CTL_EV_GOOD, MRC_CTL_EV_ASSUMED_BAD */
	struct {
		enum mrc_ctl_ev_op op;
		struct mrc_ctl_ev_op_entry *entries;
		int entry_count;
	} ev_op;
	struct {
		enum mrc_ctl_ev_fields_op op;
		struct mrc_ctl_ev_field *fields;
		int field_count;
	} ev_fields_op;
	uint8_t vendor_cfg[MRC_CTL_MAX_VENDOR_CFG_SIZE];
};

struct mrc_ctl_cc_profile_attr {
	enum mrc_ctl_profile_state profile_state;
	enum mrc_ctl_profile_state cur_profile_state;
	const char *algorithm; /* "uet-1.0-nscc", or NULL: a window that never changes */
	const void *cc_config; /* struct mrc_ctl_cc_nscc_cfg */
	uint8_t vendor_cfg[MRC_CTL_MAX_VENDOR_CFG_SIZE];
};

struct mrc_ctl_cc_nscc_cfg {
	uint8_t disable_qa;
	uint32_t adjust_bytes_threshold;  /* bytes */
	uint32_t adjust_period_threshold; /* ns */
	uint32_t base_rtt;                /* ns */
	float eta;
	float fi;
	float fi_scale;
	float gamma;
	float max_md_jump;
	uint32_t max_cwnd; /* bytes */
	uint8_t qa_gate;
	uint32_t qa_threshold; /* ns */
	uint32_t target_delay; /* ns */
};

struct mrc_ctl_ev_event {
	uint64_t profile_id;
	struct mrc_ctl_ev ev;
	uint32_t drop_count; /* events that were lost before this one */
#if MRC_CTL_API_VER_USED >= MRC_CTL_API_VER(1U, 0U, 1U)
	enum mrc_ctl_ev_state state;
#endif
};

struct mrc_ctl_ep_req {
	uint16_t req_id;
	union ibv_gid sgid;
	union ibv_gid dgid;
	enum mrc_ctl_ev_fmt_mode ev_fmt_mode;
	struct mrc_ctl_ev req_ev;
	union {
		struct {
			uint32_t port_status; /* bit N: port N is up */
		} port_status_update;
	} op;
};

struct mrc_ctl_ep_rsp {
	uint16_t req_id;
	uint8_t port;
	unsigned int rtt; /* ns */
	uint8_t adj_svc_time;
};

/* --- device and ports --------------------------------------------------------------------------------------------- */

/* M1. EOPNOTSUPP for a device of another library. */
int mrc_ctl_query_device(struct ibv_context *context, struct mrc_ctl_device_attr *ctl_attr);

#if MRC_CTL_API_VER_USED >= MRC_CTL_API_VER(1U, 0U, 1U)
/* M1. A device of another library: 0, *supported 0. mcontext may be NULL. */
int mrc_ctl_query_device_ex(struct ibv_context *context, struct mrc_context *mcontext,
			    struct mrc_ctl_device_attr *ctl_attr, int *supported);
#endif

/* NULL pointers are skipped. */
void mrc_ctl_query_version(uint32_t *current_version, uint32_t *last_supported_version, uint32_t *vendor_version,
			   uint32_t *last_supported_vendor_version);

/* M1. */
int mrc_ctl_query_port(struct mrc_context *context, uint8_t port_num, struct mrc_ctl_port_attr *attr, int attr_mask);

/* M1. A port that is disabled neither sends nor receives, and peers are told. */
int mrc_ctl_modify_port(struct mrc_context *context, uint8_t port_num, struct mrc_ctl_port_attr *attr, int attr_mask);

/* --- profiles ----------------------------------------------------------------------------------------------------- */

/* M1. EBUSY while an EV profile that uses it is ONLINE; E2BIG if the fields do not fit the device. */
int mrc_ctl_modify_ev_fmt_profile(struct mrc_context *mrc_ctx, uint64_t ev_fmt_profile_id,
				  struct mrc_ctl_ev_fmt_profile_attr *attr, int attr_mask);

/* M1. E2BIG, and the length that is needed, if the array is too short. */
int mrc_ctl_query_ev_fmt_profile(struct mrc_context *mrc_ctx, uint64_t ev_fmt_profile_id,
				 struct mrc_ctl_ev_fmt_profile_attr *attr, int attr_mask);

/* M1. ENOENT if there is no such entropy value; EBUSY while queue pairs use it. Of the entries of an operation, those
 * before the one that failed stay done. */
int mrc_ctl_modify_ev_profile(struct mrc_context *mrc_ctx, uint64_t ev_profile_id,
			      struct mrc_ctl_ev_profile_attr *attr, int attr_mask);

/* M1. */
int mrc_ctl_query_ev_profile(struct mrc_context *mrc_ctx, uint64_t ev_profile_id, struct mrc_ctl_ev_profile_attr *attr,
			     int attr_mask);

/* M1. EBUSY while queue pairs use it. */
int mrc_ctl_modify_cc_profile(struct mrc_context *mrc_ctx, uint64_t cc_profile_id,
			      struct mrc_ctl_cc_profile_attr *attr, int attr_mask);

/* M1. cc_config is valid until the next call on this profile. */
int mrc_ctl_query_cc_profile(struct mrc_context *mrc_ctx, uint64_t cc_profile_id, struct mrc_ctl_cc_profile_attr *attr,
			     int attr_mask);

/* --- events and endpoint operations ------------------------------------------------------------------------------- */

/* P. Destroyed by mrc_destroy_cq. It never overruns. */
struct mrc_cq *mrc_ctl_create_ev_event_cq(struct mrc_context *mrc_ctx, int cqe, void *cq_context,
					  struct mrc_comp_channel *channel, int comp_vector);

/* The number of events, or minus the errno value. */
int mrc_ctl_poll_ev_event(struct mrc_cq *ev_cq, int num_entries, struct mrc_ctl_ev_event *ev_event);

/* M1. Sends all requests and waits rsp_timeout nanoseconds for the answers; ETIMEDOUT if some are missing. *num_rsp is the
 * number of answers in rsp, which has room for num_req. */
int mrc_ctl_ep_batch_send_wait(struct mrc_context *mrc_ctx, uint8_t req_tc, enum mrc_ctl_ep_op_type op_type,
			       struct mrc_ctl_ep_req *req, int num_req, uint32_t rsp_timeout,
			       struct mrc_ctl_ep_rsp *rsp, int *num_rsp);

#ifdef __cplusplus
}
#endif

#endif
