/* What can be registered: memory that is there, all of it, and that can be written if the flags say so. */
#include "check.h"

#include <sys/mman.h>

#define PAGE 4096

int main(void)
{
	int writable = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;
	struct ibv_mr *mr, *twice;
	struct bed bed;
	char *pages;

	open_bed(&bed);
	pages = mmap(NULL, 6 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	NEED(pages != MAP_FAILED && mprotect(pages + 2 * PAGE, PAGE, PROT_READ) == 0);
	NEED(munmap(pages + 4 * PAGE, PAGE) == 0);
	/* Untouched pages are memory. Regions may overlap and start anywhere. */
	CHECK((mr = ibv_reg_mr(bed.pd, pages + 3, 2 * PAGE - 3, writable)) && mr->addr == pages + 3 && mr->lkey && mr->rkey);
	CHECK((twice = ibv_reg_mr(bed.pd, pages, 2 * PAGE, writable)) && twice->rkey != mr->rkey);
	CHECK(ibv_dereg_mr(mr) == 0 && ibv_dereg_mr(twice) == 0);
	/* A page in the middle that cannot be written, or is not there. */
	P_FAILS(ibv_reg_mr(bed.pd, pages, 4 * PAGE, writable), EFAULT);
	CHECK((mr = ibv_reg_mr(bed.pd, pages, 4 * PAGE, 0)) && ibv_dereg_mr(mr) == 0);
	P_FAILS(ibv_reg_mr(bed.pd, pages, 6 * PAGE, 0), EFAULT);
	P_FAILS(ibv_reg_mr(bed.pd, pages + 4 * PAGE, 1, 0), EFAULT);
	P_FAILS(ibv_reg_mr(bed.pd, (char *)bed.memory, (size_t)1 << 46, 0), EFAULT);
	/* Rights that belong together, and what this device lacks. */
	P_FAILS(ibv_reg_mr(bed.pd, pages, PAGE, IBV_ACCESS_REMOTE_WRITE), EINVAL);
	P_FAILS(ibv_reg_mr(bed.pd, pages, PAGE, IBV_ACCESS_ON_DEMAND), EOPNOTSUPP);
	P_FAILS(ibv_reg_mr(bed.pd, pages, PAGE, IBV_ACCESS_ZERO_BASED), EOPNOTSUPP);
	P_FAILS(ibv_reg_mr_iova2(bed.pd, pages, PAGE, 0, 0), EOPNOTSUPP);
	P_FAILS(ibv_reg_dmabuf_mr(bed.pd, 0, 0, 0, -1, 0), EOPNOTSUPP);
	P_FAILS(ibv_reg_mr(bed.pd, pages, (size_t)-1, 0), EINVAL);
	P_FAILS(ibv_reg_mr(NULL, pages, PAGE, 0), EINVAL);
	E0_FAILS(ibv_dealloc_pd(bed.pd), EBUSY);
	E0_FAILS(ibv_dereg_mr(mr), EINVAL);
	close_bed(&bed);
	return failures != 0;
}
