/* metrics_inside.h: the counters behind metrics.h. Shared by metrics.c, which counts, and
 * metrics_text.c and metrics_cache.c, which write. */
#ifndef WEIR_SERVE_METRICS_INSIDE_H
#define WEIR_SERVE_METRICS_INSIDE_H

#include "serve/metrics.h"
#include "serve/metrics_histogram.h"

enum model_histogram {
    TIME_TO_FIRST_TOKEN,
    INTER_TOKEN_LATENCY,
    TIME_PER_OUTPUT_TOKEN, /* the old name of inter-token latency */
    REQUEST_TIME_PER_OUTPUT_TOKEN,
    E2E_REQUEST_LATENCY,
    REQUEST_QUEUE_TIME,
    REQUEST_INFERENCE_TIME,
    REQUEST_PREFILL_TIME,
    REQUEST_DECODE_TIME,
    REQUEST_PROMPT_TOKENS,
    REQUEST_GENERATION_TOKENS,
    REQUEST_MAX_NUM_GENERATION_TOKENS,
    REQUEST_PARAMS_N,
    REQUEST_PARAMS_MAX_TOKENS,
    ITERATION_TOKENS,
    N_MODEL_HISTOGRAMS,
};

/* Answers of one route to one method. */
struct http_series {
    const char *method, *handler;
    struct histogram seconds;
    struct http_status {
        int status;
        uint64_t count;
    } * statuses;
    size_t n_statuses;
};

struct metrics {
    int64_t started_unix;
    bool has_model;
    char *labels;   /* model_name="...",engine="0" */
    char *settings; /* further labels of vllm:cache_config_info */
    struct histogram model[N_MODEL_HISTOGRAMS];
    double token_edges[HISTOGRAM_MAX_EDGES]; /* 1 2 5 10 ... up to the context */
    uint64_t success[5];                     /* by weir_finish */
    uint64_t tool_parse_failures;
    uint64_t seen_steps, seen_rows;
    struct http_series *http;
    size_t n_http;
};

/* The HELP and TYPE lines before the samples of a name. */
void metrics_family(FILE *out, const char *name, const char *type, const char *help);
/* What the prefix cache, its pools and its open tiers count. */
void metrics_cache_write(FILE *out, const struct metrics *m, const weir_stats *s);

#endif
