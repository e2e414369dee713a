/* A controller of a device with structured entropy values (STEV), which need IPv6, and one plane: profiles of every mode,
 * and traffic over each. */
#include "check.h"
#include <arpa/inet.h>
#include <sys/socket.h>
#include <unistd.h>

#define FMT 3
#define EV 4
#define COUNT 16

static struct mrc_ctl_ev value_of(uint32_t value)
{
	struct mrc_ctl_ev ev = MRC_CTL_EV_UNPOPULATED;

	for (int i = 0; i < 4; i++)
		ev.val[i] = (uint8_t)(value >> (24 - 8 * i));
	ev.port = 1;
	return ev;
}

/* The values of an explicit profile. The first ones have no bits for the source port, as the published samples. */
static uint32_t explicit_value(int i)
{
	return i < 4 ? (uint32_t)i << 16 : 0xA1B2C301u + (uint32_t)i;
}

static void format_online(struct bed *bed)
{
	struct mrc_ctl_ev_fmt_field fields[] = {{.width = 4}, {.width = 8}, {.width = 12}, {.width = 8}};
	struct mrc_ctl_ev_fmt_profile_attr attr;
	struct mrc_ctl_device_attr device;
	int state = MRC_CTL_EV_FMT_PROFILE_STATE, mode = MRC_CTL_EV_FMT_PROFILE_MODE, op = MRC_CTL_EV_FMT_PROFILE_OP;

	CHECK(mrc_ctl_query_device(bed->device, &device) == 0);
	CHECK(device.ev.ev_fmt_mode_mask == MRC_CTL_EV_FMT_MODE_STEV && device.ev.ev_max_width == 32);
	memset(&attr, 0, sizeof attr);
	attr.profile_state = MRC_CTL_PROFILE_OFFLINE;
	attr.ev_fmt_op.op = MRC_CTL_EV_FMT_OP_MODIFY_FIELDS;
	attr.ev_fmt_op.fmt_fields = fields, attr.ev_fmt_op.fmt_field_count = 4;
	attr.ev_fmt_mode = MRC_CTL_EV_FMT_MODE_UDP;
	M1_FAILS(mrc_ctl_modify_ev_fmt_profile(bed->mrc, FMT, &attr, state | mode | op), EOPNOTSUPP);
	attr.ev_fmt_mode = MRC_CTL_EV_FMT_MODE_SRV6;
	M1_FAILS(mrc_ctl_modify_ev_fmt_profile(bed->mrc, FMT, &attr, state | mode | op), EOPNOTSUPP);
	attr.ev_fmt_mode = MRC_CTL_EV_FMT_MODE_STEV;
	fields[3].width = 9;
	M1_FAILS(mrc_ctl_modify_ev_fmt_profile(bed->mrc, FMT, &attr, state | mode | op), E2BIG);
	fields[3].width = 8;
	NEED(mrc_ctl_modify_ev_fmt_profile(bed->mrc, FMT, &attr, state | mode | op) == 0);
	attr.profile_state = MRC_CTL_PROFILE_ONLINE;
	NEED(mrc_ctl_modify_ev_fmt_profile(bed->mrc, FMT, &attr, state) == 0);
}

