/* The remote tier over a real server: what one process stores another loads bit for bit, and a
 * record that is not exactly what was stored is never loaded, whatever happened to it. */
#include "tests/cache/remote_rig.h"

#include <signal.h>
#include <time.h>

static struct rig_server server;

static int start(void **state) {
    rig_log_end(NULL);
    rig_server_start(&server, 0, NULL);
    return 0;
}

static int stop(void **state) {
    rig_server_stop(&server, SIGKILL);
    return 0;
}

static int empty(void **state) {
    rig_do(&server, "FLUSHALL");
    return 0;
}

static void one_stores_another_probes_and_loads_bit_for_bit(void **state) {
    struct rig a, b, other;
    rig_open(&a, 'a', server.port);
    rig_open(&b, 'a', server.port);
    rig_open(&other, 'b', server.port);
    for (uint32_t n = 1; n <= 40; n += 13) {
        const uint64_t seed = 100 + n;
        assert_int_equal(rig_run(&a, TIER_STORE, seed, n, true), TIER_OK);
        assert_true(rig_all_are(&a, seed, n, true, TIER_PRESENT));
        assert_true(rig_all_are(&b, seed, n, true, TIER_ABSENT));
        assert_int_equal(rig_run(&b, TIER_PROBE, seed, n, true), TIER_OK);
        assert_true(rig_all_are(&b, seed, n, true, TIER_PRESENT));
        rig_clear(&b);
        assert_false(rig_loaded(&b, seed, n, true));
        assert_int_equal(rig_run(&b, TIER_LOAD, seed, n, true), TIER_OK);
        assert_true(rig_loaded(&b, seed, n, true));
        assert_int_equal(rig_run(&other, TIER_PROBE, seed, n, true), TIER_OK);
        assert_true(rig_all_are(&other, seed, n, true, TIER_ABSENT));
    }
    assert_int_equal(rig_usage(&b).pages, 1 + 14 + 27 + 40);
    assert_int_equal(rig_usage(&b).states, 4);
    rig_close(&a);
    rig_close(&b);
    rig_close(&other);
}

static void state_is_found_at_its_own_position_only(void **state) {
    struct rig a;
    rig_open(&a, 'a', server.port);
    assert_int_equal(rig_run(&a, TIER_STORE, 1, 3, true), TIER_OK);
    const struct cache_key key = rig_block(1, 2);
    assert_int_equal(a.tier->state(a.tier, &key, 3 * 64), TIER_PRESENT);
    assert_int_equal(a.tier->state(a.tier, &key, 2 * 64), TIER_ABSENT);
    assert_int_equal(a.tier->state(a.tier, &key, 0), TIER_ABSENT);
    struct rig_move m;
    rig_move_make(&a, &m, TIER_LOAD, 1, 3, true, 0, 0);
    m.position = 4 * 64;
    a.tier->submit(a.tier, &m.move);
    rig_wait(&a, 1);
    assert_int_equal(m.move.result, TIER_DAMAGED);
    rig_close(&a);
}

static void values_are_named_and_written_as_documented(void **state) {
    struct rig a;
    rig_open(&a, 'a', server.port);
    assert_int_equal(rig_run(&a, TIER_STORE, 1, 2, true), TIER_OK);
    assert_int_equal(rig_count(&server, "*"), 2 + RIG_LAYERS + 1);
    char hex[CACHE_KEY_HEX], name[256];
    const struct cache_key key = rig_block(1, 1);
    cache_key_hex(&key, hex);
    const char fingerprint[] = "61616161616161616161616161616161";
    snprintf(name, sizeof name, "weir:1:%s:p:%s", fingerprint, hex);
    assert_int_equal(rig_do(&server, "STRLEN %s", name)->integer,
                     REMOTE_HEADER_BYTES + RIG_PAGE_BYTES);
    snprintf(name, sizeof name, "weir:1:%s:s:%s:%d", fingerprint, hex, RIG_LAYERS - 1);
    assert_int_equal(rig_do(&server, "STRLEN %s", name)->integer,
                     REMOTE_HEADER_BYTES + record_layer_bytes(&a.shape));
    snprintf(name, sizeof name, "weir:1:%s:s:%s", fingerprint, hex);
    assert_int_equal(rig_do(&server, "STRLEN %s", name)->integer,
                     REMOTE_HEADER_BYTES + RIG_LAYERS * 2 * 8);
    rig_close(&a);
}

