/* api_job.h: a request whose body is read and worked on before anything is answered: at once when
 * it is small, on a worker thread when it is big. First member of an endpoint's own record. */
#ifndef WEIR_SERVE_API_JOB_H
#define WEIR_SERVE_API_JOB_H

#include "serve/api_error.h"
#include "serve/api_serve.h"

struct api_job {
    struct api *api;
    struct http_reply *reply; /* NULL: the client is gone */
    char *body;
    size_t bytes;
    struct api_error error;
    bool ok;
    /* The cache salt of a request that names none; NULL: none. From the API key, for servers that
     * keep their clients' prompts apart by default. */
    char *key_salt;
    /* Any thread; must not touch the reply. Returns false with `error` filled. */
    bool (*work)(struct api_job *job);
    /* Loop thread, only with ok and a reply: answers, or goes on and keeps the record. */
    void (*done)(struct api_job *job);
    void (*free)(struct api_job *job);
};

/* Takes the body over and starts; `job` is zeroed but for work, done and free. A failed job is
 * answered with its error and freed; so is one whose client has gone. */
void api_job_start(struct api_job *job, struct api *api, struct http_request *q,
                   struct http_reply *r);
/* Answers with the error. */
void api_reply_error(struct http_reply *r, const struct api_error *e);

#endif
