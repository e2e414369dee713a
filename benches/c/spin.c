/* Ping-pong of 8 bytes through a flag in memory, as collective libraries wait for their peers: each end writes a number
 * into the other's memory and spins on its own until the answer is there.
 *
 * Usage: spin verbs|mrc ROUNDS LOOKS
 *
 * The first argument says which interface posts and polls. The end polls its completion queue after each LOOKS looks at
 * the flag; with 0 it polls only when its send queue is half full. Prints half round trips in microseconds. */
#include "c_bench.h"

#include <stdbool.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define DEPTH 128
/* Every so many writes asks for a completion. */
#define SIGNALED 16
#define WARM_UP 1000

struct address {
	uint32_t qpn, rkey;
	uint64_t memory;
	union ibv_gid gid;
};

/* An end of either interface. `end` has a queue pair of mrc.h; that of verbs is beside it. */
struct player {
	struct end end;
	bool verbs;
	struct ibv_cq *cq;
	struct ibv_qp *qp;
	long posted, done;
};

static void open_player(struct player *player, bool verbs)
{
	struct ibv_qp_init_attr init;

	open_end(&player->end, DEPTH);
	player->verbs = verbs;
	if (!verbs)
		return;
	NEED((player->cq = ibv_create_cq(player->end.device, DEPTH, NULL, NULL, 0)));
	memset(&init, 0, sizeof init);
	init.send_cq = init.recv_cq = player->cq, init.qp_type = IBV_QPT_RC;
	init.cap.max_send_wr = DEPTH, init.cap.max_send_sge = 1, init.cap.max_inline_data = 8;
	NEED((player->qp = ibv_create_qp(player->end.pd, &init)));
	player->end.qpn = player->qp->qp_num;
}

static void connect_player(struct player *player, const struct address *peer)
{
	struct ibv_qp_attr attr;

	if (!player->verbs) {
		connect_end(&player->end, peer->qpn, peer->gid);
		return;
	}
	memset(&attr, 0, sizeof attr);
	attr.qp_state = IBV_QPS_INIT, attr.port_num = 1, attr.qp_access_flags = IBV_ACCESS_REMOTE_WRITE;
	NEED(ibv_modify_qp(player->qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS) == 0);
	attr.qp_state = IBV_QPS_RTR, attr.path_mtu = IBV_MTU_4096, attr.dest_qp_num = peer->qpn;
	attr.max_dest_rd_atomic = 1, attr.min_rnr_timer = 12;
	attr.ah_attr.is_global = 1, attr.ah_attr.port_num = 1, attr.ah_attr.grh.dgid = peer->gid;
	NEED(ibv_modify_qp(player->qp, &attr,
					   IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
						   IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER) == 0);
	attr.qp_state = IBV_QPS_RTS, attr.timeout = 18, attr.retry_cnt = 7, attr.rnr_retry = 7, attr.max_rd_atomic = 1;
	NEED(ibv_modify_qp(player->qp, &attr,
					   IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
						   IBV_QP_MAX_QP_RD_ATOMIC) == 0);
}

static void poll_player(struct player *player)
{
	struct ibv_wc wc[16];
	int n = player->verbs ? ibv_poll_cq(player->cq, 16, wc) : mrc_poll_cq(player->end.cq, 16, wc);

	NEED(n >= 0);
	for (int i = 0; i < n; i++)
		NEED(wc[i].status == IBV_WC_SUCCESS);
	player->done += (long)n * SIGNALED;
}

/* Writes `number` from the first 8 bytes of the memory into the peer's second 8 bytes. */
static void send_number(struct player *player, const struct address *peer, uint64_t number)
{
	struct ibv_send_wr wr, *bad;
	struct ibv_sge sge = {.addr = (uintptr_t)player->end.memory, .length = 8, .lkey = player->end.mr->lkey};

	while (player->posted - player->done >= DEPTH / 2)
		poll_player(player);
	memcpy(player->end.memory, &number, 8);
	memset(&wr, 0, sizeof wr);
	wr.sg_list = &sge, wr.num_sge = 1, wr.opcode = IBV_WR_RDMA_WRITE, wr.send_flags = IBV_SEND_INLINE;
	if (++player->posted % SIGNALED == 0)
		wr.send_flags |= IBV_SEND_SIGNALED;
	wr.wr.rdma.remote_addr = peer->memory + 8, wr.wr.rdma.rkey = peer->rkey;
	if (player->verbs)
		NEED(ibv_post_send(player->qp, &wr, &bad) == 0);
	else
		NEED(mrc_post_send(player->end.qp, &wr, &bad) == 0);
}

static void wait_for(struct player *player, uint64_t number, long looks)
{
	const volatile uint64_t *flag = (const volatile uint64_t *)(player->end.memory + 8);
	long looked = 0;

	while (*flag != number)
		if (looks && ++looked % looks == 0)
			poll_player(player);
}

static int by_size(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

int main(int argc, char **argv)
{
	bool verbs = argc > 1 && !strcmp(argv[1], "verbs");
	long rounds = argc > 2 ? atol(argv[2]) : 10000, looks = argc > 3 ? atol(argv[3]) : 0;
	struct player player = {.posted = 0};
	struct address mine, peer;
	double *halves;
	int pair[2];
	char go = 1;

	NEED(rounds > 0 && (halves = malloc((size_t)rounds * sizeof *halves)));
	NEED(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
	pid_t child = fork();
	NEED(child >= 0);
	int fd = pair[child == 0];
	open_player(&player, verbs);
	mine = (struct address){.qpn = player.end.qpn,
							.rkey = player.end.mr->rkey,
							.memory = (uintptr_t)player.end.memory,
							.gid = player.end.gid};
	NEED(write(fd, &mine, sizeof mine) == sizeof mine && read(fd, &peer, sizeof peer) == sizeof peer);
	connect_player(&player, &peer);
	NEED(write(fd, &go, 1) == 1 && read(fd, &go, 1) == 1);
	for (long i = -WARM_UP; i < rounds; i++) {
		uint64_t number = (uint64_t)(i + WARM_UP + 1);
		double begin = now();

		if (child == 0) {
			wait_for(&player, number, looks);
			send_number(&player, &peer, number);
		} else {
			send_number(&player, &peer, number);
			wait_for(&player, number, looks);
			if (i >= 0)
				halves[i] = (now() - begin) / 2 * 1e6;
		}
	}
	/* The last answer has arrived, so neither end needs the other. */
	NEED(write(fd, &go, 1) == 1 && read(fd, &go, 1) == 1);
	if (child == 0)
		_exit(0);
	waitpid(child, NULL, 0);
	qsort(halves, (size_t)rounds, sizeof *halves, by_size);
	printf("{\"p50_us\": %.2f, \"p99_us\": %.2f}\n", halves[rounds / 2], halves[rounds * 99 / 100]);
	return 0;
}
