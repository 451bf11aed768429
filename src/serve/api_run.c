/* api_run.c: submits the choices of a request, moves their tokens into events or one reply, and
 * ends. Called by the chat and completion handlers and by the loop when the engine made progress.
 * Invariant that bites: whatever happens (client gone, stop string, time-out, engine failure), each
 * engine request is released once, the reply ends once and the request is counted once. */
#include "serve/api_run.h"

#include "base/clock.h"
#include "serve/metrics.h"

#include <string.h>
#include <sys/random.h>

struct api_run *api_run_new(bool (*work)(struct api_job *)) {
    struct api_run *run = calloc(1, sizeof *run);
    WEIR_ASSERT(run);
    run->job.work = work;
    run->job.free = api_run_free;
    return run;
}

void api_run_free(struct api_job *job) {
    struct api_run *run = (struct api_run *)job;
    for (size_t i = 0; i < run->n_choices; i++) {
        if (run->choices[i].request)
            weir_release(run->choices[i].request);
        api_choice_free(run->choices[i].choice);
        ids_free(&run->choices[i].generated);
    }
    for (size_t i = 0; i < run->n_prompts; i++) {
        text_free(&run->prompts[i].echo);
        free(run->prompts[i].scored);
    }
    free(run->choices);
    free(run->prompts);
    ids_free(&run->prompt_ids);
    api_envelope_free(&run->envelope);
    chat_request_free(&run->chat);
    completion_request_free(&run->completion);
    free(run->id);
    free(run->job.key_salt);
    free(run);
}

/* ---- the end ---- */

static void unlink_run(struct api_run *run) {
    struct api *api = run->job.api;
    if (run->previous)
        run->previous->next = run->next;
    else
        api->runs = run->next;
    if (run->next)
        run->next->previous = run->previous;
    if (run->timer)
        http_timer_cancel(run->timer);
}

/* Counts the run and frees it. Its reply has ended. */
static void end_run(struct api_run *run, weir_finish finish) {
    struct metrics_request m = {
        .finish = finish,
        .arrived = run->arrived,
        .scheduled = run->scheduled,
        .first_token = run->first_token,
        .last_token = run->last_token,
        .prompt_tokens = (uint32_t)run->usage.prompt_tokens,
        .max_tokens = run->sampling->params.max_tokens,
        .max_tokens_given = run->sampling->max_tokens_given,
        .n = run->sampling->n,
    };
    struct metrics *metrics = server_metrics(run->job.api->server);
    for (size_t i = 0; i < run->n_choices; i++) {
        const struct api_choice *choice = run->choices[i].choice;
        uint32_t tokens = (uint32_t)api_choice_tokens(choice);
        m.generated_tokens += tokens;
        if (tokens > m.longest_choice)
            m.longest_choice = tokens;
        for (uint32_t k = 0; k < api_choice_parse_failures(choice); k++)
            metrics_tool_parse_failed(metrics);
    }
    metrics_request_done(metrics, &m);
    unlink_run(run);
    /* While the runs are being advanced, the one at hand is freed by that loop. */
    run->job.reply = NULL;
    if (!run->dirty)
        api_run_free(&run->job);
}

static void fail_run(struct api_run *run, weir_finish finish, int status, const char *message) {
    http_stream_fail(run->job.reply, status, NULL, "%s", message);
    end_run(run, finish);
}

static void run_closed(void *arg) {
    struct api_run *run = arg;
    end_run(run, WEIR_FINISH_ABORT);
}

static void run_timed_out(void *arg) {
    struct api_run *run = arg;
    run->timer = NULL;
    fail_run(run, WEIR_FINISH_ERROR, 504, "the request took longer than its time limit");
}

static void run_aborted(void *arg) {
    struct api_run *run = arg;
    run->aborting = true;
    for (size_t i = 0; i < run->n_choices; i++)
        if (run->choices[i].request)
            weir_cancel(run->choices[i].request);
}

/* ---- events ---- */

static void send_event(void *arg, const char *json, size_t n) {
    http_stream_send(arg, json, n);
}

