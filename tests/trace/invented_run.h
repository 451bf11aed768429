/* invented_run.h: runs with random records, for tests of summaries and files. */
#ifndef WEIR_TESTS_TRACE_INVENTED_RUN_H
#define WEIR_TESTS_TRACE_INVENTED_RUN_H

#include "trace/run.h"

/* A run of `n` calls: primers, warm-up, failures, skips, cancelled ones, one-chunk answers, counts
 * that nobody knows; with the samples of a server or without. Freed with run_free. */
void invent_run(struct run *out, uint64_t seed, uint32_t n);
/* A call that ends well: ttft and itl in ns. */
struct call_record *invent_call(struct run *r, int64_t start, int64_t ttft, int64_t itl,
                                uint64_t in, uint64_t out);

#endif
