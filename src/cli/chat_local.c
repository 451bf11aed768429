/* chat_local.c: `weir chat --model`: the model answers in this process. Requests pass the same
 * checks as the server's. */
#include "base/rng.h"
#include "cli/chat_backend.h"
#include "cli/local.h"
#include "serve/chat_request.h"
#include "text/stop.h"

#include <string.h>

struct local_backend {
    struct chat_backend base;
    struct local *local;
    struct api_limits limits;
};

struct turn {
    struct chat_gather gather;
    struct chat_parser *parser;
    struct stop_matcher *stop;
    bool stopped;
};

static void on_event(void *arg, const struct chat_event *e) {
    struct turn *t = arg;
    switch (e->kind) {
    case CHAT_REASONING: chat_gather_reasoning(&t->gather, e->text, e->n); break;
    case CHAT_CONTENT: {
        struct text shown = {0};
        if (!t->stopped && stop_push(t->stop, e->text, e->n, &shown) >= 0)
            t->stopped = true;
        chat_gather_content(&t->gather, shown.data, shown.n);
        text_free(&shown);
        break;
    }
    case CHAT_CALL_BEGIN: chat_gather_call(&t->gather, e->call, e->id, e->name, NULL, 0); break;
    case CHAT_CALL_ARGS: chat_gather_call(&t->gather, e->call, NULL, NULL, e->text, e->n); break;
    case CHAT_CALL_END: break;
    }
}

static bool on_tokens(void *arg, const weir_token *token, size_t n) {
    struct turn *t = arg;
    for (size_t i = 0; i < n && !t->stopped; i++)
        chat_parser_feed(t->parser, &token[i].id, 1);
    return !t->stopped;
}

static void name_finish(struct chat_answer *a, const struct turn *t, const weir_progress *p) {
    const char *name = "stop";
    if (p->finish == WEIR_FINISH_LENGTH)
        name = "length";
    else if (p->finish == WEIR_FINISH_ABORT && !t->stopped)
        name = "stopped";
    else if (chat_parser_calls(t->parser))
        name = "tool_calls";
    snprintf(a->finish, sizeof a->finish, "%s", name);
    a->prompt_tokens = p->prompt_tokens;
    a->cached_tokens = p->cached_tokens;
    a->generated_tokens = p->generated_tokens;
}

static weir_status generate(struct local_backend *b, struct chat_request *q,
                            const struct ids *prompt, struct turn *t,
                            const volatile sig_atomic_t *stop, struct chat_answer *out,
                            weir_error *err) {
    struct api_error e = {0};
    if (!api_length_check(&q->sampling, prompt->n, "messages", &b->limits, &e))
        return weir_fail(err, WEIR_BAD_VALUE, "request", "%s", e.message);
    t->parser = chat_parser_new(local_chat(b->local),
                                (struct chat_parser_options){.thinking = q->options.thinking,
                                                             .tools = q->parse_calls,
                                                             .one_call = q->one_call,
                                                             .id_seed = rng_entropy()},
                                on_event, t);
    t->stop = stop_new(q->sampling.stops, q->sampling.stop_bytes, q->sampling.n_stops,
                       q->sampling.include_stop);
    if (!t->parser || !t->stop)
        return weir_fail(err, WEIR_NO_MEMORY, "chat", "no memory");
    weir_progress progress = {0};
    weir_status status = local_run(b->local, prompt->data, prompt->n, &q->sampling.params,
                                   on_tokens, t, stop, &progress, err);
    chat_parser_finish(t->parser, progress.finish != WEIR_FINISH_STOP);
    if (!t->stopped) {
        struct text rest = {0};
        stop_finish(t->stop, &rest);
        chat_gather_content(&t->gather, rest.data, rest.n);
        text_free(&rest);
    }
    name_finish(out, t, &progress);
    return status;
}

static weir_status ask(struct chat_backend *base, const json_t *request,
                       const struct chat_listener *listener, const volatile sig_atomic_t *stop,
                       struct chat_answer *out, weir_error *err) {
    struct local_backend *b = (struct local_backend *)base;
    struct turn t = {0};
    chat_gather_begin(&t.gather, listener, out);
    struct chat_request q = {0};
    struct api_error e = {0};
    struct ids prompt = {0};
    char *body = json_dumps(request, JSON_COMPACT);
    weir_status status = WEIR_OK;
    if (!body)
        status = weir_fail(err, WEIR_BAD_VALUE, "request", "is not UTF-8 text");
    else if (!chat_request_parse(body, strlen(body), CHAT_FOR_GENERATION, &b->limits,
                                 chat_can_think(local_chat(b->local)), &q, &e))
        status = weir_fail(err, WEIR_BAD_VALUE, "request", "%s", e.message);
    if (!status)
        status = chat_render(local_chat(b->local), q.messages, &q.options, &prompt, NULL, err);
    if (!status) {
        int32_t ends[8];
        api_sampling_add_stops(&q.sampling, ends, chat_stop_ids(local_chat(b->local), ends, 8));
        status = generate(b, &q, &prompt, &t, stop, out, err);
    }
    chat_gather_end(&t.gather);
    chat_parser_free(t.parser);
    stop_free(t.stop);
    ids_free(&prompt);
    chat_request_free(&q);
    free(body);
    return status;
}

static void close_backend(struct chat_backend *base) {
    struct local_backend *b = (struct local_backend *)base;
    local_close(b->local);
    free(b->base.name);
    free(b);
}

weir_status chat_backend_local(const struct engine_args *args, struct chat_backend **out,
                               weir_error *err) {
    struct local_backend *b = calloc(1, sizeof *b);
    if (!b)
        return weir_fail(err, WEIR_NO_MEMORY, args->model, "no memory");
    b->base =
        (struct chat_backend){.name = strdup(args->model), .ask = ask, .close = close_backend};
    weir_error why = {0};
    weir_status status = local_open(args, &b->local, &why, err);
    if (!status && !local_chat(b->local)) {
        if (err)
            *err = why;
        status = why.code;
    }
    if (!status) {
        weir_info info;
        weir_get_info(local_engine(b->local), &info);
        b->limits = (struct api_limits){.vocab = info.vocab_size,
                                        .max_model_len = info.max_model_len,
                                        .max_n = 1,
                                        .temperature = 1,
                                        .top_p = 1,
                                        .tokenizer = local_tokenizer(b->local)};
        status = api_read_generation_config(args->model, &b->limits, err);
    }
    if (status) {
        close_backend(&b->base);
        return status;
    }
    *out = &b->base;
    return WEIR_OK;
}
