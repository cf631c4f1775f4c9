/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * How long each job's reads and writes of files take, in all and by file system, how many TCP
 * segments it sends again, and what it sends to and gets from each peer by TCP.
 *
 * Between the entry and the exit of a system call lies what a program waits, whatever the file
 * system: a disk, NFS, Lustre, FUSE or the page cache. Counted are calls on regular files and block
 * devices, by the job's control group, in slots of a histogram that grow with the time.
 *
 * Nothing here loops without a bound, and nothing is lost silently: `lost` counts what could not
 * be counted.
 */
#include <linux/bpf.h>
#include <stdbool.h>
#include <stddef.h>

#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>
#include <bpf/bpf_core_read.h>

#include "kernel.h"

/* The kernel lends what is needed here to programs under its own licence only. */
char LICENSE[] SEC("license") = "Dual BSD/GPL";

/* As in lattice/domain/latency.py: slot 0 is below one tick (1/1024 ms), the last is everything
 * from 65.536 s on, and between them each power of two has two halves. */
#define SLOTS 54
#define HALF_TICKS_A_MS 2048
#define NS_A_MS 1000000

#define DEEPEST_GROUP 32
#define LONGEST_NAME 128

#define DEVICES 8

/* As in lattice/domain/latency.py. */
struct device_counts {
	__u64 device; /* of the file system, as the kernel numbers it; 0: free */
	__u64 calls;
	__u64 spent_ns;
	__u64 read_bytes;
	__u64 write_bytes;
};

struct counts {
	__u64 slots[SLOTS];
	__u64 retransmits;
	__u64 elsewhere; /* calls on further file systems than there is room for */
	struct device_counts devices[DEVICES];
};

/* By the inode of the job's folder. An entry goes when Slurm removes the folder; the helper makes
 * room for as many jobs as the node can have. A copy for each CPU: they never wait for each other. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_HASH);
	__uint(max_entries, 256);
	__type(key, __u64);
	__type(value, struct counts);
} jobs SEC(".maps");

static const struct counts nothing;

/* What a thread is about. It lives and dies with the thread, so no table of them can be full. */
struct thread {
	__u64 began_ns; /* 0: in no call that is timed */
	__u64 device;   /* of the file that the call is on */
	__u64 freezer;  /* the groups it was last seen in, and the job that this makes */
	__u64 unified;
	__u64 job;
};

struct {
	__uint(type, BPF_MAP_TYPE_TASK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct thread);
} threads SEC(".maps");

/* Whose a TCP socket is: written when it connects or listens; a connection that is accepted
 * inherits it from the socket that listened. */
struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC | BPF_F_CLONE);
	__type(key, int);
	__type(value, __u64);
} owners SEC(".maps");

/* Segments sent again, of all sockets of a network namespace. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 1024);
	__type(key, __u32);
	__type(value, __u64);
} namespaces SEC(".maps");

/* What the closed connections of a job have moved, by the address at the other end. Open ones are
 * asked when somebody wants to know, so a connection costs nothing while it is used. */
struct peer {
	__u64 job;
	__u8 address[16]; /* IPv4 as ::ffff:a.b.c.d */
};

struct moved {
	__u64 sent; /* and acknowledged */
	__u64 received;
};

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 4096);
	__type(key, struct peer);
	__type(value, struct moved);
} peers SEC(".maps");

enum loss {
	LOST_NO_ROOM,  /* more jobs than `jobs` has room for */
	LOST_NO_START, /* no memory to note the start of a call */
	LOST_NO_OWNER, /* no memory to note whose a socket is */
	LOSSES,
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, LOSSES);
	__type(key, __u32);
	__type(value, __u64);
} lost SEC(".maps");

/* The group that a node has for its root, by hierarchy: several nodes may share a host, each below
 * a group of its own. 0: the hierarchy's own root. Written once, by who loads this. */
enum hierarchy {
	FREEZER,
	UNIFIED,
	HIERARCHIES,
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, HIERARCHIES);
	__type(key, __u32);
	__type(value, __u64);
} roots SEC(".maps");

static __always_inline void lose(__u32 why)
{
	__u64 *count = bpf_map_lookup_elem(&lost, &why);

	if (count)
		__sync_fetch_and_add(count, 1);
}

/* ---- which job ---- */

static __always_inline bool begins(struct cgroup *group, const char *with, __u32 length)
{
	char name[8] = {};

	if (bpf_probe_read_kernel(name, length, BPF_CORE_READ(group, kn, name)))
		return false;
	for (__u32 at = 0; at < length; at++)
		if (name[at] != with[at])
			return false;
	return true;
}

