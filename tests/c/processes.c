/* Two processes, as a benchmark or a collective has them: each spins on memory that the other writes, immediates come
 * after the data of all earlier messages, and in the end one process is killed. */
#include "check.h"

#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define ROUNDS 300
#define CHUNK 40000
#define CHUNKS 4

struct address {
	uint32_t qpn, rkey;
	uint64_t memory;
	union ibv_gid gid;
};

static struct address exchange(int fd, struct bed *bed)
{
	struct address mine = {.rkey = bed->mr->rkey, .memory = (uintptr_t)bed->memory, .gid = bed->gid}, theirs;

	NEED(mrc_get_qpn(bed->a, &mine.qpn) == 0);
	NEED(write(fd, &mine, sizeof mine) == sizeof mine && read(fd, &theirs, sizeof theirs) == sizeof theirs);
	return theirs;
}

static void connect_to(struct bed *bed, const struct address *peer)
{
	struct ibv_qp_attr attr = attributes(bed, NULL);
	struct mrc_qp_attr mrc;

	memset(&mrc, 0, sizeof mrc);
	/* 134 ms, four times: a peer that is gone is noticed soon, one that the machine has stopped for long is not. */
	mrc.timeout = 17, mrc.retry.linear_cnt = 4, mrc.retry.exp_cnt = 0;
	attr.dest_qp_num = peer->qpn;
	attr.ah_attr.grh.dgid = peer->gid;
	NEED(step(bed->a, &attr, IBV_QPS_INIT, TO_INIT) == 0);
	NEED(step(bed->a, &attr, IBV_QPS_RTR, TO_RTR) == 0);
	attr.qp_state = IBV_QPS_RTS;
	NEED(mrc_modify_qp(bed->a, &attr, TO_RTS, &mrc, MRC_QP_TIMEOUT | MRC_QP_RETRY_CNT) == 0);
}

static void post_write(struct bed *bed, const struct address *peer, size_t at, uint32_t length, int imm, int flags)
{
	struct ibv_sge sge;
	struct ibv_send_wr *bad, wr = write_of(bed, &sge, at, 0, length);

	wr.wr.rdma.remote_addr = peer->memory + at;
	wr.wr.rdma.rkey = peer->rkey;
	wr.send_flags = (unsigned int)flags;
	if (imm >= 0) {
		wr.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
		wr.imm_data = (uint32_t)imm;
	}
	NEED(mrc_post_send(bed->a, &wr, &bad) == 0);
}

#define READY (MEMORY - 64) /* where the sender spins: the receiver has posted its receive */

static void receive_all(struct bed *bed, const struct address *peer)
{
	struct ibv_recv_wr *bad, recv = {.wr_id = 1};
	struct ibv_wc wc;

	for (int round = 1; round <= ROUNDS; round++) {
		NEED(mrc_post_recv(bed->a, &recv, &bad) == 0);
		*(volatile uint64_t *)(bed->memory + READY) = (uint64_t)round;
		post_write(bed, peer, READY, 8, -1, 0);
		NEED(poll_for(bed->cq, &wc, 1) == 1 && wc.status == IBV_WC_SUCCESS && wc.opcode == IBV_WC_RECV_RDMA_WITH_IMM);
		NEED(wc.imm_data == (uint32_t)round);
		/* What was written before the immediate is there. */
		for (int i = 0; i < CHUNKS * CHUNK; i += 997)
			NEED(bed->memory[i] == (char)(round + i));
	}
}

static void send_all(struct bed *bed, const struct address *peer)
{
	struct ibv_wc wc;

	for (int round = 1; round <= ROUNDS; round++) {
		double until = now() + 20;

		while (*(volatile uint64_t *)(bed->memory + READY) != (uint64_t)round)
			NEED(now() < until);
		for (int i = 0; i < CHUNKS * CHUNK; i++)
			bed->memory[i] = (char)(round + i);
		for (int chunk = 0; chunk < CHUNKS; chunk++)
			post_write(bed, peer, (size_t)chunk * CHUNK, CHUNK, -1, 0);
		post_write(bed, peer, 0, 0, round, IBV_SEND_SIGNALED);
		NEED(poll_for(bed->cq, &wc, 1) == 1 && wc.status == IBV_WC_SUCCESS);
	}
}

int main(void)
{
	struct mrc_async_event event;
	struct address peer;
	struct bed bed;
	struct ibv_wc wc;
	int pair[2], status;
	char go = 1;

	NEED(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
	pid_t child = fork();
	NEED(child >= 0);
	open_bed(&bed);
	peer = exchange(pair[child == 0], &bed);
	connect_to(&bed, &peer);
	if (child == 0) {
		NEED(read(pair[1], &go, 1) == 1);
		receive_all(&bed, &peer);
		/* It ends as soon as it has the last immediate: its peer must not notice. */
		if (go == 1)
			_exit(0);
	}
	NEED(write(pair[0], &go, 1) == 1);
	send_all(&bed, &peer);
	NEED(waitpid(child, &status, 0) == child && status == 0);

	/* Nobody is there any more. */
	double begin = now();
	post_write(&bed, &peer, 0, 100, -1, 0);
	NEED(poll_for(bed.cq, &wc, 1) == 1 && wc.status == IBV_WC_RETRY_EXC_ERR);
	NEED(mrc_get_async_event(bed.mrc, &event) == 0 && event.event_type == IBV_EVENT_QP_FATAL && event.element.qp == bed.a);
	mrc_ack_async_event(&event);
	NEED(now() - begin < 5);
	close_bed(&bed);
	return failures != 0;
}
