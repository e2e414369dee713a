/* A process that opened a device forks, while another of its threads makes and destroys objects. The child opens the
 * device for itself and writes; objects of its parent are dead there. */
#include "check.h"

#include <pthread.h>
#include <stdatomic.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHILDREN 8
#define LENGTH 100000

static atomic_int stop;

static void *make_and_destroy(void *bed)
{
	struct bed *of = bed;

	while (!atomic_load(&stop)) {
		struct ibv_pd *pd = ibv_alloc_pd(of->device);

		if (pd)
			ibv_dealloc_pd(pd);
	}
	return NULL;
}

static void write_over(struct bed *bed)
{
	struct ibv_send_wr wr, *bad;
	struct ibv_sge sge;
	struct ibv_wc wc;

	connect_qp(bed, bed->a, bed->b);
	connect_qp(bed, bed->b, bed->a);
	for (int i = 0; i < LENGTH; i++)
		bed->memory[i] = (char)(i * 7);
	wr = write_of(bed, &sge, 0, MEMORY / 2, LENGTH);
	NEED(mrc_post_send(bed->a, &wr, &bad) == 0);
	NEED(poll_for(bed->cq, &wc, 1) == 1 && wc.status == IBV_WC_SUCCESS);
	NEED(memcmp(bed->memory, bed->memory + MEMORY / 2, LENGTH) == 0);
}

static void in_child(struct bed *parent)
{
	struct bed own;
	struct ibv_wc wc;

	P_FAILS(ibv_alloc_pd(parent->device), EIO);
	CHECK(ibv_dealloc_pd(parent->pd) == EIO);
	CHECK(mrc_destroy_qp(parent->a) == EIO);
	CHECK(mrc_poll_cq(parent->cq, 1, &wc) == -1);
	open_bed(&own);
	write_over(&own);
	/* Also after that. */
	P_FAILS(ibv_alloc_pd(parent->device), EIO);
	close_bed(&own);
	exit(failures > 0);
}

int main(void)
{
	struct bed bed;
	pthread_t thread;

	open_bed(&bed);
	NEED(pthread_create(&thread, NULL, make_and_destroy, &bed) == 0);
	for (int i = 0; i < CHILDREN; i++) {
		int status = -1;
		pid_t child = fork();

		NEED(child >= 0);
		if (child == 0)
			in_child(&bed);
		NEED(waitpid(child, &status, 0) == child);
		CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
	}
	atomic_store(&stop, 1);
	pthread_join(thread, NULL);
	/* The parent goes on as before. */
	write_over(&bed);
	close_bed(&bed);
	return failures > 0;
}
