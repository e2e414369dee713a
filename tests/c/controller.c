/* The control interface: profiles of every kind and mode through their states, operations, events, probes, ports. */
#include "check.h"

#include <stddef.h>

#define FMT 7
#define EV 8
#define CC 9

static int modify_fmt(struct bed *bed, enum mrc_ctl_profile_state state, int mask, const uint8_t *widths, int count)
{
	struct mrc_ctl_ev_fmt_field fields[8];
	struct mrc_ctl_ev_fmt_profile_attr attr;

	memset(&attr, 0, sizeof attr);
	for (int i = 0; i < count && widths; i++)
		fields[i].width = widths[i];
	attr.profile_state = state;
	attr.ev_fmt_mode = MRC_CTL_EV_FMT_MODE_UDP;
	attr.ev_fmt_op.op = MRC_CTL_EV_FMT_OP_MODIFY_FIELDS;
	attr.ev_fmt_op.fmt_fields = fields;
	attr.ev_fmt_op.fmt_field_count = count;
	return mrc_ctl_modify_ev_fmt_profile(bed->mrc, FMT, &attr, mask);
}

static struct mrc_ctl_ev ev_of(unsigned int value, int port)
{
	struct mrc_ctl_ev ev = MRC_CTL_EV_UNPOPULATED;

	ev.val[0] = (uint8_t)(value >> 8);
	ev.val[1] = (uint8_t)value;
	ev.port = (uint8_t)port;
	return ev;
}

/* One operation on one value. */
static int operate(struct bed *bed, enum mrc_ctl_ev_op op, struct mrc_ctl_ev_op_entry *entry)
{
	struct mrc_ctl_ev_profile_attr attr;

	memset(&attr, 0, sizeof attr);
	attr.ev_op.op = op;
	attr.ev_op.entries = entry;
	attr.ev_op.entry_count = 1;
	return mrc_ctl_modify_ev_profile(bed->mrc, EV, &attr, MRC_CTL_EV_PROFILE_EV_OP);
}

static int shown_state(struct bed *bed)
{
	struct mrc_ctl_ev_profile_attr attr;

	memset(&attr, 0xA5, sizeof attr);
	if (mrc_ctl_query_ev_profile(bed->mrc, EV, &attr, MRC_CTL_EV_PROFILE_STATE))
		return -1;
	return (int)attr.profile_state;
}

static int begin(struct bed *bed, enum mrc_ctl_ev_mode mode, uint32_t count, struct mrc_ctl_ev_field *fields, int n)
{
	struct mrc_ctl_ev_profile_attr attr;

	memset(&attr, 0, sizeof attr);
	attr.profile_state = MRC_CTL_PROFILE_OFFLINE;
	attr.ev_mode = mode;
	attr.ev_fmt_profile_id = FMT;
	attr.ev_count = count;
	attr.ev_min_active = 1;
	attr.ev_event_mask = MRC_CTL_EV_GOOD | MRC_CTL_EV_ASSUMED_BAD;
	attr.ev_fields_op.op = MRC_CTL_EV_FIELDS_OP_MODIFY_FIELDS;
	attr.ev_fields_op.fields = fields;
	attr.ev_fields_op.field_count = n;
	return mrc_ctl_modify_ev_profile(bed->mrc, EV, &attr,
		MRC_CTL_EV_PROFILE_STATE | MRC_CTL_EV_PROFILE_MODE | MRC_CTL_EV_PROFILE_FMT_ID | MRC_CTL_EV_PROFILE_COUNT |
		MRC_CTL_EV_PROFILE_MIN_ACTIVE | MRC_CTL_EV_PROFILE_EVENT_MASK | (n ? MRC_CTL_EV_PROFILE_EV_FIELDS_OP : 0));
}

static int values_of(struct bed *bed, uint64_t id, struct mrc_ctl_ev_op_entry *entries, int room)
{
	struct mrc_ctl_ev_profile_attr attr;

	memset(&attr, 0, sizeof attr);
	attr.ev_op.op = MRC_CTL_EV_OP_QUERY_EV_ARRAY;
	attr.ev_op.entries = entries;
	attr.ev_op.entry_count = room;
	if (mrc_ctl_query_ev_profile(bed->mrc, id, &attr, MRC_CTL_EV_PROFILE_EV_OP))
		return errno == E2BIG ? -attr.ev_op.entry_count : -100000;
	return attr.ev_op.entry_count;
}

