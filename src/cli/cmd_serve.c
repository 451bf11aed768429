/* cmd_serve.c: `weir serve`: its options, handed to serve/server.h. */
#include "cli/command.h"
#include "cli/engine_args.h"
#include "serve/server.h"

#include <string.h>

struct serve_args {
    struct engine_args engine;
    struct option_list served_names, api_keys, cors_origins;
    char *host, *tls_cert, *tls_key, *api_key_file, *admin_key;
    uint32_t port, max_connections, max_n, workers;
    bool open_metrics, access_log, salt_by_key, moonshot_usage;
    double header_seconds, body_seconds, idle_seconds, stall_seconds, drain_seconds, ping_seconds,
        stuck_seconds, request_seconds;
    uint64_t max_body_bytes, max_buffered_bytes, turn_replay_bytes;
};

#define AT(field) offsetof(struct serve_args, field)
#define SECONDS(NAME, FIELD, FALLBACK, HELP)                                                       \
    {                                                                                              \
        .name = NAME, .value = "S", .type = OPTION_REAL, .offset = AT(FIELD), .min = 0,            \
        .max = 1e9, .fallback = FALLBACK, .help = HELP                                             \
    }
#define FLAG(NAME, FIELD, HELP)                                                                    \
    { .name = NAME, .type = OPTION_FLAG, .offset = AT(FIELD), .help = HELP }

static const struct option_spec listen_options[] = {
    {.name = "host",
     .value = "H",
     .type = OPTION_TEXT,
     .min = 1,
     .offset = AT(host),
     .fallback = "127.0.0.1",
     .help = "Address to listen on; 0.0.0.0 or :: for every one."},
    {.name = "port",
     .value = "P",
     .type = OPTION_COUNT,
     .offset = AT(port),
     .min = 0,
     .max = 65535,
     .fallback = "8000",
     .help = "Port to listen on; 0: any free one, which the ready line names."},
    {.name = "served-model-name",
     .value = "S",
     .type = OPTION_LIST,
     .offset = AT(served_names),
     .help = "Name of the model in requests and answers, instead of its directory's; may be given "
             "several times, the first one answers."},
    {.name = "tls-cert",
     .value = "F",
     .type = OPTION_TEXT,
     .min = 1,
     .offset = AT(tls_cert),
     .help = "Certificate chain in PEM; with --tls-key the server speaks HTTPS."},
    {.name = "tls-key",
     .value = "F",
     .type = OPTION_TEXT,
     .min = 1,
     .offset = AT(tls_key),
     .help = "Its private key in PEM."},
};

static const struct option_spec access_options[] = {
    {.name = "api-key",
     .value = "K",
     .type = OPTION_LIST,
     .offset = AT(api_keys),
     .help = "Ask for this key in requests; may be given several times. A command line is visible "
             "to others on the machine: WEIR_API_KEY and --api-key-file are not."},
    {.name = "api-key-file",
     .value = "F",
     .type = OPTION_TEXT,
     .min = 1,
     .offset = AT(api_key_file),
     .help = "File with one key a line."},
    {.name = "admin-key",
     .value = "K",
     .type = OPTION_TEXT,
     .min = 1,
     .offset = AT(admin_key),
     .help = "Key of the admin endpoints, which do not exist without it."},
    FLAG("open-metrics", open_metrics, "Answer /metrics without a key."),
    {.name = "cors-origin",
     .value = "O",
     .type = OPTION_LIST,
     .offset = AT(cors_origins),
     .help = "Let pages of this origin call the server; * for every one. May be given several "
             "times."},
    FLAG("salt-by-key", salt_by_key, "Keep what one API key cached apart from other keys."),
};

static const struct option_spec limit_options[] = {
    SECONDS("header-timeout", header_seconds, "30", "Seconds a request's header may take."),
    SECONDS("body-timeout", body_seconds, "60", "Seconds each further 64 KiB of a body may take."),
    SECONDS("idle-timeout", idle_seconds, "300",
            "Seconds a connection without a request stays open."),
    SECONDS("stall-timeout", stall_seconds, "300",
            "Seconds a reader that takes nothing is waited for."),
    SECONDS("drain-timeout", drain_seconds, "30",
            "Seconds running requests may go on after SIGTERM."),
    SECONDS("keep-alive-comments", ping_seconds, "0",
            "Seconds of quiet after which a stream gets a comment line; 0: never."),
    SECONDS("stuck-timeout", stuck_seconds, "600",
            "Seconds without the end of a step, while there is work, after which /health is 503; "
            "must be longer than the longest step: on a slow machine, one of a long prompt."),
    SECONDS("request-timeout", request_seconds, "0",
            "Seconds a request may take in all; 0: any time."),
    {.name = "max-body-bytes",
     .value = "B",
     .type = OPTION_BYTES,
     .offset = AT(max_body_bytes),
     .fallback = "64MiB",
     .help = "Largest request body."},
    {.name = "max-buffered-bytes",
     .value = "B",
     .type = OPTION_BYTES,
     .offset = AT(max_buffered_bytes),
     .fallback = "1GiB",
     .help = "Bodies of all connections together."},
    {.name = "turn-replay-bytes",
     .value = "B",
     .type = OPTION_BYTES,
     .offset = AT(turn_replay_bytes),
     .fallback = "64MiB",
     .help = "Generated turns kept, so that one that comes back as a message becomes the very ids "
             "it was generated as and cached prefixes go on matching; 0: none."},
    {.name = "max-connections",
     .value = "N",
     .type = OPTION_COUNT,
     .offset = AT(max_connections),
     .min = 1,
     .max = 1048576,
     .fallback = "16384",
     .help = "Open connections at most."},
    {.name = "max-n",
     .value = "N",
     .type = OPTION_COUNT,
     .offset = AT(max_n),
     .min = 1,
     .max = 1024,
     .fallback = "128",
     .help = "Largest value of the request's field n."},
    {.name = "workers",
     .value = "N",
     .type = OPTION_COUNT,
     .offset = AT(workers),
     .min = 1,
     .max = 64,
     .fallback = "2",
     .help = "Threads that parse and tokenise large requests."},
};

