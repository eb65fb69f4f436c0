/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * Which sockets belong to the watched server.
 *
 * They are stream sockets in its network namespace whose local port is one that the server
 * listens at; the server's own requests to others use other local ports.
 *
 * The kernel lets only programs with a GPL-compatible licence follow its pointers
 * (docs/decisions.md).
 */
#ifndef LULL_WATCHED_SOCKETS_H
#define LULL_WATCHED_SOCKETS_H

#include <stdbool.h>

#include <linux/bpf.h>
#include <linux/types.h>
#include <bpf/bpf_helpers.h>

/* Transports that are streams (include/uapi/linux/in.h). */
#define IPPROTO_TCP 6
#define IPPROTO_MPTCP 262

/*
 * The fields that are read of the kernel's structs, and nothing else of them: the loader
 * replaces their offsets by those of the running kernel (CO-RE).
 */
#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct ns_common {
	unsigned int inum;
};

struct net {
	struct ns_common ns;
};

typedef struct {
	struct net *net;
} possible_net_t;

struct sock_common {
	__u16 skc_num;
	possible_net_t skc_net;
};

struct sock {
	struct sock_common __sk_common;
	__u16 sk_protocol;
};

#pragma clang attribute pop

/* What is watched; crates/host/src/bpf/filter.rs writes the same layout as 64-bit words. */
struct {
	/* Inode number of the server's network namespace. */
	__u64 namespace;
	/* A bit for each local port. */
	__u64 ports[1024];
} filter;

_Static_assert(sizeof(filter) == 8 * 1025, "filter.rs writes 1025 words");

static __always_inline bool is_watched(struct sock *sk)
{
	__u16 port = sk->__sk_common.skc_num;
	__u16 protocol;

	if (!(filter.ports[port / 64] >> (port % 64) & 1))
		return false;
	protocol = sk->sk_protocol;
	if (protocol != IPPROTO_TCP && protocol != IPPROTO_MPTCP)
		return false;
	return sk->__sk_common.skc_net.net->ns.inum == filter.namespace;
}

#endif
