/* compose.c: the thread and its list of jobs. Called by replay.c. A list is enough: there are about
 * two jobs for each call in flight. */
#include "bench/compose.h"

#include <errno.h>
#include <pthread.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

enum job_state { JOB_WAITS, JOB_RUNS, JOB_READY };

struct job {
    struct job *next;
    struct call call;
    const struct talk *talk;
    enum job_state state;
    bool is_wanted;    /* the loop has asked for it */
    bool is_forgotten; /* to be freed when it has run */
    struct body body;
};

struct composer {
    const struct body_maker *maker;
    size_t budget, ready_bytes;
    int event;
    pthread_t thread;
    bool has_thread, stops;
    pthread_mutex_t lock;
    pthread_cond_t work, done;
    struct job *first, **last;
};

static bool is_same(const struct job *j, const struct call *call) {
    return j->call.play == call->play && j->call.request == call->request &&
           j->call.one_token == call->one_token && !j->is_forgotten;
}

static struct job *find(struct composer *c, const struct call *call) {
    for (struct job *j = c->first; j; j = j->next)
        if (is_same(j, call))
            return j;
    return NULL;
}

static void unlink_job(struct composer *c, struct job *job) {
    for (struct job **at = &c->first; *at; at = &(*at)->next)
        if (*at == job) {
            *at = job->next;
            if (c->last == &job->next)
                c->last = at;
            break;
        }
    if (job->state == JOB_READY)
        c->ready_bytes -= job->body.n;
}

static void drop(struct composer *c, struct job *job) {
    unlink_job(c, job);
    free(job->body.bytes);
    free(job);
}

/* What is waited for comes first; what is foreseen, while there is room. */
static struct job *choose(struct composer *c) {
    struct job *foreseen = NULL;
    for (struct job *j = c->first; j; j = j->next) {
        if (j->state != JOB_WAITS)
            continue;
        if (j->is_wanted)
            return j;
        if (!foreseen)
            foreseen = j;
    }
    return c->ready_bytes < c->budget ? foreseen : NULL;
}

/* Bodies that were foreseen and never taken, of plays that failed, must not fill the room. */
static void make_room(struct composer *c) {
    for (struct job *j = c->first, *next; j && c->ready_bytes > c->budget; j = next) {
        next = j->next;
        if (j->state == JOB_READY && !j->is_wanted)
            drop(c, j);
    }
}

static void *work(void *user) {
    struct composer *c = user;
    pthread_mutex_lock(&c->lock);
    while (!c->stops) {
        struct job *j = choose(c);
        if (!j) {
            pthread_cond_wait(&c->work, &c->lock);
            continue;
        }
        j->state = JOB_RUNS;
        pthread_mutex_unlock(&c->lock);
        body_make(c->maker, &j->call, j->talk, &j->body);
        pthread_mutex_lock(&c->lock);
        j->state = JOB_READY;
        c->ready_bytes += j->body.n;
        if (j->is_forgotten) {
            drop(c, j);
        } else if (j->is_wanted) {
            eventfd_write(c->event, 1);
            make_room(c);
        }
        pthread_cond_broadcast(&c->done);
    }
    pthread_mutex_unlock(&c->lock);
    return NULL;
}

weir_status composer_open(const struct body_maker *maker, size_t budget_bytes,
                          struct composer **out, weir_error *err) {
    struct composer *c = calloc(1, sizeof *c);
    *out = NULL;
    if (!c)
        return weir_fail(err, WEIR_NO_MEMORY, "composer", "no memory");
    c->maker = maker;
    c->budget = budget_bytes;
    c->last = &c->first;
    c->event = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    pthread_mutex_init(&c->lock, NULL);
    pthread_cond_init(&c->work, NULL);
    pthread_cond_init(&c->done, NULL);
    int fault = c->event < 0 ? errno : pthread_create(&c->thread, NULL, work, c);
    c->has_thread = fault == 0;
    if (fault) {
        composer_close(c);
        return weir_fail(err, WEIR_NO_MEMORY, "composer", "cannot start: %s", strerror(fault));
    }
    *out = c;
    return WEIR_OK;
}

void composer_close(struct composer *c) {
    if (!c)
        return;
    pthread_mutex_lock(&c->lock);
    c->stops = true;
    pthread_cond_broadcast(&c->work);
    pthread_mutex_unlock(&c->lock);
    if (c->has_thread)
        pthread_join(c->thread, NULL);
    while (c->first)
        drop(c, c->first);
    pthread_mutex_destroy(&c->lock);
    pthread_cond_destroy(&c->work);
    pthread_cond_destroy(&c->done);
    if (c->event >= 0)
        close(c->event);
    free(c);
}

int composer_fd(const struct composer *c) {
    return c->event;
}

void composer_seen(struct composer *c) {
    eventfd_t n;
    eventfd_read(c->event, &n);
}

static struct job *add(struct composer *c, const struct call *call, const struct talk *talk) {
    struct job *j = calloc(1, sizeof *j);
    if (!j)
        return NULL;
    j->call = *call;
    j->talk = talk;
    *c->last = j;
    c->last = &j->next;
    pthread_cond_signal(&c->work);
    return j;
}

void composer_ahead(struct composer *c, const struct call *call, const struct talk *talk) {
    pthread_mutex_lock(&c->lock);
    if (!find(c, call))
        add(c, call, talk);
    pthread_mutex_unlock(&c->lock);
}

bool composer_take(struct composer *c, const struct call *call, const struct talk *talk,
                   struct body *out) {
    *out = (struct body){0};
    pthread_mutex_lock(&c->lock);
    struct job *j = find(c, call);
    if (!j)
        j = add(c, call, talk);
    bool ready = !j || j->state == JOB_READY;
    if (ready && j) {
        *out = j->body;
        unlink_job(c, j);
        free(j);
        pthread_cond_signal(&c->work);
    } else if (j && !j->is_wanted) {
        j->is_wanted = true;
        pthread_cond_signal(&c->work);
    }
    pthread_mutex_unlock(&c->lock);
    return ready;
}

void composer_forget(struct composer *c, uint64_t play) {
    pthread_mutex_lock(&c->lock);
    for (struct job *j = c->first, *next; j; j = next) {
        next = j->next;
        if (j->call.play != play)
            continue;
        if (j->state == JOB_RUNS)
            j->is_forgotten = true;
        else
            drop(c, j);
    }
    /* Its talk may be freed as soon as this returns. */
    for (bool runs = true; runs;) {
        runs = false;
        for (struct job *j = c->first; j; j = j->next)
            runs |= j->call.play == play;
        if (runs)
            pthread_cond_wait(&c->done, &c->lock);
    }
    pthread_mutex_unlock(&c->lock);
}
