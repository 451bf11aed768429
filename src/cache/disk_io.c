/* disk_io.c: cuts the jobs of the disk tier into pieces and puts them together again: packing,
 * checksums, entries, results. Runs on the tier's own threads; disk.c gives the jobs.
 * Invariant that bites: an entry is written after the last piece of its record, and a state's after
 * all its pages, or a process killed in between publishes what is not there. */
#include "cache/disk_io.h"

#include "base/clock.h"
#include "base/cpu.h"
#include "base/log.h"

#include <errno.h>
#include <string.h>
#include <xxhash.h>

static bool no_space(int error) {
    return error == ENOSPC || error == EDQUOT || error == EFBIG;
}

static enum disk_direction direction_of(const struct shelf_job *job) {
    return job->task == TIER_STORE ? DISK_WRITE : DISK_READ;
}

/* ------------------------------------------------------------------------------------------------
 * conditions */

static void tell_trouble(const struct disk_mover *d, enum disk_direction which, int error) {
    const char *why = error == ESTALE ? "its files were deleted" : strerror(error);
    if (which == DISK_READ)
        log_line(LOG_WARN,
                 "disk cache %s: cannot read: %s; the records are dropped and computed "
                 "again",
                 d->files->path, why);
    else
        log_line(LOG_WARN, "disk cache %s: cannot write: %s; stores are %s tried again every %g s",
                 d->files->path, why,
                 no_space(error) ? "kept to the places it has, more room is" : "declined and",
                 no_space(error) ? DISK_GROW_PAUSES * d->pause : d->pause);
}

/* A store that found no room for more is no reason to pause: the engine keeps the shelf to the
 * places it has, where the next one works. Two in succession that asked for no more did not work
 * there either: going on would cost all records one after another. */
static bool goes_on(const struct disk_trouble *t, const struct shelf_job *job) {
    return job->no_space && (job->grows || t->failures == 1);
}

static void set_trouble(struct disk_mover *d, struct shelf_job *job, int error) {
    enum { TOLERATED = 3 }; /* one bad sector is no reason to leave the others unread */
    enum disk_direction which = direction_of(job);
    struct disk_trouble *t = &d->trouble[which];
    pthread_mutex_lock(&d->lane->lock);
    bool begins = !t->on;
    t->on = true;
    t->failures++;
    t->failed_at = clock_seconds();
    t->owed = job->bytes > t->owed ? job->bytes : t->owed;
    job->no_space = no_space(error);
    t->space |= job->no_space;
    if (which == DISK_WRITE ? !goes_on(t, job) : t->failures >= TOLERATED)
        t->until = t->failed_at + d->pause;
    d->gone |= error == ESTALE && which == DISK_WRITE;
    pthread_mutex_unlock(&d->lane->lock);
    if (begins)
        tell_trouble(d, which, error);
}

static void tell_end(const struct disk_mover *d, enum disk_direction which) {
    log_line(LOG_INFO, "disk cache %s: %s again", d->files->path,
             which == DISK_WRITE ? "writes" : "reads");
}

/* The job has ended well: is that enough to say that the trouble is over? */
static void ease_trouble(struct disk_mover *d, const struct shelf_job *job) {
    enum disk_direction which = direction_of(job);
    struct disk_trouble *t = &d->trouble[which];
    pthread_mutex_lock(&d->lane->lock);
    uint64_t paid = t->space ? job->grows : job->bytes;
    t->failures = 0;
    t->owed -= paid < t->owed ? paid : t->owed;
    bool ends = t->on && !t->owed && clock_seconds() >= t->failed_at + d->pause;
    if (ends)
        *t = (struct disk_trouble){0};
    pthread_mutex_unlock(&d->lane->lock);
    if (ends)
        tell_end(d, which);
}

bool disk_mover_may(struct disk_mover *d, enum disk_direction which) {
    pthread_mutex_lock(&d->lane->lock);
    bool may = clock_seconds() >= d->trouble[which].until;
    pthread_mutex_unlock(&d->lane->lock);
    return may;
}

