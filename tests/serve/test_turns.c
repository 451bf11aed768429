/* test_turns.c: the store of generated turns: its bound, order of use, keys, and its file through
 * saving, loading and every kind of damage. */
#include "tests/test.h"

#include "base/error.h"
#include "base/log.h"
#include "base/rng.h"
#include "serve/turns.h"
#include "serve/turns_chat.h"
#include "tests/text/chat_test.h"
#include "text/chat_turn.h"

#include <pthread.h>
#include <sys/stat.h>
#include <unistd.h>

static struct turns_key key(uint32_t number) {
    struct turns_key k;
    for (size_t i = 0; i < sizeof k.bytes; i++)
        k.bytes[i] = (unsigned char)rng_at(7, number, i);
    return k;
}

/* Turn `number` has n ids number, number + 1, ... */
static void put(struct turns *t, uint32_t number, size_t n) {
    struct turns_key k = key(number);
    int32_t *ids = malloc((n + 1) * sizeof *ids);
    for (size_t i = 0; i < n; i++)
        ids[i] = (int32_t)(number + i);
    turns_put(t, &k, ids, n);
    free(ids);
}

static bool has(struct turns *t, uint32_t number, size_t n) {
    struct turns_key k = key(number);
    struct ids ids = {0};
    ids_push(&ids, -5);
    bool found = turns_get(t, &k, &ids);
    assert_int_equal(ids.n, found ? n + 1 : 1);
    assert_int_equal(ids.data[0], -5);
    for (size_t i = 0; found && i < n; i++)
        assert_int_equal(ids.data[i + 1], number + i);
    ids_free(&ids);
    return found;
}

static void what_was_put_is_found_and_nothing_else(void **state) {
    struct turns *t = turns_open(1 << 20);
    for (uint32_t i = 0; i < 1000; i++)
        put(t, i, i % 37);
    for (uint32_t i = 0; i < 1000; i++)
        assert_true(has(t, i, i % 37));
    assert_false(has(t, 1000, 0));
    struct turns_stats s = turns_stats(t);
    assert_int_equal(s.entries, 1000);
    assert_int_equal(s.hits, 1000);
    assert_int_equal(s.misses, 1);
    assert_int_equal(s.evictions, 0);
    turns_close(t);
}

static void a_turn_put_again_replaces_the_old_one(void **state) {
    struct turns *t = turns_open(1 << 20);
    struct turns_key k = key(1);
    const int32_t other[] = {9, 8, 7};
    struct ids ids = {0};
    put(t, 1, 50);
    size_t one = turns_stats(t).bytes;
    turns_put(t, &k, other, 3);
    assert_true(turns_get(t, &k, &ids));
    assert_int_equal(ids.n, 3);
    assert_memory_equal(ids.data, other, sizeof other);
    assert_int_equal(turns_stats(t).entries, 1);
    assert_int_equal(turns_stats(t).bytes, one - 47 * 4);
    ids_free(&ids);
    turns_close(t);
}

static size_t entry_bytes(size_t n) {
    struct turns *t = turns_open(1 << 20);
    put(t, 1, n);
    size_t bytes = turns_stats(t).bytes;
    turns_close(t);
    return bytes;
}

static void the_bound_holds_and_the_longest_unused_go_first(void **state) {
    struct turns *t = turns_open(10 * entry_bytes(20));
    for (uint32_t i = 0; i < 10; i++)
        put(t, i, 20);
    struct turns_key used[] = {key(0), key(1), key(99)};
    turns_touch(t, used, 3);
    put(t, 10, 20);
    put(t, 11, 20);
    assert_true(has(t, 0, 20) && has(t, 1, 20));
    assert_false(has(t, 2, 20) || has(t, 3, 20));
    for (uint32_t i = 4; i < 12; i++)
        assert_true(has(t, i, 20));
    assert_int_equal(turns_stats(t).evictions, 2);
    put(t, 12, 60); /* takes the place of several */
    struct turns_stats s = turns_stats(t);
    assert_true(s.bytes <= s.limit_bytes);
    assert_true(has(t, 12, 60));
    turns_close(t);
}

static void of_one_conversation_the_last_turn_goes_first(void **state) {
    struct turns *t = turns_open(4 * entry_bytes(20));
    for (uint32_t i = 0; i < 4; i++)
        put(t, i, 20);
    struct turns_key used[] = {key(0), key(1), key(2), key(3)};
    turns_touch(t, used, 4);
    put(t, 4, 20);
    put(t, 5, 20);
    assert_true(has(t, 0, 20) && has(t, 1, 20));
    assert_false(has(t, 2, 20) || has(t, 3, 20));
    turns_close(t);
}