static void profile_online(struct bed *bed, enum mrc_ctl_ev_mode mode)
{
	struct mrc_ctl_ev_field fields[] = {{.width = 4, .init_val = 9}, {.width = 8, .mask = 0xFF},
		{.width = 12, .mask = 0xFFF}, {.width = 8, .mask = 0xFF, .min_val = 1, .max_val = 4}};
	struct mrc_ctl_ev_op_entry entries[COUNT];
	struct mrc_ctl_ev_profile_attr attr;
	int mask = MRC_CTL_EV_PROFILE_STATE | MRC_CTL_EV_PROFILE_MODE | MRC_CTL_EV_PROFILE_FMT_ID | MRC_CTL_EV_PROFILE_COUNT |
		MRC_CTL_EV_PROFILE_MIN_ACTIVE | MRC_CTL_EV_PROFILE_EVENT_MASK;

	memset(&attr, 0, sizeof attr);
	attr.profile_state = MRC_CTL_PROFILE_OFFLINE;
	attr.ev_mode = mode, attr.ev_fmt_profile_id = FMT, attr.ev_count = COUNT, attr.ev_min_active = 2;
	attr.ev_event_mask = MRC_CTL_EV_ASSUMED_BAD;
	if (mode == MRC_CTL_EV_MODE_GEN) {
		attr.ev_fields_op.op = MRC_CTL_EV_FIELDS_OP_MODIFY_FIELDS;
		attr.ev_fields_op.fields = fields, attr.ev_fields_op.field_count = 4;
		mask |= MRC_CTL_EV_PROFILE_EV_FIELDS_OP;
	}
	NEED(mrc_ctl_modify_ev_profile(bed->mrc, EV, &attr, mask) == 0);
	memset(entries, 0, sizeof entries);
	attr.ev_op.entries = entries, attr.ev_op.entry_count = COUNT;
	if (mode == MRC_CTL_EV_MODE_EXP) {
		for (int i = 0; i < COUNT; i++)
			entries[i].ev_new = value_of(explicit_value(i));
		attr.ev_op.op = MRC_CTL_EV_OP_REPLACE_EV;
		NEED(mrc_ctl_modify_ev_profile(bed->mrc, EV, &attr, MRC_CTL_EV_PROFILE_EV_OP) == 0);
	}
	NEED(set_state(bed, EV, MRC_CTL_PROFILE_ONLINE) == 0);
	memset(entries, 0, sizeof entries);
	attr.ev_op.op = MRC_CTL_EV_OP_QUERY_EV_ARRAY;
	CHECK(mrc_ctl_query_ev_profile(bed->mrc, EV, &attr, MRC_CTL_EV_PROFILE_EV_OP) == 0 && attr.ev_op.entry_count == COUNT);
	for (int i = 0; i < COUNT; i++) {
		struct mrc_ctl_ev given = value_of(explicit_value(i));

		CHECK(entries[i].ev.port == 1);
		CHECK(entries[i].state == MRC_CTL_EV_GOOD);
		if (mode == MRC_CTL_EV_MODE_EXP)
			CHECK(memcmp(&entries[i].ev, &given, sizeof given) == 0);
		for (int j = 0; j < i; j++)
			CHECK(memcmp(&entries[i].ev, &entries[j].ev, sizeof entries[i].ev) != 0);
	}
	/* One of them is denied, and allowed again. */
	attr.ev_op.op = MRC_CTL_EV_OP_MODIFY_EV_STATE, attr.ev_op.entry_count = 1;
	entries[0].state = MRC_CTL_EV_DENIED;
	CHECK(mrc_ctl_modify_ev_profile(bed->mrc, EV, &attr, MRC_CTL_EV_PROFILE_EV_OP) == 0);
	entries[0].state = MRC_CTL_EV_GOOD, attr.ev_op.op = MRC_CTL_EV_OP_QUERY_EV_STATE;
	CHECK(mrc_ctl_query_ev_profile(bed->mrc, EV, &attr, MRC_CTL_EV_PROFILE_EV_OP) == 0);
	CHECK(entries[0].state == MRC_CTL_EV_DENIED);
	attr.ev_op.op = MRC_CTL_EV_OP_MODIFY_EV_STATE, entries[0].state = MRC_CTL_EV_GOOD;
	CHECK(mrc_ctl_modify_ev_profile(bed->mrc, EV, &attr, MRC_CTL_EV_PROFILE_EV_OP) == 0);
}

