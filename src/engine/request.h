/* request.h: one generation in progress: what was asked, what it holds, and what is ready for the
 * caller. The three parts belong to different threads; each field says whose it is. */
#ifndef WEIR_ENGINE_REQUEST_H
#define WEIR_ENGINE_REQUEST_H

#include "cache/tiers.h"
#include "ops/sample.h"

struct weir_engine;

/* What a request is checked against and sized by. */
struct request_limits {
    uint32_t vocab, max_model_len;
    const int32_t *eos;
    uint32_t n_eos;
    bool scripts; /* the null column: scripted ids are allowed */
    struct cache_space space;
};

enum request_stage {
    STAGE_INBOX,   /* handed over, not yet seen by the engine thread */
    STAGE_WAITING, /* in the waiting heap, holds nothing */
    STAGE_PARKED,  /* waiting for what a running request or a lower tier is about to bring */
    STAGE_RUNNING, /* holds a lease */
    STAGE_ENDED,   /* finished; may still be named by a step in flight */
};

/* Fixed from weir_submit on, readable by all. */
struct request_ask {
    uint32_t n_prompt, max_new;
    uint32_t max_step;      /* most tokens one step may yield: 1 but for scripts */
    uint64_t arrival;       /* order of weir_submit */
    int64_t priority;       /* 0 under FCFS */
    bool repeats;           /* another choice brings the same prompt, and is the one counted */
    int32_t n_top;          /* logprobs, -1: none */
    int32_t prompt_top;     /* prompt_logprobs, -1: none */
    const int32_t *end_ids; /* eos (unless ignored) and stop ids, sorted */
    uint32_t n_end_ids, min_tokens;
};

/* The engine thread's alone. `computed` counts tokens given to a step, collected or not. */
struct request_run {
    enum request_stage stage;
    struct cache_lease lease;
    uint32_t computed;
    uint32_t n_output;  /* drawn and collected */
    uint32_t drawing;   /* draws in flight: 0 or 1 more than n_output knows of */
    uint32_t in_flight; /* uncollected steps that name it */
    uint64_t draw_step; /* the step of the last draw, and its logits row there */
    uint32_t draw_row;
    uint32_t scored_to; /* prompt positions below are scored or in flight; starts at 1 */
    uint32_t list_at;   /* its place in the waiting heap or among the parked */
    bool admitted;      /* was running at least once */
    bool touched;       /* has news for the caller since the last publication */
    uint32_t preemptions, cached;
    struct cache_load *load;      /* what it waits for while parked, NULL: a running request */
    uint32_t fetches;             /* times the tiers were asked for it */
    struct cache_fetched fetched; /* what these have brought */
    double scheduled, first_token, last_token;
    weir_finish finish;
    weir_status error;
    int32_t stop_id;
    struct weir_request *touched_next;
};

/* Guarded by the engine's lock. */
struct request_public {
    weir_progress progress; /* as of the last publication; finish is set once */
    uint32_t n_taken;       /* tokens handed out by weir_poll */
    bool cancelled, released;
    bool gone;     /* the engine thread is done with it and will not look at it again */
    bool in_ready; /* linked in the ready list */
    bool shown;    /* taken from the ready list and not polled since */
    bool in_cancels;
    struct weir_request *ready_next, *ready_previous, *inbox_next, *cancel_next;
};

struct weir_request {
    struct weir_engine *engine;
    void *user;
    const char *name; /* for logs, NULL: it goes by its number */
    struct request_ask ask;
    struct request_run run;
    struct request_public pub;
    /* Written by whoever draws (sample_advance), one token further than anybody reads. */
    struct sample_state sample;
    int32_t *tokens;           /* prompt, then output */
    unsigned char *logprobs;   /* one record a token where asked for; request_record_bytes each */
    weir_token *prompt_scores; /* [n_prompt - 1] where asked for */
    void *memory;              /* all of the above */
};

/* Checks everything against the limits and copies it: one allocation for the request's life, beside
 * the page table. Statuses as weir_submit. */
weir_status request_create(const struct request_limits *limits, const int32_t *ids, size_t n,
                           const weir_params *p, struct weir_request **out, weir_error *err);
void request_free(struct weir_request *r);

/* Tokens known, draws in flight included: the next step of a decoding request computes the last of
 * them. */
static inline uint32_t request_known(const struct weir_request *r) {
    return r->ask.n_prompt + r->run.n_output + r->run.drawing;
}
/* Does this request run before the other? */
bool request_before(const struct weir_request *a, const struct weir_request *b);
/* Is `id` one that ends the request? */
bool request_ends_at(const struct weir_request *r, int32_t id);

/* Keeps a drawn token where its logprobs were asked for; `at` counts output tokens. */
void request_keep(struct weir_request *r, uint32_t at, const weir_token *token);
void request_read(const struct weir_request *r, uint32_t at, weir_token *out);

#endif
