/* The base room: conversions, error text, arenas. */
#include "tests/test.h"

#include "base/arena.h"
#include "base/dtype.h"
#include "base/error.h"
#include "base/plural.h"
#include "base/rng.h"

#include <math.h>

static void bf16_rounds_to_nearest_even_and_keeps_nan(void **state) {
    assert_int_equal(f32_to_bf16(1.0f), 0x3F80);
    assert_int_equal(f32_to_bf16(1.00390625f), 0x3F80); /* tie, down to even */
    assert_int_equal(f32_to_bf16(1.01171875f), 0x3F82); /* tie, up to even */
    /* 8 significant bits: what is rounded before a subtraction is gone behind it. */
    assert_true(256.5f - 256.0f == 0.5f && bf16_round(256.5f) - bf16_round(256.0f) == 0.0f);
    assert_true(isnan(bf16_to_f32(f32_to_bf16(NAN))));
    assert_true(isinf(bf16_to_f32(f32_to_bf16(3.4e38f))));
}

/* Every number between two neighbouring codes goes to the nearer one, ties to the even code. */
static void e4m3_rounds_to_nearest_even_saturates_and_keeps_nan(void **state) {
    for (unsigned code = 0; code < 0x7F; code++) {
        float v = e4m3_to_f32((uint8_t)code);
        assert_int_equal(f32_to_e4m3(v), code);
        assert_int_equal(f32_to_e4m3(-v), code | 0x80);
        assert_true(e4m3_to_f32((uint8_t)(code | 0x80)) == -v);
        if (code == 0x7E)
            break;
        float next = e4m3_to_f32((uint8_t)(code + 1)), middle = (v + next) / 2;
        assert_true(next > v);
        assert_int_equal(f32_to_e4m3(middle), code & 1 ? code + 1 : code);
        assert_int_equal(f32_to_e4m3(nextafterf(middle, 0)), code);
        assert_int_equal(f32_to_e4m3(nextafterf(middle, 1e9f)), code + 1);
    }
    assert_true(e4m3_to_f32(0x01) == 0x1p-9f && e4m3_to_f32(0x08) == 0x1p-6f);
    assert_true(e4m3_to_f32(0x38) == 1.0f && e4m3_to_f32(0x7E) == 448.0f);
    assert_int_equal(f32_to_e4m3(1e30f), 0x7E);
    assert_int_equal(f32_to_e4m3(-INFINITY), 0xFE);
    assert_true(isnan(e4m3_to_f32(f32_to_e4m3(NAN))) && isnan(e4m3_to_f32(0xFF)));
}

/* F-005: all 256 scale bytes. */
static void F005_every_e8m0_byte_decodes_to_its_power_of_two(void **state) {
    for (int b = 0; b < 255; b++)
        assert_true(e8m0_to_f32((uint8_t)b) == ldexpf(1.0f, b - 127));
    assert_true(isnan(e8m0_to_f32(255)));
}

static void an_error_is_cut_at_a_character_border(void **state) {
    weir_error err;
    char text[700];
    memset(text, 'a', sizeof text);
    memcpy(text + 510, "\xE4\xBD\xA0", 4);
    text[513] = 0;
    assert_int_equal(weir_fail(&err, WEIR_BAD_VALUE, "field", "%s", text), WEIR_BAD_VALUE);
    assert_int_equal(strlen(err.message), 510);
    assert_string_equal(err.where, "field");
}

static void an_arena_gives_aligned_zeroed_pieces_until_it_is_full(void **state) {
    struct arena a;
    assert_int_equal(arena_open(&a, 5 << 20), 0);
    unsigned char *p = arena_take(&a, 100);
    unsigned char *q = arena_take(&a, 1);
    assert_int_equal((uintptr_t)p % 64, 0);
    assert_int_equal(q - p, 128);
    assert_int_equal(p[99], 0);
    assert_null(arena_take(&a, SIZE_MAX - 10));
    assert_null(arena_take(&a, 5 << 20));
    arena_close(&a);
    assert_int_equal(size_mul(SIZE_MAX / 2, 3), SIZE_MAX);
}

static void random_values_depend_on_all_three_arguments(void **state) {
    assert_true(rng_at(1, 2, 3) == rng_at(1, 2, 3));
    assert_true(rng_at(1, 2, 3) != rng_at(1, 2, 4));
    assert_true(rng_at(1, 2, 3) != rng_at(1, 3, 3));
    assert_true(rng_at(1, 2, 3) != rng_at(2, 2, 3));
    double mean = 0;
    for (int i = 0; i < 10000; i++)
        mean += rng_unit(rng_at(7, 0, (uint64_t)i)) / 10000;
    assert_true(fabs(mean - 0.5) < 0.02);
}

static void one_thing_is_singular_and_none_is_plural(void **state) {
    assert_string_equal(plural(1, "call", "calls"), "call");
    assert_string_equal(plural(0, "call", "calls"), "calls");
    assert_string_equal(plural(2, "was", "were"), "were");
    assert_string_equal(plural(UINT64_C(1) << 32 | 1, "call", "calls"), "calls");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bf16_rounds_to_nearest_even_and_keeps_nan),
        cmocka_unit_test(e4m3_rounds_to_nearest_even_saturates_and_keeps_nan),
        cmocka_unit_test(F005_every_e8m0_byte_decodes_to_its_power_of_two),
        cmocka_unit_test(an_error_is_cut_at_a_character_border),
        cmocka_unit_test(an_arena_gives_aligned_zeroed_pieces_until_it_is_full),
        cmocka_unit_test(random_values_depend_on_all_three_arguments),
        cmocka_unit_test(one_thing_is_singular_and_none_is_plural),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
