/* libibverbs.so.1 for programs that load it by name: every function of the real library, under its version, leads to
 * libopenmrc.so.0 in the directory above this file. What only drivers call is here too and refuses, so that a driver's
 * library (libmlx5) loads. docs/spec/c-interface.md, sections 7.1 and 7.2. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#define LIBRARY "/../libopenmrc.so.0"

#define FUNCTIONS(DO) \
	DO(ibv_copy_path_rec_from_kern) DO(ibv_copy_path_rec_to_kern) DO(ibv_copy_qp_attr_from_kern) \
	DO(ibv_create_comp_channel) DO(ibv_destroy_comp_channel) DO(ibv_get_sysfs_path) DO(ibv_rate_to_mult) \
	DO(ibv_read_sysfs_file) DO(mult_to_ibv_rate) DO(ibv_copy_ah_attr_from_kern) DO(ibv_create_ah_from_wc) \
	DO(ibv_dofork_range) DO(ibv_dontfork_range) DO(ibv_event_type_str) DO(ibv_fork_init) DO(ibv_init_ah_from_wc) \
	DO(ibv_node_type_str) DO(ibv_port_state_str) DO(ibv_rate_to_mbps) DO(ibv_rereg_mr) \
	DO(ibv_resolve_eth_l2_from_gid) DO(ibv_wc_status_str) DO(mbps_to_ibv_rate) DO(ibv_get_pkey_index) \
	DO(ibv_qp_to_qp_ex) DO(ibv_reg_mr_iova) DO(ibv_reg_mr_iova2) DO(ibv_get_device_index) DO(ibv_import_device) \
	DO(ibv_import_mr) DO(ibv_import_pd) DO(ibv_query_ece) DO(ibv_set_ece) DO(ibv_unimport_mr) DO(ibv_unimport_pd) \
	DO(_ibv_query_gid_ex) DO(_ibv_query_gid_table) DO(ibv_reg_dmabuf_mr) DO(ibv_import_dm) \
	DO(ibv_is_fork_initialized) DO(ibv_unimport_dm) DO(ibv_query_qp_data_in_order) DO(ibv_query_gid_type) \
	DO(ibv_alloc_dmah) DO(ibv_dealloc_dmah) DO(ibv_reg_mr_ex) DO(ibv_dm_export_dmabuf_fd) DO(ibv_query_port_speed) \
	DO(ibv_alloc_buf) DO(ibv_free_buf) DO(ibv_reg_buf_mr)

/* Functions that were there before version 1.1, whose structures had other layouts. Such a program is told that there
 * are no devices, so it reaches none of the others. */
#define FUNCTIONS_OF_1_0(DO) \
	DO(ibv_ack_async_event) DO(ibv_ack_cq_events) DO(ibv_alloc_pd) DO(ibv_attach_mcast) DO(ibv_close_device) \
	DO(ibv_create_ah) DO(ibv_create_cq) DO(ibv_create_qp) DO(ibv_create_srq) DO(ibv_dealloc_pd) DO(ibv_dereg_mr) \
	DO(ibv_destroy_ah) DO(ibv_destroy_cq) DO(ibv_destroy_qp) DO(ibv_destroy_srq) DO(ibv_detach_mcast) \
	DO(ibv_free_device_list) DO(ibv_get_async_event) DO(ibv_get_cq_event) DO(ibv_get_device_guid) \
	DO(ibv_get_device_name) DO(ibv_modify_qp) DO(ibv_modify_srq) DO(ibv_open_device) DO(ibv_query_device) \
	DO(ibv_query_gid) DO(ibv_query_pkey) DO(ibv_query_port) DO(ibv_query_qp) DO(ibv_query_srq) DO(ibv_reg_mr) \
	DO(ibv_resize_cq)

#define REFUSED_BY_NUMBER(DO) \
	DO(__ioctl_final_num_attrs) DO(execute_ioctl) DO(ibv_cmd_advise_mr) DO(ibv_cmd_alloc_dm) DO(ibv_cmd_alloc_mw) \
	DO(ibv_cmd_alloc_pd) DO(ibv_cmd_attach_mcast) DO(ibv_cmd_close_xrcd) DO(ibv_cmd_create_ah) \
	DO(ibv_cmd_create_counters) DO(ibv_cmd_create_cq) DO(ibv_cmd_create_cq_ex) DO(ibv_cmd_create_flow) \
	DO(ibv_cmd_create_flow_action_esp) DO(ibv_cmd_create_qp) DO(ibv_cmd_create_qp_ex2) DO(ibv_cmd_create_qp_ex) \
	DO(ibv_cmd_create_rwq_ind_table) DO(ibv_cmd_create_srq) DO(ibv_cmd_create_srq_ex) DO(ibv_cmd_create_wq) \
	DO(ibv_cmd_dealloc_mw) DO(ibv_cmd_dealloc_pd) DO(ibv_cmd_dereg_mr) DO(ibv_cmd_destroy_ah) \
	DO(ibv_cmd_destroy_counters) DO(ibv_cmd_destroy_cq) DO(ibv_cmd_destroy_flow) DO(ibv_cmd_destroy_flow_action) \
	DO(ibv_cmd_destroy_qp) DO(ibv_cmd_destroy_rwq_ind_table) DO(ibv_cmd_destroy_srq) DO(ibv_cmd_destroy_wq) \
	DO(ibv_cmd_detach_mcast) DO(ibv_cmd_free_dm) DO(ibv_cmd_get_context) DO(ibv_cmd_modify_cq) \
	DO(ibv_cmd_modify_flow_action_esp) DO(ibv_cmd_modify_qp) DO(ibv_cmd_modify_qp_ex) DO(ibv_cmd_modify_srq) \
	DO(ibv_cmd_modify_wq) DO(ibv_cmd_open_qp) DO(ibv_cmd_open_xrcd) DO(ibv_cmd_poll_cq) DO(ibv_cmd_post_recv) \
	DO(ibv_cmd_post_send) DO(ibv_cmd_post_srq_recv) DO(ibv_cmd_query_context) DO(ibv_cmd_query_device_any) \
	DO(ibv_cmd_query_mr) DO(ibv_cmd_query_port) DO(ibv_cmd_query_qp) DO(ibv_cmd_query_srq) DO(ibv_cmd_read_counters) \
	DO(ibv_cmd_reg_dm_mr) DO(ibv_cmd_reg_dmabuf_mr) DO(ibv_cmd_reg_mr) DO(ibv_cmd_req_notify_cq) \
	DO(ibv_cmd_rereg_mr) DO(ibv_cmd_resize_cq) DO(ibv_cmd_query_device) DO(ibv_cmd_query_device_ex) \
	DO(ibv_get_fw_ver)

