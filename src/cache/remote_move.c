/* remote_move.c: stores, loads and questions in the remote store's protocol. Called by remote.c on
 * the tier's threads, for pages and slots that the move owns.
 * Invariant that bites: every command sent gets its reply read, also behind the first failure, or
 * the next move would take this one's replies for its own. */
#include "cache/remote_move.h"

#include <string.h>

enum {
    COMMAND_BYTES = REMOTE_NAME_BYTES + 96, /* any command of ours without payload */
    SLACK_BYTES = 64 << 10,                 /* replies beside the payload */
};

/* --- values of a move ------------------------------------------------------------------------- */

static struct remote_value page_value(const struct remote_mover *v, const struct cache_key *key) {
    return (struct remote_value){.kind = REMOTE_PAGE,
                                 .model = v->setup->model,
                                 .key = *key,
                                 .parts = 1,
                                 .payload_bytes = v->setup->shape->page_bytes};
}

static struct remote_value layer_value(const struct remote_mover *v, const struct cache_key *key,
                                       uint32_t position, uint32_t layer) {
    return (struct remote_value){.kind = REMOTE_LAYER,
                                 .model = v->setup->model,
                                 .key = *key,
                                 .position = position,
                                 .layer = layer,
                                 .parts = v->setup->shape->heads,
                                 .payload_bytes = record_layer_bytes(v->setup->shape)};
}

static size_t manifest_sums(const struct remote_mover *v) {
    return (size_t)v->setup->shape->layers * v->setup->shape->heads;
}

static struct remote_value manifest_value(const struct remote_mover *v, const struct cache_key *key,
                                          uint32_t position) {
    return (struct remote_value){.kind = REMOTE_MANIFEST,
                                 .model = v->setup->model,
                                 .key = *key,
                                 .position = position,
                                 .layer = v->setup->shape->layers,
                                 .parts = 1,
                                 .payload_bytes = manifest_sums(v) * sizeof(uint64_t)};
}

/* Items of a load: its pages, then the layers of its state. */
static struct remote_value item_value(const struct remote_mover *v, const struct tier_move *m,
                                      uint32_t item) {
    if (item < m->n_pages)
        return page_value(v, &m->page_keys[item]);
    return layer_value(v, &m->state_keys[0], m->positions[0], item - m->n_pages);
}

uint64_t remote_move_bytes(const struct tier_setup *s, const struct tier_move *m) {
    if (m->task == TIER_PROBE)
        return 0;
    uint64_t pages = 0;
    for (uint32_t i = 0; i < m->n_pages; i++)
        pages += m->pages[i] >= 0;
    return pages * s->shape->page_bytes + m->n_states * record_state_bytes(s->shape);
}

void remote_mover_name(const struct remote_mover *v, char out[REMOTE_NAME_BYTES]) {
    const struct remote_value any = page_value(v, &v->setup->model);
    remote_value_name(&any, out);
}

bool remote_mover_make(struct remote_mover *v, const _Atomic uint64_t *stop) {
    const size_t layer = record_layer_bytes(v->setup->shape);
    v->batch = calloc(REMOTE_BATCH, sizeof *v->batch);
    v->text = malloc((size_t)REMOTE_BATCH * COMMAND_BYTES);
    v->layer = malloc(layer ? layer : 1);
    v->manifest = calloc(manifest_sums(v) + 1, sizeof *v->manifest);
    v->layer_sums = calloc((size_t)v->setup->shape->heads + 1, sizeof *v->layer_sums);
    return remote_link_make(&v->link, stop) && v->batch && v->text && v->layer && v->manifest &&
           v->layer_sums;
}

void remote_mover_free(struct remote_mover *v) {
    remote_link_free(&v->link);
    free(v->batch);
    free(v->text);
    free(v->layer);
    free(v->manifest);
    free(v->layer_sums);
}

/* --- trouble ---------------------------------------------------------------------------------- */

/* The first trouble of a move is the one that is told. A broken connection beats a refusal. */
static bool trouble(struct remote_mover *v, enum remote_trouble what, const char *why) {
    if (v->trouble == REMOTE_FINE || (v->trouble != REMOTE_OFF && what == REMOTE_OFF)) {
        v->trouble = what;
        snprintf(v->why, sizeof v->why, "%s", why);
    }
    return false;
}

