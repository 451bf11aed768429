/* server.c: `weir serve`: engine, API, admin endpoints and transport put together, and taken apart
 * again. Called by the command line.
 *
 * The checkpoint is read on a thread of its own. What can be refused is refused within moments, so
 * the port opens only when loading is done or has taken LISTEN_SECONDS: a bad checkpoint ends the
 * program before anybody could connect, and a long load can be watched through /health (503).
 * Order at the end: replies and jobs, then the API, then the engine (its thread wakes the loop
 * until then), then the loop. */
#include "serve/server_inside.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/plural.h"
#include "serve/admin.h"
#include "serve/api_serve.h"
#include "serve/metrics.h"
#include "serve/page.h"
#include "serve/turns.h"

#include <limits.h>
#include <string.h>
#include <unistd.h>

static const double LISTEN_SECONDS = 2, TICK_SECONDS = 1, SAVE_SECONDS = 60;

/* ---- what endpoints ask ---- */

const struct serve_config *server_config(const struct server *s) {
    return s->config;
}

weir_engine *server_engine(const struct server *s) {
    return s->engine ? s->engine : s->loaded_engine;
}

struct http *server_http(const struct server *s) {
    return s->http;
}

struct metrics *server_metrics(const struct server *s) {
    return s->metrics;
}

struct turns *server_turns(const struct server *s) {
    return s->turns;
}

int64_t server_created(const struct server *s) {
    return s->created;
}

const char *server_default_name(const struct server *s) {
    return s->names[0];
}

const char *server_name(const struct server *s, size_t i) {
    return i < s->n_names ? s->names[i] : NULL;
}

bool server_serves(const struct server *s, const char *name) {
    if (!name || !*name)
        return true;
    for (size_t i = 0; i < s->n_names; i++)
        if (strcmp(s->names[i], name) == 0)
            return true;
    return false;
}

const char *server_bare_id(const char *id) {
    if (strncmp(id, "chatcmpl-", 9) == 0)
        return id + 9;
    return strncmp(id, "cmpl-", 5) == 0 ? id + 5 : id;
}

const char *server_fault(struct server *s) {
    weir_stats stats;
    if (!s->engine)
        return "the model is being loaded";
    weir_get_stats(s->engine, &stats);
    /* An idle engine's last step may be long ago, so time counts from when work came. */
    double since = stats.last_step > s->work_since ? stats.last_step : s->work_since;
    if (s->work_since > 0 && stats.running + stats.waiting > 0 &&
        clock_seconds() - since > s->config->stuck_seconds)
        return "the engine has work but makes no progress";
    return NULL;
}

static void tick(void *arg) {
    struct server *s = arg;
    weir_stats stats;
    weir_get_stats(s->engine, &stats);
    if (stats.running + stats.waiting == 0)
        s->work_since = 0;
    else if (s->work_since == 0)
        s->work_since = clock_seconds();
    http_timer_start(s->http, TICK_SECONDS, tick, s);
}

/* ---- names ---- */

static bool name_is_good(const char *name) {
    for (const char *c = name; *c; c++)
        if ((unsigned char)*c < 0x20 || *c == 0x7F)
            return false;
    return *name != 0;
}

static weir_status choose_names(struct server *s, weir_error *err) {
    const struct serve_config *config = s->config;
    s->names = config->served_names;
    s->n_names = config->n_served_names;
    if (s->n_names == 0) {
        size_t end = strlen(config->model_dir);
        while (end > 1 && config->model_dir[end - 1] == '/')
            end--;
        size_t start = end;
        while (start > 0 && config->model_dir[start - 1] != '/')
            start--;
        s->own_name = strndup(config->model_dir + start, end - start);
        if (!s->own_name)
            return weir_fail(err, WEIR_NO_MEMORY, "serve", "no memory");
        s->names = (const char *const *)&s->own_name;
        s->n_names = 1;
    }
    for (size_t i = 0; i < s->n_names; i++)
        if (!name_is_good(s->names[i]))
            return weir_fail(err, WEIR_BAD_VALUE, "--served-model-name",
                             "must not be empty or hold control characters");
    return WEIR_OK;
}

/* ---- loading ---- */

/* A file that cannot be gone on with is not written over, but must not end the saving either. */
static bool make_way(const char *path, const weir_error *why) {
    char to[PATH_MAX];
    weir_error err = {0};
    if (why->code == WEIR_BAD_FILE && turns_move_aside(path, to, sizeof to, &err) == WEIR_OK) {
        log_line(LOG_WARN, "turns %s: %s; it was moved to %s, which may be deleted", path,
                 why->message, to);
        return true;
    }
    log_line(LOG_WARN, "turns are neither read nor saved: %s: %s%s%s", why->where, why->message,
             err.code ? "; it " : "", err.code ? err.message : "");
    return false;
}

