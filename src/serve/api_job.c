/* api_job.c: see api_job.h. Called by the handlers of all endpoints with a body.
 * Invariant that bites: while a worker has the job, the loop thread touches only `reply`. A job
 * whose client has gone may come to job_done without having been worked on. */
#include "serve/api_job.h"

#include "base/error.h"

void api_reply_error(struct http_reply *r, const struct api_error *e) {
    http_reply_error(r, e->status, e->param[0] ? e->param : NULL, "%s", e->message);
}

static void make_key_salt(struct api_job *job, const struct http_request *q) {
    if (!q->key_digest || !server_config(job->api->server)->salt_by_key)
        return;
    job->key_salt = malloc(65);
    WEIR_ASSERT(job->key_salt);
    for (size_t i = 0; i < 32; i++)
        snprintf(job->key_salt + 2 * i, 3, "%02x", q->key_digest[i]);
}

static void job_work(void *arg) {
    struct api_job *job = arg;
    job->ok = job->work(job);
    free(job->body);
    job->body = NULL;
}

static void job_done(void *arg) {
    struct api_job *job = arg;
    if (job->reply && job->ok) {
        job->done(job);
        return;
    }
    if (job->reply)
        api_reply_error(job->reply, &job->error);
    free(job->body);
    job->free(job);
}

static void job_closed(void *arg) {
    struct api_job *job = arg;
    job->reply = NULL;
}

void api_job_start(struct api_job *job, struct api *api, struct http_request *q,
                   struct http_reply *r) {
    job->api = api;
    job->reply = r;
    make_key_salt(job, q);
    job->body = http_take_body(q, &job->bytes);
    if (!job->body) {
        http_reply_error(r, 500, NULL, "out of memory");
        job->free(job);
        return;
    }
    http_on_closed(r, job_closed, job);
    if (job->bytes <= HTTP_WORK_BYTES) {
        job_work(job);
        job_done(job);
    } else if (!http_work(r, job_work, job_done, job)) {
        http_reply_error(r, 503, NULL, "too many large requests at once");
        free(job->body);
        job->free(job);
    }
}
