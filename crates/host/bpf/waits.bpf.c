// SPDX-License-Identifier: MIT OR GPL-2.0-only
/*
 * Waits of the threads of apps for a core, one histogram an app.
 *
 * A thread begins to wait when it is woken (sched_wakeup, once it is in a run queue) or is
 * switched out while it could run on (sched_switch). It ends its wait when sched_switch puts
 * it on a core. Time in which the quota of its cgroup (cpu.max) keeps it off is no wait, and
 * summed apart: the kernel counts it in the run queue of the thread's cgroup on its core.
 *
 * Each core has a clock for what ran on it: for each app, for all of them, and for other
 * threads. The clocks at both ends of a wait say what had the core meanwhile. A thread that
 * moves to another core while it waits, or is throttled, is attributed to nothing, and so is one
 * on a core without clocks.
 *
 * Cores write to no line that another core writes to, but for the table of waiting threads and,
 * where histograms for each core would take too much memory, the histograms. sched_switch runs
 * with interrupts disabled, so that plain additions to what a core alone writes suffice.
 *
 * Which processes belong to which app is in a table that crates/host/src/bpf/waits.rs writes.
 * A child belongs to its parent's app from its fork on. A process is taken off it when its first
 * thread ends; threads that outlive that one may no longer be timed. A direct-mapped table of
 * threads keeps what was found there, also of threads that are no app's, so that a wake-up does
 * not search. User space, which writes the table of processes, then counts the generation up, and
 * so invalidates what was kept; a new thread's entry is removed at its fork.
 *
 * Times are those of the run queues' clocks, which the kernel updates before it wakes or switches
 * a thread: reading one takes two loads, and any other clock is a call or two.
 *
 * The table of waiting threads is direct-mapped: if two waiting threads share a slot, the
 * earlier wait is dropped, and counted as lost.
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
	/* Waits that were dropped. */
	__u64 lost;
	/* Children that found the table of processes full. */
	__u64 unfollowed;
	/* A whole number of cache lines. */
	__u64 padding[6];
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

/* A core: only its own programs write, and those of other cores read. */
struct core {
	/* When the thread that runs was switched in. */
	__u64 since;
	/* What it is of. */
	__u64 runs;
	/* Sums of what ran before it. */
	__u64 others_ns;
	__u64 apps_ns;
	__u64 padding[12];
};

_Static_assert(sizeof(struct core) == LINES_BYTES, "cores share no line");

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
	/* For how long its threads ran there. */
	__u64 ran_ns;
	/* Parts of its waits that ended there, in which its own threads, those of other apps, and
	 * others ran. */
	__u64 behind_own_ns;
	__u64 behind_apps_ns;
	__u64 behind_others_ns;
	/* Times in which its threads could run and the quota of their cgroup kept them off. */
	__u64 throttled_ns;
	__u64 padding[11];
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

/* The clocks of a core. */
struct clocks {
	__u64 others_ns;
	__u64 apps_ns;
	__u64 own_ns;
};

struct waiting_thread {
	/* The thread in the lower half, its app in the upper one; 0 for none. */
	__u64 thread;
	__u64 since;
	/* The run queue that it is in, and for how long that was throttled before. */
	__u64 queue;
	__u64 throttled_ns;
	/* The core whose clocks these are, or NO_CORE. */
	__u64 core;
	struct clocks clocks;
};

#define NO_CORE (~0ULL)

/* A variable, which only these programs use, takes fewer instructions than a map. */
struct waiting_thread waiting[1 << SLOT_BITS];

/*
 * What is known of a thread: its number, its app's number and one, or 0 for none, and the
 * generation. Linux has at most 2^22 threads.
 */
__u64 known[1 << SLOT_BITS];

#define APP_SHIFT 22
#define APP_MASK 0xffffULL
#define GENERATION_SHIFT 38

static __always_inline __u32 slot_number(__u32 thread)
{
	return thread * FIBONACCI >> (32 - SLOT_BITS);
}

static __always_inline struct waiting_thread *slot_of(__u32 thread)
{
	return &waiting[slot_number(thread)];
}

