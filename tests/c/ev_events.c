/* A controller is told of paths that fail and come back: the device of the test drops everything on port 2 for a while
 * (tests/c/test_interface.py). */
#include "check.h"

#include <fcntl.h>

#define FMT 5
#define EV 6
#define VALUES 8

static struct mrc_ctl_ev ev_of(unsigned int value, int port)
{
	struct mrc_ctl_ev ev;

	memset(&ev, 0, sizeof ev);
	ev.val[0] = (uint8_t)(value >> 8), ev.val[1] = (uint8_t)value;
	ev.port = (uint8_t)port;
	return ev;
}

static void make_profile(struct bed *bed)
{
	struct mrc_ctl_ev_fmt_field field = {16};
	struct mrc_ctl_ev_fmt_profile_attr fmt;
	struct mrc_ctl_ev_profile_attr ev;
	struct mrc_ctl_ev_op_entry entries[VALUES];

	memset(&fmt, 0, sizeof fmt);
	fmt.profile_state = MRC_CTL_PROFILE_OFFLINE, fmt.ev_fmt_mode = MRC_CTL_EV_FMT_MODE_UDP;
	fmt.ev_fmt_op.fmt_fields = &field, fmt.ev_fmt_op.fmt_field_count = 1;
	NEED(mrc_ctl_modify_ev_fmt_profile(bed->mrc, FMT, &fmt, MRC_CTL_EV_FMT_PROFILE_STATE | MRC_CTL_EV_FMT_PROFILE_MODE |
			MRC_CTL_EV_FMT_PROFILE_OP) == 0);
	fmt.profile_state = MRC_CTL_PROFILE_ONLINE;
	NEED(mrc_ctl_modify_ev_fmt_profile(bed->mrc, FMT, &fmt, MRC_CTL_EV_FMT_PROFILE_STATE) == 0);

	memset(&ev, 0, sizeof ev);
	ev.profile_state = MRC_CTL_PROFILE_OFFLINE, ev.ev_mode = MRC_CTL_EV_MODE_EXP, ev.ev_fmt_profile_id = FMT;
	ev.ev_count = VALUES, ev.ev_event_mask = MRC_CTL_EV_GOOD | MRC_CTL_EV_ASSUMED_BAD;
	NEED(mrc_ctl_modify_ev_profile(bed->mrc, EV, &ev, MRC_CTL_EV_PROFILE_STATE | MRC_CTL_EV_PROFILE_MODE |
			MRC_CTL_EV_PROFILE_FMT_ID | MRC_CTL_EV_PROFILE_COUNT | MRC_CTL_EV_PROFILE_EVENT_MASK) == 0);
	memset(entries, 0, sizeof entries);
	for (int i = 0; i < VALUES; i++)
		entries[i].ev_new = ev_of(51000 + (unsigned int)i, i % 2 + 1);
	ev.ev_op.op = MRC_CTL_EV_OP_REPLACE_EV, ev.ev_op.entries = entries, ev.ev_op.entry_count = VALUES;
	ev.profile_state = MRC_CTL_PROFILE_ONLINE;
	NEED(mrc_ctl_modify_ev_profile(bed->mrc, EV, &ev, MRC_CTL_EV_PROFILE_EV_OP | MRC_CTL_EV_PROFILE_STATE) == 0);
}

static void connect_with_profile(struct bed *bed)
{
	struct ibv_qp_attr attr = attributes(bed, bed->b);

	NEED(init_over(bed, bed->a, EV) == 0);
	NEED(step(bed->a, &attr, IBV_QPS_RTR, TO_RTR) == 0 && step(bed->a, &attr, IBV_QPS_RTS, TO_RTS) == 0);
	connect_qp(bed, bed->b, bed->a);
}

