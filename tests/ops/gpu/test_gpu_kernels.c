/* test_gpu_kernels.c: every kernel in the emulator, both widths of a wave, threads and blocks in
 * three orders: results of ops/ref, the same bits in every order, nothing touched beside them. */
#include "tests/test.h"

#include "ops/gpu/emu/emu.h"
#include "tests/ops/gpu/cases.h"

#define DECLARE(NAME, RECORD, FILE) emu_kernel NAME##_emu32, NAME##_emu64;
GPU_KERNELS(DECLARE)
#define ROW(NAME, RECORD, FILE) {NAME##_emu32, NAME##_emu64},
static emu_kernel *const kernels[][2] = {GPU_KERNELS(ROW)};

static void launch(const struct gpu_case *c, int i, uint32_t wave, enum emu_order order) {
    const struct gpu_launch *g = gpu_case_launch(c, i);
    weir_error err = {0};
    if (g->kernel == GPU_NO_KERNEL)
        fail_msg("%s: no kernel takes it", c->label);
    struct emu_launch l = {.kernel = kernels[g->kernel][wave == 64],
                           .record = gpu_case_record(c, i),
                           .blocks_x = g->blocks_x,
                           .blocks_y = g->blocks_y,
                           .threads = g->threads,
                           .wave = wave,
                           .cluster = g->cluster,
                           .shared_bytes = g->shared_bytes,
                           .order = order,
                           .seed = c->seed};
    if (emu_run(&l, &err) != WEIR_OK)
        fail_msg("%s, waves of %u, order %d, %s: %s", c->label, wave, order,
                 gpu_kernel_info(g->kernel)->name, err.message);
}

static void run(struct gpu_case *c, uint32_t wave, enum emu_order order) {
    for (int i = 0; i <= c->n_then; i++)
        launch(c, i, wave, order);
    double worst = c->worst(c);
    if (!(worst <= 1))
        fail_msg("%s, waves of %u, order %d, seed %llu: error is %.3g times what is allowed",
                 c->label, wave, order, (unsigned long long)c->seed, worst);
}

/* A sanitizer looks at addresses, which no order changes. */
#if defined(__SANITIZE_ADDRESS__)
enum { FIRST_ORDER = EMU_ORDERS - 1 };
#else
enum { FIRST_ORDER = EMU_FORWARD };
#endif

/* The case anew for every run: kernels change states in place. The pieces alone are compared. */
static void all_orders(const struct gpu_case_kind *kind, size_t i, struct gpu_shape shape) {
    const uint32_t wave = shape.wave;
    unsigned char *first = NULL;
    for (int order = FIRST_ORDER; order < EMU_ORDERS; order++) {
        struct gpu_case c;
        gpu_case_open(&c, kind, false, i, shape, 100 + i);
        run(&c, wave, order);
        size_t at = 0;
        if (!first)
            first = test_calloc(1, c.bytes);
        for (int k = 0; k < c.n_pieces; k++) {
            if (order == FIRST_ORDER)
                memcpy(first + at, c.memory + c.piece[k].at, c.piece[k].bytes);
            else if (memcmp(first + at, c.memory + c.piece[k].at, c.piece[k].bytes) != 0)
                fail_msg("%s, waves of %u: order %d leaves other bits", c.label, wave, order);
            at += c.piece[k].bytes;
        }
        if (!gpu_case_gaps_intact(&c))
            fail_msg("%s, waves of %u: something beside the results was touched", c.label, wave);
        gpu_case_close(&c);
    }
    test_free(first);
}

static void all_shapes(const struct gpu_case_kind *kind) {
    for (size_t i = 0; i < kind->n_small; i++)
        for (uint32_t wave = 32; wave <= 64; wave += 32)
            all_orders(kind, i, (struct gpu_shape){.multiprocessors = 4, .wave = wave});
}