/* slurmstepd.scope, or n1_slurmstepd.scope where several nodes share a host. */
static __always_inline bool is_scope(struct cgroup *group)
{
	static const char scope[] = "slurmstepd.scope";
	const char *at = BPF_CORE_READ(group, kn, name);
	char name[LONGEST_NAME], end[sizeof(scope)] = {};
	long length = bpf_probe_read_kernel_str(name, sizeof(name), at);

	if (length < (long)sizeof(scope))
		return false;
	if (bpf_probe_read_kernel(end, sizeof(end), at + length - sizeof(scope)))
		return false;
	for (__u32 each = 0; each < sizeof(scope); each++)
		if (end[each] != scope[each])
			return false;
	return true;
}

/*
 * The job's own group above (or at) a group, 0 for none. Only the three levels below the root are
 * asked for their names: those are root's to make, and what a user makes further down decides
 * nothing.
 *
 *   v1  /slurm_n1/uid_3001/job_12/step_0/task_0           the third
 *   v2  /system.slice/n1_slurmstepd.scope/job_12/step_0   the third, or the second where the
 *                                                         scope is right below the root
 */
static __noinline __u64 job_above(struct cgroup *group, __u32 hierarchy)
{
	struct cgroup *first = NULL, *second = NULL, *third = NULL, *job = NULL;
	__u64 *given = bpf_map_lookup_elem(&roots, &hierarchy);
	__u64 root = given ? *given : 0;
	bool reached = false;

	for (int level = 0; level < DEEPEST_GROUP; level++) {
		struct cgroup *parent = BPF_CORE_READ(group, self.parent, cgroup);

		reached = root ? BPF_CORE_READ(group, kn, id) == root : !parent;
		if (reached || !parent)
			break;
		third = second;
		second = first;
		first = group;
		group = parent;
	}
	if (!second || !reached)
		return 0;
	if (is_scope(first))
		job = second;
	else if (third && is_scope(second))
		job = third;
	else if (third && begins(first, "slurm", 5) && begins(second, "uid_", 4))
		job = third;
	return job ? BPF_CORE_READ(job, kn, id) : 0;
}

static __always_inline struct cgroup *freezer_of(struct css_set *set)
{
	struct cgroup_subsys_state **all = set->subsys;

	if (!bpf_core_enum_value_exists(enum cgroup_subsys_id, freezer_cgrp_id))
		return set->dfl_cgrp;
	return all[bpf_core_enum_value(enum cgroup_subsys_id, freezer_cgrp_id)]->cgroup;
}

/* Slurm tracks processes with the freezer on v1, with the one tree there is on v2. */
static __always_inline __u64 job_of(struct task_struct *task, struct thread *known)
{
	struct css_set *set = task->cgroups;
	struct cgroup *freezer = freezer_of(set), *unified = set->dfl_cgrp;
	__u64 frozen_in = freezer->kn->id, unified_in = unified->kn->id;

	if (known->freezer != frozen_in || known->unified != unified_in) {
		__u64 job = job_above(freezer, FREEZER);

		known->job = job ? job : job_above(unified, UNIFIED);
		known->freezer = frozen_in;
		known->unified = unified_in;
	}
	return known->job;
}

static __always_inline struct counts *counts_of(__u64 job)
{
	struct counts *found = bpf_map_lookup_elem(&jobs, &job);

	if (found)
		return found;
	bpf_map_update_elem(&jobs, &job, &nothing, BPF_NOEXIST);
	found = bpf_map_lookup_elem(&jobs, &job);
	if (!found)
		lose(LOST_NO_ROOM);
	return found;
}

SEC("tp_btf/cgroup_rmdir")
int BPF_PROG(forget_job, struct cgroup *group)
{
	__u64 id = group->kn->id;

	bpf_map_delete_elem(&jobs, &id);
	return 0;
}

/* ---- reads and writes ---- */

static __always_inline bool is_timed(long number)
{
	switch (number) {
	case CALL_READ:
	case CALL_WRITE:
	case CALL_PREAD64:
	case CALL_PWRITE64:
	case CALL_READV:
	case CALL_WRITEV:
	case CALL_PREADV:
	case CALL_PWRITEV:
	case CALL_PREADV2:
	case CALL_PWRITEV2:
	case CALL_FSYNC:
	case CALL_FDATASYNC:
		return true;
	}
	return false;
}

/* The device of the file system that a file is on; 0 if it is none. Files are regular files and block
 * devices. Not what only looks like a file: the kernel's own tables, and event descriptors, which
 * newer kernels give the mode of a regular file. */
