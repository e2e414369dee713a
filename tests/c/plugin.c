/* A client in the manner of a collective library's network plugin: its own protocol of isend, irecv and test over writes
 * with immediate, several queue pairs per connection, and control messages on which the sender spins in memory.
 * Written from the interface's description alone. Two processes; every byte is compared. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <mrc.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define REQUIRE(what)                                                                                                  \
	do {                                                                                                               \
		if (!(what)) {                                                                                                 \
			fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #what, strerror(errno));                            \
			exit(1);                                                                                                   \
		}                                                                                                              \
	} while (0)

#define QPS 2
#define DEPTH 64 /* requests of a connection */
#define GROUP 4 /* receives in one request */
#define LARGEST (256 << 10)
#define ROUNDS 400

/* What a receiver tells: the 64-bit index is written last, and the sender spins on it. */
struct entry {
	uint64_t addr;
	uint32_t size, rkey, tag, receives;
	uint32_t pad[4];
	uint64_t index;
	uint64_t tail[2];
};
_Static_assert(sizeof(struct entry) == 64 && offsetof(struct entry, index) == 40, "one line of the ring");

struct card {
	uint32_t qpn[QPS], ring_rkey, sizes_rkey;
	uint64_t ring, sizes;
	union ibv_gid gid;
	enum ibv_mtu mtu;
};

struct request {
	int used, pending; /* completions that are missing */
	int receives;
	int sizes[GROUP];
	uint64_t slot;
};

struct comm {
	struct ibv_context *device;
	struct mrc_context *mrc;
	struct ibv_pd *pd;
	struct mrc_cq *cq;
	struct ibv_cq *verbs_cq;
	struct mrc_qp_hint *hint[QPS];
	struct mrc_qp *qp[QPS];
	struct entry *ring; /* of the sender, written by the receiver */
	struct entry *outgoing; /* of the receiver, from which it writes */
	int (*sizes)[GROUP]; /* of the receiver, written by the sender; of the sender, from which it writes */
	struct ibv_mr *ring_mr, *outgoing_mr, *sizes_mr;
	struct card peer;
	struct request requests[DEPTH];
	uint64_t posted;
};

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void *watch(void *context)
{
	struct ibv_async_event event;

	while (ibv_get_async_event(context, &event) == 0) {
		fprintf(stderr, "asynchronous event: %s\n", ibv_event_type_str(event.event_type));
		ibv_ack_async_event(&event);
	}
	return NULL;
}

/* As such a plugin looks for its devices, with everything it asks them. */
static struct ibv_context *find_device(struct mrc_context **mrc)
{
	struct mrc_context_attr versions = {.mrc_api_version_used = MRC_API_VER(1, 0, 1)};
	struct mrc_device_attr mrc_attr;
	struct ibv_device_attr attr;
	struct ibv_port_attr port;
	struct ibv_device **list;
	char path[PATH_MAX], text[32] = {0};
	pthread_t thread;
	int count = 0, supported = 0, fd;

	REQUIRE(ibv_fork_init() == 0);
	REQUIRE((list = ibv_get_device_list(&count)) && count >= 1);
	struct ibv_context *device = ibv_open_device(list[0]);
	REQUIRE(device && ibv_query_device(device, &attr) == 0);
	REQUIRE(attr.sys_image_guid && attr.max_qp > 1000 && attr.phys_port_cnt == 1);
	REQUIRE(ibv_query_port(device, 1, &port) == 0 && port.state == IBV_PORT_ACTIVE);
	REQUIRE(port.link_layer == IBV_LINK_LAYER_ETHERNET && port.active_speed && port.active_width);
	/* Where it is in the machine. */
	snprintf(path, sizeof path, "/sys/class/infiniband/%s/device", list[0]->name);
	char *place = realpath(path, NULL);
	REQUIRE(place && strlen(place) > 5);
	place[strlen(place) - 1] = '0';
	free(place);
	snprintf(path, sizeof path, "/sys/class/infiniband/%s/ports/1/gid_attrs/types/0", list[0]->name);
	REQUIRE((fd = open(path, O_RDONLY)) >= 0 && read(fd, text, sizeof text - 1) > 0 && strstr(text, "RoCE v2"));
	close(fd);
	REQUIRE(mrc_query_device(device, &mrc_attr, &supported) == 0 && supported);
	REQUIRE((*mrc = mrc_create_context(device, &versions)));
	REQUIRE(pthread_create(&thread, NULL, watch, device) == 0 && pthread_detach(thread) == 0);
	/* Registration of device memory is probed so. */
	struct ibv_pd *pd = ibv_alloc_pd(device);
	errno = 0;
	REQUIRE(pd && !ibv_reg_dmabuf_mr(pd, 0, 0, 0, -1, 0) && (errno == EOPNOTSUPP || errno == EPROTONOSUPPORT));
	REQUIRE(ibv_dealloc_pd(pd) == 0);
	ibv_free_device_list(list);
	return device;
}

