/* What the C tests share: checks that name their place, and a pair of connected queue pairs in one process. */
#ifndef CHECK_H
#define CHECK_H

#include <errno.h>
#include <mrc_ctl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static int failures;

/* Counts a failure and goes on. */
#define CHECK(what)                                                                                                    \
	do {                                                                                                               \
		errno = 0;                                                                                                     \
		if (!(what)) {                                                                                                 \
			fprintf(stderr, "%s:%d: %s (errno %d)\n", __FILE__, __LINE__, #what, errno);                               \
			failures++;                                                                                                \
		}                                                                                                              \
	} while (0)

/* Ends the program on a failure: what follows depends on it. */
#define NEED(what)                                                                                                     \
	do {                                                                                                               \
		errno = 0;                                                                                                     \
		if (!(what)) {                                                                                                 \
			fprintf(stderr, "%s:%d: %s (errno %d)\n", __FILE__, __LINE__, #what, errno);                               \
			exit(1);                                                                                                   \
		}                                                                                                              \
	} while (0)

/* E0 functions return the errno value, M1 functions -1, P functions NULL; all leave it in errno. */
#define E0_FAILS(call, value) CHECK((call) == (value) && errno == (value))
#define M1_FAILS(call, value) CHECK((call) == -1 && errno == (value))
#define P_FAILS(call, value) CHECK((call) == NULL && errno == (value))

#define TO_INIT (IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS)
#define TO_RTR (IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN)
#define TO_RTS (IBV_QP_STATE | IBV_QP_SQ_PSN)

#define MEMORY (1 << 20)

struct bed {
	struct ibv_device **devices;
	struct ibv_context *device;
	struct mrc_context *mrc;
	struct ibv_pd *pd;
	struct mrc_cq *cq;
	struct mrc_qp *a, *b;
	char *memory;
	struct ibv_mr *mr;
	union ibv_gid gid;
};

static inline double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static inline struct mrc_qp *make_qp(struct bed *bed)
{
	struct mrc_qp_init_attr init;

	memset(&init, 0, sizeof init);
	init.send_cq = init.recv_cq = bed->cq;
	init.pd = bed->pd;
	init.cap.max_send_wr = 64;
	init.cap.max_recv_wr = 64;
	init.cap.max_send_sge = 4;
	init.cap.max_recv_sge = 1;
	init.cap.max_inline_data = 128;
	return mrc_create_qp(bed->mrc, &init);
}

static inline struct ibv_qp_attr attributes(struct bed *bed, struct mrc_qp *peer)
{
	struct ibv_qp_attr attr;

	memset(&attr, 0, sizeof attr);
	attr.port_num = 1;
	attr.qp_access_flags = IBV_ACCESS_REMOTE_WRITE;
	attr.path_mtu = IBV_MTU_4096;
	attr.ah_attr.is_global = 1;
	attr.ah_attr.grh.dgid = bed->gid;
	if (peer)
		NEED(mrc_get_qpn(peer, &attr.dest_qp_num) == 0);
	return attr;
}

static inline int step(struct mrc_qp *qp, struct ibv_qp_attr *attr, enum ibv_qp_state state, int mask)
{
	attr->qp_state = state;
	return mrc_modify_qp(qp, attr, mask, NULL, 0);
}

static inline void connect_qp(struct bed *bed, struct mrc_qp *qp, struct mrc_qp *peer)
{
	struct ibv_qp_attr attr = attributes(bed, peer);

	NEED(step(qp, &attr, IBV_QPS_INIT, TO_INIT) == 0);
	NEED(step(qp, &attr, IBV_QPS_RTR, TO_RTR) == 0);
	NEED(step(qp, &attr, IBV_QPS_RTS, TO_RTS) == 0);
}

/* To INIT, with an EV profile. */
static inline int init_over(struct bed *bed, struct mrc_qp *qp, uint64_t profile)
{
	struct ibv_qp_attr attr = attributes(bed, NULL);
	struct mrc_qp_attr mrc;

	memset(&mrc, 0, sizeof mrc);
	mrc.profile.ev_profile_id = profile;
	attr.qp_state = IBV_QPS_INIT;
	return mrc_modify_qp(qp, &attr, TO_INIT, &mrc, MRC_QP_EV_PROFILE_ID);
}

/* The state of an EV profile. */
static inline int set_state(struct bed *bed, uint64_t profile, enum mrc_ctl_profile_state state)
{
	struct mrc_ctl_ev_profile_attr attr;

	memset(&attr, 0, sizeof attr);
	attr.profile_state = state;
	return mrc_ctl_modify_ev_profile(bed->mrc, profile, &attr, MRC_CTL_EV_PROFILE_STATE);
}

/* On the device of this number. */
static inline void open_bed_on(struct bed *bed, int number)
{
	int count = -1;

	memset(bed, 0, sizeof *bed);
	NEED((bed->devices = ibv_get_device_list(&count)) && count > number && !bed->devices[count]);
	NEED((bed->device = ibv_open_device(bed->devices[number])));
	NEED((bed->mrc = mrc_create_context(bed->device, NULL)));
	NEED((bed->pd = ibv_alloc_pd(bed->device)));
	NEED((bed->cq = mrc_create_cq(bed->mrc, 256, NULL, NULL, 0)));
	NEED(ibv_query_gid(bed->device, 1, 0, &bed->gid) == 0);
	NEED((bed->memory = aligned_alloc(4096, MEMORY)));
	memset(bed->memory, 0, MEMORY);
	NEED((bed->mr = ibv_reg_mr(bed->pd, bed->memory, MEMORY, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE)));
	NEED((bed->a = make_qp(bed)) && (bed->b = make_qp(bed)));
}

static inline void open_bed(struct bed *bed)
{
	open_bed_on(bed, 0);
}

static inline void close_bed(struct bed *bed)
{
	CHECK(mrc_destroy_qp(bed->a) == 0);
	CHECK(mrc_destroy_qp(bed->b) == 0);
	CHECK(ibv_dereg_mr(bed->mr) == 0);
	CHECK(mrc_destroy_cq(bed->cq) == 0);
	CHECK(ibv_dealloc_pd(bed->pd) == 0);
	CHECK(mrc_destroy_context(bed->mrc) == 0);
	CHECK(ibv_close_device(bed->device) == 0);
	ibv_free_device_list(bed->devices);
	free(bed->memory);
}

/* Seconds that a busy machine may need for what it otherwise does in milliseconds. */
#define PATIENCE 30

/* Polls until this many completions are there, or until PATIENCE ends; returns how many. */
static inline int poll_for(struct mrc_cq *cq, struct ibv_wc *wc, int wanted)
{
	double until = now() + PATIENCE;
	int got = 0;

	while (got < wanted && now() < until) {
		int n = mrc_poll_cq(cq, wanted - got, wc + got);

		if (n < 0)
			return n;
		got += n;
	}
	return got;
}

static inline struct ibv_send_wr write_of(struct bed *bed, struct ibv_sge *sge, size_t from, size_t to, uint32_t length)
{
	struct ibv_send_wr wr;

	memset(&wr, 0, sizeof wr);
	memset(sge, 0, sizeof *sge);
	sge->addr = (uintptr_t)bed->memory + from;
	sge->length = length;
	sge->lkey = bed->mr->lkey;
	wr.sg_list = sge;
	wr.num_sge = 1;
	wr.opcode = IBV_WR_RDMA_WRITE;
	wr.send_flags = IBV_SEND_SIGNALED;
	wr.wr.rdma.remote_addr = (uintptr_t)bed->memory + to;
	wr.wr.rdma.rkey = bed->mr->rkey;
	return wr;
}

#endif