/* A stored unit, one value of it harmed by `harm`, loaded by somebody who believes it is there. */
static void harmed_unit_gives(const char *what, uint64_t seed, void (*harm)(uint64_t seed),
                              enum tier_result expected) {
    enum { BLOCKS = 5 };
    struct rig a;
    rig_do(&server, "FLUSHALL");
    rig_open(&a, 'a', server.port);
    assert_int_equal(rig_run(&a, TIER_STORE, seed, BLOCKS, true), TIER_OK);
    harm(seed);
    rig_clear(&a);
    const enum tier_result result = rig_run(&a, TIER_LOAD, seed, BLOCKS, true);
    if (result != expected)
        fail_msg("%s, seed %d: the load ended %s", what, (int)seed, tier_result_name(result));
    assert_int_equal(rig_usage(&a).damaged, result == TIER_DAMAGED);
    /* The unit is no longer all there for anybody, and storing it again repairs it. */
    assert_false(rig_all_are(&a, seed, BLOCKS, true, TIER_PRESENT));
    struct rig b;
    rig_open(&b, 'a', server.port);
    assert_int_equal(rig_run(&b, TIER_PROBE, seed, BLOCKS, true), TIER_OK);
    if (rig_all_are(&b, seed, BLOCKS, true, TIER_PRESENT))
        fail_msg("%s, seed %d: another process still finds all of it", what, (int)seed);
    assert_int_equal(rig_run(&a, TIER_STORE, seed, BLOCKS, true), TIER_OK);
    rig_clear(&b);
    assert_int_equal(rig_run(&b, TIER_LOAD, seed, BLOCKS, true), TIER_OK);
    assert_true(rig_loaded(&b, seed, BLOCKS, true));
    rig_close(&a);
    rig_close(&b);
}

static char *any_key(uint64_t seed) {
    return rig_key(&server, "*", rng_mix(seed) % rig_count(&server, "*"));
}

static void write_byte(const char *key, size_t at, unsigned char x) {
    rig_do(&server, "SETRANGE %s %u %b", key, (unsigned)at, &x, (size_t)1);
}

static unsigned char read_byte(const char *key, size_t at) {
    redisReply *r = rig_do(&server, "GETRANGE %s %u %u", key, (unsigned)at, (unsigned)at);
    assert_int_equal(r->len, 1);
    return (unsigned char)r->str[0];
}

static void flip_bit(uint64_t seed) {
    const char *key = any_key(seed);
    const size_t bytes = (size_t)rig_do(&server, "STRLEN %s", key)->integer;
    const uint64_t x = rng_mix(seed ^ 77);
    const size_t at = x % 3 ? (x >> 8) % bytes : (x >> 8) % REMOTE_HEADER_BYTES;
    write_byte(key, at, read_byte(key, at) ^ (unsigned char)(1u << (x >> 2) % 8));
}

static void truncate_value(uint64_t seed) {
    const char *key = any_key(seed);
    const size_t bytes = (size_t)rig_do(&server, "STRLEN %s", key)->integer;
    redisReply *r = rig_do(&server, "GETRANGE %s 0 %u", key,
                           (unsigned)(seed % 3 ? rng_mix(seed ^ 5) % (bytes - 1) : bytes - 2));
    char *text = malloc(r->len + 1);
    const size_t n = r->len;
    memcpy(text, r->str, n);
    rig_do(&server, "SET %s %b", key, text, n);
    free(text);
}

static void empty_value(uint64_t seed) {
    rig_do(&server, "SET %s %b", any_key(seed), "", (size_t)0);
}

static void extend_value(uint64_t seed) {
    rig_do(&server, "APPEND %s x", any_key(seed));
}

