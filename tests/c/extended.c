/* Extended verbs: completions that are read one by one, requests that calls build, the extended query of a device; and
 * details of plain verbs that programs rely on. */
#include "check.h"

#include <infiniband/sa.h>
#include <rdma/ib_user_sa.h>
#include <rdma/ib_user_verbs.h>
#include <stddef.h>

/* Private to rdma-core, whose other libraries call them. */
void ibv_copy_ah_attr_from_kern(struct ibv_ah_attr *to, struct ib_uverbs_ah_attr *from);
void ibv_copy_qp_attr_from_kern(struct ibv_qp_attr *to, struct ib_uverbs_qp_attr *from);
void ibv_copy_path_rec_from_kern(struct ibv_sa_path_rec *to, struct ib_user_path_rec *from);
void ibv_copy_path_rec_to_kern(struct ib_user_path_rec *to, struct ibv_sa_path_rec *from);

#define LENGTH 5000

static struct ibv_context *device;
static struct ibv_pd *pd;
static struct ibv_mr *mr;
static char memory[3 * LENGTH];

static void query(void)
{
	struct ibv_query_device_ex_input input = {.comp_mask = 0};
	struct ibv_device_attr_ex attr;
	struct ibv_gid_entry entries[8];
	struct ibv_port_attr port;

	memset(&attr, 0xFF, sizeof attr);
	CHECK(ibv_query_device_ex(device, &input, &attr) == 0);
	CHECK(attr.phys_port_cnt_ex == 1 && attr.orig_attr.phys_port_cnt == 1);
	CHECK(attr.orig_attr.vendor_id != 0);
	CHECK(attr.comp_mask == 0 && attr.odp_caps.general_caps == 0 && attr.max_dm_size == 0);
	CHECK(ibv_query_port(device, 1, &port) == 0 && port.gid_tbl_len == 4);
	/* A table that is too short is refused, not cut. */
	CHECK(ibv_query_gid_table(device, entries, 4, 0) == 4 && ibv_query_gid_table(device, entries, 8, 0) == 4);
	CHECK(ibv_query_gid_table(device, entries, 3, 0) == -EINVAL);
}

static struct ibv_cq_ex *make_cq(void)
{
	struct ibv_cq_init_attr_ex attr;

	memset(&attr, 0, sizeof attr);
	attr.cqe = 16;
	attr.wc_flags = IBV_WC_EX_WITH_COMPLETION_TIMESTAMP;
	P_FAILS(ibv_create_cq_ex(device, &attr), EOPNOTSUPP);
	attr.wc_flags = IBV_WC_STANDARD_FLAGS;
	attr.comp_mask = IBV_CQ_INIT_ATTR_MASK_FLAGS;
	attr.flags = IBV_CREATE_CQ_ATTR_SINGLE_THREADED;
	attr.cq_context = memory;
	struct ibv_cq_ex *cq = ibv_create_cq_ex(device, &attr);
	NEED(cq && cq->cq_context == memory && cq->context == device);
	return cq;
}

static struct ibv_qp *make(struct ibv_cq_ex *cq, uint64_t operations, int fails)
{
	struct ibv_qp_init_attr_ex init;

	memset(&init, 0, sizeof init);
	init.send_cq = init.recv_cq = ibv_cq_ex_to_cq(cq);
	init.qp_type = IBV_QPT_RC;
	init.cap.max_send_wr = init.cap.max_recv_wr = 8;
	init.cap.max_send_sge = init.cap.max_recv_sge = 2;
	init.cap.max_inline_data = 64;
	init.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
	init.pd = pd;
	init.send_ops_flags = operations;
	if (fails) {
		P_FAILS(ibv_create_qp_ex(device, &init), fails);
		return NULL;
	}
	struct ibv_qp *qp = ibv_create_qp_ex(device, &init);
	NEED(qp && ibv_qp_to_qp_ex(qp));
	return qp;
}

static void connect_to(struct ibv_qp *qp, struct ibv_qp *peer)
{
	struct ibv_qp_attr attr;

	memset(&attr, 0, sizeof attr);
	attr.qp_state = IBV_QPS_INIT;
	attr.port_num = 1;
	attr.qp_access_flags = IBV_ACCESS_REMOTE_WRITE;
	NEED(ibv_modify_qp(qp, &attr, TO_INIT) == 0);
	attr.qp_state = IBV_QPS_RTR;
	attr.path_mtu = IBV_MTU_1024;
	attr.dest_qp_num = peer->qp_num;
	attr.ah_attr.is_global = 1;
	NEED(ibv_query_gid(device, 1, 0, &attr.ah_attr.grh.dgid) == 0);
	NEED(ibv_modify_qp(qp, &attr, TO_RTR) == 0);
	attr.qp_state = IBV_QPS_RTS;
	NEED(ibv_modify_qp(qp, &attr, TO_RTS) == 0);
}