static __always_inline __u32 device_of(struct task_struct *task, __u32 descriptor)
{
	struct fdtable *table = task->files->fdt;
	struct file **all = table->fd, *file = NULL;
	struct inode *inode;
	unsigned short kind;

	if (descriptor >= table->max_fds)
		return 0;
	if (bpf_probe_read_kernel(&file, sizeof(file), all + descriptor) || !file)
		return 0;
	inode = BPF_CORE_READ(file, f_inode);
	kind = BPF_CORE_READ(inode, i_mode) & 0170000;
	if (kind != 0100000 && kind != 0060000)
		return 0;
	switch (BPF_CORE_READ(inode, i_sb, s_magic)) {
	case 0x00009fa0: /* proc */
	case 0x62656572: /* sysfs */
	case 0x0027e0eb: /* cgroup v1 */
	case 0x63677270: /* cgroup v2 */
	case 0x09041934: /* anonymous: events, timers, polls */
		return 0;
	}
	return BPF_CORE_READ(inode, i_sb, s_dev);
}

static __always_inline bool is_reading(long number)
{
	return number == CALL_READ || number == CALL_PREAD64 || number == CALL_READV ||
	       number == CALL_PREADV || number == CALL_PREADV2;
}

/* No other program of this kind runs on the CPU meanwhile, and its copy of the counts is its own. */
static __always_inline void count_device(struct counts *counts, __u64 device, __u64 took_ns,
					 long number, long result)
{
	for (int each = 0; each < DEVICES; each++) {
		struct device_counts *found = &counts->devices[each];

		if (found->device && found->device != device)
			continue;
		found->device = device;
		found->calls++;
		found->spent_ns += took_ns;
		if (number == CALL_FSYNC || number == CALL_FDATASYNC || result <= 0)
			return;
		if (is_reading(number))
			found->read_bytes += result;
		else
			found->write_bytes += result;
		return;
	}
	counts->elsewhere++;
}

static __always_inline __u64 slot_of(__u64 took_ns)
{
	/* 2^53 ns are 104 days: nothing overflows. */
	__u64 half_ticks = took_ns * HALF_TICKS_A_MS / NS_A_MS, left = half_ticks, power = 0;

	if (half_ticks < 2)
		return 0;
	for (__u32 step = 32; step; step >>= 1) {
		if (left >> step) {
			power += step;
			left >>= step;
		}
	}
	return 2 * power - 1 + (half_ticks >> (power - 1) & 1);
}

SEC("tp_btf/sys_enter")
int BPF_PROG(begin_call, struct pt_regs *regs, long number)
{
	struct task_struct *task;
	struct thread *thread;
	__u32 device;

	if (!is_timed(number))
		return 0;
	task = bpf_get_current_task_btf();
	if (IS_COMPAT(task))
		return 0;
	device = device_of(task, FIRST_ARGUMENT(regs));
	thread = bpf_task_storage_get(&threads, task, NULL,
				      device ? BPF_LOCAL_STORAGE_GET_F_CREATE : 0);
	if (thread) {
		/* Also where nothing is timed: no earlier start may be taken for this one's. */
		thread->device = device;
		thread->began_ns = device ? bpf_ktime_get_ns() : 0;
	} else if (device) {
		lose(LOST_NO_START);
	}
	return 0;
}

SEC("tp_btf/sys_exit")
int BPF_PROG(end_call, struct pt_regs *regs, long result)
{
	struct task_struct *task;
	struct thread *thread;
	struct counts *counts;
	__u64 took_ns, job, slot;

	if (!is_timed(CALL_NUMBER(regs)))
		return 0;
	task = bpf_get_current_task_btf();
	thread = bpf_task_storage_get(&threads, task, NULL, 0);
	if (!thread || !thread->began_ns)
		return 0;
	took_ns = bpf_ktime_get_ns() - thread->began_ns;
	thread->began_ns = 0;
	job = job_of(task, thread);
	counts = job ? counts_of(job) : NULL;
	if (!counts)
		return 0;
	slot = slot_of(took_ns);
	/* The very register that is compared is to be the one that is used: the verifier insists. */
	barrier_var(slot);
	if (slot >= SLOTS)
		slot = SLOTS - 1;
	__sync_fetch_and_add(&counts->slots[slot], 1);
	count_device(counts, thread->device, took_ns, CALL_NUMBER(regs), result);
	return 0;
}

/* ---- TCP ---- */

