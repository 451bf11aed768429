/* metrics.c: counts. Called by the API when requests end, by the transport for each answer and by
 * the server after steps. What the engine counts itself is not counted again here: metrics_text.c
 * takes it from one snapshot of weir_stats. */
#include "serve/metrics_inside.h"

#include <stdlib.h>
#include <string.h>

static const double first_token_edges[] = {0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1,
                                           0.25,  0.5,   0.75, 1,    2.5,  5,    7.5,  10,
                                           20,    40,    80,   160,  640,  2560};
/* The edges that dashboards know begin at 0.01; a small model answers faster, so finer ones go
 * before them. */
static const double token_time_edges[] = {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1,
                                          0.15,  0.2,    0.3,   0.4,  0.5,   0.75, 1,     2.5,
                                          5,     7.5,    10,    20,   40,    80};
static const double request_time_edges[] = {0.3, 0.5, 0.8, 1,  1.5, 2,   2.5, 5,   10,   15,  20,
                                            30,  40,  50,  60, 120, 240, 480, 960, 1920, 7680};
static const double choice_edges[] = {1, 2, 5, 10, 20};
static const double step_edges[] = {1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384};
static const double http_edges[] = {0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1,
                                    2.5,   5,    10,    30,   60,  120,  300, 600};

#define EDGES(array) array, sizeof array / sizeof array[0]

static void set_edges(struct histogram *h, const double *edges, size_t n) {
    h->edges = edges;
    h->n = (uint32_t)n;
}

struct metrics *metrics_open(int64_t started_unix) {
    struct metrics *m = calloc(1, sizeof *m);
    if (m)
        m->started_unix = started_unix;
    return m;
}

void metrics_close(struct metrics *m) {
    for (size_t i = 0; i < m->n_http; i++)
        free(m->http[i].statuses);
    free(m->http);
    free(m->labels);
    free(m->settings);
    free(m);
}

char *metrics_escape(const char *value) {
    char *out = malloc(2 * strlen(value) + 1), *s = out;
    if (!out)
        return NULL;
    for (; *value; value++) {
        if (*value == '\\' || *value == '"' || *value == '\n')
            *s++ = '\\';
        *s++ = *value == '\n' ? 'n' : *value;
    }
    *s = 0;
    return out;
}

/* 1 2 5 10 20 50 ... up to the longest request. */
static uint32_t fill_token_edges(double *edges, uint32_t most) {
    static const double mantissa[3] = {1, 2, 5};
    uint32_t n = 0;
    double power = 1;
    for (int i = 0; n < HISTOGRAM_MAX_EDGES; i++) {
        double edge = mantissa[i % 3] * power;
        if (edge > most)
            break;
        edges[n++] = edge;
        if (i % 3 == 2)
            power *= 10;
    }
    return n;
}

bool metrics_model(struct metrics *m, const char *name, const weir_info *info,
                   const char *settings) {
    char *escaped = metrics_escape(name);
    size_t space = escaped ? strlen(escaped) + 64 : 0;
    m->labels = escaped ? malloc(space) : NULL;
    m->settings = strdup(settings);
    if (!m->labels || !m->settings) {
        free(escaped);
        return false;
    }
    snprintf(m->labels, space, "model_name=\"%s\",engine=\"0\"", escaped);
    free(escaped);
    uint32_t n = fill_token_edges(m->token_edges, info->max_model_len);
    for (int i = 0; i < N_MODEL_HISTOGRAMS; i++) {
        struct histogram *h = &m->model[i];
        switch ((enum model_histogram)i) {
        case TIME_TO_FIRST_TOKEN: set_edges(h, EDGES(first_token_edges)); break;
        case INTER_TOKEN_LATENCY:
        case TIME_PER_OUTPUT_TOKEN:
        case REQUEST_TIME_PER_OUTPUT_TOKEN: set_edges(h, EDGES(token_time_edges)); break;
        case E2E_REQUEST_LATENCY:
        case REQUEST_QUEUE_TIME:
        case REQUEST_INFERENCE_TIME:
        case REQUEST_PREFILL_TIME:
        case REQUEST_DECODE_TIME: set_edges(h, EDGES(request_time_edges)); break;
        case REQUEST_PROMPT_TOKENS:
        case REQUEST_GENERATION_TOKENS:
        case REQUEST_MAX_NUM_GENERATION_TOKENS:
        case REQUEST_PARAMS_MAX_TOKENS: set_edges(h, m->token_edges, n); break;
        case REQUEST_PARAMS_N: set_edges(h, EDGES(choice_edges)); break;
        case ITERATION_TOKENS: set_edges(h, EDGES(step_edges)); break;
        case N_MODEL_HISTOGRAMS: break;
        }
    }
    m->has_model = true;
    return true;
}

