/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * Histograms of times, written by the programs and read by crates/host/src/bpf/buckets.rs.
 *
 * Layout and bucket numbers are shared with that file: change both together. Its tests
 * compare bucket_of() with the Rust function, and the sizes below with its constants.
 *
 * Eight buckets an octave: up to 1024 ns a bucket is 64 ns wide, beyond that at most an
 * eighth of its lower end. Each keeps the number of its times and their sum.
 */
#ifndef LULL_HISTOGRAM_H
#define LULL_HISTOGRAM_H

#include <stdbool.h>

#include <linux/bpf.h>
#include <linux/types.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>

#define BUCKETS 256
/* Times differ in units of 64 ns, and are alike from 2^34 units (18 minutes) on. */
#define UNIT_BITS 6
#define UNITS_MAX ((1ULL << 34) - 1)
#define BUCKETS_PER_OCTAVE 8

struct bucket {
	__u64 count;
	__u64 sum_ns;
};

struct histogram {
	struct bucket buckets[BUCKETS];
};

_Static_assert(sizeof(struct histogram) == 8 * 512, "buckets.rs reads 512 words");

/* As in the kernel: one access, which the compiler neither splits, repeats nor reorders
 * with another such access. User space reads what is written so while a program runs. */
#define READ_ONCE(x) (*(const volatile typeof(x) *)&(x))
#define WRITE_ONCE(x, value) (*(volatile typeof(x) *)&(x) = (value))

/*
 * The bucket of a time. The units are halved until they are below 16, which leaves their
 * first four binary digits; each halving moves on by one octave, eight buckets.
 */
static __always_inline __u64 bucket_of(__u64 ns)
{
	__u64 units = ns >> UNIT_BITS;
	__u64 halvings = 0;

	if (units > UNITS_MAX)
		units = UNITS_MAX;
#pragma unroll
	for (int by = 16; by > 0; by /= 2) {
		if (units >> by >= BUCKETS_PER_OCTAVE) {
			units >>= by;
			halvings += by;
			/* Keeps the branch, which the compiler would replace by more
			 * instructions without one. */
			barrier_var(halvings);
		}
	}
	/* The mask changes nothing; the verifier derives the bound from it. */
	return (BUCKETS_PER_OCTAVE * halvings + units) & (BUCKETS - 1);
}

/* From since to now, or 0: the clocks of two cores may differ by a little. */
static __always_inline __u64 elapsed(__u64 since, __u64 now)
{
	return now > since ? now - since : 0;
}

#endif
