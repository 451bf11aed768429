/* record.h: what was seen of one call, and the metrics that follow from it. Units: ns here,
 * seconds or milliseconds where a name says so. Definitions: docs/bench.md. */
#ifndef WEIR_TRACE_RECORD_H
#define WEIR_TRACE_RECORD_H

#include "trace/schedule.h"

enum count_source {
    COUNT_UNKNOWN,
    COUNT_USAGE,    /* the server's usage */
    COUNT_TOKENS,   /* token ids, or text encoded with the model's tokenizer */
    COUNT_CHUNKS,   /* one token a chunk was assumed */
    COUNT_EXPECTED, /* what was sent or asked for */
};

struct call_record {
    enum phase phase; /* PHASE_PRIMER and PHASE_WARMUP do not enter metrics */
    uint32_t lane, turn, request;
    uint64_t play, number;    /* number: in order of sending, from 0 */
    bool root, skipped;       /* skipped: never sent, the prompt exceeds the server's context */
    bool was_cancelled;       /* by the run's end or by the user */
    const char *conversation; /* the session's id; not owned */
    char server_id[64];       /* the answer's "id" */

    /* Unix time in ns; 0: did not happen. */
    int64_t due, start, ack, end, cancelled; /* start: first byte sent; ack: answer's head */
    int64_t *chunk;                          /* arrivals of chunks with text; owned */
    uint32_t n_chunks, chunk_room;
    /* Read from a file without gaps: chunk holds the first and the last arrival alone, so that the
     * gaps between them are unknown. */
    bool ends_only;

    uint64_t in_expected, out_expected;
    uint64_t in, out, cached; /* cached: with has_cached */
    uint64_t reasoning;       /* of out */
    enum count_source in_source, out_source;
    bool has_cached;
    uint32_t blocks, hit_blocks; /* what a cache that never forgets would have had */
    uint64_t hit_tokens;         /* the same in tokens, at most in_expected; see run_count_hits */
    /* Text differs from what was asked for: fewer or more tokens. */
    bool length_missed;

    int error_code;      /* HTTP status, 0 for trouble below HTTP */
    char error_type[32]; /* "" without error: "http", "connect", "closed", "timeout",
                            "protocol", "server", "cancelled" */
    char error_message[160];
};
void call_record_free(struct call_record *r);
/* Adds the arrival of a chunk. False without memory. */
bool call_record_chunk(struct call_record *r, int64_t at);

/* NAN where not defined. */
struct call_metrics {
    double ttft, latency, ttst, itl, full_itl, full_latency; /* seconds */
    double interactivity, e2e_rate, prefill_rate;            /* tokens/s for one user */
    double normalised_latency;                               /* seconds a token */
};
void call_metrics_of(const struct call_record *r, struct call_metrics *out);
/* May it enter the metrics: sent while profiling, answered to its end, no error, not cancelled. */
bool call_record_counts(const struct call_record *r);
/* Did the prompt exceed the server's context: skipped for that, or refused with words that say so.
 */
bool call_record_overflowed(const struct call_record *r);

#endif
