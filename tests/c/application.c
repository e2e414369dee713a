/* The application interface in one process: what every function does, and how it fails. */
#include "check.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <pthread.h>
#include <unistd.h>

static void device_and_versions(struct bed *bed)
{
	struct mrc_device_attr attr;
	struct ibv_context *foreign = calloc(1, 4096);
	uint32_t version[4] = {0};
	struct mrc_context_attr newer = {.mrc_api_version_used = MRC_API_VER(1, 0, 2)};
	struct mrc_context_attr odd = {.mrc_api_version_used = 1};
	struct mrc_context_attr latest = {MRC_API_VER_LATEST, MRC_API_VER_LATEST};
	struct mrc_context *context;
	int supported = -1;

	memset(&attr, 0xA5, sizeof attr);
	CHECK(mrc_query_device(bed->device, &attr, &supported) == 0 && supported == 1);
	CHECK(attr.mrc_protocol_version == MRC_PROTOCOL_VERSION_1 && attr.wimm_attr.max_wimm == 16384);
	CHECK(attr.mpr_attr.max_mpr == 255 && attr.mpr_attr.mpr_resolution == 1 && attr.cap == 7);
	CHECK(mrc_query_device_ex(bed->device, bed->mrc, &attr, &supported) == 0 && supported == 1);
	CHECK(mrc_query_device_ex(bed->device, NULL, &attr, &supported) == 0);
	CHECK(mrc_query_device(foreign, &attr, &supported) == 0 && supported == 0 && attr.cap == 0);
	M1_FAILS(mrc_query_device(NULL, &attr, &supported), EINVAL);
	M1_FAILS(mrc_query_device(bed->device, NULL, &supported), EINVAL);
	mrc_query_version(&version[0], &version[1], &version[2], &version[3]);
	CHECK(version[0] == 0x01000001 && version[1] == 0 && version[2] == 0x01000000 && version[3] == 0);
	mrc_query_version(NULL, NULL, NULL, NULL);

	P_FAILS(mrc_create_context(foreign, NULL), EINVAL);
	P_FAILS(mrc_create_context(NULL, NULL), EINVAL);
	P_FAILS(mrc_create_context(bed->device, &newer), EOPNOTSUPP);
	CHECK((context = mrc_create_context(bed->device, &odd)) && mrc_destroy_context(context) == 0);
	CHECK((context = mrc_create_context(bed->device, &latest)) && mrc_destroy_context(context) == 0);
	M1_FAILS(mrc_destroy_context(context), EINVAL);
	free(foreign);
}

static void hints(struct bed *bed)
{
	struct mrc_qp_hint_init_attr init = {{2, 3, 4, {9}}};
	struct mrc_qp_hint_attr attr = {-1, -1, -1, {0xA5}};
	struct mrc_qp_hint *hint;

	P_FAILS(mrc_create_qp_hint(bed->mrc, NULL), EINVAL);
	NEED((hint = mrc_create_qp_hint(bed->mrc, &init)));
	CHECK(mrc_query_qp_hint(hint, &attr, MRC_QP_HINT_NUM_SEND_PEERS) == 0);
	CHECK(attr.num_send_peers == 3 && attr.num_qps_per_peer == -1);
	CHECK(mrc_query_qp_hint(hint, &attr, MRC_QP_HINT_NUM_QPS_PER_PEER | MRC_QP_HINT_VENDOR_CFG) == 0);
	CHECK(attr.num_qps_per_peer == 2 && attr.vendor_cfg[0] == 0);
	M1_FAILS(mrc_query_qp_hint(hint, &attr, 1 << 9), EINVAL);
	attr.num_remote_recv_peers = 17;
	CHECK(mrc_modify_qp_hint(hint, &attr, MRC_QP_HINT_NUM_REMOTE_RECV_PEERS) == 0);
	attr.num_remote_recv_peers = -1;
	M1_FAILS(mrc_modify_qp_hint(hint, &attr, MRC_QP_HINT_NUM_REMOTE_RECV_PEERS), EINVAL);
	CHECK(mrc_query_qp_hint(hint, &attr, MRC_QP_HINT_NUM_REMOTE_RECV_PEERS) == 0 && attr.num_remote_recv_peers == 17);
	attr.vendor_cfg[100] = 1;
	M1_FAILS(mrc_modify_qp_hint(hint, &attr, MRC_QP_HINT_VENDOR_CFG), EOPNOTSUPP);
	init.attr.num_send_peers = -1;
	P_FAILS(mrc_create_qp_hint(bed->mrc, &init), EINVAL);

	/* A queue pair keeps it. */
	struct mrc_qp *qp = make_qp(bed);
	struct ibv_qp_attr verbs = attributes(bed, NULL);
	struct mrc_qp_attr mrc;

	memset(&mrc, 0, sizeof mrc);
	mrc.qp_hint = hint;
	verbs.qp_state = IBV_QPS_INIT;
	CHECK(mrc_modify_qp(qp, &verbs, TO_INIT, &mrc, MRC_QP_HINT) == 0);
	M1_FAILS(mrc_destroy_qp_hint(hint), EBUSY);
	CHECK(mrc_destroy_qp(qp) == 0);
	CHECK(mrc_destroy_qp_hint(hint) == 0);
	M1_FAILS(mrc_destroy_qp_hint(hint), EINVAL);
}

