// SPDX-License-Identifier: MIT OR GPL-2.0-only
/*
 * Waits of the threads of apps for a core, one histogram an app.
 *
 * The kernel itself notes when a thread begins to wait, because it was woken or was switched out
 * while it could run on (`last_queued` of its sched_info), and sched_switch reports the end of
 * the wait before the kernel forgets that time. So one program at sched_switch sees every wait,
 * and no program runs at wake-ups. A thread that was moved to another core while it waited begins
 * again there; the kernel adds what it had waited before to `run_delay`. Time in which the quota
 * of its cgroup (cpu.max) keeps it off is no wait, and summed apart: the kernel counts it in the
 * run queue of the thread's cgroup on its core.
 *
 * Each core keeps the last stretches of what ran on it: threads of one app, other threads, or
 * nothing. The stretches since a wait began say what had the core meanwhile. What lies before the
 * kept ones is attributed to nothing, as is time on another core and time on a core that the
 * loader did not know of.
 *
 * Cores write to no line that another core writes to, but for the table of threads and, where
 * histograms for each core would take too much memory, the histograms. sched_switch runs with
 * interrupts disabled, so that plain additions to what a core alone writes suffice.
 *
 * Which processes belong to which app is in a table that crates/host/src/bpf/waits.rs writes.
 * A child belongs to its parent's app from its fork on. A process is taken off it when its first
 * thread ends; threads that outlive that one may no longer be timed. A direct-mapped table of
 * threads keeps what was found there, also of threads that are no app's, so that a switch does
 * not search. User space, which writes the table of processes, then counts the generation up, and
 * so invalidates what was kept; a new thread's entry is removed at its fork. If two threads share
 * an entry, each switch to one of them searches, and of a wait that began on another core only
 * the part on the last one counts.
 *
 * Times are those of the run queues' clocks, which the kernel updates before it wakes or switches
 * a thread: reading one takes two loads, and any other clock is a call or two.
 *
 * The kernel lets only programs with a GPL-compatible licence follow its pointers
 * (docs/decisions.md).
 */
#include "histogram.h"
#include "run_queues.h"

#define SLOT_BITS 14
#define PROCESSES_MAX 16384
/* 2^32 over the golden ratio, for Fibonacci hashing. */
#define FIBONACCI 0x9e3779b9U

/* The app of each process, by the number of its thread group. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, PROCESSES_MAX);
	__type(key, __u32);
	__type(value, __u32);
} processes SEC(".maps");

/*
 * How often user space has written the table of processes, and one. A variable takes fewer
 * instructions than a map. It is no zero at first, so that it has a section of its own, which
 * user space writes.
 */
volatile __u32 generation = 1;

/* What an app has waited. The layout is that of `Record` in waits.rs. */
struct app_record {
	struct histogram waits;
	/* Children that found the table of processes full. */
	__u64 unfollowed;
	/* A whole number of cache lines. */
	__u64 padding[7];
};

_Static_assert(sizeof(struct app_record) == 8 * (512 + 8), "waits.rs reads 520 words");

/*
 * All apps of the first core that has records of its own, then of the second, ..., then of all
 * other cores together. The loader sets the numbers.
 */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct app_record);
} records SEC(".maps");

/* The number of apps, and of cores that have records of their own: all or none. */
const volatile __u32 apps = 1;
const volatile __u32 own_records = 0;

/*
 * Two lines, since processors fetch lines in pairs. The memory of a map that can be mapped
 * begins with a page, so that each of its values has lines of its own.
 */
#define LINES_BYTES 128

/* What a core runs, beside the number of an app and one. */
#define OTHERS 0
#define NOTHING (~0U)

/* The stretches that a core keeps; a power of two. A wait has as many iterations at most. */
#define STRETCHES 64

/* A time in which a core ran the same; it lasts until the next one begins. */
struct stretch {
	__u64 since;
	__u64 runs;
};

/* A core, of which only its own programs read and write. */
struct core {
	/* The stretches that have begun; the last STRETCHES of them are kept. */
	__u64 count;
	__u64 padding[15];
	struct stretch stretches[STRETCHES];
};

_Static_assert(sizeof(struct core) % LINES_BYTES == 0, "cores share no line");

/* The loader sets the number of cores. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct core);
} cores SEC(".maps");

/* An app on a core: only that core's programs write. The layout is that of `OnCore` in
 * waits.rs. */
struct app_on_core {
	/* Parts of its waits that ended there, in which its own threads, those of other apps, and
	 * others ran. */
	__u64 behind_own_ns;
	__u64 behind_apps_ns;
	__u64 behind_others_ns;
	/* Times in which its threads could run and the quota of their cgroup kept them off. */
	__u64 throttled_ns;
	/* The run queue of its last thread with a quota, for how long that had been throttled then,
	 * and when and for how long it was throttled last. */
	__u64 queue;
	__u64 queue_throttled_ns;
	__u64 throttled_until;
	__u64 throttled_last_ns;
	__u64 padding[8];
};

