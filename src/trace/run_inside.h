/* run_inside.h: what the files of a run share among themselves. Inside of the trace room. */
#ifndef WEIR_TRACE_RUN_INSIDE_H
#define WEIR_TRACE_RUN_INSIDE_H

#include "trace/run.h"

/* Fills valid and invalid; everything else of *s is there already. */
void run_judge(const struct run *r, struct run_summary *s);

/* Numbers are rounded when they are written, never before. Seconds to 9 decimals and milliseconds
 * to 6 (both: whole ns), everything else to 5. Not finite: JSON null. */
enum { DECIMALS_S = 9, DECIMALS_MS = 6, DECIMALS = 5 };
json_t *json_rounded(double x, int decimals);
json_t *json_text_or_null(const char *text); /* NULL: null; bytes that are no UTF-8: '?' */
json_t *json_count_or_null(uint64_t n);      /* 0: null */
json_t *json_ns_or_null(int64_t ns);         /* 0: null */
/* "2026-08-30T12:00:00.123456Z"; "" for 0. */
void utc_text(int64_t unix_ns, char out[32]);
/* Adds `value` (taken over) and keeps in *ok whether all went well so far; NULL is a failure. */
void json_put(json_t *object, const char *key, json_t *value, bool *ok);
/* *ok ? object : NULL, which is freed then. */
json_t *json_done(json_t *object, bool ok);

/* The statistics that summaries of InferenceX show, of values times 1. */
json_t *json_statistics(const struct distribution *d, int decimals);

/* What the server's own counters say about the profiling phase: differences between the first and
 * the last sample. A counter that fell has begun anew, so that its difference is unknown. */
struct server_totals {
    struct server_sample delta; /* counters; gauges are means over the samples */
    struct server_sample last;
    double local_hit, external_hit; /* tokens */
    double gpu_rate, cpu_rate, external_rate, overall_rate;
    uint32_t known; /* quantities that the server told */
};
void server_totals_of(const struct run *r, struct server_totals *out);
/* server_metrics of the InferenceX aggregate. */
json_t *run_server_json(const struct run *r);

/* The numbers of a sample by name, for files and sums. counter: it only grows. */
struct sample_field {
    const char *name;
    size_t offset;
    bool counter;
};
const struct sample_field *sample_fields(size_t *n);
double *sample_number(struct server_sample *s, const struct sample_field *f);

/* One line of profile_export.jsonl, and back. */
json_t *record_json(const struct call_record *r);
/* `conversation` is the JSON's own string. f is the line's object; WEIR_BAD_FILE in f->status. */
struct json_fields;
weir_status record_of_json(const json_t *object, const char *place, struct call_record *out,
                           weir_error *err);

/* run.json, and back. */
json_t *run_config_json(const struct run *r, const struct run_summary *s);
weir_status run_of_json(const json_t *object, const char *place, struct run *out, weir_error *err);

/* profile_export_aiperf.csv in a new string; NULL without memory. */
char *run_summary_csv(const struct run *r, const struct run_summary *s);

#endif