static const struct api_usage *count_usage(struct api_run *run) {
    run->usage.completion_tokens = 0;
    run->usage.reasoning_tokens = 0;
    for (size_t i = 0; i < run->n_choices; i++) {
        run->usage.completion_tokens += api_choice_tokens(run->choices[i].choice);
        run->usage.reasoning_tokens += api_choice_reasoning_tokens(run->choices[i].choice);
    }
    return &run->usage;
}

static const struct api_usage *usage_so_far(struct api_run *run) {
    return run->sampling->continuous_usage ? count_usage(run) : NULL;
}

static uint32_t index_of(const struct run_choice *rc) {
    return (uint32_t)(rc - rc->run->choices);
}

static void send_first(struct run_choice *rc) {
    struct api_run *run = rc->run;
    if (rc->opened || !run->sampling->stream)
        return;
    rc->opened = true;
    if (!http_stream_started(run->job.reply))
        http_stream_start(run->job.reply);
    api_event_first(&run->envelope, index_of(rc), &run->prompts[rc->prompt], usage_so_far(run),
                    send_event, run->job.reply);
}

static void send_step(struct run_choice *rc) {
    struct api_run *run = rc->run;
    if (!run->sampling->stream)
        return;
    bool first = !rc->opened;
    send_first(rc);
    if (!first && rc->unsent < run->sampling->stream_interval)
        return;
    rc->unsent = 0;
    api_event_step(&run->envelope, index_of(rc), rc->choice, usage_so_far(run), send_event,
                   run->job.reply);
}

static void finish_run(struct api_run *run) {
    const struct api_usage *usage = count_usage(run);
    if (run->sampling->stream) {
        if (run->sampling->include_usage)
            api_event_usage(&run->envelope, usage, send_event, run->job.reply);
        http_stream_end(run->job.reply);
    } else {
        struct api_choice **choices = calloc(run->n_choices, sizeof(struct api_choice *));
        WEIR_ASSERT(choices);
        for (size_t i = 0; i < run->n_choices; i++)
            choices[i] = run->choices[i].choice;
        struct text out = {0};
        bool fits = api_reply_write(&run->envelope, choices, run->n_choices, run->prompts,
                                    run->sampling->n, usage, &out);
        if (fits)
            http_reply_json(run->job.reply, 200, out.data, out.n);
        text_free(&out);
        free(choices);
        if (!fits) {
            fail_run(run, WEIR_FINISH_ERROR, 500,
                     "the reply is longer than 256 MiB, ask for a stream, fewer choices or fewer "
                     "log probabilities");
            return;
        }
    }
    end_run(run, run->worst);
}

/* ---- tokens ---- */

/* Scored prompt tokens live as long as the engine's request: keep the first copy. */
static void keep_scores(struct run_choice *rc) {
    struct api_prompt *p = &rc->run->prompts[rc->prompt];
    const weir_token *scores = NULL;
    if (p->scored || rc->run->sampling->params.prompt_logprobs < 0)
        return;
    size_t n = weir_prompt_logprobs(rc->request, &scores);
    if (n == 0)
        return;
    p->scored = malloc(n * sizeof *p->scored);
    WEIR_ASSERT(p->scored);
    memcpy(p->scored, scores, n * sizeof *p->scored);
}

static void note_times(struct run_choice *rc, const weir_progress *p, uint32_t tokens) {
    struct api_run *run = rc->run;
    if (p->scheduled > 0 && (run->scheduled == 0 || p->scheduled < run->scheduled))
        run->scheduled = p->scheduled;
    if (tokens == 0)
        return;
    if (run->first_token == 0 || p->first_token < run->first_token)
        run->first_token = p->first_token;
    if (p->last_token > run->last_token)
        run->last_token = p->last_token;
    if (rc->last_token > 0)
        metrics_tokens(server_metrics(run->job.api->server), p->last_token - rc->last_token,
                       tokens);
    rc->last_token = p->last_token;
    /* Reuse is told once a prompt, by its first choice. */
    if (!rc->counted && index_of(rc) % run->sampling->n == 0)
        run->usage.cached_tokens += p->cached_tokens;
    rc->counted = true;
}

