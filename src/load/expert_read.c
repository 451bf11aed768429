/* expert_read.c: reads units of experts from the shards: through io_uring with many requests under
 * way from one thread, or with several threads that each read one unit. Started by expert_cache.c.
 * Past the page cache, because the kernel would fill memory with what is read once, and give up
 * what is in use. Invariant that bites: tensors are not aligned, so what is read is the aligned
 * stretch around one, which at the end of a file reaches beyond it: a read that brings the tensor
 * is whole. */
#include "load/expert_inside.h"

#include "base/file.h"
#include "load/check.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { READINGS = 32 }; /* units under way at once */

static uint64_t align_down(uint64_t n) {
    return n / IO_ALIGN * IO_ALIGN;
}
static uint64_t align_up(uint64_t n) {
    return align_down(n + IO_ALIGN - 1);
}

/* ------------------------------------------------------------------------------------------------
 * places */

static struct expert_stretch stretch_of(const struct expert_cache *c, const struct shard_tensor *t,
                                        size_t at) {
    uint64_t from = align_down(t->entry->begin);
    return (struct expert_stretch){.file = &c->file[t->shard - c->shards->shard],
                                   .last = t,
                                   .offset = from,
                                   .bytes = align_up(t->entry->end) - from,
                                   .need = t->entry->end - from,
                                   .at = at};
}

/* Codes and scales that lie side by side are one stretch. */
struct expert_plan expert_plan_of(const struct expert_cache *c, size_t matrix) {
    const struct shard_tensor *data = c->home[matrix].data, *scale = c->home[matrix].scale;
    const struct shard_tensor *first = data, *second = scale;
    if (scale && scale->shard == data->shard && scale->entry->begin < data->entry->begin) {
        first = scale;
        second = data;
    }
    struct expert_plan p = {.n = 1, .stretch[0] = stretch_of(c, first, 0)};
    struct expert_stretch *s = &p.stretch[0];
    size_t second_at = 0;
    if (second && second->shard == first->shard &&
        align_down(second->entry->begin) <= align_up(first->entry->end)) {
        second_at = second->entry->begin - s->offset;
        s->last = second;
        s->need = second->entry->end - s->offset;
        s->bytes = align_up(second->entry->end) - s->offset;
    } else if (second) {
        p.n = 2;
        p.stretch[1] = stretch_of(c, second, s->bytes);
        second_at = s->bytes + (second->entry->begin - p.stretch[1].offset);
    }
    size_t first_at = first->entry->begin - s->offset;
    p.data_at = first == data ? first_at : second_at;
    p.scale_at = first == data ? second_at : first_at;
    p.frame_bytes = s->bytes + (p.n == 2 ? p.stretch[1].bytes : 0);
    return p;
}

/* Does the file system read past the page cache? Some take the flag and fail the first read. */
static int open_direct(const char *path) {
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_DIRECT);
    void *block = NULL;
    bool ok = fd >= 0 && posix_memalign(&block, IO_ALIGN, IO_ALIGN) == 0 &&
              pread(fd, block, IO_ALIGN, 0) > 0;
    free(block);
    if (!ok && fd >= 0)
        close(fd);
    return ok ? fd : -1;
}

weir_status expert_files_open(struct expert_cache *c, const char *dir, weir_error *err) {
    c->file = calloc(c->shards->n, sizeof *c->file);
    for (size_t i = 0; c->file && i < c->shards->n; i++)
        c->file[i].fd = -1;
    for (size_t i = 0; c->file && i < c->shards->n; i++) {
        char *path = file_join(dir, c->shards->shard[i].name);
        if (!path)
            return weir_fail(err, WEIR_NO_MEMORY, dir, "no memory");
        c->file[i].fd = open_direct(path);
        c->file[i].direct = c->file[i].fd >= 0;
        if (c->file[i].fd < 0)
            c->file[i].fd = open(path, O_RDONLY | O_CLOEXEC);
        free(path);
        if (c->file[i].fd < 0)
            return weir_fail(err, WEIR_BAD_FILE, c->shards->shard[i].name, "cannot be opened: %s",
                             strerror(errno));
    }
    return c->file ? WEIR_OK : weir_fail(err, WEIR_NO_MEMORY, dir, "no memory");
}

void expert_files_close(struct expert_cache *c) {
    for (size_t i = 0; c->file && i < c->shards->n; i++)
        if (c->file[i].fd >= 0)
            close(c->file[i].fd);
    free(c->file);
}

