/* http_work.c: what is not the loop's own work: worker threads for big bodies, wake-ups from the
 * engine, timers. One eventfd brings both finished jobs and wake-ups back to the loop; a job's
 * memory belongs to the worker while it runs and to the loop before and after.
 *
 * Invariant that bites: a client may go while its body waits here. Its bytes stay in the budget of
 * all bodies until the job is done, and the queue holds jobs of living replies only, at most
 * max_waiting_bodies: nobody can pile up work by sending and leaving. */
#include "serve/http_inside.h"
#include "serve/http_work.h"

#include "base/error.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

struct job {
    void (*work)(void *arg);
    void (*done)(void *arg);
    void *arg;
    struct http_reply *reply; /* loop thread: NULL once it has ended */
    size_t bytes;             /* loop thread: of the budget */
    struct job *next;
};

struct job_queue {
    struct job *first, **last;
};

struct workers {
    pthread_mutex_t lock;
    pthread_cond_t more;
    struct job_queue todo, finished;
    size_t waiting;   /* in todo */
    size_t open_jobs; /* loop thread: handed over and not done yet */
    bool stop;
    _Atomic bool wake_wanted;
    int fd;
    uint32_t n;
    pthread_t threads[];
};

static void put(struct job_queue *q, struct job *job) {
    job->next = NULL;
    *q->last = job;
    q->last = &job->next;
}

static struct job *take(struct job_queue *q) {
    struct job *job = q->first;
    if (job && !(q->first = job->next))
        q->last = &q->first;
    return job;
}

static void signal_loop(struct workers *w) {
    uint64_t one = 1;
    ssize_t written = write(w->fd, &one, sizeof one); /* a full counter wakes just as well */
    (void)written;
}

static void *worker(void *arg) {
    struct workers *w = arg;
    pthread_mutex_lock(&w->lock);
    for (;;) {
        struct job *job = take(&w->todo);
        if (!job) {
            if (w->stop)
                break;
            pthread_cond_wait(&w->more, &w->lock);
            continue;
        }
        w->waiting--;
        pthread_mutex_unlock(&w->lock);
        job->work(job->arg);
        pthread_mutex_lock(&w->lock);
        put(&w->finished, job);
        signal_loop(w);
    }
    pthread_mutex_unlock(&w->lock);
    return NULL;
}

struct workers *workers_open(struct http *h, uint32_t threads) {
    struct workers *w = calloc(1, sizeof *w + threads * sizeof w->threads[0]);
    if (!w)
        return NULL;
    w->todo.last = &w->todo.first;
    w->finished.last = &w->finished.first;
    w->fd = h->wake_fd;
    pthread_mutex_init(&w->lock, NULL);
    pthread_cond_init(&w->more, NULL);
    for (; w->n < threads; w->n++)
        if (pthread_create(&w->threads[w->n], NULL, worker, w) != 0)
            break;
    if (w->n == threads)
        return w;
    workers_close(w);
    return NULL;
}

void workers_close(struct workers *w) {
    pthread_mutex_lock(&w->lock);
    w->stop = true;
    pthread_cond_broadcast(&w->more);
    pthread_mutex_unlock(&w->lock);
    for (uint32_t i = 0; i < w->n; i++)
        pthread_join(w->threads[i], NULL);
    pthread_cond_destroy(&w->more);
    pthread_mutex_destroy(&w->lock);
    free(w);
}

void workers_collect(struct http *h) {
    struct workers *w = h->workers;
    for (;;) {
        pthread_mutex_lock(&w->lock);
        struct job *job = take(&w->finished);
        pthread_mutex_unlock(&w->lock);
        if (!job)
            return;
        w->open_jobs--;
        h->buffered -= job->bytes;
        if (job->reply)
            job->reply->job = NULL;
        job->done(job->arg);
        free(job);
    }
}

