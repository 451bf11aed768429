/* disk.c: the tier in files. Opened by the engine; the files are disk_file.c's, the threads
 * disk_io.c's.
 * Invariant that bites: the engine's thread calls these functions between two steps, so none of
 * them touches a file after opening. */
#include "cache/disk.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/plural.h"
#include "cache/disk_dir.h"

#include <string.h>

enum { MOST_NOTES = 1 << 16 };

struct disk_tier {
    struct tier tier;
    struct shelf *shelf;
    struct shelf_lane lane;
    struct disk_files files;
    struct disk_mover mover;
    double note_every, noted_at, grow_at;
    uint64_t noted_use; /* what was used before is on disk */
    bool reopening;     /* no jobs are given meanwhile */
    bool small;         /* the shelf was shrunk because the disk was full */
};

static struct disk_tier *disk_of(struct tier *t) {
    return (struct disk_tier *)(void *)t;
}

static enum tier_presence disk_page(struct tier *t, const struct cache_key *key) {
    const struct shelf_record *r = shelf_find(disk_of(t)->shelf, SHELF_PAGE, key, 0);
    return r ? r->presence : TIER_ABSENT;
}

static enum tier_presence disk_state(struct tier *t, const struct cache_key *key,
                                     uint32_t position) {
    const struct shelf_record *r = shelf_find(disk_of(t)->shelf, SHELF_STATE, key, position);
    return r ? r->presence : TIER_ABSENT;
}

static void disk_submit(struct tier *t, struct tier_move *m) {
    struct disk_tier *d = disk_of(t);
    if (d->small && clock_seconds() >= d->grow_at) {
        d->small = false;
        shelf_grow(d->shelf);
    }
    if (m->task == TIER_STORE && !d->reopening && !d->lane.open && disk_mover_gone(&d->mover)) {
        d->reopening = true;
        disk_mover_reopen(&d->mover);
    }
    bool off = d->reopening || disk_mover_gone(&d->mover);
    if ((m->task == TIER_STORE && (off || !disk_mover_may(&d->mover, DISK_WRITE))) ||
        (m->task == TIER_LOAD && (d->reopening || !disk_mover_may(&d->mover, DISK_READ))))
        lane_end(&d->lane, m, TIER_DECLINED);
    else
        lane_submit(&d->lane, d->shelf, m);
}

/* Hands the order of use of what was used since the last time to the tier's threads, unless they
 * have not come to write the last one. */
static void note_uses(struct disk_tier *d, bool at_the_end) {
    uint32_t n = 0;
    if (!at_the_end && disk_mover_noting(&d->mover))
        return;
    const struct shelf_record *newest = shelf_newest(d->shelf), *r;
    for (r = newest; r && r->use > d->noted_use && n < MOST_NOTES; r = r->older)
        n += r->presence == TIER_PRESENT;
    struct disk_notes *notes = n ? malloc(sizeof *notes + n * sizeof *notes->note) : NULL;
    if (!notes)
        return;
    *notes = (struct disk_notes){0};
    for (r = newest; notes->n < n; r = r->older)
        if (r->presence == TIER_PRESENT)
            notes->note[notes->n++] = (struct disk_note){r->kind, r->place, r->use};
    d->noted_use = newest->use;
    disk_mover_note(&d->mover, notes);
}

static struct tier_move *disk_collect(struct tier *t) {
    struct disk_tier *d = disk_of(t);
    uint64_t damaged = d->lane.damaged;
    struct tier_move *first = lane_collect(&d->lane, d->shelf);
    if (!damaged && d->lane.damaged)
        log_line(LOG_WARN,
                 "disk cache %s: a record does not match its checksum; such records are "
                 "dropped (said once, counted in the metrics)",
                 d->files.path);
    bool fresh;
    if (disk_mover_reopened(&d->mover, &fresh)) {
        d->reopening = false;
        if (fresh) {
            shelf_forget(d->shelf);
            d->lane.began++;
        }
    }
    double now = clock_seconds();
    if (d->lane.no_space) { /* others fill the disk: go on with the places we have */
        d->lane.no_space = false;
        shelf_shrink(d->shelf);
        d->small = true;
        d->grow_at = now + DISK_GROW_PAUSES * d->mover.pause;
    }
    if (now >= d->noted_at + d->note_every) {
        d->noted_at = now;
        note_uses(d, false);
    }
    return first;
}

static void disk_touch(struct tier *t, const struct cache_key *keys, uint32_t n, bool state) {
    shelf_use(disk_of(t)->shelf, keys, n, state && n ? &keys[n - 1] : NULL, true);
}

