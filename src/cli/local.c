/* local.c: one user's engine. Invariant that bites: on_progress is called on the engine thread and
 * must not block, so it only sets a flag under a lock that is never held for long. */
#include "cli/local.h"

#include <errno.h>
#include <pthread.h>
#include <string.h>
#include <time.h>

struct local {
    struct model m;
    struct tokenizer *tokenizer;
    struct chat *chat;
    weir_engine *engine;
    pthread_mutex_t lock;
    pthread_cond_t news;
    bool is_new;
};

static void on_progress(void *arg) {
    struct local *l = arg;
    pthread_mutex_lock(&l->lock);
    l->is_new = true;
    pthread_cond_signal(&l->news);
    pthread_mutex_unlock(&l->lock);
}

weir_status local_open(const struct engine_args *args, struct local **out, weir_error *why,
                       weir_error *err) {
    struct local *l = calloc(1, sizeof *l);
    if (!l)
        return weir_fail(err, WEIR_NO_MEMORY, args->model, "no memory");
    pthread_condattr_t clock;
    pthread_condattr_init(&clock);
    pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
    pthread_mutex_init(&l->lock, NULL);
    pthread_cond_init(&l->news, &clock);
    pthread_condattr_destroy(&clock);
    weir_status status = model_open(args->model, &l->m, err);
    if (!status && !tokenizer_open(args->model, l->m.vocab, &l->tokenizer, why))
        chat_open(l->m.family == FAMILY_KIMI_LINEAR ? CHAT_KIMI_LINEAR : CHAT_K3, l->tokenizer,
                  &l->chat, why);
    if (!status)
        status = engine_args_open(args, on_progress, l, &l->engine, err);
    if (status) {
        local_close(l);
        return status;
    }
    *out = l;
    return WEIR_OK;
}

void local_close(struct local *l) {
    if (!l)
        return;
    if (l->engine)
        weir_close(l->engine);
    chat_close(l->chat);
    tokenizer_close(l->tokenizer);
    pthread_cond_destroy(&l->news);
    pthread_mutex_destroy(&l->lock);
    free(l);
}

const struct model *local_model(const struct local *l) {
    return &l->m;
}

const struct tokenizer *local_tokenizer(const struct local *l) {
    return l->tokenizer;
}

const struct chat *local_chat(const struct local *l) {
    return l->chat;
}

weir_engine *local_engine(const struct local *l) {
    return l->engine;
}

/* Waits for news, 20 ms at most: a signal handler cannot wake a condition variable. */
static void wait_for_news(struct local *l) {
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += 20000000;
    if (until.tv_nsec >= 1000000000) {
        until.tv_nsec -= 1000000000;
        until.tv_sec++;
    }
    pthread_mutex_lock(&l->lock);
    while (!l->is_new && pthread_cond_timedwait(&l->news, &l->lock, &until) == 0)
        ;
    l->is_new = false;
    pthread_mutex_unlock(&l->lock);
}

weir_status local_run(struct local *l, const int32_t *ids, size_t n, const weir_params *p,
                      local_sink *sink, void *arg, const volatile sig_atomic_t *stop,
                      weir_progress *progress, weir_error *err) {
    weir_request *r;
    weir_status status = weir_submit(l->engine, ids, n, p, NULL, &r, err);
    if (status)
        return status;
    weir_token token[16];
    bool ended = false;
    do {
        size_t got = weir_poll(r, token, 16, progress);
        if (got && !ended && !sink(arg, token, got))
            ended = true;
        if (ended || (stop && *stop)) {
            weir_cancel(r);
            /* What was generated in between is not wanted; the end is. */
            ended = true;
        }
        if (got == 0 && progress->finish == WEIR_RUNNING)
            wait_for_news(l);
    } while (progress->finish == WEIR_RUNNING);
    weir_error failure;
    if (progress->finish == WEIR_FINISH_ERROR && weir_failure(r, &failure))
        status = weir_fail(err, failure.code, failure.where, "%s", failure.message);
    else if (progress->finish == WEIR_FINISH_ERROR)
        status = weir_fail(err, progress->error, "generation",
                           progress->error == WEIR_NO_TOKEN
                               ? "the rules leave no token to choose, or the logits are not finite"
                               : "failed in the engine");
    weir_release(r);
    return status;
}
