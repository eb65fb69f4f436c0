/* Requests of a server, placed by Lull on slow and fast cores.
 *
 * Say where each request begins and ends, on the thread that serves it:
 *
 *     char why[256];
 *     if (lull_placing_open("dispatch.toml", why, sizeof why) != 0)
 *         fprintf(stderr, "%s\n", why);          and go on: requests run unplaced
 *     ...
 *     uint64_t request = lull_request_begin(0);  waits until there is a core for it
 *     serve();
 *     lull_request_end(request);
 *
 * Link with liblull_marks.so or liblull_marks.a. Threads may call at once.
 * docs/dispatch.md says what a file like dispatch.toml holds.
 */
#ifndef LULL_H
#define LULL_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Reads the file and places requests from here on. 0, or -1 with the reason in
 * `why`: at most `why_size` bytes, ended by 0; `why` may be NULL. If it is open
 * already it is opened anew; requests under way end where they began. */
int lull_dispatch_open(const char *file, char *why, size_t why_size);

/* A request begins on this thread that came `age_ns` nanoseconds ago: what it
 * waited in the server's own queue; 0 if it came just now. Its number for
 * lull_request_end, or 0: it runs unplaced, because nothing is open, or in a
 * child made by fork. */
uint64_t lull_request_begin(uint64_t age_ns);

/* The request has ended; on the thread that began it. 0 and numbers that are
 * not this thread's are no matter. A thread that ends ends its requests. */
void lull_request_end(uint64_t request);

/* Places no more. Requests under way run on where they are. */
void lull_dispatch_close(void);

#ifdef __cplusplus
}
#endif

#endif
