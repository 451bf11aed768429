/* shelf_job.c: moves over a shelf. Called by host.c and disk.c: open, submit and collect on the
 * engine's thread, take and done on the threads that move bytes.
 * Invariant that bites: every record of a move is pinned until it was collected, also those that
 * are not moved, or the second half of a unit would evict the first. */
#include "cache/shelf_job.h"

#include "base/clock.h"

#include <signal.h>
#include <string.h>

static void part_of(struct shelf_part *p, struct shelf_record *r, int32_t id, bool moving) {
    *p = (struct shelf_part){.key = r->key,
                             .kind = r->kind,
                             .place = r->place,
                             .position = r->position,
                             .id = id,
                             .moving = moving,
                             .outcome = TIER_FAILED,
                             .sum = {r->sum[0], r->sum[1]},
                             .record = r};
}

/* Part i of the move is `p` of the job; its record, where there is one, is pinned already. */
static enum tier_result open_part(struct shelf *s, struct shelf_part *p, enum tier_task task,
                                  enum shelf_kind kind, const struct cache_key *key,
                                  uint32_t position, int32_t id) {
    struct shelf_record *r = p->record;
    bool moving = task == TIER_LOAD || !r;
    if (task == TIER_LOAD && (!r || r->presence != TIER_PRESENT))
        return TIER_GONE;
    if (!r && id >= 0) /* -1: was to be here */
        r = shelf_take(s, kind, key, position);
    if (!r)
        return TIER_DECLINED;
    part_of(p, r, id, moving);
    return TIER_OK;
}

/* Before any is taken: one that makes room must not find the others of its unit unpinned. */
static void pin_all(struct shelf *s, const struct tier_move *m, struct shelf_part *parts) {
    for (uint32_t i = 0; i < m->n_pages + m->n_states; i++) {
        bool page = i < m->n_pages;
        uint32_t k = page ? 0 : i - m->n_pages;
        parts[i].record = page ? shelf_find(s, SHELF_PAGE, &m->page_keys[i], 0)
                               : shelf_find(s, SHELF_STATE, &m->state_keys[k], m->positions[k]);
        if (parts[i].record)
            shelf_pin(parts[i].record);
    }
}

static bool draw_give_back(struct shelf *s, struct shelf_job *job) {
    uint32_t room = 0;
    struct shelf_place p;
    while (shelf_give_back(s, &p.kind, &p.place)) {
        if (job->n_give_back == room) {
            room = room ? 2 * room : 16;
            struct shelf_place *more = realloc(job->give_back, room * sizeof *more);
            if (!more) {
                shelf_keep_leaving(s, p.kind, p.place);
                return false;
            }
            job->give_back = more;
        }
        job->give_back[job->n_give_back++] = p;
    }
    return true;
}

void shelf_job_free(struct shelf_job *job) {
    free(job->give_back);
    free(job->sums);
    free(job->parts);
    free(job);
}

/* Back to how it was, but for what was evicted. */
static void job_undo(struct shelf *s, struct shelf_job *job, enum tier_task task, uint32_t n) {
    for (uint32_t i = 0; i < job->n_give_back; i++)
        shelf_keep_leaving(s, job->give_back[i].kind, job->give_back[i].place);
    for (uint32_t i = 0; i < job->n_parts; i++) {
        struct shelf_part *p = &job->parts[i];
        if (task == TIER_STORE && p->moving)
            shelf_lose(s, p->record);
        shelf_unpin(s, p->record);
    }
    for (uint32_t i = job->n_parts; i < n; i++) /* not come to */
        if (job->parts[i].record)
            shelf_unpin(s, job->parts[i].record);
    shelf_job_free(job);
}

/* Takes or finds the records of a store or load and pins them. TIER_OK with *out NULL: there is
 * nothing to move. Otherwise a result other than TIER_OK, with nothing changed but evictions. */
