/* metrics_histogram.c: counts values into buckets and writes them. Called by metrics.c. A value on
 * an edge belongs below it: the label `le` means less or equal. */
#include "serve/metrics_histogram.h"

#include <inttypes.h>

void histogram_observe(struct histogram *h, double value, uint64_t times) {
    uint32_t i = 0;
    while (i < h->n && !(value <= h->edges[i]))
        i++;
    h->counts[i] += times;
    h->total += times;
    h->sum += value * (double)times;
}

void histogram_write(const struct histogram *h, FILE *out, const char *name, const char *labels) {
    const char *comma = labels[0] ? "," : "";
    uint64_t below = 0;
    for (uint32_t i = 0; i < h->n; i++) {
        below += h->counts[i];
        fprintf(out, "%s_bucket{%s%sle=\"%.10g\"} %" PRIu64 "\n", name, labels, comma, h->edges[i],
                below);
    }
    fprintf(out, "%s_bucket{%s%sle=\"+Inf\"} %" PRIu64 "\n", name, labels, comma, h->total);
    fprintf(out, "%s_sum{%s} %.17g\n%s_count{%s} %" PRIu64 "\n", name, labels, h->sum, name, labels,
            h->total);
}
