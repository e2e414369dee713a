/* Loads libibverbs by name, as NCCL's and RCCL's loaders do: dlopen, dlvsym with each function's version, nothing linked.
 * Then two queue pairs of one process write to each other. Arguments: other libraries to load as well. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <infiniband/verbs.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define NEED(what)                                                                                                     \
	do {                                                                                                               \
		if (!(what)) {                                                                                                 \
			fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #what);                                                 \
			exit(1);                                                                                                   \
		}                                                                                                              \
	} while (0)

#define PATIENCE 30
#define SIZE (1 << 20)

/* POSIX promises that this conversion holds for dlsym, C does not. */
#define LOAD(name, version)                                                                                            \
	do {                                                                                                               \
		void *found = dlvsym(handle, #name, version);                                                                  \
		if (!found) {                                                                                                  \
			fprintf(stderr, "no %s %s\n", #name, version);                                                             \
			exit(1);                                                                                                   \
		}                                                                                                              \
		memcpy(&verbs.name, &found, sizeof found);                                                                     \
	} while (0)

#undef ibv_query_port
#undef ibv_reg_mr

static struct {
	int (*ibv_fork_init)(void);
	struct ibv_device **(*ibv_get_device_list)(int *);
	void (*ibv_free_device_list)(struct ibv_device **);
	const char *(*ibv_get_device_name)(struct ibv_device *);
	struct ibv_context *(*ibv_open_device)(struct ibv_device *);
	int (*ibv_close_device)(struct ibv_context *);
	int (*ibv_get_async_event)(struct ibv_context *, struct ibv_async_event *);
	void (*ibv_ack_async_event)(struct ibv_async_event *);
	int (*ibv_query_device)(struct ibv_context *, struct ibv_device_attr *);
	int (*ibv_query_port)(struct ibv_context *, uint8_t, struct _compat_ibv_port_attr *);
	int (*ibv_query_gid)(struct ibv_context *, uint8_t, int, union ibv_gid *);
	int (*ibv_query_qp)(struct ibv_qp *, struct ibv_qp_attr *, int, struct ibv_qp_init_attr *);
	struct ibv_pd *(*ibv_alloc_pd)(struct ibv_context *);
	int (*ibv_dealloc_pd)(struct ibv_pd *);
	struct ibv_mr *(*ibv_reg_mr)(struct ibv_pd *, void *, size_t, int);
	struct ibv_mr *(*ibv_reg_mr_iova2)(struct ibv_pd *, void *, size_t, uint64_t, unsigned int);
	struct ibv_mr *(*ibv_reg_dmabuf_mr)(struct ibv_pd *, uint64_t, size_t, uint64_t, int, int);
	int (*ibv_dereg_mr)(struct ibv_mr *);
	struct ibv_cq *(*ibv_create_cq)(struct ibv_context *, int, void *, struct ibv_comp_channel *, int);
	int (*ibv_destroy_cq)(struct ibv_cq *);
	struct ibv_qp *(*ibv_create_qp)(struct ibv_pd *, struct ibv_qp_init_attr *);
	int (*ibv_modify_qp)(struct ibv_qp *, struct ibv_qp_attr *, int);
	int (*ibv_destroy_qp)(struct ibv_qp *);
	const char *(*ibv_event_type_str)(enum ibv_event_type);
	int (*ibv_query_ece)(struct ibv_qp *, struct ibv_ece *);
	int (*ibv_set_ece)(struct ibv_qp *, struct ibv_ece *);
} verbs;

static void load(void)
{
	void *handle = dlopen("libibverbs.so", RTLD_NOW);

	if (!handle)
		handle = dlopen("libibverbs.so.1", RTLD_NOW);
	NEED(handle);
	LOAD(ibv_fork_init, "IBVERBS_1.1");
	LOAD(ibv_get_device_list, "IBVERBS_1.1");
	LOAD(ibv_free_device_list, "IBVERBS_1.1");
	LOAD(ibv_get_device_name, "IBVERBS_1.1");
	LOAD(ibv_open_device, "IBVERBS_1.1");
	LOAD(ibv_close_device, "IBVERBS_1.1");
	LOAD(ibv_get_async_event, "IBVERBS_1.1");
	LOAD(ibv_ack_async_event, "IBVERBS_1.1");
	LOAD(ibv_query_device, "IBVERBS_1.1");
	LOAD(ibv_query_port, "IBVERBS_1.1");
	LOAD(ibv_query_gid, "IBVERBS_1.1");
	LOAD(ibv_query_qp, "IBVERBS_1.1");
	LOAD(ibv_alloc_pd, "IBVERBS_1.1");
	LOAD(ibv_dealloc_pd, "IBVERBS_1.1");
	LOAD(ibv_reg_mr, "IBVERBS_1.1");
	LOAD(ibv_reg_mr_iova2, "IBVERBS_1.8");
	LOAD(ibv_reg_dmabuf_mr, "IBVERBS_1.12");
	LOAD(ibv_dereg_mr, "IBVERBS_1.1");
	LOAD(ibv_create_cq, "IBVERBS_1.1");
	LOAD(ibv_destroy_cq, "IBVERBS_1.1");
	LOAD(ibv_create_qp, "IBVERBS_1.1");
	LOAD(ibv_modify_qp, "IBVERBS_1.1");
	LOAD(ibv_destroy_qp, "IBVERBS_1.1");
	LOAD(ibv_event_type_str, "IBVERBS_1.1");
	LOAD(ibv_query_ece, "IBVERBS_1.10");
	LOAD(ibv_set_ece, "IBVERBS_1.10");
	NEED(!dlvsym(handle, "ibv_open_device", "IBVERBS_2.0"));
	/* A name without a version is the newest. */
	NEED(dlsym(handle, "ibv_open_device") == dlvsym(handle, "ibv_open_device", "IBVERBS_1.1"));
}

static void connect_qp(struct ibv_qp *qp, struct ibv_qp *peer, union ibv_gid gid)
{
	struct ibv_qp_attr attr;

	memset(&attr, 0, sizeof attr);
	attr.qp_state = IBV_QPS_INIT;
	attr.port_num = 1;
	attr.qp_access_flags = IBV_ACCESS_REMOTE_WRITE;
	NEED(!verbs.ibv_modify_qp(qp, &attr,
							  IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
	attr.qp_state = IBV_QPS_RTR;
	attr.path_mtu = IBV_MTU_4096;
	attr.dest_qp_num = peer->qp_num;
	attr.max_dest_rd_atomic = 1;
	attr.min_rnr_timer = 12;
	attr.ah_attr.is_global = 1;
	attr.ah_attr.port_num = 1;
	attr.ah_attr.grh.dgid = gid;
	attr.ah_attr.grh.hop_limit = 255;
	NEED(!verbs.ibv_modify_qp(qp, &attr,
							  IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
								  IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER));
	attr.qp_state = IBV_QPS_RTS;
	attr.timeout = 20;
	attr.retry_cnt = 7;
	attr.rnr_retry = 7;
	attr.max_rd_atomic = 1;
	NEED(!verbs.ibv_modify_qp(qp, &attr,
							  IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
								  IBV_QP_MAX_QP_RD_ATOMIC));
}

/* Waits for one completion. */
static struct ibv_wc next(struct ibv_cq *cq)
{
	struct ibv_wc wc;
	time_t until = time(NULL) + PATIENCE;
	int n;

	while (!(n = ibv_poll_cq(cq, 1, &wc)))
		NEED(time(NULL) < until);
	NEED(n == 1 && wc.status == IBV_WC_SUCCESS);
	return wc;
}

static void write_between(struct ibv_context *context)
{
	struct ibv_qp_init_attr init;
	struct ibv_recv_wr receive, *bad_receive;
	struct ibv_send_wr send, *bad_send;
	struct ibv_sge piece;
	union ibv_gid gid;
	struct ibv_pd *pd = verbs.ibv_alloc_pd(context);
	struct ibv_cq *cq = verbs.ibv_create_cq(context, 16, NULL, NULL, 0);
	char *memory = malloc(2 * SIZE);

	NEED(pd && cq && memory);
	for (int i = 0; i < SIZE; i++)
		memory[i] = (char)(i * 31 + i / 4096);
	memset(memory + SIZE, 0, SIZE);
	struct ibv_mr *mr = verbs.ibv_reg_mr_iova2(pd, memory, 2 * SIZE, (uintptr_t)memory,
											   IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
												   IBV_ACCESS_REMOTE_READ | IBV_ACCESS_RELAXED_ORDERING);
	NEED(mr && !verbs.ibv_query_gid(context, 1, 0, &gid));
	memset(&init, 0, sizeof init);
	init.send_cq = init.recv_cq = cq;
	init.qp_type = IBV_QPT_RC;
	init.cap.max_send_wr = init.cap.max_recv_wr = 4;
	init.cap.max_send_sge = init.cap.max_recv_sge = 1;
	struct ibv_qp *a = verbs.ibv_create_qp(pd, &init), *b = verbs.ibv_create_qp(pd, &init);
	NEED(a && b);
	connect_qp(a, b, gid);
	connect_qp(b, a, gid);
	memset(&receive, 0, sizeof receive);
	NEED(!ibv_post_recv(b, &receive, &bad_receive));
	memset(&send, 0, sizeof send);
	piece.addr = (uintptr_t)memory;
	piece.length = SIZE;
	piece.lkey = mr->lkey;
	send.sg_list = &piece;
	send.num_sge = 1;
	send.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
	send.send_flags = IBV_SEND_SIGNALED;
	send.imm_data = 7;
	send.wr.rdma.remote_addr = (uintptr_t)memory + SIZE;
	send.wr.rdma.rkey = mr->rkey;
	NEED(!ibv_post_send(a, &send, &bad_send));
	for (int i = 0; i < 2; i++) {
		struct ibv_wc wc = next(cq);

		if (wc.opcode == IBV_WC_RECV_RDMA_WITH_IMM)
			NEED(wc.imm_data == 7 && !memcmp(memory, memory + SIZE, SIZE));
	}
	NEED(!verbs.ibv_destroy_qp(a) && !verbs.ibv_destroy_qp(b) && !verbs.ibv_dereg_mr(mr));
	NEED(!verbs.ibv_destroy_cq(cq) && !verbs.ibv_dealloc_pd(pd));
	free(memory);
}

int main(int argc, char **argv)
{
	struct ibv_device_attr device;
	int count = 0;

	load();
	for (int i = 1; i < argc; i++) {
		if (!dlopen(argv[i], RTLD_NOW)) {
			fprintf(stderr, "%s\n", dlerror());
			return 1;
		}
	}
	NEED(!verbs.ibv_fork_init());
	struct ibv_device **list = verbs.ibv_get_device_list(&count);
	NEED(list && count == 1);
	struct ibv_context *context = verbs.ibv_open_device(list[0]);
	NEED(context && !verbs.ibv_query_device(context, &device) && device.phys_port_cnt == 1);
	printf("%s\n", verbs.ibv_get_device_name(list[0]));
	/* NCCL asks a vendor's library for every device. */
	for (int i = 1; i < argc; i++) {
		void *found = dlsym(dlopen(argv[i], RTLD_NOW), "mlx5dv_is_supported");
		bool (*supported)(struct ibv_device *);

		memcpy(&supported, &found, sizeof found);
		NEED(!found || !supported(list[0]));
	}
	write_between(context);
	NEED(!verbs.ibv_close_device(context));
	verbs.ibv_free_device_list(list);
	return 0;
}
