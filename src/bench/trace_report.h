/* trace_report.h: what `weir bench inspect` says of a trace: sums, reuse, and how lengths and waits
 * are spread. */
#ifndef WEIR_BENCH_TRACE_REPORT_H
#define WEIR_BENCH_TRACE_REPORT_H

#include "trace/distribution.h"
#include "trace/tree.h"

#include <jansson.h>

struct trace_report {
    const struct trace *trace;
    const struct tree *tree;
    struct trace_stats total, *session; /* session: one each */
    uint32_t texts;                     /* requests whose prompt is text, without a length */
    uint32_t without_out;               /* requests whose answer has no length */
    uint64_t text_bytes;
    uint32_t parallel_chains; /* chains of sub-agents beyond one each */
    uint32_t block_tokens;    /* 0: sessions differ */
    double span_seconds; /* from the first request to the last; NAN: times count from sessions */
    /* Tokens of requests that have a length; calls of a session; seconds. A wait lies between the
     * end of a call and the start of the one that follows in its chain, or of the one it spawns. */
    struct distribution input, output, calls, wait, session_seconds;
};

/* `tree` is that of `t`; both outlive the report. WEIR_NO_MEMORY. */
weir_status trace_report_make(const struct trace *t, const struct tree *tree,
                              struct trace_report *out, weir_error *err);
void trace_report_free(struct trace_report *r);

void trace_report_print(const struct trace_report *r, bool sessions, FILE *out);
/* NULL without memory. */
json_t *trace_report_json(const struct trace_report *r, bool sessions);

#endif
