/* bench_job.c: what the options ask for, made ready, and one run of it. Called by `bench replay`
 * and `bench sweep`. */
#include "cli/bench_args.h"

#include "base/rng.h"
#include "bench/store.h"
#include "model/model.h"

#include <errno.h>
#include <math.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

enum { ARRIVALS_CLOSED };

/* ------------------------------------------------------------------------------------- checking */

static weir_status override(struct bench_job *j, const char *name, weir_error *err) {
    char **more = realloc(j->overrides, (j->n_overrides + 1) * sizeof *more);
    if (!more)
        return weir_fail(err, WEIR_NO_MEMORY, name, "no memory");
    j->overrides = more;
    j->overrides[j->n_overrides] = strdup(name);
    j->n_overrides += j->overrides[j->n_overrides] != NULL;
    return WEIR_OK;
}

/* AgentX results are comparable because these are the same in all of them. */
static weir_status check_locked(struct bench_job *j, weir_error *err) {
    const struct bench_args *a = j->args;
    const struct {
        const char *name;
        bool differs;
    } locked[] = {{"start-ratio-min", a->start_min != 0.25},
                  {"start-ratio-max", a->start_max != 0.75},
                  {"warmup-requests-per-lane", a->warmup != 10},
                  {"warmup-grace", a->warmup_grace != 1800},
                  {"idle-gap-cap", a->idle_cap != 300},
                  {"system-idle-cap", a->system_idle_cap != 10},
                  {"no-warmup", a->no_warmup},
                  {"once", a->once},
                  {"share-sessions", a->share_sessions}};
    weir_status s = WEIR_OK;
    for (size_t i = 0; !s && i < sizeof locked / sizeof *locked; i++) {
        char option[64];
        snprintf(option, sizeof option, "--%s", locked[i].name);
        if (locked[i].differs && !a->unsafe_override)
            return weir_fail(err, WEIR_BAD_VALUE, option,
                             "is locked in AgentX replays; --unsafe-override allows it and marks "
                             "the result");
        if (locked[i].differs)
            s = override(j, locked[i].name, err);
    }
    return s;
}

static weir_status check_workload(struct bench_job *j, weir_error *err) {
    const struct bench_args *a = j->args;
    j->is_random = bench_given(a, "random-input-len");
    j->open_loop = a->arrivals != ARRIVALS_CLOSED || bench_given(a, "request-rate");
    if (j->is_random && a->trace)
        return weir_fail(err, WEIR_BAD_VALUE, "--random-input-len",
                         "is instead of a trace, not beside --trace");
    if (!j->is_random && !a->trace)
        return weir_fail(err, WEIR_BAD_VALUE, "--trace",
                         "is missing; random prompts need --random-input-len");
    bool has_rate = bench_given(a, "request-rate");
    if (a->arrivals == ARRIVALS_RECORDED + 1 && has_rate)
        return weir_fail(err, WEIR_BAD_VALUE, "--request-rate",
                         "is of no use where arrivals are those of the trace");
    if (a->arrivals > ARRIVALS_RECORDED + 1 && !has_rate)
        return weir_fail(err, WEIR_BAD_VALUE, "--request-rate",
                         "is missing: how many calls arrive a second");
    if (has_rate && !(a->request_rate > 0))
        return weir_fail(err, WEIR_BAD_VALUE, "--request-rate", "must be above 0");
    j->rate = isinf(a->request_rate) ? BENCH_AT_ONCE : a->request_rate;
    if (a->max_concurrency && !j->open_loop)
        return weir_fail(err, WEIR_BAD_VALUE, "--max-concurrency",
                         "belongs to the open loop; lanes are --concurrency");
    if (a->start_min > a->start_max)
        return weir_fail(err, WEIR_BAD_VALUE, "--start-ratio-min",
                         "must not be above --start-ratio-max: %g is above %g", a->start_min,
                         a->start_max);
    if (a->token_low > INT32_MAX || a->token_high > INT32_MAX)
        return weir_fail(err, WEIR_BAD_VALUE, "--token-high", "must be below 2^31");
    return WEIR_OK;
}

/* ------------------------------------------------------------------------------------- opening */

