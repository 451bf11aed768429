/* Latent attention of every fast column against the exact one: shapes, kinds of history, batches,
 * one to three threads. */
#include "table_case.h"

#include "ops/kv.h"

struct mla_shape {
    uint32_t heads, nope, rope, v, latent;
};
static const struct mla_shape mla_shapes[] = {
    {12, 8, 4, 8, 16}, {4, 16, 8, 16, 24}, {8, 32, 16, 32, 64}, {3, 128, 64, 128, 512}};
static const struct {
    uint32_t n;
    struct seq_shape seq[MAX_SEQS];
} batches[] = {
    {1, {{0, 1}}},
    {4, {{0, 1}, {62, 1}, {63, 1}, {64, 1}}},
    {2, {{128, 1}, {200, 1}}},
    {1, {{0, 64}}},
    {1, {{0, 65}}},
    {1, {{63, 66}}},
    {1, {{0, 129}}},
    {5, {{5, 1}, {127, 1}, {0, 17}, {100, 64}, {64, 3}}},
    {3, {{0, 127}, {64, 64}, {1, 128}}},
    {1, {{30, 300}}},
    {4, {{1000, 1}, {330, 1}, {127, 1}, {1900, 1}}},
    {1, {{2999, 1}}},
};
enum { BATCHES = sizeof batches / sizeof *batches };

static const enum dtype histories[] = {DTYPE_F32, DTYPE_BF16, DTYPE_FP8};
enum { HISTORIES = 3, POOL_LAYERS = 2 };

/* One record of random values, as the write operation would leave it. */
static void random_record(struct ops_case *c, enum dtype t, uint32_t latent, uint32_t width,
                          unsigned char *record) {
    for (uint32_t k = 0; k < width; k++) {
        float v = dice_float(&c->dice, 1);
        uint16_t half = f32_to_bf16(v);
        if (t == DTYPE_F32) {
            memcpy(record + 4 * k, &v, 4);
        } else if (t == DTYPE_BF16) {
            memcpy(record + 2 * k, &half, 2);
        } else if (k >= latent) {
            memcpy(record + kv_extra_at(latent) + 2 * (k - latent), &half, 2);
        } else {
            float scale = 0.01f * (float)(1 + k / KV_SCALED);
            kv_encode(&v, 1, scale, record + k);
            memcpy(record + kv_scales_at(latent) + k / KV_SCALED * 4, &scale, 4);
        }
    }
}

/* Pages of two layers; poison: NaN throughout. */
static struct kv_pool *random_pages(struct ops_case *c, const struct mla_shape *s, enum dtype t,
                                    bool poison) {
    struct kv_pool *pool = heap_take(&c->heap, sizeof *pool);
    size_t record = kv_record_bytes(t, s->latent, s->rope), n = c->t.pages * POOL_LAYERS;
    *pool = (struct kv_pool){.data = heap_take(&c->heap, n * PAGE_TOKENS * record),
                             .dtype = t,
                             .page_bytes = POOL_LAYERS * PAGE_TOKENS * record,
                             .width = s->latent + s->rope};
    memset(pool->data, 0xFF, n * PAGE_TOKENS * record);
    for (size_t i = 0; !poison && i < n * PAGE_TOKENS; i++)
        random_record(c, t, s->latent, pool->width, pool->data + i * record);
    return pool;
}

/* Fills layer 1 of the pages of every sequence up to its length; all else stays NaN. */
static void fill_history(struct ops_case *c, struct kv_pool *pool, uint32_t latent) {
    for (uint32_t i = 0; i < c->t.b.n_seqs; i++)
        for (uint32_t p = 0; p < c->t.seqs[i].pos0 + c->t.seqs[i].rows; p++)
            random_record(c, pool->dtype, latent, pool->width,
                          ref_kv_record(pool, latent, 1, c->t.seqs[i].pages, p));
}

static void mla_case(struct ops_case *c, enum op_kind kind, const struct mla_shape *s, size_t batch,
                     enum dtype kv, enum dtype weights, enum seq_class which, bool gated) {
    make_batch(&c->t, &c->heap, batches[batch].seq, batches[batch].n, false);
    struct kv_pool *pool = random_pages(c, s, kv, true);
    fill_history(c, pool, s->latent);
    uint32_t n = c->t.b.n_rows;
    c->op.kind = kind;
    c->op.u.mla = (struct op_mla){
        .which = which,
        .q = random_tensor(&c->heap, &c->dice, n, s->heads * (s->nope + s->rope), 1),
        .g = gated ? random_tensor(&c->heap, &c->dice, n, s->heads * s->v, 2) : (struct tensor){0},
        .out = random_tensor(&c->heap, &c->dice, n, s->heads * s->v, 1),
        .kv_b = random_weight(&c->heap, &c->dice, weights, s->heads * (s->nope + s->v), s->latent),
        .scale = 1.0f / sqrtf((float)(s->nope + s->rope)),
        .pool = pool,
        .layer = 1,
        .heads = s->heads,
        .nope_dim = s->nope,
        .rope_dim = s->rope,
        .v_dim = s->v,
        .kv_lora = s->latent};
    add_output(c, c->op.u.mla.out, n);
    snprintf(c->name, sizeof c->name, "%s, %u heads of %u+%u/%u, latent %u, batch %zu, kv %s",
             op_name(kind), s->heads, s->nope, s->rope, s->v, s->latent, batch, format_name(kv));
}