/* The number of a thread's app and one; 0 if it is no app's. */
static __always_inline __u32 app_of(struct task_struct *task)
{
	__u32 process = task->tgid, thread = task->pid;
	__u64 *slot = &known[slot_number(thread)];
	__u64 found = READ_ONCE(*slot);
	__u64 wanted = (__u64)generation << GENERATION_SHIFT | thread;
	__u32 *app;

	if ((found & ~(APP_MASK << APP_SHIFT)) != wanted) {
		app = bpf_map_lookup_elem(&processes, &process);
		found = wanted;
		if (app)
			found |= ((*app + 1) & APP_MASK) << APP_SHIFT;
		WRITE_ONCE(*slot, found);
	}
	return found >> APP_SHIFT & APP_MASK;
}

/* The record of an app that a core writes. */
static __always_inline struct app_record *record_on(__u32 number, __u32 app)
{
	__u32 own = own_records;
	__u32 at = (number < own ? number : own) * apps + app;

	return bpf_map_lookup_elem(&records, &at);
}

/* The record of an app that all cores write, with atomic operations. */
static __always_inline struct app_record *record_of(__u32 app)
{
	return record_on(~0U, app);
}

/* The clocks of a core; none if it is numbered beyond those that the loader knew of. */
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

/* The clocks of a core for a thread of an app, with the part of what runs on it now. */
static __always_inline void read_clocks(struct clocks *clocks, struct core *core,
					struct app_on_core *own, __u32 app, __u64 now)
{
	__u64 part = elapsed(READ_ONCE(core->since), now);
	__u64 runs = READ_ONCE(core->runs);

	clocks->others_ns = READ_ONCE(core->others_ns);
	clocks->apps_ns = READ_ONCE(core->apps_ns);
	clocks->own_ns = READ_ONCE(own->ran_ns);
	if (runs == OTHERS)
		clocks->others_ns += part;
	else if (runs != NOTHING)
		clocks->apps_ns += part;
	if (runs == (__u64)app + 1)
		clocks->own_ns += part;
}

/* A thread of an app begins to wait. */
static __always_inline void begin_wait(struct task_struct *task, __u32 app, __u64 now)
{
	__u32 thread = task->pid, number;
	struct waiting_thread *slot;
	struct app_record *record;
	struct app_on_core *own;
	struct core *core;
	__u64 before;

	slot = slot_of(thread);
	before = READ_ONCE(slot->thread);
	if (before && (__u32)before != thread) {
		record = record_of(before >> 32);
		if (record)
			__sync_fetch_and_add(&record->lost, 1);
	}
	slot->throttled_ns = throttled_of(task, &slot->queue);
	number = task->thread_info.cpu;
	core = core_of(number);
	own = app_on_core_of(number, app);
	slot->core = NO_CORE;
	if (core && own) {
		read_clocks(&slot->clocks, core, own, app, now);
		slot->core = number;
	}
	WRITE_ONCE(slot->since, now);
	WRITE_ONCE(slot->thread, (__u64)app << 32 | thread);
}

/* Adds what had the core while a thread waited; each part is at most the rest of the wait. */
static __always_inline void attribute(struct app_on_core *on, struct waiting_thread *slot,
				      struct clocks *now, __u64 ns)
{
	__u64 own = elapsed(slot->clocks.own_ns, now->own_ns);
	__u64 all = elapsed(slot->clocks.apps_ns, now->apps_ns);
	__u64 others = elapsed(slot->clocks.others_ns, now->others_ns);

	all = all < ns ? all : ns;
	own = own < all ? own : all;
	others = others < ns - all ? others : ns - all;
	add(&on->behind_own_ns, own);
	add(&on->behind_apps_ns, all - own);
	add(&on->behind_others_ns, others);
}

static __always_inline void wake(struct task_struct *task)
{
	__u32 app = app_of(task);

	if (app)
		begin_wait(task, app - 1, time_of(task));
}

/* sched_wakeup(thread) */
SEC("tp_btf/sched_wakeup")
int BPF_PROG(lull_app_wake, struct task_struct *task)
{
	wake(task);
	return 0;
}