static enum tier_result job_open(struct shelf *s, struct tier_move *m, struct shelf_job **out) {
    *out = NULL;
    struct shelf_job *job = calloc(1, sizeof *job);
    if (job)
        job->parts = calloc((size_t)m->n_pages + m->n_states + 1, sizeof *job->parts);
    if (!job || !job->parts) {
        free(job);
        return m->task == TIER_STORE ? TIER_DECLINED : TIER_FAILED;
    }
    job->move = m;
    job->task = m->task;
    job->began = clock_seconds();
    enum tier_result result = TIER_OK;
    const uint64_t backed = shelf_get_usage(s).backed;
    pin_all(s, m, job->parts);
    for (uint32_t i = 0; i < m->n_pages && result == TIER_OK; i++) {
        result =
            open_part(s, &job->parts[i], m->task, SHELF_PAGE, &m->page_keys[i], 0, m->pages[i]);
        job->n_parts += result == TIER_OK;
    }
    for (uint32_t i = 0; i < m->n_states && result == TIER_OK; i++) {
        result = open_part(s, &job->parts[m->n_pages + i], m->task, SHELF_STATE, &m->state_keys[i],
                           m->positions[i], m->slots[i]);
        job->n_parts += result == TIER_OK;
    }
    for (uint32_t i = 0; i < job->n_parts; i++)
        if (job->parts[i].moving)
            job->bytes += shelf_record_bytes(s, job->parts[i].kind);
    const uint64_t now_backed = shelf_get_usage(s).backed;
    job->grows = shelf_filled(s) ? UINT64_MAX : now_backed > backed ? now_backed - backed : 0;
    bool moving = job->bytes > 0;
    if (result == TIER_OK && moving && m->task == TIER_STORE && !draw_give_back(s, job))
        result = TIER_DECLINED;
    if (result != TIER_OK || !moving) {
        job_undo(s, job, m->task, m->n_pages + m->n_states);
        return result;
    }
    shelf_use(s, m->page_keys, m->n_pages, m->n_states ? m->state_keys : NULL, false);
    for (uint32_t i = 0; i < job->n_parts; i++)
        job->parts[i].use = job->parts[i].record->use;
    *out = job;
    return TIER_OK;
}

static int severity(enum tier_result r) {
    switch (r) {
    case TIER_OK: return 0;
    case TIER_DECLINED: return 1;
    case TIER_GONE: return 2;
    case TIER_FAILED: return 3;
    case TIER_DAMAGED: return 4;
    case TIER_RESULTS: break;
    }
    return 5;
}

/* Publishes what was stored, loses what was not or was damaged, fills the move's last block. */
static void job_close(struct shelf_lane *l, struct shelf *s, struct shelf_job *job) {
    struct tier_move *m = job->move;
    enum tier_result result = TIER_OK;
    l->no_space |= job->no_space;
    for (uint32_t i = 0; i < job->n_give_back; i++)
        shelf_given_back(s, job->give_back[i].kind, job->give_back[i].place);
    for (uint32_t i = 0; i < job->n_parts; i++) {
        struct shelf_part *p = &job->parts[i];
        if (p->moving && severity(p->outcome) > severity(result))
            result = p->outcome;
    }
    for (uint32_t i = 0; i < job->n_parts; i++) {
        struct shelf_part *p = &job->parts[i];
        if (p->moving && m->task == TIER_STORE) {
            memcpy(p->record->sum, p->sum, sizeof p->sum);
            /* A state whose pages did not all arrive helps nobody. */
            if (p->outcome == TIER_OK && (p->kind == SHELF_PAGE || result == TIER_OK))
                shelf_publish(s, p->record);
            else
                shelf_lose(s, p->record);
        } else if (p->moving && p->outcome != TIER_OK) { /* unreadable: let it be stored anew */
            if (p->record->presence == TIER_PRESENT)
                ++*(p->outcome == TIER_DAMAGED ? &l->damaged : &l->lost);
            shelf_lose(s, p->record);
        }
        shelf_unpin(s, p->record);
    }
    m->result = result;
    m->bytes = result == TIER_OK ? job->bytes : 0;
    m->seconds = clock_seconds() - job->began;
    shelf_job_free(job);
}

/* ------------------------------------------------------------------------------------------------
 * queues */

void lane_open(struct shelf_lane *l, const struct tier_setup *setup, uint64_t most_storing_bytes) {
    *l = (struct shelf_lane){.notify = setup->notify,
                             .notify_arg = setup->notify_arg,
                             .most_storing_bytes = most_storing_bytes};
    pthread_mutex_init(&l->lock, NULL);
    pthread_cond_init(&l->wake, NULL);
    l->todo_end = &l->todo;
    l->done_end = &l->done;
    l->ended_end = &l->ended;
}