/* The same with products of warpgroups, where rules take them. */
static void all_shapes_of_warpgroups(const struct gpu_case_kind *kind) {
    for (size_t i = 0; i < kind->n_small; i++)
        all_orders(kind, i,
                   (struct gpu_shape){.multiprocessors = 4, .wave = 32, .warpgroups = true});
}
/* And where few rows are given to clusters of blocks. */
static void all_shapes_in_clusters(const struct gpu_case_kind *kind) {
    all_shapes(kind);
    for (size_t i = 0; i < kind->n_small; i++)
        for (uint32_t wave = 32; wave <= 64; wave += 32)
            all_orders(kind, i,
                       (struct gpu_shape){
                           .multiprocessors = 16, .wave = wave, .cluster = GPU_CLUSTER_MOST});
}

/* The same where a head may have several blocks: a small device and one that they do not fill. */
static void all_shapes_of_clusters(const struct gpu_case_kind *kind) {
    all_shapes_of_warpgroups(kind);
    for (size_t i = 0; i < kind->n_small; i++)
        all_orders(kind, i,
                   (struct gpu_shape){.multiprocessors = 132, .wave = 32, .warpgroups = true});
}

static void norms_are_those_of_the_reference(void **state) {
    all_shapes_in_clusters(&case_norm);
}
static void residual_mixtures_are_those_of_the_reference(void **state) {
    all_shapes_in_clusters(&case_mix_norm);
}
static void products_are_those_of_the_reference(void **state) {
    all_shapes(&case_linear);
    all_shapes(&case_heads);
    all_shapes_of_warpgroups(&case_linear);
    all_shapes_of_warpgroups(&case_heads);
}
static void delta_attention_steps_are_those_of_the_reference(void **state) {
    all_shapes(&case_kda_step);
    all_shapes_of_clusters(&case_kda_step);
}
/* Also of the same bits as steps token by token. */
static void verified_drafts_are_those_of_the_reference(void **state) {
    all_shapes(&case_kda_verify);
    all_shapes_of_clusters(&case_kda_verify);
    all_shapes(&case_kda_verify_rounds);
    all_shapes_of_clusters(&case_kda_verify_rounds);
}
/* Chunks against the recurrence. */
static void delta_attention_of_many_rows_is_that_of_the_reference(void **state) {
    all_shapes(&case_kda_prefill);
    all_shapes_of_warpgroups(&case_kda_prefill);
}
static void routes_are_those_of_the_reference(void **state) {
    all_shapes(&case_route);
}

static void tokens_are_those_of_the_sampler(void **state) {
    all_shapes_in_clusters(&case_sample);
}

static void experts_are_those_of_the_reference(void **state) {
    all_shapes(&case_experts_up);
    all_shapes(&case_experts_down);
    all_shapes_of_warpgroups(&case_experts_up);
    all_shapes_of_warpgroups(&case_experts_down);
    all_shapes_in_clusters(&case_combine);
    all_shapes(&case_group);
}

static void latent_attention_is_that_of_the_formula(void **state) {
    all_shapes(&case_mla_split);
    all_shapes(&case_mla_split_fp8);
    all_shapes(&case_mla_merge);
    all_shapes_of_warpgroups(&case_mla_split);
    all_shapes_of_warpgroups(&case_mla_split_fp8);
    all_shapes(&case_mla_codes);
    all_shapes_of_warpgroups(&case_mla_codes);
}
static void expanded_attention_is_that_of_the_formula(void **state) {
    all_shapes(&case_mla_gather);
    all_shapes(&case_mla_gather_fp8);
    all_shapes(&case_mla_attend);
    all_shapes_of_warpgroups(&case_mla_attend);
}

static void history_is_written_where_it_belongs(void **state) {
    all_shapes(&case_mla_write);
    all_shapes(&case_mla_write_fp8);
}
static void embeddings_are_those_of_the_table(void **state) {
    all_shapes(&case_embed);
}
static void gated_activations_are_those_of_the_reference(void **state) {
    all_shapes(&case_glu);
    all_shapes(&case_copy);
    all_shapes(&case_widen);
}