/* A source port that another program has: the profile stays OFFLINE, and a line says which port it was. */
static void port_in_use(struct bed *bed)
{
	struct sockaddr_in6 here = {.sin6_family = AF_INET6, .sin6_addr = IN6ADDR_LOOPBACK_INIT};
	socklen_t length = sizeof here;
	int taken = socket(AF_INET6, SOCK_DGRAM, 0);
	int offline = MRC_CTL_EV_PROFILE_STATE | MRC_CTL_EV_PROFILE_MODE | MRC_CTL_EV_PROFILE_FMT_ID |
		MRC_CTL_EV_PROFILE_COUNT | MRC_CTL_EV_PROFILE_MIN_ACTIVE | MRC_CTL_EV_PROFILE_EVENT_MASK;
	struct mrc_ctl_ev_op_entry entry = {.ev = MRC_CTL_EV_UNPOPULATED};
	struct mrc_ctl_ev_profile_attr attr;

	NEED(taken >= 0 && bind(taken, (struct sockaddr *)&here, sizeof here) == 0);
	NEED(getsockname(taken, (struct sockaddr *)&here, &length) == 0);
	memset(&attr, 0, sizeof attr);
	attr.profile_state = MRC_CTL_PROFILE_OFFLINE, attr.ev_mode = MRC_CTL_EV_MODE_EXP;
	attr.ev_fmt_profile_id = FMT, attr.ev_count = 1, attr.ev_min_active = 1;
	NEED(mrc_ctl_modify_ev_profile(bed->mrc, EV, &attr, offline) == 0);
	entry.ev_new = value_of(1u << 16 | ntohs(here.sin6_port));
	attr.ev_op.op = MRC_CTL_EV_OP_REPLACE_EV, attr.ev_op.entries = &entry, attr.ev_op.entry_count = 1;
	NEED(mrc_ctl_modify_ev_profile(bed->mrc, EV, &attr, MRC_CTL_EV_PROFILE_EV_OP) == 0);
	attr.profile_state = MRC_CTL_PROFILE_ONLINE;
	M1_FAILS(mrc_ctl_modify_ev_profile(bed->mrc, EV, &attr, MRC_CTL_EV_PROFILE_STATE), EADDRINUSE);
	CHECK(set_state(bed, EV, MRC_CTL_PROFILE_INIT) == 0);
	printf("%d\n", ntohs(here.sin6_port));
	close(taken);
}

static struct mrc_qp *over_profile(struct bed *bed)
{
	struct mrc_qp *qp = make_qp(bed);

	NEED(qp && init_over(bed, qp, EV) == 0);
	return qp;
}

static void traffic(struct bed *bed)
{
	struct mrc_qp *a = over_profile(bed), *b = over_profile(bed);
	struct ibv_sge sge;
	struct ibv_send_wr *bad, wr = write_of(bed, &sge, 0, MEMORY / 2, 300000);
	struct ibv_wc wc;

	for (int side = 0; side < 2; side++) {
		struct ibv_qp_attr attr = attributes(bed, side ? a : b);

		NEED(step(side ? b : a, &attr, IBV_QPS_RTR, TO_RTR) == 0 && step(side ? b : a, &attr, IBV_QPS_RTS, TO_RTS) == 0);
	}
	for (int i = 0; i < 300000; i++)
		bed->memory[i] = (char)(i * 13);
	memset(bed->memory + MEMORY / 2, 0, 300000);
	CHECK(mrc_post_send(a, &wr, &bad) == 0);
	CHECK(poll_for(bed->cq, &wc, 1) == 1 && wc.status == IBV_WC_SUCCESS);
	CHECK(memcmp(bed->memory, bed->memory + MEMORY / 2, 300000) == 0);
	M1_FAILS(set_state(bed, EV, MRC_CTL_PROFILE_OFFLINE), EBUSY);
	CHECK(mrc_destroy_qp(a) == 0 && mrc_destroy_qp(b) == 0);
}

int main(void)
{
	enum mrc_ctl_ev_mode modes[] = {MRC_CTL_EV_MODE_AUTO, MRC_CTL_EV_MODE_EXP, MRC_CTL_EV_MODE_GEN};
	struct bed bed;

	open_bed(&bed);
	format_online(&bed);
	port_in_use(&bed);
	for (int i = 0; i < 3; i++) {
		double until = now() + 10;

		profile_online(&bed, modes[i]);
		traffic(&bed);
		/* What was destroyed still answers its peer for a second. */
		while (set_state(&bed, EV, MRC_CTL_PROFILE_OFFLINE) != 0)
			NEED(errno == EBUSY && now() < until);
		NEED(set_state(&bed, EV, MRC_CTL_PROFILE_INIT) == 0);
	}
	close_bed(&bed);
	return failures != 0;
}
