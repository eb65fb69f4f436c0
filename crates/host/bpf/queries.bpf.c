// SPDX-License-Identifier: MIT OR GPL-2.0-only
/*
 * Latencies of queries at a server's sockets.
 *
 * A query begins when the server reads from a socket and ends when it next writes to it:
 * from the last piece read to the first piece written, as in the preloaded library where it
 * knows no protocol. Both tracepoints see every way to read and write a socket, io_uring and
 * system calls without a C library among them (Linux 6.3; net/socket.c).
 *
 * The server's sockets are those of watched_sockets.h. A socket is known by its cookie, which
 * the kernel never reuses. The table of sockets is direct-mapped: if two sockets with an
 * outstanding query share a slot, the earlier query is dropped and counted as lost.
 *
 * The kernel lets only programs with a GPL-compatible licence follow its pointers. This
 * file may therefore be used under MIT or GPL-2.0, too (docs/decisions.md).
 *
 * These programs can be preempted by one another on the same core, so counters are
 * incremented atomically.
 */
#include "watched_sockets.h"
#include "histogram.h"

#define SLOT_BITS 16

/* The layouts of the maps are those of `Slot` and `Record` in queries.rs. */
struct socket_slot {
	__u64 cookie;
	/* When its query was read, or 0 if none is outstanding. */
	__u64 since;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1 << SLOT_BITS);
	__type(key, __u32);
	__type(value, struct socket_slot);
} sockets SEC(".maps");

struct core_record {
	struct histogram latencies;
	/* Queries that a query read on this core has displaced. */
	__u64 lost;
	/* A whole number of cache lines: cores do not write to each other's. */
	__u64 padding[7];
};

_Static_assert(sizeof(struct core_record) == 8 * (512 + 8), "queries.rs reads 520 words");

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

/* Sockets that were opened one after the other have neighbouring slots. */
static __always_inline struct socket_slot *slot_of(__u64 cookie)
{
	__u32 slot = cookie & ((1 << SLOT_BITS) - 1);

	return bpf_map_lookup_elem(&sockets, &slot);
}

/* sock_recv_length(socket, bytes or error, flags): the server has read a query. */
SEC("tp_btf/sock_recv_length")
int BPF_PROG(lull_received, struct sock *sk, int length)
{
	struct core_record *record;
	struct socket_slot *slot;
	__u64 cookie;

	if (length <= 0 || !is_watched(sk))
		return 0;
	cookie = bpf_get_socket_cookie(sk);
	slot = slot_of(cookie);
	if (!slot)
		return 0;
	if (READ_ONCE(slot->cookie) != cookie) {
		if (READ_ONCE(slot->since)) {
			record = own_record();
			if (record)
				__sync_fetch_and_add(&record->lost, 1);
			WRITE_ONCE(slot->since, 0);
		}
		WRITE_ONCE(slot->cookie, cookie);
	}
	WRITE_ONCE(slot->since, bpf_ktime_get_ns());
	return 0;
}

/* sock_send_length(socket, bytes or error, flags): the server answers. */
SEC("tp_btf/sock_send_length")
int BPF_PROG(lull_sent, struct sock *sk, int length)
{
	struct core_record *record;
	struct socket_slot *slot;
	struct bucket *bucket;
	__u64 cookie, since, ns;

	if (length <= 0 || !is_watched(sk))
		return 0;
	cookie = bpf_get_socket_cookie(sk);
	slot = slot_of(cookie);
	if (!slot || READ_ONCE(slot->cookie) != cookie)
		return 0;
	since = READ_ONCE(slot->since);
	if (!since)
		return 0;
	WRITE_ONCE(slot->since, 0);
	ns = elapsed(since, bpf_ktime_get_ns());
	record = own_record();
	if (!record)
		return 0;
	bucket = &record->latencies.buckets[bucket_of(ns)];
	__sync_fetch_and_add(&bucket->count, 1);
	__sync_fetch_and_add(&bucket->sum_ns, ns);
	return 0;
}

/* tcp_destroy_sock(socket): whose port is no longer set, so every socket is looked up. */
SEC("tp_btf/tcp_destroy_sock")
int BPF_PROG(lull_destroyed, struct sock *sk)
{
	__u64 cookie = bpf_get_socket_cookie(sk);
	struct socket_slot *slot = slot_of(cookie);

	if (slot && READ_ONCE(slot->cookie) == cookie) {
		WRITE_ONCE(slot->since, 0);
		WRITE_ONCE(slot->cookie, 0);
	}
	return 0;
}

char LICENSE[] SEC("license") = "Dual MIT/GPL";
