/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * What is read of a thread and of the run queue that it is in.
 *
 * The kernel lets only programs with a GPL-compatible licence follow its pointers
 * (docs/decisions.md).
 */
#ifndef LULL_RUN_QUEUES_H
#define LULL_RUN_QUEUES_H

#include <linux/bpf.h>
#include <linux/types.h>
#include <bpf/bpf_helpers.h>

#include <bpf/bpf_core_read.h>

/* The fields that are read of the kernel's struct; the loader replaces their offsets. */
#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct thread_info {
	__u32 cpu;
};

struct rq {
	__u64 clock;
};

struct cfs_rq {
	/* Exists with CONFIG_FAIR_GROUP_SCHED. */
	struct rq *rq;
	/* Exists with CONFIG_CFS_BANDWIDTH, under this name since Linux 5.19. */
	__u64 throttled_clock_pelt_time;
};

struct sched_entity {
	/* Exists with CONFIG_FAIR_GROUP_SCHED. */
	struct cfs_rq *cfs_rq;
};

struct sched_info {
	/* For how long the thread could run before it did, in ns, in waits that have ended; the
	 * part on another core is added when the thread is moved. */
	unsigned long long run_delay;
	/* Since when it can run and does not, by the clock of its run queue; else 0. */
	unsigned long long last_queued;
};

struct task_struct {
	int pid;
	int tgid;
	struct thread_info thread_info;
	struct sched_entity se;
	/* Exists with CONFIG_SCHED_INFO. */
	struct sched_info sched_info;
};

#pragma clang attribute pop

/* The time by the clock of the run queue of a thread that is switched. */
static __always_inline __u64 time_of(struct task_struct *task)
{
	return task->se.cfs_rq->rq->clock;
}

/* For how long a thread's run queue was throttled, in ns, since the machine is up. */
static __always_inline __u64 throttled_of(struct task_struct *task, __u64 *queue)
{
	struct cfs_rq *cfs_rq = 0;

	*queue = 0;
	if (!bpf_core_field_exists(task->se.cfs_rq) ||
	    !bpf_core_field_exists(cfs_rq->throttled_clock_pelt_time))
		return 0;
	cfs_rq = task->se.cfs_rq;
	*queue = (__u64)cfs_rq;
	return cfs_rq->throttled_clock_pelt_time;
}

#endif
