/* Functions that libibverbs has since version nodes 1.15 to 1.17. Headers of older versions lack them, so the program
 * finds them by name and has structures of its own. */
#define _GNU_SOURCE
#include "check.h"

#include <dlfcn.h>

#define MASK_IOVA 1
#define MASK_ADDR 2
#define MASK_FD 4
#define MASK_FD_OFFSET 8
#define MASK_DMAH 16

struct mr_init_attr {
	size_t length;
	int access;
	uint64_t comp_mask;
	uint64_t iova;
	void *addr;
	int fd;
	uint64_t fd_offset;
	void *dmah;
};

static struct ibv_mr *(*reg_mr_ex)(struct ibv_pd *, struct mr_init_attr *);
static int (*query_port_speed)(struct ibv_context *, uint8_t, uint64_t *);
static void *(*alloc_dmah)(struct ibv_context *, void *);
static int (*dealloc_dmah)(void *);
static int (*dm_export_dmabuf_fd)(void *);
static void *(*alloc_buf)(struct ibv_pd *, size_t, void **);
static struct ibv_mr *(*reg_buf_mr)(struct ibv_pd *, void *, void *, size_t, int);

/* Where `name` is: in any library, or in the one with version nodes. */
static void find(void *into, const char *name, const char *version)
{
	void *library = dlopen("libibverbs.so.1", RTLD_NOW);
	void *found = version ? dlvsym(library, name, version) : dlsym(RTLD_DEFAULT, name);

	NEED(found);
	memcpy(into, &found, sizeof found);
}

static void regions(struct bed *bed)
{
	int writable = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;
	struct mr_init_attr attr = {.length = 4096, .access = writable, .comp_mask = MASK_ADDR, .addr = bed->memory};
	struct ibv_send_wr wr, *bad;
	struct ibv_sge sge;
	struct ibv_wc wc;
	struct ibv_mr *mr;

	CHECK((mr = reg_mr_ex(bed->pd, &attr)) && mr->addr == bed->memory && mr->length == 4096);
	connect_qp(bed, bed->a, bed->b);
	connect_qp(bed, bed->b, bed->a);
	memset(bed->memory, 'm', 100);
	wr = write_of(bed, &sge, 0, 2000, 100);
	wr.wr.rdma.rkey = mr->rkey;
	CHECK(mrc_post_send(bed->a, &wr, &bad) == 0 && poll_for(bed->cq, &wc, 1) == 1 && wc.status == IBV_WC_SUCCESS);
	CHECK(!memcmp(bed->memory, bed->memory + 2000, 100));
	CHECK(ibv_dereg_mr(mr) == 0);
	attr.comp_mask = MASK_ADDR | MASK_IOVA;
	attr.iova = (uintptr_t)bed->memory;
	CHECK((mr = reg_mr_ex(bed->pd, &attr)) && ibv_dereg_mr(mr) == 0);
	attr.iova++;
	P_FAILS(reg_mr_ex(bed->pd, &attr), EOPNOTSUPP);
	attr.comp_mask = MASK_FD | MASK_FD_OFFSET | MASK_IOVA;
	attr.fd = -1;
	P_FAILS(reg_mr_ex(bed->pd, &attr), EOPNOTSUPP);
	attr.comp_mask = MASK_ADDR | MASK_DMAH;
	P_FAILS(reg_mr_ex(bed->pd, &attr), EOPNOTSUPP);
	attr.comp_mask = MASK_ADDR | (uint64_t)1 << 40;
	P_FAILS(reg_mr_ex(bed->pd, &attr), EOPNOTSUPP);
	attr.comp_mask = 0;
	P_FAILS(reg_mr_ex(bed->pd, &attr), EINVAL);
	attr.comp_mask = MASK_ADDR;
	attr.access = IBV_ACCESS_ON_DEMAND;
	P_FAILS(reg_mr_ex(bed->pd, &attr), EOPNOTSUPP);
	P_FAILS(reg_mr_ex(bed->pd, NULL), EINVAL);
	P_FAILS(reg_mr_ex(NULL, &attr), EINVAL);
}

/* The device has two planes of 25 Gb/s; the unit is 100 Mb/s. */
static void speed(struct bed *bed)
{
	struct mrc_ctl_port_attr down = {MRC_CTL_PORT_ADMIN_DISABLED}, up = {MRC_CTL_PORT_ADMIN_ENABLED};
	uint64_t found = 0;

	CHECK(query_port_speed(bed->device, 1, &found) == 0 && found == 500);
	CHECK(mrc_ctl_modify_port(bed->mrc, 2, &down, MRC_CTL_PORT_ADMIN_STATE) == 0);
	CHECK(query_port_speed(bed->device, 1, &found) == 0 && found == 250);
	CHECK(mrc_ctl_modify_port(bed->mrc, 2, &up, MRC_CTL_PORT_ADMIN_STATE) == 0);
	CHECK(query_port_speed(bed->device, 1, &found) == 0 && found == 500);
	E0_FAILS(query_port_speed(bed->device, 0, &found), EINVAL);
	E0_FAILS(query_port_speed(bed->device, 3, &found), EINVAL);
	E0_FAILS(query_port_speed(bed->device, 1, NULL), EINVAL);
	E0_FAILS(query_port_speed(NULL, 1, &found), EINVAL);
}

static void refused(struct bed *bed)
{
	void *buffer = NULL;

	P_FAILS(alloc_dmah(bed->device, NULL), EOPNOTSUPP);
	E0_FAILS(dealloc_dmah(NULL), EOPNOTSUPP);
	M1_FAILS(dm_export_dmabuf_fd(NULL), EOPNOTSUPP);
	P_FAILS(alloc_buf(bed->pd, 4096, &buffer), EOPNOTSUPP);
	P_FAILS(reg_buf_mr(bed->pd, NULL, bed->memory, 4096, 0), EOPNOTSUPP);
}

int main(int argc, char **argv)
{
	const char *by = argc > 1 ? argv[1] : NULL;
	struct bed bed;
	int versions = by && !strcmp(by, "versions");

	find(&reg_mr_ex, "ibv_reg_mr_ex", versions ? "IBVERBS_1.15" : NULL);
	find(&alloc_dmah, "ibv_alloc_dmah", versions ? "IBVERBS_1.15" : NULL);
	find(&dealloc_dmah, "ibv_dealloc_dmah", versions ? "IBVERBS_1.15" : NULL);
	find(&query_port_speed, "ibv_query_port_speed", versions ? "IBVERBS_1.16" : NULL);
	find(&dm_export_dmabuf_fd, "ibv_dm_export_dmabuf_fd", versions ? "IBVERBS_1.16" : NULL);
	find(&alloc_buf, "ibv_alloc_buf", versions ? "IBVERBS_1.17" : NULL);
	find(&reg_buf_mr, "ibv_reg_buf_mr", versions ? "IBVERBS_1.17" : NULL);
	open_bed(&bed);
	regions(&bed);
	speed(&bed);
	refused(&bed);
	close_bed(&bed);
	return failures != 0;
}
