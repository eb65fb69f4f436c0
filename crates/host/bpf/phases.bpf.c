// SPDX-License-Identifier: MIT OR GPL-2.0-only
/*
 * What a server's threads do during its queries: run, wait for a core, or sleep.
 *
 * A thread has a query from its read of a watched socket to its next write to the same
 * socket. sched_switch and sched_wakeup divide this time:
 *
 *   runs     on a core
 *   queued   could run and is not on a core
 *   blocked  sleeps interruptibly, as on a futex: it waits for a lock or another thread
 *   disk     sleeps uninterruptibly, mostly for input or output
 *
 * A server that handles each connection in a thread or process of its own is described
 * exactly. Of one that has several queries in a thread at once, the latest is described and
 * the others are counted as displaced.
 *
 * The time integral of the number of queries under way follows from four sums, without a
 * lock: for each query that begins or ends, one more and the time at which it did so.
 *
 * The kernel lets only programs with a GPL-compatible licence follow its pointers
 * (docs/decisions.md).
 */
#include "watched_sockets.h"
#include "histogram.h"

#define THREADS_MAX 16384
/* include/linux/sched.h */
#define TASK_UNINTERRUPTIBLE 2
/* include/net/tcp_states.h: what close() and shutdown() change a connection to. */
#define TCP_FIN_WAIT1 4
#define TCP_CLOSE 7
#define TCP_LAST_ACK 9

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct task_struct {
	int pid;
};

#pragma clang attribute pop

enum phase { RUNS, QUEUED, BLOCKED, DISK, PHASES };

struct thread_state {
	/* The socket of its query; 0 without a query. */
	__u64 cookie;
	/* When the query was read. */
	__u64 begun;
	/* What the thread does, and since when. */
	__u64 phase;
	__u64 since;
	/* Time of the query by phase. */
	__u64 times[PHASES];
	/* Time on a core since the previous answer. */
	__u64 cpu;
	/* How often it left a core since the previous answer. */
	__u64 switches;
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, THREADS_MAX);
	__type(key, __u32);
	__type(value, struct thread_state);
} threads SEC(".maps");

/*
 * The layout is that of `Record` in phases.rs. Times are sums in nanoseconds. A whole number
 * of cache lines: cores do not write to each other's.
 */
struct core_record {
	/* Queries that began and ended on this core, and the times at which they did. */
	__u64 begun;
	__u64 begun_at;
	__u64 ended;
	__u64 ended_at;
	/* Of queries that were answered. */
	__u64 answered;
	__u64 lasted;
	__u64 times[PHASES];
	__u64 cpu;
	__u64 switches;
	/* Queries whose thread read from another socket before it answered. */
	__u64 displaced;
	/* Reads of threads that found the table full. */
	__u64 unfollowed;
	/* Updates that have begun and ended: a reader whose numbers differ reads again. */
	__u64 updates_begun;
	__u64 updates_ended;
};

_Static_assert(sizeof(struct core_record) == 8 * 16, "phases.rs reads 16 words");

/* One record a core; the loader sets the number of cores. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct core_record);
} records SEC(".maps");

static __always_inline struct core_record *own_record(void)
{
	__u32 core = bpf_get_smp_processor_id();

	return bpf_map_lookup_elem(&records, &core);
}

static __always_inline struct thread_state *state_of(__u32 thread)
{
	return bpf_map_lookup_elem(&threads, &thread);
}

static __always_inline void add(__u64 *sum, __u64 value)
{
	__sync_fetch_and_add(sum, value);
}

/* Ends the thread's phase now: the next one begins. */
static __always_inline void enter(struct thread_state *state, __u64 phase, __u64 now)
{
	__u64 ns = elapsed(state->since, now);

	if (state->phase == RUNS)
		state->cpu += ns;
	if (state->cookie)
		state->times[state->phase & (PHASES - 1)] += ns;
	state->phase = phase;
	state->since = now;
}

static __always_inline void begin_update(struct core_record *record)
{
	add(&record->updates_begun, 1);
}

static __always_inline void end_update(struct core_record *record)
{
	add(&record->updates_ended, 1);
}

/* The thread has no query any more. Within an update. */
static __always_inline void end(struct thread_state *state, struct core_record *record,
				__u64 now)
{
	state->cookie = 0;
	add(&record->ended, 1);
	add(&record->ended_at, now);
}

static __always_inline void end_alone(struct thread_state *state, struct core_record *record)
{
	begin_update(record);
	end(state, record, bpf_ktime_get_ns());
	end_update(record);
}

