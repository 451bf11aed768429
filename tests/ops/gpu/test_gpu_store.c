/* test_gpu_store.c: pools in the memory of a device: what leaves them and comes back through
 * records that servers on a CPU read and write as well. */
#include "tests/ops/gpu/emulated.h"

#include "base/dtype.h"
#include "cache/record.h"
#include "cache/store_device.h"

enum { HEADS = 3, DIM = 8, WINDOW = 3, LAYERS = 2, WIDTH = 24, PAGES = 5, SLOTS = 4 };
enum { LAYER_FLOATS = HEADS * DIM * DIM + 3 * WINDOW * HEADS * DIM };

static const struct record_shape shape = {.page_bytes = 2 * 64 * WIDTH * 2,
                                          .layers = LAYERS,
                                          .heads = HEADS,
                                          .dim = DIM,
                                          .window = WINDOW};

static void open_stores(struct gpu_device *d, struct cache_store *here, struct cache_store *there) {
    weir_error err;
    if (cache_store_open(here, PAGES, shape.page_bytes, WIDTH, DTYPE_BF16, SLOTS,
                         LAYERS * LAYER_FLOATS, LAYER_FLOATS, &err) ||
        cache_store_open_device(there, d, PAGES, shape.page_bytes, WIDTH, DTYPE_BF16, SLOTS,
                                LAYERS * LAYER_FLOATS, LAYER_FLOATS, &err))
        fail_msg("%s: %s", err.where, err.message);
}

/* A state that is BF16 in its window, so that nothing is lost on the way. */
static void fill_record(float *record, uint32_t seed) {
    for (size_t i = 0; i < record_layer_bytes(&shape) / sizeof(float); i++) {
        seed = seed * 1664525u + 1013904223u;
        record[i] = bf16_round((float)(seed >> 8) / 65536.0f - 128);
    }
}

static void records_of_a_device_are_those_of_this_machine(void **state) {
    for (int v = 0; v < EMULATED_VENDORS; v++) {
        struct gpu_device *d = emulated_open(v);
        struct cache_store here, there;
        open_stores(d, &here, &there);
        float *want = test_malloc(record_layer_bytes(&shape)),
              *got = test_malloc(record_layer_bytes(&shape));
        for (uint32_t l = 0; l < LAYERS; l++) {
            fill_record(want, 11 + l);
            assert_true(record_unpack_layer(&shape, &here, 1, l, want));
            assert_true(record_unpack_layer(&shape, &there, 2, l, want));
        }
        for (uint32_t l = 0; l < LAYERS; l++) {
            fill_record(want, 11 + l);
            assert_true(record_pack_layer(&shape, &there, 2, l, got));
            assert_memory_equal(got, want, record_layer_bytes(&shape));
            assert_true(record_pack_layer(&shape, &here, 1, l, got));
            assert_memory_equal(got, want, record_layer_bytes(&shape));
        }
        test_free(got);
        test_free(want);
        cache_store_close(&here);
        cache_store_close(&there);
        gpu_device_close(d);
    }
}

/* What kernels find: values by keys, and the window as BF16 behind all heads. */
static void a_slot_of_a_device_is_as_kernels_want_it(void **state) {
    struct gpu_device *d = emulated_open(0);
    struct cache_store here, there;
    open_stores(d, &here, &there);
    float *record = test_malloc(record_layer_bytes(&shape)),
          *slot = test_malloc(LAYER_FLOATS * sizeof(float));
    fill_record(record, 5);
    assert_true(record_unpack_layer(&shape, &there, 3, 1, record));
    assert_true(store_device_read(there.device,
                                  (float *)(void *)record_slot(&there, 3) + LAYER_FLOATS, slot,
                                  LAYER_FLOATS * sizeof(float)));
    const uint16_t *window = (const uint16_t *)(const void *)(slot + HEADS * DIM * DIM);
    const size_t head = DIM * DIM + 3 * WINDOW * DIM;
    for (uint32_t h = 0; h < HEADS; h++) {
        for (uint32_t k = 0; k < DIM; k++)
            for (uint32_t value = 0; value < DIM; value++)
                assert_true(record[h * head + k * DIM + value] ==
                            slot[(h * DIM + value) * DIM + k]);
        for (uint32_t i = 0; i < 3 * WINDOW; i++)
            for (uint32_t c = 0; c < DIM; c++)
                assert_int_equal(f32_to_bf16(record[h * head + DIM * DIM + i * DIM + c]),
                                 window[(i * HEADS + h) * DIM + c]);
    }
    test_free(slot);
    test_free(record);
    cache_store_close(&here);
    cache_store_close(&there);
    gpu_device_close(d);
}

/* More than both halves of the copier's memory, and no multiple of them. */
static void large_pages_come_and_go_whole(void **state) {
    const size_t bytes = (size_t)(13 << 20) + 4096;
    struct gpu_device *d = emulated_open(1);
    struct cache_store there;
    weir_error err;
    if (cache_store_open_device(&there, d, 2, bytes, WIDTH, DTYPE_BF16, 0, 0, 0, &err))
        fail_msg("%s: %s", err.where, err.message);
    unsigned char *in = test_malloc(bytes), *out = test_malloc(bytes);
    for (size_t i = 0; i < bytes; i++)
        in[i] = (unsigned char)(i * 2654435761u >> 24);
    assert_true(record_write_page(&there, 1, in));
    assert_true(record_read_page(&there, 1, out));
    assert_memory_equal(in, out, bytes);
    test_free(in);
    test_free(out);
    cache_store_close(&there);
    gpu_device_close(d);
}

static void pools_larger_than_the_device_are_refused_with_their_sizes(void **state) {
    struct gpu_device *d = emulated_open(0);
    struct cache_store there;
    weir_error err;
    const size_t page = gpu_device_facts(d)->memory_bytes / 2048;
    char sizes[64];
    assert_int_equal(
        cache_store_open_device(&there, d, 4096, page, WIDTH, DTYPE_BF16, 1, 1, 1, &err),
        WEIR_NO_MEMORY);
    assert_string_equal(err.where, "kv_cache_bytes");
    snprintf(sizes, sizeof sizes, "4096 pages of %zu bytes", page);
    assert_non_null(strstr(err.message, sizes));
    gpu_device_close(d);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(records_of_a_device_are_those_of_this_machine),
        cmocka_unit_test(a_slot_of_a_device_is_as_kernels_want_it),
        cmocka_unit_test(large_pages_come_and_go_whole),
        cmocka_unit_test(pools_larger_than_the_device_are_refused_with_their_sizes),
    };
    return cmocka_run_group_tests(tests, emulated_begin, emulated_end);
}