/* Keeps writing until both kinds of events have come, or for this long. */
static void watch(struct bed *bed, struct mrc_comp_channel *channel, struct mrc_cq *cq, double seconds)
{
	struct mrc_ctl_ev_event events[4];
	struct ibv_send_wr *bad, wr;
	double until = now() + seconds;
	int bad_events = 0, good_events = 0;
	struct mrc_cq *told;
	struct ibv_sge sge;
	struct ibv_wc wc;
	void *context;

	NEED(mrc_req_notify_cq(cq, 0) == 0);
	while (now() < until && !(bad_events && good_events)) {
		wr = write_of(bed, &sge, 0, MEMORY / 2, 100000);
		NEED(mrc_post_send(bed->a, &wr, &bad) == 0);
		NEED(poll_for(bed->cq, &wc, 1) == 1 && wc.status == IBV_WC_SUCCESS);
		if (mrc_get_cq_event(channel, &told, &context) != 0)
			continue;
		CHECK(told == cq && context == bed);
		mrc_ack_cq_events(cq, 1);
		for (int n; (n = mrc_ctl_poll_ev_event(cq, 4, events)) > 0;) {
			for (int i = 0; i < n; i++) {
				unsigned int value = (unsigned int)events[i].ev.val[0] << 8 | events[i].ev.val[1];

				CHECK(events[i].profile_id == EV && events[i].ev.port == 2 && events[i].drop_count == 0);
				CHECK(value >= 51000 && value < 51000 + VALUES && value % 2 == 1);
				bad_events += events[i].state == MRC_CTL_EV_ASSUMED_BAD;
				good_events += events[i].state == MRC_CTL_EV_GOOD;
			}
		}
		NEED(mrc_req_notify_cq(cq, 0) == 0);
	}
	CHECK(bad_events > 0 && good_events > 0);
}

int main(void)
{
	struct mrc_context_attr old = {.mrc_api_version_used = MRC_API_VER(1, 0, 0)};
	struct mrc_ctl_ev_event one;
	unsigned char raw[2 * 48 + 8];
	struct mrc_comp_channel *channel;
	struct mrc_context *earlier;
	struct mrc_cq *cq, *small, *of_earlier;
	struct bed bed;
	int fd, n;

	open_bed(&bed);
	NEED(mrc_create_comp_channel(bed.mrc, &channel) == 0 && mrc_get_comp_channel_fd(channel, &fd) == 0);
	NEED(fcntl(fd, F_SETFL, O_NONBLOCK) == 0);
	NEED((cq = mrc_ctl_create_ev_event_cq(bed.mrc, 64, &bed, channel, 0)));
	/* What does not fit is counted. */
	NEED((small = mrc_ctl_create_ev_event_cq(bed.mrc, 1, NULL, NULL, 0)));
	/* A program that was compiled for version 1.0.0 has shorter events. */
	NEED((earlier = mrc_create_context(bed.device, &old)));
	NEED((of_earlier = mrc_ctl_create_ev_event_cq(earlier, 16, NULL, NULL, 0)));
	make_profile(&bed);
	connect_with_profile(&bed);
	watch(&bed, channel, cq, 10);

	CHECK(mrc_ctl_poll_ev_event(small, 1, &one) == 1 && one.drop_count == 0 && one.state == MRC_CTL_EV_ASSUMED_BAD);
	memset(raw, 0xA5, sizeof raw);
	n = mrc_ctl_poll_ev_event(of_earlier, 2, (struct mrc_ctl_ev_event *)(void *)raw);
	CHECK(n >= 1 && raw[n * 48] == 0xA5);
	for (int i = 0; i < n; i++) {
		uint64_t id;

		memcpy(&id, raw + i * 48, sizeof id);
		CHECK(id == EV && raw[i * 48 + 8 + 32] == 2);
	}
	CHECK(mrc_destroy_cq(of_earlier) == 0 && mrc_destroy_context(earlier) == 0);
	CHECK(mrc_destroy_cq(small) == 0 && mrc_destroy_cq(cq) == 0 && mrc_destroy_comp_channel(channel) == 0);
	close_bed(&bed);
	return failures != 0;
}