bool disk_mover_works(struct disk_mover *d, enum disk_direction which) {
    pthread_mutex_lock(&d->lane->lock);
    bool works = !d->trouble[which].failures;
    pthread_mutex_unlock(&d->lane->lock);
    return works;
}

/* ------------------------------------------------------------------------------------------------
 * bytes */

static size_t piece_bytes(const struct disk_mover *d, const struct shelf_part *p, uint32_t index,
                          uint32_t *layer, uint32_t *layers) {
    const struct disk_layout *l = &d->files->layout[p->kind];
    *layer = index * l->piece_layers;
    *layers = 0;
    if (p->kind == SHELF_PAGE)
        return l->unit_bytes;
    uint32_t left = d->shape->layers - *layer;
    *layers = left < l->piece_layers ? left : l->piece_layers;
    return *layers * l->unit_bytes;
}

static void hash_piece(const struct disk_piece *p, const unsigned char *buffer, size_t n) {
    XXH128_hash_t h = XXH3_128bits(buffer, n);
    p->part->sums[p->index][0] = h.low64;
    p->part->sums[p->index][1] = h.high64;
}

/* The device with the pools failed: nothing of the job counts. */
static void fail_piece(struct disk_mover *d, const struct disk_piece *p) {
    pthread_mutex_lock(&d->lane->lock);
    if (!p->part->error)
        p->part->error = EIO;
    if (!p->job->error)
        p->job->error = EIO;
    pthread_mutex_unlock(&d->lane->lock);
}

void disk_begin(struct disk_mover *d, const struct disk_piece *p, unsigned char *buffer) {
    bool ok = true;
    uint32_t layer, layers;
    size_t n = piece_bytes(d, p->part, p->index, &layer, &layers), unit = n;
    if (p->direction == DISK_READ)
        return;
    if (p->part->kind == SHELF_PAGE) {
        ok = record_read_page(d->store, p->part->id, buffer);
    } else {
        unit = d->files->layout[SHELF_STATE].unit_bytes;
        for (uint32_t i = 0; i < layers && ok; i++)
            ok = record_pack_layer(d->shape, d->store, p->part->id, layer + i, buffer + i * unit);
    }
    if (!ok)
        fail_piece(d, p);
    memset(buffer + n, 0, p->span - n);
    hash_piece(p, buffer, n);
}

static void unpack(struct disk_mover *d, const struct disk_piece *p, const unsigned char *buffer) {
    uint32_t layer, layers;
    size_t n = piece_bytes(d, p->part, p->index, &layer, &layers);
    hash_piece(p, buffer, n);
    if (p->part->kind == SHELF_PAGE) {
        if (!record_write_page(d->store, p->part->id, buffer))
            fail_piece(d, p);
        return;
    }
    size_t unit = d->files->layout[SHELF_STATE].unit_bytes;
    for (uint32_t i = 0; i < layers; i++)
        if (!record_unpack_layer(d->shape, d->store, p->part->id, layer + i, buffer + i * unit))
            fail_piece(d, p);
}

/* Of all pieces in their order, and of what the record claims to be. */
static void sum_of(const struct disk_mover *d, const struct shelf_part *p, uint64_t out[2]) {
    struct {
        struct cache_key key;
        uint32_t kind, position;
        XXH64_hash_t low, high;
    } all = {p->key, (uint32_t)p->kind, p->position, 0, 0};
    XXH128_hash_t h = XXH3_128bits(p->sums, d->files->layout[p->kind].pieces * sizeof *p->sums);
    all.low = h.low64;
    all.high = h.high64;
    h = XXH3_128bits(&all, sizeof all);
    out[0] = h.low64;
    out[1] = h.high64;
}

/* ------------------------------------------------------------------------------------------------
 * jobs */

/* Everything that has to be on disk before the first byte of a record is. */
static int prepare_store(struct disk_mover *d, struct shelf_job *job) {
    if (disk_files_gone(d->files))
        return ESTALE;
    for (uint32_t i = 0; i < job->n_give_back; i++) {
        int e = disk_place_give_back(d->files, job->give_back[i].kind, job->give_back[i].place);
        if (e && e != EOPNOTSUPP)
            return e;
    }
    for (uint32_t i = 0; i < job->n_parts; i++) {
        struct shelf_part *p = &job->parts[i];
        int e = p->moving ? disk_place_prepare(d->files, p->kind, p->place) : 0;
        if (e)
            return e;
    }
    return 0;
}