static void a_turn_above_the_bound_is_not_kept_and_drops_nothing(void **state) {
    struct turns *t = turns_open(2 * entry_bytes(20));
    put(t, 1, 20);
    put(t, 2, 20000);
    assert_true(has(t, 1, 20));
    assert_false(has(t, 2, 20000));
    turns_close(t);
}

/* ---- threads ---- */

static void *churn(void *arg) {
    struct turns *t = arg;
    for (uint32_t i = 0; i < 1000; i++) {
        struct turns_key k = key(i % 61);
        put(t, i % 61, 20);
        has(t, i * 7 % 61, 20);
        turns_touch(t, &k, 1);
    }
    return NULL;
}

static void threads_may_put_take_and_save_at_once(void **state) {
    char path[] = "/tmp/weir-turns-XXXXXX";
    close(mkstemp(path));
    struct turns *t = turns_open(30 * entry_bytes(20));
    pthread_t threads[3];
    assert_true(turns_keep(t, path, 0.01));
    for (size_t i = 0; i < 3; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, churn, t), 0);
    for (size_t i = 0; i < 3; i++)
        pthread_join(threads[i], NULL);
    struct turns_stats s = turns_stats(t);
    assert_true(s.entries > 0 && s.entries <= 30 && s.bytes <= s.limit_bytes);
    assert_int_equal(s.hits + s.misses, 3000);
    turns_close(t);
    unlink(path);
}

/* ---- files ---- */

static char directory[] = "/tmp/weir-turns-XXXXXX";

static const char *in_directory(const char *name) {
    static char path[128];
    snprintf(path, sizeof path, "%s/%s", directory, name);
    return path;
}

static struct turns *loaded(const char *path, uint32_t vocab) {
    struct turns *t = turns_open(1 << 20);
    weir_error err = {0};
    assert_int_equal(turns_load(t, path, vocab, &err), WEIR_OK);
    return t;
}

static void saved_turns_come_back_in_the_order_of_use(void **state) {
    const char *path = in_directory("order");
    struct turns *t = turns_open(1 << 20);
    weir_error err = {0};
    for (uint32_t i = 0; i < 100; i++)
        put(t, i, i);
    struct turns_key used = key(0);
    turns_touch(t, &used, 1);
    assert_int_equal(turns_save(t, path, &err), WEIR_OK);
    turns_close(t);
    struct stat st;
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0600);
    t = loaded(path, 1000);
    for (uint32_t i = 0; i < 100; i++)
        assert_true(has(t, i, i));
    turns_close(t);
    t = turns_open(4 * entry_bytes(100));
    assert_int_equal(turns_load(t, path, 1000, &err), WEIR_OK);
    assert_true(has(t, 0, 0) && has(t, 99, 99));
    assert_false(has(t, 1, 1));
    turns_close(t);
}

static void a_file_that_is_not_there_holds_none(void **state) {
    struct turns *t = loaded(in_directory("nowhere"), 10);
    assert_int_equal(turns_stats(t).entries, 0);
    turns_close(t);
}

static void saving_in_vain_leaves_the_old_file(void **state) {
    weir_error err = {0};
    struct turns *t = turns_open(1 << 20);
    assert_int_equal(turns_save(t, in_directory("no/such/place"), &err), WEIR_BAD_FILE);
    assert_true(strstr(err.where, "no/such/place") != NULL);
    /* The place is a directory: it cannot be replaced, and nothing is left beside it. */
    assert_int_equal(mkdir(in_directory("taken"), 0700), 0);
    assert_int_equal(turns_save(t, in_directory("taken"), &err), WEIR_BAD_FILE);
    assert_int_equal(rmdir(in_directory("taken")), 0);
    turns_close(t);
}

struct bytes {
    unsigned char data[16384];
    size_t n;
};

static void read_bytes(const char *path, struct bytes *b) {
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    b->n = fread(b->data, 1, sizeof b->data, f);
    assert_true(b->n < sizeof b->data);
    fclose(f);
}

static void write_bytes(const char *path, const struct bytes *b) {
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(b->data, 1, b->n, f), b->n);
    fclose(f);
}

enum { RECORDS = 12, IDS = 30, HEAD = 16, RECORD = 40 + 4 * IDS + 16 };

static void save_records(const char *path) {
    struct turns *t = turns_open(1 << 20);
    weir_error err = {0};
    for (uint32_t i = 0; i < RECORDS; i++)
        put(t, i, IDS);
    assert_int_equal(turns_save(t, path, &err), WEIR_OK);
    turns_close(t);
}