/* The workload names its fields; whoever reads it has given options. */
static void name_option(weir_error *err) {
    static const char *const names[][2] = {{"in", "--random-input-len"},
                                           {"out", "--random-output-len"},
                                           {"prefix_len", "--random-prefix-len"},
                                           {"range", "--random-range-ratio"},
                                           {"requests", "--num-prompts"}};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (!strcmp(err->where, names[i][0])) {
            snprintf(err->where, sizeof err->where, "%s", names[i][1]);
            return;
        }
}

static weir_status open_trace(struct bench_job *j, weir_error *err) {
    const struct bench_args *a = j->args;
    struct trace_options options = {.block_tokens = a->block_size};
    weir_status s;
    if (j->is_random) {
        s = trace_random(&(struct trace_random){.requests = a->num_prompts,
                                                .in = a->random_in,
                                                .out = a->random_out,
                                                .range = a->random_range,
                                                .prefix_len = a->random_prefix,
                                                .prefixes = a->random_prefixes,
                                                .seed = a->seed},
                         &j->trace, err);
        if (s == WEIR_BAD_VALUE)
            name_option(err);
    } else {
        s = trace_read(a->trace, (enum trace_format)a->format, &options, &j->trace, err);
    }
    if (s == WEIR_BAD_FILE && !bench_given(a, "format") && err) {
        size_t n = strlen(err->message);
        snprintf(err->message + n, sizeof err->message - n,
                 " (read as weka; --format says what it is)");
    }
    return s ? s : tree_build(&j->trace, &j->tree, err);
}

/* Recorded answers say how long the live ones are to be, where they can be counted. */
static void count_answers(struct bench_job *j) {
    struct ids ids = {0};
    for (uint32_t i = 0; j->tokenizer && i < j->trace.n_requests; i++) {
        struct trace_request *r = &j->trace.requests[i];
        if (r->has_out || !r->answer)
            continue;
        ids.n = 0;
        tokenizer_encode(j->tokenizer, r->answer, strlen(r->answer), &ids);
        r->out = ids.n ? ids.n : 1;
        r->has_out = true;
    }
    ids_free(&ids);
}

weir_status bench_job_open(const struct bench_args *a, struct bench_job *out, weir_error *err) {
    *out = (struct bench_job){.args = a};
    weir_status s = check_workload(out, err);
    if (!s && !out->is_random && !out->open_loop)
        s = check_locked(out, err);
    if (!s && a->extra_body) {
        json_error_t why;
        out->extra = json_loads(a->extra_body, JSON_REJECT_DUPLICATES, &why);
        if (!json_is_object(out->extra))
            s = weir_fail(err, WEIR_BAD_VALUE, "--extra-body", "must be a JSON object: %s",
                          out->extra ? "this is another value" : why.text);
    }
    struct model model;
    if (!s && a->tokenizer)
        s = model_open(a->tokenizer, &model, err);
    if (!s && a->tokenizer)
        s = tokenizer_open(a->tokenizer, model.vocab, &out->tokenizer, err);
    if (!s)
        s = open_trace(out, err);
    if (!s && out->trace.requests[0].text && a->length_scale != 1)
        s = weir_fail(err, WEIR_BAD_VALUE, "--length-scale",
                      "needs a trace of lengths; this one holds texts");
    if (!s) {
        count_answers(out);
        out->config = bench_config(a);
        if (out->is_random)
            json_object_set_new(out->config, "format", json_string("random"));
        if (out->open_loop && a->arrivals == ARRIVALS_CLOSED)
            json_object_set_new(out->config, "arrivals", json_string("poisson"));
        json_object_set_new(out->config, "request-rate", json_real(out->rate));
    }
    if (s)
        bench_job_close(out);
    return s;
}

void bench_job_close(struct bench_job *j) {
    tree_free(&j->tree);
    trace_free(&j->trace);
    tokenizer_close(j->tokenizer);
    json_decref(j->extra);
    json_decref(j->config);
    for (uint32_t i = 0; i < j->n_overrides; i++)
        free(j->overrides[i]);
    free(j->overrides);
    *j = (struct bench_job){0};
}

/* ------------------------------------------------------------------------------------ interrupt */

static volatile sig_atomic_t interrupted;

