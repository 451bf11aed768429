/* server.h: `weir serve` as one call: engine, API, admin endpoints and transport put together.
 * Called by the command line. */
#ifndef WEIR_SERVE_SERVER_H
#define WEIR_SERVE_SERVER_H

#include "serve/http.h"
#include "weir.h"

#include <stdio.h>

struct metrics;
struct server;
struct turns;

/* Strings are borrowed and must outlive the run. Start from serve_config_default(). */
struct serve_config {
    const char *model_dir;
    weir_options engine; /* on_progress is set by the server */

    const char *const *served_names; /* the first answers for a missing "model"; none: the last
                                        component of model_dir */
    size_t n_served_names;

    const char *host;               /* "127.0.0.1" */
    uint16_t port;                  /* 8000; 0: any free one, see the ready line */
    const char *tls_cert, *tls_key; /* PEM files; both or none */

    const char *const *api_keys; /* none: no authentication */
    size_t n_api_keys;
    const char *api_key_file;        /* one key a line, '#' starts a comment line */
    const char *admin_key;           /* NULL: admin endpoints do not exist */
    bool open_metrics;               /* /metrics without a key */
    const char *const *cors_origins; /* "*" allows every origin; none: no CORS header */
    size_t n_cors_origins;

    double header_seconds;  /* 30: a request's header must be here within it */
    double body_seconds;    /* 60: every further 64 KiB of body must be here within it */
    double idle_seconds;    /* 300: a connection without a request is closed after it */
    double stall_seconds;   /* 300: a reader that takes nothing for so long is dropped */
    double drain_seconds;   /* 30: after SIGTERM running requests may go on for so long */
    double ping_seconds;    /* 0: no ": keep-alive" comments in quiet streams */
    double stuck_seconds;   /* 600: /health is 503 when there is work and no step ended for so long;
                               must be longer than the longest honest step, a full prefill step at a
                               long context */
    double request_seconds; /* 0: no time limit of a request */
    size_t max_body_bytes;  /* 64 MiB */
    size_t max_buffered_bytes;   /* 1 GiB: bodies above 64 KiB of all connections, then 503 */
    uint32_t max_connections;    /* 16384 */
    uint32_t workers;            /* 2 threads for big bodies */
    uint32_t max_waiting_bodies; /* 1024: big bodies that no worker has begun, then 503 */
    bool access_log;             /* one line a request on standard error */

    uint32_t max_n;   /* 128: cap of the field n */
    bool salt_by_key; /* the cache salt defaults to one derived from the API key */
    /* 64 MiB: generated turns kept to be replayed exactly when they come back as messages; 0: none.
     * turns_path: they are read from this file at the start and saved to it every minute and at the
     * end; NULL: a file in the directory of the disk tier, or without one they end with the
     * process. */
    size_t turn_replay_bytes;
    const char *turns_path;
    bool moonshot_usage; /* usage.cached_tokens beside prompt_tokens_details */
};
struct serve_config serve_config_default(void);

/* Loads, listens, prints `ready: http://HOST:PORT` on standard output, serves until SIGTERM or
 * SIGINT, drains, and returns 0; a second signal ends the process at once. On failure before that
 * *err is filled and 1 returned. SIGPIPE is ignored from here on. */
int weir_serve_run(const struct serve_config *config, weir_error *err);

/* ---- for the endpoints ---- */

/* The API behind the server, so that the transport can be tested without an engine. `open` runs on
 * the loading thread after the engine is there; everything else on the loop thread. */
struct serve_api {
    weir_status (*open)(struct server *s, void **api, weir_error *err);
    void (*routes)(void *api, struct http *h); /* adds its routes */
    void (*ready)(void *api);                  /* the engine made progress: weir_ready() */
    void (*close)(void *api); /* every reply has ended, every job is done; the engine still lives */
};
int weir_serve_run_with(const struct serve_config *config, const struct serve_api *api,
                        weir_error *err);

const struct serve_config *server_config(const struct server *s);
weir_engine *server_engine(const struct server *s);
struct http *server_http(const struct server *s);
struct metrics *server_metrics(const struct server *s);
struct turns *server_turns(const struct server *s); /* NULL: none are kept */
/* True when `name` is a served name; NULL or "" stands for the first. */
bool server_serves(const struct server *s, const char *name);
/* The i-th served name, NULL behind the last. */
const char *server_name(const struct server *s, size_t i);
const char *server_default_name(const struct server *s);
int64_t server_created(const struct server *s); /* unix seconds of the start */

#endif