enum {
	STATE_SYN_SENT = 2,
	STATE_CLOSE = 7,
	STATE_LISTEN = 10,
};

#define PROTOCOL_TCP 6
#define FAMILY_IPV4 2
#define FAMILY_IPV6 10

/* Both states are entered by the program that owns the socket, in its own call. */
SEC("tp_btf/inet_sock_set_state")
int BPF_PROG(note_owner, struct sock *sock, int before, int after)
{
	struct thread found = {};
	__u64 job, *owner;

	if (after != STATE_SYN_SENT && after != STATE_LISTEN)
		return 0;
	job = job_of(bpf_get_current_task_btf(), &found);
	if (!job)
		return 0;
	/* Now, while the job's group is surely there: later nobody would remove the entry again. */
	counts_of(job);
	owner = bpf_sk_storage_get(&owners, sock, NULL, BPF_SK_STORAGE_GET_F_CREATE);
	if (owner)
		*owner = job;
	else
		lose(LOST_NO_OWNER);
	return 0;
}

SEC("tp_btf/tcp_retransmit_skb")
int BPF_PROG(count_retransmit, struct sock *sock, struct sk_buff *segment)
{
	__u32 namespace = BPF_CORE_READ(sock, __sk_common.skc_net.net, ns.inum);
	__u64 *count = bpf_map_lookup_elem(&namespaces, &namespace), *owner, none = 0;
	struct counts *counts;

	if (!count) {
		bpf_map_update_elem(&namespaces, &namespace, &none, BPF_NOEXIST);
		count = bpf_map_lookup_elem(&namespaces, &namespace);
	}
	if (count)
		__sync_fetch_and_add(count, 1);
	owner = bpf_sk_storage_get(&owners, sock, NULL, 0);
	counts = owner ? bpf_map_lookup_elem(&jobs, owner) : NULL;
	if (counts)
		__sync_fetch_and_add(&counts->retransmits, 1);
	return 0;
}

/* ---- peers ---- */

static __always_inline bool read_address(struct sock_common *sock, __u8 *address)
{
	switch (BPF_CORE_READ(sock, skc_family)) {
	case FAMILY_IPV4: {
		__u32 word = BPF_CORE_READ(sock, skc_daddr);

		address[10] = address[11] = 0xff;
		__builtin_memcpy(address + 12, &word, sizeof(word));
		return true;
	}
	case FAMILY_IPV6:
		return !bpf_core_read(address, 16, &sock->skc_v6_daddr);
	}
	return false;
}

SEC("tp_btf/inet_sock_set_state")
int BPF_PROG(count_closed, struct sock *sock, int before, int after)
{
	struct tcp_sock *tcp = (struct tcp_sock *)sock;
	struct moved moved = {}, *found;
	struct peer peer = {};
	__u64 *owner;

	if (after != STATE_CLOSE || before == STATE_CLOSE || before == STATE_LISTEN)
		return 0;
	if (BPF_CORE_READ(sock, sk_protocol) != PROTOCOL_TCP)
		return 0;
	owner = bpf_sk_storage_get(&owners, sock, NULL, 0);
	if (!owner || !read_address(&sock->__sk_common, peer.address))
		return 0;
	peer.job = *owner;
	moved.sent = BPF_CORE_READ(tcp, bytes_acked);
	moved.received = BPF_CORE_READ(tcp, bytes_received);
	if (!moved.sent && !moved.received)
		return 0;
	found = bpf_map_lookup_elem(&peers, &peer);
	if (found) {
		__sync_fetch_and_add(&found->sent, moved.sent);
		__sync_fetch_and_add(&found->received, moved.received);
	} else {
		bpf_map_update_elem(&peers, &peer, &moved, BPF_ANY);
	}
	return 0;
}

struct open_peer {
	struct peer peer;
	struct moved moved;
};

SEC("iter/tcp")
int dump_peers(struct bpf_iter__tcp *context)
{
	struct sock_common *sock = context->sk_common;
	struct open_peer found = {};
	struct tcp_sock *tcp;
	__u64 *owner;

	if (!sock)
		return 0;
	tcp = bpf_skc_to_tcp_sock(sock);
	if (!tcp)
		return 0;
	owner = bpf_sk_storage_get(&owners, tcp, NULL, 0);
	if (!owner || !read_address(sock, found.peer.address))
		return 0;
	found.peer.job = *owner;
	found.moved.sent = tcp->bytes_acked;
	found.moved.received = tcp->bytes_received;
	if (found.moved.sent || found.moved.received)
		bpf_seq_write(context->meta->seq, &found, sizeof(found));
	return 0;
}