/* Two values of the same length: two pages, two layers. */
static void swap_values(uint64_t seed) {
    const char *pattern = seed % 2 ? "*:p:*" : "*:s:*:*";
    const size_t n = rig_count(&server, pattern), i = rng_mix(seed) % n;
    const char *one = rig_key(&server, pattern, i), *two = rig_key(&server, pattern, (i + 1) % n);
    rig_do(&server, "RENAME %s spare", one);
    rig_do(&server, "RENAME %s %s", two, one);
    rig_do(&server, "RENAME spare %s", two);
}

static void change_type(uint64_t seed) {
    const char *key = any_key(seed);
    rig_do(&server, "DEL %s", key);
    rig_do(&server, seed % 2 ? "LPUSH %s x" : "HSET %s a b", key);
}

static void foreign_value(uint64_t seed) {
    rig_do(&server, "SET %s somebody-else", any_key(seed));
}

/* The right value, with right checksums, of the same key in another model's space. */
static void other_model(uint64_t seed) {
    struct rig b;
    rig_open(&b, 'b', server.port);
    assert_int_equal(rig_run(&b, TIER_STORE, seed, 5, true), TIER_OK);
    rig_close(&b);
    const char *theirs = rig_key(&server, "weir:1:62*", rng_mix(seed) % (5 + RIG_LAYERS + 1));
    char mine[256];
    snprintf(mine, sizeof mine, "weir:1:61616161616161616161616161616161%s", theirs + 7 + 32);
    rig_do(&server, "RENAME %s %s", theirs, mine);
}

/* A layer of another computation of the same state: whole, but not the manifest's. */
static void other_computation(uint64_t seed) {
    const char *layer = rig_key(&server, "*:s:*:*", seed % RIG_LAYERS);
    redisReply *r = rig_do(&server, "GETRANGE %s 0 -1", layer);
    const size_t n = r->len;
    unsigned char *text = malloc(n);
    memcpy(text, r->str, n);
    text[REMOTE_HEADER_BYTES] ^= 1;
    struct remote_value v = {.kind = REMOTE_LAYER,
                             .key = rig_block(seed, 4),
                             .position = 5 * 64,
                             .layer = (uint32_t)(seed % RIG_LAYERS),
                             .parts = 2,
                             .payload_bytes = n - REMOTE_HEADER_BYTES};
    memset(v.model.bytes, 'a', sizeof v.model.bytes);
    uint64_t sums[2];
    remote_value_seal(&v, text + REMOTE_HEADER_BYTES, sums, text);
    assert_true(remote_value_whole(&v, text, n, sums));
    rig_do(&server, "SET %s %b", layer, text, n);
    free(text);
}

static void damaged_values_are_never_loaded_and_dropped(void **state) {
    const struct {
        const char *what;
        void (*harm)(uint64_t seed);
        enum tier_result expected;
        uint64_t seeds;
    } kind[] = {{"a flipped bit", flip_bit, TIER_DAMAGED, 60},
                {"a truncated value", truncate_value, TIER_DAMAGED, 25},
                {"an empty value", empty_value, TIER_GONE, 6},
                {"a longer value", extend_value, TIER_DAMAGED, 10},
                {"swapped values", swap_values, TIER_DAMAGED, 12},
                {"another type", change_type, TIER_DAMAGED, 10},
                {"a foreign value", foreign_value, TIER_DAMAGED, 10},
                {"another model's value", other_model, TIER_DAMAGED, 12},
                {"another computation's layer", other_computation, TIER_DAMAGED, 3}};
    for (size_t k = 0; k < sizeof kind / sizeof *kind; k++)
        for (uint64_t seed = 1; seed <= kind[k].seeds; seed++)
            harmed_unit_gives(kind[k].what, seed, kind[k].harm, kind[k].expected);
}

