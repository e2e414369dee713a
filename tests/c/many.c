/* Many queue pairs of one process, each of which writes; then all of it is left to exit. */
#include "check.h"

#define PAIRS 500

int main(void)
{
	static struct mrc_qp *qps[2 * PAIRS];
	struct bed bed;
	struct mrc_cq *cq;

	open_bed(&bed);
	NEED((cq = mrc_create_cq(bed.mrc, 16, NULL, NULL, 0)));
	for (int i = 0; i < 2 * PAIRS; i++) {
		struct mrc_qp_init_attr init = {.send_cq = cq, .recv_cq = cq, .pd = bed.pd, .cap = {4, 4, 1, 1, 0}};

		NEED((qps[i] = mrc_create_qp(bed.mrc, &init)));
	}
	for (int i = 0; i < PAIRS; i++) {
		connect_qp(&bed, qps[2 * i], qps[2 * i + 1]);
		connect_qp(&bed, qps[2 * i + 1], qps[2 * i]);
	}
	for (int i = 0; i < 2 * PAIRS; i++) {
		struct ibv_sge sge;
		struct ibv_send_wr *bad, wr = write_of(&bed, &sge, 0, 4096 + 64 * (size_t)i, 64);

		wr.wr_id = (uint64_t)i;
		NEED(mrc_post_send(qps[i], &wr, &bad) == 0);
	}
	for (int done = 0; done < 2 * PAIRS; done++) {
		struct ibv_wc wc;

		NEED(poll_for(cq, &wc, 1) == 1 && wc.status == IBV_WC_SUCCESS);
	}
	return failures != 0;
}
