/* host.c: the tier in host memory: pages and states as they lie in the device pools, in two
 * mappings that cost memory only as far as they are used. Opened by the engine.
 * Invariant that bites: both mappings are as large as the whole budget, so bytes of places that
 * changed to the other kind must go back to the system before the new ones are written. */
#include "base/log.h"
#include "cache/shelf_job.h"
#include "cache/store_device.h"

#include <string.h>
#include <sys/mman.h>
#include <xxhash.h>

/* Small enough that what was copied is still in the cache when it is hashed. */
enum { HOST_THREADS = 2, COPY_BLOCK = 128 << 10, PAGE_SIZE_BYTES = 4096 };

struct host_tier {
    struct tier tier;
    struct shelf *shelf;
    struct shelf_lane lane;
    const struct cache_store *store;
    unsigned char *map[SHELF_KINDS];
    size_t map_bytes[SHELF_KINDS];
    size_t bytes[SHELF_KINDS]; /* of a record; a place is rounded up to whole pages of memory */
    pthread_t thread[HOST_THREADS];
    int n_threads;
};

static struct host_tier *host_of(struct tier *t) {
    return (struct host_tier *)(void *)t;
}

static unsigned char *place_at(const struct host_tier *h, enum shelf_kind kind, uint32_t place) {
    return h->map[kind] + place * (size_t)shelf_record_bytes(h->shelf, kind);
}

/* Copies and returns the checksum of what was copied, read back from the target. */
static uint64_t copy_hashed(unsigned char *to, const unsigned char *from, size_t bytes,
                            uint64_t seed) {
    for (size_t at = 0; at < bytes; at += COPY_BLOCK) {
        size_t n = bytes - at < COPY_BLOCK ? bytes - at : COPY_BLOCK;
        memcpy(to + at, from + at, n);
        seed = XXH3_64bits_withSeed(to + at, n, seed);
    }
    return seed;
}

/* Pools of a device: one copy either way, beside the hash of what lies here. */
static bool move_device(struct host_tier *h, bool storing, unsigned char *host,
                        unsigned char *device, size_t bytes, uint64_t seed, uint64_t *sum) {
    if (storing && !store_device_read(h->store->device, device, host, bytes))
        return false;
    *sum = XXH3_64bits_withSeed(host, bytes, seed);
    return storing || store_device_write(h->store->device, device, host, bytes);
}

static void move_part(struct host_tier *h, struct shelf_part *p, bool storing) {
    unsigned char *device =
        p->kind == SHELF_PAGE ? record_page(h->store, p->id) : record_slot(h->store, p->id);
    unsigned char *host = place_at(h, p->kind, p->place);
    uint64_t seed = XXH3_64bits_withSeed(&p->key, sizeof p->key, p->position);
    uint64_t sum;
    if (!h->store->device)
        sum =
            copy_hashed(storing ? host : device, storing ? device : host, h->bytes[p->kind], seed);
    else if (!move_device(h, storing, host, device, h->bytes[p->kind], seed, &sum)) {
        p->outcome = TIER_FAILED;
        return;
    }
    if (storing)
        p->sum[0] = sum;
    p->outcome = storing || p->sum[0] == sum ? TIER_OK : TIER_DAMAGED;
}

static void *host_run(void *arg) {
    struct host_tier *h = arg;
    for (struct shelf_job *job; (job = lane_take(&h->lane));) {
        for (uint32_t i = 0; i < job->n_give_back; i++) {
            const struct shelf_place *g = &job->give_back[i];
            madvise(place_at(h, g->kind, g->place), shelf_record_bytes(h->shelf, g->kind),
                    MADV_DONTNEED);
        }
        for (uint32_t i = 0; i < job->n_parts; i++)
            if (job->parts[i].moving)
                move_part(h, &job->parts[i], job->task == TIER_STORE);
        lane_done(&h->lane, job);
    }
    return NULL;
}

static enum tier_presence host_page(struct tier *t, const struct cache_key *key) {
    const struct shelf_record *r = shelf_find(host_of(t)->shelf, SHELF_PAGE, key, 0);
    return r ? r->presence : TIER_ABSENT;
}