static void damage_is_said_once_and_counted_each_time(void **state) {
    struct rig a;
    rig_log_begin();
    rig_open(&a, 'a', server.port);
    for (uint64_t seed = 1; seed <= 3; seed++) {
        assert_int_equal(rig_run(&a, TIER_STORE, seed, 4, true), TIER_OK);
        rig_do(&server, "SETRANGE %s 100 harm", rig_key(&server, "*:p:*", 0));
        rig_run(&a, TIER_LOAD, seed, 4, true);
        rig_do(&server, "FLUSHALL");
    }
    assert_int_equal(rig_usage(&a).damaged, 3);
    rig_close(&a);
    assert_int_equal(rig_log_count("does not match its checksum"), 1);
}

static size_t header_byte;
static void flip_header_byte(uint64_t seed) {
    const char *key = rig_key(&server, seed == 0 ? "*:p:*" : seed == 1 ? "*:s:*:*" : "*:s:*", 0);
    write_byte(key, header_byte, read_byte(key, header_byte) ^ 0x10);
}

static void every_byte_of_a_header_counts(void **state) {
    for (header_byte = 0; header_byte < REMOTE_HEADER_BYTES; header_byte++)
        harmed_unit_gives("a header's byte", header_byte % 3, flip_header_byte, TIER_DAMAGED);
}

static void delete_layer(uint64_t seed) {
    rig_do(&server, "DEL %s", rig_key(&server, "*:s:*:*", seed % RIG_LAYERS));
}

static void delete_manifest(uint64_t seed) {
    rig_do(&server, "DEL %s", rig_key(&server, "*:s:*", 0));
}

static void delete_page(uint64_t seed) {
    rig_do(&server, "DEL %s", rig_key(&server, "*:p:*", seed % 5));
}

static void missing_values_end_a_load_gone(void **state) {
    void (*const harm[])(uint64_t) = {delete_layer, delete_manifest, delete_page};
    for (size_t k = 0; k < 3; k++)
        for (uint64_t seed = 0; seed < 5; seed++)
            harmed_unit_gives("a missing value", seed, harm[k], TIER_GONE);
}

static void state_that_lost_a_layer_is_no_longer_found(void **state) {
    struct rig a, b;
    rig_open(&a, 'a', server.port);
    rig_open(&b, 'a', server.port);
    assert_int_equal(rig_run(&a, TIER_STORE, 1, 3, true), TIER_OK);
    delete_layer(1);
    assert_int_equal(rig_run(&b, TIER_PROBE, 1, 3, true), TIER_OK);
    assert_true(rig_all_are(&b, 1, 3, true, TIER_PRESENT));
    assert_int_equal(rig_run(&b, TIER_LOAD, 1, 3, true), TIER_GONE);
    const struct cache_key key = rig_block(1, 2);
    assert_int_equal(b.tier->state(b.tier, &key, 3 * 64), TIER_ABSENT);
    assert_true(rig_all_are(&b, 1, 3, false, TIER_PRESENT)); /* the pages are still good */
    assert_int_equal(rig_usage(&b).states_evicted, 1);
    assert_int_equal(rig_run(&b, TIER_PROBE, 1, 3, true), TIER_OK);
    assert_int_equal(b.tier->state(b.tier, &key, 3 * 64), TIER_ABSENT);
    assert_int_equal(rig_run(&b, TIER_LOAD, 1, 3, false), TIER_OK);
    rig_close(&a);
    rig_close(&b);
}

static void a_store_sends_only_what_is_not_there(void **state) {
    struct rig a, b;
    rig_open(&a, 'a', server.port);
    rig_open(&b, 'a', server.port);
    struct rig_move m;
    rig_move_make(&a, &m, TIER_STORE, 1, 4, true, 0, 0);
    a.tier->submit(a.tier, &m.move);
    rig_wait(&a, 1);
    assert_int_equal(m.move.bytes, 4 * RIG_PAGE_BYTES + record_state_bytes(&a.shape));
    rig_do(&server, "DEL %s", rig_key(&server, "*:p:*", 2));
    rig_move_make(&b, &m, TIER_STORE, 1, 4, true, 0, 0);
    b.tier->submit(b.tier, &m.move);
    rig_wait(&b, 1);
    assert_int_equal(m.move.result, TIER_OK);
    assert_int_equal(m.move.bytes, RIG_PAGE_BYTES);
    rig_close(&a);
    rig_close(&b);
}