static void prepare(struct disk_mover *d, struct shelf_job *job) {
    size_t pieces = 0;
    for (uint32_t i = 0; i < job->n_parts; i++)
        if (job->parts[i].moving)
            pieces += d->files->layout[job->parts[i].kind].pieces;
    job->sums = calloc(pieces, sizeof *job->sums);
    int e = !job->sums ? ENOMEM : job->task == TIER_STORE ? prepare_store(d, job) : 0;
    if (e) { /* every part has TIER_FAILED for an outcome */
        set_trouble(d, job, e);
        lane_done(d->lane, job);
        return;
    }
    uint64_t(*sums)[2] = job->sums;
    for (uint32_t i = 0; i < job->n_parts; i++) {
        struct shelf_part *p = &job->parts[i];
        p->left = p->moving ? d->files->layout[p->kind].pieces : 0;
        p->sums = sums;
        sums += p->left;
    }
    job->left = (uint32_t)pieces;
    job->next = NULL;
    enum disk_direction which = direction_of(job);
    pthread_mutex_lock(&d->lane->lock);
    *d->ready_end[which] = job;
    d->ready_end[which] = &job->next;
    pthread_cond_broadcast(&d->lane->wake);
    pthread_mutex_unlock(&d->lane->lock);
}

/* The next piece of a ready job; the lane is locked. */
static bool cut(struct disk_mover *d, enum disk_direction which, struct disk_piece *out) {
    struct shelf_job *job = d->ready[which];
    if (!job)
        return false;
    while (!job->parts[job->next_part].moving)
        job->next_part++;
    struct shelf_part *p = &job->parts[job->next_part];
    const struct disk_layout *l = &d->files->layout[p->kind];
    *out =
        (struct disk_piece){.job = job,
                            .part = p,
                            .index = job->next_piece,
                            .direction = which,
                            .skip = job->error != 0,
                            .fd = d->files->data[p->kind],
                            .offset = p->place * l->place_bytes + job->next_piece * l->piece_span,
                            .span = l->piece_span};
    if (++job->next_piece == l->pieces) {
        job->next_piece = 0;
        job->next_part++;
        while (job->next_part < job->n_parts && !job->parts[job->next_part].moving)
            job->next_part++;
    }
    if (job->next_part == job->n_parts) { /* all handed out: it lives on in its pieces */
        d->ready[which] = job->next;
        if (!d->ready[which])
            d->ready_end[which] = &d->ready[which];
    }
    return true;
}

static void write_notes(struct disk_mover *d, struct disk_notes *all) {
    for (struct disk_notes *n = all, *next; n; n = next) {
        next = n->next;
        /* No result: an order of use is a hint, and stores tell of a disk that does not work. */
        for (uint32_t i = 0; i < n->n; i++)
            disk_use_write(d->files, n->note[i].kind, n->note[i].place, n->note[i].use);
        if (n->floor)
            disk_floor_write(d->files, n->floor);
        free(n);
    }
}

/* Two threads may come here: the first has work to do. */
static void reopen(struct disk_mover *d) {
    weir_error err;
    pthread_mutex_lock(&d->lane->lock);
    bool mine = d->reopen == DISK_REOPEN;
    if (mine)
        d->reopen = DISK_STAYS;
    pthread_mutex_unlock(&d->lane->lock);
    if (!mine)
        return;
    bool ok = disk_files_reopen(d->files, &err) == WEIR_OK;
    if (ok)
        tell_end(d, DISK_WRITE);
    pthread_mutex_lock(&d->lane->lock);
    d->gone = !ok;
    if (ok)
        d->trouble[DISK_WRITE] = (struct disk_trouble){0};
    d->reopen = ok ? DISK_REOPENED : DISK_NOT_REOPENED;
    if (!ok)
        d->trouble[DISK_WRITE].until = clock_seconds() + d->pause;
    pthread_mutex_unlock(&d->lane->lock);
    d->lane->notify(d->lane->notify_arg);
}