static void latent_attention_equals_exact(void **state) {
    for (size_t s = 0; s < 4; s++)
        for (size_t b = OPS_SLOW * s % 2; b < BATCHES; b += 1 + OPS_SLOW)
            for (int kv = 0; kv < HISTORIES; kv++)
                for (int which = SEQ_ALL; which <= SEQ_PREFILL; which++) {
                    if (s == 3 && (b > 5 || which == SEQ_ALL)) /* the exact one takes long there */
                        continue;
                    struct ops_case c;
                    case_open(&c, 2e-5, s * 100 + b * 10 + (size_t)kv);
                    mla_case(&c, which == SEQ_PREFILL ? OP_MLA_PREFILL : OP_MLA_DECODE,
                             &mla_shapes[s], b, histories[kv], b % 2 ? DTYPE_BF16 : DTYPE_F32,
                             (enum seq_class)which, b % 3 != 0);
                    case_check(&c);
                }
}

/* Pieces of a history go to as many members as there are, and the answer keeps its bits: one head
 * and many members, many heads and few. */
static void long_histories_are_shared_out_without_a_trace(void **state) {
    static const struct mla_shape shapes[] = {{1, 16, 8, 16, 32}, {40, 8, 4, 8, 16}};
    const struct column *columns[CPU_COLUMNS];
    for (uint32_t k = fast_columns(columns); k-- > 0;)
        for (int s = 0; s < 2; s++)
            for (size_t b = 10; b < BATCHES; b++) {
                struct ops_case c;
                case_open(&c, 0, 60 + b);
                mla_case(&c, OP_MLA_DECODE, &shapes[s], b, s ? DTYPE_FP8 : DTYPE_BF16, DTYPE_BF16,
                         SEQ_DECODE, true);
                run_op(columns[k], &c.op, &c.t.b, c.t.longest, 1);
                float *want = read_views(&c);
                for (uint32_t threads = 2; threads <= 17; threads += OPS_SLOW ? 15 : 5) {
                    run_op(columns[k], &c.op, &c.t.b, c.t.longest, threads);
                    float *got = read_views(&c);
                    if (memcmp(want, got, view_floats(&c) * sizeof(float)) != 0)
                        fail_msg("%s, %s: %u members give other bits than one", c.name,
                                 columns[k]->name, threads);
                    free(got);
                }
                free(want);
                heap_free(&c.heap);
            }
}

/* Scores so far apart that most weights are zero or would be subnormal numbers. */
static void attention_to_a_single_position_equals_exact(void **state) {
    for (int form = 0; form < 2; form++)
        for (size_t b = 9; b < BATCHES; b++) {
            struct ops_case c;
            case_open(&c, 2e-3, 900 + b);
            mla_case(&c, form ? OP_MLA_PREFILL : OP_MLA_DECODE, &mla_shapes[2], b, DTYPE_BF16,
                     DTYPE_BF16, SEQ_ALL, true);
            c.op.u.mla.scale *= 30;
            case_check(&c);
        }
}

/* F-063: any number of heads on a rank, in both forms and both history formats. */
static void F063_latent_attention_takes_any_number_of_heads(void **state) {
    static const uint32_t heads[] = {1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96};
    for (size_t h = 0; h < sizeof heads / sizeof *heads; h++)
        for (int form = 0; form < 2; form++)
            for (int kv = 0; kv < HISTORIES; kv++) {
                struct mla_shape s = {heads[h], 16, 8, 16, 32};
                struct ops_case c;
                case_open(&c, 2e-5, 5000 + heads[h]);
                mla_case(&c, form ? OP_MLA_PREFILL : OP_MLA_DECODE, &s, 7, histories[kv],
                         DTYPE_BF16, form ? SEQ_PREFILL : SEQ_DECODE, true);
                case_check(&c);
            }
}

/* The same rows in the other form, and each sequence of a batch by itself: same bits within a form,
 * rounding between the forms. */