static void device(struct bed *bed)
{
	struct mrc_ctl_device_attr attr;
	struct ibv_context *foreign = calloc(1, 4096);
	int supported = -1;

	memset(&attr, 0xA5, sizeof attr);
	CHECK(mrc_ctl_query_device(bed->device, &attr) == 0);
	CHECK(attr.mrc_ctl_protocol_version == 1 && attr.ev.ev_max_width == 16 && attr.ev.ev_count_align == 2);
	CHECK(attr.ev.ev_fmt_mode_mask == MRC_CTL_EV_FMT_MODE_UDP && attr.ev.ev_mode_mask == 7 && attr.phy_port_mask == 6);
	CHECK(!strcmp(attr.cc.algorithms[0], "uet-1.0-nscc") && !attr.cc.algorithms[1]);
	M1_FAILS(mrc_ctl_query_device(foreign, &attr), EOPNOTSUPP);
	M1_FAILS(mrc_ctl_query_device(bed->device, NULL), EINVAL);
	CHECK(mrc_ctl_query_device_ex(bed->device, NULL, &attr, &supported) == 0 && supported == 1);
	CHECK(mrc_ctl_query_device_ex(foreign, NULL, &attr, &supported) == 0 && supported == 0);
	free(foreign);
}

static void formats(struct bed *bed)
{
	const uint8_t widths[] = {8, 8}, wide[] = {16, 1};
	struct mrc_ctl_ev_fmt_field fields[2];
	struct mrc_ctl_ev_fmt_profile_attr attr;
	int op = MRC_CTL_EV_FMT_PROFILE_OP, mode = MRC_CTL_EV_FMT_PROFILE_MODE, state = MRC_CTL_EV_FMT_PROFILE_STATE;

	M1_FAILS(modify_fmt(bed, MRC_CTL_PROFILE_ONLINE, state | mode | op, widths, 2), EINVAL);
	M1_FAILS(modify_fmt(bed, MRC_CTL_PROFILE_OFFLINE, state, NULL, 0), EINVAL);
	M1_FAILS(modify_fmt(bed, MRC_CTL_PROFILE_OFFLINE, state | mode | op, wide, 2), E2BIG);
	M1_FAILS(modify_fmt(bed, MRC_CTL_PROFILE_OFFLINE, state | 1 << 20, NULL, 0), EINVAL);
	CHECK(modify_fmt(bed, MRC_CTL_PROFILE_OFFLINE, state | mode, NULL, 0) == 0);
	M1_FAILS(modify_fmt(bed, MRC_CTL_PROFILE_ONLINE, state, NULL, 0), EINVAL);
	CHECK(modify_fmt(bed, MRC_CTL_PROFILE_OFFLINE, op, widths, 2) == 0);
	CHECK(modify_fmt(bed, MRC_CTL_PROFILE_ONLINE, state, NULL, 0) == 0);
	M1_FAILS(modify_fmt(bed, MRC_CTL_PROFILE_ONLINE, op, widths, 2), EINVAL);
	M1_FAILS(modify_fmt(bed, MRC_CTL_PROFILE_INIT, state, NULL, 0), EINVAL);

	memset(&attr, 0, sizeof attr);
	attr.ev_fmt_op.op = MRC_CTL_EV_FMT_OP_QUERY_FIELDS;
	CHECK(mrc_ctl_query_ev_fmt_profile(bed->mrc, FMT, &attr, op) == 0 && attr.ev_fmt_op.fmt_field_count == 2);
	attr.ev_fmt_op.fmt_fields = fields, attr.ev_fmt_op.fmt_field_count = 1;
	M1_FAILS(mrc_ctl_query_ev_fmt_profile(bed->mrc, FMT, &attr, op), E2BIG);
	CHECK(attr.ev_fmt_op.fmt_field_count == 2);
	CHECK(mrc_ctl_query_ev_fmt_profile(bed->mrc, FMT, &attr, op | mode | state) == 0);
	CHECK(fields[0].width == 8 && attr.ev_fmt_mode == MRC_CTL_EV_FMT_MODE_UDP);
	CHECK(attr.profile_state == MRC_CTL_PROFILE_ONLINE);
	/* The device's own cannot be changed. */
	attr.profile_state = MRC_CTL_PROFILE_OFFLINE;
	M1_FAILS(mrc_ctl_modify_ev_fmt_profile(bed->mrc, 0, &attr, state), EBUSY);
}