bool disk_next(struct disk_mover *d, bool wait, struct disk_piece *out) {
    struct shelf_lane *l = d->lane;
    pthread_mutex_lock(&l->lock);
    for (;;) {
        struct shelf_job *job = l->todo;
        struct disk_notes *notes = NULL;
        if (job) {
            l->todo = job->next;
            if (!l->todo)
                l->todo_end = &l->todo;
        } else if (cut(d, DISK_READ, out) || cut(d, DISK_WRITE, out)) {
            pthread_mutex_unlock(&l->lock);
            return true;
        } else if (wait && d->reopen == DISK_REOPEN) {
            pthread_mutex_unlock(&l->lock);
            reopen(d);
            pthread_mutex_lock(&l->lock);
            continue;
        } else if (wait && d->notes) {
            notes = d->notes;
            d->notes = NULL;
        } else if (!wait || l->closing) {
            pthread_mutex_unlock(&l->lock);
            return false;
        } else {
            pthread_cond_wait(&l->wake, &l->lock);
            continue;
        }
        pthread_mutex_unlock(&l->lock);
        if (job)
            prepare(d, job);
        else
            write_notes(d, notes);
        pthread_mutex_lock(&l->lock);
    }
}

static void end_part(struct disk_mover *d, struct shelf_job *job, struct shelf_part *p) {
    uint64_t sum[2];
    if (p->error)
        return; /* TIER_FAILED from the start */
    sum_of(d, p, sum);
    if (job->task == TIER_LOAD) {
        p->outcome = memcmp(sum, p->sum, sizeof sum) != 0 ? TIER_DAMAGED : TIER_OK;
        /* Not to be found again after a restart; nobody else has the place as yet. */
        if (p->outcome == TIER_DAMAGED)
            disk_entry_clear(d->files, p->kind, p->place);
        return;
    }
    memcpy(p->sum, sum, sizeof sum);
    const struct disk_entry e = {.key = p->key,
                                 .kind = (uint32_t)p->kind,
                                 .position = p->position,
                                 .generation = atomic_fetch_add(&d->generation, 1) + 1,
                                 .sum = {sum[0], sum[1]},
                                 .use = p->use};
    p->error = disk_entry_write(d->files, p->place, &e);
    p->outcome = p->error ? TIER_FAILED : TIER_OK;
}

static void end_job(struct disk_mover *d, struct shelf_job *job) {
    int error = job->error;
    for (uint32_t i = 0; i < job->n_parts; i++) {
        struct shelf_part *p = &job->parts[i];
        if (!p->moving)
            continue;
        if (p->kind == SHELF_STATE && job->task == TIER_STORE && !error)
            end_part(d, job, p);
        error = error ? error : p->error;
    }
    if (error)
        set_trouble(d, job, error);
    else
        ease_trouble(d, job);
    lane_done(d->lane, job);
}

void disk_end(struct disk_mover *d, const struct disk_piece *p, unsigned char *buffer, int error) {
    if (p->direction == DISK_READ && !error)
        unpack(d, p, buffer);
    pthread_mutex_lock(&d->lane->lock);
    if (error && !p->part->error)
        p->part->error = error;
    if (error && !p->job->error)
        p->job->error = error;
    bool part_ends = --p->part->left == 0;
    pthread_mutex_unlock(&d->lane->lock);
    if (part_ends && (p->part->kind == SHELF_PAGE || p->direction == DISK_READ))
        end_part(d, p->job, p->part);
    pthread_mutex_lock(&d->lane->lock);
    bool job_ends = --p->job->left == 0;
    pthread_mutex_unlock(&d->lane->lock);
    if (job_ends)
        end_job(d, p->job);
}

/* ------------------------------------------------------------------------------------------------
 * threads */

struct transfer disk_transfer(const struct disk_piece *p, void *buffer) {
    return (struct transfer){.fd = p->fd,
                             .write = p->direction == DISK_WRITE,
                             .buffer = buffer,
                             .offset = p->offset,
                             .bytes = p->span,
                             .need = p->span};
}

