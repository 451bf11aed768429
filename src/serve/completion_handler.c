/* completion_handler.c: POST /v1/completions and its render endpoint.
 * Called by the transport. Invariant that bites: an echoed prompt is the text of the ids that were
 * fed, so that its offsets and the logprobs' tokens agree. */
#include "serve/api_run.h"
#include "serve/chat_render.h"
#include "serve/json_write.h"
#include "text/utf8.h"

void rendered_write(struct text *out, const struct text *prompt, const int32_t *ids, size_t n) {
    text_puts(out, "{\"count\":");
    json_put_int(out, (int64_t)n);
    text_puts(out, ",\"prompt\":");
    json_put_string(out, prompt->data ? prompt->data : "", prompt->n);
    text_puts(out, ",\"prompt_token_ids\":");
    json_put_ids(out, ids, n);
    text_puts(out, "}");
}

static void decode(const struct tokenizer *t, const int32_t *ids, size_t n, bool skip_special,
                   struct text *out) {
    struct text bytes = {0};
    struct utf8_stream stream = {{0}, 0};
    tokenizer_decode(t, ids, n, skip_special, &bytes);
    if (bytes.n)
        utf8_push(&stream, bytes.data, bytes.n, out);
    utf8_finish(&stream, out);
    text_free(&bytes);
}

static bool prepare(struct api_job *job) {
    struct api_run *run = (struct api_run *)job;
    const struct api *api = job->api;
    struct completion_request *c = &run->completion;
    if (!completion_request_parse(job->body, job->bytes, &api->limits, c, &job->error))
        return false;
    run->sampling = &c->sampling;
    run->n_prompts = c->n_prompts;
    run->prompts = calloc(run->n_prompts, sizeof *run->prompts);
    WEIR_ASSERT(run->prompts);
    for (size_t i = 0; i < run->n_prompts; i++) {
        struct api_prompt *p = &run->prompts[i];
        p->ids = completion_prompt(c, i, &p->n);
        struct api_path path = c->several ? api_path("prompt.%zu", i) : api_path("prompt");
        /* A default of max_tokens is cut to what the longest prompt leaves. */
        if (!api_length_check(run->sampling, p->n, path.text, &api->limits, &job->error))
            return false;
        if (c->echo)
            decode(api->tokenizer, p->ids, p->n, run->sampling->skip_special, &p->echo);
    }
    run->envelope.logprobs = c->logprobs >= 0;
    run->envelope.echo = c->echo;
    run->envelope.no_output = c->no_output;
    completion_request_drop_body(c);
    return true;
}

static void submit(struct api_job *job) {
    api_run_submit((struct api_run *)job);
}

static void handle_completion(void *arg, struct http_request *q, struct http_reply *r) {
    struct api_run *run = api_run_new(prepare);
    run->job.done = submit;
    api_job_start(&run->job, arg, q, r);
}

/* ---- render ---- */

struct render_job {
    struct api_job job;
    struct completion_request request;
    struct text out; /* the reply, written where the prompts were read */
};

static bool render(struct api_job *job) {
    struct render_job *r = (struct render_job *)job;
    if (!completion_request_parse(job->body, job->bytes, &job->api->limits, &r->request,
                                  &job->error) ||
        !api_model_check(job->api, r->request.model, &job->error))
        return false;
    struct text prompt = {0};
    text_puts(&r->out, "{\"prompts\":[");
    for (size_t i = 0; i < r->request.n_prompts; i++) {
        size_t n;
        const int32_t *ids = completion_prompt(&r->request, i, &n);
        text_clear(&prompt);
        decode(job->api->tokenizer, ids, n, false, &prompt);
        if (i)
            text_puts(&r->out, ",");
        rendered_write(&r->out, &prompt, ids, n);
    }
    text_puts(&r->out, "]}");
    text_free(&prompt);
    return true;
}

static void render_free(struct api_job *job) {
    struct render_job *r = (struct render_job *)job;
    completion_request_free(&r->request);
    text_free(&r->out);
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

void completion_routes(struct api *api, struct http *h) {
    struct http_route route = {.method = HTTP_POST,
                               .path = "/v1/completions",
                               .access = HTTP_KEY,
                               .json_body = true,
                               .admits = true,
                               .handle = handle_completion,
                               .arg = api};
    http_route(h, &route);
    route.path = "/v1/completions/render";
    route.handle = handle_render;
    http_route(h, &route);
}
