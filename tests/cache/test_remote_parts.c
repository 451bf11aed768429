/* The remote tier's parts by themselves: addresses, headers of values, the set of what is known. */
#include "tests/test.h"

#include "base/rng.h"
#include "cache/remote_address.h"
#include "cache/remote_known.h"
#include "cache/remote_value.h"

static void good_addresses_are_read(void **state) {
    const struct {
        const char *url, *user, *password, *host, *port, *db, *label;
    } good[] = {
        {"redis://cache", "", "", "cache", "6379", "", "redis://cache:6379"},
        {"redis://10.0.0.1:7000/", "", "", "10.0.0.1", "7000", "", "redis://10.0.0.1:7000"},
        {"redis://:pw@h:1/0", "", "pw", "h", "1", "0", "redis://h:1/0"},
        {"redis://u:p%40%25@h/15", "u", "p@%", "h", "6379", "15", "redis://h:6379/15"},
        {"redis://:a@b:c/d@h", "", "a@b:c/d", "h", "6379", "", "redis://h:6379"},
        {"redis://[::1]", "", "", "::1", "6379", "", "redis://[::1]:6379"},
        {"redis://:x@[fe80::2]:65535/2", "", "x", "fe80::2", "65535", "2",
         "redis://[fe80::2]:65535/2"},
    };
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        struct remote_address a;
        weir_error err = {0};
        if (remote_address_read(&a, good[i].url, &err) != WEIR_OK)
            fail_msg("%s: %s", good[i].url, err.message);
        assert_string_equal(a.user, good[i].user);
        assert_string_equal(a.password, good[i].password);
        assert_string_equal(a.host, good[i].host);
        assert_string_equal(a.port, good[i].port);
        assert_string_equal(a.db, good[i].db);
        assert_string_equal(a.label, good[i].label);
    }
}