static void attention_does_not_depend_on_the_batch_and_both_forms_agree(void **state) {
    const struct column *columns[CPU_COLUMNS];
    for (uint32_t k = fast_columns(columns); k-- > 0;) {
        struct ops_case c;
        case_open(&c, 0, 9);
        mla_case(&c, OP_MLA_DECODE, &mla_shapes[2], 7, DTYPE_BF16, DTYPE_BF16, SEQ_ALL, true);
        struct tensor out = c.op.u.mla.out;
        uint32_t n = c.t.b.n_rows;
        float *form[2];
        for (int f = 0; f < 2; f++) {
            c.op.kind = f ? OP_MLA_PREFILL : OP_MLA_DECODE;
            run_op(columns[k], &c.op, &c.t.b, c.t.longest, 3);
            form[f] = malloc(n * out.cols * sizeof(float));
            for (uint32_t r = 0; r < n; r++)
                memcpy(form[f] + r * out.cols, tensor_row(out, r), out.cols * sizeof(float));
            for (uint32_t i = 0; i < c.t.b.n_seqs; i++) {
                struct batch one = c.t.b;
                one.seqs = &c.t.seqs[i];
                one.n_seqs = 1;
                one.n_decode = 0;
                run_op(columns[k], &c.op, &one, c.t.longest, 1);
            }
            for (uint32_t r = 0; r < n; r++)
                assert_memory_equal(form[f] + r * out.cols, tensor_row(out, r),
                                    out.cols * sizeof(float));
        }
        assert_true(difference(form[1], form[0], n * out.cols) < 2e-5);
        free(form[0]);
        free(form[1]);
        heap_free(&c.heap);
    }
}

static void history_is_written_as_the_exact_column_writes_it(void **state) {
    for (size_t s = 0; s < 4; s++)
        for (size_t b = OPS_SLOW * s % 2; b < BATCHES; b += 1 + OPS_SLOW)
            for (int kv = 0; kv < 2; kv++) {
                struct ops_case c;
                case_open(&c, kv ? 1e-2 : 2e-6, s * 10 + b);
                make_batch(&c.t, &c.heap, batches[b].seq, batches[b].n, false);
                struct kv_pool *pool =
                    random_pages(&c, &mla_shapes[s], kv ? DTYPE_BF16 : DTYPE_F32, false);
                c.op.kind = OP_MLA_WRITE;
                c.op.u.mla_write = (struct op_mla_write){
                    .kv = random_tensor(&c.heap, &c.dice, c.t.b.n_rows, pool->width, 2),
                    .norm = random_vector(&c.heap, &c.dice, mla_shapes[s].latent, 0.2f, 1),
                    .eps = 1e-6f,
                    .pool = pool,
                    .layer = 1,
                    .kv_lora = mla_shapes[s].latent};
                size_t floats = c.t.pages * pool->page_bytes / 4;
                if (!kv) {
                    add_view(&c, (float *)(void *)pool->data, 1, floats, floats);
                    snprintf(c.name, sizeof c.name, "mla_write %zu/%zu", s, b);
                    case_check(&c);
                    continue;
                }
                /* BF16: at most one unit in the last place where f32 rounding tips the scale. */
                unsigned char *before = heap_save(&c.heap);
                run_op(&column_ref, &c.op, &c.t.b, c.t.longest, 1);
                size_t n = floats * 2;
                uint16_t *want = malloc(n * 2), *got = (uint16_t *)(void *)pool->data;
                memcpy(want, got, n * 2);
                const struct column *columns[CPU_COLUMNS];
                for (uint32_t k = fast_columns(columns); k-- > 0;) {
                    heap_load(&c.heap, before);
                    run_op(columns[k], &c.op, &c.t.b, c.t.longest, 2);
                    size_t off = 0;
                    for (size_t i = 0; i < n; i++) {
                        assert_in_range((uint16_t)(got[i] - want[i] + 1), 0, 2);
                        off += got[i] != want[i];
                    }
                    assert_true(off * 1000 <= n);
                }
                free(want);
                free(before);
                heap_free(&c.heap);
            }
}

/* FP8: the records of all columns mean the same numbers but for a few that rounding tips to the
 * next code, and none is further from what was to be kept than the format says: 2^-4 of a value, or
 * half a subnormal step of its scale; the extra values 2^-8. */