static void *ring_memory(size_t size)
{
	void *memory = NULL;

	REQUIRE(posix_memalign(&memory, 4096, size) == 0);
	return memset(memory, 0, size);
}

static struct ibv_mr *reg(struct comm *comm, void *memory, size_t size)
{
	struct ibv_mr *mr = ibv_reg_mr_iova2(comm->pd, memory, size, (uintptr_t)memory,
		IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_RELAXED_ORDERING);

	REQUIRE(mr && mr->lkey && mr->rkey);
	return mr;
}

static void open_comm(struct comm *comm, int fd, int accepts)
{
	struct ibv_port_attr port;
	struct card mine;
	char ready = 1;

	memset(comm, 0, sizeof *comm);
	memset(&mine, 0, sizeof mine);
	comm->device = find_device(&comm->mrc);
	REQUIRE((comm->pd = ibv_alloc_pd(comm->device)));
	REQUIRE((comm->cq = mrc_create_cq(comm->mrc, 128 * QPS, NULL, NULL, 0)));
	REQUIRE((comm->verbs_cq = ibv_create_cq(comm->device, 128 * QPS, NULL, NULL, 0)));
	for (int i = 0; i < QPS; i++) {
		struct mrc_qp_hint_init_attr hint = {{QPS, 1, 0, {1, 0, 0, 0, 9, 0, 0, 0, 1, 0, 0, 0, 99, 0, 0, 0}}};
		struct mrc_qp_init_attr init = {.qp_context = comm, .send_cq = comm->cq, .recv_cq = comm->cq, .pd = comm->pd,
			.cap = {128, 64, 1, 1, 0}};
		struct mrc_qp_attr mrc;
		struct ibv_qp_attr attr;

		memset(&mrc, 0, sizeof mrc);
		memset(&attr, 0, sizeof attr);
		REQUIRE((comm->hint[i] = mrc_create_qp_hint(comm->mrc, &hint)));
		REQUIRE((comm->qp[i] = mrc_create_qp(comm->mrc, &init)));
		attr.qp_state = IBV_QPS_INIT, attr.port_num = 1, attr.qp_access_flags = IBV_ACCESS_REMOTE_WRITE;
		mrc.qp_hint = comm->hint[i];
		REQUIRE(mrc_modify_qp(comm->qp[i], &attr, 0x39, &mrc, MRC_QP_HINT) == 0);
		REQUIRE(mrc_get_qpn(comm->qp[i], &mine.qpn[i]) == 0);
	}
	comm->ring = ring_memory(DEPTH * GROUP * sizeof(struct entry));
	comm->outgoing = ring_memory(DEPTH * GROUP * sizeof(struct entry));
	comm->sizes = ring_memory(DEPTH * sizeof *comm->sizes);
	comm->ring_mr = reg(comm, comm->ring, DEPTH * GROUP * sizeof(struct entry));
	comm->outgoing_mr = reg(comm, comm->outgoing, DEPTH * GROUP * sizeof(struct entry));
	comm->sizes_mr = reg(comm, comm->sizes, DEPTH * sizeof *comm->sizes);
	for (int i = 0; i < 4; i++)
		REQUIRE(ibv_query_gid(comm->device, 1, i, &mine.gid) == 0);
	REQUIRE(ibv_query_port(comm->device, 1, &port) == 0);
	mine.mtu = port.active_mtu;
	mine.ring = (uintptr_t)comm->ring, mine.ring_rkey = comm->ring_mr->rkey;
	mine.sizes = (uintptr_t)comm->sizes, mine.sizes_rkey = comm->sizes_mr->rkey;
	REQUIRE(write(fd, &mine, sizeof mine) == sizeof mine && read(fd, &comm->peer, sizeof mine) == sizeof mine);
	/* The accepting end is ready to send before the connecting end is ready to receive. */
	if (!accepts)
		REQUIRE(read(fd, &ready, 1) == 1);
	for (int i = 0; i < QPS; i++) {
		struct mrc_qp_attr mrc;
		struct ibv_qp_attr attr;

		memset(&mrc, 0, sizeof mrc);
		memset(&attr, 0, sizeof attr);
		attr.qp_state = IBV_QPS_RTR, attr.dest_qp_num = comm->peer.qpn[i];
		attr.path_mtu = comm->peer.mtu < mine.mtu ? comm->peer.mtu : mine.mtu;
		attr.ah_attr.is_global = 1, attr.ah_attr.port_num = 1;
		attr.ah_attr.grh.dgid = comm->peer.gid, attr.ah_attr.grh.hop_limit = 255;
		REQUIRE(mrc_modify_qp(comm->qp[i], &attr, 0x101181, &mrc, 0) == 0);
		attr.qp_state = IBV_QPS_RTS, attr.timeout = 20, attr.retry_cnt = 7, attr.rnr_retry = 7;
		mrc.timeout = 20;
		REQUIRE(mrc_modify_qp(comm->qp[i], &attr, 0x10E01, &mrc, MRC_QP_TIMEOUT) == 0);
	}
	if (accepts)
		REQUIRE(write(fd, &ready, 1) == 1);
}