static void end_choice(struct run_choice *rc, weir_finish finish, int32_t stop_id) {
    struct api_run *run = rc->run;
    if (run->envelope.no_output)
        finish = WEIR_FINISH_LENGTH;
    weir_release(rc->request);
    rc->request = NULL;
    run->live--;
    api_choice_end(rc->choice, finish, stop_id);
    if (finish > run->worst)
        run->worst = finish;
    if (run->sampling->stream) {
        send_first(rc);
        rc->unsent = UINT32_MAX;
        send_step(rc);
        api_event_finish(&run->envelope, index_of(rc), rc->choice, usage_so_far(run), send_event,
                         run->job.reply);
    }
}

static const char *failure(weir_status error) {
    switch (error) {
    case WEIR_NO_TOKEN: return "no valid token: the masks left none, or the logits were not finite";
    case WEIR_NO_MEMORY: return "the server ran out of memory for this request";
    default: return "the engine failed while working on this request";
    }
}

/* The model's own end has no reason; an id that the client named has. */
static int32_t told_stop_id(const struct api_run *run, int32_t id) {
    for (size_t i = 0; i < run->sampling->n_client_stop_ids; i++)
        if (run->sampling->stop_ids.data[i] == id)
            return id;
    return -1;
}

/* The tokens that one event waits for: a step's. Only a script has steps of several. */
static uint32_t step_tokens(const struct run_choice *rc) {
    const weir_params *p = &rc->run->sampling->params;
    return rc->step < p->n_scripted_steps ? p->scripted_steps[rc->step] : 1;
}

/* Only a turn that the model ended itself will come back whole: behind a stop string or a cut the
 * message and the ids part. */
static void record_turn(struct run_choice *rc) {
    struct api_run *run = rc->run;
    size_t bytes;
    if (!run->records || api_choice_stop_string(rc->choice, &bytes))
        return;
    struct turns_turn turn = {
        .base = run->base,
        .thinking = run->chat.options.thinking,
        .calls = !run->chat.parse_calls ? 0
                 : run->chat.one_call   ? 1
                                        : UINT32_MAX,
    };
    turns_record(run->job.api->turns, run->job.api->chat, &turn, &rc->generated);
    ids_free(&rc->generated);
}

enum { POLL_TOKENS = 16 };

/* Takes up to one step. False: nothing more now, or the choice or the whole run has ended (then
 * rc->request is NULL or run->job.reply is). */
static bool advance_step(struct run_choice *rc) {
    struct api_run *run = rc->run;
    weir_token token[POLL_TOKENS];
    weir_progress p;
    uint32_t want = step_tokens(rc) - rc->in_step;
    size_t got = weir_poll(rc->request, token, want < POLL_TOKENS ? want : POLL_TOKENS, &p);
    note_times(rc, &p, (uint32_t)got);
    if (got)
        keep_scores(rc);
    if (run->records)
        for (size_t i = 0; i < got; i++)
            ids_push(&rc->generated, token[i].id);
    for (size_t i = 0; i < got && !run->envelope.no_output; i++) {
        bool is_stop = p.finish == WEIR_FINISH_STOP && i + 1 == got && token[i].id == p.stop_id;
        if (!api_choice_feed(rc->choice, &token[i], is_stop)) {
            end_choice(rc, WEIR_FINISH_STOP, -1);
            return false;
        }
    }
    rc->unsent += (uint32_t)got;
    rc->in_step += (uint32_t)got;
    switch (p.finish) {
    case WEIR_RUNNING: break;
    case WEIR_FINISH_STOP:
        end_choice(rc, p.finish, told_stop_id(run, p.stop_id));
        record_turn(rc);
        return false;
    case WEIR_FINISH_LENGTH: end_choice(rc, p.finish, -1); return false;
    case WEIR_FINISH_ABORT:
        if (run->aborting)
            end_choice(rc, p.finish, -1);
        else
            fail_run(run, WEIR_FINISH_ABORT, 503, "the server is shutting down");
        return false;
    case WEIR_FINISH_ERROR: {
        weir_error why;
        char text[sizeof why.where + sizeof why.message + 2];
        bool known = weir_failure(rc->request, &why) != WEIR_OK;
        if (known)
            snprintf(text, sizeof text, "%s: %s", why.where, why.message);
        fail_run(run, WEIR_FINISH_ERROR, p.error == WEIR_CLOSED ? 503 : 500,
                 known ? text : failure(p.error));
        return false;
    }
    }
    if (rc->in_step == step_tokens(rc)) {
        rc->step++;
        rc->in_step = 0;
        send_step(rc);
    }
    return got > 0;
}

