// SPDX-License-Identifier: MIT OR GPL-2.0-only
/*
 * Sleeps of cores, and waits of threads for a core.
 *
 * Both are counted in one record a core, which crates/host/src/bpf/watch.rs maps and
 * reads: reading costs no system call.
 *
 * Sleeps. cpu_idle reports when a core enters an idle state and when it leaves it. One such
 * stay is one sleep, since one stay has to pay for the entry into its state: a tick or an
 * interrupt that wakes the core ends the sleep, even if the core sleeps on a microsecond
 * later. Polling states count as idle, as in cpuidle.
 *
 * Waits. A thread begins to wait when it is woken (sched_wakeup, once it is in a run queue)
 * or is switched out while it could run on (sched_switch). It ends its wait when
 * sched_switch puts it on a core. In between, the table of waiting threads holds the instant
 * under the address of the thread's task_struct. The address is only compared: no field of
 * the kernel's structs is read, so these programs need no BTF of the kernel. The table is
 * direct-mapped, which takes some nanoseconds where a hash map with its locks takes
 * hundreds: if two waiting threads hash to the same slot, the earlier wait is dropped, and
 * counted as lost.
 *
 * Sampling. Reading the clock is most of the remaining cost. A core on which threads begin to
 * wait more often than every 65 us times one in 2, 4, 8 or 16 of these waits and counts it as
 * often. The binary logarithm of this weight is kept in the lowest bits of the instant.
 *
 * Raw tracepoints run with preemption disabled, so that plain additions to a core's own
 * record suffice.
 */
#include "histogram.h"

/* cpu_idle with this state is the end of a sleep (PWR_EVENT_EXIT). */
#define STATE_EXIT ((__u32)-1)

/* Timed waits are at least this far apart, or the weight doubles... */
#define NEAR_NS (1 << 16)
/* ...and at most this far, or it is halved. */
#define FAR_NS (1 << 18)
#define WEIGHT_BITS_MAX 4
/* The bits of an instant that hold its weight; the verifier derives bounds from it. */
#define WEIGHT_MASK 7ULL

#define SLOT_BITS 14
/* 2^64 over the golden ratio, for Fibonacci hashing. */
#define FIBONACCI 0x9e3779b97f4a7c15ULL

/*
 * What a core has counted. The layout is that of `Record` in watch.rs, which reads it from
 * the first word to the last while programs write. For such a reader a begun stay is
 * withdrawn (awake_since, asleep_since) before its length is added.
 */
struct core_record {
	struct histogram sleeps;
	/* Waits that ended on this core. */
	struct histogram waits;
	/* Time awake between sleeps. */
	__u64 awake_ns;
	/* Since when it is awake or asleep, or 0. */
	__u64 awake_since;
	__u64 asleep_since;
	/* Waits that were dropped by a wait that began on this core, with their weight. */
	__u64 lost;
	/* Waits still to skip before the next is timed. */
	__u64 skip;
	/* Of 2^weight_bits waits one is timed. */
	__u64 weight_bits;
	/* When the last wait was timed. */
	__u64 timed_at;
	/* A whole number of cache lines: cores do not write to each other's. */
	__u64 padding;
};

_Static_assert(sizeof(struct core_record) == 8 * (2 * 512 + 8), "watch.rs reads 1032 words");

/* One record a core; the loader sets the number of cores. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct core_record);
} records SEC(".maps");

struct waiting_thread {
	__u64 thread;
	/* When it began to wait, with the bits of its weight. */
	__u64 since;
};

/* A variable, which only these programs use, takes fewer instructions than a map. */
struct waiting_thread waiting[1 << SLOT_BITS];

static __always_inline struct core_record *own_record(void)
{
	__u32 core = bpf_get_smp_processor_id();

	return bpf_map_lookup_elem(&records, &core);
}

static __always_inline struct waiting_thread *slot_of(__u64 thread)
{
	return &waiting[thread * FIBONACCI >> (64 - SLOT_BITS)];
}

/* Adds a time to a histogram, as often as it has weight. */
static __always_inline void count(struct histogram *histogram, __u64 ns, __u64 weight_bits)
{
	struct bucket *bucket = &histogram->buckets[bucket_of(ns)];

	WRITE_ONCE(bucket->count, bucket->count + (1ULL << weight_bits));
	WRITE_ONCE(bucket->sum_ns, bucket->sum_ns + (ns << weight_bits));
}

