/* remote.c: the tier over a Redis server that several weir servers may share: queue, threads,
 * condition of the server, what is known of it. The moves themselves are remote_move.c.
 *
 * Threads: REMOTE_THREADS, each with a connection; one big value under way on each of a few
 * connections is faster than many on one. At most STORING of them store, and one is always left for
 * questions, which are short and which prompts wait for.
 *
 * Time: a move ends within twice its limit (remote.h): once waiting, once moving; a question is
 * short and may not go unanswered for longer than a connection. A server that is found off ends
 * them all at once, those that other threads are in the middle of included. close() takes one limit
 * at most.
 *
 * Condition: one log line when the server is lost and one when it answers again; the same for a
 * server that reads but takes no values (full without eviction, a replica). While it is lost
 * nothing is known to be there, so that the engine does not wait for loads that cannot come.
 *
 * reset: the records belong to all who share the store, so they stay. This process forgets what it
 * knew, and from then on loads only what it has stored since: after a reset no answer depends on
 * anything older, whoever wrote it. It goes on storing for the others, also over records that are
 * there. To read theirs again it has to be started anew. */
#include "cache/remote.h"

#include "base/clock.h"
#include "base/log.h"
#include "cache/remote_move.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>

enum {
    REMOTE_THREADS = 4,
    STORING = 2,               /* threads that may store at the same time */
    BUSY = REMOTE_THREADS - 1, /* threads that may store or load */
    TOUCHES = 4096,            /* uses that wait to be told to the server; more are dropped */
    TOUCH_BATCH = 64,
    VALUE_BYTES = (512 << 20) - REMOTE_HEADER_BYTES,
    POLL_NS = 100 * 1000 * 1000, /* how often a waiting queue is looked through for what is late */
};
static const uint64_t NS = 1000000000u;

const struct remote_limits remote_limits_usual = {.connect_seconds = 2,
                                                  .move_seconds = 10,
                                                  .bytes_per_second = 16e6,
                                                  .pause_seconds = 1,
                                                  .pause_most_seconds = 30,
                                                  .known = 262144,
                                                  .stores = 32,
                                                  .touch_seconds = 10};

struct queue {
    struct tier_move *first, *last;
    uint32_t n;
};

struct remote;
struct worker {
    struct remote *r;
    pthread_t thread;
    struct remote_mover mover;
    uint64_t era;             /* r->era when the connection was made */
    bool moving;              /* in the middle of a move or touch; with the lock */
    _Atomic uint64_t stop_ns; /* its connection goes no further than this */
};

struct remote {
    struct tier base;
    struct remote *self; /* for functions that get a const tier and need the lock */
    struct tier_setup setup;
    struct record_shape shape;
    struct remote_address address;
    struct remote_limits limits;
    uint64_t stop_ns; /* nothing goes on after this; UINT64_MAX until close; with the lock */
    struct worker worker[REMOTE_THREADS];
    uint32_t threads;

    pthread_mutex_t lock; /* of all below; held for table work and log lines only */
    pthread_cond_t wake;
    struct queue waiting[TIER_PROBE + 1], done;
    uint32_t running[TIER_PROBE + 1];
    bool closing;
    struct remote_known *known;
    bool own_only; /* there was a reset: load nothing that was not stored since */
    uint64_t resets;
    uint64_t evicted[2], damaged; /* pages, states */
    struct remote_name touch[TOUCHES];
    uint32_t touch_first, touches;

    bool up, connecting;
    uint64_t era;      /* how often the server has come up */
    uint32_t failures; /* in a row */
    uint64_t up_ns, retry_ns;
    bool writes_off, refusal_told;
    uint64_t refused_bytes;  /* to be taken before it is said that it takes records again */
    uint64_t write_retry_ns; /* when one store may try */
};

/* --- queues ----------------------------------------------------------------------------------- */

static void append(struct queue *q, struct tier_move *m) {
    m->next = NULL;
    if (q->last)
        q->last->next = m;
    else
        q->first = m;
    q->last = m;
    q->n++;
}