static size_t found(struct turns *t) {
    size_t n = 0;
    for (uint32_t i = 0; i < RECORDS; i++)
        n += has(t, i, IDS);
    return n;
}

static void a_damaged_byte_costs_its_record_alone(void **state) {
    const char *path = in_directory("damage");
    static struct bytes good, bad;
    save_records(path);
    read_bytes(path, &good);
    assert_int_equal(good.n, HEAD + RECORDS * RECORD);
    for (size_t at = HEAD; at < good.n; at += 1 + at % 7) {
        bad = good;
        bad.data[at] ^= (unsigned char)(1u << at % 8);
        write_bytes(path, &bad);
        struct turns *t = loaded(path, 1000);
        assert_int_equal(turns_stats(t).entries, RECORDS - 1);
        assert_false(has(t, (uint32_t)((at - HEAD) / RECORD), IDS));
        assert_int_equal(found(t), RECORDS - 1);
        turns_close(t);
    }
}

static void a_file_cut_anywhere_keeps_its_whole_records(void **state) {
    const char *path = in_directory("cut");
    static struct bytes b;
    save_records(path);
    read_bytes(path, &b);
    for (; b.n >= HEAD; b.n -= b.n > HEAD + 29 ? 29 : 1) {
        write_bytes(path, &b);
        struct turns *t = loaded(path, 1000);
        assert_int_equal(found(t), (b.n - HEAD) / RECORD);
        turns_close(t);
    }
}

static void bytes_lost_or_added_cost_their_record_alone(void **state) {
    const char *path = in_directory("shift");
    static struct bytes good, bad;
    save_records(path);
    read_bytes(path, &good);
    for (size_t at = HEAD + 3 * RECORD + 1; at < HEAD + 4 * RECORD - 9; at += 11) {
        bad = good;
        memmove(bad.data + at, bad.data + at + 9, bad.n - at - 9);
        bad.n -= 9;
        write_bytes(path, &bad);
        struct turns *t = loaded(path, 1000);
        assert_int_equal(found(t), RECORDS - 1);
        turns_close(t);
        memmove(bad.data + at + 5, good.data + at, good.n - at);
        bad.n = good.n + 5;
        write_bytes(path, &bad);
        t = loaded(path, 1000);
        assert_int_equal(found(t), RECORDS - 1);
        turns_close(t);
    }
}

static void a_file_of_another_kind_or_version_is_refused(void **state) {
    const char *path = in_directory("kind");
    static struct bytes good, bad;
    save_records(path);
    read_bytes(path, &good);
    for (size_t at = 0; at < HEAD; at++) {
        weir_error err = {0};
        struct turns *t = turns_open(1 << 20);
        bad = good;
        bad.data[at] ^= 0x10;
        write_bytes(path, &bad);
        assert_int_equal(turns_load(t, path, 1000, &err), WEIR_BAD_FILE);
        assert_string_equal(err.where, path);
        assert_int_equal(turns_stats(t).entries, 0);
        turns_close(t);
    }
    for (bad.n = 1; bad.n < HEAD; bad.n++) {
        weir_error err = {0};
        struct turns *t = turns_open(1 << 20);
        write_bytes(path, &bad);
        assert_int_equal(turns_load(t, path, 1000, &err), WEIR_BAD_FILE);
        turns_close(t);
    }
}

static void ids_outside_the_vocabulary_are_not_loaded(void **state) {
    const char *path = in_directory("vocabulary");
    save_records(path);
    for (uint32_t vocab = IDS; vocab < IDS + RECORDS; vocab++) {
        struct turns *t = loaded(path, vocab);
        assert_int_equal(found(t), vocab - IDS + 1);
        turns_close(t);
    }
}

static void a_file_of_false_heads_costs_no_square(void **state) {
    const char *path = in_directory("heads");
    static struct bytes b;
    save_records(path);
    read_bytes(path, &b);
    FILE *f = fopen(path, "wb");
    fwrite(b.data, 1, HEAD, f);
    const uint32_t n = 1 << 18;
#if defined(__SANITIZE_THREAD__)
    const size_t heads = 1 << 15; /* each byte is watched: a sixteenth is work enough */
#else
    const size_t heads = 1 << 19;
#endif
    for (size_t i = 0; i < heads; i++) {
        fwrite(b.data + HEAD, 1, 4, f);
        fwrite(&n, 1, 4, f);
    }
    fclose(f);
    struct turns *t = loaded(path, 1000); /* hashed anew at each head it would be 250 GB */
    assert_int_equal(turns_stats(t).entries, 0);
    turns_close(t);
    unlink(path);
}

