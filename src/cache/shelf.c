/* shelf.c: places, keys and order of use of one tier. Called by host.c, disk.c and shelf_job.c on
 * the engine's thread.
 * Invariant that bites: a place whose bytes are being given back must not be handed out before that
 * has happened, or the new record loses its bytes. */
#include "cache/shelf.h"

#include <string.h>

/* Records live in slabs that are made as places are first used: a budget says little about how much
 * of it will be used. */
enum { SLAB = 1024, FIRST_BUCKETS = 1024 };
/* Of a page whose distance from the first block is not known. */
static const uint32_t depth_unknown = UINT32_MAX / 2, depth_state = UINT32_MAX;

struct shelf_kind_places {
    uint64_t bytes; /* of one place */
    uint32_t places, made;
    struct shelf_record **slab;
    struct shelf_record *backed, *bare; /* free ones: with and without bytes behind them */
    struct shelf_record *leaving;       /* to be given back */
    uint64_t records, evicted, present;
};

struct shelf {
    struct shelf_kind_places kind[SHELF_KINDS];
    uint64_t budget, limit; /* what was given, what can be had */
    uint64_t backed_bytes, record_bytes;
    uint64_t births, uses;
    struct shelf_record **bucket;
    size_t n_buckets, n_records; /* n_buckets: a power of two */
    struct shelf_record *oldest, *newest;
};

struct shelf *shelf_open(const uint64_t record_bytes[SHELF_KINDS], uint64_t budget) {
    struct shelf *s = calloc(1, sizeof *s);
    if (!s)
        return NULL;
    s->budget = s->limit = budget;
    s->n_buckets = FIRST_BUCKETS;
    s->bucket = calloc(s->n_buckets, sizeof(struct shelf_record *));
    bool ok = s->bucket != NULL;
    for (int k = 0; k < SHELF_KINDS; k++) {
        uint64_t places = budget / record_bytes[k];
        places = places < UINT32_MAX - SLAB ? places : UINT32_MAX - SLAB;
        s->kind[k].bytes = record_bytes[k];
        s->kind[k].places = (uint32_t)places;
        s->kind[k].slab = calloc((size_t)(places / SLAB + 1), sizeof(struct shelf_record *));
        ok = ok && s->kind[k].slab;
    }
    if (ok)
        return s;
    shelf_close(s);
    return NULL;
}

void shelf_close(struct shelf *s) {
    if (!s)
        return;
    for (int k = 0; k < SHELF_KINDS; k++) {
        for (uint32_t i = 0; s->kind[k].slab && i <= s->kind[k].places / SLAB; i++)
            free(s->kind[k].slab[i]);
        free(s->kind[k].slab);
    }
    free(s->bucket);
    free(s);
}

uint32_t shelf_places(const struct shelf *s, enum shelf_kind kind) {
    return s->kind[kind].places;
}

uint64_t shelf_record_bytes(const struct shelf *s, enum shelf_kind kind) {
    return s->kind[kind].bytes;
}

/* ------------------------------------------------------------------------------------------------
 * by key */

static size_t bucket_of(const struct shelf *s, enum shelf_kind kind, const struct cache_key *key) {
    uint64_t h;
    memcpy(&h, key->bytes, sizeof h); /* a SHA-256 is as mixed as can be */
    return (size_t)(h + (uint64_t)kind * 0x9E3779B97F4A7C15u) & (s->n_buckets - 1);
}

static struct shelf_record *find_key(const struct shelf *s, enum shelf_kind kind,
                                     const struct cache_key *key) {
    struct shelf_record *r = s->bucket[bucket_of(s, kind, key)];
    while (r && (r->kind != kind || !cache_key_equal(&r->key, key)))
        r = r->same_bucket;
    return r;
}

struct shelf_record *shelf_find(const struct shelf *s, enum shelf_kind kind,
                                const struct cache_key *key, uint32_t position) {
    struct shelf_record *r = find_key(s, kind, key);
    return r && (kind == SHELF_PAGE || r->position == position) ? r : NULL;
}

