/* test_gpu_emu.c: the emulator of kernels finds what it is there to find, and computes what the
 * dialect says. */
#include "tests/test.h"

#include "base/dtype.h"
#include "base/rng.h"
#include "ops/gpu/emu/emu.h"
#include "tests/ops/gpu/wrong.h"

#include <math.h>

#define DECLARE(NAME) emu_kernel NAME##_emu32, NAME##_emu64;
WRONG_KERNELS(DECLARE)

enum { THREADS = 256, BLOCKS = 3, SHARED = 1024 * sizeof(float) };

struct kernel {
    emu_kernel *at[2]; /* waves of 32, of 64 */
    uint32_t cluster;
};
#define KERNEL(NAME)  ((struct kernel){{NAME##_emu32, NAME##_emu64}, 0})
#define CLUSTER(NAME) ((struct kernel){{NAME##_emu32, NAME##_emu64}, 2})

struct outcome {
    weir_status status;
    weir_error err;
    float y[2048];
};

static void run(struct kernel k, int wide, enum emu_order order, uint64_t seed, uint32_t blocks,
                uint32_t threads, const float *x, struct outcome *out) {
    _Alignas(16) static float y[2048];
    memset(y, 0xFF, sizeof y);
    y[256] = 0; /* the counter of right_count */
    struct wrong record = {x, y};
    struct emu_launch l = {.kernel = k.at[wide],
                           .record = &record,
                           .blocks_x = blocks,
                           .blocks_y = 1,
                           .threads = threads,
                           .cluster = k.cluster,
                           .wave = wide ? 64 : 32,
                           .shared_bytes = SHARED,
                           .order = order,
                           .seed = seed};
    memset(out, 0, sizeof *out);
    out->status = emu_run(&l, &out->err);
    memcpy(out->y, y, sizeof y);
}

static const float *numbers(void) {
    _Alignas(16) static float x[THREADS * BLOCKS + 8];
    for (size_t i = 0; i < sizeof x / sizeof *x; i++)
        x[i] = (float)i;
    return x;
}

static struct outcome first, second;

/* Whether any two orders differ in what they leave. */
static bool depends_on_order(struct kernel k, int wide, uint32_t blocks, uint32_t threads) {
    run(k, wide, EMU_FORWARD, 0, blocks, threads, numbers(), &first);
    assert_int_equal(first.status, WEIR_OK);
    for (int i = 0; i < 4; i++) {
        run(k, wide, i ? EMU_RANDOM : EMU_REVERSE, (uint64_t)i, blocks, threads, numbers(),
            &second);
        assert_int_equal(second.status, WEIR_OK);
        if (memcmp(first.y, second.y, sizeof first.y) != 0)
            return true;
    }
    return false;
}

static void a_missing_barrier_makes_results_depend_on_the_order(void **state) {
    for (int wide = 0; wide < 2; wide++) {
        assert_false(depends_on_order(KERNEL(right_mirror), wide, BLOCKS, THREADS));
        assert_true(depends_on_order(KERNEL(mirror_without_barrier), wide, BLOCKS, THREADS));
        assert_true(depends_on_order(KERNEL(second_barrier_missing), wide, 1, THREADS));
        assert_false(depends_on_order(CLUSTER(right_exchange), wide, 4, 128));
        assert_true(depends_on_order(CLUSTER(exchange_read_early), wide, 4, 128));
    }
}

static void right_kernels_compute_what_they_say(void **state) {
    for (int wide = 0; wide < 2; wide++)
        for (int order = 0; order < EMU_ORDERS; order++) {
            run(KERNEL(right_mirror), wide, order, 1, BLOCKS, THREADS, numbers(), &first);
            for (int i = 0; i < BLOCKS * THREADS; i++)
                assert_true(first.y[i] ==
                            (float)(i / THREADS * THREADS + THREADS - 1 - i % THREADS));
            run(KERNEL(right_copy), wide, order, 1, 1, THREADS, numbers(), &first);
            assert_int_equal(first.status, WEIR_OK);
            for (int i = 0; i < THREADS; i++)
                assert_true(first.y[i] == (i >= 128 && i < 132 ? 0 : (float)i));
            run(KERNEL(right_count), wide, order, 1, 10, 64, numbers(), &first);
            assert_true(first.y[255] == 45);
            run(CLUSTER(right_exchange), wide, order, 1, 4, 128, numbers(), &first);
            assert_int_equal(first.status, WEIR_OK);
            for (int i = 0; i < 512; i++)
                assert_true(first.y[i] == (float)(i ^ 128));
            run(KERNEL(right_gate), wide, order, 1, 1, THREADS, numbers(), &first);
            assert_int_equal(first.status, WEIR_OK);
            for (int i = 0; i < THREADS; i++)
                assert_true(first.y[i] ==
                            (float)(THREADS / 2 - 1 - i % (THREADS / 2) + i / (THREADS / 2)));
        }
}

