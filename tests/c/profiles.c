/* Carries out operations on profiles, one per line of standard input, and prints what each gives: the errno value, then
 * what a query shows. tests/control/test_profiles.py drives the same operations through Python. -1: not given. */
#include "check.h"

#include <inttypes.h>

#define QPS 3
#define MOST 600

static struct bed bed;
static struct mrc_qp *qps[QPS];

static long number(void)
{
	const char *word = strtok(NULL, " \n");

	NEED(word);
	return strtol(word, NULL, 0);
}

static struct mrc_ctl_ev ev_of(void)
{
	struct mrc_ctl_ev ev = MRC_CTL_EV_UNPOPULATED;
	long value = number(), port = number();

	if (value >= 0) {
		ev.val[0] = (uint8_t)(value >> 8), ev.val[1] = (uint8_t)value;
		ev.port = (uint8_t)port;
	}
	return ev;
}

/* Sets a member and its bit of the mask if the next number is given. */
#define TAKE(member, type, bit)                                                                                        \
	do {                                                                                                               \
		long given = number();                                                                                         \
		if (given >= 0) {                                                                                              \
			(member) = (type)given;                                                                                    \
			mask |= (int)(bit);                                                                                        \
		}                                                                                                              \
	} while (0)

static int format(uint64_t id)
{
	struct mrc_ctl_ev_fmt_field fields[16];
	struct mrc_ctl_ev_fmt_profile_attr attr;
	int mask = 0;

	memset(&attr, 0, sizeof attr);
	TAKE(attr.profile_state, enum mrc_ctl_profile_state, MRC_CTL_EV_FMT_PROFILE_STATE);
	TAKE(attr.ev_fmt_mode, enum mrc_ctl_ev_fmt_mode, MRC_CTL_EV_FMT_PROFILE_MODE);
	TAKE(attr.ev_fmt_op.fmt_field_count, int, MRC_CTL_EV_FMT_PROFILE_OP);
	attr.ev_fmt_op.fmt_fields = fields;
	for (int i = 0; i < attr.ev_fmt_op.fmt_field_count; i++)
		fields[i].width = (uint8_t)number();
	return mrc_ctl_modify_ev_fmt_profile(bed.mrc, id, &attr, mask);
}

static int ev(uint64_t id)
{
	struct mrc_ctl_ev_field fields[16];
	struct mrc_ctl_ev_profile_attr attr;
	int mask = 0;

	memset(&attr, 0, sizeof attr);
	TAKE(attr.profile_state, enum mrc_ctl_profile_state, MRC_CTL_EV_PROFILE_STATE);
	TAKE(attr.ev_mode, enum mrc_ctl_ev_mode, MRC_CTL_EV_PROFILE_MODE);
	TAKE(attr.ev_fmt_profile_id, uint64_t, MRC_CTL_EV_PROFILE_FMT_ID);
	TAKE(attr.ev_count, uint32_t, MRC_CTL_EV_PROFILE_COUNT);
	TAKE(attr.ev_min_active, uint32_t, MRC_CTL_EV_PROFILE_MIN_ACTIVE);
	TAKE(attr.ev_event_mask, int, MRC_CTL_EV_PROFILE_EVENT_MASK);
	TAKE(attr.ev_fields_op.field_count, int, MRC_CTL_EV_PROFILE_EV_FIELDS_OP);
	attr.ev_fields_op.fields = fields;
	for (int i = 0; i < attr.ev_fields_op.field_count; i++) {
		fields[i].width = (uint32_t)number(), fields[i].init_val = (uint32_t)number();
		fields[i].min_val = (uint32_t)number(), fields[i].max_val = (uint32_t)number();
		fields[i].mask = (uint32_t)number();
	}
	return mrc_ctl_modify_ev_profile(bed.mrc, id, &attr, mask);
}

/* The state of the entry goes back to the caller. */
static int operate(uint64_t id, enum mrc_ctl_ev_op op, struct mrc_ctl_ev_op_entry *entry)
{
	struct mrc_ctl_ev_profile_attr attr;

	memset(&attr, 0, sizeof attr);
	attr.ev_op.op = op, attr.ev_op.entries = entry, attr.ev_op.entry_count = 1;
	return mrc_ctl_modify_ev_profile(bed.mrc, id, &attr, MRC_CTL_EV_PROFILE_EV_OP);
}

static int show(uint64_t id, char *out, size_t room)
{
	static struct mrc_ctl_ev_op_entry entries[MOST];
	struct mrc_ctl_ev_profile_attr attr;
	size_t used;

	memset(&attr, 0, sizeof attr);
	attr.ev_op.op = MRC_CTL_EV_OP_QUERY_EV_ARRAY, attr.ev_op.entries = entries, attr.ev_op.entry_count = MOST;
	if (mrc_ctl_query_ev_profile(bed.mrc, id, &attr, MRC_CTL_EV_PROFILE_STATE | MRC_CTL_EV_PROFILE_MODE |
			MRC_CTL_EV_PROFILE_COUNT | MRC_CTL_EV_PROFILE_MIN_ACTIVE | MRC_CTL_EV_PROFILE_EVENT_MASK |
			MRC_CTL_EV_PROFILE_EV_OP))
		return -1;
	used = (size_t)snprintf(out, room, " %d %d %" PRIu32 " %" PRIu32 " %d", attr.profile_state, attr.ev_mode, attr.ev_count,
		attr.ev_min_active, attr.ev_event_mask);
	for (int i = 0; i < attr.ev_op.entry_count; i++)
		used += (size_t)snprintf(out + used, room - used, " %d:%d:%d", entries[i].ev.val[0] << 8 | entries[i].ev.val[1],
			entries[i].ev.port, entries[i].state);
	return 0;
}