/* Without memory the chains just grow longer. */
static void widen(struct shelf *s) {
    size_t n = 2 * s->n_buckets, before = s->n_buckets;
    struct shelf_record **old = s->bucket, **fresh = calloc(n, sizeof(struct shelf_record *));
    if (!fresh)
        return;
    s->bucket = fresh;
    s->n_buckets = n;
    for (size_t i = 0; i < before; i++)
        for (struct shelf_record *r = old[i], *next; r; r = next) {
            next = r->same_bucket;
            size_t at = bucket_of(s, r->kind, &r->key);
            r->same_bucket = fresh[at];
            fresh[at] = r;
        }
    free(old);
}

static void key_add(struct shelf *s, struct shelf_record *r) {
    if (s->n_records >= s->n_buckets)
        widen(s);
    size_t at = bucket_of(s, r->kind, &r->key);
    r->same_bucket = s->bucket[at];
    s->bucket[at] = r;
    s->n_records++;
}

static void key_remove(struct shelf *s, struct shelf_record *r) {
    struct shelf_record **at = &s->bucket[bucket_of(s, r->kind, &r->key)];
    while (*at != r)
        at = &(*at)->same_bucket;
    *at = r->same_bucket;
    s->n_records--;
}

/* ------------------------------------------------------------------------------------------------
 * order of use */

static void list_remove(struct shelf *s, struct shelf_record *r) {
    *(r->older ? &r->older->newer : &s->oldest) = r->newer;
    *(r->newer ? &r->newer->older : &s->newest) = r->older;
    r->older = r->newer = NULL;
}

/* Before `newer` in the order of eviction; NULL: the last of all. */
static void list_add(struct shelf *s, struct shelf_record *r, struct shelf_record *newer) {
    r->newer = newer;
    r->older = newer ? newer->older : s->newest;
    *(r->older ? &r->older->newer : &s->oldest) = r;
    *(newer ? &newer->older : &s->newest) = r;
}

static void move_before(struct shelf *s, struct shelf_record *r, struct shelf_record *newer) {
    if (r == newer)
        return;
    list_remove(s, r);
    list_add(s, r, newer);
}

const struct shelf_record *shelf_newest(const struct shelf *s) {
    return s->newest;
}

static struct shelf_record *needed(const struct shelf_record *r) {
    return r->needs && r->needs->presence != TIER_ABSENT && r->needs->born == r->needs_born
               ? r->needs
               : NULL;
}

static void need(struct shelf_record *r, struct shelf_record *page) {
    if (needed(r) || page->depth >= r->depth)
        return;
    r->needs = page;
    r->needs_born = page->born;
    page->below++;
}

static void need_no_more(struct shelf_record *r) {
    struct shelf_record *page = needed(r);
    if (page)
        page->below--;
    r->needs = NULL;
}

void shelf_use(struct shelf *s, const struct cache_key *keys, uint32_t n,
               const struct cache_key *state, bool whole) {
    struct shelf_record *first = NULL, *last = NULL;
    uint64_t stamp = s->uses + n + 1;
    s->uses = stamp + 1;
    for (uint32_t i = 0; i < n; i++) {
        struct shelf_record *r = find_key(s, SHELF_PAGE, &keys[i]);
        if (!r)
            continue;
        struct shelf_record *before = needed(r);
        uint32_t depth = whole ? i + 1 : last ? last->depth + 1 : r->depth;
        /* Only ever lowered: what needs this one stays above it. */
        if (depth < r->depth && (!before || before->depth < depth))
            r->depth = depth;
        move_before(s, r, last);
        r->use = stamp - i;
        if (last)
            need(r, last);
        else
            first = r;
        last = r;
    }
    struct shelf_record *r = state ? find_key(s, SHELF_STATE, state) : NULL;
    if (r) {
        struct shelf_record *page = find_key(s, SHELF_PAGE, state);
        if (page && !last) { /* stored or used on its own */
            move_before(s, page, NULL);
            page->use = stamp;
            first = last = page;
        }
        move_before(s, r, last);
        r->use = stamp - n;
        if (page)
            need(r, page);
    }
    /* What lies before the first of them was used as well. */
    for (r = first ? needed(first) : NULL; r; r = needed(r)) {
        move_before(s, r, NULL);
        r->use = ++s->uses;
    }
}

/* ------------------------------------------------------------------------------------------------
 * places */

static struct shelf_record *record_at(struct shelf *s, enum shelf_kind kind, uint32_t place) {
    struct shelf_record **slab = &s->kind[kind].slab[place / SLAB];
    if (!*slab)
        *slab = calloc(SLAB, sizeof **slab);
    return *slab ? *slab + place % SLAB : NULL;
}