static struct tier_move *take_after(struct queue *q, struct tier_move *before) {
    struct tier_move *m = before ? before->next : q->first;
    if (before)
        before->next = m->next;
    else
        q->first = m->next;
    if (q->last == m)
        q->last = before;
    q->n--;
    return m;
}

/* --- what is known ---------------------------------------------------------------------------- */

static struct remote_name name_of(const struct tier_move *m, uint32_t i) {
    if (i < m->n_pages)
        return (struct remote_name){m->page_keys[i], 0};
    return (struct remote_name){m->state_keys[i - m->n_pages], m->positions[i - m->n_pages]};
}

static uint32_t names_of(const struct tier_move *m) {
    return m->n_pages + m->n_states;
}

/* Does the store write this one? */
static bool writes(const struct tier_move *m, uint32_t i) {
    return i >= m->n_pages || m->pages[i] >= 0;
}

/* What was being written becomes present or is forgotten. */
static void know_stored(struct remote *r, const struct tier_move *m, bool stored) {
    for (uint32_t i = 0; i < names_of(m); i++) {
        const struct remote_name name = name_of(m, i);
        if (!writes(m, i))
            continue;
        if (stored)
            remote_known_set(r->known, &name, TIER_PRESENT);
        else if (remote_known_get(r->known, &name) == TIER_COMING)
            remote_known_set(r->known, &name, TIER_ABSENT);
    }
}

/* What the server said. After a reset its word counts only against a record. */
static void learn(void *arg, const struct remote_name *names, const bool *present, uint32_t n) {
    struct worker *w = arg;
    struct remote *r = w->r;
    pthread_mutex_lock(&r->lock);
    const bool trusted = !r->own_only && w->era == r->era && r->up;
    for (uint32_t i = 0; i < n; i++) {
        const enum tier_presence was = remote_known_get(r->known, &names[i]);
        if (present[i] && trusted)
            remote_known_set(r->known, &names[i], TIER_PRESENT);
        if (!present[i] && was == TIER_PRESENT) {
            remote_known_set(r->known, &names[i], TIER_ABSENT);
            r->evicted[names[i].position != 0]++;
        }
    }
    pthread_mutex_unlock(&r->lock);
}

/* Those that are not whole are gone; of the others nothing new is said. */
static void learn_gone(void *arg, const struct remote_name *names, const bool *whole, uint32_t n) {
    struct remote *r = ((struct worker *)arg)->r;
    pthread_mutex_lock(&r->lock);
    for (uint32_t i = 0; i < n; i++)
        if (!whole[i] && remote_known_get(r->known, &names[i]) == TIER_PRESENT) {
            remote_known_set(r->known, &names[i], TIER_ABSENT);
            r->evicted[names[i].position != 0]++;
        }
    pthread_mutex_unlock(&r->lock);
}

/* --- ends of moves ---------------------------------------------------------------------------- */

/* With the lock. The owner is told by notify, without it. */
static void finish(struct remote *r, struct tier_move *m, enum tier_result result) {
    m->result = result;
    m->seconds = clock_seconds() - m->seconds;
    if (m->task == TIER_STORE)
        know_stored(r, m, result == TIER_OK && r->up);
    append(&r->done, m);
}

static enum tier_result refusal(const struct tier_move *m) {
    return m->task == TIER_STORE ? TIER_DECLINED : TIER_FAILED;
}

static void finish_waiting(struct remote *r, enum tier_task task) {
    while (r->waiting[task].first) {
        struct tier_move *m = take_after(&r->waiting[task], NULL);
        finish(r, m, refusal(m));
    }
}

static void notify(struct remote *r) {
    if (r->setup.notify)
        r->setup.notify(r->setup.notify_arg);
}

/* --- condition of the server, with the lock --------------------------------------------------- */

static uint64_t pause_ns(const struct remote *r) {
    double seconds = r->limits.pause_seconds;
    for (uint32_t i = 2; i < r->failures && seconds < r->limits.pause_most_seconds; i++)
        seconds *= 2;
    if (seconds > r->limits.pause_most_seconds)
        seconds = r->limits.pause_most_seconds;
    return r->failures < 2 ? 0 : (uint64_t)(seconds * 1e9);
}

