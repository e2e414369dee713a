/* More than 64 contexts of one address in a process, each with a UDP port of its own: writes from the last to the first.
 * Usage: crowd CONTEXTS */
#include "check.h"

int main(int argc, char **argv)
{
	int contexts = argc > 1 ? atoi(argv[1]) : 70;
	struct bed *beds = calloc((size_t)contexts, sizeof *beds);
	struct bed *last = &beds[contexts - 1];
	struct ibv_send_wr wr, *bad;
	struct ibv_sge sge;
	struct ibv_wc wc;
	uint32_t first_qpn, last_qpn;

	NEED(beds && contexts > 1);
	for (int i = 0; i < contexts; i++)
		open_bed(&beds[i]);
	/* The place of a context is in its numbers. */
	NEED(mrc_get_qpn(beds[0].a, &first_qpn) == 0 && mrc_get_qpn(last->a, &last_qpn) == 0);
	CHECK((last_qpn >> 16) - (first_qpn >> 16) == (uint32_t)contexts - 1);
	connect_qp(&beds[0], beds[0].a, last->a);
	connect_qp(last, last->a, beds[0].a);
	memset(last->memory, 'c', 4096);
	wr = write_of(last, &sge, 0, 0, 4096);
	wr.wr.rdma.remote_addr = (uintptr_t)beds[0].memory;
	wr.wr.rdma.rkey = beds[0].mr->rkey;
	CHECK(mrc_post_send(last->a, &wr, &bad) == 0 && poll_for(last->cq, &wc, 1) == 1 && wc.status == IBV_WC_SUCCESS);
	CHECK(!memcmp(last->memory, beds[0].memory, 4096));
	for (int i = 0; i < contexts; i++)
		close_bed(&beds[i]);
	free(beds);
	return failures != 0;
}
