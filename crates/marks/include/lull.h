/* Dispatches requests of a server to slow and fast cores.
 *
 * Mark where each request begins and ends, on the thread that serves it:
 *
 *     char why[256];
 *     if (lull_dispatch_open("dispatch.toml", why, sizeof why) != 0)
 *         fprintf(stderr, "%s\n", why);          requests then run undispatched
 *     ...
 *     uint64_t request = lull_request_begin(0);  waits until a core is free for it
 *     serve();
 *     lull_request_end(request);
 *
 * Link with liblull_marks.so or liblull_marks.a. All functions are thread-safe.
 * docs/dispatch.md describes the file.
 */
#ifndef LULL_H
#define LULL_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Reads the file and dispatches requests from now on. Returns 0, or -1 with the
 * reason in `why`: at most `why_size` bytes, ended by 0; `why` may be NULL. A
 * second call replaces the dispatcher; requests that run stay with the former
 * one until they end. */
int lull_dispatch_open(const char *file, char *why, size_t why_size);

/* Begins a request on this thread that arrived `age_ns` nanoseconds ago (its wait
 * in the server's own queue; 0 if it has just arrived). Returns its number for
 * lull_request_end, or 0 if it runs undispatched: no dispatcher is open, or this
 * is a child made by fork. */
uint64_t lull_request_begin(uint64_t age_ns);

/* Ends a request, on the thread that began it. 0 and numbers of other threads'
 * requests are ignored. When a thread ends, its requests end. */
void lull_request_end(uint64_t request);

/* Closes the dispatcher. Requests that run stay on their cores until they end. */
void lull_dispatch_close(void);

#ifdef __cplusplus
}
#endif

#endif