static void fp8_history_is_within_its_bound_and_equals_exact(void **state) {
    for (size_t s = 0; s < 4; s++)
        for (size_t b = OPS_SLOW * s % 2; b < BATCHES; b += 1 + OPS_SLOW) {
            struct ops_case c;
            const struct mla_shape *shape = &mla_shapes[s];
            case_open(&c, 0, 40 + s * 10 + b);
            make_batch(&c.t, &c.heap, batches[b].seq, batches[b].n, false);
            uint32_t n = c.t.b.n_rows, latent = shape->latent;
            struct kv_pool *pool = random_pages(&c, shape, DTYPE_FP8, false);
            struct kv_pool *plain = random_pages(&c, shape, DTYPE_F32, false);
            struct op_mla_write a = {.kv = random_tensor(&c.heap, &c.dice, n, pool->width, 2),
                                     .norm = random_vector(&c.heap, &c.dice, latent, 0.2f, 1),
                                     .eps = 1e-6f,
                                     .pool = plain,
                                     .layer = 1,
                                     .kv_lora = latent};
            c.op.kind = OP_MLA_WRITE;
            c.op.u.mla_write = a;
            run_op(&column_ref, &c.op, &c.t.b, c.t.longest, 1);
            c.op.u.mla_write.pool = pool;
            const struct column *columns[1 + CPU_COLUMNS] = {&column_ref};
            uint32_t n_columns = 1 + fast_columns(columns + 1);
            float *exact = malloc((size_t)n * pool->width * sizeof *exact);
            for (uint32_t k = 0; k < n_columns; k++) {
                size_t tipped = 0, at = 0;
                run_op(columns[k], &c.op, &c.t.b, c.t.longest, 2);
                for (uint32_t i = 0; i < c.t.b.n_seqs; i++)
                    for (uint32_t r = 0; r < c.t.seqs[i].rows; r++) {
                        const struct batch_seq *q = &c.t.seqs[i];
                        const unsigned char *got =
                            ref_kv_record(pool, latent, 1, q->pages, q->pos0 + r);
                        const float *want = ref_kv_record(plain, latent, 1, q->pages, q->pos0 + r);
                        for (uint32_t e = 0; e < pool->width; e++, at++) {
                            float scale, x = ref_kv_at(got, DTYPE_FP8, latent, e);
                            memcpy(&scale, got + kv_scales_at(latent) + e / KV_SCALED * 4, 4);
                            float bound =
                                e < latent ? fmaxf(fabsf(want[e]) * 0x1.0001p-4f, scale * 0x1p-10f)
                                           : fabsf(want[e]) * 0x1p-8f + 0x1p-130f;
                            if (!(fabsf(x - want[e]) <= bound))
                                fail_msg("%s, shape %zu, batch %zu: value %u is %g for %g",
                                         columns[k]->name, s, b, e, (double)x, (double)want[e]);
                            if (k == 0)
                                exact[at] = x;
                            tipped += fabsf(x - exact[at]) > 1e-5f * fabsf(x);
                            if (k > 0 && !(fabsf(x - exact[at]) <= 2 * bound))
                                fail_msg("%s and exact are further apart than a code",
                                         columns[k]->name);
                        }
                    }
                assert_true(tipped * 500 <= at);
            }
            free(exact);
            heap_free(&c.heap);
        }
}

/* One value that is no number must not come back as one, in whatever format. */
static void a_nan_of_the_history_is_still_one_when_it_is_read(void **state) {
    const struct column *columns[1 + CPU_COLUMNS] = {&column_ref};
    uint32_t n_columns = 1 + fast_columns(columns + 1);
    for (uint32_t k = 0; k < n_columns; k++)
        for (int kv = 0; kv < HISTORIES; kv++)
            for (int bad = 0; bad < 2; bad++) {
                struct ops_case c;
                case_open(&c, 0, 3);
                make_batch(&c.t, &c.heap, batches[0].seq, batches[0].n, false);
                const struct mla_shape *shape = &mla_shapes[3];
                struct kv_pool *pool = random_pages(&c, shape, histories[kv], false);
                struct op_mla_write a = {
                    .kv = random_tensor(&c.heap, &c.dice, 1, pool->width, 2),
                    .norm = random_vector(&c.heap, &c.dice, shape->latent, 0.2f, 1),
                    .eps = 1e-6f,
                    .pool = pool,
                    .layer = 1,
                    .kv_lora = shape->latent};
                a.kv.data[130] = bad ? NAN : INFINITY;
                c.op.kind = OP_MLA_WRITE;
                c.op.u.mla_write = a;
                run_op(columns[k], &c.op, &c.t.b, c.t.longest, 1);
                const void *got = ref_kv_record(pool, shape->latent, 1, c.t.seqs[0].pages, 0);
                assert_true(isnan(ref_kv_at(got, histories[kv], shape->latent, 130)));
                heap_free(&c.heap);
            }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(latent_attention_equals_exact),
        cmocka_unit_test(long_histories_are_shared_out_without_a_trace),
        cmocka_unit_test(attention_to_a_single_position_equals_exact),
        cmocka_unit_test(F063_latent_attention_takes_any_number_of_heads),
        cmocka_unit_test(attention_does_not_depend_on_the_batch_and_both_forms_agree),
        cmocka_unit_test(history_is_written_as_the_exact_column_writes_it),
        cmocka_unit_test(fp8_history_is_within_its_bound_and_equals_exact),
        cmocka_unit_test(a_nan_of_the_history_is_still_one_when_it_is_read),
        cmocka_unit_test(report),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