static bool off(struct remote_mover *v) {
    return trouble(v, REMOTE_OFF, v->link.why);
}

static bool starts(const redisReply *r, const char *word) {
    return r->type == REDIS_REPLY_ERROR && strncmp(r->str, word, strlen(word)) == 0;
}

/* m NULL: a touch. */
static void begin(struct remote_mover *v, const struct tier_move *m) {
    const uint64_t bytes = m ? remote_move_bytes(v->setup, m) : 0;
    v->trouble = REMOTE_FINE;
    v->why[0] = '\0';
    v->wrote = false;
    v->pending = 0;
    const size_t layer = record_layer_bytes(v->setup->shape), page = v->setup->shape->page_bytes;
    const size_t largest = layer > page ? layer : page;
    const size_t manifest = manifest_sums(v) * sizeof(uint64_t);
    v->link.most_bytes =
        (REMOTE_WINDOW_BYTES > largest ? REMOTE_WINDOW_BYTES : largest) + manifest + SLACK_BYTES;
    remote_link_limit(&v->link, v->move_seconds + (double)bytes / v->bytes_per_second,
                      m && m->task != TIER_PROBE ? v->move_seconds : v->question_seconds);
}

/* --- questions -------------------------------------------------------------------------------- */

/* Sends `verb NAME` for the first n values of the batch in one go. answer[i]: the integer that came
 * back, -1 for an error. Only reading must not fail: then the server is of no use for now. */
static bool ask(struct remote_mover *v, const char *verb, uint32_t n, long long *answer) {
    size_t length = 0;
    for (uint32_t i = 0; i < n; i++) {
        char name[REMOTE_NAME_BYTES];
        remote_value_name(&v->batch[i], name);
        const char *word[] = {verb, name};
        length += remote_command(v->text + length, COMMAND_BYTES, 2, word);
    }
    struct iovec part = {v->text, length};
    if (n > 0 && !remote_link_send(&v->link, &part, 1))
        return off(v);
    const bool reading = strcmp(verb, "STRLEN") == 0;
    for (uint32_t i = 0; i < n; i++) {
        redisReply *r = remote_link_reply(&v->link);
        if (!r)
            return off(v);
        answer[i] = r->type == REDIS_REPLY_INTEGER ? r->integer : -1;
        if (answer[i] < 0 && reading && !starts(r, "WRONGTYPE"))
            trouble(v, REMOTE_OFF, r->type == REDIS_REPLY_ERROR ? r->str : "no number came back");
        freeReplyObject(r);
    }
    return v->trouble != REMOTE_OFF;
}

/* Which of the first n values of the batch are there in full length. */
static bool ask_present(struct remote_mover *v, uint32_t n, bool *present) {
    long long length[REMOTE_BATCH];
    if (!ask(v, "STRLEN", n, length))
        return false;
    for (uint32_t i = 0; i < n; i++)
        present[i] = length[i] == (long long)(REMOTE_HEADER_BYTES + v->batch[i].payload_bytes);
    return true;
}

static bool learn_all(struct remote_mover *v, const struct tier_move *m) {
    const uint32_t total = m->n_pages + m->n_states;
    for (uint32_t from = 0; from < total; from += REMOTE_BATCH) {
        const uint32_t n = total - from < REMOTE_BATCH ? total - from : REMOTE_BATCH;
        struct remote_name names[REMOTE_BATCH];
        bool present[REMOTE_BATCH];
        for (uint32_t i = 0; i < n; i++) {
            const uint32_t at = from + i, s = at - m->n_pages;
            if (at < m->n_pages) {
                names[i] = (struct remote_name){m->page_keys[at], 0};
                v->batch[i] = page_value(v, &m->page_keys[at]);
            } else {
                names[i] = (struct remote_name){m->state_keys[s], m->positions[s]};
                v->batch[i] = manifest_value(v, &m->state_keys[s], m->positions[s]);
            }
        }
        if (!ask_present(v, n, present))
            return false;
        v->learn(v->arg, names, present, n);
    }
    return true;
}

enum tier_result remote_move_probe(struct remote_mover *v, const struct tier_move *m) {
    begin(v, m);
    return learn_all(v, m) ? TIER_OK : TIER_FAILED;
}