static void the_keeper_saves_what_is_new_and_once_more_at_the_end(void **state) {
    const char *path = in_directory("kept");
    struct turns *t = turns_open(1 << 20);
    struct stat st;
    assert_true(turns_keep(t, path, 0.01));
    usleep(50 * 1000);
    assert_int_not_equal(stat(path, &st), 0); /* nothing was added */
    put(t, 1, 5);
    for (int i = 0; i < 1000 && stat(path, &st) != 0; i++)
        usleep(10 * 1000);
    assert_int_equal(stat(path, &st), 0);
    turns_close(t);
    t = turns_open(1 << 20);
    weir_error err = {0};
    assert_int_equal(turns_load(t, path, 1000, &err), WEIR_OK);
    assert_true(turns_keep(t, path, 3600));
    put(t, 2, 5);
    turns_close(t);
    t = loaded(path, 1000);
    assert_true(has(t, 1, 5) && has(t, 2, 5));
    turns_close(t);
}

/* ---- keys ---- */

struct rendering {
    const char *salt;
    const int32_t *prompt;
    size_t n;
};

static bool replayed(struct turns *t, const unsigned char *realm, const struct rendering *r,
                     const struct text *body, struct turns_base *base) {
    struct turns_prompt p;
    struct ids ids = {0};
    turns_prompt_begin(&p, t, realm, r->salt);
    ids_append(&ids, r->prompt, r->n);
    bool found = turns_prompt_replay(&p, body, &ids);
    assert_true(found == (ids.n > r->n));
    ids.n = r->n;
    turns_prompt_end(&p, &ids, base);
    ids_free(&ids);
    return found;
}

static void a_turn_is_found_under_its_salt_prompt_and_message_alone(void **state) {
    const struct formats *f = *state;
    const int32_t prompt[] = {1, 2, 3, 4, 5};
    const char *const salts[] = {NULL, "", "a", "b"};
    unsigned char realm[32];
    struct turns *t = turns_open(1 << 20);
    turns_realm(f->tiny, true, realm);
    for (size_t i = 0; i < 4; i++) {
        struct rendering r = {salts[i], prompt, 5};
        struct turns_turn turn = {.thinking = false, .calls = UINT32_MAX};
        struct text text = {0}, said = {0}, more = {0};
        struct ids ids = {0};
        size_t calls;
        expand("Hi{/response}{/m}", &text);
        tokenizer_encode_special(f->tiny, text.data, text.n, &ids);
        assert_true(chat_turn_read(f->k3, false, &ids, &said, &calls));
        text_append(&more, said.data, said.n);
        more.data[1] = 'o';
        assert_false(replayed(t, realm, &r, &said, &turn.base)); /* other salts' are not seen */
        turns_record(t, f->k3, &turn, &ids);
        assert_true(replayed(t, realm, &r, &said, NULL));
        assert_false(replayed(t, realm, &r, &more, NULL));
        for (size_t k = 0; k < 5; k++) {
            int32_t other[5];
            memcpy(other, prompt, sizeof prompt);
            other[k]++;
            struct rendering elsewhere = {salts[i], other, 5};
            assert_false(replayed(t, realm, &elsewhere, &said, NULL));
        }
        struct rendering shorter = {salts[i], prompt, 4};
        assert_false(replayed(t, realm, &shorter, &said, NULL));
        unsigned char other_realm[32];
        turns_realm(f->kimi_vocabulary, true, other_realm);
        assert_false(replayed(t, other_realm, &r, &said, NULL));
        text_free(&text);
        text_free(&said);
        text_free(&more);
        ids_free(&ids);
    }
    assert_int_equal(turns_stats(t).entries, 4);
    turns_close(t);
}

/* A conversation of two requests, rendered as the server does. */
static void render(const struct chat *c, struct turns *t, const char *messages, struct ids *ids,
                   struct turns_base *base) {
    static const unsigned char realm[32];
    struct turns_prompt p;
    struct chat_options o = chat_options_default();
    json_t *m = quoted_json(messages, NULL);
    weir_error err = {0};
    o.thinking = true;
    o.replay = turns_prompt_replay;
    o.replay_arg = &p;
    turns_prompt_begin(&p, t, realm, "salt");
    assert_int_equal(chat_render(c, m, &o, ids, NULL, &err), WEIR_OK);
    turns_prompt_end(&p, ids, base);
    json_decref(m);
}