static void run_drained(void *arg);

/* Takes what is there, unless the reader is slow. */
static void advance_run(struct api_run *run) {
    for (size_t i = 0; i < run->n_choices; i++) {
        struct run_choice *rc = &run->choices[i];
        while (run->job.reply && rc->request && rc->ready) {
            if (http_stream_started(run->job.reply) && http_stream_full(run->job.reply)) {
                http_on_drained(run->job.reply, run_drained, run);
                return;
            }
            rc->ready = advance_step(rc);
        }
    }
    if (run->job.reply && run->live == 0)
        finish_run(run);
}

static void advance_and_free(struct api_run *run) {
    run->dirty = true;
    advance_run(run);
    run->dirty = false;
    if (!run->job.reply)
        api_run_free(&run->job);
}

static void run_drained(void *arg) {
    advance_and_free(arg);
}

void api_runs_advance(struct api *api) {
    weir_request *ready[64];
    struct api_run *dirty = NULL;
    size_t n;
    /* First mark, then act: ending a run releases requests that the list may still hold. */
    do {
        n = weir_ready(api->engine, ready, 64);
        for (size_t i = 0; i < n; i++) {
            struct run_choice *rc = weir_user(ready[i]);
            if (!rc) /* a health probe's, which looks for itself */
                continue;
            rc->ready = true;
            if (!rc->run->dirty) {
                rc->run->dirty = true;
                rc->run->next_dirty = dirty;
                dirty = rc->run;
            }
        }
    } while (n == 64);
    while (dirty) {
        struct api_run *run = dirty;
        dirty = run->next_dirty;
        advance_and_free(run);
    }
}

/* ---- the start ---- */

static uint64_t random_seed(void) {
    uint64_t seed;
    if (getrandom(&seed, sizeof seed, 0) != (ssize_t)sizeof seed)
        seed = clock_ns();
    return seed;
}

static struct api_choice *new_choice(const struct api_run *run, const struct api_prompt *prompt) {
    const struct api *api = run->job.api;
    struct choice_options o = {
        .tokenizer = api->tokenizer,
        .sampling = run->sampling,
        .logprobs = run->envelope.logprobs,
        .keep_ids = run->sampling->return_token_ids,
    };
    if (run->envelope.chat) {
        o.chat = api->chat;
        o.parser = (struct chat_parser_options){
            .thinking = run->chat.options.thinking,
            .tools = run->chat.parse_calls,
            .one_call = run->chat.one_call,
            .id_seed = random_seed(),
        };
    } else if (run->envelope.echo) {
        for (size_t i = 0; i < prompt->echo.n; i++)
            o.first_char += ((unsigned char)prompt->echo.data[i] & 0xC0) != 0x80;
    }
    return api_choice_new(&o);
}

enum { MOST_NAME = 256 }; /* of a request in logs */

