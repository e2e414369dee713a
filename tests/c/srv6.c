/* A controller of a device in SRv6 mode: one end of a connection between two hosts. Arguments: the role; then entropy
 * values as PORT/ADDRESS or PORT/ADDRESS/SEGMENT, or of the role "generated" fields as WIDTH:INIT:MASK:MIN:MAX. The
 * test (tests/lab/test_c_srv6.py) carries lines between both ends and breaks links in between. */
#include "check.h"

#include <arpa/inet.h>
#include <inttypes.h>

#define FMT 5
#define EV 6
#define OTHER 7
#define MOST 64
#define SIZE 100000

static struct mrc_ctl_ev values[MOST], denied;
static struct mrc_ctl_ev_field fields[MOST];
static int count, is_generated, has_segments;
static struct ibv_sge sge;
static uint64_t remote_addr;
static uint32_t remote_key, remote_qpn;
static union ibv_gid remote_gid;

static struct mrc_ctl_ev ev_of(int port, const char *address)
{
	struct mrc_ctl_ev ev = MRC_CTL_EV_UNPOPULATED;

	NEED(inet_pton(AF_INET6, address, ev.val) == 1);
	ev.port = (uint8_t)port;
	return ev;
}

static struct mrc_ctl_ev parsed(const char *text)
{
	char address[60] = "", segment[60] = "";
	struct mrc_ctl_ev ev;
	int port;

	NEED(sscanf(text, "%d/%59[^/]/%59s", &port, address, segment) >= 2);
	ev = ev_of(port, address);
	NEED(!*segment || inet_pton(AF_INET6, segment, ev.val + 16) == 1);
	has_segments |= *segment != 0;
	return ev;
}

static struct mrc_ctl_ev_field field_of(const char *text)
{
	struct mrc_ctl_ev_field field;

	NEED(sscanf(text, "%" SCNu32 ":%" SCNx32 ":%" SCNx32 ":%" SCNx32 ":%" SCNx32, &field.width, &field.init_val,
		&field.mask, &field.min_val, &field.max_val) == 5);
	return field;
}

static void tell(const char *what)
{
	printf("%s\n", what);
	fflush(stdout);
}

/* The next line of the test. */
static const char *hear(void)
{
	static char line[200];

	NEED(fgets(line, sizeof line, stdin));
	line[strcspn(line, "\n")] = 0;
	return line;
}

static int set_format(struct bed *bed, enum mrc_ctl_profile_state state, int mask)
{
	struct mrc_ctl_ev_fmt_field of_format[MOST] = {{128}, {128}};
	struct mrc_ctl_ev_fmt_profile_attr fmt;

	memset(&fmt, 0, sizeof fmt);
	fmt.profile_state = state, fmt.ev_fmt_mode = MRC_CTL_EV_FMT_MODE_SRV6;
	fmt.ev_fmt_op.fmt_fields = of_format, fmt.ev_fmt_op.fmt_field_count = is_generated ? count : has_segments ? 2 : 1;
	for (int i = 0; is_generated && i < count; i++)
		of_format[i].width = (uint8_t)fields[i].width;
	return mrc_ctl_modify_ev_fmt_profile(bed->mrc, FMT, &fmt, MRC_CTL_EV_FMT_PROFILE_STATE | mask);
}

static int begin(struct bed *bed, uint64_t id, enum mrc_ctl_ev_mode mode, int n)
{
	struct mrc_ctl_ev_profile_attr attr;

	memset(&attr, 0, sizeof attr);
	attr.profile_state = MRC_CTL_PROFILE_OFFLINE, attr.ev_mode = mode, attr.ev_fmt_profile_id = FMT;
	attr.ev_count = (uint32_t)n, attr.ev_event_mask = MRC_CTL_EV_GOOD | MRC_CTL_EV_ASSUMED_BAD;
	return mrc_ctl_modify_ev_profile(bed->mrc, id, &attr, MRC_CTL_EV_PROFILE_STATE | MRC_CTL_EV_PROFILE_MODE |
			MRC_CTL_EV_PROFILE_FMT_ID | MRC_CTL_EV_PROFILE_COUNT | MRC_CTL_EV_PROFILE_EVENT_MASK);
}

static int operate(struct bed *bed, uint64_t id, enum mrc_ctl_ev_op op, struct mrc_ctl_ev_op_entry *entries, int n)
{
	struct mrc_ctl_ev_profile_attr attr;

	memset(&attr, 0, sizeof attr);
	attr.ev_op.op = op, attr.ev_op.entries = entries, attr.ev_op.entry_count = n;
	return mrc_ctl_modify_ev_profile(bed->mrc, id, &attr, MRC_CTL_EV_PROFILE_EV_OP);
}

