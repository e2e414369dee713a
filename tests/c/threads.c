/* Many threads on one device: some share completion queues and queue pairs, one sleeps on events, one creates and destroys
 * objects all the time. Everything completes once. */
#include "check.h"

#include <pthread.h>
#include <stdatomic.h>

#define WORKERS 4
#define WRITES 1500
#define OUTSTANDING 16

static struct bed bed;
static atomic_int posted, completed, received, stop;

/* Posts to a queue pair that two threads share, and polls a completion queue that all share. */
static void *work(void *shared_qp)
{
	for (int mine = 0; mine < WRITES;) {
		struct ibv_send_wr *bad;
		struct ibv_sge sge;
		struct ibv_wc wc[4];
		int n;

		if (atomic_load(&posted) - atomic_load(&completed) < OUTSTANDING) {
			struct ibv_send_wr wr = write_of(&bed, &sge, 0, 65536, 64);
			int result = mrc_post_send(shared_qp, &wr, &bad);

			/* The other thread may have taken the last place of the queue. */
			NEED(result == 0 || result == ENOMEM);
			if (result == 0)
				mine++, atomic_fetch_add(&posted, 1);
		}
		NEED((n = mrc_poll_cq(bed.cq, 4, wc)) >= 0);
		for (int i = 0; i < n; i++)
			NEED(wc[i].status == IBV_WC_SUCCESS && wc[i].opcode == IBV_WC_RDMA_WRITE);
		atomic_fetch_add(&completed, n);
	}
	return NULL;
}

/* Objects of every kind come and go. */
static void *churn(void *unused)
{
	char *memory = aligned_alloc(4096, 8192);

	(void)unused;
	while (!atomic_load(&stop)) {
		struct mrc_qp_hint_init_attr hint_init = {{1, 1, 1, {0}}};
		struct mrc_comp_channel *channel;
		struct ibv_port_attr port;
		struct ibv_pd *pd = ibv_alloc_pd(bed.device);
		struct ibv_mr *mr = ibv_reg_mr(pd, memory, 8192, IBV_ACCESS_LOCAL_WRITE);
		struct mrc_qp_hint *hint = mrc_create_qp_hint(bed.mrc, &hint_init);
		struct mrc_qp *qp = make_qp(&bed);
		struct mrc_cq *cq;

		NEED(pd && mr && hint && qp && mrc_create_comp_channel(bed.mrc, &channel) == 0);
		NEED((cq = mrc_create_cq(bed.mrc, 4, NULL, channel, 0)));
		NEED(ibv_query_port(bed.device, 1, &port) == 0 && mrc_req_notify_cq(cq, 0) == 0);
		NEED(mrc_destroy_qp(qp) == 0 && mrc_destroy_cq(cq) == 0 && mrc_destroy_comp_channel(channel) == 0);
		NEED(mrc_destroy_qp_hint(hint) == 0 && ibv_dereg_mr(mr) == 0 && ibv_dealloc_pd(pd) == 0);
	}
	free(memory);
	return NULL;
}

struct events {
	struct mrc_comp_channel *channel;
	struct mrc_cq *cq;
	struct mrc_qp *a, *b;
};

/* Sleeps until a message with immediate has come. */
static void *sleep_on_events(void *of)
{
	struct events *events = of;
	struct mrc_cq *cq;
	struct ibv_wc wc;
	void *context;

	while (atomic_load(&received) < WRITES / 10) {
		int n;

		NEED(mrc_get_cq_event(events->channel, &cq, &context) == 0 && cq == events->cq);
		mrc_ack_cq_events(cq, 1);
		NEED(mrc_req_notify_cq(cq, 0) == 0);
		while ((n = mrc_poll_cq(cq, 1, &wc)) == 1) {
			struct ibv_recv_wr *bad, wr = {.wr_id = 0};

			NEED(wc.status == IBV_WC_SUCCESS && wc.opcode == IBV_WC_RECV_RDMA_WITH_IMM);
			NEED(mrc_post_recv(events->b, &wr, &bad) == 0);
			atomic_fetch_add(&received, 1);
		}
		NEED(n == 0);
	}
	return NULL;
}

static void *send_immediates(void *of)
{
	struct events *events = of;

	for (int i = 0; i < WRITES / 10; i++) {
		struct ibv_sge sge;
		struct ibv_send_wr *bad, wr = write_of(&bed, &sge, 0, 131072, 64);

		wr.opcode = IBV_WR_RDMA_WRITE_WITH_IMM, wr.send_flags = 0;
		NEED(mrc_post_send(events->a, &wr, &bad) == 0);
		while (atomic_load(&received) < i - 8)
			;
	}
	return NULL;
}

int main(void)
{
	pthread_t workers[WORKERS], churner, sleeper, sender;
	struct events events;

	open_bed(&bed);
	connect_qp(&bed, bed.a, bed.b);
	connect_qp(&bed, bed.b, bed.a);
	NEED(mrc_create_comp_channel(bed.mrc, &events.channel) == 0);
	NEED((events.cq = mrc_create_cq(bed.mrc, 64, NULL, events.channel, 0)) && mrc_req_notify_cq(events.cq, 0) == 0);
	struct mrc_qp_init_attr init = {.send_cq = events.cq, .recv_cq = events.cq, .pd = bed.pd, .cap = {64, 64, 1, 1, 0}};
	NEED((events.a = mrc_create_qp(bed.mrc, &init)) && (events.b = mrc_create_qp(bed.mrc, &init)));
	connect_qp(&bed, events.a, events.b);
	connect_qp(&bed, events.b, events.a);
	for (int i = 0; i < 64; i++) {
		struct ibv_recv_wr *bad, wr = {.wr_id = 0};

		NEED(mrc_post_recv(events.b, &wr, &bad) == 0);
	}
	for (int i = 0; i < WORKERS; i++)
		NEED(pthread_create(&workers[i], NULL, work, i % 2 ? bed.a : bed.b) == 0);
	NEED(pthread_create(&churner, NULL, churn, NULL) == 0);
	NEED(pthread_create(&sleeper, NULL, sleep_on_events, &events) == 0);
	NEED(pthread_create(&sender, NULL, send_immediates, &events) == 0);
	for (int i = 0; i < WORKERS; i++)
		NEED(pthread_join(workers[i], NULL) == 0);
	NEED(pthread_join(sender, NULL) == 0 && pthread_join(sleeper, NULL) == 0);
	atomic_store(&stop, 1);
	NEED(pthread_join(churner, NULL) == 0);
	struct ibv_wc wc;
	while (atomic_load(&completed) < WORKERS * WRITES)
		NEED(poll_for(bed.cq, &wc, 1) == 1 && atomic_fetch_add(&completed, 1) >= 0);
	CHECK(mrc_poll_cq(bed.cq, 1, &wc) == 0 && atomic_load(&posted) == WORKERS * WRITES);
	CHECK(mrc_destroy_qp(events.a) == 0 && mrc_destroy_qp(events.b) == 0 && mrc_destroy_cq(events.cq) == 0);
	CHECK(mrc_destroy_comp_channel(events.channel) == 0);
	close_bed(&bed);
	return failures != 0;
}