static void close_comm(struct comm *comm)
{
	for (int i = 0; i < QPS; i++)
		REQUIRE(mrc_destroy_qp(comm->qp[i]) == 0 && mrc_destroy_qp_hint(comm->hint[i]) == 0);
	REQUIRE(ibv_dereg_mr(comm->ring_mr) == 0 && ibv_dereg_mr(comm->outgoing_mr) == 0 && ibv_dereg_mr(comm->sizes_mr) == 0);
	REQUIRE(mrc_destroy_cq(comm->cq) == 0 && ibv_destroy_cq(comm->verbs_cq) == 0 && ibv_dealloc_pd(comm->pd) == 0);
	free(comm->ring), free(comm->outgoing), free(comm->sizes);
	/* Devices are never closed. */
}

/* A free place among the requests; NULL if there is none. */
static struct request *take(struct comm *comm)
{
	struct request *request = &comm->requests[comm->posted % DEPTH];

	if (request->used)
		return NULL;
	memset(request, 0, sizeof *request);
	request->used = 1, request->slot = comm->posted++ % DEPTH;
	return request;
}

static struct request *irecv(struct comm *comm, int count, char **data, const int *sizes, struct ibv_mr *mr)
{
	struct request *request = take(comm);
	struct ibv_recv_wr *bad_recv, recv;
	struct ibv_send_wr *bad, wr;
	struct ibv_sge sge;