static void server_lost(struct remote *r, const char *why, bool at_start) {
    if (r->failures < 64)
        r->failures++;
    r->retry_ns = clock_ns() + pause_ns(r);
    if (r->up || at_start)
        log_line(LOG_WARN, "remote store %s: off: %s; tried again until it answers",
                 r->address.label, why);
    r->up = false;
    remote_known_reset(r->known);
    finish_waiting(r, TIER_STORE);
    finish_waiting(r, TIER_LOAD);
    finish_waiting(r, TIER_PROBE);
    for (uint32_t i = 0; i < r->threads; i++) /* nobody waits out a limit of his own */
        if (r->worker[i].moving)
            atomic_store(&r->worker[i].stop_ns, clock_ns());
    r->touches = 0;
}

static void server_found(struct remote *r, bool at_start) {
    r->up = true;
    r->era++;
    r->up_ns = clock_ns();
    log_line(LOG_INFO, "remote store %s: %s", r->address.label,
             at_start ? "connected" : "answers again");
}

static void writes_refused(struct remote *r, const char *why, uint64_t bytes) {
    if (!r->refusal_told)
        log_line(LOG_WARN, "remote store %s: takes no records: %s", r->address.label, why);
    r->refusal_told = true;
    r->writes_off = true;
    if (bytes > r->refused_bytes)
        r->refused_bytes = bytes;
    finish_waiting(r, TIER_STORE);
    r->write_retry_ns = clock_ns() + (uint64_t)(r->limits.pause_seconds * 1e9);
}

/* A full server may have room for a page and none for the next one: that is told as one condition,
 * until as much as was refused has been taken. */
static void writes_taken(struct remote *r, uint64_t bytes) {
    r->writes_off = false;
    r->refused_bytes -= bytes < r->refused_bytes ? bytes : r->refused_bytes;
    if (r->refusal_told && r->refused_bytes == 0) {
        r->refusal_told = false;
        log_line(LOG_INFO, "remote store %s: takes records again", r->address.label);
    }
}

/* --- threads ---------------------------------------------------------------------------------- */

static double limit_seconds(const struct remote *r, const struct tier_move *m) {
    return r->limits.move_seconds +
           (double)remote_move_bytes(&r->setup, m) / r->limits.bytes_per_second;
}

/* Ends what has waited for longer than it may take. */
static bool finish_late(struct remote *r) {
    const double now = clock_seconds();
    bool any = false;
    for (int task = 0; task <= TIER_PROBE; task++) {
        struct tier_move *before = NULL, *m = r->waiting[task].first;
        while (m) {
            struct tier_move *next = m->next;
            if (now - m->seconds > limit_seconds(r, m)) {
                take_after(&r->waiting[task], before);
                finish(r, m, refusal(m));
                any = true;
            } else {
                before = m;
            }
            m = next;
        }
    }
    return any;
}

static struct tier_move *next_move(struct remote *r) {
    const uint32_t busy = r->running[TIER_LOAD] + r->running[TIER_STORE];
    if (r->waiting[TIER_PROBE].first)
        return take_after(&r->waiting[TIER_PROBE], NULL);
    if (r->waiting[TIER_LOAD].first && busy < BUSY)
        return take_after(&r->waiting[TIER_LOAD], NULL);
    if (r->waiting[TIER_STORE].first && busy < BUSY && r->running[TIER_STORE] < STORING)
        return take_after(&r->waiting[TIER_STORE], NULL);
    return NULL;
}

/* A connection that was closed while nothing was under way is replaced without a word, and so is
 * one of an earlier life of the server. */
static bool reach(struct worker *w, uint64_t era) {
    struct remote_link *l = &w->mover.link;
    if (l->fd >= 0 && w->era == era && remote_link_idle(l))
        return true;
    w->era = era;
    char name[REMOTE_NAME_BYTES];
    remote_mover_name(&w->mover, name);
    return remote_link_open(l, &w->r->address, name, w->r->limits.connect_seconds);
}