/* sock_recv_length(socket, bytes or error, flags): the thread has read a query. */
SEC("tp_btf/sock_recv_length")
int BPF_PROG(lull_phase_received, struct sock *sk, int length)
{
	struct thread_state *state, new = {};
	struct core_record *record;
	__u32 thread;
	__u64 cookie, now;

	if (length <= 0 || !is_watched(sk))
		return 0;
	record = own_record();
	if (!record)
		return 0;
	now = bpf_ktime_get_ns();
	thread = (__u32)bpf_get_current_pid_tgid();
	state = state_of(thread);
	if (!state) {
		new.since = now;
		bpf_map_update_elem(&threads, &thread, &new, BPF_ANY);
		state = state_of(thread);
	}
	if (!state) {
		add(&record->unfollowed, 1);
		return 0;
	}
	cookie = bpf_get_socket_cookie(sk);
	/* A further piece of the same query. */
	if (state->cookie == cookie)
		return 0;
	enter(state, RUNS, now);
	begin_update(record);
	if (state->cookie) {
		add(&record->displaced, 1);
		end(state, record, now);
	}
	state->cookie = cookie;
	state->begun = now;
#pragma unroll
	for (int phase = 0; phase < PHASES; phase++)
		state->times[phase] = 0;
	add(&record->begun, 1);
	add(&record->begun_at, now);
	end_update(record);
	return 0;
}

/* sock_send_length(socket, bytes or error, flags): the thread answers. */
SEC("tp_btf/sock_send_length")
int BPF_PROG(lull_phase_sent, struct sock *sk, int length)
{
	struct core_record *record;
	struct thread_state *state;
	__u64 now;

	if (length <= 0 || !is_watched(sk))
		return 0;
	state = state_of((__u32)bpf_get_current_pid_tgid());
	record = own_record();
	if (!state || !record || state->cookie != bpf_get_socket_cookie(sk))
		return 0;
	now = bpf_ktime_get_ns();
	enter(state, RUNS, now);
	begin_update(record);
	add(&record->answered, 1);
	add(&record->lasted, elapsed(state->begun, now));
#pragma unroll
	for (int phase = 0; phase < PHASES; phase++)
		add(&record->times[phase], state->times[phase]);
	add(&record->cpu, state->cpu);
	add(&record->switches, state->switches);
	state->cpu = 0;
	state->switches = 0;
	end(state, record, now);
	end_update(record);
	return 0;
}

/*
 * inet_sock_set_state(socket, from, to): the thread closes the connection instead of an
 * answer, as after a client's request to disconnect.
 */
SEC("tp_btf/inet_sock_set_state")
int BPF_PROG(lull_phase_closed, struct sock *sk, int from, int to)
{
	struct core_record *record;
	struct thread_state *state;

	if (to != TCP_FIN_WAIT1 && to != TCP_LAST_ACK && to != TCP_CLOSE)
		return 0;
	state = state_of((__u32)bpf_get_current_pid_tgid());
	record = own_record();
	if (state && record && state->cookie && state->cookie == bpf_get_socket_cookie(sk))
		end_alone(state, record);
	return 0;
}

/* sched_switch(is preempted, from, to, state of from) */
SEC("tp_btf/sched_switch")
int BPF_PROG(lull_phase_switch, bool is_preempted, struct task_struct *from,
	     struct task_struct *to, unsigned int from_state)
{
	struct thread_state *state = state_of(from->pid);
	__u64 now = bpf_ktime_get_ns();

	if (state) {
		state->switches += 1;
		if (is_preempted || !from_state)
			enter(state, QUEUED, now);
		else
			enter(state, from_state & TASK_UNINTERRUPTIBLE ? DISK : BLOCKED, now);
	}
	state = state_of(to->pid);
	if (state)
		enter(state, RUNS, now);
	return 0;
}

/* sched_wakeup(thread) */
SEC("tp_btf/sched_wakeup")
int BPF_PROG(lull_phase_wake, struct task_struct *task)
{
	struct thread_state *state = state_of(task->pid);

	/* A thread may be woken before it has left its core. */
	if (state && (state->phase == BLOCKED || state->phase == DISK))
		enter(state, QUEUED, bpf_ktime_get_ns());
	return 0;
}

/* sched_process_exit(thread) */
SEC("tp_btf/sched_process_exit")
int BPF_PROG(lull_phase_exit, struct task_struct *task)
{
	__u32 thread = task->pid;
	struct thread_state *state = state_of(thread);
	struct core_record *record = own_record();

	if (state && record && state->cookie)
		end_alone(state, record);
	bpf_map_delete_elem(&threads, &thread);
	return 0;
}

char LICENSE[] SEC("license") = "Dual MIT/GPL";