	if (!request)
		return NULL;
	request->receives = count, request->pending = QPS;
	memset(&recv, 0, sizeof recv);
	recv.wr_id = request->slot;
	for (int i = 0; i < QPS; i++)
		REQUIRE(mrc_post_recv(comm->qp[i], &recv, &bad_recv) == 0);
	struct entry *entries = &comm->outgoing[request->slot * GROUP];
	for (int i = 0; i < count; i++)
		entries[i] = (struct entry){.addr = (uintptr_t)data[i], .size = (uint32_t)sizes[i], .rkey = mr->rkey,
			.tag = (uint32_t)i, .receives = (uint32_t)count, .index = comm->posted};
	memset(&wr, 0, sizeof wr);
	memset(&sge, 0, sizeof sge);
	sge.addr = (uintptr_t)entries, sge.length = (uint32_t)(count * (int)sizeof *entries), sge.lkey = comm->outgoing_mr->lkey;
	wr.wr_id = UINT64_MAX, wr.sg_list = &sge, wr.num_sge = 1, wr.opcode = IBV_WR_RDMA_WRITE;
	wr.wr.rdma.remote_addr = comm->peer.ring + request->slot * GROUP * sizeof *entries;
	wr.wr.rdma.rkey = comm->peer.ring_rkey;
	wr.send_flags = request->slot == 0 ? IBV_SEND_SIGNALED : 0;
	REQUIRE(mrc_post_send(comm->qp[0], &wr, &bad) == 0);
	return request;
}

/* NULL if the receiver has not told yet where to. */
static struct request *isend(struct comm *comm, char **data, const int *sizes, struct ibv_mr *mr)
{
	uint64_t slot = comm->posted % DEPTH;
	struct entry *entries = &comm->ring[slot * GROUP];

	if (*(volatile uint64_t *)&entries[0].index != comm->posted + 1)
		return NULL;
	int count = (int)entries[0].receives;
	for (int i = 1; i < count; i++)
		while (*(volatile uint64_t *)&entries[i].index != comm->posted + 1)
			;
	struct request *request = take(comm);
	if (!request)
		return NULL;
	request->receives = count, request->pending = QPS;
	for (int i = 0; i < count; i++)
		comm->sizes[slot][i] = sizes[i];
	for (int q = 0; q < QPS; q++) {
		struct ibv_send_wr *bad, wr[GROUP + 1];
		struct ibv_sge sge[GROUP + 1];

		memset(wr, 0, sizeof wr);
		memset(sge, 0, sizeof sge);
		for (int i = 0; i < count; i++) {
			/* Each queue pair has a share; all but the last are multiples of 128 bytes. */
			int share = (sizes[i] + QPS * 128 - 1) / (QPS * 128) * 128, from = q * share;
			int length = sizes[i] - from < share ? sizes[i] - from : share;

			if (length < 0)
				length = 0;
			REQUIRE(entries[i].size >= (uint32_t)sizes[i] && entries[i].tag == (uint32_t)i);
			sge[i] = (struct ibv_sge){(uintptr_t)data[i] + (unsigned int)from, (uint32_t)length, mr->lkey};
			wr[i].opcode = IBV_WR_RDMA_WRITE;
			wr[i].sg_list = length ? &sge[i] : NULL, wr[i].num_sge = length ? 1 : 0;
			wr[i].wr.rdma.remote_addr = entries[i].addr + (unsigned int)from, wr[i].wr.rdma.rkey = entries[i].rkey;
			wr[i].next = &wr[i + 1];
		}
		struct ibv_send_wr *last = count == 1 ? &wr[0] : &wr[count];
		if (count > 1) {
			sge[count] = (struct ibv_sge){(uintptr_t)comm->sizes[slot], sizeof comm->sizes[slot], comm->sizes_mr->lkey};
			last->sg_list = q == 0 ? &sge[count] : NULL, last->num_sge = q == 0;
			last->wr.rdma.remote_addr = comm->peer.sizes + slot * sizeof *comm->sizes;
			last->wr.rdma.rkey = comm->peer.sizes_rkey;
		}
		last->wr_id = slot, last->opcode = IBV_WR_RDMA_WRITE_WITH_IMM, last->imm_data = (uint32_t)sizes[0];
		last->send_flags = IBV_SEND_SIGNALED, last->next = NULL;
		REQUIRE(mrc_post_send(comm->qp[q], wr, &bad) == 0);
	}
	return request;
}