void lane_stop(struct shelf_lane *l) {
    pthread_mutex_lock(&l->lock);
    l->closing = true;
    pthread_cond_broadcast(&l->wake);
    pthread_mutex_unlock(&l->lock);
}

void lane_close(struct shelf_lane *l) {
    for (struct shelf_job *j = l->done, *next; j; j = next) {
        next = j->next;
        shelf_job_free(j);
    }
    pthread_cond_destroy(&l->wake);
    pthread_mutex_destroy(&l->lock);
}

void lane_give(struct shelf_lane *l, struct shelf_job *job) {
    job->next = NULL;
    pthread_mutex_lock(&l->lock);
    *l->todo_end = job;
    l->todo_end = &job->next;
    pthread_cond_signal(&l->wake);
    pthread_mutex_unlock(&l->lock);
}

struct shelf_job *lane_take(struct shelf_lane *l) {
    pthread_mutex_lock(&l->lock);
    while (!l->todo && !l->closing)
        pthread_cond_wait(&l->wake, &l->lock);
    struct shelf_job *job = l->todo;
    if (job) {
        l->todo = job->next;
        if (!l->todo)
            l->todo_end = &l->todo;
    }
    pthread_mutex_unlock(&l->lock);
    return job;
}

void lane_done(struct shelf_lane *l, struct shelf_job *job) {
    job->next = NULL;
    pthread_mutex_lock(&l->lock);
    *l->done_end = job;
    l->done_end = &job->next;
    pthread_mutex_unlock(&l->lock);
    l->notify(l->notify_arg);
}

void lane_end(struct shelf_lane *l, struct tier_move *m, enum tier_result result) {
    m->result = result;
    m->bytes = 0;
    m->seconds = 0;
    m->next = NULL;
    *l->ended_end = m;
    l->ended_end = &m->next;
    l->notify(l->notify_arg);
}

/* Would this store never fit, or wait too long? Asked before anything is evicted for it. */
static bool too_much(const struct shelf_lane *l, const struct shelf *s, const struct tier_move *m) {
    uint64_t page = shelf_record_bytes(s, SHELF_PAGE), state = shelf_record_bytes(s, SHELF_STATE);
    uint64_t all = page * m->n_pages + state * m->n_states, missing = 0;
    for (uint32_t i = 0; i < m->n_pages; i++)
        if (!shelf_find(s, SHELF_PAGE, &m->page_keys[i], 0))
            missing += page;
    for (uint32_t i = 0; i < m->n_states; i++)
        if (!shelf_find(s, SHELF_STATE, &m->state_keys[i], m->positions[i]))
            missing += state;
    return all > shelf_get_usage(s).budget ||
           (l->storing_bytes && l->storing_bytes + missing > l->most_storing_bytes);
}

void lane_submit(struct shelf_lane *l, struct shelf *s, struct tier_move *m) {
    struct shelf_job *job = NULL;
    if (m->task == TIER_PROBE) { /* page() and state() know anyhow */
        lane_end(l, m, TIER_OK);
        return;
    }
    if (m->task == TIER_STORE && too_much(l, s, m)) {
        lane_end(l, m, TIER_DECLINED);
        return;
    }
    enum tier_result result = job_open(s, m, &job);
    if (!job) {
        lane_end(l, m, result);
        return;
    }
    if (m->task == TIER_STORE)
        l->storing_bytes += job->bytes;
    l->open++;
    lane_give(l, job);
}

struct tier_move *lane_collect(struct shelf_lane *l, struct shelf *s) {
    pthread_mutex_lock(&l->lock);
    struct shelf_job *job = l->done;
    l->done = NULL;
    l->done_end = &l->done;
    pthread_mutex_unlock(&l->lock);
    for (struct shelf_job *next; job; job = next) {
        next = job->next;
        struct tier_move *m = job->move;
        if (m->task == TIER_STORE)
            l->storing_bytes -= job->bytes;
        job_close(l, s, job);
        l->open--;
        m->next = NULL;
        *l->ended_end = m;
        l->ended_end = &m->next;
    }
    struct tier_move *first = l->ended;
    l->ended = NULL;
    l->ended_end = &l->ended;
    return first;
}

bool lane_thread(pthread_t *out, void *(*run)(void *), void *arg) {
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    bool ok = pthread_create(out, NULL, run, arg) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return ok;
}