static void explicit_values(struct bed *bed)
{
	struct mrc_ctl_ev_op_entry entry, shown[8];
	struct mrc_ctl_ev unpopulated = MRC_CTL_EV_UNPOPULATED;

	memset(&entry, 0, sizeof entry);
	M1_FAILS(begin(bed, MRC_CTL_EV_MODE_EXP, 1, NULL, 0), EINVAL);
	M1_FAILS(begin(bed, MRC_CTL_EV_MODE_EXP, 100000, NULL, 0), EINVAL);
	M1_FAILS(begin(bed, (enum mrc_ctl_ev_mode)3, 4, NULL, 0), EINVAL);
	CHECK(shown_state(bed) == MRC_CTL_PROFILE_INIT);
	CHECK(begin(bed, MRC_CTL_EV_MODE_EXP, 5, NULL, 0) == 0);
	CHECK(shown_state(bed) == MRC_CTL_PROFILE_OFFLINE);
	CHECK(values_of(bed, EV, NULL, 0) == 4);
	CHECK(values_of(bed, EV, shown, 3) == -4);
	CHECK(values_of(bed, EV, shown, 8) == 4 && !memcmp(&shown[3].ev, &unpopulated, sizeof unpopulated));
	M1_FAILS(set_state(bed, EV, MRC_CTL_PROFILE_ONLINE), EINVAL);
	for (int i = 0; i < 4; i++) {
		entry.ev = unpopulated;
		entry.ev_new = ev_of(50000 + (unsigned int)i, i % 2 + 1);
		CHECK(operate(bed, MRC_CTL_EV_OP_REPLACE_EV, &entry) == 0);
	}
	M1_FAILS(operate(bed, MRC_CTL_EV_OP_REPLACE_EV, &entry), ENOENT);
	entry.ev = ev_of(50000, 1), entry.ev_new = ev_of(50009, 3);
	M1_FAILS(operate(bed, MRC_CTL_EV_OP_REPLACE_EV, &entry), EINVAL);
	entry.ev_new = ev_of(0, 1);
	M1_FAILS(operate(bed, MRC_CTL_EV_OP_REPLACE_EV, &entry), EINVAL);
	entry.ev_new = ev_of(50009, 1), entry.ev_new.val[5] = 1;
	M1_FAILS(operate(bed, MRC_CTL_EV_OP_REPLACE_EV, &entry), EINVAL);
	entry.ev = ev_of(50001, 2), entry.state = MRC_CTL_EV_DENIED;
	CHECK(operate(bed, MRC_CTL_EV_OP_MODIFY_EV_STATE, &entry) == 0);
	CHECK(set_state(bed, EV, MRC_CTL_PROFILE_ONLINE) == 0);
	M1_FAILS(modify_fmt(bed, MRC_CTL_PROFILE_OFFLINE, MRC_CTL_EV_FMT_PROFILE_STATE, NULL, 0), EBUSY);
	entry.state = MRC_CTL_EV_GOOD;
	CHECK(operate(bed, MRC_CTL_EV_OP_QUERY_EV_STATE, &entry) == 0 && entry.state == MRC_CTL_EV_DENIED);
	entry.state = MRC_CTL_EV_ASSUMED_BAD;
	M1_FAILS(operate(bed, MRC_CTL_EV_OP_MODIFY_EV_STATE, &entry), EINVAL);
	entry.state = MRC_CTL_EV_GOOD;
	CHECK(operate(bed, MRC_CTL_EV_OP_MODIFY_EV_STATE, &entry) == 0);
	CHECK(operate(bed, MRC_CTL_EV_OP_QUERY_EV_STATE, &entry) == 0 && entry.state == MRC_CTL_EV_GOOD);
	entry.ev = ev_of(1234, 1);
	M1_FAILS(operate(bed, MRC_CTL_EV_OP_QUERY_EV_STATE, &entry), ENOENT);
	entry.ev_new = ev_of(50010, 1), entry.ev = ev_of(50000, 1);
	M1_FAILS(operate(bed, MRC_CTL_EV_OP_REPLACE_EV, &entry), EINVAL);

	/* Queue pairs send over these values, and hold the profile. */
	struct mrc_qp *a = make_qp(bed), *b = make_qp(bed);
	struct ibv_qp_attr attr = attributes(bed, b);

	CHECK(init_over(bed, a, EV) == 0);
	CHECK(step(a, &attr, IBV_QPS_RTR, TO_RTR) == 0 && step(a, &attr, IBV_QPS_RTS, TO_RTS) == 0);
	connect_qp(bed, b, a);
	struct ibv_sge sge;
	struct ibv_send_wr *bad, wr = write_of(bed, &sge, 0, MEMORY / 2, MEMORY / 2);
	struct ibv_wc wc;
	CHECK(mrc_post_send(a, &wr, &bad) == 0 && poll_for(bed->cq, &wc, 1) == 1 && wc.status == IBV_WC_SUCCESS);
	M1_FAILS(set_state(bed, EV, MRC_CTL_PROFILE_OFFLINE), EBUSY);
	CHECK(mrc_destroy_qp(a) == 0 && mrc_destroy_qp(b) == 0);
	CHECK(set_state(bed, EV, MRC_CTL_PROFILE_OFFLINE) == 0 && set_state(bed, EV, MRC_CTL_PROFILE_INIT) == 0);
	CHECK(shown_state(bed) == MRC_CTL_PROFILE_INIT);
	a = make_qp(bed);
	E0_FAILS(init_over(bed, a, EV), EINVAL);
	CHECK(mrc_destroy_qp(a) == 0);
}

