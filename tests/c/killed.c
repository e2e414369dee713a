/* A process is killed while both write to each other: the other one is told in bounded time, by a completion and by an
 * asynchronous event. Both ends in turn. */
#include "check.h"

#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define IN_FLIGHT 8
#define BOUND 5.0 /* seconds; the retries last for 16 ms x 5 */

struct address {
	uint32_t qpn, rkey;
	uint64_t memory;
	union ibv_gid gid;
};

static void open_end(struct bed *bed, int fd, struct address *peer)
{
	struct ibv_qp_attr attr;
	struct mrc_qp_attr mrc;

	open_bed(bed);
	struct address mine = {.rkey = bed->mr->rkey, .memory = (uintptr_t)bed->memory, .gid = bed->gid};
	NEED(mrc_get_qpn(bed->a, &mine.qpn) == 0);
	NEED(write(fd, &mine, sizeof mine) == sizeof mine && read(fd, peer, sizeof *peer) == sizeof *peer);
	attr = attributes(bed, NULL);
	attr.dest_qp_num = peer->qpn;
	attr.ah_attr.grh.dgid = peer->gid;
	memset(&mrc, 0, sizeof mrc);
	mrc.timeout = 14, mrc.retry.linear_cnt = 4, mrc.retry.exp_cnt = 0;
	NEED(step(bed->a, &attr, IBV_QPS_INIT, TO_INIT) == 0 && step(bed->a, &attr, IBV_QPS_RTR, TO_RTR) == 0);
	attr.qp_state = IBV_QPS_RTS;
	NEED(mrc_modify_qp(bed->a, &attr, TO_RTS, &mrc, MRC_QP_TIMEOUT | MRC_QP_RETRY_CNT) == 0);
}

/* Writes until a write fails; says on the pipe when it has written much. */
static int run_end(int fd, int report)
{
	struct mrc_async_event event;
	struct address peer;
	struct ibv_sge sge;
	struct ibv_wc wc;
	struct bed bed;
	int posted = 0, done = 0;
	double last = now();

	open_end(&bed, fd, &peer);
	for (;;) {
		while (posted - done < IN_FLIGHT) {
			struct ibv_send_wr *bad, wr = write_of(&bed, &sge, 0, 0, 100000);

			wr.wr.rdma.remote_addr = peer.memory;
			wr.wr.rdma.rkey = peer.rkey;
			NEED(mrc_post_send(bed.a, &wr, &bad) == 0);
			posted++;
		}
		NEED(poll_for(bed.cq, &wc, 1) == 1);
		if (wc.status != IBV_WC_SUCCESS)
			break;
		last = now();
		if (++done == 200)
			NEED(write(report, "!", 1) == 1);
	}
	/* First the request that failed, then those behind it. */
	NEED(wc.status == IBV_WC_RETRY_EXC_ERR);
	for (done++; done < posted; done++)
		NEED(poll_for(bed.cq, &wc, 1) == 1 && wc.status == IBV_WC_WR_FLUSH_ERR);
	NEED(mrc_get_async_event(bed.mrc, &event) == 0);
	NEED(event.event_type == IBV_EVENT_QP_FATAL && event.element.qp == bed.a);
	mrc_ack_async_event(&event);
	NEED(now() - last < BOUND);
	close_bed(&bed);
	return failures != 0;
}

int main(void)
{
	for (int victim = 0; victim < 2; victim++) {
		pid_t ends[2];
		int pair[2], report[2], status;
		char mark;

		NEED(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0 && pipe(report) == 0);
		for (int i = 0; i < 2; i++) {
			NEED((ends[i] = fork()) >= 0);
			if (ends[i] == 0)
				_exit(run_end(pair[i], report[1]));
		}
		NEED(read(report[0], &mark, 1) == 1 && read(report[0], &mark, 1) == 1);
		NEED(kill(ends[victim], SIGKILL) == 0);
		NEED(waitpid(ends[victim], &status, 0) == ends[victim] && WIFSIGNALED(status));
		NEED(waitpid(ends[!victim], &status, 0) == ends[!victim] && status == 0);
		close(pair[0]), close(pair[1]), close(report[0]), close(report[1]);
	}
	return 0;
}