/* Whether a request is done; then how long its messages were. */
static int test(struct comm *comm, struct request *request, int *sizes)
{
	struct ibv_wc wc[4];
	int n = mrc_poll_cq(comm->cq, 4, wc);

	REQUIRE(n >= 0);
	for (int i = 0; i < n; i++) {
		if (wc[i].status != IBV_WC_SUCCESS)
			fprintf(stderr, "%s, opcode %d, vendor %u\n", ibv_wc_status_str(wc[i].status), wc[i].opcode, wc[i].vendor_err);
		REQUIRE(wc[i].status == IBV_WC_SUCCESS);
		if (wc[i].wr_id == UINT64_MAX)
			continue;
		struct request *of = &comm->requests[wc[i].wr_id];
		REQUIRE(of->used && of->pending > 0);
		if (wc[i].opcode == IBV_WC_RECV_RDMA_WITH_IMM) {
			REQUIRE(wc[i].wc_flags & IBV_WC_WITH_IMM);
			of->sizes[0] = (int)wc[i].imm_data;
		}
		of->pending--;
	}
	if (request->pending > 0)
		return 0;
	if (request->receives > 1)
		memcpy(request->sizes, comm->sizes[request->slot], sizeof request->sizes);
	memcpy(sizes, request->sizes, sizeof request->sizes);
	request->used = 0;
	return 1;
}

static int size_of(int round, int i)
{
	static const int sizes[] = {0, 1, 8, 127, 128, 129, 4096, 5000, 65536, 100001, LARGEST};

	return sizes[(round * 7 + i * 3) % 11];
}

static int group_of(int round)
{
	return round % 5 == 4 ? GROUP : 1;
}

static char byte_of(int round, int i, int at)
{
	return (char)(round * 31 + i * 7 + at);
}

#define BUFFERS 8 /* rounds under way */

static void run(struct comm *comm, int receives)
{
	char *memory = ring_memory((size_t)BUFFERS * GROUP * LARGEST);
	struct ibv_mr *mr = reg(comm, memory, (size_t)BUFFERS * GROUP * LARGEST);
	struct request *under_way[BUFFERS] = {NULL};
	double until = now() + 100;

	for (int next = 0, oldest = 0; oldest < ROUNDS;) {
		int sizes[GROUP], room[GROUP], lengths[GROUP];
		char *data[GROUP];

		REQUIRE(now() < until);
		if (next < ROUNDS && next - oldest < BUFFERS) {
			for (int i = 0; i < GROUP; i++) {
				data[i] = memory + (size_t)(next % BUFFERS * GROUP + i) * LARGEST;
				lengths[i] = size_of(next, i), room[i] = LARGEST;
				for (int at = 0; !receives && i < group_of(next) && at < lengths[i]; at++)
					data[i][at] = byte_of(next, i, at);
			}
			struct request *request = receives ? irecv(comm, group_of(next), data, room, mr) : isend(comm, data, lengths, mr);
			if (request)
				under_way[next++ % BUFFERS] = request;
		}
		if (oldest == next || !test(comm, under_way[oldest % BUFFERS], sizes))
			continue;
		for (int i = 0; receives && i < group_of(oldest); i++) {
			char *got = memory + (size_t)(oldest % BUFFERS * GROUP + i) * LARGEST;

			REQUIRE(sizes[i] == size_of(oldest, i));
			for (int at = 0; at < sizes[i]; at++)
				REQUIRE(got[at] == byte_of(oldest, i, at));
		}
		oldest++;
	}
	REQUIRE(ibv_dereg_mr(mr) == 0);
	free(memory);
}

int main(void)
{
	struct comm comm;
	int pair[2], status;
	char end = 1;

	REQUIRE(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
	pid_t child = fork();
	REQUIRE(child >= 0);
	open_comm(&comm, pair[child == 0], child == 0);
	run(&comm, child == 0);
	/* Both ends close at about the same time. */
	REQUIRE(write(pair[child == 0], &end, 1) == 1 && read(pair[child == 0], &end, 1) == 1);
	close_comm(&comm);
	if (child == 0)
		_exit(0);
	REQUIRE(waitpid(child, &status, 0) == child && status == 0);
	return 0;
}