static void boxes_come_to_all_blocks_of_a_cluster(void **state) {
    const uint16_t *x = (const uint16_t *)(const void *)numbers() + 12 * 48;
    for (int wide = 0; wide < 2; wide++)
        for (int order = 0; order < EMU_ORDERS; order++) {
            run(CLUSTER(right_boxes), wide, order, 4, 2, THREADS, numbers(), &first);
            assert_int_equal(first.status, WEIR_OK);
            for (int i = 0; i < 2 * 16 * 64; i++) {
                const int row = i / 64 % 16, col = i % 64;
                const bool inside = row < 12 && col < 40;
                assert_true(first.y[i] == (inside ? bf16_to_f32(x[row * 48 + col]) : 0));
            }
        }
}

static void faults_name_thread_and_block(void **state) {
    static const struct {
        struct kernel kernel;
        const char *says;
    } table[] = {
        {{{barrier_for_some_emu32, barrier_for_some_emu64}, 0}, "barrier"},
        {{{two_barriers_emu32, two_barriers_emu64}, 0}, "different barriers"},
        {{{return_before_barrier_emu32, return_before_barrier_emu64}, 0}, "has returned"},
        {{{shuffle_for_some_emu32, shuffle_for_some_emu64}, 0}, "waits for its wave"},
        {{{different_collectives_emu32, different_collectives_emu64}, 0}, "something else"},
        {{{load_at_odd_address_emu32, load_at_odd_address_emu64}, 0}, "multiple of 16"},
        {{{copy_without_wait_emu32, copy_without_wait_emu64}, 0}, "copies under way"},
        {{{wait_without_arrival_emu32, wait_without_arrival_emu64}, 2}, "did not come to"},
        {{{different_meetings_emu32, different_meetings_emu64}, 2}, "different meetings"},
        {{{store_outside_cluster_emu32, store_outside_cluster_emu64}, 2}, "no shared memory"},
        {{{gate_that_stays_shut_emu32, gate_that_stays_shut_emu64}, 0}, "part of its block"},
        {{{part_for_some_emu32, part_for_some_emu64}, 0}, "part of its block"},
        {{{boxes_left_alone_emu32, boxes_left_alone_emu64}, 2}, "4 boxes under way"},
        {{{map_of_nothing_emu32, map_of_nothing_emu64}, 0}, "was not made"},
        {{{gate_that_was_not_set_emu32, gate_that_was_not_set_emu64}, 0}, "was not set"},
        {{{block_that_has_ended_emu32, block_that_has_ended_emu64}, 2}, "which has ended"},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        for (int wide = 0; wide < 2; wide++)
            for (int order = 0; order < EMU_ORDERS; order++) {
                const uint32_t blocks = table[i].kernel.cluster ? 2 : 1;
                run(table[i].kernel, wide, order, 3, blocks, THREADS, numbers(), &first);
                assert_int_equal(first.status, WEIR_BAD_VALUE);
                assert_string_equal(first.err.where, "kernel");
                assert_non_null(strstr(first.err.message, blocks > 1 ? "block " : "block 0,0: "));
                assert_non_null(strstr(first.err.message, "thread "));
                if (!strstr(first.err.message, table[i].says))
                    fail_msg("case %zu: %s", i, first.err.message);
            }
}

static void what_was_never_written_is_no_number(void **state) {
    for (int wide = 0; wide < 2; wide++) {
        run(KERNEL(unwritten_shared), wide, EMU_FORWARD, 0, 1, THREADS, numbers(), &first);
        for (int i = 0; i < THREADS; i++)
            assert_true(i == 9 ? isnan(first.y[i]) : first.y[i] == 0);
        /* An asynchronous copy has not arrived before somebody waited for it. */
        run(KERNEL(copy_read_early), wide, EMU_FORWARD, 0, 1, THREADS, numbers(), &first);
        assert_true(isnan(first.y[0]));
        run(CLUSTER(box_read_early), wide, EMU_FORWARD, 0, 2, THREADS, numbers(), &first);
        assert_int_equal(first.status, WEIR_OK);
        assert_true(isnan(first.y[0]));
    }
}

static void too_little_shared_memory_is_a_fault(void **state) {
    struct wrong record = {numbers(), first.y};
    struct emu_launch l = {right_mirror_emu32, &record, 1, 1, 64, 32, 100, EMU_FORWARD, 0};
    weir_error err;
    assert_int_equal(emu_run(&l, &err), WEIR_BAD_VALUE);
    assert_non_null(strstr(err.message, "wants 1024 bytes of shared memory, launched with 100"));
}

static bool is_product(const float *y, uint16_t tile[2][16 * 32]) {
    for (int r = 0; r < 16; r++)
        for (int c = 0; c < 16; c++) {
            float sum = 1;
            for (int k = 0; k < 32; k++)
                sum += bf16_to_f32(tile[0][r * 32 + k]) * bf16_to_f32(tile[1][c * 32 + k]);
            if (y[r * 16 + c] != sum)
                return false;
        }
    return true;
}

static void tile_products_are_those_of_matrices(void **state) {
    _Alignas(16) uint16_t tile[2][16 * 32], turned[2][16 * 32];
    for (int i = 0; i < 2 * 16 * 32; i++)
        tile[i / 512][i % 512] =
            f32_to_bf16((float)(rng_at(5, 0, (uint64_t)i) % 64) / 16.0f - 2.0f);
    memcpy(turned[0], tile[0], sizeof tile[0]);
    for (int r = 0; r < 16; r++)
        for (int k = 0; k < 32; k++)
            turned[1][k * 16 + r] = tile[1][r * 32 + k];
    for (int wide = 0; wide < 2; wide++)
        for (int order = 0; order < EMU_ORDERS; order++)
            for (int way = 0; way < 3; way++) {
                static const struct kernel kernels[] = {
                    {{right_tiles_emu32, right_tiles_emu64}},
                    {{right_tiles_shared_emu32, right_tiles_shared_emu64}},
                    {{right_tiles_transposed_emu32, right_tiles_transposed_emu64}}};
                run(kernels[way], wide, order, 2, 1, wide ? 64 : 32,
                    (const float *)(way == 2 ? turned : tile), &first);
                assert_int_equal(first.status, WEIR_OK);
                assert_true(is_product(first.y, tile));
            }
    /* Where the order of shared memory is another than that of memory, mixing them shows. */
    run(KERNEL(tiles_of_two_orders), 0, EMU_FORWARD, 0, 1, 32, (const float *)tile, &first);
    assert_false(is_product(first.y, tile));
}

static void collectives_reach_the_lanes_they_name(void **state) {
    for (int wide = 0; wide < 2; wide++)
        for (int order = 0; order < EMU_ORDERS; order++) {
            run(KERNEL(right_collectives), wide, order, 9, 1, THREADS, numbers(), &first);
            assert_int_equal(first.status, WEIR_OK);
            int wave = wide ? 64 : 32;
            for (int t = 0; t < THREADS; t++) {
                int w = t / wave * wave, g = t / 16 * 16;
                assert_true(first.y[t] == (float)(16 * g + 120));
                assert_true(first.y[THREADS + t] == (float)(wave * w + wave * (wave - 1) / 2));
                assert_true(first.y[2 * THREADS + t] == (float)(w + wave - 1));
                assert_true(first.y[3 * THREADS + t] == (float)(w + (t + 3) % wave));
                assert_true(first.y[4 * THREADS + t] == (float)(wave - 1 + 5));
                assert_true(first.y[5 * THREADS + t] == (float)(t % 2));
            }
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_missing_barrier_makes_results_depend_on_the_order),
        cmocka_unit_test(right_kernels_compute_what_they_say),
        cmocka_unit_test(boxes_come_to_all_blocks_of_a_cluster),
        cmocka_unit_test(faults_name_thread_and_block),
        cmocka_unit_test(what_was_never_written_is_no_number),
        cmocka_unit_test(too_little_shared_memory_is_a_fault),
        cmocka_unit_test(tile_products_are_those_of_matrices),
        cmocka_unit_test(collectives_reach_the_lanes_they_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
