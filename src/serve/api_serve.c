/* api_serve.c: opens the text side of a model for the server and hands out its routes.
 * Called by server.c through serve_api_openai. Invariant that bites: everything here is opened
 * before the server is ready, so that no request can meet a half-loaded model. */
#include "serve/api_serve.h"

#include "base/log.h"
#include "serve/api_run.h"

#include <string.h>

static void api_close(void *arg) {
    struct api *api = arg;
    WEIR_ASSERT(!api->runs);
    if (api->chat)
        chat_close(api->chat);
    if (api->tokenizer)
        tokenizer_close(api->tokenizer);
    free(api);
}

static weir_status open_chat(struct api *api, weir_error *err) {
    bool k3 = strcmp(api->info.family, "kimi_k3") == 0;
    weir_status st =
        chat_open(k3 ? CHAT_K3 : CHAT_KIMI_LINEAR, api->tokenizer, &api->chat, &api->no_chat);
    if (st != WEIR_UNSUPPORTED) {
        if (st != WEIR_OK)
            *err = api->no_chat;
        return st;
    }
    /* A model without chat markers still completes text. */
    log_line(LOG_WARN, "chat is not offered: %s: %s", api->no_chat.where, api->no_chat.message);
    return WEIR_OK;
}

static weir_status api_open(struct server *s, void **out, weir_error *err) {
    struct api *api = calloc(1, sizeof *api);
    if (!api)
        return weir_fail(err, WEIR_NO_MEMORY, "api", "out of memory");
    const struct serve_config *config = server_config(s);
    api->server = s;
    api->engine = server_engine(s);
    weir_get_info(api->engine, &api->info);
    weir_status st = tokenizer_open(config->model_dir, api->info.vocab_size, &api->tokenizer, err);
    if (st == WEIR_OK)
        st = open_chat(api, err);
    if (st == WEIR_OK && api->chat && server_turns(s)) {
        api->turns = server_turns(s);
        turns_realm(api->tokenizer, chat_can_think(api->chat), api->realm);
    }
    api->limits = (struct api_limits){
        .vocab = api->info.vocab_size,
        .max_model_len = api->info.max_model_len,
        .max_n = config->max_n,
        .max_queue = config->engine.max_queue ? config->engine.max_queue : 4096,
        .priority_policy = config->engine.policy == WEIR_PRIORITY,
        .null_column = config->engine.compute == WEIR_COMPUTE_NULL,
        .tokenizer = api->tokenizer,
    };
    if (st == WEIR_OK)
        st = api_read_generation_config(config->model_dir, &api->limits, err);
    if (st != WEIR_OK) {
        api_close(api);
        return st;
    }
    *out = api;
    return WEIR_OK;
}

static void api_routes(void *arg, struct http *h) {
    chat_routes(arg, h);
    completion_routes(arg, h);
    tokenize_routes(arg, h);
}

static void api_ready(void *arg) {
    api_runs_advance(arg);
}

const struct serve_api serve_api_openai = {
    .open = api_open,
    .routes = api_routes,
    .ready = api_ready,
    .close = api_close,
};

bool api_model_check(const struct api *api, const char *name, struct api_error *e) {
    if (server_serves(api->server, name))
        return true;
    struct api_shown shown = api_show_text(name, strlen(name));
    struct text served = {0};
    for (size_t i = 0; server_name(api->server, i); i++) {
        const char *s = server_name(api->server, i);
        struct api_shown one = api_show_text(s, strlen(s));
        if (i)
            text_puts(&served, ", ");
        text_puts(&served, one.text);
    }
    api_fail(e, 404, "model", "model: %s is not served here, it must be %s%s", shown.text,
             server_name(api->server, 1) ? "one of " : "", served.data);
    text_free(&served);
    return false;
}
