/* replay.c: the loop of a replay. Called by the commands and by tests. */
#include "bench/replay_inside.h"

#include "base/rng.h"
#include "base/plural.h"

#include <math.h>
#include <string.h>
#include <time.h>

enum { DEFAULT_BUDGET = 256 << 20, UNKNOWN_LOW = 10000, UNKNOWN_HIGH = 30000, MOST_FORESEEN = 64 };
#define PROGRESS_EVERY 100000000 /* ns */
#define STOP_EVERY     100000000

static int64_t thread_cpu(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static int64_t unix_offset(void) {
    struct timespec t;
    int64_t before = client_now();
    clock_gettime(CLOCK_REALTIME, &t);
    int64_t after = client_now();
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec - (before + (after - before) / 2);
}

/* ------------------------------------------------------------------------------------- opening */

/* Special ids stand at the ends of vocabularies; the middle is text everywhere. */
static weir_status choose_tokens(struct replay *r, weir_error *err) {
    const struct replay_options *o = r->o;
    uint32_t vocab = o->tokenizer ? tokenizer_ranks(o->tokenizer) : r->probe.vocab;
    r->maker.low = o->token_low;
    r->maker.high = o->token_high;
    if (o->token_low == 0 && o->token_high == 0) {
        r->maker.low = vocab ? (int32_t)(vocab / 16) : UNKNOWN_LOW;
        r->maker.high = vocab ? (int32_t)(vocab - vocab / 8) : UNKNOWN_HIGH;
    }
    if (r->maker.low < 0 || r->maker.high - (int64_t)r->maker.low < 64)
        return weir_fail(
            err, WEIR_BAD_VALUE,
            o->token_low > o->token_high || !o->token_high ? "--token-low" : "--token-high",
            "at least 64 ids are needed from --token-low on, not %" PRId32 " to %" PRId32,
            r->maker.low, r->maker.high);
    return WEIR_OK;
}

static weir_status choose_words(struct replay *r, weir_error *err) {
    if (r->o->endpoint != ENDPOINT_CHAT)
        return WEIR_OK;
    if (r->o->tokenizer)
        return words_of(r->o->tokenizer, r->o->tokenizer_dir, &r->maker.words, err);
    return words_common(&r->maker.words, err);
}

static void copy_identity(struct replay *r) {
    struct run *run = r->run;
    struct run_subject *s = &run->subject;
    run->server = json_incref(r->probe.info);
    if (!s->model && r->probe.model[0])
        s->model = strdup(r->probe.model);
    if (!s->framework)
        s->framework = strdup(server_kind_name(r->probe.kind));
    if (!s->framework_version && r->probe.version[0])
        s->framework_version = strdup(r->probe.version);
    if (r->probe.has_metrics)
        run->metrics_adapter = strdup(server_kind_name(r->probe.kind));
}

/* Where no call fits into the context all would be skipped, and lanes without waits would go round
 * for ever at one moment. Lengths of texts are not known. */
static weir_status check_context(const struct replay *r, weir_error *err) {
    const struct replay_options *o = r->o;
    const struct tree *t = o->tree;
    uint32_t n = o->open_loop ? o->trace->n_requests : t->n_calls;
    uint64_t least = UINT64_MAX;
    for (uint32_t i = 0; i < n; i++) {
        struct call call = {.request = o->open_loop ? i : t->calls[i].request};
        if (!replay_is_too_long(r, &call))
            return WEIR_OK;
        uint64_t all = trace_scaled_in(&o->trace->requests[call.request], o->length_scale) +
                       body_out_tokens(&r->maker, &call);
        least = all < least ? all : least;
    }
    if (!n)
        return WEIR_OK; /* the schedule says what is wrong */
    if (!r->max_context)
        return weir_fail(err, WEIR_BAD_VALUE, "trace", "no prompt is short enough to be sent");
    return weir_fail(err, WEIR_BAD_VALUE, "--max-context",
                     "no call of the trace fits into %" PRIu64
                     " %s, which is %s: the shortest has %" PRIu64
                     " with its answer; --length-scale makes them shorter",
                     r->max_context, plural(r->max_context, "token", "tokens"),
                     o->max_context ? "what was given" : "what the server says", least);
}

static void on_composed(void *user) {
    replay_send_composed(user);
}

static weir_status open_all(struct replay *r, weir_error *err) {
    const struct replay_options *o = r->o;
    weir_status s = client_open(&o->client, &r->client, err);
    if (!s)
        s = probe_server(r->client, o->server, o->model_name, &r->probe, err);
    if (s)
        return s;
    copy_identity(r);
    r->max_context = o->max_context ? o->max_context : r->probe.max_context;
    r->run->max_context = r->max_context;
    r->maker = (struct body_maker){
        .trace = o->trace,
        .server = r->probe.kind,
        .endpoint = o->endpoint,
        .model = r->probe.model,
        .extra = o->extra,
        .max_tokens = o->max_tokens,
        .seed = rng_at(o->open_loop ? o->arrivals.seed : o->lanes.seed, o->salt, 0),
        .length_scale = o->length_scale,
        .recorded_answers = o->trace->format == TRACE_SHAREGPT};
    s = choose_tokens(r, err);
    if (!s)
        s = check_context(r, err);
    if (!s)
        s = choose_words(r, err);
    if (!s)
        s = composer_open(&r->maker, o->body_budget ? o->body_budget : DEFAULT_BUDGET, &r->composer,
                          err);
    if (!s)
        s = client_watch(r->client, composer_fd(r->composer), on_composed, r, err);
    if (!s && (!r->late || !r->held))
        s = weir_fail(err, WEIR_NO_MEMORY, "replay", "no memory");
    int64_t now = client_now();
    if (!s)
        s = o->open_loop ? schedule_arrivals(o->tree, &o->arrivals, now, &r->schedule, err)
                         : schedule_lanes(o->tree, &o->lanes, now, &r->schedule, err);
    r->foreseen = o->open_loop || o->lanes.lanes > MOST_FORESEEN ? MOST_FORESEEN : o->lanes.lanes;
    if (!s)
        replay_look_ahead(r, 0);
    return s;
}

/* ------------------------------------------------------------------------------------ the loop */

static void note_profiling(struct replay *r) {
    int64_t start = schedule_profiling_start(r->schedule);
    if (r->profiling_start != INT64_MIN || start == INT64_MIN)
        return;
    r->profiling_start = start;
    r->run->profiling_started = replay_unix(r, start);
    r->scrape.next = start;
    r->cpu_start = thread_cpu();
    r->done = r->failed = 0;
    r->window.n = 0;
    reservoir_clear(client_turn_lengths(r->client));
}

static double recent_rate(struct rate_window *w, uint64_t tokens, int64_t now) {
    enum { N = sizeof w->at / sizeof *w->at, STEP = 500000000 };
    uint32_t last = (w->n + N - 1) % N;
    if (w->n == 0 || now - w->at[last] >= STEP) {
        w->at[w->n % N] = now;
        w->tokens[w->n % N] = tokens;
        w->n++;
    }
    uint32_t first = w->n > N ? w->n % N : 0;
    double seconds = (double)(now - w->at[first]) * 1e-9;
    return seconds > 0.5 ? (double)(tokens - w->tokens[first]) / seconds : 0;
}

static void show_progress(struct replay *r, int64_t now) {
    const struct replay_options *o = r->o;
    if (!o->progress || now < r->progress_next)
        return;
    r->progress_next = now + PROGRESS_EVERY;
    int64_t duration = o->open_loop ? o->arrivals.duration : o->lanes.duration;
    struct replay_progress p = {
        .phase = schedule_phase(r->schedule),
        .model = r->probe.model,
        .server = server_kind_name(r->probe.kind),
        .alive = schedule_alive(r->schedule),
        .in_flight = schedule_in_flight(r->schedule),
        .done = r->done,
        .failed = r->failed,
        .tokens_per_second = recent_rate(&r->window, r->tokens, now),
        .left = NAN,
    };
    if (r->profiling_start != INT64_MIN) {
        p.seconds = (double)(now - r->profiling_start) * 1e-9;
        if (duration > 0)
            p.left = fmax(0, (double)duration * 1e-9 - p.seconds);
    }
    o->progress(o->progress_user, &p);
}

static int64_t earlier(int64_t a, int64_t b) {
    return a < b ? a : b;
}

/* Sends what is due; a call that is not sent may make others due. */
static void send_due(struct replay *r) {
    struct call call;
    int64_t now = client_now();
    while (schedule_next(r->schedule, now, &call)) {
        note_profiling(r);
        replay_begin(r, &call, now);
    }
    note_profiling(r);
}

static void loop(struct replay *r) {
    int64_t start = client_now();
    while (schedule_phase(r->schedule) != PHASE_ENDED) {
        /* The sample that frames the profiling is asked for before its first call is sent. */
        send_due(r);
        int64_t now = client_now();
        if (schedule_phase(r->schedule) == PHASE_ENDED)
            break;
        bool stop = r->o->stop && *r->o->stop;
        if (r->o->warmup_grace > 0 && r->profiling_start == INT64_MIN && !r->gone[0] &&
            now - start > r->o->warmup_grace)
            snprintf(r->gone, sizeof r->gone, "the warm-up had not ended after %g s",
                     (double)r->o->warmup_grace * 1e-9);
        if (r->o->log && run_log_error(r->o->log) && !r->gone[0])
            snprintf(r->gone, sizeof r->gone, "its records cannot be written: %s",
                     strerror(run_log_error(r->o->log)));
        if (stop || r->gone[0] || r->failed_memory) {
            r->run->was_cancelled = stop;
            schedule_stop(r->schedule, now);
            replay_cancel_all(r);
            break;
        }
        int64_t until = earlier(schedule_wake(r->schedule, now), replay_scrape(r, now));
        if (r->o->warmup_grace > 0 && r->profiling_start == INT64_MIN)
            until = earlier(until, start + r->o->warmup_grace + 1);
        show_progress(r, now);
        if (r->o->stop || r->o->progress)
            until = earlier(until, now + STOP_EVERY);
        client_turn(r->client, until);
    }
}

/* ------------------------------------------------------------------------------------- closing */

static void warn(struct replay *r, uint64_t n, const char *one, const char *many,
                 const char *what) {
    if (n > 0)
        run_warn(r->run, "%" PRIu64 " %s %s", n, plural(n, one, many), what);
}

static void warn_answers(struct replay *r, uint64_t n, const char *what) {
    warn(r, n, "answer", "answers", what);
}

static void warn_all(struct replay *r) {
    const struct oddities *o = &r->odd;
    warn_answers(r, o->same_id, "carried the id of another answer");
    warn_answers(r, o->id_changed, "changed their id on the way");
    warn_answers(r, o->few_tokens,
                 "reported fewer tokens than half the pieces they came in: pieces were counted");
    warn_answers(r, o->many_tokens,
                 "reported more tokens than were asked for in fewer pieces than "
                 "that: pieces were counted");
    warn_answers(r, o->no_usage, "had no usage: tokens were counted here");
    warn_answers(r, o->cached_more, "reported more cached tokens than the prompt has: not used");
    warn_answers(r, o->no_number,
                 "reported counts of tokens that are no whole numbers from 0 to 2^53: not used");
    warn(r, o->no_end_mark, "stream", "streams", "ended without the end mark [DONE]");
    warn(r, o->resent, "call was", "calls were", "sent again because an open connection had died");
    if (o->prompt_length > 0)
        run_warn(r->run,
                 "%" PRIu64 " %s reported another prompt length than can have been sent, by up "
                 "to %" PRIu64 " %s: what was sent was counted",
                 o->prompt_length, plural(o->prompt_length, "answer", "answers"),
                 o->prompt_difference, plural(o->prompt_difference, "token", "tokens"));
    if (r->o->tree->dropped_agents > 0)
        run_warn(r->run, "%u %s left out", r->o->tree->dropped_agents,
                 plural(r->o->tree->dropped_agents, "sub-agent that nothing started was",
                        "sub-agents that nothing started were"));
    if (r->o->trace->n_warnings > 0)
        run_warn(r->run, "trace: %u %s %.300s", r->o->trace->n_warnings,
                 plural(r->o->trace->n_warnings, "oddity:", "oddities, the first:"),
                 r->o->trace->warning);
}

static void note_end(struct replay *r) {
    struct run *run = r->run;
    int64_t now = client_now();
    const char *reason = schedule_abort_reason(r->schedule);
    if (r->profiling_start != INT64_MIN) {
        run->profiling_ended = replay_unix(r, now);
        double wall = (double)(now - r->profiling_start);
        run->overhead.busy = wall > 0 ? (double)(thread_cpu() - r->cpu_start) / wall : 0;
    }
    reservoir_distribution(client_turn_lengths(r->client), &run->overhead.turn_us);
    reservoir_distribution(r->late, &run->overhead.late_us);
    reservoir_distribution(r->held, &run->overhead.held_ms);
    run->overhead.most_streams = client_most_streams(r->client);
    char text[400];
    if (reason[0])
        snprintf(text, sizeof text, "%s (%s)", reason, r->first_failure);
    else
        snprintf(text, sizeof text, "%s", r->failed_memory ? "no memory" : r->gone);
    if (text[0])
        run->abort_reason = strdup(text);
    warn_all(r);
}

weir_status replay_run(const struct replay_options *o, struct run *run, weir_error *err) {
    struct replay r = {.o = o, .run = run, .profiling_start = INT64_MIN};
    r.unix_offset = unix_offset();
    r.keeps_text = o->trace->format == TRACE_MULTI_TURN || o->tokenizer;
    r.late = malloc(sizeof *r.late);
    if (r.late)
        reservoir_clear(r.late);
    r.held = malloc(sizeof *r.held);
    if (r.held)
        reservoir_clear(r.held);
    run->started = replay_unix(&r, client_now());
    weir_status s = open_all(&r, err);
    if (!s) {
        loop(&r);
        note_end(&r);
        if (!run->was_cancelled)
            replay_scrape_last(&r);
        replay_scrape_warn(&r);
        s = run_count_hits(run, o->trace, err);
    }
    run->ended = replay_unix(&r, client_now());
    client_close(r.client); /* first: exchanges read bodies that the calls own */
    composer_close(r.composer);
    replay_free_calls(&r);
    schedule_free(r.schedule);
    probe_free(&r.probe);
    words_free(&r.maker.words);
    text_free(&r.scrape.text);
    free(r.late);
    free(r.held);
    return s;
}