static void bad_addresses_are_refused_without_their_secrets(void **state) {
    const struct {
        const char *url, *says;
    } bad[] = {
        {"", "must read redis://"},
        {"cache:6379", "\"cache:6379\" must read redis://"},
        {"http://:secret@h", "\"h\" must read redis://"},
        {"secret@h:1", "\"h:1\" must read redis://"},
        {"rediss://:secret@h", "TLS"},
        {"redis://", "host must be 1 to"},
        {"redis:///1", "host must be 1 to"},
        {"redis://:secret@", "host must be 1 to"},
        {"redis://:secret@:6379", "host must be 1 to"},
        {"redis://a b", "host must be 1 to"},
        {"redis://h?db=1", "host must be 1 to"},
        {"redis://secret@h", "':' must stand before the password"},
        {"redis://:@h", "password before '@' is empty"},
        {"redis://:secret%@h", "'%' only before two"},
        {"redis://:secret%4@h", "'%' only before two"},
        {"redis://:secret%zz@h", "'%' only before two"},
        {"redis://:secret%00@h", "'%' only before two"},
        {"redis://:secret@h:", "port from 1 to 65535"},
        {"redis://:secret@h:0", "port from 1 to 65535"},
        {"redis://:secret@h:65536", "port from 1 to 65535"},
        {"redis://h:+1", "port from 1 to 65535"},
        {"redis://h:080", "port from 1 to 65535"},
        {"redis://h:12x", "port from 1 to 65535"},
        {"redis://::1", "host must be 1 to"},
        {"redis://fe80::2", "brackets"},
        {"redis://[::1", "lacks its ']'"},
        {"redis://[]", "host must be 1 to"},
        {"redis://[::1]x", "port from 1 to 65535"},
        {"redis://h/one", "database \"one\" must be a number"},
        {"redis://h/-1", "must be a number"},
        {"redis://h/1/2", "must be a number"},
        {"redis://h/99999", "must be a number"},
        {"redis://:secret@h/1x", "must be a number"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct remote_address a;
        weir_error err = {0};
        const weir_status s = remote_address_read(&a, bad[i].url, &err);
        if (s != WEIR_BAD_VALUE || !strstr(err.message, bad[i].says) ||
            strstr(err.message, "secret"))
            fail_msg("%s: status %d, \"%s\"", bad[i].url, (int)s, err.message);
        assert_string_equal(err.where, "remote_store");
    }
    char text[2000] = "redis://";
    struct remote_address a;
    memset(text + 8, 'a', 1000);
    assert_int_equal(remote_address_read(&a, text, NULL), WEIR_BAD_VALUE);
    text[8] = ':';
    strcpy(text + 1008, "@h");
    assert_int_equal(remote_address_read(&a, text, NULL), WEIR_BAD_VALUE);
}

/* Whatever bytes come, reading an address ends and what is accepted is whole. */
static void random_addresses_never_break_the_reader(void **state) {
    static const char alphabet[] = "redis://:@[]%/0129af.";
    for (uint64_t seed = 0; seed < 200000; seed++) {
        char url[64] = "redis://";
        const size_t n = rng_at(seed, 1, 0) % 40;
        for (size_t i = 0; i < n; i++)
            url[8 + i] = alphabet[rng_at(seed, 2, i) % (sizeof alphabet - 1)];
        struct remote_address a;
        weir_error err = {0};
        if (remote_address_read(&a, url, &err) == WEIR_OK) {
            assert_true(a.host[0] != '\0' && atoi(a.port) > 0 && atoi(a.port) < 65536);
            assert_true(a.label[0] == 'r');
        } else {
            assert_true(err.message[0] != '\0');
        }
    }
}

static void any_difference_makes_a_value_another(void **state) {
    enum { PARTS = 3, BYTES = 96 };
    unsigned char value[REMOTE_HEADER_BYTES + BYTES + 1];
    uint64_t sums[PARTS], again[PARTS];
    for (size_t i = 0; i < BYTES; i++)
        value[REMOTE_HEADER_BYTES + i] = (unsigned char)rng_mix(i);
    struct remote_value v = {REMOTE_LAYER, {{1}}, {{2}}, 64, 5, PARTS, BYTES};
    remote_value_seal(&v, value + REMOTE_HEADER_BYTES, sums, value);
    const size_t whole = REMOTE_HEADER_BYTES + BYTES;
    assert_true(remote_value_whole(&v, value, whole, again));
    assert_memory_equal(sums, again, sizeof sums);
    assert_false(remote_value_whole(&v, value, whole - 1, again));
    assert_false(remote_value_whole(&v, value, whole + 1, again));
    for (size_t bit = 0; bit < whole * 8; bit++) {
        value[bit / 8] ^= (unsigned char)(1u << bit % 8);
        assert_false(remote_value_whole(&v, value, whole, again));
        value[bit / 8] ^= (unsigned char)(1u << bit % 8);
    }
    struct remote_value other[] = {v, v, v, v, v, v};
    other[0].kind = REMOTE_MANIFEST;
    other[1].model.bytes[31] = 1;
    other[2].key.bytes[31] = 1;
    other[3].position = 128;
    other[4].layer = 6;
    other[5].parts = 2;
    for (size_t i = 0; i < sizeof other / sizeof *other; i++)
        assert_false(remote_value_whole(&other[i], value, whole, again));
    assert_true(remote_value_whole(&v, value, whole, again));
}

static void header_is_written_as_documented(void **state) {
    unsigned char header[REMOTE_HEADER_BYTES];
    uint64_t sum;
    const struct remote_value v = {REMOTE_PAGE, {{0xAA}}, {{0xBB}}, 0, 0, 1, 0x0102};
    static const unsigned char payload[0x0102];
    remote_value_seal(&v, payload, &sum, header);
    assert_memory_equal(header, "weir-rec\1\0\0\0\1\0\0\0\xAA", 17);
    assert_int_equal(header[48], 0xBB);
    assert_memory_equal(header + 88, "\2\1\0\0\0\0\0\0\1\0\0\0\0\0\0\0", 16);
}

/* The known set against a plain list of the same rules. */
enum { MOST = 50, NAMES = 200 };
struct model {
    enum tier_presence p[NAMES];
    uint64_t used[NAMES];
};

static struct remote_name name_at(uint32_t i) {
    struct remote_name n = {.position = i % 3 ? 64 * (i % 3) : 0};
    const uint64_t x = rng_mix(i / 3) & 0xFF; /* full of collisions */
    memcpy(n.key.bytes, &x, 8);
    n.key.bytes[31] = (uint8_t)(i / 3);
    return n;
}

static void model_set(struct model *m, uint32_t i, enum tier_presence p, uint64_t now) {
    if (p != TIER_ABSENT && m->p[i] == TIER_ABSENT) {
        uint32_t n = 0, oldest = NAMES;
        for (uint32_t k = 0; k < NAMES; k++)
            if (m->p[k] != TIER_ABSENT) {
                n++;
                if (oldest == NAMES || m->used[k] < m->used[oldest])
                    oldest = k;
            }
        if (n == MOST)
            m->p[oldest] = TIER_ABSENT;
    }
    m->p[i] = p;
    m->used[i] = now;
}

static void known_set_forgets_what_was_used_longest_ago(void **state) {
    for (uint64_t seed = 0; seed < 20; seed++) {
        struct remote_known *k = remote_known_open(MOST);
        struct model m = {0};
        assert_non_null(k);
        for (uint64_t now = 1; now <= 5000; now++) {
            const uint64_t x = rng_at(seed, 3, now);
            const uint32_t i = (uint32_t)(x % NAMES);
            const struct remote_name n = name_at(i);
            switch ((x >> 32) % 8) {
            case 0:
                if (remote_known_touch(k, &n, (uint32_t)now, 10))
                    assert_int_equal(m.p[i], TIER_PRESENT);
                if (m.p[i] != TIER_ABSENT)
                    m.used[i] = now;
                break;
            case 1:
                if ((x >> 40) % 64 == 0) {
                    uint64_t n_present = 0;
                    for (uint32_t j = 0; j < NAMES; j++)
                        if (m.p[j] == TIER_PRESENT) {
                            m.p[j] = TIER_ABSENT;
                            n_present++;
                        }
                    assert_int_equal(remote_known_reset(k), n_present);
                }
                break;
            default: {
                const enum tier_presence p = (enum tier_presence)((x >> 36) % 3);
                remote_known_set(k, &n, p);
                model_set(&m, i, p, now);
            }
            }
            uint64_t pages, states, want[2] = {0, 0};
            for (uint32_t j = 0; j < NAMES; j++) {
                const struct remote_name at = name_at(j);
                if (remote_known_get(k, &at) != m.p[j])
                    fail_msg("seed %d, step %d: record %u", (int)seed, (int)now, j);
                want[at.position != 0] += m.p[j] == TIER_PRESENT;
            }
            remote_known_count(k, &pages, &states);
            assert_int_equal(pages, want[0]);
            assert_int_equal(states, want[1]);
        }
        remote_known_close(k);
    }
}

static void use_is_reported_once_in_a_while(void **state) {
    struct remote_known *k = remote_known_open(4);
    const struct remote_name n = name_at(0), coming = name_at(1), absent = name_at(2);
    remote_known_set(k, &n, TIER_PRESENT);
    remote_known_set(k, &coming, TIER_COMING);
    assert_true(remote_known_touch(k, &n, 0, 10));
    assert_false(remote_known_touch(k, &n, 9, 10));
    assert_true(remote_known_touch(k, &n, 11, 10));
    assert_false(remote_known_touch(k, &coming, 11, 10));
    assert_false(remote_known_touch(k, &absent, 11, 10));
    remote_known_close(k);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(good_addresses_are_read),
        cmocka_unit_test(bad_addresses_are_refused_without_their_secrets),
        cmocka_unit_test(random_addresses_never_break_the_reader),
        cmocka_unit_test(any_difference_makes_a_value_another),
        cmocka_unit_test(header_is_written_as_documented),
        cmocka_unit_test(known_set_forgets_what_was_used_longest_ago),
        cmocka_unit_test(use_is_reported_once_in_a_while),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
