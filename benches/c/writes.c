/* 64-byte writes per second from one process to another through the C interface, posted in chains as many programs do.
 * Usage: writes SECONDS */
#include "c_bench.h"

#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define DEPTH 1024
#define CHAIN 64
#define SIZE 64

struct address {
	uint32_t qpn, rkey;
	uint64_t memory;
	union ibv_gid gid;
};

int main(int argc, char **argv)
{
	double seconds = argc > 1 ? atof(argv[1]) : 2, begin, end_at;
	struct ibv_send_wr *bad, chain[CHAIN];
	struct address mine, peer;
	struct ibv_sge sge;
	struct ibv_wc wc[16];
	struct end end;
	long posted = 0, done = 0;
	int pair[2];
	char go = 1;

	NEED(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
	pid_t child = fork();
	NEED(child >= 0);
	open_end(&end, DEPTH);
	mine = (struct address){.qpn = end.qpn, .rkey = end.mr->rkey, .memory = (uintptr_t)end.memory, .gid = end.gid};
	NEED(write(pair[child == 0], &mine, sizeof mine) == sizeof mine);
	NEED(read(pair[child == 0], &peer, sizeof peer) == sizeof peer);
	connect_end(&end, peer.qpn, peer.gid);
	NEED(write(pair[child == 0], &go, 1) == 1 && read(pair[child == 0], &go, 1) == 1);
	if (child == 0) {
		NEED(read(pair[1], &go, 1) == 1);
		_exit(0);
	}
	sge.addr = (uintptr_t)end.memory, sge.length = SIZE, sge.lkey = end.mr->lkey;
	memset(chain, 0, sizeof chain);
	for (int i = 0; i < CHAIN; i++) {
		chain[i].next = i + 1 < CHAIN ? &chain[i + 1] : NULL;
		chain[i].sg_list = &sge, chain[i].num_sge = 1, chain[i].opcode = IBV_WR_RDMA_WRITE;
		chain[i].wr.rdma.remote_addr = peer.memory, chain[i].wr.rdma.rkey = peer.rkey;
	}
	chain[CHAIN - 1].send_flags = IBV_SEND_SIGNALED;
	begin = now();
	do {
		while (posted - done + CHAIN <= DEPTH) {
			NEED(mrc_post_send(end.qp, chain, &bad) == 0);
			posted += CHAIN;
		}
		int n = mrc_poll_cq(end.cq, 16, wc);

		NEED(n >= 0);
		for (int i = 0; i < n; i++)
			NEED(wc[i].status == IBV_WC_SUCCESS);
		done += (long)n * CHAIN;
		end_at = now();
	} while (end_at - begin < seconds);
	printf("{\"pps\": %.0f}\n", (double)done / (end_at - begin));
	NEED(write(pair[0], &go, 1) == 1);
	waitpid(child, NULL, 0);
	return 0;
}