static void queues(struct bed *bed)
{
	struct ibv_wc wc;
	struct mrc_cq *cq;

	P_FAILS(mrc_create_cq(bed->mrc, 0, NULL, NULL, 0), EINVAL);
	P_FAILS(mrc_create_cq(bed->mrc, (1 << 22) + 1, NULL, NULL, 0), EINVAL);
	P_FAILS(mrc_create_cq(bed->mrc, 1, NULL, NULL, 1), EINVAL);
	P_FAILS(mrc_create_cq(bed->mrc, 1, NULL, NULL, -1), EINVAL);
	P_FAILS(mrc_create_cq(NULL, 1, NULL, NULL, 0), EINVAL);
	NEED((cq = mrc_create_cq(bed->mrc, 1, NULL, NULL, 0)));
	CHECK(mrc_poll_cq(cq, 1, &wc) == 0 && mrc_poll_cq(cq, 0, NULL) == 0);
	M1_FAILS(mrc_poll_cq(cq, -1, &wc), EINVAL);
	M1_FAILS(mrc_poll_cq(cq, 1, NULL), EINVAL);
	M1_FAILS(mrc_poll_cq(NULL, 1, &wc), EINVAL);
	E0_FAILS(mrc_destroy_cq(bed->cq), EBUSY);
	E0_FAILS(ibv_destroy_cq((struct ibv_cq *)cq), EINVAL);
	CHECK(mrc_destroy_cq(cq) == 0);
	E0_FAILS(mrc_destroy_cq(cq), EINVAL);
	M1_FAILS(mrc_poll_cq(cq, 1, &wc), EINVAL);
}

static void queue_pair_creation(struct bed *bed)
{
	struct mrc_qp_init_attr good = {.send_cq = bed->cq, .recv_cq = bed->cq, .pd = bed->pd}, init;
	struct mrc_qp *qp;

	P_FAILS(mrc_create_qp(bed->mrc, NULL), EINVAL);
	init = good;
	CHECK((qp = mrc_create_qp(bed->mrc, &init)) && init.cap.max_send_wr >= 1 && init.cap.max_send_sge >= 1);
	CHECK(mrc_destroy_qp(qp) == 0);
	E0_FAILS(mrc_destroy_qp(qp), EINVAL);
	init = good, init.send_cq = NULL;
	P_FAILS(mrc_create_qp(bed->mrc, &init), EINVAL);
	init = good, init.pd = NULL;
	P_FAILS(mrc_create_qp(bed->mrc, &init), EINVAL);
	init = good, init.cap.max_send_wr = 32769;
	P_FAILS(mrc_create_qp(bed->mrc, &init), EINVAL);
	init = good, init.cap.max_send_sge = 17;
	P_FAILS(mrc_create_qp(bed->mrc, &init), EINVAL);
	init = good, init.send_ops_flags = 4;
	P_FAILS(mrc_create_qp(bed->mrc, &init), EOPNOTSUPP);
	init = good, init.protocol_version = (enum mrc_protocol_version)2;
	P_FAILS(mrc_create_qp(bed->mrc, &init), EOPNOTSUPP);

	struct mrc_context *other = mrc_create_context(bed->device, NULL);
	init = good;
	P_FAILS(mrc_create_qp(other, &init), EINVAL);
	CHECK(mrc_destroy_context(other) == 0);
}