int disk_error(const struct transfer *t) {
    return t->error != TRANSFER_SHORT ? t->error : t->write ? ENOSPC : EIO;
}

void *disk_blocking_run(void *arg) {
    struct disk_mover *d = arg;
    struct disk_piece p;
    unsigned char *buffer = NULL;
    while (disk_next(d, true, &p)) {
        buffer = buffer ? buffer : io_buffer(d->buffer_bytes);
        int error = p.skip ? ECANCELED : buffer ? 0 : ENOMEM;
        if (!error) {
            disk_begin(d, &p, buffer);
            struct transfer t = disk_transfer(&p, buffer);
            transfer_run(&t);
            error = disk_error(&t);
        }
        disk_end(d, &p, buffer, error);
    }
    free(buffer);
    return NULL;
}

bool disk_mover_open(struct disk_mover *d) {
    /* Of each thread: enough to keep a fast disk busy while other pieces are packed and hashed. */
    const size_t buffers_bytes = (size_t)32 << 20;
    for (int k = 0; k < SHELF_KINDS; k++) {
        if (d->files->layout[k].piece_span > d->buffer_bytes)
            d->buffer_bytes = d->files->layout[k].piece_span;
    }
    for (int i = 0; i < DISK_DIRECTIONS; i++)
        d->ready_end[i] = &d->ready[i];
    d->buffers = (uint32_t)(buffers_bytes / d->buffer_bytes);
    d->buffers = d->buffers < 4 ? 4 : d->buffers > 32 ? 32 : d->buffers;
    if (d->way != DISK_THREADS)
        d->way = ring_works() ? DISK_RING : DISK_THREADS;
    uint32_t n = d->way == DISK_THREADS ? DISK_MAX_THREADS : cpu_count() > 1 ? 2 : 1;
    void *(*run)(void *) = d->way == DISK_THREADS ? disk_blocking_run : disk_ring_run;
    while (d->n_threads < n && lane_thread(&d->thread[d->n_threads], run, d))
        d->n_threads++;
    return d->n_threads > 0;
}

void disk_mover_close(struct disk_mover *d) {
    lane_stop(d->lane);
    for (uint32_t i = 0; i < d->n_threads; i++)
        pthread_join(d->thread[i], NULL);
    write_notes(d, d->notes);
    d->notes = NULL;
}

void disk_mover_note(struct disk_mover *d, struct disk_notes *notes) {
    pthread_mutex_lock(&d->lane->lock);
    struct disk_notes **end = &d->notes;
    while (*end)
        end = &(*end)->next;
    *end = notes;
    notes->next = NULL;
    pthread_cond_signal(&d->lane->wake);
    pthread_mutex_unlock(&d->lane->lock);
}

bool disk_mover_noting(struct disk_mover *d) {
    pthread_mutex_lock(&d->lane->lock);
    bool noting = d->notes != NULL;
    pthread_mutex_unlock(&d->lane->lock);
    return noting;
}

bool disk_mover_gone(struct disk_mover *d) {
    pthread_mutex_lock(&d->lane->lock);
    bool gone = d->gone && clock_seconds() >= d->trouble[DISK_WRITE].until;
    pthread_mutex_unlock(&d->lane->lock);
    return gone;
}

void disk_mover_reopen(struct disk_mover *d) {
    pthread_mutex_lock(&d->lane->lock);
    d->reopen = DISK_REOPEN;
    pthread_cond_signal(&d->lane->wake);
    pthread_mutex_unlock(&d->lane->lock);
}

bool disk_mover_reopened(struct disk_mover *d, bool *ok) {
    pthread_mutex_lock(&d->lane->lock);
    bool ended = d->reopen == DISK_REOPENED || d->reopen == DISK_NOT_REOPENED;
    *ok = d->reopen == DISK_REOPENED;
    if (ended)
        d->reopen = DISK_STAYS;
    pthread_mutex_unlock(&d->lane->lock);
    return ended;
}
