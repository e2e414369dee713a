/* A client in the manner of a vendor's example: two processes that meet over TCP and send each other messages with
 * immediate, sleeping on completion events in between. Written from the interface's description alone; C and C++. */
#include <errno.h>
#include <mrc.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(what)                                                                                                    \
	do {                                                                                                               \
		if (!(what)) {                                                                                                 \
			fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #what, strerror(errno));                            \
			exit(1);                                                                                                   \
		}                                                                                                              \
	} while (0)

#define ITERATIONS 300
#define SIZE 4096
#define RECEIVES 100

struct destination {
	uint32_t qpn, psn, rkey;
	uint64_t address;
	union ibv_gid gid;
};

struct pingpong {
	struct ibv_context *context;
	struct mrc_context *mrc;
	struct mrc_comp_channel *channel;
	struct ibv_pd *pd;
	struct ibv_mr *mr;
	struct mrc_cq *cq;
	struct mrc_qp *qp;
	char *buffer; /* half for sending, half for receiving */
	int fd; /* of the channel */
};

static void open_pingpong(struct pingpong *pp, const char *name)
{
	struct ibv_device **list, *device = NULL;
	struct mrc_device_attr attr;
	struct mrc_qp_init_attr init;
	int supported;

	CHECK((list = ibv_get_device_list(NULL)) != NULL);
	for (int i = 0; list[i]; i++)
		if (!strcmp(ibv_get_device_name(list[i]), name))
			device = list[i];
	CHECK(device && (pp->context = ibv_open_device(device)) != NULL);
	ibv_free_device_list(list);
	CHECK(mrc_query_device(pp->context, &attr, &supported) == 0 && supported);
	CHECK((pp->mrc = mrc_create_context(pp->context, NULL)) != NULL);
	CHECK(mrc_create_comp_channel(pp->mrc, &pp->channel) == 0);
	CHECK(mrc_get_comp_channel_fd(pp->channel, &pp->fd) == 0);
	CHECK((pp->pd = ibv_alloc_pd(pp->context)) != NULL);
	CHECK((pp->buffer = (char *)calloc(2, SIZE)) != NULL);
	CHECK((pp->mr = ibv_reg_mr(pp->pd, pp->buffer, 2 * SIZE, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE)) != NULL);
	CHECK((pp->cq = mrc_create_cq(pp->mrc, RECEIVES + 1, pp, pp->channel, 0)) != NULL);
	memset(&init, 0, sizeof init);
	init.send_cq = init.recv_cq = pp->cq, init.pd = pp->pd, init.qp_context = pp;
	init.cap.max_send_wr = 1, init.cap.max_recv_wr = RECEIVES, init.cap.max_send_sge = init.cap.max_recv_sge = 1;
	init.sq_sig_all = 1, init.protocol_version = MRC_PROTOCOL_VERSION_1;
	CHECK((pp->qp = mrc_create_qp(pp->mrc, &init)) != NULL && init.cap.max_recv_wr >= RECEIVES);
}

static void post_receives(struct pingpong *pp, int count)
{
	struct ibv_recv_wr *bad, wr;

	memset(&wr, 0, sizeof wr);
	wr.wr_id = 1;
	while (count-- > 0)
		CHECK(mrc_post_recv(pp->qp, &wr, &bad) == 0);
}

static void connect_pingpong(struct pingpong *pp, const struct destination *mine, const struct destination *peer)
{
	struct ibv_qp_attr attr;
	struct mrc_qp_attr mrc, shown_mrc;
	struct mrc_qp_init_attr shown_init;

	memset(&attr, 0, sizeof attr);
	memset(&mrc, 0, sizeof mrc);
	attr.qp_state = IBV_QPS_INIT, attr.port_num = 1, attr.qp_access_flags = IBV_ACCESS_REMOTE_WRITE;
	CHECK(mrc_modify_qp(pp->qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS, NULL, 0) == 0);
	post_receives(pp, RECEIVES);
	attr.qp_state = IBV_QPS_RTR, attr.path_mtu = IBV_MTU_1024, attr.dest_qp_num = peer->qpn, attr.rq_psn = peer->psn;
	attr.ah_attr.is_global = 1, attr.ah_attr.grh.dgid = peer->gid, attr.ah_attr.grh.sgid_index = 0;
	mrc.mpr.mpr_dest = 16, mrc.wimm.max_wimm_dest = 32;
	CHECK(mrc_modify_qp(pp->qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN, &mrc,
		MRC_QP_MPR_DEST | MRC_QP_MAX_WIMM_DEST) == 0);
	attr.qp_state = IBV_QPS_RTS, attr.sq_psn = mine->psn;
	mrc.mpr.mpr = 16, mrc.wimm.max_wimm = 32, mrc.timeout = 16, mrc.retry.linear_cnt = 7, mrc.retry.exp_cnt = 3;
	CHECK(mrc_modify_qp(pp->qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN, &mrc,
		MRC_QP_MPR | MRC_QP_MAX_WIMM | MRC_QP_TIMEOUT | MRC_QP_RETRY_CNT) == 0);
	CHECK(mrc_query_qp(pp->qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN, &shown_mrc, MRC_QP_MPR | MRC_QP_TIMEOUT, &shown_init) == 0);
	CHECK(attr.qp_state == IBV_QPS_RTS && attr.sq_psn == mine->psn && shown_mrc.mpr.mpr == 16 && shown_mrc.timeout == 16);
	CHECK(shown_init.qp_context == pp && shown_init.sq_sig_all);
}