static void states(struct bed *bed)
{
	struct ibv_qp_attr attr = attributes(bed, bed->b), shown;
	struct mrc_qp_attr mrc, shown_mrc;
	struct mrc_qp_init_attr init;
	struct mrc_qp *qp = make_qp(bed);
	struct ibv_send_wr *bad_send, send;
	struct ibv_recv_wr *bad_recv, recv = {.wr_id = 1};
	struct ibv_sge sge;

	memset(&mrc, 0, sizeof mrc);
	send = write_of(bed, &sge, 0, 4096, 8);
	/* RESET takes nothing. */
	E0_FAILS(mrc_post_send(qp, &send, &bad_send), EINVAL);
	CHECK(bad_send == &send);
	M1_FAILS(mrc_post_recv(qp, &recv, &bad_recv), EINVAL);
	CHECK(bad_recv == &recv);
	E0_FAILS(step(qp, &attr, IBV_QPS_RTR, TO_RTR), EINVAL);
	E0_FAILS(step(qp, &attr, IBV_QPS_SQD, IBV_QP_STATE), EINVAL);
	E0_FAILS(mrc_modify_qp(qp, NULL, IBV_QP_STATE, NULL, 0), EINVAL);
	E0_FAILS(mrc_modify_qp(qp, &attr, 0, NULL, MRC_QP_TIMEOUT), EINVAL);
	attr.pkey_index = 1;
	E0_FAILS(step(qp, &attr, IBV_QPS_INIT, TO_INIT), EINVAL);
	attr.pkey_index = 0;
	attr.cur_qp_state = IBV_QPS_RTS;
	E0_FAILS(step(qp, &attr, IBV_QPS_INIT, TO_INIT | IBV_QP_CUR_STATE), EINVAL);
	E0_FAILS(step(qp, &attr, IBV_QPS_INIT, TO_INIT | IBV_QP_QKEY), EINVAL);
	mrc.vendor_cfg[3] = 1;
	attr.qp_state = IBV_QPS_INIT;
	E0_FAILS(mrc_modify_qp(qp, &attr, TO_INIT, &mrc, MRC_QP_VENDOR_CFG), EOPNOTSUPP);
	mrc.vendor_cfg[3] = 0;
	/* Attributes of later steps come early. */
	mrc.mpr.mpr = 16, mrc.timeout = 12;
	CHECK(mrc_modify_qp(qp, &attr, TO_INIT, &mrc, MRC_QP_MPR | MRC_QP_TIMEOUT | MRC_QP_VENDOR_CFG) == 0);
	CHECK(mrc_post_recv(qp, &recv, &bad_recv) == 0);
	E0_FAILS(mrc_post_send(qp, &send, &bad_send), EINVAL);
	/* What RTR needs, one at a time. */
	int needed[] = {IBV_QP_AV, IBV_QP_PATH_MTU, IBV_QP_DEST_QPN, IBV_QP_RQ_PSN};
	for (unsigned int i = 0; i < 4; i++)
		E0_FAILS(step(qp, &attr, IBV_QPS_RTR, TO_RTR & ~needed[i]), EINVAL);
	struct ibv_qp_attr wrong = attr;
	wrong.ah_attr.is_global = 0;
	E0_FAILS(step(qp, &wrong, IBV_QPS_RTR, TO_RTR), EINVAL);
	wrong = attr, wrong.ah_attr.grh.sgid_index = 4;
	E0_FAILS(step(qp, &wrong, IBV_QPS_RTR, TO_RTR), EINVAL);
	wrong = attr, memset(&wrong.ah_attr.grh.dgid, 0, 16);
	E0_FAILS(step(qp, &wrong, IBV_QPS_RTR, TO_RTR), EINVAL);
	wrong = attr, wrong.path_mtu = (enum ibv_mtu)6;
	E0_FAILS(step(qp, &wrong, IBV_QPS_RTR, TO_RTR), EINVAL);
	wrong = attr, wrong.dest_qp_num = 1 << 24;
	E0_FAILS(step(qp, &wrong, IBV_QPS_RTR, TO_RTR), EINVAL);
	/* Too late for a hint. */
	attr.qp_state = IBV_QPS_RTR;
	E0_FAILS(mrc_modify_qp(qp, &attr, TO_RTR, &mrc, MRC_QP_HINT), EINVAL);
	/* Verbs attributes without a meaning are ignored, whatever they say. */
	attr.timeout = 99, attr.retry_cnt = 14, attr.rnr_retry = 14, attr.rq_psn = 0xFF123456;
	CHECK(step(qp, &attr, IBV_QPS_RTR, TO_RTR | IBV_QP_MIN_RNR_TIMER | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_TIMEOUT) == 0);
	E0_FAILS(step(qp, &attr, IBV_QPS_RTS, IBV_QP_STATE), EINVAL);
	mrc.timeout = 25;
	attr.qp_state = IBV_QPS_RTS;
	E0_FAILS(mrc_modify_qp(qp, &attr, TO_RTS, &mrc, MRC_QP_TIMEOUT), EINVAL);
	mrc.retry.linear_cnt = 8;
	E0_FAILS(mrc_modify_qp(qp, &attr, TO_RTS, &mrc, MRC_QP_RETRY_CNT), EINVAL);
	CHECK(step(qp, &attr, IBV_QPS_RTS, TO_RTS | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_TIMEOUT) == 0);
	mrc.timeout = 10, mrc.retry.linear_cnt = 3, mrc.retry.exp_cnt = 4;
	CHECK(mrc_modify_qp(qp, NULL, 0, &mrc, MRC_QP_TIMEOUT | MRC_QP_RETRY_CNT) == 0);
	E0_FAILS(mrc_modify_qp(qp, NULL, 0, &mrc, MRC_QP_MPR), EINVAL);

	CHECK(mrc_query_qp(qp, &shown, IBV_QP_STATE, &shown_mrc, MRC_QP_MPR, &init) == 0);
	CHECK(shown.qp_state == IBV_QPS_RTS && shown.rq_psn == 0xFF123456 && init.pd == bed->pd);
	CHECK(shown_mrc.mpr.mpr == 16 && shown_mrc.timeout == 10 && shown_mrc.retry.exp_cnt == 4 && shown_mrc.mpr.mpr_dest == 8);
	CHECK(mrc_query_qp(qp, NULL, 0, NULL, 0, NULL) == 0);
	E0_FAILS(mrc_query_qp(qp, NULL, IBV_QP_STATE, NULL, 0, NULL), EINVAL);
	E0_FAILS(mrc_query_qp(NULL, &shown, IBV_QP_STATE, NULL, 0, NULL), EINVAL);

	/* ERR flushes, RESET forgets. */
	CHECK(step(qp, &attr, IBV_QPS_ERR, IBV_QP_STATE) == 0);
	CHECK(mrc_post_send(qp, &send, &bad_send) == 0);
	struct ibv_wc wc[2];
	CHECK(poll_for(bed->cq, wc, 2) == 2);
	CHECK(wc[0].status == IBV_WC_WR_FLUSH_ERR && wc[1].status == IBV_WC_WR_FLUSH_ERR);
	CHECK(step(qp, &attr, IBV_QPS_RESET, IBV_QP_STATE) == 0);
	CHECK(mrc_query_qp(qp, &shown, IBV_QP_STATE, &shown_mrc, MRC_QP_MPR, NULL) == 0);
	CHECK(shown.qp_state == IBV_QPS_RESET && shown_mrc.mpr.mpr == 8);
	CHECK(mrc_destroy_qp(qp) == 0);
}