static struct shelf_record *pop(struct shelf_record **list) {
    struct shelf_record *r = *list;
    if (r)
        *list = r->same_bucket;
    return r;
}

static void push(struct shelf_record **list, struct shelf_record *r) {
    r->same_bucket = *list;
    *list = r;
}

static void place_free(struct shelf *s, struct shelf_record *r) {
    s->record_bytes -= s->kind[r->kind].bytes;
    s->kind[r->kind].records--;
    push(&s->kind[r->kind].backed, r);
}

void shelf_lose(struct shelf *s, struct shelf_record *r) {
    if (r->presence == TIER_ABSENT)
        return;
    s->kind[r->kind].present -= r->presence == TIER_PRESENT;
    need_no_more(r);
    key_remove(s, r);
    list_remove(s, r);
    r->presence = TIER_ABSENT;
    if (!r->pins)
        place_free(s, r);
}

/* The record used longest ago that nobody pins or needs. Those passed over are moved out of the
 * way: they are in use, or what needs them is. */
static bool evict(struct shelf *s) {
    for (size_t left = s->n_records; left--;) {
        struct shelf_record *r = s->oldest;
        if (!r->pins && !r->below) {
            s->kind[r->kind].evicted++;
            shelf_lose(s, r);
            return true;
        }
        move_before(s, r, NULL);
        r->use = ++s->uses;
    }
    return false;
}

/* A place of this kind without bytes behind it, or NULL. */
static struct shelf_record *bare_place(struct shelf *s, enum shelf_kind kind) {
    struct shelf_kind_places *k = &s->kind[kind];
    struct shelf_record *r = pop(&k->bare);
    while (!r && k->made < k->places) {
        r = record_at(s, kind, k->made);
        if (!r)
            return NULL;
        r->kind = kind;
        r->place = k->made++;
        if (r->born) /* adopted before its turn came */
            r = NULL;
    }
    return r;
}

static struct shelf_record *room_for(struct shelf *s, enum shelf_kind kind) {
    struct shelf_kind_places *k = &s->kind[kind], *other = &s->kind[!kind];
    if (!k->places)
        return NULL;
    for (;;) {
        struct shelf_record *r = pop(&k->backed);
        if (r)
            return r;
        if (s->backed_bytes <= s->limit && k->bytes <= s->limit - s->backed_bytes) {
            r = bare_place(s, kind);
            if (r) {
                s->backed_bytes += k->bytes;
                return r;
            }
        } else {
            r = pop(&other->backed);
            if (r) {
                s->backed_bytes -= other->bytes;
                push(&other->leaving, r);
                continue;
            }
        }
        if (!evict(s))
            return NULL;
    }
}

static void begin(struct shelf *s, struct shelf_record *r, const struct cache_key *key,
                  uint32_t position, enum tier_presence presence) {
    r->key = *key;
    r->position = position;
    r->presence = presence;
    r->pins = 0;
    r->below = 0;
    r->born = ++s->births;
    r->depth = r->kind == SHELF_STATE ? depth_state : depth_unknown;
    r->needs = NULL;
    r->use = ++s->uses;
    s->record_bytes += s->kind[r->kind].bytes;
    s->kind[r->kind].records++;
    key_add(s, r);
    list_add(s, r, NULL);
    struct shelf_record *other = find_key(s, (enum shelf_kind) !r->kind, key);
    if (other && r->kind == SHELF_PAGE)
        need(other, r);
    else if (other)
        need(r, other);
}

struct shelf_record *shelf_take(struct shelf *s, enum shelf_kind kind, const struct cache_key *key,
                                uint32_t position) {
    struct shelf_record *r = find_key(s, kind, key);
    if (r) { /* a state under this key that claims another position: one of them is a mistake */
        if (r->pins)
            return NULL;
        shelf_lose(s, r);
    }
    r = room_for(s, kind);
    if (!r)
        return NULL;
    begin(s, r, key, position, TIER_COMING);
    r->pins = 1;
    return r;
}

