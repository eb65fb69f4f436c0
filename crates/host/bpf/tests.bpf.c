// SPDX-License-Identifier: MIT OR GPL-2.0-only
/* Programs for the tests in crates/host/src/bpf/tests.rs. */
#include "histogram.h"

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} values SEC(".maps");

/* Returns the bucket of its first argument. */
SEC("raw_tp")
int BPF_PROG(lull_bucket, __u64 ns)
{
	return bucket_of(ns);
}

/* Reads beyond the value of a map, which the verifier refuses. */
SEC("raw_tp")
int BPF_PROG(lull_refused)
{
	__u32 zero = 0;
	__u64 *value = bpf_map_lookup_elem(&values, &zero);

	return value ? value[1] : 0;
}

char LICENSE[] SEC("license") = "Dual MIT/GPL";
