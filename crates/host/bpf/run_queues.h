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

struct task_struct {
	int pid;
	int tgid;
	struct thread_info thread_info;
	struct sched_entity se;
};

#pragma clang attribute pop

/* The time by the clock of the run queue of a thread that is woken or switched. */
static __always_inline __u64 time_of(struct task_struct *task)
{
	struct cfs_rq *cfs_rq = 0;
	struct rq *rq = 0;

	if (!bpf_core_field_exists(task->se.cfs_rq) || !bpf_core_field_exists(cfs_rq->rq) ||
	    !bpf_core_field_exists(rq->clock))
		return bpf_ktime_get_ns();
	cfs_rq = task->se.cfs_rq;
	rq = cfs_rq->rq;
	return rq->clock;
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