/* Touches the batch; whole[of[i]] becomes false where value i is not there. */
static bool touch_batch(struct remote_mover *v, uint32_t n, const uint32_t *of, bool *whole) {
    long long answer[REMOTE_BATCH];
    if (!ask(v, "TOUCH", n, answer))
        return false;
    for (uint32_t i = 0; i < n; i++)
        if (answer[i] == 0) /* -1: a server that does not know the command */
            whole[of[i]] = false;
    return true;
}

void remote_move_touch(struct remote_mover *v, const struct remote_name *names, uint32_t n) {
    begin(v, NULL);
    bool whole[REMOTE_BATCH];
    uint32_t of[REMOTE_BATCH], filled = 0;
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t position = names[i].position;
        const uint32_t values = position ? 1 + v->setup->shape->layers : 1;
        whole[i] = true;
        for (uint32_t k = 0; k < values; k++) {
            of[filled] = i;
            v->batch[filled++] = position == 0 ? page_value(v, &names[i].key)
                                 : k == 0      ? manifest_value(v, &names[i].key, position)
                                               : layer_value(v, &names[i].key, position, k - 1);
            if (filled == REMOTE_BATCH) {
                if (!touch_batch(v, filled, of, whole))
                    return;
                filled = 0;
            }
        }
    }
    if (touch_batch(v, filled, of, whole))
        v->learn_gone(v->arg, names, whole, n);
}

/* --- store ------------------------------------------------------------------------------------ */

static bool confirm_one(struct remote_mover *v) {
    redisReply *r = remote_link_reply(&v->link);
    if (!r)
        return off(v);
    v->pending--;
    if (r->type == REDIS_REPLY_STATUS)
        v->wrote = true;
    else if (starts(r, "LOADING") || starts(r, "NOAUTH") || starts(r, "MASTERDOWN"))
        trouble(v, REMOTE_OFF, r->str);
    else
        trouble(v, REMOTE_NO_WRITES, r->type == REDIS_REPLY_ERROR ? r->str : "no status came back");
    freeReplyObject(r);
    return v->trouble == REMOTE_FINE;
}

/* Reads all replies that are due, whatever they say. */
static bool confirm_all(struct remote_mover *v) {
    while (v->pending > 0 && (confirm_one(v) || v->trouble == REMOTE_NO_WRITES))
        ;
    return v->trouble == REMOTE_FINE;
}

/* The payload has left when this returns: its memory may change. */
static bool put(struct remote_mover *v, const struct remote_value *value, const void *payload,
                uint64_t *sums) {
    const uint64_t fit = REMOTE_WINDOW_BYTES / (value->payload_bytes + 1);
    const uint32_t most = fit < 2 ? 2 : fit < REMOTE_WINDOW ? (uint32_t)fit : REMOTE_WINDOW;
    if (v->pending >= most && !confirm_one(v))
        return false;
    unsigned char header[REMOTE_HEADER_BYTES];
    remote_value_seal(value, payload, sums, header);
    char name[REMOTE_NAME_BYTES], start[COMMAND_BYTES], end[] = "\r\n";
    remote_value_name(value, name);
    const int n = snprintf(start, sizeof start, "*3\r\n$3\r\nSET\r\n$%zu\r\n%s\r\n$%" PRIu64 "\r\n",
                           strlen(name), name, REMOTE_HEADER_BYTES + value->payload_bytes);
    union {
        const void *from;
        void *base;
    } bytes = {.from = payload}; /* sendmsg only reads what an iovec points at */
    struct iovec part[] = {{start, (size_t)n},
                           {header, sizeof header},
                           {bytes.base, (size_t)value->payload_bytes},
                           {end, 2}};
    if (!remote_link_send(&v->link, part, 4))
        return off(v);
    v->pending++;
    return true;
}

static bool store_pages(struct remote_mover *v, struct tier_move *m, bool all) {
    for (uint32_t next = 0; next < m->n_pages;) {
        bool present[REMOTE_BATCH] = {false};
        int32_t page[REMOTE_BATCH];
        uint32_t n = 0;
        for (; next < m->n_pages && n < REMOTE_BATCH; next++) {
            if (m->pages[next] < 0)
                continue;
            page[n] = m->pages[next];
            v->batch[n++] = page_value(v, &m->page_keys[next]);
        }
        if (n > 0 && !all && !ask_present(v, n, present))
            return false;
        uint64_t sum, moved = 0;
        for (uint32_t i = 0; i < n && v->trouble == REMOTE_FINE; i++)
            if (!present[i] && put(v, &v->batch[i], record_page(v->setup->store, page[i]), &sum))
                moved += v->batch[i].payload_bytes;
        if (!confirm_all(v))
            return false;
        m->bytes += moved;
    }
    return true;
}