_Static_assert(sizeof(struct app_on_core) == LINES_BYTES, "waits.rs reads 16 words");

/* All apps of the first core, then of the second, ... The loader sets the number of cores times
 * that of apps. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct app_on_core);
} on_cores SEC(".maps");

/* What is known of a thread. */
struct thread {
	/* Its number, its app's number and one, or 0 for none, and the generation. */
	__u64 identity;
	/* Its number, and its run_delay after its last wait, both in one word, so that two threads
	 * that share the entry never mix them. */
	__u64 delayed;
	/* When it was switched out last while it could run on, and for how long its run queue had
	 * been throttled then. */
	__u64 left;
	__u64 throttled_ns;
};

/* A variable, which only these programs use, takes fewer instructions than a map. */
struct thread threads[1 << SLOT_BITS];

/* Of identity. Linux has at most 2^22 threads. */
#define APP_SHIFT 22
#define APP_MASK 0xffffULL
#define GENERATION_SHIFT 38

/* Of delayed: the lower part counts in units of 2^10 ns, and begins again after 52 days. */
#define DELAY_BITS 42
#define DELAY_UNIT_BITS 10
#define DELAY_MASK ((1ULL << DELAY_BITS) - 1)

static __always_inline __u32 slot_number(__u32 thread)
{
	return thread * FIBONACCI >> (32 - SLOT_BITS);
}

static __always_inline struct thread *thread_of(struct task_struct *task)
{
	return &threads[slot_number(task->pid)];
}

/* The number of a thread's app and one; 0 if it is no app's. */
static __always_inline __u32 app_of(struct task_struct *task, struct thread *thread)
{
	__u32 process = task->tgid, number = task->pid;
	__u64 found = READ_ONCE(thread->identity);
	__u64 wanted = (__u64)generation << GENERATION_SHIFT | number;
	__u32 *app;

	if ((found & ~(APP_MASK << APP_SHIFT)) != wanted) {
		app = bpf_map_lookup_elem(&processes, &process);
		found = wanted;
		if (app)
			found |= ((*app + 1) & APP_MASK) << APP_SHIFT;
		/* Of another thread, or of a time in which it was not counted. */
		WRITE_ONCE(thread->delayed, 0);
		WRITE_ONCE(thread->identity, found);
	}
	return found >> APP_SHIFT & APP_MASK;
}

/* The record of an app that a core writes, or of a number beyond them, all other cores. */
static __always_inline struct app_record *record_on(__u32 number, __u32 app)
{
	__u32 own = own_records;
	__u32 at = (number < own ? number : own) * apps + app;

	return bpf_map_lookup_elem(&records, &at);
}

/* The core of this number; none if it is beyond those that the loader knew of. */
static __always_inline struct core *core_of(__u32 number)
{
	return bpf_map_lookup_elem(&cores, &number);
}

static __always_inline struct app_on_core *app_on_core_of(__u32 number, __u32 app)
{
	__u32 at = number * apps + app;

	return bpf_map_lookup_elem(&on_cores, &at);
}

/* Adds to what this core alone writes. */
static __always_inline void add(__u64 *sum, __u64 ns)
{
	WRITE_ONCE(*sum, *sum + ns);
}

/* The stretch that has begun this many before the last one. */
static __always_inline struct stretch *stretch_of(struct core *core, __u64 before)
{
	return &core->stretches[(core->count - 1 - before) & (STRETCHES - 1)];
}

/* Adds what had the core while a thread of an app waited in its run queue. */
static __always_inline void attribute(struct app_on_core *on, struct core *core, __u32 app,
				      __u64 queued, __u64 now)
{
	__u64 own = on->behind_own_ns, all = on->behind_apps_ns, others = on->behind_others_ns;
	__u64 end = now, count = core->count;

	for (__u64 before = 0; before < STRETCHES; before++) {
		struct stretch *stretch = stretch_of(core, before);
		__u64 since = stretch->since, runs = stretch->runs;
		__u64 part = elapsed(since > queued ? since : queued, end);

		if (before >= count)
			break;
		if (runs == OTHERS)
			others += part;
		else if (runs == (__u64)app + 1)
			own += part;
		else if (runs != NOTHING)
			all += part;
		if (since <= queued)
			break;
		end = since;
	}
	WRITE_ONCE(on->behind_own_ns, own);
	WRITE_ONCE(on->behind_apps_ns, all);
	WRITE_ONCE(on->behind_others_ns, others);
}

/*
 * For how much of a wait in its run queue the quota of a thread's cgroup kept it off.
 *
 * Of a thread that was switched out for it, which has waited since, that is known. One that was
 * woken meanwhile is held off by the last time in which the run queue was throttled, which has
 * ended when the first thread of it runs again.
 */
static __always_inline __u64 throttled_in(struct task_struct *task, struct thread *thread,
					  struct app_on_core *on, __u64 queued, __u64 now)
{
	__u64 queue, begun, all = throttled_of(task, &queue), most = elapsed(queued, now);

