// SPDX-License-Identifier: MIT OR GPL-2.0-only
/*
 * Waits of the threads of apps for a core, one histogram an app.
 *
 * A thread begins to wait when it is woken (sched_wakeup, once it is in a run queue) or is
 * switched out while it could run on (sched_switch). It ends its wait when sched_switch puts
 * it on a core. Time in which the quota of its cgroup (cpu.max) keeps it off is part of it.
 *
 * Which processes belong to which app is in a table that crates/host/src/bpf/waits.rs writes.
 * A child belongs to its parent's app from its fork on. Threads of other processes cost one
 * look into this table when they begin to wait. A process is taken off it when its first
 * thread ends; threads that outlive that one are no longer timed.
 *
 * The table of waiting threads is direct-mapped: if two waiting threads share a slot, the
 * earlier wait is dropped, and counted as lost.
 *
 * The kernel lets only programs with a GPL-compatible licence follow its pointers
 * (docs/decisions.md).
 */
#include "histogram.h"

#define SLOT_BITS 14
#define PROCESSES_MAX 16384
/* 2^32 over the golden ratio, for Fibonacci hashing. */
#define FIBONACCI 0x9e3779b9U

/* The fields that are read of the kernel's struct; the loader replaces their offsets. */
#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct task_struct {
	int pid;
	int tgid;
};

#pragma clang attribute pop

/* The app of each process, by the number of its thread group. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, PROCESSES_MAX);
	__type(key, __u32);
	__type(value, __u32);
} processes SEC(".maps");

/* What an app has waited. The layout is that of `Record` in waits.rs. */
struct app_record {
	struct histogram waits;
	/* Waits that were dropped. */
	__u64 lost;
	/* Children that found the table of processes full. */
	__u64 unfollowed;
	/* A whole number of cache lines. */
	__u64 padding[6];
};

_Static_assert(sizeof(struct app_record) == 8 * (512 + 8), "waits.rs reads 520 words");

/* One record an app; the loader sets the number of apps. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct app_record);
} records SEC(".maps");

struct waiting_thread {
	/* The thread in the lower half, its app in the upper one; 0 for none. */
	__u64 thread;
	__u64 since;
};

/* A variable, which only these programs use, takes fewer instructions than a map. */
struct waiting_thread waiting[1 << SLOT_BITS];

static __always_inline struct waiting_thread *slot_of(__u32 thread)
{
	return &waiting[thread * FIBONACCI >> (32 - SLOT_BITS)];
}

static __always_inline struct app_record *record_of(__u32 app)
{
	return bpf_map_lookup_elem(&records, &app);
}

/* A thread begins to wait, if it is one of an app. */
static __always_inline void begin_wait(struct task_struct *task)
{
	__u32 process = task->tgid, thread = task->pid;
	__u32 *app = bpf_map_lookup_elem(&processes, &process);
	struct waiting_thread *slot;
	struct app_record *record;
	__u64 before;

	if (!app)
		return;
	slot = slot_of(thread);
	before = READ_ONCE(slot->thread);
	if (before && (__u32)before != thread) {
		record = record_of(before >> 32);
		if (record)
			__sync_fetch_and_add(&record->lost, 1);
	}
	WRITE_ONCE(slot->since, bpf_ktime_get_ns());
	WRITE_ONCE(slot->thread, (__u64)*app << 32 | thread);
}

/* sched_wakeup(thread) */
SEC("tp_btf/sched_wakeup")
int BPF_PROG(lull_app_wake, struct task_struct *task)
{
	begin_wait(task);
	return 0;
}

/* sched_wakeup_new(thread) */
SEC("tp_btf/sched_wakeup_new")
int BPF_PROG(lull_app_wake_new, struct task_struct *task)
{
	begin_wait(task);
	return 0;
}

/* sched_switch(is preempted, from, to, state of from) */
SEC("tp_btf/sched_switch")
int BPF_PROG(lull_app_switch, bool is_preempted, struct task_struct *from,
	     struct task_struct *to, unsigned int from_state)
{
	struct waiting_thread *slot;
	struct app_record *record;
	struct bucket *bucket;
	__u64 waits, ns;
	__u32 thread;

	/* The thread could run on, and is not the core's idle thread, which never waits. */
	if ((is_preempted || !from_state) && from->pid)
		begin_wait(from);
	thread = to->pid;
	slot = slot_of(thread);
	waits = READ_ONCE(slot->thread);
	if (!thread || (__u32)waits != thread)
		return 0;
	ns = elapsed(READ_ONCE(slot->since), bpf_ktime_get_ns());
	WRITE_ONCE(slot->thread, 0);
	record = record_of(waits >> 32);
	if (!record)
		return 0;
	bucket = &record->waits.buckets[bucket_of(ns)];
	__sync_fetch_and_add(&bucket->count, 1);
	__sync_fetch_and_add(&bucket->sum_ns, ns);
	return 0;
}

/* sched_process_fork(parent, child): before the child is first woken. */
SEC("tp_btf/sched_process_fork")
int BPF_PROG(lull_app_fork, struct task_struct *parent, struct task_struct *child)
{
	__u32 process = parent->tgid, new = child->tgid;
	__u32 *app = bpf_map_lookup_elem(&processes, &process);
	struct app_record *record;

	if (!app || process == new)
		return 0;
	if (bpf_map_update_elem(&processes, &new, app, BPF_ANY)) {
		record = record_of(*app);
		if (record)
			__sync_fetch_and_add(&record->unfollowed, 1);
	}
	return 0;
}

/* sched_process_exit(thread): the first thread of a process takes it off the table. */
SEC("tp_btf/sched_process_exit")
int BPF_PROG(lull_app_exit, struct task_struct *task)
{
	__u32 process = task->tgid;

	if (task->pid == task->tgid)
		bpf_map_delete_elem(&processes, &process);
	return 0;
}

char LICENSE[] SEC("license") = "Dual MIT/GPL";