/* cpu_idle(state, core) */
SEC("raw_tp/cpu_idle")
int BPF_PROG(lull_sleep, __u32 state)
{
	__u64 now = bpf_ktime_get_ns();
	struct core_record *record = own_record();
	__u64 since;

	if (!record)
		return 0;
	if (state != STATE_EXIT) {
		since = record->awake_since;
		if (since) {
			WRITE_ONCE(record->awake_since, 0);
			WRITE_ONCE(record->awake_ns, record->awake_ns + (now - since));
		}
		WRITE_ONCE(record->asleep_since, now);
	} else {
		since = record->asleep_since;
		WRITE_ONCE(record->asleep_since, 0);
		WRITE_ONCE(record->awake_since, now);
		if (since)
			count(&record->sleeps, now - since, 0);
	}
	return 0;
}

/*
 * Returns the binary logarithm of the weight of a wait that begins now and is timed: more
 * than last time if the last timed wait is near, less if it is far.
 */
static __always_inline __u64 next_weight(struct core_record *record, __u64 now)
{
	__u64 apart_ns = now - record->timed_at;
	__u64 bits = record->weight_bits;

	if (apart_ns < NEAR_NS) {
		if (bits < WEIGHT_BITS_MAX)
			bits++;
	} else if (apart_ns >= FAR_NS && bits > 0) {
		bits--;
	}
	bits &= WEIGHT_MASK;
	record->timed_at = now;
	record->weight_bits = bits;
	record->skip = (1ULL << bits) - 1;
	return bits;
}

/*
 * A thread begins to wait. Returns the time, or 0 if this wait is not timed. An instant of
 * an earlier wait of the thread that never ended is removed in both cases.
 */
static __always_inline __u64 begin_wait(__u64 thread)
{
	struct core_record *record = own_record();
	struct waiting_thread *slot = slot_of(thread);
	__u64 now, weight_bits;

	if (!record)
		return 0;
	if (record->skip) {
		record->skip--;
		if (READ_ONCE(slot->thread) == thread)
			WRITE_ONCE(slot->thread, 0);
		return 0;
	}
	now = bpf_ktime_get_ns();
	weight_bits = next_weight(record, now);
	if (READ_ONCE(slot->thread) && slot->thread != thread)
		WRITE_ONCE(record->lost, record->lost + (1ULL << weight_bits));
	WRITE_ONCE(slot->since, (now & ~WEIGHT_MASK) + weight_bits);
	WRITE_ONCE(slot->thread, thread);
	return now;
}

/* A wait that began at since ends on this core. */
static __always_inline void end_wait(__u64 since, __u64 now)
{
	struct core_record *record = own_record();
	__u64 weight_bits = since & WEIGHT_MASK;

	if (!record)
		return;
	/* A core that never sleeps is awake since the first wait that ended on it. */
	if (!record->awake_since && !record->asleep_since)
		WRITE_ONCE(record->awake_since, now);
	count(&record->waits, elapsed(since & ~WEIGHT_MASK, now), weight_bits);
}

/* sched_wakeup(thread) */
SEC("raw_tp/sched_wakeup")
int BPF_PROG(lull_wake, __u64 thread)
{
	begin_wait(thread);
	return 0;
}

/* sched_wakeup_new(thread) */
SEC("raw_tp/sched_wakeup_new")
int BPF_PROG(lull_wake_new, __u64 thread)
{
	begin_wait(thread);
	return 0;
}

/*
 * sched_switch(is preempted, from, to, state of from). The kernel refuses to attach this
 * program if its tracepoint has no fourth argument (before Linux 5.18).
 */
SEC("raw_tp/sched_switch")
int BPF_PROG(lull_switch, __u64 is_preempted, __u64 from, __u64 to, __u32 from_state)
{
	struct waiting_thread *slot = slot_of(to);
	__u64 now = 0, since;

	/* The thread could run on, and is not the core's idle thread, which never waits. */
	if ((is_preempted || !from_state) && (__u32)bpf_get_current_pid_tgid())
		now = begin_wait(from);
	if (READ_ONCE(slot->thread) != to)
		return 0;
	since = READ_ONCE(slot->since);
	WRITE_ONCE(slot->thread, 0);
	end_wait(since, now ? now : bpf_ktime_get_ns());
	return 0;
}

char LICENSE[] SEC("license") = "Dual MIT/GPL";
