/* prometheus.h: reads metrics in the Prometheus text format, tolerantly: what is no sample is
 * skipped. Nothing is copied or allocated. */
#ifndef WEIR_BENCH_PROMETHEUS_H
#define WEIR_BENCH_PROMETHEUS_H

#include <stdbool.h>
#include <stddef.h>

/* Strings without a NUL behind them. */
struct span_text {
    const char *at;
    size_t n;
};

struct prometheus_sample {
    struct span_text name, labels; /* labels: what stands between the braces */
    double value;
};

/* The next sample at or behind *at (which moves on); false: no more. Only names that begin with one
 * of the `prefixes` (NULL at their end) are looked at; NULL: all. */
bool prometheus_next(const char **at, const char *end, const char *const *prefixes,
                     struct prometheus_sample *out);
/* The raw value of a label, escapes not undone; false: it has none. */
bool prometheus_label(const struct prometheus_sample *s, const char *name, struct span_text *out);

static inline bool span_is(struct span_text s, const char *text) {
    size_t i = 0;
    while (i < s.n && text[i] && text[i] == s.at[i])
        i++;
    return i == s.n && !text[i];
}

#endif