static void shapes_that_no_kernel_takes_are_refused(void **state) {
    static const uint16_t of_bf16; /* its address counts */
    struct gpu_shape shape = {.multiprocessors = 132, .wave = 32};
    struct gpu_norm norm = {.cols = GPU_ROW_MOST + 1};
    assert_int_equal(gpu_launch_norm(&norm, 1, shape).kernel, GPU_NO_KERNEL);
    struct gpu_mix_norm mix = {.cols = GPU_ROW_MOST + 1};
    assert_int_equal(gpu_launch_mix_norm(&mix, shape).kernel, GPU_NO_KERNEL);
    struct gpu_linear linear = {.n_parts = 1, .x_rows = 1, .part = {{.rows = 4, .cols = 12}}};
    assert_int_equal(gpu_launch_linear(&linear, shape).kernel, GPU_NO_KERNEL);
    linear.part[0].cols = 16;
    linear.x_rows = 0;
    assert_int_equal(gpu_launch_linear(&linear, shape).kernel, GPU_NO_KERNEL);
    linear.x_rows = 1;
    linear.split = 3;
    assert_int_equal(gpu_launch_linear(&linear, shape).kernel, GPU_NO_KERNEL);
    linear.split = 0;
    linear.n_parts = GPU_PARTS + 1;
    assert_int_equal(gpu_launch_linear(&linear, shape).kernel, GPU_NO_KERNEL);
    linear.n_parts = 1;
    linear.part[0].fp8 = 1;
    assert_int_equal(gpu_launch_linear(&linear, shape).kernel, GPU_weir_gemv_fp8_1);
    linear.steps = 2;
    assert_int_equal(gpu_launch_linear(&linear, shape).kernel, GPU_NO_KERNEL);
    linear.steps = 1;
    linear.part[0].w2 = &of_bf16; /* beside W of FP8 */
    linear.part[0].cols2 = 16;
    assert_int_equal(gpu_launch_linear(&linear, shape).kernel, GPU_NO_KERNEL);
    struct gpu_kda_step kda = {.heads = 1, .taps = 4};
    assert_int_equal(gpu_launch_kda_step(&kda, 96, 1, shape).kernel, GPU_NO_KERNEL);
    kda.taps = GPU_TAPS_MOST + 1;
    assert_int_equal(gpu_launch_kda_step(&kda, 128, 1, shape).kernel, GPU_NO_KERNEL);
    kda.taps = 4;
    assert_int_equal(gpu_launch_kda_step(&kda, 128, 1 << 16, shape).kernel, GPU_NO_KERNEL);
    struct gpu_kda_verify verify = {.token = {.heads = 1, .taps = 4}};
    assert_int_equal(gpu_launch_kda_verify(&verify, 96, 1, shape).kernel, GPU_NO_KERNEL);
    assert_int_equal(gpu_launch_kda_verify(&verify, 128, 1 << 16, shape).kernel, GPU_NO_KERNEL);
    struct gpu_kda_prefill prefill = {.heads = 1, .dim = 96, .taps = 4, .n_seqs = 1};
    assert_int_equal(gpu_launch_kda_prefill_chunks(&prefill, 9, shape).kernel, GPU_NO_KERNEL);
    prefill.dim = 128;
    assert_int_equal(gpu_launch_kda_prefill_states(&prefill, 0, shape).kernel, GPU_NO_KERNEL);
    prefill.taps = GPU_TAPS_MOST + 1;
    assert_int_equal(gpu_launch_kda_prefill_out(&prefill, 9, shape).kernel, GPU_NO_KERNEL);
    struct gpu_route route = {.rows = 1, .experts = GPU_EXPERTS_MOST + 1, .top_k = 1};
    assert_int_equal(gpu_launch_route(&route).kernel, GPU_NO_KERNEL);
    struct gpu_experts experts = {.slots = 1, .top_k = 1, .rows = 1, .cols = 48};
    assert_int_equal(gpu_launch_experts_up(&experts, shape).kernel, GPU_NO_KERNEL);
    experts.cols = 64;
    experts.top_k = 2; /* of one choice */
    assert_int_equal(gpu_launch_experts_up(&experts, shape).kernel, GPU_NO_KERNEL);
    struct gpu_mla_decode mla = {.heads = 1, .latent = 20, .extra = 4, .shares = 1};
    assert_int_equal(gpu_launch_mla_split(&mla, 1, shape).kernel, GPU_NO_KERNEL);
    mla.latent = 16;
    mla.extra = 8;
    mla.record_bytes = 48;
    assert_int_not_equal(gpu_launch_mla_split(&mla, 1, shape).kernel, GPU_NO_KERNEL);
    assert_int_equal(gpu_launch_mla_split(&mla, 1 << 16, shape).kernel, GPU_NO_KERNEL);
    mla.shares = 0;
    assert_int_equal(gpu_launch_mla_split(&mla, 1, shape).kernel, GPU_NO_KERNEL);
    assert_int_equal(gpu_mla_share(gpu_mla_shares(0, 12, shape), 0), 64); /* of nothing: a page */
    experts.top_k = 1;
    experts.slots = GPU_EXPERT_SLOTS + 1;
    assert_int_equal(gpu_launch_experts_down(&experts, shape).kernel, GPU_NO_KERNEL);
    assert_int_equal(gpu_launch_experts_down_many(&experts, shape).kernel, GPU_NO_KERNEL);
    experts.experts = 4;
    assert_int_equal(gpu_launch_experts_down_many(&experts, shape).kernel,
                     GPU_weir_experts_down_many);
    experts.cols = 72;
    assert_int_equal(gpu_launch_experts_up_many(&experts, shape).kernel, GPU_NO_KERNEL);
    experts.bf16 = 1;
    assert_int_equal(gpu_launch_experts_up_many(&experts, shape).kernel,
                     GPU_weir_experts_up_many_bf16);
    experts.w_stride = 8;
    assert_int_equal(gpu_launch_experts_up_many(&experts, shape).kernel, GPU_NO_KERNEL);
}