static struct transfer transfer_of(const struct expert_stretch *s, unsigned char *memory) {
    return (struct transfer){.fd = s->file->fd,
                             .buffer = memory + s->at,
                             .offset = s->offset,
                             .bytes = s->bytes,
                             .need = s->need};
}

/* A read through the page cache leaves nothing there. */
static void forget(const struct expert_stretch *s) {
    if (!s->file->direct)
        posix_fadvise(s->file->fd, (off_t)s->offset, (off_t)s->bytes, POSIX_FADV_DONTNEED);
}

static void describe(const struct expert_stretch *s, int error, weir_error *why) {
    const struct safetensors_entry *e = s->last->entry;
    struct stat st;
    if (fstat(s->file->fd, &st) == 0 && (uint64_t)st.st_size < e->end)
        weir_fail(why, WEIR_BAD_FILE, s->last->shard->name,
                  "tensor %s: needs bytes %" PRIu64 "..%" PRIu64 ", file ends at %" PRIu64, e->name,
                  e->begin, e->end, (uint64_t)st.st_size);
    else
        weir_fail(why, WEIR_BAD_FILE, s->last->shard->name, "tensor %s: cannot be read: %s",
                  e->name, strerror(error == TRANSFER_SHORT ? EIO : error));
}

/* ------------------------------------------------------------------------------------------------
 * units */

/* A unit on its way, with a transfer for each stretch. */
struct reading {
    uint32_t unit, n, left;
    struct reading *next; /* free ones */
    struct piece {
        struct transfer transfer; /* first: what the ring gives back is the piece */
        struct expert_stretch stretch;
        struct reading *reading;
    } piece[4];
};

/* Elements of two or four bytes are used in place, so they must lie on a multiple of that. */
static void realign(struct weight *w) {
    size_t size = w->dtype == DTYPE_BF16 ? 2 : w->dtype == DTYPE_F32 ? 4 : 1;
    size_t off = (uintptr_t)w->data % size;
    unsigned char *data = (unsigned char *)(uintptr_t)w->data;
    if (off) /* down, where the aligned stretch has room */
        w->data = memmove(data - off, data, (size_t)w->rows * w->cols * size);
}

/* Under the lock; returns false where there is nothing to read now. */
static bool prepare(struct expert_cache *c, struct reading *r) {
    r->unit = expert_next(c);
    if (r->unit == NO_UNIT)
        return false;
    r->n = 0;
    for (uint32_t i = 0; i < unit_frames(unit_part(c, r->unit)); i++) {
        struct expert_plan p = expert_plan_of(c, unit_matrix(c, r->unit, i));
        unsigned char *memory = frame_memory(c, c->unit[r->unit].frame[i]);
        for (uint32_t k = 0; k < p.n; k++)
            r->piece[r->n++] = (struct piece){transfer_of(&p.stretch[k], memory), p.stretch[k], r};
    }
    r->left = r->n;
    return true;
}

static void finish(struct expert_cache *c, struct reading *r) {
    weir_error why;
    const struct piece *bad = NULL;
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < r->n; i++) {
        forget(&r->piece[i].stretch);
        bytes += r->piece[i].transfer.bytes;
        if (r->piece[i].transfer.error && !bad)
            bad = &r->piece[i];
    }
    int error = bad ? bad->transfer.error : 0;
    if (!error && c->setup.fault)
        error = c->setup.fault(c->setup.fault_arg, unit_layer(c, r->unit), unit_part(c, r->unit),
                               unit_expert(c, r->unit));
    if (error)
        describe(bad ? &bad->stretch : &r->piece[0].stretch, error, &why);
    for (uint32_t i = 0; i < unit_frames(unit_part(c, r->unit)); i++)
        realign(&c->frame[c->unit[r->unit].frame[i]].w);
    pthread_mutex_lock(&c->lock);
    expert_read_ended(c, r->unit, bytes, error ? &why : NULL);
    pthread_mutex_unlock(&c->lock);
}

static void *run_blocking(void *arg) {
    struct expert_cache *c = arg;
    struct reading r;
    for (;;) {
        pthread_mutex_lock(&c->lock);
        bool found;
        while (!(found = prepare(c, &r)) && !c->closing)
            pthread_cond_wait(&c->work, &c->lock);
        pthread_mutex_unlock(&c->lock);
        if (!found)
            return NULL;
        for (uint32_t i = 0; i < r.n; i++)
            transfer_run(&r.piece[i].transfer);
        finish(c, &r);
    }
}