/* Waits until a completion can be read. */
static void begin_poll(struct ibv_cq_ex *cq)
{
	struct ibv_poll_cq_attr attr = {.comp_mask = 0};
	double until = now() + PATIENCE;
	int result;

	while ((result = ibv_start_poll(cq, &attr)) == ENOENT)
		NEED(now() < until);
	NEED(result == 0);
}

static void build_and_read(struct ibv_cq_ex *cq, struct ibv_qp *a, struct ibv_qp *b)
{
	struct ibv_qp_ex *build = ibv_qp_to_qp_ex(a);
	struct ibv_poll_cq_attr attr = {.comp_mask = 1}, none = {.comp_mask = 0};
	struct ibv_recv_wr receive = {.wr_id = 99};
	struct ibv_sge pieces[2] = {{(uintptr_t)memory, 100, 0}, {(uintptr_t)memory + 100, 300, 0}};
	struct ibv_data_buf buffers[2] = {{"open", 4}, {"mrc", 3}};
	int writes = 0, receives = 0;

	pieces[0].lkey = pieces[1].lkey = mr->lkey;
	CHECK(ibv_start_poll(cq, &attr) == EINVAL);
	CHECK(ibv_start_poll(cq, &none) == ENOENT);
	/* Success needs no place for a bad request. */
	NEED(ibv_post_recv(b, &receive, NULL) == 0);

	for (int i = 0; i < LENGTH; i++)
		memory[i] = (char)(i * 13 + 1);
	ibv_wr_start(build);
	build->wr_id = 1, build->wr_flags = IBV_SEND_SIGNALED;
	ibv_wr_rdma_write(build, mr->rkey, (uintptr_t)memory + LENGTH);
	ibv_wr_set_sge(build, mr->lkey, (uintptr_t)memory, LENGTH);
	build->wr_id = 2, build->wr_flags = 0;
	ibv_wr_rdma_write(build, mr->rkey, (uintptr_t)memory + 2 * LENGTH);
	ibv_wr_set_sge_list(build, 2, pieces);
	build->wr_id = 3, build->wr_flags = IBV_SEND_SIGNALED | IBV_SEND_INLINE;
	ibv_wr_rdma_write_imm(build, mr->rkey, (uintptr_t)memory + 2 * LENGTH + 400, htobe32(0x01020304));
	ibv_wr_set_inline_data_list(build, 2, buffers);
	NEED(ibv_wr_complete(build) == 0);

	begin_poll(cq);
	do {
		CHECK(cq->status == IBV_WC_SUCCESS);
		if (ibv_wc_read_opcode(cq) == IBV_WC_RECV_RDMA_WITH_IMM) {
			CHECK(cq->wr_id == 99 && ibv_wc_read_byte_len(cq) == 7);
			CHECK(ibv_wc_read_imm_data(cq) == htobe32(0x01020304) && ibv_wc_read_wc_flags(cq) == IBV_WC_WITH_IMM);
			CHECK(ibv_wc_read_qp_num(cq) == b->qp_num && ibv_wc_read_src_qp(cq) == a->qp_num);
			CHECK(ibv_wc_read_sl(cq) == 0 && ibv_wc_read_slid(cq) == 0 && ibv_wc_read_dlid_path_bits(cq) == 0);
			receives++;
		} else {
			CHECK(ibv_wc_read_opcode(cq) == IBV_WC_RDMA_WRITE && ibv_wc_read_vendor_err(cq) == 0);
			CHECK(cq->wr_id == (writes ? 3 : 1));
			writes++;
		}
		if (receives + writes == 3)
			break;
		double until = now() + PATIENCE;
		int result;
		while ((result = ibv_next_poll(cq)) == ENOENT)
			NEED(now() < until);
		NEED(result == 0);
	} while (1);
	ibv_end_poll(cq);
	CHECK(writes == 2 && receives == 1);
	CHECK(memcmp(memory, memory + LENGTH, LENGTH) == 0);
	CHECK(memcmp(memory, memory + 2 * LENGTH, 400) == 0 && memcmp(memory + 2 * LENGTH + 400, "openmrc", 7) == 0);
}

