/* Nanoseconds of a post and a poll through the C interface, on a queue pair in ERR, where both need nothing but the
 * calling thread: crates/nic/examples/post_poll.rs does the same in Rust. Usage: post_poll ITERATIONS */
#include "c_bench.h"

int main(int argc, char **argv)
{
	long iterations = argc > 1 ? atol(argv[1]) : 1000000;
	struct ibv_qp_attr attr;
	struct ibv_send_wr *bad, wr;
	struct ibv_sge sge;
	struct ibv_wc wc;
	struct end end;
	double begin = 0;

	open_end(&end, 64);
	connect_end(&end, end.qpn, end.gid);
	memset(&attr, 0, sizeof attr);
	attr.qp_state = IBV_QPS_ERR;
	NEED(mrc_modify_qp(end.qp, &attr, IBV_QP_STATE, NULL, 0) == 0);
	memset(&wr, 0, sizeof wr);
	sge.addr = (uintptr_t)end.memory, sge.length = 64, sge.lkey = end.mr->lkey;
	wr.sg_list = &sge, wr.num_sge = 1, wr.opcode = IBV_WR_RDMA_WRITE, wr.send_flags = IBV_SEND_SIGNALED;
	wr.wr.rdma.remote_addr = (uintptr_t)end.memory, wr.wr.rdma.rkey = end.mr->rkey;
	for (long i = -iterations / 10; i < iterations; i++) {
		if (i == 0)
			begin = now();
		NEED(mrc_post_send(end.qp, &wr, &bad) == 0);
		NEED(mrc_poll_cq(end.cq, 1, &wc) == 1);
	}
	printf("{\"ns\": %.2f}\n", (now() - begin) * 1e9 / (double)iterations);
	return 0;
}