static int populate(struct bed *bed, uint64_t id, const struct mrc_ctl_ev *evs, int n)
{
	struct mrc_ctl_ev_op_entry entries[MOST];

	memset(entries, 0, sizeof entries);
	for (int i = 0; i < n; i++)
		entries[i].ev_new = evs[i];
	return operate(bed, id, MRC_CTL_EV_OP_REPLACE_EV, entries, n);
}

static int state_of(struct bed *bed, struct mrc_ctl_ev ev)
{
	struct mrc_ctl_ev_op_entry entry = {.ev = ev};

	NEED(operate(bed, EV, MRC_CTL_EV_OP_QUERY_EV_STATE, &entry, 1) == 0);
	return (int)entry.state;
}

/* The device draws four values within the fields' bounds. */
static void generate(struct bed *bed)
{
	struct mrc_ctl_ev_op_entry entries[4];
	struct mrc_ctl_ev_profile_attr attr;

	NEED(begin(bed, EV, MRC_CTL_EV_MODE_GEN, 4) == 0);
	memset(&attr, 0, sizeof attr);
	attr.ev_fields_op.op = MRC_CTL_EV_FIELDS_OP_MODIFY_FIELDS;
	attr.ev_fields_op.fields = fields, attr.ev_fields_op.field_count = count;
	NEED(mrc_ctl_modify_ev_profile(bed->mrc, EV, &attr, MRC_CTL_EV_PROFILE_EV_FIELDS_OP) == 0);
	NEED(set_state(bed, EV, MRC_CTL_PROFILE_ONLINE) == 0);
	NEED(operate(bed, EV, MRC_CTL_EV_OP_QUERY_EV_ARRAY, entries, 4) == 0);
	printf("values");
	for (int i = 0; i < 4; i++)
		printf(" %02x%02x%02x%02x", entries[i].ev.val[0], entries[i].ev.val[1], entries[i].ev.val[2], entries[i].ev.val[3]);
	tell("");
}

static void make_profile(struct bed *bed)
{
	struct mrc_ctl_device_attr device;

	CHECK(mrc_ctl_query_device(bed->device, &device) == 0);
	CHECK(device.ev.ev_fmt_mode_mask == MRC_CTL_EV_FMT_MODE_SRV6 && device.ev.ev_max_width == 256);
	CHECK(device.ev.ev_mode_mask == (MRC_CTL_EV_MODE_EXP | MRC_CTL_EV_MODE_GEN));
	NEED(set_format(bed, MRC_CTL_PROFILE_OFFLINE, MRC_CTL_EV_FMT_PROFILE_MODE | MRC_CTL_EV_FMT_PROFILE_OP) == 0);
	NEED(set_format(bed, MRC_CTL_PROFILE_ONLINE, 0) == 0);
	if (is_generated) {
		generate(bed);
		return;
	}
	NEED(begin(bed, EV, MRC_CTL_EV_MODE_EXP, count) == 0);
	NEED(populate(bed, EV, values, count) == 0);
	NEED(set_state(bed, EV, MRC_CTL_PROFILE_ONLINE) == 0);
}

/* What is wrong with a value is found when it is given. */
static void refuse(struct bed *bed)
{
	struct mrc_ctl_ev_field wide[9];
	struct mrc_ctl_ev_profile_attr attr;
	struct mrc_ctl_ev bad = values[0];

	M1_FAILS(begin(bed, OTHER, MRC_CTL_EV_MODE_AUTO, 2), EOPNOTSUPP);
	NEED(begin(bed, OTHER, MRC_CTL_EV_MODE_EXP, 2) == 0);
	for (int i = 0; i < 3; i++) {
		static const char *const addresses[] = {"ff02::1", "::", "::1"};

		bad = ev_of(1, addresses[i]);
		M1_FAILS(populate(bed, OTHER, &bad, 1), EINVAL);
	}
	bad = values[0], bad.port = 3;
	M1_FAILS(populate(bed, OTHER, &bad, 1), EINVAL);
	/* The format has no room for a segment. */
	bad = values[0], bad.val[31] = 1;
	M1_FAILS(populate(bed, OTHER, &bad, 1), EINVAL);
	M1_FAILS(set_state(bed, OTHER, MRC_CTL_PROFILE_ONLINE), EINVAL);
	memset(&attr, 0, sizeof attr);
	for (int i = 0; i < 9; i++)
		wide[i] = (struct mrc_ctl_ev_field){.width = 32, .mask = 0xFFFFFFFF};
	attr.ev_fields_op.op = MRC_CTL_EV_FIELDS_OP_MODIFY_FIELDS;
	attr.ev_fields_op.fields = wide, attr.ev_fields_op.field_count = 9;
	M1_FAILS(mrc_ctl_modify_ev_profile(bed->mrc, OTHER, &attr, MRC_CTL_EV_PROFILE_EV_FIELDS_OP), E2BIG);
}