static enum tier_presence host_state(struct tier *t, const struct cache_key *key,
                                     uint32_t position) {
    const struct shelf_record *r = shelf_find(host_of(t)->shelf, SHELF_STATE, key, position);
    return r ? r->presence : TIER_ABSENT;
}

static void host_submit(struct tier *t, struct tier_move *m) {
    lane_submit(&host_of(t)->lane, host_of(t)->shelf, m);
}

static struct tier_move *host_collect(struct tier *t) {
    struct host_tier *h = host_of(t);
    uint64_t damaged = h->lane.damaged;
    struct tier_move *first = lane_collect(&h->lane, h->shelf);
    if (!damaged && h->lane.damaged)
        log_line(LOG_ERROR, "host cache: bytes changed while they lay in memory; their records are "
                            "dropped (said once, counted in the metrics)");
    return first;
}

static void host_touch(struct tier *t, const struct cache_key *keys, uint32_t n, bool state) {
    shelf_use(host_of(t)->shelf, keys, n, state && n ? &keys[n - 1] : NULL, true);
}

static void host_usage(const struct tier *t, struct tier_usage *out) {
    const struct host_tier *h = (const struct host_tier *)(const void *)t;
    shelf_tell(h->shelf, out);
    out->damaged = h->lane.damaged;
    out->lost = h->lane.lost;
    out->began = h->lane.began;
    out->up = out->takes = true;
}

static uint64_t host_reset(struct tier *t, uint64_t *left) {
    host_of(t)->lane.began++;
    return shelf_reset(host_of(t)->shelf, left);
}

static void host_close(struct tier *t) {
    struct host_tier *h = host_of(t);
    lane_stop(&h->lane);
    for (int i = 0; i < h->n_threads; i++)
        pthread_join(h->thread[i], NULL);
    lane_close(&h->lane);
    for (int k = 0; k < SHELF_KINDS; k++)
        if (h->map[k])
            munmap(h->map[k], h->map_bytes[k]);
    shelf_close(h->shelf);
    free(h);
}

static bool map_places(struct host_tier *h, enum shelf_kind kind) {
    size_t bytes = (size_t)shelf_places(h->shelf, kind) * shelf_record_bytes(h->shelf, kind);
    if (!bytes)
        return true;
    void *map = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (map == MAP_FAILED)
        return false;
    h->map[kind] = map;
    h->map_bytes[kind] = bytes;
    return true;
}

weir_status tier_open_host(const struct tier_setup *setup, uint64_t bytes, struct tier **out,
                           weir_error *err) {
    *out = NULL;
    struct host_tier *h = calloc(1, sizeof *h);
    if (!h)
        return weir_fail(err, WEIR_NO_MEMORY, "cpu_offload_bytes", "no memory for the host cache");
    h->tier = (struct tier){TIER_HOST,  host_page,  host_state, host_submit, host_collect,
                            host_touch, host_usage, host_reset, host_close};
    h->store = setup->store;
    h->bytes[SHELF_PAGE] = setup->store->kv.page_bytes;
    h->bytes[SHELF_STATE] = setup->store->state.slot_floats * sizeof(float);
    uint64_t place[SHELF_KINDS];
    for (int k = 0; k < SHELF_KINDS; k++) {
        place[k] = (h->bytes[k] + PAGE_SIZE_BYTES - 1) / PAGE_SIZE_BYTES * PAGE_SIZE_BYTES;
        place[k] = place[k] ? place[k] : PAGE_SIZE_BYTES; /* a model without such layers */
    }
    lane_open(&h->lane, setup, (uint64_t)8 << 30);
    h->shelf = shelf_open(place, bytes);
    bool ok = h->shelf && map_places(h, SHELF_PAGE) && map_places(h, SHELF_STATE);
    while (ok && h->n_threads < HOST_THREADS && lane_thread(&h->thread[h->n_threads], host_run, h))
        h->n_threads++;
    if (!ok || !h->n_threads) {
        host_close(&h->tier);
        return weir_fail(err, WEIR_NO_MEMORY, "cpu_offload_bytes",
                         "no memory or thread for a host cache of %" PRIu64 " bytes", bytes);
    }
    *out = &h->tier;
    return WEIR_OK;
}