static int cc(uint64_t id)
{
	static const char *const names[] = {NULL, "uet-1.0-nscc", "cubic"};
	struct mrc_ctl_cc_nscc_cfg config;
	struct mrc_ctl_cc_profile_attr attr;
	int mask = 0;
	long name = 0;

	memset(&attr, 0, sizeof attr), memset(&config, 0, sizeof config);
	TAKE(attr.profile_state, enum mrc_ctl_profile_state, MRC_CTL_CC_PROFILE_STATE);
	TAKE(name, long, MRC_CTL_CC_PROFILE_ALGORITHM);
	attr.algorithm = names[name];
	TAKE(config.base_rtt, uint32_t, MRC_CTL_CC_PROFILE_CONFIG);
	config.gamma = (float)number() / 10, config.max_md_jump = (float)number() / 10;
	config.qa_gate = (uint8_t)number();
	attr.cc_config = &config;
	return mrc_ctl_modify_cc_profile(bed.mrc, id, &attr, mask);
}

static int cc_state(uint64_t id, char *out, size_t room)
{
	struct mrc_ctl_cc_profile_attr attr;

	memset(&attr, 0, sizeof attr);
	if (mrc_ctl_query_cc_profile(bed.mrc, id, &attr, MRC_CTL_CC_PROFILE_STATE))
		return -1;
	snprintf(out, room, " %d", attr.profile_state);
	return 0;
}

/* A queue pair in INIT with these profiles. */
static int name_profiles(long place)
{
	struct ibv_qp_attr attr = attributes(&bed, NULL);
	struct mrc_qp_attr mrc;
	int mask = 0, error;

	memset(&mrc, 0, sizeof mrc);
	TAKE(mrc.profile.ev_profile_id, uint64_t, MRC_QP_EV_PROFILE_ID);
	TAKE(mrc.profile.cc_profile_id, uint64_t, MRC_QP_CC_PROFILE_ID);
	attr.qp_state = IBV_QPS_INIT;
	error = mrc_modify_qp(qps[place], &attr, TO_INIT, &mrc, mask);
	return error ? -1 : 0;
}

static int reset(long place)
{
	struct ibv_qp_attr attr;

	memset(&attr, 0, sizeof attr);
	return step(qps[place], &attr, IBV_QPS_RESET, IBV_QP_STATE) ? -1 : 0;
}

static int replace_qp(long place)
{
	NEED(mrc_destroy_qp(qps[place]) == 0 && (qps[place] = make_qp(&bed)));
	return 0;
}

static int carry_out(const char *what, char *out, size_t room)
{
	struct mrc_ctl_ev_op_entry entry;
	long id = number();

	memset(&entry, 0, sizeof entry);
	if (!strcmp(what, "format"))
		return format((uint64_t)id);
	if (!strcmp(what, "ev"))
		return ev((uint64_t)id);
	if (!strcmp(what, "show"))
		return show((uint64_t)id, out, room);
	if (!strcmp(what, "cc"))
		return cc((uint64_t)id);
	if (!strcmp(what, "cc_state"))
		return cc_state((uint64_t)id, out, room);
	if (!strcmp(what, "name"))
		return name_profiles(id);
	if (!strcmp(what, "reset"))
		return reset(id);
	if (!strcmp(what, "destroy"))
		return replace_qp(id);
	entry.ev = ev_of();
	if (!strcmp(what, "replace")) {
		entry.ev_new = ev_of();
		entry.state = (enum mrc_ctl_ev_state)number();
		return operate((uint64_t)id, MRC_CTL_EV_OP_REPLACE_EV, &entry);
	}
	NEED(!strcmp(what, "deny"));
	entry.state = (enum mrc_ctl_ev_state)number();
	return operate((uint64_t)id, MRC_CTL_EV_OP_MODIFY_EV_STATE, &entry);
}

int main(void)
{
	static char line[4096], out[MOST * 20];

	open_bed(&bed);
	for (int i = 0; i < QPS; i++)
		NEED((qps[i] = make_qp(&bed)));
	while (fgets(line, sizeof line, stdin)) {
		const char *what = strtok(line, " \n");

		out[0] = 0;
		errno = 0;
		printf("%d", carry_out(what, out, sizeof out) ? errno : 0);
		printf("%s\n", out);
	}
	for (int i = 0; i < QPS; i++)
		CHECK(mrc_destroy_qp(qps[i]) == 0);
	close_bed(&bed);
	return failures != 0;
}