static void writes(struct bed *bed)
{
	struct ibv_wc wc[8];
	struct ibv_sge sge, pieces[5];
	struct ibv_send_wr wr = write_of(bed, &sge, 0, MEMORY / 2, 70000), *bad = NULL;
	struct ibv_recv_wr *bad_recv, recv = {.wr_id = 77};

	for (int i = 0; i < 70000; i++)
		bed->memory[i] = (char)(i * 31);
	wr.wr_id = 5;
	CHECK(mrc_post_send(bed->a, &wr, &bad) == 0);
	CHECK(poll_for(bed->cq, wc, 1) == 1 && wc[0].wr_id == 5 && wc[0].status == IBV_WC_SUCCESS);
	CHECK(wc[0].opcode == IBV_WC_RDMA_WRITE && wc[0].byte_len == 70000);
	CHECK(memcmp(bed->memory, bed->memory + MEMORY / 2, 70000) == 0);

	/* The bytes of the immediate travel unchanged. */
	wr.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
	memcpy(&wr.imm_data, "\x01\x02\x03\x04", 4);
	wr.num_sge = 0, wr.sg_list = NULL;
	CHECK(mrc_post_recv(bed->b, &recv, &bad_recv) == 0);
	CHECK(mrc_post_send(bed->a, &wr, &bad) == 0);
	CHECK(poll_for(bed->cq, wc, 2) == 2);
	struct ibv_wc *got = wc[0].opcode == IBV_WC_RECV_RDMA_WITH_IMM ? &wc[0] : &wc[1];
	uint32_t number_a, number_b;
	CHECK(mrc_get_qpn(bed->a, &number_a) == 0 && mrc_get_qpn(bed->b, &number_b) == 0);
	CHECK(got->opcode == IBV_WC_RECV_RDMA_WITH_IMM && got->wr_id == 77 && got->byte_len == 0);
	CHECK(got->wc_flags == IBV_WC_WITH_IMM && memcmp(&got->imm_data, "\x01\x02\x03\x04", 4) == 0);
	CHECK(got->qp_num == number_b && got->src_qp == number_a);
	M1_FAILS(mrc_get_qpn(bed->a, NULL), EINVAL);

	/* A list of segments, inline, with an empty one between. */
	memcpy(bed->memory, "abcdef", 6);
	for (int i = 0; i < 4; i++)
		pieces[i] = (struct ibv_sge){(uintptr_t)bed->memory + 2 * i, i == 1 ? 0 : 2, 0xBAD};
	wr = write_of(bed, &sge, 0, 8192, 0);
	wr.sg_list = pieces, wr.num_sge = 3, wr.send_flags |= IBV_SEND_INLINE;
	CHECK(mrc_post_send(bed->a, &wr, &bad) == 0);
	memset(bed->memory, 'x', 6);
	CHECK(poll_for(bed->cq, wc, 1) == 1 && wc[0].status == IBV_WC_SUCCESS);
	CHECK(memcmp(bed->memory + 8192, "abef", 4) == 0);

	/* A chain is posted up to the first bad request. */
	struct ibv_send_wr chain[4];
	for (int i = 0; i < 4; i++) {
		chain[i] = write_of(bed, &sge, 0, 16384, 64);
		chain[i].wr_id = 100 + (uint64_t)i;
		chain[i].next = i < 3 ? &chain[i + 1] : NULL;
	}
	enum ibv_wr_opcode lacking[] = {IBV_WR_SEND, IBV_WR_SEND_WITH_IMM, IBV_WR_RDMA_READ, IBV_WR_ATOMIC_CMP_AND_SWP,
					IBV_WR_ATOMIC_FETCH_AND_ADD};
	for (unsigned int i = 0; i < 5; i++) {
		chain[2].opcode = lacking[i];
		E0_FAILS(mrc_post_send(bed->a, chain, &bad), EOPNOTSUPP);
		CHECK(bad == &chain[2]);
		CHECK(poll_for(bed->cq, wc, 2) == 2 && wc[0].wr_id == 100 && wc[1].wr_id == 101);
	}
	chain[2].opcode = IBV_WR_RDMA_WRITE, chain[2].num_sge = 5;
	E0_FAILS(mrc_post_send(bed->a, &chain[2], &bad), EINVAL);
	chain[2].num_sge = 1, chain[2].send_flags = IBV_SEND_IP_CSUM;
	E0_FAILS(mrc_post_send(bed->a, &chain[2], &bad), EINVAL);
	chain[2].send_flags = IBV_SEND_INLINE, sge.length = 129;
	E0_FAILS(mrc_post_send(bed->a, &chain[2], &bad), EINVAL);
	chain[2].send_flags = 0, sge.length = 0x80000001;
	E0_FAILS(mrc_post_send(bed->a, &chain[2], &bad), EINVAL);
	E0_FAILS(mrc_post_send(bed->a, NULL, &bad), EINVAL);
	E0_FAILS(mrc_post_send(bed->a, chain, NULL), EINVAL);
	E0_FAILS(mrc_post_send(NULL, chain, &bad), EINVAL);

	/* A receive queue is full after max_recv_wr. */
	for (int i = 0; i < 64; i++)
		CHECK(mrc_post_recv(bed->b, &recv, &bad_recv) == 0);
	M1_FAILS(mrc_post_recv(bed->b, &recv, &bad_recv), ENOMEM);
	CHECK(bad_recv == &recv);
}