/* Without the lock. */
static enum tier_result work(struct worker *w, struct tier_move *m, bool own_only) {
    switch (m->task) {
    case TIER_STORE: return remote_move_store(&w->mover, m, own_only);
    case TIER_LOAD: return remote_move_load(&w->mover, m);
    case TIER_PROBE: return remote_move_probe(&w->mover, m);
    }
    return TIER_FAILED;
}

/* With the lock: what the last move (NULL: touch) says about the server. */
static void judge_server(struct worker *w, const struct tier_move *m) {
    struct remote *r = w->r;
    const struct remote_mover *v = &w->mover;
    switch (v->trouble) {
    case REMOTE_OFF:
        /* A connection of an earlier life of the server says nothing about this one. */
        if (w->era == r->era && r->up && !r->closing)
            server_lost(r, v->why, false);
        break;
    case REMOTE_NO_WRITES:
        writes_refused(r, v->why, m ? remote_move_bytes(&r->setup, m) : 0);
        break;
    case REMOTE_FINE:
        if (v->wrote)
            writes_taken(r, m ? m->bytes : 0);
        break;
    }
}

static uint32_t take_touches(struct remote *r, struct remote_name touch[TOUCH_BATCH]) {
    uint32_t n = 0;
    for (; r->touches && n < TOUCH_BATCH; r->touches--) {
        touch[n++] = r->touch[r->touch_first];
        r->touch_first = (r->touch_first + 1) % TOUCHES;
    }
    return n;
}

/* Called and left with the lock held. `m` NULL: tells the server what was used. */
static void run(struct worker *w, struct tier_move *m) {
    struct remote *r = w->r;
    struct remote_mover *v = &w->mover;
    struct remote_name touch[TOUCH_BATCH];
    const uint32_t touches = m ? 0 : take_touches(r, touch);
    const bool own_only = r->own_only;
    const uint64_t era = r->era;
    if (m)
        r->running[m->task]++;
    w->moving = true;
    atomic_store(&w->stop_ns, r->stop_ns);
    pthread_mutex_unlock(&r->lock);

    enum tier_result result = TIER_FAILED;
    v->trouble = REMOTE_FINE;
    v->wrote = false;
    if (!reach(w, era)) {
        v->trouble = REMOTE_OFF;
        memcpy(v->why, v->link.why, sizeof v->why);
    } else if (m) {
        result = work(w, m, own_only);
    } else {
        remote_move_touch(v, touch, touches);
    }
    if (v->trouble == REMOTE_OFF)
        remote_link_close(&v->link);

    pthread_mutex_lock(&r->lock);
    w->moving = false;
    judge_server(w, m);
    if (m) {
        const double up_seconds = (double)(clock_ns() - r->up_ns) * 1e-9;
        if (result == TIER_OK &&
            (m->task != TIER_PROBE || up_seconds > r->limits.pause_most_seconds))
            r->failures = 0;
        if (result == TIER_DAMAGED && r->damaged++ == 0)
            log_line(LOG_WARN,
                     "remote store %s: a record does not match its checksum; such records are "
                     "deleted (said once, counted in the metrics)",
                     r->address.label);
        r->running[m->task]--;
        finish(r, m, result);
        pthread_cond_broadcast(&r->wake); /* a thread may now do what the limits kept waiting */
    }
    pthread_mutex_unlock(&r->lock);
    notify(r);
    pthread_mutex_lock(&r->lock);
}

static void try_again(struct worker *w) {
    struct remote *r = w->r;
    r->connecting = true;
    atomic_store(&w->stop_ns, r->stop_ns);
    pthread_mutex_unlock(&r->lock);
    remote_link_close(&w->mover.link);
    const bool ok = reach(w, 0);
    pthread_mutex_lock(&r->lock);
    r->connecting = false;
    if (ok) {
        server_found(r, false);
        w->era = r->era;
    } else {
        server_lost(r, w->mover.link.why, false);
    }
}