static void generated_and_auto(struct bed *bed)
{
	struct mrc_ctl_ev_field fields[2] = {{8, 0, 0xC0, 0xDF, 0xFF}, {8, 0, 0, 0, 0xFF}}, back[2];
	struct mrc_ctl_ev_op_entry shown[64];
	struct mrc_ctl_ev_profile_attr attr;

	memset(&attr, 0, sizeof attr);
	CHECK(begin(bed, MRC_CTL_EV_MODE_GEN, 32, fields, 2) == 0);
	CHECK(set_state(bed, EV, MRC_CTL_PROFILE_ONLINE) == 0);
	CHECK(values_of(bed, EV, shown, 64) == 32);
	for (int i = 0; i < 32; i++) {
		CHECK(shown[i].ev.val[0] >= 0xC0 && shown[i].ev.val[0] <= 0xDF && shown[i].state == MRC_CTL_EV_GOOD);
		for (int j = 0; j < i; j++)
			CHECK(memcmp(&shown[i].ev, &shown[j].ev, sizeof shown[i].ev) != 0);
	}
	attr.ev_fields_op.op = MRC_CTL_EV_FIELDS_OP_QUERY_FIELDS;
	attr.ev_fields_op.fields = back, attr.ev_fields_op.field_count = 2;
	CHECK(mrc_ctl_query_ev_profile(bed->mrc, EV, &attr, MRC_CTL_EV_PROFILE_EV_FIELDS_OP) == 0);
	CHECK(memcmp(fields, back, sizeof back) == 0);
	M1_FAILS(mrc_ctl_modify_ev_profile(bed->mrc, EV, &attr, MRC_CTL_EV_PROFILE_EV_FIELDS_OP | MRC_CTL_EV_PROFILE_EV_OP), EINVAL);
	/* The mask can change while it is ONLINE, the count cannot. */
	attr.ev_event_mask = MRC_CTL_EV_ASSUMED_BAD;
	CHECK(mrc_ctl_modify_ev_profile(bed->mrc, EV, &attr, MRC_CTL_EV_PROFILE_EVENT_MASK) == 0);
	attr.ev_event_mask = MRC_CTL_EV_DENIED;
	M1_FAILS(mrc_ctl_modify_ev_profile(bed->mrc, EV, &attr, MRC_CTL_EV_PROFILE_EVENT_MASK), EINVAL);
	attr.ev_count = 8;
	M1_FAILS(mrc_ctl_modify_ev_profile(bed->mrc, EV, &attr, MRC_CTL_EV_PROFILE_COUNT), EINVAL);
	CHECK(set_state(bed, EV, MRC_CTL_PROFILE_OFFLINE) == 0 && set_state(bed, EV, MRC_CTL_PROFILE_INIT) == 0);

	fields[0].max_val = 0x100;
	M1_FAILS(begin(bed, MRC_CTL_EV_MODE_GEN, 32, fields, 2), EINVAL);
	fields[0].max_val = 0xBF;
	M1_FAILS(begin(bed, MRC_CTL_EV_MODE_GEN, 32, fields, 2), EINVAL);

	CHECK(begin(bed, MRC_CTL_EV_MODE_AUTO, 64, NULL, 0) == 0 && set_state(bed, EV, MRC_CTL_PROFILE_ONLINE) == 0);
	CHECK(values_of(bed, EV, shown, 64) == 64);
	CHECK(set_state(bed, EV, MRC_CTL_PROFILE_OFFLINE) == 0 && set_state(bed, EV, MRC_CTL_PROFILE_INIT) == 0);
	/* The device's own. */
	CHECK(values_of(bed, 0, NULL, 0) > 64);
	attr.profile_state = MRC_CTL_PROFILE_OFFLINE;
	M1_FAILS(mrc_ctl_modify_ev_profile(bed->mrc, 0, &attr, MRC_CTL_EV_PROFILE_STATE), EBUSY);
}