void workers_finish(struct http *h) {
    struct workers *w = h->workers;
    while (w->open_jobs > 0) {
        uint64_t count;
        workers_collect(h);
        if (w->open_jobs > 0 && read(w->fd, &count, sizeof count) < 0)
            usleep(1000); /* the descriptor does not block */
    }
}

bool http_work(struct http_reply *r, void (*work)(void *arg), void (*done)(void *arg), void *arg) {
    struct http_conn *c = r->conn;
    struct workers *w = c->http->workers;
    WEIR_ASSERT(!r->job);
    struct job *job = malloc(sizeof *job);
    if (!job)
        return false;
    *job = (struct job){work, done, arg, r, c->body_counted, NULL};
    pthread_mutex_lock(&w->lock);
    bool taken = w->waiting < c->http->config->max_waiting_bodies;
    if (taken) {
        put(&w->todo, job);
        w->waiting++;
        pthread_cond_signal(&w->more);
    }
    pthread_mutex_unlock(&w->lock);
    if (!taken) {
        free(job);
        return false;
    }
    w->open_jobs++;
    c->body_counted = 0;
    r->job = job;
    return true;
}

void workers_forget(struct workers *w, struct job *job) {
    job->reply = NULL;
    pthread_mutex_lock(&w->lock);
    struct job **at = &w->todo.first;
    while (*at && *at != job)
        at = &(*at)->next;
    if (*at) { /* not begun: it never will */
        *at = job->next;
        if (w->todo.last == &job->next)
            w->todo.last = at;
        w->waiting--;
        put(&w->finished, job);
        signal_loop(w);
    }
    pthread_mutex_unlock(&w->lock);
}

/* ---- wake-ups ---- */

void http_wake(void *http) {
    struct http *h = http;
    if (!atomic_exchange(&h->workers->wake_wanted, true))
        signal_loop(h->workers);
}

void http_on_wake(struct http *h, void (*wake)(void *arg), void *arg) {
    h->wake = wake;
    h->wake_arg = arg;
}

void workers_event(evutil_socket_t fd, short what, void *arg) {
    struct http *h = arg;
    uint64_t count;
    ssize_t got = read(fd, &count, sizeof count);
    (void)got; /* nothing to read: somebody else was faster */
    workers_collect(h);
    /* The flag falls before the callback looks: progress after that look wakes again. */
    if (atomic_exchange(&h->workers->wake_wanted, false) && h->wake)
        h->wake(h->wake_arg);
}

/* ---- timers ---- */

struct http_timer {
    struct event event;
    void (*fn)(void *arg);
    void *arg;
    struct http *http;
    struct http_timer *next, *previous;
};

static void unlink_timer(struct http_timer *t) {
    if (t->previous)
        t->previous->next = t->next;
    else
        t->http->timers = t->next;
    if (t->next)
        t->next->previous = t->previous;
}

static void timer_fired(evutil_socket_t fd, short what, void *arg) {
    struct http_timer *t = arg;
    void (*fn)(void *arg) = t->fn;
    void *fn_arg = t->arg;
    unlink_timer(t);
    free(t);
    fn(fn_arg);
}

struct http_timer *http_timer_start(struct http *h, double seconds, void (*fn)(void *arg),
                                    void *arg) {
    struct http_timer *t = calloc(1, sizeof *t);
    if (!t)
        return NULL;
    *t = (struct http_timer){.fn = fn, .arg = arg, .http = h, .next = h->timers};
    if (t->next)
        t->next->previous = t;
    h->timers = t;
    struct timeval tv = {(time_t)seconds, (suseconds_t)((seconds - (double)(time_t)seconds) * 1e6)};
    event_assign(&t->event, h->base, -1, 0, timer_fired, t);
    event_add(&t->event, &tv);
    return t;
}

void http_timer_cancel(struct http_timer *t) {
    event_del(&t->event);
    unlink_timer(t);
    free(t);
}

void timers_free(struct http *h) {
    while (h->timers)
        http_timer_cancel(h->timers);
}