struct shelf_record *shelf_adopt(struct shelf *s, enum shelf_kind kind, uint32_t place,
                                 const struct cache_key *key, uint32_t position, uint64_t use) {
    struct shelf_kind_places *k = &s->kind[kind];
    if (place >= k->places || s->backed_bytes > s->budget ||
        k->bytes > s->budget - s->backed_bytes || find_key(s, kind, key))
        return NULL;
    struct shelf_record *r = record_at(s, kind, place);
    if (!r || place < k->made || r->born)
        return NULL;
    r->kind = kind;
    r->place = place;
    s->backed_bytes += k->bytes;
    begin(s, r, key, position, TIER_PRESENT);
    k->present++;
    r->use = use;
    s->uses = use > s->uses ? use : s->uses;
    return r;
}

bool shelf_holds(struct shelf *s, enum shelf_kind kind, uint32_t place) {
    const struct shelf_record *slab = s->kind[kind].slab[place / SLAB];
    return slab && slab[place % SLAB].born;
}

void shelf_pin(struct shelf_record *r) {
    r->pins++;
}

void shelf_unpin(struct shelf *s, struct shelf_record *r) {
    WEIR_ASSERT(r->pins > 0);
    if (!--r->pins && r->presence == TIER_ABSENT)
        place_free(s, r);
}

void shelf_publish(struct shelf *s, struct shelf_record *r) {
    if (r->presence != TIER_COMING)
        return;
    r->presence = TIER_PRESENT;
    s->kind[r->kind].present++;
}

void shelf_shrink(struct shelf *s) {
    for (int k = 0; k < SHELF_KINDS; k++)
        for (struct shelf_record *r; (r = pop(&s->kind[k].backed));) {
            s->backed_bytes -= s->kind[k].bytes;
            push(&s->kind[k].leaving, r);
        }
    s->limit = s->backed_bytes;
}

void shelf_grow(struct shelf *s) {
    s->limit = s->budget;
}

bool shelf_filled(const struct shelf *s) {
    uint64_t left = s->budget - s->backed_bytes;
    return left < s->kind[SHELF_PAGE].bytes && left < s->kind[SHELF_STATE].bytes;
}

void shelf_forget(struct shelf *s) {
    enum shelf_kind kind;
    uint32_t place;
    uint64_t left;
    shelf_reset(s, &left);
    shelf_shrink(s);
    while (shelf_give_back(s, &kind, &place))
        shelf_given_back(s, kind, place);
    WEIR_ASSERT(s->backed_bytes == 0);
    shelf_grow(s);
}

bool shelf_give_back(struct shelf *s, enum shelf_kind *kind, uint32_t *place) {
    for (int k = 0; k < SHELF_KINDS; k++) {
        struct shelf_record *r = pop(&s->kind[k].leaving);
        if (r) {
            *kind = (enum shelf_kind)k;
            *place = r->place;
            return true;
        }
    }
    return false;
}

void shelf_given_back(struct shelf *s, enum shelf_kind kind, uint32_t place) {
    push(&s->kind[kind].bare, record_at(s, kind, place));
}

void shelf_keep_leaving(struct shelf *s, enum shelf_kind kind, uint32_t place) {
    push(&s->kind[kind].leaving, record_at(s, kind, place));
}

uint64_t shelf_reset(struct shelf *s, uint64_t *left) {
    uint64_t n = 0;
    *left = 0;
    for (struct shelf_record *r = s->oldest, *next; r; r = next) {
        next = r->newer;
        if (r->pins) {
            ++*left;
            continue;
        }
        shelf_lose(s, r);
        n++;
    }
    return n;
}

struct shelf_usage shelf_get_usage(const struct shelf *s) {
    struct shelf_usage u = {
        .bytes = s->record_bytes, .backed = s->backed_bytes, .budget = s->limit};
    for (int k = 0; k < SHELF_KINDS; k++) {
        u.records[k] = s->kind[k].records;
        u.present[k] = s->kind[k].present;
        u.evicted[k] = s->kind[k].evicted;
    }
    return u;
}

void shelf_tell(const struct shelf *s, struct tier_usage *out) {
    *out = (struct tier_usage){
        .bytes_used = s->record_bytes,
        .bytes_total = s->budget,
        .pages = s->kind[SHELF_PAGE].present,
        .states = s->kind[SHELF_STATE].present,
        .pages_evicted = s->kind[SHELF_PAGE].evicted,
        .states_evicted = s->kind[SHELF_STATE].evicted,
    };
}