#define REFUSED_BY_NULL(DO) DO(verbs_open_device) DO(_verbs_init_and_alloc_context)

#define WITHOUT_EFFECT(DO) \
	DO(verbs_register_driver_34) DO(verbs_set_ops) DO(verbs_uninit_context) DO(__verbs_log) \
	DO(verbs_init_cq)

/* Where a function leads if the library is not there. */
static void *missing(void)
{
	errno = ENOSYS;
	return NULL;
}

/* A jump keeps every argument, whatever the function takes. */
#if defined(__x86_64__)
#define JUMP(slot) "endbr64\n\tjmp *" #slot "(%rip)"
#elif defined(__aarch64__)
#define JUMP(slot) "hint #34\n\tadrp x16, " #slot "\n\tldr x16, [x16, :lo12:" #slot "]\n\tbr x16"
#else
#error "no jump for this processor"
#endif

#define CODE(name, labels)                                                                                             \
	__attribute__((visibility("hidden"), used)) void *to_##name = (void *)missing;                                     \
	__asm__(".text\n" labels "\t" JUMP(to_##name) "\n\t.previous");
#define LABEL(label) "\t.globl " #label "\n\t.type " #label ", %function\n" #label ":\n"

#define FORWARD(name) CODE(name, LABEL(name))
FUNCTIONS(FORWARD)

#define FORWARD_NEW(name, more)                                                                                        \
	CODE(name, LABEL(new_##name) "\t.symver new_" #name ", " #name "@@IBVERBS_1.1\n" more)
#define FORWARD_BOTH(name)                                                                                             \
	FORWARD_NEW(name, LABEL(old_##name) "\t.symver old_" #name ", " #name "@IBVERBS_1.0\n")
FUNCTIONS_OF_1_0(FORWARD_BOTH)
FORWARD_NEW(ibv_get_device_list, "")

__attribute__((used)) void **old_ibv_get_device_list(int *num)
{
	if (num)
		*num = 0;
	fputs("openmrc: this program was built for libibverbs 1.0, whose structures are not known here\n", stderr);
	return missing();
}
__asm__(".symver old_ibv_get_device_list, ibv_get_device_list@IBVERBS_1.0");

#define REFUSE(name)                                                                                                   \
	int name(void)                                                                                                     \
	{                                                                                                                  \
		return errno = EOPNOTSUPP;                                                                                     \
	}
REFUSED_BY_NUMBER(REFUSE)

#define NONE(name)                                                                                                     \
	void *name(void)                                                                                                   \
	{                                                                                                                  \
		errno = EOPNOTSUPP;                                                                                            \
		return NULL;                                                                                                   \
	}
REFUSED_BY_NULL(NONE)

#define IGNORE(name)                                                                                                   \
	void name(void)                                                                                                    \
	{                                                                                                                  \
	}
WITHOUT_EFFECT(IGNORE)

__attribute__((used)) void old_ibv_register_driver(void)
{
}
__asm__(".symver old_ibv_register_driver, ibv_register_driver@IBVERBS_1.1");

int ibv_read_ibdev_sysfs_file(void)
{
	errno = EOPNOTSUPP;
	return -1;
}

bool verbs_allow_disassociate_destroy;

struct entry {
	const char *name;
	void **slot;
};

#define ENTRY(name) {#name, &to_##name},
static const struct entry entries[] = {FUNCTIONS(ENTRY) FUNCTIONS_OF_1_0(ENTRY) ENTRY(ibv_get_device_list)};

/* Where this file is, whatever link led to it. */
__attribute__((constructor)) static void find_library(void)
{
	char path[4096];
	Dl_info here;
	const char *slash;

	if (!dladdr((void *)missing, &here) || !(slash = strrchr(here.dli_fname, '/')))
		return;
	size_t length = slash - here.dli_fname;
	if (length + sizeof LIBRARY > sizeof path)
		return;
	memcpy(path, here.dli_fname, length);
	memcpy(path + length, LIBRARY, sizeof LIBRARY);
	void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
	if (!library) {
		fprintf(stderr, "openmrc: %s\n", dlerror());
		return;
	}
	for (size_t i = 0; i < sizeof entries / sizeof *entries; i++) {
		void *function = dlsym(library, entries[i].name);
		if (function)
			*entries[i].slot = function;
	}
}
