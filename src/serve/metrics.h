/* metrics.h: what the server counts, and its Prometheus text (format 0.0.4).
 * Observed by the API for each request that ended and for each batch of tokens; written out by
 * /metrics. Loop thread only. Every series exists with 0 from the start. */
#ifndef WEIR_SERVE_METRICS_H
#define WEIR_SERVE_METRICS_H

#include "weir.h"

struct metrics;

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
    uint32_t max_tokens;       /* what the request may have generated, resolved */
    bool max_tokens_given;
    uint32_t n;
};

void metrics_request_done(struct metrics *m, const struct metrics_request *r);
/* `tokens` tokens of one choice came together, `seconds` after its previous ones. Not called for
 * the first token of a choice. */
void metrics_tokens(struct metrics *m, double seconds, uint32_t tokens);
/* A model's tool call text did not parse. */
void metrics_tool_parse_failed(struct metrics *m);

#endif