/* A block goes through all groups of an expert's rows where tiles fill the device, else through
 * some of them; BF16 weights have no form by warpgroups. */
static void tiles_of_experts_go_through_as_many_rows_as_leave_no_multiprocessor_idle(void **state) {
    const struct gpu_shape h200 = {.multiprocessors = 132, .wave = 32, .warpgroups = true};
    struct gpu_experts up = {
        .slots = 65536, .top_k = 16, .experts = 896, .rows = 384, .cols = 3584};
    struct gpu_launch l = gpu_launch_experts_up_many(&up, h200);
    assert_int_equal(l.kernel, GPU_weir_experts_up_many_wg);
    assert_int_equal(l.blocks_x, 1);
    assert_int_equal(l.blocks_y, 65536 / GPU_MANY_TILE_32 + 896);
    assert_int_equal(l.threads, GPU_MANY_WG_THREADS);
    assert_int_equal(l.shared_bytes, sizeof(struct gpu_many_wg_shared));
    up.experts = 64;
    up.slots = 2048; /* 80 tiles at most */
    assert_int_equal(gpu_launch_experts_up_many(&up, h200).blocks_x, 3);
    up.rows = 3584;
    l = gpu_launch_experts_down_many(&up, h200); /* of 14 groups */
    assert_int_equal(l.kernel, GPU_weir_experts_down_many_wg);
    assert_int_equal(l.blocks_x, 7);
    up.bf16 = 1;
    assert_int_equal(gpu_launch_experts_down_many(&up, h200).kernel,
                     GPU_weir_experts_down_many_bf16);
}

/* More waves share a row of a small matrix than of a large one, fewer rows of x take the kernel
 * whose lanes multiply, and many that of large tiles. */