static void many_moves_at_once_all_end_right(void **state) {
    enum { MOVES = 12, BLOCKS = 5 };
    static struct rig_move move[MOVES];
    struct rig a, b;
    rig_open(&a, 'a', server.port);
    rig_open(&b, 'a', server.port);
    for (unsigned round = 0; round < 10; round++) {
        for (unsigned i = 0; i < MOVES; i++) {
            rig_move_make(&a, &move[i], TIER_STORE, round * 100 + i, BLOCKS, false,
                          (int32_t)(i * BLOCKS), 0);
            a.tier->submit(a.tier, &move[i].move);
        }
        rig_wait(&a, MOVES);
        for (unsigned i = 0; i < MOVES; i++)
            assert_int_equal(move[i].move.result, TIER_OK);
        rig_clear(&b);
        for (unsigned i = 0; i < MOVES; i++) {
            rig_move_make(&b, &move[i], i % 3 == 2 ? TIER_PROBE : TIER_LOAD, round * 100 + i,
                          BLOCKS, false, (int32_t)(i * BLOCKS), 0);
            b.tier->submit(b.tier, &move[i].move);
        }
        rig_wait(&b, MOVES);
        for (unsigned i = 0; i < MOVES; i++) {
            assert_int_equal(move[i].move.result, TIER_OK);
            for (uint32_t k = 0; k < BLOCKS && i % 3 != 2; k++)
                assert_true(rig_page_is(&b, (int32_t)(i * BLOCKS + k), round * 100 + i, k));
        }
    }
    rig_close(&a);
    rig_close(&b);
}

/* Far more keys than one round trip asks for. */
static void a_probe_of_many_keys_knows_each(void **state) {
    enum { KEYS = 1500 };
    struct rig a;
    rig_open(&a, 'a', server.port);
    for (uint32_t n = 10; n <= 60; n += 10)
        assert_int_equal(rig_run(&a, TIER_STORE, n, n, true), TIER_OK);
    struct rig b;
    rig_open(&b, 'a', server.port);
    static struct cache_key key[KEYS], state_key[KEYS];
    static uint32_t position[KEYS];
    for (uint32_t i = 0; i < KEYS; i++) {
        const uint64_t seed = 10 + i % 6 * 10;
        key[i] = rig_block(seed, i / 6);
        state_key[i] = rig_block(seed, i / 6);
        position[i] = (i / 6 + 1) * 64;
    }
    struct tier_move m = {.task = TIER_PROBE,
                          .n_pages = KEYS,
                          .page_keys = key,
                          .n_states = KEYS,
                          .state_keys = state_key,
                          .positions = position};
    b.tier->submit(b.tier, &m);
    rig_wait(&b, 1);
    assert_int_equal(m.result, TIER_OK);
    for (uint32_t i = 0; i < KEYS; i++) {
        const uint64_t seed = 10 + i % 6 * 10;
        assert_int_equal(b.tier->page(b.tier, &key[i]), i / 6 < seed ? TIER_PRESENT : TIER_ABSENT);
        assert_int_equal(b.tier->state(b.tier, &state_key[i], position[i]),
                         i / 6 + 1 == seed ? TIER_PRESENT : TIER_ABSENT);
    }
    rig_close(&a);
    rig_close(&b);
}

/* Nothing in the server is dropped: so many records known here stay there. */
static void reset_leaves(struct rig *a, uint64_t records) {
    uint64_t left;
    const size_t before = rig_count(&server, "*");
    assert_int_equal(a->tier->reset(a->tier, &left), 0);
    assert_int_equal(left, records);
    assert_int_equal(rig_count(&server, "*"), before);
}