static void load_turns(struct server *s) {
    char path[PATH_MAX];
    weir_error err = {0};
    weir_info info;
    weir_get_info(s->loaded_engine, &info);
    if (!s->config->turns_path && !info.tier_open[WEIR_DISK])
        return;
    if (s->config->turns_path)
        snprintf(path, sizeof path, "%s", s->config->turns_path);
    else /* in the folder that the disk tier has made for this model */
        snprintf(path, sizeof path, "%s/%.16s/turns", s->config->engine.disk_offload_dir,
                 info.fingerprint);
    if (turns_load(s->turns, path, info.vocab_size, &err) != WEIR_OK && !make_way(path, &err))
        return;
    if (!turns_keep(s->turns, path, SAVE_SECONDS))
        log_line(LOG_WARN, "turns are not saved: no memory");
}

static void *load(void *arg) {
    struct server *s = arg;
    weir_options options = s->config->engine;
    options.on_progress = http_wake;
    options.on_progress_arg = s->http;
    s->load_status = weir_open(s->config->model_dir, &options, &s->loaded_engine, &s->load_error);
    if (s->load_status == WEIR_OK && s->turns)
        load_turns(s);
    if (s->load_status == WEIR_OK && s->api)
        s->load_status = s->api->open(s, &s->api_state, &s->load_error);
    atomic_store(&s->loaded, true);
    http_wake(s->http);
    return NULL;
}

static bool start_metrics(struct server *s) {
    static const char *const formats[] = {
        [WEIR_KV_F32] = "f32", [WEIR_KV_BF16] = "bf16", [WEIR_KV_FP8] = "fp8"};
    char settings[256];
    snprintf(settings, sizeof settings,
             "block_size=\"%u\",num_gpu_blocks=\"%u\",num_state_slots=\"%u\","
             "cache_dtype=\"%s\",max_model_len=\"%u\",max_num_seqs=\"%u\"",
             s->info.page_tokens, s->info.kv_pages, s->info.state_slots, formats[s->info.kv_dtype],
             s->info.max_model_len, s->info.max_num_seqs);
    return metrics_model(s->metrics, s->names[0], &s->info, settings);
}

/* What an operator must know to judge hit rates: how much there is room for, and what is kept. */
static void say_cache(const weir_info *i) {
    char tiers[192] = "";
    const uint32_t kept = i->state_slots - i->max_num_seqs;
    if (!i->prefix_caching) {
        log_line(LOG_INFO,
                 "cache: %" PRIu64 " tokens of history, %" PRIu32 " %s at once; "
                 "prefix caching is off",
                 (uint64_t)i->kv_pages * i->page_tokens, i->max_num_seqs,
                 plural(i->max_num_seqs, "sequence", "sequences"));
        return;
    }
    for (int k = 0; k < WEIR_SOURCES; k++) {
        size_t n = strlen(tiers);
        const char *joint = n ? ", " : "; tiers: ", *name = weir_source_name((enum weir_source)k);
        if (i->tier_open[k] && i->tier_bytes[k])
            snprintf(tiers + n, sizeof tiers - n, "%s%s of %" PRIu64 " bytes", joint, name,
                     i->tier_bytes[k]);
        else if (i->tier_open[k])
            snprintf(tiers + n, sizeof tiers - n, "%s%s", joint, name);
    }
    log_line(LOG_INFO,
             "cache: %" PRIu64 " tokens of history, %" PRIu32 " %s at once and %" PRIu32
             " kept %s, in %" PRIu64 " bytes; policy %s%s",
             (uint64_t)i->kv_pages * i->page_tokens, i->max_num_seqs,
             plural(i->max_num_seqs, "sequence", "sequences"), kept,
             plural(kept, "state", "states"),
             i->kv_pages * i->kv_page_bytes + i->state_slots * i->state_slot_bytes,
             i->checkpoint_policy, tiers[0] ? tiers : "; no tiers");
}

static void say_ready(const struct server *s) {
    const struct serve_config *config = s->config;
    bool brackets = strchr(config->host, ':') != NULL;
    printf("ready: %s://%s%s%s:%u\n", config->tls_cert ? "https" : "http", brackets ? "[" : "",
           config->host, brackets ? "]" : "", http_port(s->http));
    fflush(stdout);
}

static void prepare_series(void *arg, const char *method, const char *path) {
    metrics_http_route(arg, method, path);
}