static void on_signal(int number) {
    interrupted = 1;
}

bool bench_interrupted(void) {
    return interrupted;
}

/* The second Ctrl-C ends the program as it always does. */
static void catch_signals(void) {
    struct sigaction a = {.sa_handler = on_signal, .sa_flags = (int)SA_RESETHAND};
    sigaction(SIGINT, &a, NULL);
    sigaction(SIGTERM, &a, NULL);
    /* A terminal that goes away; under nohup it is to be ignored. */
    struct sigaction before;
    if (!sigaction(SIGHUP, NULL, &before) && before.sa_handler != SIG_IGN)
        sigaction(SIGHUP, &a, NULL);
}

static void release_signals(void) {
    signal(SIGINT, SIG_DFL);
    signal(SIGTERM, SIG_DFL);
    struct sigaction now;
    if (!sigaction(SIGHUP, NULL, &now) && now.sa_handler == on_signal)
        signal(SIGHUP, SIG_DFL);
}

/* ------------------------------------------------------------------------------------- running */

static char *copy(const char *text) {
    return text ? strdup(text) : NULL;
}

static void fill_subject(const struct bench_args *a, struct run_subject *s) {
    *s = (struct run_subject){.hardware = copy(a->hardware),
                              .framework = copy(a->framework),
                              .framework_version = copy(a->framework_version),
                              .model_prefix = copy(a->model_prefix),
                              .image = copy(a->image),
                              .precision = copy(a->precision),
                              .spec_decoding = copy(a->spec_decoding),
                              .kv_offloading = copy(a->kv_offloading),
                              .offload_name = copy(a->offload_backend),
                              .offload_version = copy(a->offload_version),
                              .label = copy(a->label),
                              .tp = a->tp,
                              .ep = a->ep,
                              .pp = a->pp,
                              .dcp = a->dcp,
                              .pcp = a->pcp,
                              .dp_attention = a->dp_attention,
                              .disagg = a->disagg,
                              .is_multinode = a->multinode,
                              .allocated_dram_gb =
                                  bench_given(a, "dram-gb") ? a->dram_gb : (double)NAN};
}

static const char *scenario_of(const struct bench_job *j) {
    if (j->is_random)
        return "fixed-length";
    if (j->open_loop)
        return "open-loop";
    return j->args->format == TRACE_WEKA ? "agentic-coding" : "closed-loop";
}

static const char *base_name(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash && slash[1] ? slash + 1 : path;
}

static void fill_run(const struct bench_job *j, uint32_t concurrency, struct run *run) {
    const struct bench_args *a = j->args;
    fill_subject(a, &run->subject);
    run->config = json_deep_copy(j->config);
    json_object_set_new(run->config, "concurrency", json_integer(concurrency));
    run->concurrency = concurrency;
    run->scenario = strdup(scenario_of(j));
    run->dataset = strdup(j->is_random ? "random" : base_name(a->trace));
    run->url = strdup(a->url);
    run->isl = j->is_random ? a->random_in + a->random_prefix : 0;
    run->osl = j->is_random ? a->random_out : 0;
    run->time_scale = a->time_scale;
    run->length_scale = a->length_scale;
    run->overrides = calloc(j->n_overrides + 1, sizeof *run->overrides);
    for (uint32_t i = 0; run->overrides && i < j->n_overrides; i++)
        run->overrides[run->n_overrides++] = strdup(j->overrides[i]);
}

/* One that --salt takes, so that a run can be made again. */
static uint64_t drawn_salt(void) {
    uint64_t salt = rng_entropy() >> 12;
    return salt ? salt : 1;
}

static int64_t ns(double seconds) {
    return (int64_t)(seconds * 1e9);
}