/* What is wrong with a request is said at the end, and none of them is posted. */
static void wrong_ones(struct ibv_qp *qp)
{
	struct ibv_qp_ex *build = ibv_qp_to_qp_ex(qp);
	char more[65] = {0};

	ibv_wr_start(build);
	ibv_wr_rdma_write(build, mr->rkey, (uintptr_t)memory);
	ibv_wr_set_sge(build, mr->lkey, (uintptr_t)memory, 8);
	ibv_wr_rdma_write(build, mr->rkey, (uintptr_t)memory);
	ibv_wr_set_inline_data(build, more, sizeof more);
	CHECK(ibv_wr_complete(build) == EINVAL);
	/* More than the queue holds. */
	ibv_wr_start(build);
	for (int i = 0; i < 9; i++) {
		ibv_wr_rdma_write(build, mr->rkey, (uintptr_t)memory);
		ibv_wr_set_sge(build, mr->lkey, (uintptr_t)memory, 8);
	}
	CHECK(ibv_wr_complete(build) == ENOMEM);
	ibv_wr_start(build);
	ibv_wr_rdma_write(build, mr->rkey, (uintptr_t)memory);
	ibv_wr_abort(build);
	ibv_wr_start(build);
	CHECK(ibv_wr_complete(build) == 0);
}

static void kernel_structures(void)
{
	struct ib_uverbs_qp_attr kernel;
	struct ib_user_path_rec record, back;
	struct ibv_sa_path_rec path;
	struct ibv_qp_attr attr;
	unsigned char *byte = (unsigned char *)&kernel, *of_record = (unsigned char *)&record;

	for (size_t i = 0; i < sizeof kernel; i++)
		byte[i] = (unsigned char)(i + 1);
	for (size_t i = 0; i < sizeof record; i++)
		of_record[i] = (unsigned char)(i + 3);
	ibv_copy_qp_attr_from_kern(&attr, &kernel);
	CHECK((uint32_t)attr.cur_qp_state == kernel.cur_qp_state && attr.dest_qp_num == kernel.dest_qp_num);
	CHECK(attr.cap.max_inline_data == kernel.max_inline_data && attr.pkey_index == kernel.pkey_index);
	CHECK(attr.alt_timeout == kernel.alt_timeout && attr.rnr_retry == kernel.rnr_retry);
	CHECK(memcmp(attr.ah_attr.grh.dgid.raw, kernel.ah_attr.grh.dgid, 16) == 0);
	CHECK(attr.alt_ah_attr.port_num == kernel.alt_ah_attr.port_num);
	ibv_copy_ah_attr_from_kern(&attr.ah_attr, &kernel.alt_ah_attr);
	CHECK(attr.ah_attr.dlid == kernel.alt_ah_attr.dlid && attr.ah_attr.grh.flow_label == kernel.alt_ah_attr.grh.flow_label);
	/* One byte in verbs, four in the kernel's structure. */
	record.mtu = 5;
	ibv_copy_path_rec_from_kern(&path, &record);
	CHECK(path.pkey == record.pkey && path.mtu == 5 && path.preference == record.preference);
	ibv_copy_path_rec_to_kern(&back, &path);
	CHECK(memcmp(&record, &back, sizeof record) == 0);
}

int main(void)
{
	struct ibv_device **devices = ibv_get_device_list(NULL);

	NEED(devices && (device = ibv_open_device(devices[0])) && (pd = ibv_alloc_pd(device)));
	NEED((mr = ibv_reg_mr(pd, memory, sizeof memory, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE)));
	query();
	struct ibv_cq_ex *cq = make_cq();
	make(cq, IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_SEND, EOPNOTSUPP);
	struct ibv_qp *a = make(cq, IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM, 0);
	struct ibv_qp *b = make(cq, IBV_QP_EX_WITH_RDMA_WRITE, 0);
	connect_to(a, b);
	connect_to(b, a);
	build_and_read(cq, a, b);
	wrong_ones(b);
	kernel_structures();
	CHECK(ibv_destroy_qp(a) == 0 && ibv_destroy_qp(b) == 0 && ibv_destroy_cq(ibv_cq_ex_to_cq(cq)) == 0);
	CHECK(ibv_dereg_mr(mr) == 0 && ibv_dealloc_pd(pd) == 0 && ibv_close_device(device) == 0);
	ibv_free_device_list(devices);
	return failures > 0;
}
