/* record.c: the metrics of one call. Called by the replay, the summary of a run and its files.
 * Invariant that bites: latency ends with the last chunk that holds text, not with the stream; a
 * server that keeps the stream open for its usage would look slow otherwise. */
#include "trace/record.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

void call_record_free(struct call_record *r) {
    free(r->chunk);
    r->chunk = NULL;
    r->n_chunks = r->chunk_room = 0;
}

bool call_record_chunk(struct call_record *r, int64_t at) {
    if (r->n_chunks == r->chunk_room) {
        uint32_t room = r->chunk_room ? 2 * r->chunk_room : 16;
        int64_t *more = realloc(r->chunk, room * sizeof *more);
        if (!more)
            return false;
        r->chunk = more;
        r->chunk_room = room;
    }
    r->chunk[r->n_chunks++] = at;
    return true;
}

static double seconds(int64_t from, int64_t to) {
    return (double)(to - from) / 1e9;
}

void call_metrics_of(const struct call_record *r, struct call_metrics *out) {
    *out = (struct call_metrics){NAN, NAN, NAN, NAN, NAN, NAN, NAN, NAN, NAN, NAN};
    if (!r->n_chunks || !r->start)
        return;
    int64_t first = r->chunk[0], last = r->chunk[r->n_chunks - 1];
    out->ttft = seconds(r->start, first);
    out->latency = seconds(r->start, last);
    if (r->n_chunks >= 2 && !r->ends_only)
        out->ttst = seconds(first, r->chunk[1]);
    if (r->end)
        out->full_latency = seconds(r->start, r->end);
    if (r->out_source != COUNT_UNKNOWN && r->out >= 2) {
        /* The difference of the two in ns, divided once: rounding twice would show in long runs. */
        out->itl = seconds(first, last) / (double)(r->out - 1);
        if (r->end)
            out->full_itl = seconds(first, r->end) / (double)(r->out - 1);
    }
    if (out->itl > 0)
        out->interactivity = 1 / out->itl;
    if (r->out_source != COUNT_UNKNOWN && r->out >= 1) {
        out->normalised_latency = out->latency / (double)r->out;
        if (out->latency > 0)
            out->e2e_rate = (double)r->out / out->latency;
    }
    if (r->in_source != COUNT_UNKNOWN && out->ttft > 0)
        out->prefill_rate = (double)r->in / out->ttft;
}

bool call_record_counts(const struct call_record *r) {
    return (r->phase == PHASE_PROFILING || r->phase == PHASE_DRAINING) && !r->skipped &&
           !r->was_cancelled && !r->error_type[0] && r->start && r->end;
}

bool call_record_overflowed(const struct call_record *r) {
    if (r->skipped)
        return true;
    if (r->error_code != 400 && r->error_code != 413 && r->error_code != 422)
        return false;
    /* There is no code for it in the API: servers say it in a sentence. */
    static const char *const words[] = {"context length", "context_length", "maximum context",
                                        "context size",   "context window", "exceeds the context",
                                        "model length",   "max_model_len"};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (strcasestr(r->error_message, words[i]))
            return true;
    return false;
}