static void wait_until(struct remote *r, uint64_t ns) {
    const struct timespec t = {(time_t)(ns / NS), (long)(ns % NS)};
    pthread_cond_timedwait(&r->wake, &r->lock, &t);
}

static void *worker_main(void *arg) {
    struct worker *w = arg;
    struct remote *r = w->r;
    pthread_mutex_lock(&r->lock);
    while (!r->closing || (r->up && r->waiting[TIER_STORE].first && clock_ns() < r->stop_ns)) {
        if (finish_late(r)) {
            pthread_mutex_unlock(&r->lock);
            notify(r);
            pthread_mutex_lock(&r->lock);
            continue;
        }
        struct tier_move *m = r->up ? next_move(r) : NULL;
        if (m || (r->up && r->touches && !r->closing)) {
            run(w, m);
        } else if (!r->up) {
            if (!r->connecting && clock_ns() >= r->retry_ns)
                try_again(w);
            else
                wait_until(r, r->connecting ? clock_ns() + POLL_NS : r->retry_ns);
        } else if (r->waiting[TIER_LOAD].first || r->waiting[TIER_STORE].first) {
            wait_until(r, clock_ns() + POLL_NS);
        } else {
            pthread_cond_wait(&r->wake, &r->lock);
        }
    }
    pthread_mutex_unlock(&r->lock);
    return NULL;
}

/* --- the tier's functions: the engine's thread ------------------------------------------------ */

static enum tier_presence remote_page(struct tier *t, const struct cache_key *key) {
    struct remote *r = (struct remote *)t;
    const struct remote_name name = {*key, 0};
    pthread_mutex_lock(&r->lock);
    const enum tier_presence p = remote_known_get(r->known, &name);
    pthread_mutex_unlock(&r->lock);
    return p;
}

static enum tier_presence remote_state(struct tier *t, const struct cache_key *key,
                                       uint32_t position) {
    struct remote *r = (struct remote *)t;
    const struct remote_name name = {*key, position};
    pthread_mutex_lock(&r->lock);
    const enum tier_presence p = position ? remote_known_get(r->known, &name) : TIER_ABSENT;
    pthread_mutex_unlock(&r->lock);
    return p;
}

/* Whether the move may wait for a thread; *result: how it ends otherwise. */
static bool admit(struct remote *r, const struct tier_move *m, enum tier_result *result) {
    *result = TIER_DECLINED;
    if (!r->up)
        return false;
    switch (m->task) {
    case TIER_PROBE:
        if (r->own_only)
            *result = TIER_OK; /* what may be loaded is known without asking */
        return !r->own_only;
    case TIER_LOAD:
        if (r->own_only)
            for (uint32_t i = 0; i < names_of(m); i++) {
                const struct remote_name name = name_of(m, i);
                if (remote_known_get(r->known, &name) != TIER_PRESENT) {
                    *result = TIER_GONE;
                    return false;
                }
            }
        return true;
    case TIER_STORE:
        if (r->waiting[TIER_STORE].n >= r->limits.stores)
            return false;
        if (r->writes_off) {
            const uint64_t now = clock_ns();
            if (now < r->write_retry_ns)
                return false;
            r->write_retry_ns = now + (uint64_t)(r->limits.pause_seconds * 1e9);
        }
        return true;
    }
    return false;
}

static void remote_submit(struct tier *t, struct tier_move *m) {
    struct remote *r = (struct remote *)t;
    WEIR_ASSERT(m->task == TIER_PROBE || m->n_states <= 1);
    for (uint32_t i = 0; i < m->n_states; i++)
        WEIR_ASSERT(m->positions[i] > 0);
    m->bytes = 0;
    m->seconds = clock_seconds(); /* until it ends: when it was submitted */
    pthread_mutex_lock(&r->lock);
    enum tier_result result;
    const bool waits = admit(r, m, &result);
    if (waits) {
        for (uint32_t i = 0; m->task == TIER_STORE && i < names_of(m); i++) {
            const struct remote_name name = name_of(m, i);
            if (writes(m, i) && remote_known_get(r->known, &name) == TIER_ABSENT)
                remote_known_set(r->known, &name, TIER_COMING);
        }
        append(&r->waiting[m->task], m);
        pthread_cond_broadcast(&r->wake);
    } else {
        finish(r, m, result);
    }
    pthread_mutex_unlock(&r->lock);
    if (!waits)
        notify(r);
}