static const struct option_spec answer_options[] = {
    FLAG("access-log", access_log, "Write one line a request to standard error."),
    FLAG("moonshot-usage", moonshot_usage, "Repeat cached_tokens at the top of usage."),
};

static int run_serve(void *record, weir_error *err) {
    const struct serve_args *a = record;
    if (!a->tls_cert != !a->tls_key) {
        weir_fail(err, WEIR_BAD_VALUE, a->tls_cert ? "--tls-cert" : "--tls-key",
                  "needs %s beside it", a->tls_cert ? "--tls-key" : "--tls-cert");
        return 2;
    }
    struct serve_config c = serve_config_default();
    c.model_dir = a->engine.model;
    c.engine = engine_args_options(&a->engine);
    c.served_names = (const char *const *)a->served_names.item;
    c.n_served_names = a->served_names.n;
    c.host = a->host;
    c.port = (uint16_t)a->port;
    c.tls_cert = a->tls_cert;
    c.tls_key = a->tls_key;
    c.api_keys = (const char *const *)a->api_keys.item;
    c.n_api_keys = a->api_keys.n;
    c.api_key_file = a->api_key_file;
    c.admin_key = a->admin_key;
    c.open_metrics = a->open_metrics;
    c.cors_origins = (const char *const *)a->cors_origins.item;
    c.n_cors_origins = a->cors_origins.n;
    c.header_seconds = a->header_seconds;
    c.body_seconds = a->body_seconds;
    c.idle_seconds = a->idle_seconds;
    c.stall_seconds = a->stall_seconds;
    c.drain_seconds = a->drain_seconds;
    c.ping_seconds = a->ping_seconds;
    c.stuck_seconds = a->stuck_seconds;
    c.request_seconds = a->request_seconds;
    c.max_body_bytes = a->max_body_bytes;
    c.max_buffered_bytes = a->max_buffered_bytes;
    c.turn_replay_bytes = a->turn_replay_bytes;
    c.max_connections = a->max_connections;
    c.workers = a->workers;
    c.access_log = a->access_log;
    c.max_n = a->max_n;
    c.salt_by_key = a->salt_by_key;
    c.moonshot_usage = a->moonshot_usage;
    int status = weir_serve_run(&c, err);
    return err->code ? command_exit_status(err) : status;
}

#define ROWS(list) list, sizeof list / sizeof list[0]

static const struct option_group serve_groups[] = {
    {"Model", &model_option, 1, AT(engine)},
    {"Listening", ROWS(listen_options), 0},
    {"Access", ROWS(access_options), 0},
    {"Engine", engine_options, N_ENGINE_OPTIONS, AT(engine)},
    {"Limits", ROWS(limit_options), 0},
    {"Answers", ROWS(answer_options), 0},
};

static const struct command_section serve_sections[] = {
    {"DESCRIPTION",
     "Loads a checkpoint and serves it over HTTP: the OpenAI API under /v1, a chat page and a live "
     "dashboard at /, metrics at /metrics. When it takes requests it prints one line on standard "
     "output:\n\n"
     "  ready: http://127.0.0.1:8000\n\n"
     "SIGTERM or SIGINT: no new requests, running ones go on for --drain-timeout, then it ends "
     "with 0. A second signal ends it at once.\n\n"
     "A checkpoint that is not as it must be is refused with one line before the port opens."},
    {"EXAMPLES", "  weir serve --model models/tiny-k3\n"
                 "  curl http://127.0.0.1:8000/v1/chat/completions \\\n"
                 "      -H 'Content-Type: application/json' \\\n"
                 "      -d '{\"messages\":[{\"role\":\"user\",\"content\":\"Hello!\"}]}'"},
};

const struct command command_serve = {
    .name = "serve",
    .synopsis = "--model DIR [--host H] [--port P] [OPTIONS]",
    .summary = "serve a checkpoint behind the OpenAI API",
    .options = {serve_groups, sizeof serve_groups / sizeof serve_groups[0], NULL, 0, false},
    .record_bytes = sizeof(struct serve_args),
    .section = serve_sections,
    .n_sections = sizeof serve_sections / sizeof serve_sections[0],
    .run = run_serve,
};