static void fill_load(const struct bench_job *j, uint32_t concurrency, struct replay_options *o) {
    const struct bench_args *a = j->args;
    bool to_the_end = (j->is_random || j->open_loop || a->once) && !bench_given(a, "duration");
    int64_t duration = to_the_end ? 0 : ns(a->duration);
    o->open_loop = j->open_loop;
    o->lanes = (struct lanes_options){.lanes = concurrency,
                                      .seed = a->seed,
                                      .duration = duration,
                                      .once = a->once || j->is_random,
                                      .start_min = a->start_min,
                                      .start_max = a->start_max,
                                      .warmup_calls =
                                          a->no_warmup || j->is_random ? UINT32_MAX : a->warmup,
                                      .idle_cap = ns(a->idle_cap),
                                      .system_idle_cap = ns(a->system_idle_cap),
                                      .time_scale = a->time_scale,
                                      .share = a->share_sessions || j->is_random};
    /* The words of --arrivals are those of the enumeration behind "closed". */
    enum arrivals kind =
        a->arrivals == ARRIVALS_CLOSED ? ARRIVALS_POISSON : (enum arrivals)(a->arrivals - 1);
    o->arrivals = (struct arrivals_options){.kind = kind,
                                            .rate = j->rate,
                                            .time_scale = a->time_scale,
                                            .seed = a->seed,
                                            .duration = duration,
                                            .calls = bench_given(a, "num-prompts") ? a->num_prompts
                                                     : bench_given(a, "duration")  ? UINT64_MAX
                                                                                   : 0,
                                            .most = a->max_concurrency};
}

static void fill_options(const struct bench_job *j, uint32_t concurrency,
                         struct replay_options *o) {
    const struct bench_args *a = j->args;
    *o = (struct replay_options){.trace = &j->trace,
                                 .tree = &j->tree,
                                 .length_scale = a->length_scale,
                                 .salt = a->salt ? a->salt : drawn_salt(),
                                 .warmup_grace = ns(a->warmup_grace),
                                 .client = {.url = a->url,
                                            .api_key = a->api_key,
                                            .ca_file = a->ca,
                                            .connect_seconds = a->connect_timeout,
                                            .silence_seconds = a->silence_timeout,
                                            .whole_seconds = a->request_timeout,
                                            .streams = concurrency          ? concurrency
                                                       : a->max_concurrency ? a->max_concurrency
                                                                            : 1024},
                                 .server = (enum server_kind)a->server,
                                 .endpoint = j->trace.requests[0].text ? ENDPOINT_CHAT
                                                                       : (enum endpoint)a->endpoint,
                                 .model_name = a->model_name,
                                 .extra = j->extra,
                                 .tokenizer = j->tokenizer,
                                 .tokenizer_dir = a->tokenizer,
                                 .token_low = (int32_t)a->token_low,
                                 .token_high = (int32_t)a->token_high,
                                 .max_tokens = a->max_tokens,
                                 .max_context = a->max_context,
                                 .sample_seconds = a->metrics_interval,
                                 .stop = &interrupted};
    if (bench_given(a, "endpoint"))
        o->endpoint = (enum endpoint)a->endpoint;
    fill_load(j, concurrency, o);
}

weir_status bench_job_run(struct bench_job *j, uint32_t concurrency, const char *dir,
                          struct run *run, struct run_summary *summary, weir_error *err) {
    struct replay_options o;
    struct bench_progress progress = {0};
    *run = (struct run){0};
    fill_run(j, j->open_loop ? j->args->max_concurrency : concurrency, run);
    fill_options(j, j->open_loop ? 0 : concurrency, &o);
    run->salt = o.salt;
    weir_status s = run_log_open(dir, run, &o.log, err);
    if (s)
        return s;
    if (!j->args->json || isatty(STDERR_FILENO))
        bench_progress_begin(&progress, &o);
    catch_signals();
    s = replay_run(&o, run, err);
    release_signals();
    bench_progress_end(&progress);
    run_clean(run);
    if (s) { /* nothing was measured */
        run_log_undo(o.log);
        return s;
    }
    s = run_summarise(run, summary, err);
    if (!s) {
        bench_remark(j->args, run, summary);
        s = run_write(run, dir, err);
        /* The disk may have filled up meanwhile: what was measured is at least seen. */
        if (s && !j->args->json)
            bench_print(run, summary, NULL);
    }
    (s ? run_log_leave : run_log_close)(o.log);
    weir_error trouble = {0};
    if (!s && !j->args->no_history && store_record(j->args->history, run, summary, dir, &trouble)) {
        fprintf(stderr, "weir: not in the history: %s: %s\n", trouble.where, trouble.message);
        j->unrecorded = true;
    }
    return s;
}
