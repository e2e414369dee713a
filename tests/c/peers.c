/* One device, one EV profile, queue pairs to several peers: all send over it, also when a single value is left. */
#include "check.h"

#define PEERS 3
#define FMT 7
#define EV 8
#define VALUES 4
#define BYTES 300000

static struct mrc_ctl_ev value_of(int i)
{
	struct mrc_ctl_ev ev = MRC_CTL_EV_UNPOPULATED;

	ev.val[0] = 0xC3;
	ev.val[1] = (uint8_t)i;
	ev.port = (uint8_t)(i % 2 + 1);
	return ev;
}

static void operate(struct bed *bed, enum mrc_ctl_ev_op op, int i, enum mrc_ctl_ev_state state)
{
	struct mrc_ctl_ev_op_entry entry;
	struct mrc_ctl_ev_profile_attr attr;

	memset(&attr, 0, sizeof attr);
	memset(&entry, 0, sizeof entry);
	if (op == MRC_CTL_EV_OP_REPLACE_EV)
		entry.ev_new = value_of(i);
	else
		entry.ev = value_of(i), entry.state = state;
	attr.ev_op.op = op, attr.ev_op.entries = &entry, attr.ev_op.entry_count = 1;
	NEED(mrc_ctl_modify_ev_profile(bed->mrc, EV, &attr, MRC_CTL_EV_PROFILE_EV_OP) == 0);
}

static void profiles_online(struct bed *bed)
{
	struct mrc_ctl_ev_fmt_field field = {.width = 16};
	struct mrc_ctl_ev_fmt_profile_attr fmt;
	struct mrc_ctl_ev_profile_attr ev;

	memset(&fmt, 0, sizeof fmt);
	fmt.profile_state = MRC_CTL_PROFILE_OFFLINE;
	fmt.ev_fmt_mode = MRC_CTL_EV_FMT_MODE_UDP;
	fmt.ev_fmt_op.op = MRC_CTL_EV_FMT_OP_MODIFY_FIELDS;
	fmt.ev_fmt_op.fmt_fields = &field, fmt.ev_fmt_op.fmt_field_count = 1;
	NEED(mrc_ctl_modify_ev_fmt_profile(bed->mrc, FMT, &fmt,
		MRC_CTL_EV_FMT_PROFILE_STATE | MRC_CTL_EV_FMT_PROFILE_MODE | MRC_CTL_EV_FMT_PROFILE_OP) == 0);
	fmt.profile_state = MRC_CTL_PROFILE_ONLINE;
	NEED(mrc_ctl_modify_ev_fmt_profile(bed->mrc, FMT, &fmt, MRC_CTL_EV_FMT_PROFILE_STATE) == 0);

	memset(&ev, 0, sizeof ev);
	ev.profile_state = MRC_CTL_PROFILE_OFFLINE;
	ev.ev_mode = MRC_CTL_EV_MODE_EXP, ev.ev_fmt_profile_id = FMT, ev.ev_count = VALUES, ev.ev_min_active = 1;
	NEED(mrc_ctl_modify_ev_profile(bed->mrc, EV, &ev,
		MRC_CTL_EV_PROFILE_STATE | MRC_CTL_EV_PROFILE_MODE | MRC_CTL_EV_PROFILE_FMT_ID | MRC_CTL_EV_PROFILE_COUNT |
		MRC_CTL_EV_PROFILE_MIN_ACTIVE) == 0);
	for (int i = 0; i < VALUES; i++)
		operate(bed, MRC_CTL_EV_OP_REPLACE_EV, i, MRC_CTL_EV_GOOD);
	NEED(set_state(bed, EV, MRC_CTL_PROFILE_ONLINE) == 0);
}

static void connect_to(struct mrc_qp *qp, struct bed *there, struct mrc_qp *peer, uint64_t profile)
{
	struct ibv_qp_attr attr = attributes(there, peer);

	NEED(init_over(there, qp, profile) == 0);
	NEED(step(qp, &attr, IBV_QPS_RTR, TO_RTR) == 0 && step(qp, &attr, IBV_QPS_RTS, TO_RTS) == 0);
}

/* Writes to all peers at the same time. */
static void write_to_all(struct bed *bed, struct mrc_qp **qps, struct bed *peers, int round)
{
	struct ibv_send_wr *bad;
	struct ibv_wc wc[PEERS];

	for (int i = 0; i < BYTES; i++)
		bed->memory[i] = (char)(i * 13 + round);
	for (int i = 0; i < PEERS; i++) {
		struct ibv_sge sge;
		struct ibv_send_wr wr = write_of(bed, &sge, 0, 0, BYTES);

		wr.wr_id = (uint64_t)i;
		wr.wr.rdma.remote_addr = (uintptr_t)peers[i].memory;
		wr.wr.rdma.rkey = peers[i].mr->rkey;
		CHECK(mrc_post_send(qps[i], &wr, &bad) == 0);
	}
	NEED(poll_for(bed->cq, wc, PEERS) == PEERS);
	for (int i = 0; i < PEERS; i++) {
		CHECK(wc[i].status == IBV_WC_SUCCESS);
		CHECK(memcmp(bed->memory, peers[i].memory, BYTES) == 0);
	}
}

int main(void)
{
	struct bed bed, peers[PEERS];
	struct mrc_qp *qps[PEERS];

	open_bed(&bed);
	profiles_online(&bed);
	for (int i = 0; i < PEERS; i++) {
		open_bed_on(&peers[i], i + 1);
		NEED((qps[i] = make_qp(&bed)));
		connect_to(qps[i], &peers[i], peers[i].a, EV);
		connect_to(peers[i].a, &bed, qps[i], 0);
	}
	write_to_all(&bed, qps, peers, 0);

	/* One value is left to them. */
	for (int i = 1; i < VALUES; i++)
		operate(&bed, MRC_CTL_EV_OP_MODIFY_EV_STATE, i, MRC_CTL_EV_DENIED);
	write_to_all(&bed, qps, peers, 1);

	/* The profile is in use until the last of them is gone. */
	for (int i = 0; i < PEERS; i++) {
		M1_FAILS(set_state(&bed, EV, MRC_CTL_PROFILE_OFFLINE), EBUSY);
		CHECK(mrc_destroy_qp(qps[i]) == 0);
	}
	for (double until = now() + 10; set_state(&bed, EV, MRC_CTL_PROFILE_OFFLINE) != 0;)
		NEED(errno == EBUSY && now() < until);
	for (int i = 0; i < PEERS; i++)
		close_bed(&peers[i]);
	close_bed(&bed);
	return failures != 0;
}