static void post_message(struct pingpong *pp, const struct destination *peer, int round)
{
	struct ibv_send_wr *bad, wr;
	struct ibv_sge sge;

	memset(&wr, 0, sizeof wr);
	memset(pp->buffer, round & 0x7F, SIZE);
	sge.addr = (uintptr_t)pp->buffer, sge.length = SIZE, sge.lkey = pp->mr->lkey;
	wr.wr_id = 2, wr.sg_list = &sge, wr.num_sge = 1;
	wr.opcode = IBV_WR_RDMA_WRITE_WITH_IMM, wr.send_flags = IBV_SEND_SOLICITED, wr.imm_data = htonl((uint32_t)round);
	wr.wr.rdma.remote_addr = peer->address + SIZE, wr.wr.rdma.rkey = peer->rkey;
	CHECK(mrc_post_send(pp->qp, &wr, &bad) == 0);
}

static void run(struct pingpong *pp, const struct destination *peer, int client)
{
	int sent = 0, received = 0, may_send = 1, events = 0, posted = RECEIVES;

	CHECK(mrc_req_notify_cq(pp->cq, 0) == 0);
	if (client)
		post_message(pp, peer, sent++), may_send = 0;
	while (received < ITERATIONS || sent < ITERATIONS || !may_send) {
		struct pollfd ready;
		struct mrc_cq *cq;
		struct ibv_wc wc[2];
		void *context;
		int n;

		ready.fd = pp->fd, ready.events = POLLIN, ready.revents = 0;
		CHECK(poll(&ready, 1, 30000) == 1);
		CHECK(mrc_get_cq_event(pp->channel, &cq, &context) == 0 && cq == pp->cq && context == pp);
		if (++events == 50)
			mrc_ack_cq_events(pp->cq, 50), events = 0;
		CHECK(mrc_req_notify_cq(pp->cq, 0) == 0);
		do {
			CHECK((n = mrc_poll_cq(pp->cq, 2, wc)) >= 0);
			for (int i = 0; i < n; i++) {
				CHECK(wc[i].status == IBV_WC_SUCCESS);
				if (wc[i].wr_id == 2) {
					may_send = 1;
					continue;
				}
				CHECK(wc[i].opcode == IBV_WC_RECV_RDMA_WITH_IMM && wc[i].byte_len == SIZE);
				CHECK(ntohl(wc[i].imm_data) == (uint32_t)received);
				CHECK(pp->buffer[SIZE] == (received & 0x7F) && pp->buffer[2 * SIZE - 1] == (received & 0x7F));
				received++;
				if (--posted <= 1)
					post_receives(pp, RECEIVES - posted), posted = RECEIVES;
			}
			/* The answer to each message; the client is one ahead. */
			if (may_send && sent < ITERATIONS && sent < received + client)
				post_message(pp, peer, sent++), may_send = 0;
		} while (n > 0);
	}
	mrc_ack_cq_events(pp->cq, (unsigned int)events);
}

static void close_pingpong(struct pingpong *pp)
{
	CHECK(mrc_destroy_qp(pp->qp) == 0 && mrc_destroy_cq(pp->cq) == 0);
	CHECK(mrc_destroy_comp_channel(pp->channel) == 0 && ibv_dereg_mr(pp->mr) == 0 && ibv_dealloc_pd(pp->pd) == 0);
	CHECK(mrc_destroy_context(pp->mrc) == 0 && ibv_close_device(pp->context) == 0);
	free(pp->buffer);
}

int main(int argc, char **argv)
{
	struct sockaddr_in address;
	struct destination mine, peer;
	struct pingpong pp;
	socklen_t size = sizeof address;
	int listener = socket(AF_INET, SOCK_STREAM, 0), meeting, status;
	char end = 1;

	memset(&address, 0, sizeof address);
	address.sin_family = AF_INET, address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	CHECK(bind(listener, (struct sockaddr *)&address, sizeof address) == 0 && listen(listener, 1) == 0);
	CHECK(getsockname(listener, (struct sockaddr *)&address, &size) == 0);
	pid_t child = fork();
	CHECK(child >= 0);
	if (child) {
		CHECK((meeting = accept(listener, NULL, NULL)) >= 0);
	} else {
		meeting = socket(AF_INET, SOCK_STREAM, 0);
		CHECK(connect(meeting, (struct sockaddr *)&address, sizeof address) == 0);
	}
	memset(&pp, 0, sizeof pp);
	memset(&mine, 0, sizeof mine);
	open_pingpong(&pp, argc > 1 ? argv[1] : "mrc0");
	CHECK(mrc_get_qpn(pp.qp, &mine.qpn) == 0 && ibv_query_gid(pp.context, 1, 0, &mine.gid) == 0);
	mine.psn = (uint32_t)getpid() & 0xFFFFFF, mine.rkey = pp.mr->rkey, mine.address = (uintptr_t)pp.buffer;
	CHECK(write(meeting, &mine, sizeof mine) == sizeof mine);
	CHECK(recv(meeting, &peer, sizeof peer, MSG_WAITALL) == sizeof peer);
	connect_pingpong(&pp, &mine, &peer);
	CHECK(write(meeting, &end, 1) == 1 && read(meeting, &end, 1) == 1);
	run(&pp, &peer, child == 0);
	CHECK(write(meeting, &end, 1) == 1 && read(meeting, &end, 1) == 1);
	close_pingpong(&pp);
	if (child == 0)
		_exit(0);
	CHECK(waitpid(child, &status, 0) == child && status == 0);
	return 0;
}