static void congestion(struct bed *bed)
{
	struct mrc_ctl_cc_nscc_cfg config = {.base_rtt = 500000, .max_cwnd = 1 << 20, .gamma = 0.8f};
	struct mrc_ctl_cc_profile_attr attr;
	int state = MRC_CTL_CC_PROFILE_STATE, algorithm = MRC_CTL_CC_PROFILE_ALGORITHM, cfg = MRC_CTL_CC_PROFILE_CONFIG;

	memset(&attr, 0, sizeof attr);
	attr.profile_state = MRC_CTL_PROFILE_OFFLINE;
	attr.algorithm = "cubic";
	M1_FAILS(mrc_ctl_modify_cc_profile(bed->mrc, CC, &attr, state | algorithm), EINVAL);
	M1_FAILS(mrc_ctl_modify_cc_profile(bed->mrc, CC, &attr, state), EINVAL);
	attr.algorithm = "uet-1.0-nscc";
	CHECK(mrc_ctl_modify_cc_profile(bed->mrc, CC, &attr, state | algorithm) == 0);
	attr.profile_state = MRC_CTL_PROFILE_ONLINE;
	M1_FAILS(mrc_ctl_modify_cc_profile(bed->mrc, CC, &attr, state), EINVAL);
	attr.cc_config = &config;
	CHECK(mrc_ctl_modify_cc_profile(bed->mrc, CC, &attr, state | cfg) == 0);
	memset(&attr, 0, sizeof attr);
	CHECK(mrc_ctl_query_cc_profile(bed->mrc, CC, &attr, state | algorithm | cfg) == 0);
	CHECK(attr.profile_state == MRC_CTL_PROFILE_ONLINE && !strcmp(attr.algorithm, "uet-1.0-nscc"));
	CHECK(attr.cc_config && ((const struct mrc_ctl_cc_nscc_cfg *)attr.cc_config)->max_cwnd == 1 << 20);

	struct mrc_qp *qp = make_qp(bed);
	struct ibv_qp_attr verbs = attributes(bed, NULL);
	struct mrc_qp_attr mrc;
	memset(&mrc, 0, sizeof mrc);
	mrc.profile.cc_profile_id = CC;
	verbs.qp_state = IBV_QPS_INIT;
	CHECK(mrc_modify_qp(qp, &verbs, TO_INIT, &mrc, MRC_QP_CC_PROFILE_ID) == 0);
	attr.profile_state = MRC_CTL_PROFILE_OFFLINE;
	M1_FAILS(mrc_ctl_modify_cc_profile(bed->mrc, CC, &attr, state), EBUSY);
	CHECK(mrc_destroy_qp(qp) == 0);
	CHECK(mrc_ctl_modify_cc_profile(bed->mrc, CC, &attr, state) == 0);
	/* Without an algorithm there is no configuration. */
	attr.algorithm = NULL, attr.profile_state = MRC_CTL_PROFILE_ONLINE;
	CHECK(mrc_ctl_modify_cc_profile(bed->mrc, CC, &attr, state | algorithm) == 0);
	attr.profile_state = MRC_CTL_PROFILE_OFFLINE;
	CHECK(mrc_ctl_modify_cc_profile(bed->mrc, CC, &attr, state) == 0);
	attr.profile_state = MRC_CTL_PROFILE_INIT;
	CHECK(mrc_ctl_modify_cc_profile(bed->mrc, CC, &attr, state) == 0);
}