/* Whether manifest and layers are all there. */
static bool state_present(struct remote_mover *v, const struct tier_move *m, bool *whole) {
    const uint32_t layers = v->setup->shape->layers;
    *whole = true;
    for (uint32_t done = 0; done <= layers && *whole;) {
        uint32_t n = 0;
        for (; n < REMOTE_BATCH && done <= layers; n++, done++)
            v->batch[n] = done == layers ? manifest_value(v, &m->state_keys[0], m->positions[0])
                                         : layer_value(v, &m->state_keys[0], m->positions[0], done);
        bool present[REMOTE_BATCH];
        if (!ask_present(v, n, present))
            return false;
        for (uint32_t i = 0; i < n; i++)
            *whole = *whole && present[i];
    }
    return true;
}

/* All layers or none: layers of two servers' computations of the same state need not have the same
 * bits, and the manifest holds the checksums of one. */
static bool store_state(struct remote_mover *v, struct tier_move *m, bool all) {
    const struct record_shape *shape = v->setup->shape;
    bool whole = false;
    if (!all && !state_present(v, m, &whole))
        return false;
    if (whole)
        return true;
    for (uint32_t l = 0; l < shape->layers && v->trouble == REMOTE_FINE; l++) {
        const struct remote_value value = layer_value(v, &m->state_keys[0], m->positions[0], l);
        record_pack_layer(shape, v->setup->store, m->slots[0], l, v->layer);
        put(v, &value, v->layer, v->manifest + (size_t)l * shape->heads);
    }
    if (!confirm_all(v))
        return false;
    const struct remote_value value = manifest_value(v, &m->state_keys[0], m->positions[0]);
    uint64_t sum;
    put(v, &value, v->manifest, &sum);
    if (!confirm_all(v))
        return false;
    m->bytes += record_state_bytes(shape);
    return true;
}

enum tier_result remote_move_store(struct remote_mover *v, struct tier_move *m, bool all) {
    begin(v, m);
    if (store_pages(v, m, all) && (m->n_states == 0 || store_state(v, m, all)))
        return TIER_OK;
    return v->trouble == REMOTE_NO_WRITES ? TIER_DECLINED : TIER_FAILED;
}

/* --- load ------------------------------------------------------------------------------------- */

static bool get(struct remote_mover *v, const struct remote_value *value) {
    char name[REMOTE_NAME_BYTES], last[24], text[COMMAND_BYTES];
    remote_value_name(value, name);
    /* One byte more than it may have: a longer value is noticed and never read whole. */
    snprintf(last, sizeof last, "%" PRIu64, REMOTE_HEADER_BYTES + value->payload_bytes);
    const char *word[] = {"GETRANGE", name, "0", last};
    struct iovec part = {text, remote_command(text, sizeof text, 4, word)};
    return remote_link_send(&v->link, &part, 1) || off(v);
}

/* The next reply: OK with *reply (payload behind the header, aligned as malloc does), to be freed;
 * GONE (GETRANGE gives an empty string), DAMAGED, or FAILED with trouble. */
static enum tier_result take(struct remote_mover *v, const struct remote_value *value,
                             uint64_t *sums, redisReply **reply) {
    redisReply *r = remote_link_reply(&v->link);
    enum tier_result result = TIER_FAILED;
    *reply = NULL;
    if (!r) {
        off(v);
    } else if (r->type == REDIS_REPLY_STRING) {
        if (r->len == 0)
            result = TIER_GONE;
        else if (remote_value_whole(value, (unsigned char *)r->str, r->len, sums))
            result = TIER_OK;
        else
            result = TIER_DAMAGED;
    } else if (starts(r, "WRONGTYPE")) {
        result = TIER_DAMAGED;
    } else {
        trouble(v, REMOTE_OFF, r->type == REDIS_REPLY_ERROR ? r->str : "no string came back");
    }
    if (result == TIER_OK)
        *reply = r;
    else if (r)
        freeReplyObject(r);
    return result;
}