/* Starts what can be; waits for work if nothing is under way. False: nothing is, and all ends. */
static bool start_readings(struct expert_cache *c, struct ring *ring, struct reading **idle) {
    for (;;) {
        bool found = false;
        pthread_mutex_lock(&c->lock);
        while (*idle && !(found = prepare(c, *idle)) && !ring_busy(ring) && !c->closing)
            pthread_cond_wait(&c->work, &c->lock);
        pthread_mutex_unlock(&c->lock);
        if (!found)
            return ring_busy(ring) > 0;
        struct reading *r = *idle;
        *idle = r->next;
        for (uint32_t i = 0; i < r->n; i++)
            ring_start(ring, &r->piece[i].transfer);
    }
}

static void *run_ring(void *arg) {
    struct expert_cache *c = arg;
    struct ring *ring = ring_open();
    struct reading *all = ring ? calloc(READINGS, sizeof *all) : NULL, *idle = NULL;
    if (!all) {
        ring_close(ring);
        return run_blocking(arg);
    }
    for (int i = 0; i < READINGS; i++) {
        all[i].next = idle;
        idle = &all[i];
    }
    while (start_readings(c, ring, &idle))
        for (struct transfer *t = ring_wait(ring); t; t = ring_ended(ring)) {
            struct reading *r = ((struct piece *)t)->reading;
            if (--r->left > 0)
                continue;
            finish(c, r);
            r->next = idle;
            idle = r;
        }
    ring_close(ring);
    free(all);
    return NULL;
}

bool expert_readers_open(struct expert_cache *c) {
    c->way = c->setup.way;
    if (c->way == EXPERT_AUTO)
        c->way = ring_works() ? EXPERT_RING : EXPERT_THREADS;
    uint32_t n = c->way == EXPERT_RING ? 1 : EXPERT_MAX_THREADS;
    sigset_t all, before; /* signals are the program's */
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    while (c->n_threads < n &&
           pthread_create(&c->thread[c->n_threads], NULL,
                          c->way == EXPERT_RING ? run_ring : run_blocking, c) == 0)
        c->n_threads++;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return c->n_threads > 0;
}

void expert_readers_close(struct expert_cache *c) {
    pthread_mutex_lock(&c->lock);
    c->closing = true;
    c->now.first = c->after.first = c->guesses.first = NO_UNIT;
    pthread_cond_broadcast(&c->work);
    pthread_mutex_unlock(&c->lock);
    for (uint32_t i = 0; i < c->n_threads; i++)
        pthread_join(c->thread[i], NULL);
}

/* ------------------------------------------------------------------------------------------------
 * at loading */

/* One scale tensor on its way to be looked at. */
struct scale_read {
    struct transfer transfer; /* first, as above */
    struct expert_stretch stretch;
    struct weight_spec spec;
    bool busy;
};

struct scale_check {
    struct expert_cache *c;
    struct ring *ring; /* NULL: one after the other */
    struct scale_read *slot;
    uint32_t slots;
    weir_error *err;
};

static weir_status look_at(struct scale_check *k, struct scale_read *r) {
    const struct shard_tensor *t = r->stretch.last;
    weir_error why;
    r->busy = false;
    forget(&r->stretch);
    if (r->transfer.error) {
        describe(&r->stretch, r->transfer.error, &why);
        return weir_fail(k->err, why.code, why.where, "%s", why.message);
    }
    const unsigned char *data =
        (unsigned char *)r->transfer.buffer + (t->entry->begin - r->stretch.offset);
    return weight_check_scale_bytes(t, data, r->spec.cols, k->err);
}

static weir_status drain(struct scale_check *k, bool all) {
    weir_status s = WEIR_OK;
    while (k->ring && ring_busy(k->ring)) {
        struct transfer *t = ring_wait(k->ring);
        if (t && !s)
            s = look_at(k, (struct scale_read *)t);
        if (t && !all)
            break;
    }
    return s;
}

static weir_status check_one(void *arg, const struct weight_spec *spec) {
    struct scale_check *k = arg;
    struct expert_cache *c = k->c;
    if (spec->expert < 0)
        return WEIR_OK;
    size_t kind = (size_t)(spec->role - ROLE_EXPERT_W1);
    size_t at = ((size_t)spec->layer * EXPERT_MATRICES + kind) * c->m->experts;
    const struct shard_tensor *scale = c->home[at + (size_t)spec->expert].scale;
    if (!scale)
        return WEIR_OK;
    struct scale_read *r = NULL;
    weir_status s = WEIR_OK;
    while (!r && !s) {
        for (uint32_t i = 0; i < k->slots && !r; i++)
            r = k->slot[i].busy ? NULL : &k->slot[i];
        if (!r)
            s = drain(k, false);
    }
    if (s)
        return s;
    void *buffer = r->transfer.buffer;
    *r = (struct scale_read){.stretch = stretch_of(c, scale, 0), .spec = *spec, .busy = true};
    r->transfer = transfer_of(&r->stretch, buffer);
    if (k->ring) {
        ring_start(k->ring, &r->transfer);
        return WEIR_OK;
    }
    transfer_run(&r->transfer);
    return look_at(k, r);
}