/* Disabling a port is seen; traffic goes on over the other. */
static void ports(struct bed *bed)
{
	struct mrc_ctl_port_attr attr = {MRC_CTL_PORT_ADMIN_DISABLED};
	struct ibv_port_attr shown;
	struct mrc_async_event event;

	M1_FAILS(mrc_ctl_query_port(bed->mrc, 0, &attr, MRC_CTL_PORT_ADMIN_STATE), EINVAL);
	M1_FAILS(mrc_ctl_query_port(bed->mrc, 3, &attr, MRC_CTL_PORT_ADMIN_STATE), EINVAL);
	CHECK(mrc_ctl_modify_port(bed->mrc, 2, &attr, MRC_CTL_PORT_ADMIN_STATE) == 0);
	attr.port_admin_state = MRC_CTL_PORT_ADMIN_ENABLED;
	CHECK(mrc_ctl_query_port(bed->mrc, 2, &attr, MRC_CTL_PORT_ADMIN_STATE) == 0);
	CHECK(attr.port_admin_state == MRC_CTL_PORT_ADMIN_DISABLED);
	CHECK(ibv_query_port(bed->device, 2, &shown) == 0 && shown.state == IBV_PORT_DOWN);
	CHECK(ibv_query_port(bed->device, 1, &shown) == 0 && shown.state == IBV_PORT_ACTIVE);
	CHECK(mrc_get_async_event(bed->mrc, &event) == 0 && event.event_type == IBV_EVENT_PORT_ERR && event.element.port_num == 2);
	mrc_ack_async_event(&event);
	attr.port_admin_state = MRC_CTL_PORT_ADMIN_ENABLED;
	CHECK(mrc_ctl_modify_port(bed->mrc, 2, &attr, MRC_CTL_PORT_ADMIN_STATE) == 0);
	CHECK(mrc_get_async_event(bed->mrc, &event) == 0 && event.event_type == IBV_EVENT_PORT_ACTIVE);
	mrc_ack_async_event(&event);
	attr.port_admin_state = (enum mrc_ctl_port_admin_state)2;
	M1_FAILS(mrc_ctl_modify_port(bed->mrc, 2, &attr, MRC_CTL_PORT_ADMIN_STATE), EINVAL);
}

