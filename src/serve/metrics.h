/* metrics.h: what the server counts, and its Prometheus text (format 0.0.4).
 * Observed by the API for each request that ended and for each batch of tokens, by the transport
 * for each answer; written out by /metrics. Loop thread only. Every series of a model exists with 0
 * from the moment it is loaded. */
#ifndef WEIR_SERVE_METRICS_H
#define WEIR_SERVE_METRICS_H

#include "weir.h"

struct metrics;
struct turns_stats;

/* One request of the API, all its choices together, when the last choice has ended. Times are
 * weir_now() seconds, 0 = never reached. */
struct metrics_request {
    weir_finish finish; /* of the worst choice: error, abort, length, stop in this order */
    double arrived;     /* http_request.arrived */
    double scheduled;   /* first choice scheduled */
    double first_token; /* first token of any choice */
    double last_token;
    uint32_t prompt_tokens;
    uint32_t generated_tokens; /* of all choices */
    uint32_t longest_choice;   /* tokens of the longest one */
    uint32_t max_tokens;       /* what each choice might have generated */
    bool max_tokens_given;
    uint32_t n;
};

void metrics_request_done(struct metrics *m, const struct metrics_request *r);
/* `tokens` tokens of one choice came together, `seconds` after its previous ones. Not called for
 * the first token of a choice. */
void metrics_tokens(struct metrics *m, double seconds, uint32_t tokens);
/* A model's tool call text did not parse. */
void metrics_tool_parse_failed(struct metrics *m);

/* ---- for the server ---- */

/* NULL without memory. Without a model the text holds the series of HTTP and of the process. */
struct metrics *metrics_open(int64_t started_unix);
void metrics_close(struct metrics *m);
/* The model is loaded: its series come into being. `name` and `settings` are copied; `settings` are
 * labels of vllm:cache_config_info as `name="value",...`. False: no memory. */
bool metrics_model(struct metrics *m, const char *name, const weir_info *info,
                   const char *settings);
/* Prepares the series of a route, so that it exists before its first request. */
void metrics_http_route(struct metrics *m, const char *method, const char *handler);
/* One answer. `handler` lives as long as m. */
void metrics_http(struct metrics *m, const char *method, const char *handler, int status,
                  double seconds);
/* Called after steps: their sizes are seen as the difference to the last call. */
void metrics_steps(struct metrics *m, const weir_stats *stats);

/* Gauges of the moment, which live elsewhere. */
struct metrics_now {
    const weir_stats *stats;         /* NULL while loading */
    const struct turns_stats *turns; /* NULL: none are kept */
    size_t connections, in_flight;
    bool ready;
};
/* The whole text; free() it. NULL without memory. */
char *metrics_text(struct metrics *m, const struct metrics_now *now, size_t *bytes);

/* `value` as the inside of a label, escaped by the format's rules; free() it. */
char *metrics_escape(const char *value);

#endif