static void products_are_split_so_that_the_device_is_full(void **state) {
    struct gpu_shape h200 = {.multiprocessors = 132, .wave = 32};
    struct gpu_shape mi355x = {.multiprocessors = 256, .wave = 64};
    static const struct {
        uint32_t x_rows, rows, split[2];
        enum gpu_kernel kernel;
    } table[] = {
        {1, 3072, {4, 4}, GPU_weir_gemv_1},        {1, 7168, {2, 2}, GPU_weir_gemv_1_more},
        {1, 896, {8, 4}, GPU_weir_gemv_1},         {2, 6284, {2, 4}, GPU_weir_gemv_2},
        {3, 12800, {8, 4}, GPU_weir_skinny_8_two}, {5, 896, {8, 4}, GPU_weir_skinny_8},
        {9, 1536, {8, 4}, GPU_weir_skinny_16},     {32, 12800, {8, 4}, GPU_weir_skinny_32_wide},
        {64, 896, {8, 4}, GPU_weir_skinny_64},     {65, 6284, {1, 1}, GPU_weir_gemm_128},
        {4096, 6284, {1, 1}, GPU_weir_gemm_192},
    };
    static const struct {
        uint32_t x_rows, rows;
        enum gpu_kernel kernel;
    } of_fp8[] = {
        {1, 3072, GPU_weir_gemv_fp8_1},
        {1, 7168, GPU_weir_gemv_fp8_1_more},
        {2, 6284, GPU_weir_gemv_fp8_2},
        {3, 12000, GPU_weir_skinny_fp8_8_wide},
        {5, 896, GPU_weir_skinny_fp8_8},
        {9, 1536, GPU_weir_skinny_fp8_16},
        {32, 12800, GPU_weir_skinny_fp8_32_wide},
        {33, 896, GPU_NO_KERNEL},
        {4096, 6284, GPU_NO_KERNEL},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        for (int k = 0; k < 2; k++) {
            struct gpu_linear a = {.n_parts = 1, .x_rows = table[i].x_rows};
            a.part[0] = (struct gpu_linear_part){.rows = table[i].rows, .cols = 7168};
            struct gpu_launch l = gpu_launch_linear(&a, k ? mi355x : h200);
            assert_int_equal(l.kernel, table[i].kernel);
            assert_int_equal(a.split, table[i].split[k]);
        }
    /* A part of BF16 beside it goes with it. */
    for (size_t i = 0; i < sizeof of_fp8 / sizeof *of_fp8; i++)
        for (int k = 0; k < 2; k++) {
            struct gpu_linear a = {.n_parts = 2, .x_rows = of_fp8[i].x_rows};
            a.part[0] = (struct gpu_linear_part){.rows = 8, .cols = 7168};
            a.part[1] =
                (struct gpu_linear_part){.rows = of_fp8[i].rows - 8, .cols = 7168, .fp8 = 1};
            assert_int_equal(gpu_launch_linear(&a, k ? mi355x : h200).kernel, of_fp8[i].kernel);
        }
}

/* Of a large product many tiles as large as can be, as narrow ones as fill the last round; of a
 * small one many narrow tiles. Pairs of blocks stay, and no more of them than there is room for. */
static void tiles_of_warpgroups_are_as_wide_as_the_device_is_full(void **state) {
    const struct gpu_shape h200 = {.multiprocessors = 132, .wave = 32, .warpgroups = true};
    static const struct {
        uint32_t x_rows, rows, steps, blocks;
        enum gpu_kernel kernel;
    } table[] = {
        {4096, 6284, 1, 132, GPU_weir_gemm_wg}, {4096, 7168, 1, 132, GPU_weir_gemm_wg_176},
        {512, 6284, 1, 132, GPU_weir_gemm_wg},  {512, 7168, 1, 132, GPU_weir_gemm_wg_128},
        {512, 896, 1, 56, GPU_weir_gemm_wg_64}, {65, 8, 1, 2, GPU_weir_gemm_wg_64},
        {65, 8, 3, 6, GPU_weir_gemm_wg_64},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        struct gpu_linear a = {.n_parts = 1, .x_rows = table[i].x_rows, .steps = table[i].steps};
        a.part[0] = (struct gpu_linear_part){.rows = table[i].rows, .cols = 128};
        const struct gpu_launch l = gpu_launch_linear(&a, h200);
        assert_int_equal(l.kernel, table[i].kernel);
        assert_int_equal(l.blocks_x, table[i].blocks);
        assert_int_equal(l.blocks_y, 1);
        assert_int_equal(l.cluster, 2);
        assert_int_equal(gpu_launch_linear_by(&a, h200, GPU_WAY_TILES_192).kernel,
                         GPU_weir_gemm_192);
    }
}

/* Blocks of a head, while each has a multiprocessor for itself. */
static void heads_of_delta_attention_are_shared_out_while_the_device_is_not_full(void **state) {
    const struct gpu_shape h200 = {.multiprocessors = 132, .wave = 32, .warpgroups = true};
    const struct gpu_shape mi355x = {.multiprocessors = 256, .wave = 64};
    const struct gpu_kda_step step = {.heads = 12, .taps = 4};
    const struct gpu_kda_verify verify = {.token = step};
    assert_int_equal(gpu_launch_kda_step(&step, 128, 1, h200).cluster, 2);
    assert_int_equal(gpu_launch_kda_step(&step, 128, 1, h200).blocks_x, 24);
    assert_int_equal(gpu_launch_kda_step(&step, 128, 8, h200).cluster, 0);
    assert_int_equal(gpu_launch_kda_step(&step, 64, 1, h200).cluster, 0);
    assert_int_equal(gpu_launch_kda_step(&step, 128, 1, mi355x).kernel, GPU_weir_kda_step_128);
    assert_int_equal(gpu_launch_kda_verify(&verify, 128, 1, h200).cluster, 8);
    assert_int_equal(gpu_launch_kda_verify(&verify, 128, 2, h200).cluster, 2);
    assert_int_equal(gpu_launch_kda_verify(&verify, 128, 1, mi355x).cluster, 0);
}
static void states_pass_by_products_of_warpgroups_where_there_are_some(void **state) {
    const struct gpu_shape h200 = {.multiprocessors = 132, .wave = 32, .warpgroups = true};
    const struct gpu_shape mi355x = {.multiprocessors = 256, .wave = 64};
    struct gpu_kda_prefill prefill = {.heads = 12, .dim = 128, .taps = 4, .n_seqs = 2};
    const struct gpu_launch l = gpu_launch_kda_prefill_states(&prefill, 9, h200);
    assert_int_equal(l.kernel, GPU_weir_kda_states_wg);
    assert_int_equal(l.blocks_x, 48);
    assert_int_equal(l.blocks_y, 2);
    assert_true(l.shared_bytes <= 227 * 1024);
    assert_int_equal(gpu_launch_kda_prefill_states(&prefill, 9, mi355x).kernel,
                     GPU_weir_kda_states_128);
    prefill.dim = 64;
    assert_int_equal(gpu_launch_kda_prefill_states(&prefill, 9, h200).kernel,
                     GPU_weir_kda_states_64);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(norms_are_those_of_the_reference),
        cmocka_unit_test(residual_mixtures_are_those_of_the_reference),
        cmocka_unit_test(products_are_those_of_the_reference),
        cmocka_unit_test(delta_attention_steps_are_those_of_the_reference),
        cmocka_unit_test(verified_drafts_are_those_of_the_reference),
        cmocka_unit_test(delta_attention_of_many_rows_is_that_of_the_reference),
        cmocka_unit_test(routes_are_those_of_the_reference),
        cmocka_unit_test(tokens_are_those_of_the_sampler),
        cmocka_unit_test(experts_are_those_of_the_reference),
        cmocka_unit_test(latent_attention_is_that_of_the_formula),
        cmocka_unit_test(expanded_attention_is_that_of_the_formula),
        cmocka_unit_test(history_is_written_where_it_belongs),
        cmocka_unit_test(embeddings_are_those_of_the_table),
        cmocka_unit_test(gated_activations_are_those_of_the_reference),
        cmocka_unit_test(shapes_that_no_kernel_takes_are_refused),
        cmocka_unit_test(tiles_of_experts_go_through_as_many_rows_as_leave_no_multiprocessor_idle),
        cmocka_unit_test(products_are_split_so_that_the_device_is_full),
        cmocka_unit_test(tiles_of_warpgroups_are_as_wide_as_the_device_is_full),
        cmocka_unit_test(heads_of_delta_attention_are_shared_out_while_the_device_is_not_full),
        cmocka_unit_test(states_pass_by_products_of_warpgroups_where_there_are_some),
    };
    return (cmocka_set_test_filter(getenv("FILTER")), cmocka_run_group_tests(tests, NULL, NULL));
}