static int to_rtr(struct bed *bed, struct mrc_qp *qp)
{
	struct ibv_qp_attr attr = attributes(bed, NULL);

	attr.dest_qp_num = remote_qpn, attr.ah_attr.grh.dgid = remote_gid, attr.path_mtu = IBV_MTU_1024;
	return step(qp, &attr, IBV_QPS_RTR, TO_RTR);
}

static void connect_to_peer(struct bed *bed)
{
	struct ibv_qp_attr attr = attributes(bed, NULL);
	struct mrc_qp_attr shown;
	char address[INET6_ADDRSTRLEN], theirs[INET6_ADDRSTRLEN];
	uint32_t qpn;

	NEED(mrc_get_qpn(bed->a, &qpn) == 0 && inet_ntop(AF_INET6, bed->gid.raw, address, sizeof address));
	printf("me %u %" PRIu64 " %u %s\n", qpn, (uint64_t)(uintptr_t)bed->memory, bed->mr->rkey, address);
	fflush(stdout);
	NEED(sscanf(hear(), "%u %" SCNu64 " %u %45s", &remote_qpn, &remote_addr, &remote_key, theirs) == 4);
	NEED(inet_pton(AF_INET6, theirs, remote_gid.raw) == 1);
	NEED(init_over(bed, bed->a, EV) == 0 && to_rtr(bed, bed->a) == 0);
	NEED(step(bed->a, &attr, IBV_QPS_RTS, TO_RTS) == 0);
	CHECK(mrc_query_qp(bed->a, &attr, 0, &shown, MRC_QP_EV_PROFILE_ID, NULL) == 0 && shown.profile.ev_profile_id == EV);
	tell("connected");
}

static void write_once(struct bed *bed)
{
	struct ibv_send_wr *bad, wr = write_of(bed, &sge, 0, 0, SIZE);
	struct ibv_wc wc;

	wr.wr.rdma.remote_addr = remote_addr + MEMORY / 2, wr.wr.rdma.rkey = remote_key;
	NEED(mrc_post_send(bed->a, &wr, &bad) == 0);
	NEED(poll_for(bed->cq, &wc, 1) == 1 && wc.status == IBV_WC_SUCCESS);
}

/* Writes until a value gets into this state, which an event says. */
static void write_until(struct bed *bed, struct mrc_cq *cq, struct mrc_ctl_ev ev, enum mrc_ctl_ev_state state)
{
	struct mrc_ctl_ev_event event;
	double until = now() + 60;
	int found = 0;

	while (!found) {
		NEED(now() < until);
		write_once(bed);
		while (mrc_ctl_poll_ev_event(cq, 1, &event) == 1) {
			CHECK(event.profile_id == EV && event.drop_count == 0);
			found |= event.state == state && memcmp(&event.ev, &ev, sizeof ev) == 0;
		}
	}
}

static void probe(struct bed *bed)
{
	struct mrc_ctl_ep_req req;
	struct mrc_ctl_ep_rsp rsp;
	int answers = -1;

	memset(&req, 0, sizeof req);
	req.req_id = 1, req.sgid = bed->gid, req.dgid = remote_gid;
	req.ev_fmt_mode = MRC_CTL_EV_FMT_MODE_SRV6, req.req_ev = values[1];
	CHECK(mrc_ctl_ep_batch_send_wait(bed->mrc, 0, MRC_CTL_EP_OP_EV_PROBE, &req, 1, 2000000000, &rsp, &answers) == 0);
	CHECK(answers == 1 && rsp.rtt > 0);
}