static bool submit_choice(struct api_run *run, size_t i, struct api_error *e) {
    struct run_choice *rc = &run->choices[i];
    rc->run = run;
    rc->prompt = (uint32_t)(i / run->sampling->n);
    const struct api_prompt *prompt = &run->prompts[rc->prompt];
    rc->choice = new_choice(run, prompt);
    weir_params params = run->sampling->params;
    params.choice = (uint32_t)(i % run->sampling->n);
    /* A prompt's scores are the same for its choices: a whole reply takes them from the first. The
     * first event of a stream with echo cannot wait for another choice. */
    if (params.choice > 0 && !run->sampling->stream)
        params.prompt_logprobs = -1;
    /* Tied to the answer: its id and, where there are several, the choice's index. */
    char name[MOST_NAME];
    int end = snprintf(name, sizeof name, "%s", run->id);
    if (run->n_choices > 1 && end < MOST_NAME)
        snprintf(name + end, sizeof name - (size_t)end, " choice %zu", i);
    params.name = name;
    weir_error err = {0};
    weir_status st =
        weir_submit(run->job.api->engine, prompt->ids, prompt->n, &params, rc, &rc->request, &err);
    if (st == WEIR_OK)
        return true;
    if (st == WEIR_TOO_LONG)
        return api_fail_weir(e, run->envelope.chat ? "messages" : "prompt", &err);
    if (st == WEIR_BUSY)
        return api_fail(e, 429, NULL, "the queue is full, try again later");
    if (st == WEIR_CLOSED)
        return api_fail(e, 503, NULL, "the server is shutting down");
    return api_fail_weir(e, NULL, &err);
}

static void set_up_envelope(struct api_run *run) {
    struct api *api = run->job.api;
    struct http_reply *r = run->job.reply;
    const char *model = run->envelope.chat ? run->chat.model : run->completion.model;
    if (run->sampling->request_id && !http_reply_request(r)->id_given)
        http_reply_set_id(r, run->sampling->request_id);
    run->id = strdup(http_reply_request(r)->id);
    WEIR_ASSERT(run->id);
    struct api_envelope *v = &run->envelope;
    v->id = run->id;
    v->model = model && model[0] ? model : server_default_name(api->server);
    v->created = clock_unix();
    v->sampling = run->sampling;
    v->reasoning = REASONING_CONTENT;
    v->moonshot_usage = server_config(api->server)->moonshot_usage;
    int32_t top = run->sampling->params.logprobs,
            prompt_top = run->sampling->params.prompt_logprobs;
    v->logprob_style = (struct logprob_style){.tokenizer = api->tokenizer,
                                              .tokens_as_ids = run->sampling->tokens_as_ids,
                                              .top = top > 0 ? (uint32_t)top : 0};
    v->most_bytes = v->logprob_style.most_bytes = run->sampling->stream ? 0 : API_MAX_REPLY_BYTES;
    v->prompt_style = v->logprob_style;
    v->prompt_style.top = prompt_top > 0 ? (uint32_t)prompt_top : 0;
}

static void start_timer(struct api_run *run) {
    struct server *s = run->job.api->server;
    double seconds = server_config(s)->request_seconds;
    double own = run->sampling->timeout;
    if (own > 0 && (seconds == 0 || own < seconds))
        seconds = own;
    if (seconds > 0)
        run->timer = http_timer_start(server_http(s), seconds, run_timed_out, run);
}

static bool submit_all(struct api_run *run, struct api_error *e) {
    for (size_t i = 0; i < run->n_choices; i++)
        if (!submit_choice(run, i, e))
            return false;
    return true;
}

void api_run_submit(struct api_run *run) {
    struct api *api = run->job.api;
    struct http_reply *r = run->job.reply;
    struct api_error e = {0};
    const char *model = run->envelope.chat ? run->chat.model : run->completion.model;
    if (!api_model_check(api, model, &e)) {
        api_reply_error(r, &e);
        api_run_free(&run->job);
        return;
    }
    run->arrived = http_reply_request(r)->arrived;
    if (!run->sampling->params.cache_salt)
        run->sampling->params.cache_salt = run->job.key_salt;
    set_up_envelope(run);
    for (size_t i = 0; i < run->n_prompts; i++)
        run->usage.prompt_tokens += run->prompts[i].n;
    run->n_choices = run->n_prompts * run->sampling->n;
    run->choices = calloc(run->n_choices, sizeof *run->choices);
    WEIR_ASSERT(run->choices);
    run->worst = WEIR_FINISH_STOP;
    if (!submit_all(run, &e)) {
        api_reply_error(r, &e);
        api_run_free(&run->job);
        return;
    }
    run->live = run->n_choices;
    run->next = api->runs;
    if (run->next)
        run->next->previous = run;
    api->runs = run;
    http_on_closed(r, run_closed, run);
    http_on_abort(r, run_aborted, run);
    start_timer(run);
}