static struct tier_move *remote_collect(struct tier *t) {
    struct remote *r = (struct remote *)t;
    pthread_mutex_lock(&r->lock);
    struct tier_move *m = r->done.first;
    r->done = (struct queue){0};
    pthread_mutex_unlock(&r->lock);
    return m;
}

/* Heads last, so that they are the freshest. A use that finds the list full is not told: the server
 * will hear of the next one. */
static void remote_touch(struct tier *t, const struct cache_key *keys, uint32_t n, bool state) {
    struct remote *r = (struct remote *)t;
    const uint32_t now = (uint32_t)clock_seconds();
    pthread_mutex_lock(&r->lock);
    for (uint32_t left = n + (state && n > 0); left > 0; left--) {
        const struct remote_name name = left > n
                                            ? (struct remote_name){keys[n - 1], n * PAGE_TOKENS}
                                            : (struct remote_name){keys[left - 1], 0};
        if (remote_known_touch(r->known, &name, now, r->limits.touch_seconds) && r->up &&
            r->touches < TOUCHES)
            r->touch[(r->touch_first + r->touches++) % TOUCHES] = name;
    }
    if (r->touches)
        pthread_cond_signal(&r->wake);
    pthread_mutex_unlock(&r->lock);
}

/* Counts the records known to be there: the server may hold many more. Evicted: what was known and
 * then not found, for whatever reason. */
static void remote_usage(const struct tier *t, struct tier_usage *out) {
    struct remote *r = ((const struct remote *)t)->self;
    pthread_mutex_lock(&r->lock);
    *out = (struct tier_usage){.pages_evicted = r->evicted[0],
                               .states_evicted = r->evicted[1],
                               .damaged = r->damaged,
                               .began = r->era + r->resets,
                               .up = r->up,
                               .takes = r->up && !r->writes_off};
    remote_known_count(r->known, &out->pages, &out->states);
    pthread_mutex_unlock(&r->lock);
    out->bytes_used =
        out->pages * r->shape.page_bytes + out->states * record_state_bytes(&r->shape);
}

static uint64_t remote_reset(struct tier *t, uint64_t *left) {
    struct remote *r = (struct remote *)t;
    pthread_mutex_lock(&r->lock);
    *left = remote_known_reset(r->known);
    if (!r->own_only)
        log_line(LOG_INFO,
                 "remote store %s: reset: this process loads only what it stores from now on; what "
                 "is there stays for others",
                 r->address.label);
    r->own_only = true;
    r->resets++;
    pthread_mutex_unlock(&r->lock);
    return 0;
}

static void free_remote(struct remote *r) {
    for (uint32_t i = 0; i < REMOTE_THREADS; i++)
        remote_mover_free(&r->worker[i].mover);
    remote_known_close(r->known);
    pthread_mutex_destroy(&r->lock);
    pthread_cond_destroy(&r->wake);
    explicit_bzero(&r->address, sizeof r->address);
    free(r);
}

/* Stores that wait are still made if the time limit allows: they are what the next process finds.
 */
static void remote_close(struct tier *t) {
    struct remote *r = (struct remote *)t;
    pthread_mutex_lock(&r->lock);
    r->closing = true;
    r->stop_ns = clock_ns() + (uint64_t)(r->limits.move_seconds * 1e9);
    for (uint32_t i = 0; i < REMOTE_THREADS; i++)
        if (atomic_load(&r->worker[i].stop_ns) > r->stop_ns)
            atomic_store(&r->worker[i].stop_ns, r->stop_ns);
    r->waiting[TIER_LOAD] = r->waiting[TIER_PROBE] = (struct queue){0};
    pthread_cond_broadcast(&r->wake);
    pthread_mutex_unlock(&r->lock);
    for (uint32_t i = 0; i < r->threads; i++)
        pthread_join(r->worker[i].thread, NULL);
    free_remote(r);
}