static enum tier_result load_manifest(struct remote_mover *v, const struct tier_move *m) {
    const struct remote_value value = manifest_value(v, &m->state_keys[0], m->positions[0]);
    redisReply *r;
    uint64_t sum;
    if (!get(v, &value))
        return TIER_FAILED;
    const enum tier_result result = take(v, &value, &sum, &r);
    if (result == TIER_OK) {
        memcpy(v->manifest, r->str + REMOTE_HEADER_BYTES, (size_t)value.payload_bytes);
        freeReplyObject(r);
    }
    return result;
}

/* Takes one item and, if nothing was wrong before, puts it where it belongs. */
static enum tier_result load_item(struct remote_mover *v, struct tier_move *m, uint32_t item,
                                  bool wanted) {
    const struct record_shape *shape = v->setup->shape;
    const struct remote_value value = item_value(v, m, item);
    redisReply *r;
    enum tier_result result = take(v, &value, v->layer_sums, &r);
    if (result != TIER_OK)
        return result;
    const unsigned char *payload = (const unsigned char *)r->str + REMOTE_HEADER_BYTES;
    if (value.kind == REMOTE_PAGE) {
        if (wanted)
            record_write_page(v->setup->store, m->pages[item], payload);
    } else if (memcmp(v->layer_sums, v->manifest + (size_t)value.layer * shape->heads,
                      shape->heads * sizeof(uint64_t)) != 0) {
        result = TIER_DAMAGED; /* whole, but of another computation than the manifest's */
    } else if (wanted) {
        record_unpack_layer(shape, v->setup->store, m->slots[0], value.layer, payload);
    }
    if (wanted && result == TIER_OK)
        m->bytes += value.payload_bytes;
    freeReplyObject(r);
    return result;
}

/* Pages and layers, a window of them under way. bad[*n_bad]: items that must be deleted. */
static enum tier_result load_items(struct remote_mover *v, struct tier_move *m, uint32_t *bad,
                                   uint32_t *n_bad, bool *state_bad) {
    const uint32_t total = m->n_pages + (m->n_states ? v->setup->shape->layers : 0);
    enum tier_result worst = TIER_OK;
    uint64_t bytes = 0;
    for (uint32_t sent = 0, taken = 0; taken < sent || (sent < total && worst == TIER_OK);) {
        const struct remote_value next =
            sent < total && worst == TIER_OK ? item_value(v, m, sent) : (struct remote_value){0};
        if (next.kind && (sent == taken || (sent - taken < REMOTE_WINDOW &&
                                            bytes + next.payload_bytes <= REMOTE_WINDOW_BYTES))) {
            if (!get(v, &next))
                return TIER_FAILED;
            bytes += next.payload_bytes;
            sent++;
            continue;
        }
        const enum tier_result one = load_item(v, m, taken, worst == TIER_OK);
        if (one == TIER_FAILED)
            return one;
        bytes -= item_value(v, m, taken).payload_bytes;
        if (one == TIER_DAMAGED)
            bad[(*n_bad)++] = taken;
        if (one != TIER_OK && taken >= m->n_pages)
            *state_bad = true;
        if (one == TIER_DAMAGED || worst == TIER_OK)
            worst = one;
        taken++;
    }
    return worst;
}

enum tier_result remote_move_load(struct remote_mover *v, struct tier_move *m) {
    begin(v, m);
    uint32_t bad[REMOTE_WINDOW], n_bad = 0;
    bool state_bad = false;
    enum tier_result result = TIER_OK;
    if (m->n_states) {
        result = load_manifest(v, m);
        state_bad = result == TIER_DAMAGED;
    }
    if (result == TIER_OK)
        result = load_items(v, m, bad, &n_bad, &state_bad);
    if (result == TIER_FAILED)
        return result;
    if (result == TIER_OK)
        return result;
    /* A wrong record goes, and with any layer the manifest, or it would be found for ever. */
    long long answer[REMOTE_BATCH];
    uint32_t n = 0;
    for (; n < n_bad; n++)
        v->batch[n] = item_value(v, m, bad[n]);
    if (state_bad)
        v->batch[n++] = manifest_value(v, &m->state_keys[0], m->positions[0]);
    if (ask(v, "DEL", n, answer))
        learn_all(v, m); /* what is missing is seldom missing alone */
    return result;
}
