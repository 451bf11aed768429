/* chat_handler.c: POST /v1/chat/completions and its render endpoint.
 * Called by the transport. Invariant that bites: parsing and rendering may run on a worker, so they
 * see only the read-only part of the API. */
#include "serve/api_run.h"
#include "serve/chat_render.h"

static bool no_chat(const struct api *api, struct api_error *e) {
    return api_fail(e, 501, NULL, "chat is not supported for this model: %s: %s",
                    api->no_chat.where, api->no_chat.message);
}

bool chat_request_render(const struct api *api, const struct chat_request *r, const char *key_salt,
                         struct ids *ids, struct text *text, struct turns_base *base,
                         struct api_error *e) {
    weir_error err = {0};
    struct chat_options options = r->options;
    struct turns_prompt prompt;
    const char *salt = r->sampling.params.cache_salt;
    if (api->turns) {
        turns_prompt_begin(&prompt, api->turns, api->realm, salt ? salt : key_salt);
        options.replay = turns_prompt_replay;
        options.replay_arg = &prompt;
    }
    weir_status s = chat_render(api->chat, r->messages, &options, ids, text, &err);
    if (api->turns)
        turns_prompt_end(&prompt, ids, s == WEIR_OK ? base : NULL);
    return s == WEIR_OK || api_fail_weir(e, NULL, &err);
}

static bool prepare(struct api_job *job) {
    struct api_run *run = (struct api_run *)job;
    const struct api *api = job->api;
    if (!api->chat)
        return no_chat(api, &job->error);
    if (!chat_request_parse(job->body, job->bytes, CHAT_FOR_GENERATION, &api->limits,
                            chat_can_think(api->chat), &run->chat, &job->error))
        return false;
    run->sampling = &run->chat.sampling;
    /* Who is not shown the reasoning cannot send it back. */
    run->records = api->turns && run->chat.include_reasoning;
    if (!chat_request_render(api, &run->chat, job->key_salt, &run->prompt_ids, NULL, &run->base,
                             &job->error))
        return false;
    struct api_prompts_size size = {.prompts = 1, .tokens = run->prompt_ids.n, .chat = true};
    if (!api_length_check(run->sampling, run->prompt_ids.n, "messages", &api->limits,
                          &job->error) ||
        !api_size_check(run->sampling, size, &api->limits, &job->error))
        return false;
    if (!run->sampling->params.ignore_eos) {
        int32_t stops[8];
        api_sampling_add_stops(run->sampling, stops, chat_stop_ids(api->chat, stops, 8));
    }
    run->n_prompts = 1;
    run->prompts = calloc(1, sizeof *run->prompts);
    WEIR_ASSERT(run->prompts);
    run->prompts[0] = (struct api_prompt){.ids = run->prompt_ids.data, .n = run->prompt_ids.n};
    run->envelope.chat = true;
    run->envelope.logprobs = run->chat.logprobs;
    run->envelope.hide_reasoning = !run->chat.include_reasoning;
    chat_request_drop_body(&run->chat);
    return true;
}

static void submit(struct api_job *job) {
    api_run_submit((struct api_run *)job);
}

static void handle_chat(void *arg, struct http_request *q, struct http_reply *r) {
    struct api_run *run = api_run_new(prepare);
    run->job.done = submit;
    api_job_start(&run->job, arg, q, r);
}

/* ---- render ---- */

struct render_job {
    struct api_job job;
    struct chat_request chat;
    struct ids ids;
    struct text text, out; /* out: the reply, written where the rendering was done */
};

static bool render(struct api_job *job) {
    struct render_job *r = (struct render_job *)job;
    const struct api *api = job->api;
    if (!api->chat)
        return no_chat(api, &job->error);
    if (!chat_request_parse(job->body, job->bytes, CHAT_FOR_RENDERING, &api->limits,
                            chat_can_think(api->chat), &r->chat, &job->error) ||
        !api_model_check(api, r->chat.model, &job->error) ||
        !chat_request_render(api, &r->chat, job->key_salt, &r->ids, &r->text, NULL, &job->error))
        return false;
    rendered_write(&r->out, &r->text, r->ids.data, r->ids.n);
    return true;
}

static void render_free(struct api_job *job) {
    struct render_job *r = (struct render_job *)job;
    chat_request_free(&r->chat);
    ids_free(&r->ids);
    text_free(&r->text);
    text_free(&r->out);
    free(job->key_salt);
    free(r);
}

static void render_done(struct api_job *job) {
    struct render_job *r = (struct render_job *)job;
    http_reply_json(job->reply, 200, r->out.data, r->out.n);
    render_free(job);
}

static void handle_render(void *arg, struct http_request *q, struct http_reply *r) {
    struct render_job *job = calloc(1, sizeof *job);
    WEIR_ASSERT(job);
    job->job.work = render;
    job->job.done = render_done;
    job->job.free = render_free;
    api_job_start(&job->job, arg, q, r);
}

void chat_routes(struct api *api, struct http *h) {
    struct http_route route = {.method = HTTP_POST,
                               .path = "/v1/chat/completions",
                               .access = HTTP_KEY,
                               .json_body = true,
                               .admits = true,
                               .handle = handle_chat,
                               .arg = api};
    http_route(h, &route);
    route.path = "/v1/chat/completions/render";
    route.handle = handle_render;
    http_route(h, &route);
}