static void turn_2_starts_with_turn_1_in_both_markups(void **state) {
    const struct formats *f = *state;
    static const char *const turns[] = {
        "H{/think}{response}i{/response}{tools}{o}call tool=\"f\" index=\"1\"{s}{o}argument "
        "key=\"a\" type=\"number\"{s} 1 {/argument}{/call}{/tools}{/m}",
        "i{calls}{tcall} functions.f:0 {args}{'a':1}\n{/tcall}{/calls}{end}"};
    static const char *const answers[] = {
        "{'role':'assistant','content':'i','reasoning':'H','tool_calls':[{'id':'x','type':"
        "'function','function':{'name':'f','arguments':'{\\\"a\\\":1}'}}]}",
        "{'role':'assistant','content':'i','tool_calls':[{'id':'functions.f:0','type':"
        "'function','function':{'name':'f','arguments':'{\\u0027a\\u0027:1}'}}]}"};
    for (int i = 0; i < 2; i++) {
        const struct chat *c = i ? f->kimi : f->k3;
        struct turns *t = turns_open(1 << 20);
        struct turns_turn turn = {.thinking = true, .calls = 1};
        struct ids first = {0}, second = {0}, generated = {0};
        struct text text = {0}, messages = {0};
        render(c, t, "[{'role':'user','content':'Go'}]", &first, &turn.base);
        expand(turns[i], &text);
        tokenizer_encode_special(i ? f->kimi_vocabulary : f->tiny, text.data, text.n, &generated);
        text_puts(&messages, "[{'role':'user','content':'Go'},");
        text_puts(&messages, answers[i]);
        text_puts(&messages, "]");
        ids_append(&first, generated.data, generated.n);
        for (int recorded = 0; recorded < 2; recorded++) {
            second.n = 0;
            render(c, t, messages.data, &second, NULL);
            bool starts = second.n > first.n &&
                          memcmp(second.data, first.data, first.n * sizeof *first.data) == 0;
            assert_int_equal(starts, recorded);
            turns_record(t, c, &turn, &generated);
        }
        turn.calls = 0; /* none was told: not kept */
        size_t entries = turns_stats(t).entries;
        turn.base.bytes[0]++;
        turns_record(t, c, &turn, &generated);
        assert_int_equal(turns_stats(t).entries, entries);
        turns_close(t);
        ids_free(&first);
        ids_free(&second);
        ids_free(&generated);
        text_free(&text);
        text_free(&messages);
    }
}

static int set_up(void **state) {
    log_set_level(LOG_ERROR); /* each damage is one warning */
    assert_non_null(mkdtemp(directory));
    return open_formats(state);
}

static int clean_up(void **state) {
    static const char *const names[] = {"order", "damage",     "cut",   "shift",
                                        "kind",  "vocabulary", "heads", "kept"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        unlink(in_directory(names[i]));
    assert_int_equal(rmdir(directory), 0); /* no temporary file was left */
    return close_formats(state);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_was_put_is_found_and_nothing_else),
        cmocka_unit_test(a_turn_put_again_replaces_the_old_one),
        cmocka_unit_test(the_bound_holds_and_the_longest_unused_go_first),
        cmocka_unit_test(of_one_conversation_the_last_turn_goes_first),
        cmocka_unit_test(a_turn_above_the_bound_is_not_kept_and_drops_nothing),
        cmocka_unit_test(threads_may_put_take_and_save_at_once),
        cmocka_unit_test(saved_turns_come_back_in_the_order_of_use),
        cmocka_unit_test(a_file_that_is_not_there_holds_none),
        cmocka_unit_test(saving_in_vain_leaves_the_old_file),
        cmocka_unit_test(a_damaged_byte_costs_its_record_alone),
        cmocka_unit_test(a_file_cut_anywhere_keeps_its_whole_records),
        cmocka_unit_test(bytes_lost_or_added_cost_their_record_alone),
        cmocka_unit_test(a_file_of_another_kind_or_version_is_refused),
        cmocka_unit_test(ids_outside_the_vocabulary_are_not_loaded),
        cmocka_unit_test(a_file_of_false_heads_costs_no_square),
        cmocka_unit_test(the_keeper_saves_what_is_new_and_once_more_at_the_end),
        cmocka_unit_test(turn_2_starts_with_turn_1_in_both_markups),
        cmocka_unit_test(a_turn_is_found_under_its_salt_prompt_and_message_alone),
    };
    return cmocka_run_group_tests(tests, set_up, clean_up);
}