/* A profile of which no path has a route is refused to the queue pair that would use it. */
static void no_route(struct bed *bed)
{
	struct mrc_ctl_ev evs[2] = {ev_of(1, "2001:db8::1"), ev_of(2, "2001:db8::2")};

	NEED(populate(bed, OTHER, evs, 2) == 0 && set_state(bed, OTHER, MRC_CTL_PROFILE_ONLINE) == 0);
	NEED(init_over(bed, bed->b, OTHER) == 0);
	E0_FAILS(to_rtr(bed, bed->b), ENETUNREACH);
	/* From the step that names it on, a queue pair holds a profile. */
	M1_FAILS(set_state(bed, OTHER, MRC_CTL_PROFILE_OFFLINE), EBUSY);
	CHECK(step(bed->b, &(struct ibv_qp_attr){0}, IBV_QPS_RESET, IBV_QP_STATE) == 0);
	CHECK(set_state(bed, OTHER, MRC_CTL_PROFILE_OFFLINE) == 0);
	E0_FAILS(init_over(bed, bed->b, OTHER), EINVAL);
	/* With the other profile it shares the paths of the first queue pair. */
	CHECK(init_over(bed, bed->b, EV) == 0 && to_rtr(bed, bed->b) == 0);
}

static void write_some(struct bed *bed)
{
	hear();
	for (int i = 0; i < 50; i++)
		write_once(bed);
	tell("written");
}

static void write_to_peer(struct bed *bed, struct mrc_cq *cq)
{
	struct mrc_ctl_ev_op_entry deny = {.state = MRC_CTL_EV_DENIED};
	struct mrc_ctl_ev cut;

	write_some(bed);
	probe(bed);
	/* A link is cut. */
	cut = parsed(hear());
	write_until(bed, cq, cut, MRC_CTL_EV_ASSUMED_BAD);
	tell("condemned");
	/* It is repaired. */
	hear();
	write_until(bed, cq, cut, MRC_CTL_EV_GOOD);
	tell("good");
	write_some(bed);
	denied = deny.ev = parsed(hear());
	CHECK(operate(bed, EV, MRC_CTL_EV_OP_MODIFY_EV_STATE, &deny, 1) == 0 && state_of(bed, denied) == MRC_CTL_EV_DENIED);
	tell("denied");
	/* Packets are counted from here ... */
	write_some(bed);
	/* ... to here. */
	hear();
}

static void end(struct bed *bed)
{
	no_route(bed);
	M1_FAILS(set_state(bed, EV, MRC_CTL_PROFILE_OFFLINE), EBUSY);
	M1_FAILS(set_format(bed, MRC_CTL_PROFILE_OFFLINE, 0), EBUSY);
	CHECK(mrc_destroy_qp(bed->a) == 0);
	M1_FAILS(set_state(bed, EV, MRC_CTL_PROFILE_OFFLINE), EBUSY);
	CHECK(step(bed->b, &(struct ibv_qp_attr){0}, IBV_QPS_RESET, IBV_QP_STATE) == 0);
	CHECK(set_state(bed, EV, MRC_CTL_PROFILE_OFFLINE) == 0);
	/* What was denied stays denied for the next queue pair. */
	CHECK(set_state(bed, EV, MRC_CTL_PROFILE_ONLINE) == 0 && state_of(bed, denied) == MRC_CTL_EV_DENIED);
	NEED((bed->a = make_qp(bed)));
}

int main(int argc, char **argv)
{
	struct mrc_cq *cq;
	struct bed bed;
	const char *role;

	NEED(argc > 2 && argc - 2 <= MOST);
	role = argv[1];
	is_generated = strcmp(role, "generated") == 0;
	for (count = 0; count < argc - 2; count++) {
		if (is_generated)
			fields[count] = field_of(argv[count + 2]);
		else
			values[count] = parsed(argv[count + 2]);
	}
	open_bed(&bed);
	NEED((cq = mrc_ctl_create_ev_event_cq(bed.mrc, 256, NULL, NULL, 0)));
	make_profile(&bed);
	for (int i = 0; i < SIZE; i++)
		bed.memory[i] = (char)(i % 251);
	if (strcmp(role, "client") == 0)
		refuse(&bed);
	connect_to_peer(&bed);
	if (strcmp(role, "generated") == 0 || strcmp(role, "writer") == 0) {
		write_some(&bed);
	} else if (strcmp(role, "client") == 0) {
		write_to_peer(&bed, cq);
		end(&bed);
	} else {
		hear();
		for (int i = 0; i < SIZE; i++)
			NEED(bed.memory[MEMORY / 2 + i] == (char)(i % 251));
	}
	CHECK(mrc_destroy_cq(cq) == 0);
	close_bed(&bed);
	return failures != 0;
}
