/* results_inside.h: what the readers of results share. Inside of the trace room. */
#ifndef WEIR_TRACE_RESULTS_INSIDE_H
#define WEIR_TRACE_RESULTS_INSIDE_H

#include "trace/read_results.h"

/* A new row at the end, everything unknown; NULL without memory. */
struct result_row *results_row(struct results *l, const char *source);
/* Fills tpot from intvty or the other way where one is missing. */
void result_complete(struct result_row *r);

/* One flat row; `place` is the file, or "FILE:LINE". */
weir_status results_flat(const json_t *object, const char *place, const char *source,
                         struct results *out, weir_error *err);
weir_status results_json(const json_t *value, const char *path, uint32_t gpus, struct results *out,
                         weir_error *err);
weir_status results_csv(const char *text, const char *path, struct results *out, weir_error *err);

#endif
