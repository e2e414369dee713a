/* Eight threads, each with queue pairs and a completion queue of its own, on one device: nothing of one reaches another,
 * and every request succeeds. With mrc.h, then with verbs.
 * Usage: eight ROUNDS */
#include "check.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#define THREADS 8
#define DEPTH 32
#define SIZE 512
/* What each thread has of the memory: half to send from, half to write to. */
#define SHARE (MEMORY / THREADS)

static struct bed bed;
static atomic_int ready;
static atomic_long failed;
static int rounds = 300;
static bool verbs;

static void connect_verbs(struct ibv_qp *qp, struct ibv_qp *peer)
{
	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = IBV_ACCESS_REMOTE_WRITE};

	NEED(ibv_modify_qp(qp, &attr, TO_INIT) == 0);
	attr.qp_state = IBV_QPS_RTR, attr.path_mtu = IBV_MTU_4096, attr.dest_qp_num = peer->qp_num;
	attr.max_dest_rd_atomic = 1, attr.min_rnr_timer = 12;
	attr.ah_attr.is_global = 1, attr.ah_attr.port_num = 1, attr.ah_attr.grh.dgid = bed.gid;
	NEED(ibv_modify_qp(qp, &attr, TO_RTR | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER) == 0);
	attr.qp_state = IBV_QPS_RTS, attr.timeout = 18, attr.retry_cnt = 7, attr.rnr_retry = 7, attr.max_rd_atomic = 1;
	NEED(ibv_modify_qp(qp, &attr,
					   TO_RTS | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC) == 0);
}

/* The two ends of a thread, of either interface. */
struct pair {
	struct mrc_cq *cq;
	struct mrc_qp *a, *b;
	struct ibv_cq *verbs_cq;
	struct ibv_qp *verbs_a, *verbs_b;
};

static void open_pair(struct pair *pair)
{
	if (verbs) {
		struct ibv_qp_init_attr init;

		NEED((pair->verbs_cq = ibv_create_cq(bed.device, 2 * DEPTH, NULL, NULL, 0)));
		memset(&init, 0, sizeof init);
		init.send_cq = init.recv_cq = pair->verbs_cq, init.qp_type = IBV_QPT_RC;
		init.cap.max_send_wr = DEPTH, init.cap.max_send_sge = 1;
		NEED((pair->verbs_a = ibv_create_qp(bed.pd, &init)) && (pair->verbs_b = ibv_create_qp(bed.pd, &init)));
		connect_verbs(pair->verbs_a, pair->verbs_b);
		connect_verbs(pair->verbs_b, pair->verbs_a);
	} else {
		struct mrc_qp_init_attr init = {.pd = bed.pd, .cap = {DEPTH, 1, 1, 1, 0}};

		NEED((pair->cq = mrc_create_cq(bed.mrc, 2 * DEPTH, NULL, NULL, 0)));
		init.send_cq = init.recv_cq = pair->cq;
		NEED((pair->a = mrc_create_qp(bed.mrc, &init)) && (pair->b = mrc_create_qp(bed.mrc, &init)));
		connect_qp(&bed, pair->a, pair->b);
		connect_qp(&bed, pair->b, pair->a);
	}
}

static void close_pair(struct pair *pair)
{
	if (verbs)
		NEED(!ibv_destroy_qp(pair->verbs_a) && !ibv_destroy_qp(pair->verbs_b) && !ibv_destroy_cq(pair->verbs_cq));
	else
		NEED(!mrc_destroy_qp(pair->a) && !mrc_destroy_qp(pair->b) && !mrc_destroy_cq(pair->cq));
}

/* Posts DEPTH writes, waits for all, compares, again and again; the pair is made anew in between. */
static void *work(void *number)
{
	size_t from = (size_t)(uintptr_t)number * SHARE, to = from + SHARE / 2;
	struct pair pair;

	atomic_fetch_add(&ready, 1);
	while (atomic_load(&ready) < THREADS)
		;
	for (int round = 0; round < rounds; round++) {
		double until = now() + PATIENCE;

		if (round % 50 == 0)
			open_pair(&pair);
		memset(bed.memory + from, round + 1, DEPTH * SIZE);
		for (int i = 0; i < DEPTH; i++) {
			struct ibv_send_wr *bad, wr;
			struct ibv_sge sge;

			wr = write_of(&bed, &sge, from + (size_t)i * SIZE, to + (size_t)i * SIZE, SIZE);
			wr.wr_id = (uint64_t)i;
			NEED((verbs ? ibv_post_send(pair.verbs_a, &wr, &bad) : mrc_post_send(pair.a, &wr, &bad)) == 0);
		}
		for (int done = 0; done < DEPTH;) {
			struct ibv_wc wc;
			int n = verbs ? ibv_poll_cq(pair.verbs_cq, 1, &wc) : mrc_poll_cq(pair.cq, 1, &wc);

			NEED(n >= 0 && now() < until);
			if (n && (wc.status != IBV_WC_SUCCESS || wc.wr_id != (uint64_t)done))
				atomic_fetch_add(&failed, 1);
			done += n;
		}
		if (memcmp(bed.memory + from, bed.memory + to, DEPTH * SIZE))
			atomic_fetch_add(&failed, 1);
		if (round % 50 == 49 || round + 1 == rounds)
			close_pair(&pair);
	}
	return NULL;
}

int main(int argc, char **argv)
{
	if (argc > 1)
		rounds = atoi(argv[1]);
	open_bed(&bed);
	for (int api = 0; api < 2; api++) {
		pthread_t threads[THREADS];

		verbs = api == 1;
		atomic_store(&ready, 0);
		for (size_t i = 0; i < THREADS; i++)
			NEED(pthread_create(&threads[i], NULL, work, (void *)i) == 0);
		for (int i = 0; i < THREADS; i++)
			NEED(pthread_join(threads[i], NULL) == 0);
		CHECK(atomic_load(&failed) == 0);
	}
	close_bed(&bed);
	return failures != 0;
}