static void disk_usage(const struct tier *t, struct tier_usage *out) {
    /* Const but for the lock. */
    struct disk_tier *d = disk_of((struct tier *)(uintptr_t)t);
    shelf_tell(d->shelf, out);
    out->damaged = d->lane.damaged;
    out->lost = d->lane.lost;
    out->began = d->lane.began;
    out->up = !d->reopening && disk_mover_may(&d->mover, DISK_READ);
    out->takes = !d->reopening && disk_mover_works(&d->mover, DISK_WRITE);
}

static uint64_t disk_reset(struct tier *t, uint64_t *left) {
    struct disk_tier *d = disk_of(t);
    d->lane.began++;
    struct disk_notes *notes = malloc(sizeof *notes);
    if (notes) {
        /* What is under way gets its generation later than this and so survives. */
        *notes = (struct disk_notes){.floor = atomic_fetch_add(&d->mover.generation, 1) + 1};
        disk_mover_note(&d->mover, notes);
    }
    return shelf_reset(d->shelf, left);
}

static void disk_close(struct tier *t) {
    struct disk_tier *d = disk_of(t);
    if (d->mover.n_threads) {
        note_uses(d, true);
        disk_mover_close(&d->mover);
    }
    lane_close(&d->lane);
    shelf_close(d->shelf);
    disk_files_close(&d->files);
    free(d);
}

weir_status disk_open_tuned(const struct tier_setup *setup, const char *directory, uint64_t bytes,
                            const struct disk_tuning *tuning, struct tier **out, weir_error *err) {
    *out = NULL;
    struct disk_tier *d = calloc(1, sizeof *d);
    if (!d)
        return weir_fail(err, WEIR_NO_MEMORY, "disk_offload_dir", "no memory for the disk cache");
    weir_error why;
    weir_status st = disk_files_open(&d->files, setup, directory, &why);
    if (st != WEIR_OK) {
        free(d);
        return weir_fail(err, st == WEIR_BAD_FILE ? WEIR_BAD_VALUE : st, "disk_offload_dir",
                         "%s: %s", why.where, why.message);
    }
    d->tier = (struct tier){TIER_DISK,  disk_page,  disk_state, disk_submit, disk_collect,
                            disk_touch, disk_usage, disk_reset, disk_close};
    lane_open(&d->lane, setup, tuning->most_storing_bytes);
    d->note_every = tuning->note_every;
    d->noted_at = clock_seconds();
    d->mover = (struct disk_mover){.files = &d->files,
                                   .store = setup->store,
                                   .shape = &d->files.shape,
                                   .lane = &d->lane,
                                   .way = tuning->way,
                                   .pause = tuning->pause};
    uint64_t place[SHELF_KINDS], generation = 0, beyond = 0;
    for (int k = 0; k < SHELF_KINDS; k++)
        place[k] = d->files.layout[k].place_bytes;
    d->shelf = shelf_open(place, bytes);
    if (d->shelf)
        disk_files_adopt(&d->files, d->shelf, &generation, &beyond);
    if (d->shelf && shelf_newest(d->shelf))
        d->noted_use = shelf_newest(d->shelf)->use;
    atomic_store(&d->mover.generation, generation);
    if (!d->shelf || !disk_mover_open(&d->mover)) {
        disk_close(&d->tier);
        return weir_fail(err, WEIR_NO_MEMORY, "disk_offload_dir",
                         "no memory or thread for the disk cache");
    }
    struct shelf_usage u = shelf_get_usage(d->shelf);
    log_line(LOG_INFO, "disk cache %s: %s%s, %" PRIu64 " %s and %" PRIu64 " %s found",
             d->files.path, d->mover.way == DISK_RING ? "io_uring" : "threads",
             d->files.direct ? ", past the page cache" : "", u.records[SHELF_PAGE],
             plural(u.records[SHELF_PAGE], "page", "pages"), u.records[SHELF_STATE],
             plural(u.records[SHELF_STATE], "state", "states"));
    if (beyond > 0)
        log_line(LOG_WARN,
                 "disk cache %s: %" PRIu64 " %s more than its limit of %" PRIu64
                 " bytes holds %s given up, used longest ago first",
                 d->files.path, beyond, plural(beyond, "record", "records"), bytes,
                 plural(beyond, "was", "were"));
    disk_dir_tell_others(d->files.path);
    *out = &d->tier;
    return WEIR_OK;
}

weir_status tier_open_disk(const struct tier_setup *s, const char *directory, uint64_t bytes,
                           struct tier **out, weir_error *err) {
    const struct disk_tuning usual = {
        .way = DISK_AUTO, .pause = 10, .note_every = 10, .most_storing_bytes = (uint64_t)2 << 30};
    return disk_open_tuned(s, directory, bytes, &usual, out, err);
}