static void finish_loading(struct server *s) {
    pthread_join(s->loader, NULL);
    s->loader_runs = false;
    if (s->load_status == WEIR_OK) {
        s->engine = s->loaded_engine;
        weir_get_info(s->engine, &s->info);
        if (!start_metrics(s))
            s->load_status = weir_fail(&s->load_error, WEIR_NO_MEMORY, "serve", "no memory");
    }
    if (s->load_status == WEIR_OK)
        s->load_status = http_listen(s->http, &s->load_error);
    if (s->load_status != WEIR_OK) {
        http_stop(s->http);
        return;
    }
    if (s->api)
        s->api->routes(s->api_state, s->http);
    http_each_route(s->http, prepare_series, s->metrics);
    tick(s);
    say_cache(&s->info);
    http_set_ready(s->http);
    say_ready(s);
}

static void listen_while_loading(void *arg) {
    struct server *s = arg;
    weir_error err;
    if (!s->engine && s->loader_runs && http_listen(s->http, &err) == WEIR_OK)
        log_line(LOG_INFO, "still loading; /health on port %u answers 503 until then",
                 http_port(s->http));
}

/* ---- running ---- */

static void woken(void *arg) {
    struct server *s = arg;
    if (s->loader_runs && atomic_load(&s->loaded))
        finish_loading(s);
    if (!s->engine || s->load_status != WEIR_OK)
        return;
    weir_stats stats;
    weir_get_stats(s->engine, &stats);
    metrics_steps(s->metrics, &stats);
    if (s->api)
        s->api->ready(s->api_state);
}

static void terminate(void *arg) {
    struct server *s = arg;
    if (!s->engine) {
        /* The loading thread cannot be stopped half way, and owns nothing that outlives us. */
        log_line(LOG_INFO, "stopped while loading");
        _exit(0);
    }
    log_line(LOG_INFO, "draining: %zu requests may run for up to %.0f s", http_in_flight(s->http),
             s->config->drain_seconds);
    http_drain(s->http, s->config->drain_seconds);
}

static void answered(void *arg, const char *method, const char *handler, int status,
                     double seconds) {
    metrics_http(arg, method, handler, status, seconds);
}

static weir_status open_server(struct server *s, weir_error *err) {
    weir_status status = choose_names(s, err);
    if (status != WEIR_OK)
        return status;
    s->created = clock_unix();
    s->metrics = metrics_open(s->created);
    if (!s->metrics)
        return weir_fail(err, WEIR_NO_MEMORY, "serve", "no memory");
    if (s->config->turn_replay_bytes > 0) {
        s->turns = turns_open(s->config->turn_replay_bytes);
        if (!s->turns)
            return weir_fail(err, WEIR_NO_MEMORY, "serve", "no memory");
    }
    status = http_open(s->config, &s->http, err);
    if (status != WEIR_OK)
        return status;
    http_on_answer(s->http, answered, s->metrics);
    http_on_signal(s->http, terminate, s);
    http_on_wake(s->http, woken, s);
    admin_routes(s, s->http);
    page_routes(s->http);
    http_timer_start(s->http, LISTEN_SECONDS, listen_while_loading, s);
    if (pthread_create(&s->loader, NULL, load, s) != 0)
        return weir_fail(err, WEIR_NO_MEMORY, "serve", "cannot start a thread");
    s->loader_runs = true;
    return WEIR_OK;
}

static void close_server(struct server *s) {
    if (s->http)
        http_shut(s->http);
    if (s->api_state)
        s->api->close(s->api_state);
    if (s->loaded_engine)
        weir_close(s->loaded_engine);
    if (s->http)
        http_close(s->http);
    turns_close(s->turns);
    if (s->metrics)
        metrics_close(s->metrics);
    free(s->own_name);
    free(s);
}

int weir_serve_run_with(const struct serve_config *config, const struct serve_api *api,
                        weir_error *err) {
    struct server *s = calloc(1, sizeof *s);
    if (!s) {
        weir_fail(err, WEIR_NO_MEMORY, "serve", "no memory");
        return 1;
    }
    s->config = config;
    s->api = api;
    weir_status status = open_server(s, err);
    if (status == WEIR_OK) {
        http_run(s->http);
        status = s->load_status;
        if (status != WEIR_OK && err)
            *err = s->load_error;
    }
    close_server(s);
    return status == WEIR_OK ? 0 : 1;
}

int weir_serve_run(const struct serve_config *config, weir_error *err) {
    return weir_serve_run_with(config, &serve_api_openai, err);
}
