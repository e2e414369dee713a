/* Two queue pairs of one process: one writes a text with an immediate into memory that it does not own. */
#include <arpa/inet.h>
#include <mrc.h>
#include <stdio.h>
#include <stdlib.h>

#define REQUIRE(what) do { if (!(what)) { perror(#what); exit(1); } } while (0)

static void connect_qp(struct mrc_qp *qp, uint32_t peer, const union ibv_gid *gid)
{
	struct ibv_qp_attr a = {.qp_state = IBV_QPS_INIT, .qp_access_flags = IBV_ACCESS_REMOTE_WRITE};
	REQUIRE(!mrc_modify_qp(qp, &a, IBV_QP_STATE | IBV_QP_ACCESS_FLAGS, NULL, 0));
	a.qp_state = IBV_QPS_RTR, a.path_mtu = IBV_MTU_4096, a.dest_qp_num = peer;
	a.ah_attr.is_global = 1, a.ah_attr.grh.dgid = *gid;
	REQUIRE(!mrc_modify_qp(qp, &a, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN, NULL, 0));
	a.qp_state = IBV_QPS_RTS;
	REQUIRE(!mrc_modify_qp(qp, &a, IBV_QP_STATE | IBV_QP_SQ_PSN, NULL, 0));
}

int main(void)
{
	struct ibv_device **devices = ibv_get_device_list(NULL);
	REQUIRE(devices && devices[0]);
	struct ibv_context *device = ibv_open_device(devices[0]);
	REQUIRE(device);
	struct mrc_context *mrc = mrc_create_context(device, NULL);
	struct ibv_pd *pd = ibv_alloc_pd(device);
	struct mrc_cq *cq = mrc_create_cq(mrc, 16, NULL, NULL, 0);
	static char from[64] = "hello over every plane", to[64];
	struct ibv_mr *source = ibv_reg_mr(pd, from, sizeof from, IBV_ACCESS_LOCAL_WRITE);
	struct ibv_mr *target = ibv_reg_mr(pd, to, sizeof to, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
	struct mrc_qp_init_attr init = {.send_cq = cq, .recv_cq = cq, .pd = pd, .cap = {8, 8, 1, 1, 0}};
	struct mrc_qp *a = mrc_create_qp(mrc, &init), *b = mrc_create_qp(mrc, &init);
	union ibv_gid gid;
	uint32_t number_a, number_b;
	REQUIRE(source && target && a && b && !ibv_query_gid(device, 1, 0, &gid));
	REQUIRE(!mrc_get_qpn(a, &number_a) && !mrc_get_qpn(b, &number_b));
	connect_qp(a, number_b, &gid);
	connect_qp(b, number_a, &gid);
	struct ibv_recv_wr receive = {.wr_id = 1}, *bad_receive;
	REQUIRE(!mrc_post_recv(b, &receive, &bad_receive));
	struct ibv_sge piece = {.addr = (uintptr_t)from, .length = sizeof from, .lkey = source->lkey};
	struct ibv_send_wr write = {.sg_list = &piece, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE_WITH_IMM,
		.send_flags = IBV_SEND_SIGNALED, .imm_data = htonl(7)}, *bad_write;
	write.wr.rdma.remote_addr = (uintptr_t)to, write.wr.rdma.rkey = target->rkey;
	REQUIRE(!mrc_post_send(a, &write, &bad_write));
	for (int done = 0; done < 2;) {
		struct ibv_wc wc;
		if (mrc_poll_cq(cq, 1, &wc) != 1)
			continue;
		REQUIRE(wc.status == IBV_WC_SUCCESS);
		if (wc.opcode == IBV_WC_RECV_RDMA_WITH_IMM)
			printf("%s (%u bytes, immediate %u)\n", to, wc.byte_len, ntohl(wc.imm_data));
		done++;
	}
	REQUIRE(!mrc_destroy_context(mrc) && !ibv_close_device(device)); /* takes everything along */
	ibv_free_device_list(devices);
	return 0;
}
