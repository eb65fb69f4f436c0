// SPDX-License-Identifier: MIT OR GPL-2.0-only
/*
 * A record of every interrupt, network poll and sleep, in a ring buffer that
 * crates/host/src/bpf/interrupts.rs reads from time to time without being woken for it. If
 * the buffer is full the event is lost, and counted.
 */
#include "histogram.h"

enum kind {
	KIND_IRQ_BEGIN,
	KIND_IRQ_END,
	KIND_POLL,
	KIND_IDLE,
};

/* One event; interrupts.rs reads the same layout. */
struct event {
	__u64 time_ns;
	__u32 core;
	__u32 kind;
	/* Arguments of the tracepoint, by kind. */
	__u32 first;
	__u32 second;
};

_Static_assert(sizeof(struct event) == 24, "interrupts.rs reads 24 bytes");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 4 << 20);
} events SEC(".maps");

/* Events that found the buffer full. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} lost SEC(".maps");

/* The only core to record, or -1 for all; the loader sets it. */
const volatile __s32 only_core = -1;

static __always_inline int record(enum kind kind, __u32 first, __u32 second)
{
	__u32 core = bpf_get_smp_processor_id();
	__u32 zero = 0;
	struct event *event;
	__u64 *dropped, now;

	if (only_core >= 0 && core != (__u32)only_core)
		return 0;
	now = bpf_ktime_get_ns();
	event = bpf_ringbuf_reserve(&events, sizeof(*event), 0);
	if (!event) {
		dropped = bpf_map_lookup_elem(&lost, &zero);
		if (dropped)
			__sync_fetch_and_add(dropped, 1);
		return 0;
	}
	event->time_ns = now;
	event->core = core;
	event->kind = kind;
	event->first = first;
	event->second = second;
	bpf_ringbuf_submit(event, BPF_RB_NO_WAKEUP);
	return 0;
}

/* irq_handler_entry(interrupt, action) */
SEC("raw_tp/irq_handler_entry")
int BPF_PROG(lull_irq_begin, __u32 interrupt)
{
	return record(KIND_IRQ_BEGIN, interrupt, 0);
}

/* irq_handler_exit(interrupt, action, whether its device requested it) */
SEC("raw_tp/irq_handler_exit")
int BPF_PROG(lull_irq_end, __u32 interrupt, __u64 action, __u32 handled)
{
	return record(KIND_IRQ_END, interrupt, handled);
}

/* napi_poll(napi, frames taken in, budget) */
SEC("raw_tp/napi_poll")
int BPF_PROG(lull_poll, __u64 napi, __u32 work, __u32 budget)
{
	return record(KIND_POLL, work, budget);
}

/* cpu_idle(state, core): -1 is the end of a sleep */
SEC("raw_tp/cpu_idle")
int BPF_PROG(lull_idle, __u32 state)
{
	return record(KIND_IDLE, state, 0);
}

char LICENSE[] SEC("license") = "Dual MIT/GPL";
