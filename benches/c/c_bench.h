/* What the C benchmarks share: a device, and queue pairs on it. */
#ifndef C_BENCH_H
#define C_BENCH_H

#include <mrc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define NEED(what)                                                                                                     \
	do {                                                                                                               \
		if (!(what)) {                                                                                                 \
			perror(#what);                                                                                             \
			exit(1);                                                                                                   \
		}                                                                                                              \
	} while (0)

#define MEMORY (1 << 20)

struct end {
	struct ibv_context *device;
	struct mrc_context *mrc;
	struct ibv_pd *pd;
	struct mrc_cq *cq;
	struct mrc_qp *qp;
	struct ibv_mr *mr;
	char *memory;
	union ibv_gid gid;
	uint32_t qpn;
};

static inline double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static inline void open_end(struct end *end, uint32_t depth)
{
	struct ibv_device **devices = ibv_get_device_list(NULL);
	struct mrc_qp_init_attr init;

	memset(end, 0, sizeof *end);
	NEED(devices && devices[0] && (end->device = ibv_open_device(devices[0])));
	NEED((end->mrc = mrc_create_context(end->device, NULL)) && (end->pd = ibv_alloc_pd(end->device)));
	NEED((end->cq = mrc_create_cq(end->mrc, (int)depth, NULL, NULL, 0)));
	NEED((end->memory = aligned_alloc(4096, MEMORY)));
	memset(end->memory, 1, MEMORY);
	NEED((end->mr = ibv_reg_mr(end->pd, end->memory, MEMORY, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE)));
	memset(&init, 0, sizeof init);
	init.send_cq = init.recv_cq = end->cq, init.pd = end->pd;
	init.cap.max_send_wr = depth, init.cap.max_send_sge = 1, init.cap.max_inline_data = 8;
	NEED((end->qp = mrc_create_qp(end->mrc, &init)) && mrc_get_qpn(end->qp, &end->qpn) == 0);
	NEED(ibv_query_gid(end->device, 1, 0, &end->gid) == 0);
}

static inline void connect_end(struct end *end, uint32_t qpn, union ibv_gid gid)
{
	struct ibv_qp_attr attr;

	memset(&attr, 0, sizeof attr);
	attr.qp_state = IBV_QPS_INIT, attr.port_num = 1, attr.qp_access_flags = IBV_ACCESS_REMOTE_WRITE;
	NEED(mrc_modify_qp(end->qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS, NULL, 0) == 0);
	attr.qp_state = IBV_QPS_RTR, attr.path_mtu = IBV_MTU_4096, attr.dest_qp_num = qpn;
	attr.ah_attr.is_global = 1, attr.ah_attr.grh.dgid = gid;
	NEED(mrc_modify_qp(end->qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN, NULL, 0) == 0);
	attr.qp_state = IBV_QPS_RTS;
	NEED(mrc_modify_qp(end->qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN, NULL, 0) == 0);
}

#endif