/* --- opening ---------------------------------------------------------------------------------- */

static bool start_threads(struct remote *r) {
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before); /* signals are for the program's own threads */
    while (r->threads < REMOTE_THREADS) {
        struct worker *w = &r->worker[r->threads];
        if (pthread_create(&w->thread, NULL, worker_main, w) != 0)
            break;
        r->threads++;
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return r->threads == REMOTE_THREADS;
}

static struct remote *make_remote(const struct tier_setup *s, const struct remote_limits *limits) {
    struct remote *r = calloc(1, sizeof *r);
    if (!r)
        return NULL;
    r->base = (struct tier){.kind = TIER_REMOTE,
                            .page = remote_page,
                            .state = remote_state,
                            .submit = remote_submit,
                            .collect = remote_collect,
                            .touch = remote_touch,
                            .usage = remote_usage,
                            .reset = remote_reset,
                            .close = remote_close};
    r->self = r;
    r->setup = *s;
    r->shape = *s->shape;
    r->setup.shape = &r->shape;
    r->limits = *limits;
    r->stop_ns = UINT64_MAX;
    pthread_mutex_init(&r->lock, NULL);
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&r->wake, &monotonic);
    pthread_condattr_destroy(&monotonic);
    r->known = remote_known_open(limits->known);
    bool ok = r->known != NULL;
    for (uint32_t i = 0; i < REMOTE_THREADS; i++) {
        struct worker *w = &r->worker[i];
        w->r = r;
        w->mover = (struct remote_mover){.setup = &r->setup,
                                         .question_seconds = limits->connect_seconds,
                                         .move_seconds = limits->move_seconds,
                                         .bytes_per_second = limits->bytes_per_second,
                                         .learn = learn,
                                         .learn_gone = learn_gone,
                                         .arg = w};
        atomic_init(&w->stop_ns, UINT64_MAX);
        ok = remote_mover_make(&w->mover, &w->stop_ns) && ok;
    }
    if (!ok) {
        free_remote(r);
        return NULL;
    }
    return r;
}

weir_status remote_open(const struct tier_setup *s, const char *url,
                        const struct remote_limits *limits, struct tier **out, weir_error *err) {
    *out = NULL;
    struct remote_address address;
    weir_status status = remote_address_read(&address, url, err);
    if (status != WEIR_OK)
        return status;
    const size_t layer = record_layer_bytes(s->shape), page = s->shape->page_bytes;
    if (layer > VALUE_BYTES || page > VALUE_BYTES) {
        explicit_bzero(&address, sizeof address);
        return weir_fail(err, WEIR_UNSUPPORTED, "remote_store",
                         "a page of %zu bytes or a layer's state of %zu bytes is more than the %d "
                         "bytes that a Redis value may have",
                         page, layer, VALUE_BYTES);
    }
    struct remote *r = make_remote(s, limits);
    if (!r) {
        explicit_bzero(&address, sizeof address);
        return weir_fail(err, WEIR_NO_MEMORY, "remote_store", "no memory for %d connections",
                         REMOTE_THREADS);
    }
    r->address = address;
    explicit_bzero(&address, sizeof address);
    pthread_mutex_lock(&r->lock);
    if (reach(&r->worker[0], 0))
        server_found(r, true);
    else
        server_lost(r, r->worker[0].mover.link.why, true);
    r->worker[0].era = r->era;
    const bool started = start_threads(r);
    pthread_mutex_unlock(&r->lock);
    if (!started) {
        remote_close(&r->base);
        return weir_fail(err, WEIR_NO_MEMORY, "remote_store", "cannot start its %d threads",
                         REMOTE_THREADS);
    }
    *out = &r->base;
    return WEIR_OK;
}

weir_status tier_open_remote(const struct tier_setup *s, const char *url, struct tier **out,
                             weir_error *err) {
    return remote_open(s, url, &remote_limits_usual, out, err);
}