/* ---- requests of the API ---- */

static void observe(struct metrics *m, enum model_histogram which, double value) {
    histogram_observe(&m->model[which], value, 1);
}

/* From one moment to a later one, when both were reached. */
static void observe_span(struct metrics *m, enum model_histogram which, double from, double to) {
    if (from > 0 && to > 0)
        observe(m, which, to > from ? to - from : 0);
}

void metrics_request_done(struct metrics *m, const struct metrics_request *r) {
    m->success[r->finish]++;
    observe_span(m, REQUEST_QUEUE_TIME, r->arrived, r->scheduled);
    if (r->finish != WEIR_FINISH_STOP && r->finish != WEIR_FINISH_LENGTH)
        return; /* a time that was cut short says nothing about the others */
    observe_span(m, TIME_TO_FIRST_TOKEN, r->arrived, r->first_token);
    observe_span(m, E2E_REQUEST_LATENCY, r->arrived, r->last_token);
    observe_span(m, REQUEST_INFERENCE_TIME, r->scheduled, r->last_token);
    observe_span(m, REQUEST_PREFILL_TIME, r->scheduled, r->first_token);
    observe_span(m, REQUEST_DECODE_TIME, r->first_token, r->last_token);
    if (r->longest_choice > 1 && r->last_token >= r->first_token)
        observe(m, REQUEST_TIME_PER_OUTPUT_TOKEN,
                (r->last_token - r->first_token) / (r->longest_choice - 1));
    observe(m, REQUEST_PROMPT_TOKENS, r->prompt_tokens);
    observe(m, REQUEST_GENERATION_TOKENS, r->generated_tokens);
    observe(m, REQUEST_MAX_NUM_GENERATION_TOKENS, r->longest_choice);
    observe(m, REQUEST_PARAMS_N, r->n);
    if (r->max_tokens_given)
        observe(m, REQUEST_PARAMS_MAX_TOKENS, r->max_tokens);
}

void metrics_tokens(struct metrics *m, double seconds, uint32_t tokens) {
    if (tokens == 0)
        return;
    double each = seconds / tokens;
    histogram_observe(&m->model[INTER_TOKEN_LATENCY], each, tokens);
    histogram_observe(&m->model[TIME_PER_OUTPUT_TOKEN], each, tokens);
}

void metrics_tool_parse_failed(struct metrics *m) {
    m->tool_parse_failures++;
}

void metrics_steps(struct metrics *m, const weir_stats *stats) {
    uint64_t steps = stats->steps - m->seen_steps;
    uint64_t rows = stats->step_rows - m->seen_rows;
    m->seen_steps = stats->steps;
    m->seen_rows = stats->step_rows;
    if (steps > 0)
        histogram_observe(&m->model[ITERATION_TOKENS], (double)rows / (double)steps, steps);
}

/* ---- answers ---- */

static struct http_series *http_series(struct metrics *m, const char *method, const char *handler) {
    for (size_t i = 0; i < m->n_http; i++)
        if (strcmp(m->http[i].method, method) == 0 && strcmp(m->http[i].handler, handler) == 0)
            return &m->http[i];
    struct http_series *grown = realloc(m->http, (m->n_http + 1) * sizeof *grown);
    if (!grown)
        return NULL;
    m->http = grown;
    struct http_series *s = &m->http[m->n_http++];
    *s = (struct http_series){.method = method, .handler = handler};
    set_edges(&s->seconds, EDGES(http_edges));
    return s;
}

static void count_status(struct http_series *s, int status, uint64_t times) {
    for (size_t i = 0; i < s->n_statuses; i++)
        if (s->statuses[i].status == status) {
            s->statuses[i].count += times;
            return;
        }
    struct http_status *grown = realloc(s->statuses, (s->n_statuses + 1) * sizeof *grown);
    if (!grown)
        return;
    s->statuses = grown;
    s->statuses[s->n_statuses++] = (struct http_status){status, times};
}

void metrics_http_route(struct metrics *m, const char *method, const char *handler) {
    struct http_series *s = http_series(m, method, handler);
    if (s)
        count_status(s, 200, 0);
}

void metrics_http(struct metrics *m, const char *method, const char *handler, int status,
                  double seconds) {
    struct http_series *s = http_series(m, method, handler);
    if (!s)
        return;
    count_status(s, status, 1);
    histogram_observe(&s->seconds, seconds, 1);
}
