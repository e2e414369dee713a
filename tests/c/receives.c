/* Verbs queue pairs: a message with immediate waits for its receive, as long as rnr_retry says; and the queue pairs of
 * mrc.h, which have no such wait. */
#include "check.h"

#include <unistd.h>

#define MESSAGES 40

static struct ibv_qp *make_verbs_qp(struct bed *bed, struct ibv_cq *cq)
{
	struct ibv_qp_init_attr init;

	memset(&init, 0, sizeof init);
	init.send_cq = init.recv_cq = cq;
	init.qp_type = IBV_QPT_RC;
	init.cap.max_send_wr = 2 * MESSAGES, init.cap.max_recv_wr = MESSAGES;
	init.cap.max_send_sge = init.cap.max_recv_sge = 1;
	return ibv_create_qp(bed->pd, &init);
}

static void connect_verbs(struct bed *bed, struct ibv_qp *qp, struct ibv_qp *peer, uint8_t rnr_retry, int sends)
{
	struct ibv_qp_attr attr = attributes(bed, NULL);

	attr.dest_qp_num = peer->qp_num;
	attr.min_rnr_timer = 12, attr.rnr_retry = rnr_retry, attr.timeout = 14, attr.retry_cnt = 2;
	attr.qp_state = IBV_QPS_INIT;
	NEED(ibv_modify_qp(qp, &attr, TO_INIT) == 0);
	attr.qp_state = IBV_QPS_RTR;
	NEED(ibv_modify_qp(qp, &attr, TO_RTR | IBV_QP_MIN_RNR_TIMER | IBV_QP_MAX_DEST_RD_ATOMIC) == 0);
	attr.qp_state = IBV_QPS_RTS;
	if (sends)
		NEED(ibv_modify_qp(qp, &attr, TO_RTS | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
			IBV_QP_MAX_QP_RD_ATOMIC) == 0);
}

static int poll_verbs(struct ibv_cq *cq, struct ibv_wc *wc, int wanted, double seconds)
{
	double until = now() + seconds;
	int got = 0;

	do {
		int n = ibv_poll_cq(cq, wanted - got, wc + got);

		NEED(n >= 0);
		got += n;
	} while (got < wanted && now() < until);
	return got;
}

static void post_write(struct bed *bed, struct ibv_qp *qp, int number, int imm)
{
	struct ibv_sge sge;
	struct ibv_send_wr *bad, wr = write_of(bed, &sge, 0, 65536 + 64 * (size_t)number, 64);

	wr.wr_id = (uint64_t)number;
	if (imm) {
		wr.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
		wr.imm_data = (uint32_t)number;
	}
	NEED(ibv_post_send(qp, &wr, &bad) == 0);
}

static void post_receive(struct ibv_qp *qp, uint64_t id)
{
	struct ibv_recv_wr *bad, wr = {.wr_id = id};

	NEED(ibv_post_recv(qp, &wr, &bad) == 0);
}

/* The receiver stays in RTR, as a server of perftest does. */
static void late_receives(struct bed *bed, int polls)
{
	struct ibv_cq *sends = ibv_create_cq(bed->device, 2 * MESSAGES, NULL, NULL, 0);
	struct ibv_cq *receives = ibv_create_cq(bed->device, MESSAGES, NULL, NULL, 0);
	struct ibv_qp *a = make_verbs_qp(bed, sends), *b = make_verbs_qp(bed, receives);
	struct ibv_wc wc[2 * MESSAGES];

	connect_verbs(bed, b, a, 7, 0);
	connect_verbs(bed, a, b, 7, 1);
	post_receive(b, 0);
	for (int i = 0; i < MESSAGES; i++) {
		post_write(bed, a, 2 * i, 0);
		post_write(bed, a, 2 * i + 1, 1);
	}
	/* The retries of the sender last for 0.2 s. */
	if (!polls)
		usleep(500000);
	CHECK(poll_verbs(sends, wc, 3, PATIENCE) == 3 && wc[1].wr_id == 1 && wc[2].wr_id == 2);
	CHECK(poll_verbs(sends, wc, 1, 0.5) == 0);
	CHECK(poll_verbs(receives, wc, MESSAGES, 0) == 1 && wc[0].imm_data == 1);
	/* One at a time, then all. */
	for (int i = 1; i < MESSAGES / 2; i++) {
		post_receive(b, (uint64_t)i);
		CHECK(poll_verbs(receives, wc, 1, PATIENCE) == 1 && wc[0].status == IBV_WC_SUCCESS);
		CHECK(wc[0].wr_id == (uint64_t)i && wc[0].imm_data == 2 * (uint32_t)i + 1);
	}
	for (int i = MESSAGES / 2; i < MESSAGES; i++)
		post_receive(b, (uint64_t)i);
	CHECK(poll_verbs(receives, wc, MESSAGES / 2, PATIENCE) == MESSAGES / 2);
	CHECK(poll_verbs(sends, wc, 2 * MESSAGES - 3, PATIENCE) == 2 * MESSAGES - 3);
	for (int i = 0; i < 2 * MESSAGES - 3; i++)
		CHECK(wc[i].status == IBV_WC_SUCCESS && wc[i].wr_id == (uint64_t)i + 3);
	CHECK(ibv_destroy_qp(a) == 0 && ibv_destroy_qp(b) == 0);
	CHECK(ibv_destroy_cq(sends) == 0 && ibv_destroy_cq(receives) == 0);
}

/* With rnr_retry 0 the receiver waits for verbs' longest RNR timer, 655 ms, and then refuses. */
static void no_receive_at_all(struct bed *bed)
{
	struct ibv_cq *cq = ibv_create_cq(bed->device, 4 * MESSAGES, NULL, NULL, 0);
	struct ibv_qp *a = make_verbs_qp(bed, cq), *b = make_verbs_qp(bed, cq);
	struct ibv_async_event event;
	struct ibv_wc wc[4];
	double begin = now();
	int seen = 0;

	connect_verbs(bed, b, a, 0, 1);
	connect_verbs(bed, a, b, 0, 1);
	post_write(bed, a, 0, 1);
	post_write(bed, a, 1, 0);
	CHECK(poll_verbs(cq, wc, 2, PATIENCE) == 2 && now() - begin > 0.6);
	CHECK(wc[0].wr_id == 0 && wc[0].status == IBV_WC_REM_OP_ERR && wc[1].status == IBV_WC_WR_FLUSH_ERR);
	for (int i = 0; i < 2; i++) {
		CHECK(ibv_get_async_event(bed->device, &event) == 0);
		seen |= event.element.qp == a && event.event_type == IBV_EVENT_QP_FATAL ? 1 : 0;
		seen |= event.element.qp == b && event.event_type == IBV_EVENT_QP_REQ_ERR ? 2 : 0;
		ibv_ack_async_event(&event);
	}
	CHECK(seen == 3);
	CHECK(ibv_destroy_qp(a) == 0 && ibv_destroy_qp(b) == 0 && ibv_destroy_cq(cq) == 0);
}

int main(void)
{
	struct bed bed;

	open_bed(&bed);
	late_receives(&bed, 1);
	late_receives(&bed, 0);
	no_receive_at_all(&bed);
	close_bed(&bed);
	return failures != 0;
}