static void notifications(struct bed *bed)
{
	struct mrc_comp_channel *channel = (void *)1;
	struct mrc_cq *cq, *told;
	struct ibv_wc wc[2];
	void *context;
	int fd = -1;

	E0_FAILS(mrc_create_comp_channel(NULL, &channel), EINVAL);
	CHECK(channel == NULL);
	NEED(mrc_create_comp_channel(bed->mrc, &channel) == 0 && channel);
	CHECK(mrc_get_comp_channel_fd(channel, &fd) == 0 && fcntl(fd, F_GETFD) == FD_CLOEXEC);
	NEED((cq = mrc_create_cq(bed->mrc, 16, &fd, channel, 0)));
	E0_FAILS(mrc_destroy_comp_channel(channel), EBUSY);

	struct mrc_qp_init_attr init = {.send_cq = bed->cq, .recv_cq = cq, .pd = bed->pd, .cap = {8, 8, 1, 1, 0}};
	struct mrc_qp *b = mrc_create_qp(bed->mrc, &init), *a = make_qp(bed);
	struct ibv_recv_wr *bad_recv, recv = {.wr_id = 3};
	struct ibv_send_wr *bad, wr;
	struct ibv_sge sge;
	struct pollfd ready = {.fd = fd, .events = POLLIN};

	connect_qp(bed, a, b);
	connect_qp(bed, b, a);
	CHECK(fcntl(fd, F_SETFL, O_NONBLOCK) == 0);
	M1_FAILS(mrc_get_cq_event(channel, &told, &context), EAGAIN);
	wr = write_of(bed, &sge, 0, 4096, 16);
	wr.opcode = IBV_WR_RDMA_WRITE_WITH_IMM, wr.send_flags = 0;

	/* Only a solicited one counts; its event comes once. */
	CHECK(mrc_req_notify_cq(cq, 1) == 0);
	for (int i = 0; i < 3; i++)
		CHECK(mrc_post_recv(b, &recv, &bad_recv) == 0);
	CHECK(mrc_post_send(a, &wr, &bad) == 0);
	CHECK(poll_for(cq, wc, 1) == 1 && wc[0].status == IBV_WC_SUCCESS);
	CHECK(poll(&ready, 1, 50) == 0);
	wr.send_flags = IBV_SEND_SOLICITED;
	CHECK(mrc_post_send(a, &wr, &bad) == 0);
	CHECK(poll(&ready, 1, 5000) == 1);
	CHECK(mrc_get_cq_event(channel, &told, &context) == 0 && told == cq && context == &fd);
	M1_FAILS(mrc_get_cq_event(channel, &told, &context), EAGAIN);
	/* Armed while something waits: told at once. */
	CHECK(mrc_req_notify_cq(cq, 0) == 0 && poll(&ready, 1, 1000) == 1);
	CHECK(mrc_get_cq_event(channel, &told, &context) == 0);
	CHECK(poll_for(cq, wc, 1) == 1);
	mrc_ack_cq_events(cq, 2);
	M1_FAILS(mrc_get_cq_event(channel, NULL, &context), EINVAL);
	CHECK(mrc_destroy_qp(a) == 0 && mrc_destroy_qp(b) == 0 && mrc_destroy_cq(cq) == 0);
	CHECK(mrc_destroy_comp_channel(channel) == 0);
	E0_FAILS(mrc_destroy_comp_channel(channel), EINVAL);
}

