/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * What latency.bpf.c looks at in the kernel: of each struct only the fields it reads.
 *
 * Where a field stands is found out when the program is loaded, from the running kernel's own
 * description of itself (BTF), so one build fits every kernel, and none is needed to build.
 */
#ifndef LATTICE_KERNEL_H
#define LATTICE_KERNEL_H

#define FOUND_AT_LOAD __attribute__((preserve_access_index))

/* Control groups. */
enum cgroup_subsys_id {
	freezer_cgrp_id, /* its number differs from kernel to kernel, and is found out too */
};

struct kernfs_node {
	__u64 id; /* the inode number of the group's folder */
	const char *name;
} FOUND_AT_LOAD;

struct cgroup;

struct cgroup_subsys_state {
	struct cgroup *cgroup;
	struct cgroup_subsys_state *parent;
} FOUND_AT_LOAD;

struct cgroup {
	struct cgroup_subsys_state self;
	struct kernfs_node *kn;
} FOUND_AT_LOAD;

struct css_set {
	struct cgroup_subsys_state *subsys[1];
	struct cgroup *dfl_cgrp;
} FOUND_AT_LOAD;

/* Open files. */
struct super_block {
	unsigned int s_dev;
	unsigned long s_magic;
} FOUND_AT_LOAD;

struct inode {
	unsigned short i_mode;
	struct super_block *i_sb;
} FOUND_AT_LOAD;

struct file {
	struct inode *f_inode;
} FOUND_AT_LOAD;

struct fdtable {
	unsigned int max_fds;
	struct file **fd;
} FOUND_AT_LOAD;

struct files_struct {
	struct fdtable *fdt;
} FOUND_AT_LOAD;

/* Sockets. */
struct ns_common {
	unsigned int inum;
} FOUND_AT_LOAD;

struct net {
	struct ns_common ns;
} FOUND_AT_LOAD;

typedef struct {
	struct net *net;
} FOUND_AT_LOAD possible_net_t;

struct in6_addr {
	union {
		__u8 u6_addr8[16];
	} in6_u;
} FOUND_AT_LOAD;

struct sock_common {
	__u32 skc_daddr;
	unsigned short skc_family;
	possible_net_t skc_net;
	struct in6_addr skc_v6_daddr;
} FOUND_AT_LOAD;

struct sock {
	struct sock_common __sk_common;
	unsigned short sk_protocol;
} FOUND_AT_LOAD;

struct tcp_sock {
	__u64 bytes_received;
	__u64 bytes_acked;
} FOUND_AT_LOAD;

struct sk_buff;

/* What a walk over all TCP sockets is given. */
struct seq_file;

struct bpf_iter_meta {
	struct seq_file *seq;
} FOUND_AT_LOAD;

struct bpf_iter__tcp {
	struct bpf_iter_meta *meta;
	struct sock_common *sk_common;
} FOUND_AT_LOAD;

/* Threads and their system calls. */
struct thread_info {
	unsigned long flags;
	__u32 status;
} FOUND_AT_LOAD;

struct task_struct {
	struct thread_info thread_info;
	struct css_set *cgroups;
	struct files_struct *files;
} FOUND_AT_LOAD;

#if defined(__TARGET_ARCH_x86)

struct pt_regs {
	unsigned long di;
	unsigned long orig_ax;
} FOUND_AT_LOAD;

#define CALL_NUMBER(regs) ((long)(regs)->orig_ax)
#define FIRST_ARGUMENT(regs) ((__u32)(regs)->di)
/* A 32-bit program: its calls have other numbers. */
#define IS_COMPAT(task) ((task)->thread_info.status & 2)

enum call {
	CALL_READ = 0,
	CALL_WRITE = 1,
	CALL_PREAD64 = 17,
	CALL_PWRITE64 = 18,
	CALL_READV = 19,
	CALL_WRITEV = 20,
	CALL_FSYNC = 74,
	CALL_FDATASYNC = 75,
	CALL_PREADV = 295,
	CALL_PWRITEV = 296,
	CALL_PREADV2 = 327,
	CALL_PWRITEV2 = 328,
};

#elif defined(__TARGET_ARCH_arm64)

struct pt_regs {
	__u64 orig_x0;
	int syscallno;
} FOUND_AT_LOAD;

#define CALL_NUMBER(regs) ((long)(regs)->syscallno)
#define FIRST_ARGUMENT(regs) ((__u32)(regs)->orig_x0)
#define IS_COMPAT(task) ((task)->thread_info.flags & (1UL << 22))

enum call {
	CALL_READ = 63,
	CALL_WRITE = 64,
	CALL_READV = 65,
	CALL_WRITEV = 66,
	CALL_PREAD64 = 67,
	CALL_PWRITE64 = 68,
	CALL_PREADV = 69,
	CALL_PWRITEV = 70,
	CALL_FSYNC = 82,
	CALL_FDATASYNC = 83,
	CALL_PREADV2 = 286,
	CALL_PWRITEV2 = 287,
};

#else
#error "no system call numbers for this architecture"
#endif

#endif
