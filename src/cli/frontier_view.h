/* frontier_view.h: what `weir frontier` shows, as text and as JSON. */
#ifndef WEIR_CLI_FRONTIER_VIEW_H
#define WEIR_CLI_FRONTIER_VIEW_H

#include "trace/series.h"

#include <jansson.h>

/* The series at x = value, or at y = value. */
struct frontier_question {
    const char *key; /* of the JSON */
    bool along_x;
    double value;
};

struct frontier_view {
    struct series_options o;
    struct series_set set;
    size_t baseline; /* index of the series that ratios are taken to */
    enum interpolation how;
    bool extrapolate, priced;
    bool all;              /* print dominated points too */
    bool same_concurrency; /* compare points of equal concurrency */
    const struct frontier_question *question;
    size_t n_questions;
};

const char *frontier_x_name(enum series_x x);
void frontier_print(const struct frontier_view *v);
/* NULL without memory. */
json_t *frontier_json(const struct frontier_view *v);

#endif