weir_status expert_cache_check(struct expert_cache *c, weir_error *err) {
    struct scale_check k = {.c = c, .err = err};
    size_t most = 0;
    for (size_t i = 0; i < (size_t)c->m->layers * EXPERT_MATRICES * c->m->experts; i++)
        if (c->home[i].scale) {
            size_t bytes = stretch_of(c, c->home[i].scale, 0).bytes;
            most = bytes > most ? bytes : most;
        }
    if (most == 0)
        return WEIR_OK; /* experts that are not packed have none */
    k.ring = c->way == EXPERT_RING ? ring_open() : NULL;
    k.slots = k.ring ? READINGS : 1;
    k.slot = calloc(k.slots, sizeof *k.slot);
    unsigned char *buffers = io_buffer(most * k.slots);
    weir_status s = k.slot && buffers ? WEIR_OK
                                      : weir_fail(err, WEIR_NO_MEMORY, "weights",
                                                  "no memory to check the scales of experts");
    for (uint32_t i = 0; i < k.slots && !s; i++)
        k.slot[i].transfer.buffer = buffers + i * most;
    if (!s)
        s = model_each_weight(c->m, check_one, &k);
    weir_status rest = drain(&k, true);
    ring_close(k.ring);
    free(buffers);
    free(k.slot);
    return s ? s : rest;
}

/* A stretch of a shard that holds experts. */
struct run {
    const struct shard *shard;
    uint64_t begin, end;
};

static int by_place(const void *a, const void *b) {
    const struct run *x = a, *y = b;
    if (x->shard != y->shard)
        return x->shard < y->shard ? -1 : 1;
    return x->begin < y->begin ? -1 : x->begin > y->begin;
}

static uint64_t header_end(const struct shard *s) {
    uint64_t end = UINT64_MAX;
    for (size_t i = 0; i < s->header.n; i++)
        end = s->header.entry[i].begin < end ? s->header.entry[i].begin : end;
    return end;
}

/* Experts that lie side by side are one run: the kernel allows only so many areas of memory, and
 * lets go of whole blocks of pages. Outer pages too, and a header before the first; what others
 * have on them comes back from the file. */
static size_t find_runs(const struct expert_cache *c, struct run *run) {
    size_t tensors = 2 * (size_t)c->m->layers * EXPERT_MATRICES * c->m->experts, found = 0, n = 0;
    for (size_t i = 0; i < tensors; i++) {
        const struct shard_tensor *t = i % 2 ? c->home[i / 2].scale : c->home[i / 2].data;
        if (t)
            run[found++] =
                (struct run){t->shard, align_down(t->entry->begin), align_up(t->entry->end)};
    }
    qsort(run, found, sizeof *run, by_place);
    for (size_t i = 0; i < found; i++)
        if (n && run[n - 1].shard == run[i].shard && run[i].begin <= run[n - 1].end)
            run[n - 1].end = run[i].end;
        else
            run[n++] = run[i];
    for (size_t i = 0; i < n; i++)
        if (run[i].begin <= header_end(run[i].shard))
            run[i].begin = 0;
    return n;
}

/* Advice is worth no failure: without memory there is none. */
static void advise(struct expert_cache *c, int advice, bool forget_pages) {
    size_t tensors = 2 * (size_t)c->m->layers * EXPERT_MATRICES * c->m->experts;
    struct run *run = malloc(size_mul(tensors, sizeof *run));
    size_t n = run ? find_runs(c, run) : 0;
    for (size_t i = 0; i < n; i++) {
        unsigned char *map = (unsigned char *)(uintptr_t)run[i].shard->map.data;
        uint64_t bytes = run[i].end - run[i].begin;
        madvise(map + run[i].begin, bytes, advice);
        if (forget_pages)
            posix_fadvise(c->file[run[i].shard - c->shards->shard].fd, (off_t)run[i].begin,
                          (off_t)bytes, POSIX_FADV_DONTNEED);
    }
    free(run);
}

void expert_cache_expect_samples(struct expert_cache *c) {
    advise(c, MADV_RANDOM, false);
}

void expert_cache_drop_pages(struct expert_cache *c) {
    advise(c, MADV_DONTNEED, true);
}