/* A refused write ends both queue pairs: with a status here, with events. */
static void errors(struct bed *bed)
{
	struct mrc_qp *a = make_qp(bed), *b = make_qp(bed);
	struct ibv_send_wr *bad, wr;
	struct ibv_sge sge;
	struct ibv_wc wc[2];
	struct mrc_async_event event;

	connect_qp(bed, a, b);
	connect_qp(bed, b, a);
	wr = write_of(bed, &sge, 0, 4096, 16);
	wr.wr.rdma.rkey ^= 0x55;
	CHECK(mrc_post_send(a, &wr, &bad) == 0);
	CHECK(poll_for(bed->cq, wc, 1) == 1 && wc[0].status == IBV_WC_REM_ACCESS_ERR);
	int seen = 0;
	for (int i = 0; i < 2; i++) {
		CHECK(mrc_get_async_event(bed->mrc, &event) == 0);
		seen |= event.element.qp == a && event.event_type == IBV_EVENT_QP_FATAL ? 1 : 0;
		seen |= event.element.qp == b && event.event_type == IBV_EVENT_QP_ACCESS_ERR ? 2 : 0;
		mrc_ack_async_event(&event);
	}
	CHECK(seen == 3);
	CHECK(mrc_destroy_qp(a) == 0 && mrc_destroy_qp(b) == 0);

	/* Without a receive, a message with immediate is refused. */
	a = make_qp(bed), b = make_qp(bed);
	connect_qp(bed, a, b);
	connect_qp(bed, b, a);
	wr = write_of(bed, &sge, 0, 4096, 16);
	wr.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
	CHECK(mrc_post_send(a, &wr, &bad) == 0);
	CHECK(poll_for(bed->cq, wc, 1) == 1 && wc[0].status == IBV_WC_REM_OP_ERR);
	/* Destroyed with events that nobody takes. */
	CHECK(mrc_destroy_qp(a) == 0 && mrc_destroy_qp(b) == 0);
	M1_FAILS(mrc_get_async_event(NULL, &event), EINVAL);
	M1_FAILS(mrc_get_async_event(bed->mrc, NULL), EINVAL);
}