/* sched_wakeup_new(thread) */
SEC("tp_btf/sched_wakeup_new")
int BPF_PROG(lull_app_wake_new, struct task_struct *task)
{
	wake(task);
	return 0;
}

/*
 * The thread that ran on a core is switched out: what it ran is added to the clocks, which stand
 * from here to the end of the program. Returns the app that it is of, there; none of other threads.
 */
static __always_inline struct app_on_core *end_slice(struct core *core, __u32 number, __u64 runs,
						     __u64 now)
{
	__u64 part = elapsed(core->since, now);
	struct app_on_core *own = 0;

	if (runs == OTHERS) {
		add(&core->others_ns, part);
	} else if (runs != NOTHING) {
		add(&core->apps_ns, part);
		own = app_on_core_of(number, runs - 1);
		if (own)
			add(&own->ran_ns, part);
	}
	WRITE_ONCE(core->since, now);
	return own;
}

/*
 * A thread that waited is switched in: its wait has ended. Returns what it is of. The thread that
 * ran before was of `runs`, which `ran` is on this core.
 */
static __always_inline __u64 end_wait(struct task_struct *task, struct core *core, __u32 number,
				      __u64 runs, struct app_on_core *ran, __u64 now)
{
	__u32 thread = task->pid;
	struct waiting_thread *slot = slot_of(thread);
	__u64 waits = READ_ONCE(slot->thread);
	__u64 ns, queue, throttled;
	struct app_record *record;
	struct app_on_core *own;
	struct clocks clocks;
	struct bucket *bucket;
	__u32 app;

	if ((__u32)waits != thread)
		return OTHERS;
	ns = elapsed(READ_ONCE(slot->since), now);
	WRITE_ONCE(slot->thread, 0);
	app = waits >> 32;
	record = record_on(number, app);
	if (!record)
		return OTHERS;
	throttled = throttled_of(task, &queue);
	throttled = queue == slot->queue ? elapsed(slot->throttled_ns, throttled) : 0;
	throttled = throttled < ns ? throttled : ns;
	ns -= throttled;
	own = ran;
	if (runs != (__u64)app + 1)
		own = app_on_core_of(number, app);
	if (own && throttled) {
		add(&own->throttled_ns, throttled);
	} else if (own && core && slot->core == number) {
		clocks.others_ns = core->others_ns;
		clocks.apps_ns = core->apps_ns;
		clocks.own_ns = own->ran_ns;
		attribute(own, slot, &clocks, ns);
	}
	bucket = &record->waits.buckets[bucket_of(ns)];
	if (number < own_records) {
		add(&bucket->count, 1);
		add(&bucket->sum_ns, ns);
	} else {
		__sync_fetch_and_add(&bucket->count, 1);
		__sync_fetch_and_add(&bucket->sum_ns, ns);
	}
	return (__u64)app + 1;
}

/* sched_switch(is preempted, from, to, state of from) */
SEC("tp_btf/sched_switch")
int BPF_PROG(lull_app_switch, bool is_preempted, struct task_struct *from,
	     struct task_struct *to, unsigned int from_state)
{
	/* A load, where the number of the core is a call of the kernel before Linux 6.10. */
	__u32 number = from->thread_info.cpu;
	struct core *core = core_of(number);
	/* One of the two is not the core's idle thread, which is in no run queue. */
	__u64 now = time_of(from->pid ? from : to);
	__u64 runs = NOTHING, next = NOTHING;
	struct app_on_core *ran = 0;
	__u32 app;

	if (core) {
		runs = core->runs;
		ran = end_slice(core, number, runs, now);
	}
	/* The thread could run on, and is not the core's idle thread, which never waits. */
	if ((is_preempted || !from_state) && from->pid) {
		app = app_of(from);
		if (app)
			begin_wait(from, app - 1, now);
	}
	if (to->pid)
		next = end_wait(to, core, number, runs, ran, now);
	if (core)
		WRITE_ONCE(core->runs, next);
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
	WRITE_ONCE(known[slot_number(child->pid)], 0);
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
