/* Descriptors of the program: its limit is left alone, and the low numbers, which select() needs, stay free while the
 * limit allows that. Arguments: the soft limit, how many contexts to open, how many of them there is room for, and the
 * most descriptors of a context. */
#include "check.h"

#include <dirent.h>
#include <limits.h>
#include <sys/resource.h>
#include <sys/select.h>
#include <unistd.h>

/* Open descriptors below this number. */
static int open_below(int number)
{
	DIR *list = opendir("/proc/self/fd");
	struct dirent *entry;
	int count = 0;

	NEED(list);
	while ((entry = readdir(list)))
		count += entry->d_name[0] != '.' && atoi(entry->d_name) < number;
	closedir(list);
	return count;
}

int main(int argc, char **argv)
{
	NEED(argc == 5);
	struct rlimit limit, after;
	struct ibv_device **devices = ibv_get_device_list(NULL);
	int wanted = atoi(argv[2]), opened = 0, before = open_below(FD_SETSIZE), all = open_below(INT_MAX);

	NEED(devices && getrlimit(RLIMIT_NOFILE, &limit) == 0);
	limit.rlim_cur = (rlim_t)atoi(argv[1]);
	NEED(limit.rlim_cur <= limit.rlim_max && setrlimit(RLIMIT_NOFILE, &limit) == 0);
	while (opened < wanted && ibv_open_device(devices[0]))
		opened++;
	NEED(getrlimit(RLIMIT_NOFILE, &after) == 0);
	CHECK(after.rlim_cur == limit.rlim_cur && after.rlim_max == limit.rlim_max);
	CHECK(opened == atoi(argv[3]));
	CHECK(open_below(INT_MAX) - all <= opened * atoi(argv[4]));
	if (limit.rlim_cur > FD_SETSIZE) {
		int own = dup(0);

		/* An event descriptor and what waits for the sockets. */
		CHECK(open_below(FD_SETSIZE) - before <= 8 * opened);
		CHECK(own >= 0 && own < FD_SETSIZE);
	}
	return failures > 0;
}
