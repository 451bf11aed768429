/* tokenize_handler.c: POST /tokenize and /detokenize, also below /v1.
 * Called by the transport. Invariant that bites: the ids are those that the generation endpoints
 * would feed, so both go through the same parsers and the same renderer. */
#include "serve/api_job.h"
#include "serve/chat_render.h"
#include "serve/json_read.h"
#include "serve/json_write.h"
#include "text/utf8.h"

struct tokenize_job {
    struct api_job job;
    json_t *body;
    struct chat_request chat;
    const char *model;
    struct ids ids;
    struct text text, out; /* out: the reply */
    bool strings;
};

static struct tokenize_job *tokenize_of(struct api_job *job) {
    return (struct tokenize_job *)job;
}

static void tokenize_free(struct api_job *job) {
    struct tokenize_job *t = tokenize_of(job);
    json_decref(t->body);
    chat_request_free(&t->chat);
    ids_free(&t->ids);
    text_free(&t->text);
    text_free(&t->out);
    free(job->key_salt);
    free(t);
}

static bool tokenize_chat(struct tokenize_job *t) {
    struct api_job *job = &t->job;
    const struct api *api = job->api;
    if (!api->chat)
        return api_fail(&job->error, 501, "messages",
                        "messages: chat is not supported for this model: %s: %s",
                        api->no_chat.where, api->no_chat.message);
    return chat_request_parse(job->body, job->bytes, CHAT_FOR_RENDERING, &api->limits,
                              chat_can_think(api->chat), &t->chat, &job->error) &&
           chat_request_render(api, &t->chat, job->key_salt, &t->ids, NULL, NULL, &job->error);
}

static void write_tokenized(struct tokenize_job *t) {
    const struct api *api = t->job.api;
    struct text *out = &t->out;
    text_puts(out, "{\"count\":");
    json_put_int(out, (int64_t)t->ids.n);
    text_puts(out, ",\"max_model_len\":");
    json_put_int(out, api->limits.max_model_len);
    text_puts(out, ",\"tokens\":");
    json_put_ids(out, t->ids.data, t->ids.n);
    text_puts(out, ",\"token_strs\":");
    if (t->strings) {
        text_puts(out, "[");
        for (size_t i = 0; i < t->ids.n; i++) {
            size_t n;
            const char *s = tokenizer_piece(api->tokenizer, t->ids.data[i], &n);
            if (i)
                text_puts(out, ",");
            json_put_string(out, s, n);
        }
        text_puts(out, "]");
    } else {
        text_puts(out, "null");
    }
    text_puts(out, "}");
}

static bool tokenize_work(struct api_job *job) {
    struct tokenize_job *t = tokenize_of(job);
    const struct api *api = job->api;
    t->body = json_read_object(job->body, job->bytes, NULL, &job->error);
    if (!t->body)
        return false;
    struct api_fields f = {t->body, "", &job->error};
    const char *prompt = NULL;
    size_t bytes = 0;
    bool special = false, add_special = true;
    if (!api_string(&f, "model", &t->model, NULL) || !api_string(&f, "prompt", &prompt, &bytes) ||
        !api_bool(&f, "return_token_strs", &t->strings) ||
        !api_bool(&f, "add_special_tokens", &add_special) ||
        !api_bool(&f, "parse_special", &special))
        return false;
    bool chat = api_get(&f, "messages") != NULL;
    if (chat == (prompt != NULL))
        return api_fail(&job->error, 400, chat ? "messages" : "prompt",
                        "exactly one of prompt and messages must be given");
    if (!api_model_check(api, t->model, &job->error) || (chat && !tokenize_chat(t)))
        return false;
    if (prompt && special)
        tokenizer_encode_special(api->tokenizer, prompt, bytes, &t->ids);
    else if (prompt)
        tokenizer_encode(api->tokenizer, prompt, bytes, &t->ids);
    write_tokenized(t);
    return true;
}

/* Loop thread: the text was written where the ids were made. */
static void reply_out(struct api_job *job) {
    struct tokenize_job *t = tokenize_of(job);
    http_reply_json(job->reply, 200, t->out.data, t->out.n);
    tokenize_free(job);
}

static bool detokenize_work(struct api_job *job) {
    struct tokenize_job *t = tokenize_of(job);
    const struct api *api = job->api;
    t->body = json_read_object(job->body, job->bytes, NULL, &job->error);
    if (!t->body)
        return false;
    struct api_fields f = {t->body, "", &job->error};
    const json_t *tokens = api_get(&f, "tokens");
    if (!api_string(&f, "model", &t->model, NULL))
        return false;
    if (!tokens)
        return api_fail(&job->error, 400, "tokens", "tokens: an array of token ids is required");
    if (!api_model_check(api, t->model, &job->error) ||
        !api_value_ids(tokens, "tokens", api->limits.vocab, SIZE_MAX, &t->ids, &job->error))
        return false;
    struct text bytes = {0};
    struct utf8_stream stream = {{0}, 0};
    tokenizer_decode(api->tokenizer, t->ids.data, t->ids.n, false, &bytes);
    if (bytes.n)
        utf8_push(&stream, bytes.data, bytes.n, &t->text);
    utf8_finish(&stream, &t->text);
    text_free(&bytes);
    text_puts(&t->out, "{\"prompt\":");
    json_put_string(&t->out, t->text.data ? t->text.data : "", t->text.n);
    text_puts(&t->out, "}");
    return true;
}

static void start(struct api *api, struct http_request *q, struct http_reply *r,
                  bool (*work)(struct api_job *)) {
    struct tokenize_job *t = calloc(1, sizeof *t);
    WEIR_ASSERT(t);
    t->job.work = work;
    t->job.done = reply_out;
    t->job.free = tokenize_free;
    api_job_start(&t->job, api, q, r);
}

static void handle_tokenize(void *arg, struct http_request *q, struct http_reply *r) {
    start(arg, q, r, tokenize_work);
}

static void handle_detokenize(void *arg, struct http_request *q, struct http_reply *r) {
    start(arg, q, r, detokenize_work);
}

void tokenize_routes(struct api *api, struct http *h) {
    static const struct {
        const char *path;
        http_handler *handle;
    } routes[] = {
        {"/tokenize", handle_tokenize},
        {"/v1/tokenize", handle_tokenize},
        {"/detokenize", handle_detokenize},
        {"/v1/detokenize", handle_detokenize},
    };
    for (size_t i = 0; i < sizeof routes / sizeof *routes; i++) {
        struct http_route route = {.method = HTTP_POST,
                                   .path = routes[i].path,
                                   .access = HTTP_KEY,
                                   .json_body = true,
                                   .admits = true,
                                   .handle = routes[i].handle,
                                   .arg = api};
        http_route(h, &route);
    }
}