static void probes(struct bed *bed)
{
	struct mrc_ctl_ev_op_entry shown[512];
	struct mrc_ctl_ep_req req[3];
	struct mrc_ctl_ep_rsp rsp[3];
	int answers = -1, n = values_of(bed, 0, shown, 512);

	NEED(n > 2);
	memset(req, 0, sizeof req);
	for (int i = 0; i < 3; i++) {
		req[i].req_id = (uint16_t)(100 + i);
		req[i].sgid = req[i].dgid = bed->gid;
		req[i].ev_fmt_mode = MRC_CTL_EV_FMT_MODE_UDP;
		req[i].req_ev = shown[i].ev;
	}
	CHECK(mrc_ctl_ep_batch_send_wait(bed->mrc, 0, MRC_CTL_EP_OP_EV_PROBE, req, 3, 2000000000, rsp, &answers) == 0);
	CHECK(answers == 3);
	for (int i = 0; i < answers; i++)
		CHECK(rsp[i].req_id >= 100 && rsp[i].req_id < 103 && rsp[i].rtt > 0 && rsp[i].port >= 1);
	CHECK(mrc_ctl_ep_batch_send_wait(bed->mrc, 0, MRC_CTL_EP_OP_EV_PROBE, NULL, 0, 0, NULL, &answers) == 0 && answers == 0);
	req[1].req_id = 100;
	M1_FAILS(mrc_ctl_ep_batch_send_wait(bed->mrc, 0, MRC_CTL_EP_OP_EV_PROBE, req, 3, 1000, rsp, &answers), EINVAL);
	req[1].req_id = 101, req[1].ev_fmt_mode = MRC_CTL_EV_FMT_MODE_STEV;
	M1_FAILS(mrc_ctl_ep_batch_send_wait(bed->mrc, 0, MRC_CTL_EP_OP_EV_PROBE, req, 3, 1000, rsp, &answers), ENOTSUP);
	req[1].ev_fmt_mode = MRC_CTL_EV_FMT_MODE_UDP;
	/* One of the nodes is not there, as no test has this byte in an address: the answers of the others come nevertheless. */
	req[2].dgid.raw[14] = 252;
	M1_FAILS(mrc_ctl_ep_batch_send_wait(bed->mrc, 0, MRC_CTL_EP_OP_EV_PROBE, req, 3, 100000000, rsp, &answers), ETIMEDOUT);
	CHECK(answers == 2);
	req[2].dgid = bed->gid;
	/* Both ports are up, says the update; bit N is port N. A port that does not exist cannot be up. */
	for (int i = 0; i < 3; i++) {
		req[i].op.port_status_update.port_status = 1 << 1 | 1 << 2;
		memset(&req[i].req_ev, 0, sizeof req[i].req_ev);
		req[i].req_ev.port = (uint8_t)i;
	}
	CHECK(mrc_ctl_ep_batch_send_wait(bed->mrc, 0, MRC_CTL_EP_OP_PORT_STATUS_UPDATE, req, 3, 2000000000, rsp, &answers) == 0);
	CHECK(answers == 3 && rsp[0].rtt > 0);
	req[1].op.port_status_update.port_status = 1 << 3;
	M1_FAILS(mrc_ctl_ep_batch_send_wait(bed->mrc, 0, MRC_CTL_EP_OP_PORT_STATUS_UPDATE, req, 3, 1000, rsp, &answers), EINVAL);
	req[1].op.port_status_update.port_status = 1;
	M1_FAILS(mrc_ctl_ep_batch_send_wait(bed->mrc, 0, MRC_CTL_EP_OP_PORT_STATUS_UPDATE, req, 3, 1000, rsp, &answers), EINVAL);
	req[1].op.port_status_update.port_status = 2, req[1].req_ev.port = 3;
	M1_FAILS(mrc_ctl_ep_batch_send_wait(bed->mrc, 0, MRC_CTL_EP_OP_PORT_STATUS_UPDATE, req, 3, 1000, rsp, &answers), EINVAL);
	req[1].req_ev.port = 0, req[2].dgid.raw[14] = 252;
	M1_FAILS(mrc_ctl_ep_batch_send_wait(bed->mrc, 0, MRC_CTL_EP_OP_PORT_STATUS_UPDATE, req, 3, 100000000, rsp, &answers), ETIMEDOUT);
	CHECK(answers == 2);
	req[0].sgid.raw[15] ^= 1;
	M1_FAILS(mrc_ctl_ep_batch_send_wait(bed->mrc, 0, MRC_CTL_EP_OP_EV_PROBE, req, 1, 1000, rsp, &answers), EINVAL);
}

static void events(struct bed *bed)
{
	struct mrc_ctl_ev_event event;
	struct mrc_cq *cq;
	struct ibv_wc wc;

	CHECK(sizeof event == 56 && offsetof(struct mrc_ctl_ev_event, state) == 48);
	NEED((cq = mrc_ctl_create_ev_event_cq(bed->mrc, 4, NULL, NULL, 0)));
	CHECK(mrc_ctl_poll_ev_event(cq, 1, &event) == 0);
	CHECK(mrc_ctl_poll_ev_event(bed->cq, 1, &event) == -EINVAL);
	CHECK(mrc_ctl_poll_ev_event(NULL, 1, &event) == -EINVAL);
	CHECK(mrc_ctl_poll_ev_event(cq, -1, &event) == -EINVAL);
	M1_FAILS(mrc_poll_cq(cq, 1, &wc), EINVAL);
	CHECK(mrc_destroy_cq(cq) == 0);
}

int main(void)
{
	struct bed bed;

	open_bed(&bed);
	device(&bed);
	formats(&bed);
	explicit_values(&bed);
	generated_and_auto(&bed);
	congestion(&bed);
	ports(&bed);
	probes(&bed);
	events(&bed);
	close_bed(&bed);
	return failures != 0;
}