	if (!all)
		return 0;
	if (on->queue != queue) {
		on->queue = queue;
		on->throttled_last_ns = 0;
	} else if (all > on->queue_throttled_ns) {
		on->throttled_until = now;
		on->throttled_last_ns = all - on->queue_throttled_ns;
	}
	on->queue_throttled_ns = all;
	if (READ_ONCE(thread->left) == queued) {
		all = elapsed(READ_ONCE(thread->throttled_ns), all);
	} else {
		begun = on->throttled_until - on->throttled_last_ns;
		all = elapsed(begun > queued ? begun : queued, on->throttled_until);
	}
	return all < most ? all : most;
}

/* A thread of an app that waited in a run queue since `queued` is switched in. */
static __always_inline void end_wait(struct task_struct *task, struct thread *thread,
				     struct core *core, __u32 number, __u32 app, __u64 now)
{
	__u64 queued = task->sched_info.last_queued, delay, delayed, before, ns, throttled = 0;
	struct app_record *record = record_on(number, app);
	struct app_on_core *on = app_on_core_of(number, app);
	struct bucket *bucket;

	if (!queued || !record)
		return;
	ns = elapsed(queued, now);
	/* What it has waited on other cores before; nothing for nearly all. */
	delay = task->sched_info.run_delay;
	delayed = READ_ONCE(thread->delayed);
	before = (delay >> DELAY_UNIT_BITS) - delayed & DELAY_MASK;
	/* The upper half of the range is a difference below 0, which there should not be. */
	if (delayed >> DELAY_BITS != (__u32)task->pid || before > DELAY_MASK / 2)
		before = 0;
	WRITE_ONCE(thread->delayed, (__u64)(__u32)task->pid << DELAY_BITS |
					    ((delay + ns) >> DELAY_UNIT_BITS & DELAY_MASK));
	if (on)
		throttled = throttled_in(task, thread, on, queued, now);
	ns += (before << DELAY_UNIT_BITS) - throttled;
	bucket = &record->waits.buckets[bucket_of(ns)];
	if (number < own_records) {
		add(&bucket->count, 1);
		add(&bucket->sum_ns, ns);
	} else {
		__sync_fetch_and_add(&bucket->count, 1);
		__sync_fetch_and_add(&bucket->sum_ns, ns);
	}
	/* After the wait, so that user space, which reads these first, never sees more of them. */
	if (throttled)
		add(&on->throttled_ns, throttled);
	else if (on && core)
		attribute(on, core, app, queued, now);
}

/* A core goes on with something else. */
static __always_inline void begin_stretch(struct core *core, __u64 runs, __u64 now)
{
	struct stretch *stretch = &core->stretches[core->count & (STRETCHES - 1)];

	stretch->since = now;
	stretch->runs = runs;
	core->count++;
}

/* A thread of an app is switched out while it could run on: it waits from here on. */
static __always_inline void note_left(struct task_struct *task, __u64 now)
{
	struct thread *thread = thread_of(task);
	__u64 queue;

	WRITE_ONCE(thread->left, now);
	WRITE_ONCE(thread->throttled_ns, throttled_of(task, &queue));
}

/* sched_switch(is preempted, from, to, state of from) */
SEC("tp_btf/sched_switch")
int BPF_PROG(lull_app_switch, bool is_preempted, struct task_struct *from,
	     struct task_struct *to, unsigned int from_state)
{
	/* A load, where the number of the core is a call of the kernel before Linux 6.10. */
	__u32 number = from->thread_info.cpu;
	struct core *core = core_of(number);
	__u64 runs = NOTHING, next = NOTHING, now;
	struct thread *thread = thread_of(to);

	if (core && core->count)
		runs = stretch_of(core, 0)->runs;
	/* The core's idle thread is in no run queue, and never waits. */
	if (to->pid)
		next = app_of(to, thread);
	if (core && core->count && runs == next && next == OTHERS)
		return 0;
	now = time_of(to->pid ? to : from);
	if (runs != OTHERS && runs != NOTHING && (is_preempted || !from_state))
		note_left(from, now);
	if (next != OTHERS && next != NOTHING)
		end_wait(to, thread, core, number, next - 1, now);
	if (core && (!core->count || runs != next))
		begin_stretch(core, next, now);
	return 0;
}

/* sched_process_fork(parent, child): before the child is first woken. */
SEC("tp_btf/sched_process_fork")
int BPF_PROG(lull_app_fork, struct task_struct *parent, struct task_struct *child)
{
	__u32 process = parent->tgid, new = child->tgid;
	__u32 *app = bpf_map_lookup_elem(&processes, &process);
	struct app_record *record;

	/* The number may have been that of another thread. */
	WRITE_ONCE(thread_of(child)->identity, 0);
	if (!app || process == new)
		return 0;
	if (bpf_map_update_elem(&processes, &new, app, BPF_ANY)) {
		record = record_on(~0U, *app);
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