static void *wait_for_event(void *context)
{
	struct mrc_async_event event;
	int result = mrc_get_async_event(context, &event);

	return (void *)(intptr_t)(result == -1 ? errno : 0);
}

/* A blocked getter is woken when its context goes. */
static void woken(struct bed *bed)
{
	struct mrc_context *context = mrc_create_context(bed->device, NULL);
	pthread_t thread;
	void *result;

	CHECK(pthread_create(&thread, NULL, wait_for_event, context) == 0);
	usleep(50000);
	CHECK(mrc_destroy_context(context) == 0);
	CHECK(pthread_join(thread, &result) == 0 && (intptr_t)result == ECANCELED);
}

/* The receiver destroys its queue pair as soon as it has the immediate: the sender succeeds nevertheless. */
static void destroyed_at_once(struct bed *bed)
{
	for (int i = 0; i < 200; i++) {
		struct mrc_qp_init_attr init = {.send_cq = bed->cq, .recv_cq = bed->cq, .pd = bed->pd, .cap = {8, 8, 1, 1, 0}};
		struct mrc_cq *receives = mrc_create_cq(bed->mrc, 4, NULL, NULL, 0);
		struct mrc_qp *a = make_qp(bed), *b;
		struct ibv_recv_wr *bad_recv, recv = {.wr_id = 1};
		struct ibv_send_wr *bad, wr;
		struct ibv_sge sge;
		struct ibv_wc wc;

		init.recv_cq = receives;
		b = mrc_create_qp(bed->mrc, &init);
		connect_qp(bed, a, b);
		connect_qp(bed, b, a);
		wr = write_of(bed, &sge, 0, 4096, 5000);
		wr.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
		CHECK(mrc_post_recv(b, &recv, &bad_recv) == 0 && mrc_post_send(a, &wr, &bad) == 0);
		CHECK(poll_for(receives, &wc, 1) == 1);
		CHECK(mrc_destroy_qp(b) == 0 && mrc_destroy_cq(receives) == 0);
		CHECK(poll_for(bed->cq, &wc, 1) == 1 && wc.status == IBV_WC_SUCCESS);
		CHECK(mrc_destroy_qp(a) == 0);
	}
}

int main(void)
{
	struct bed bed;

	open_bed(&bed);
	device_and_versions(&bed);
	hints(&bed);
	queues(&bed);
	queue_pair_creation(&bed);
	states(&bed);
	connect_qp(&bed, bed.a, bed.b);
	connect_qp(&bed, bed.b, bed.a);
	writes(&bed);
	notifications(&bed);
	errors(&bed);
	woken(&bed);
	destroyed_at_once(&bed);
	close_bed(&bed);
	return failures != 0;
}