static void after_a_reset_only_what_was_stored_since_is_loaded(void **state) {
    struct rig a, b;
    rig_open(&a, 'a', server.port);
    rig_open(&b, 'a', server.port);
    assert_int_equal(rig_run(&a, TIER_STORE, 1, 3, true), TIER_OK);
    assert_int_equal(rig_run(&b, TIER_PROBE, 1, 3, true), TIER_OK);
    reset_leaves(&a, 4);
    assert_true(rig_all_are(&a, 1, 3, true, TIER_ABSENT));
    assert_int_equal(rig_run(&a, TIER_PROBE, 1, 3, true), TIER_OK);
    assert_true(rig_all_are(&a, 1, 3, true, TIER_ABSENT));
    assert_int_equal(rig_run(&a, TIER_LOAD, 1, 3, true), TIER_GONE);
    /* The others keep theirs. */
    rig_clear(&b);
    assert_int_equal(rig_run(&b, TIER_LOAD, 1, 3, true), TIER_OK);
    assert_true(rig_loaded(&b, 1, 3, true));
    /* What is stored from now on is sent though it is there, and found. */
    struct rig_move m;
    rig_move_make(&a, &m, TIER_STORE, 1, 3, true, 0, 0);
    a.tier->submit(a.tier, &m.move);
    rig_wait(&a, 1);
    assert_int_equal(m.move.result, TIER_OK);
    assert_int_equal(m.move.bytes, 3 * RIG_PAGE_BYTES + record_state_bytes(&a.shape));
    assert_true(rig_all_are(&a, 1, 3, true, TIER_PRESENT));
    rig_clear(&a);
    assert_int_equal(rig_run(&a, TIER_LOAD, 1, 3, true), TIER_OK);
    assert_true(rig_loaded(&a, 1, 3, true));
    reset_leaves(&a, 4);
    rig_close(&a);
    rig_close(&b);
}

static void a_reset_counts_for_the_probe_under_way(void **state) {
    struct rig a;
    struct rig_move m;
    rig_open(&a, 'a', server.port);
    assert_int_equal(rig_run(&a, TIER_STORE, 1, 3, true), TIER_OK);
    rig_close(&a);
    rig_open(&a, 'a', server.port);
    kill(server.pid, SIGSTOP);
    rig_move_make(&a, &m, TIER_PROBE, 1, 3, true, 0, 0);
    a.tier->submit(a.tier, &m.move);
    nanosleep(&(struct timespec){.tv_nsec = 200 * 1000000}, NULL); /* it has been sent by now */
    a.tier->reset(a.tier, &(uint64_t){0});
    kill(server.pid, SIGCONT);
    rig_wait(&a, 1);
    assert_int_equal(m.move.result, TIER_OK);
    assert_true(rig_all_are(&a, 1, 3, true, TIER_ABSENT));
    rig_close(&a);
}

static long long touches(void) {
    redisReply *r = rig_do(&server, "INFO commandstats");
    const char *at = strstr(r->str, "cmdstat_touch:calls=");
    return at ? atoll(at + 20) : 0;
}

static void the_server_hears_of_use_once_in_a_while(void **state) {
    struct rig a;
    rig_open(&a, 'a', server.port);
    assert_int_equal(rig_run(&a, TIER_STORE, 1, 4, true), TIER_OK);
    rig_do(&server, "CONFIG RESETSTAT");
    struct cache_key key[5];
    for (uint32_t i = 0; i < 5; i++)
        key[i] = rig_block(1, i);
    for (unsigned i = 0; i < 20; i++)
        a.tier->touch(a.tier, key, 4, true);
    const long long want = 4 + RIG_LAYERS + 1; /* pages, layers, manifest */
    for (unsigned i = 0; touches() < want && i < 100000; i++)
        ;
    assert_int_equal(rig_run(&a, TIER_PROBE, 1, 4, true), TIER_OK);
    assert_int_equal(touches(), want);
    a.tier->touch(a.tier, key, 5, true); /* the fifth and its state are not there */
    rig_close(&a);
    assert_int_equal(touches(), want);
}

/* Flushed or evicted behind our back: whoever uses a record hears of it. */
static void use_of_a_record_shows_that_it_is_gone(void **state) {
    struct rig a;
    struct cache_key key[4];
    rig_open(&a, 'a', server.port);
    for (uint32_t i = 0; i < 4; i++)
        key[i] = rig_block(1, i);
    assert_int_equal(rig_run(&a, TIER_STORE, 1, 4, true), TIER_OK);
    rig_do(&server, "DEL %s", rig_key(&server, "*:p:*", 2));
    rig_do(&server, "DEL %s", rig_key(&server, "*:s:*:*", 1)); /* a layer: the state is of no use */
    a.tier->touch(a.tier, key, 4, true);
    for (unsigned i = 0; rig_usage(&a).pages + rig_usage(&a).states > 3 && i < 10000; i++)
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    assert_int_equal(rig_usage(&a).pages, 3);
    assert_int_equal(rig_usage(&a).states, 0);
    assert_int_equal(rig_usage(&a).pages_evicted + rig_usage(&a).states_evicted, 2);
    rig_close(&a);
}

static void a_page_named_without_a_place_is_left_as_it_is(void **state) {
    struct rig a;
    struct rig_move m;
    rig_open(&a, 'a', server.port);
    rig_move_make(&a, &m, TIER_STORE, 1, 4, true, 0, 0);
    m.pages[1] = -1;
    a.tier->submit(a.tier, &m.move);
    rig_wait(&a, 1);
    assert_int_equal(m.move.result, TIER_OK);
    assert_int_equal(rig_count(&server, "*:p:*"), 3);
    struct cache_key key = rig_block(1, 1);
    assert_int_equal(a.tier->page(a.tier, &key), TIER_ABSENT);
    rig_close(&a);
}

static void stores_that_wait_are_made_before_it_closes(void **state) {
    enum { MOVES = 10 };
    static struct rig_move move[MOVES];
    struct rig a;
    rig_open(&a, 'a', server.port);
    for (unsigned i = 0; i < MOVES; i++) {
        rig_move_make(&a, &move[i], TIER_STORE, i, 6, false, (int32_t)i * 6, 0);
        a.tier->submit(a.tier, &move[i].move);
    }
    rig_close(&a);
    assert_int_equal(rig_count(&server, "*:p:*"), MOVES * 6);
}

static void a_connection_closed_while_idle_is_replaced_without_a_word(void **state) {
    struct rig a;
    rig_log_begin();
    rig_open(&a, 'a', server.port);
    for (uint64_t i = 0; i < 5; i++) {
        assert_int_equal(rig_run(&a, TIER_STORE, i, 2, true), TIER_OK);
        rig_do(&server, "CLIENT KILL TYPE normal SKIPME yes");
        assert_int_equal(rig_run(&a, TIER_LOAD, i, 2, true), TIER_OK);
    }
    rig_close(&a);
    assert_int_equal(rig_log_count("remote store"), 1); /* connected */
}

#define CASE(f) cmocka_unit_test_setup_teardown(f, empty, rig_log_end)
int main(void) {
    const struct CMUnitTest tests[] = {
        CASE(one_stores_another_probes_and_loads_bit_for_bit),
        CASE(state_is_found_at_its_own_position_only),
        CASE(values_are_named_and_written_as_documented),
        CASE(damaged_values_are_never_loaded_and_dropped),
        CASE(damage_is_said_once_and_counted_each_time),
        CASE(every_byte_of_a_header_counts),
        CASE(missing_values_end_a_load_gone),
        CASE(state_that_lost_a_layer_is_no_longer_found),
        CASE(a_store_sends_only_what_is_not_there),
        CASE(many_moves_at_once_all_end_right),
        CASE(a_probe_of_many_keys_knows_each),
        CASE(after_a_reset_only_what_was_stored_since_is_loaded),
        CASE(a_reset_counts_for_the_probe_under_way),
        CASE(the_server_hears_of_use_once_in_a_while),
        CASE(use_of_a_record_shows_that_it_is_gone),
        CASE(a_page_named_without_a_place_is_left_as_it_is),
        CASE(stores_that_wait_are_made_before_it_closes),
        CASE(a_connection_closed_while_idle_is_replaced_without_a_word),
    };
    return cmocka_run_group_tests(tests, start, stop);
}
