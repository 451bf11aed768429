/* The step program as a list: what it holds, in which order, and what refuses to build. */
#include "rig.h"

static struct runner_options small(const struct column *c) {
    return (struct runner_options){.column = c,
                                   .threads = 1,
                                   .sequences = 1,
                                   .positions = 64,
                                   .rows = 64,
                                   .logits = 64,
                                   .kv_dtype = DTYPE_F32};
}

static uint32_t count(const struct op *op, uint32_t n, enum op_kind kind) {
    uint32_t found = 0;
    for (uint32_t i = 0; i < n; i++)
        found += op[i].kind == kind;
    return found;
}

/* tiny-k3: 6 KDA and 3 MLA layers; one dense and eight MoE. */
static void every_layer_has_its_operations_and_no_more(void **state) {
    struct rig g;
    struct runner_options o = small(&column_ref);
    rig_open(&g, "models/tiny-k3", &o);
    uint32_t n;
    const struct op *op = program_ops(runner_program(g.r), &n);
    assert_int_equal(count(op, n, OP_EMBED), 1);
    assert_int_equal(count(op, n, OP_MIX_NORM), 2 * 9 + 1);
    assert_int_equal(count(op, n, OP_KDA_DECODE), 6);
    assert_int_equal(count(op, n, OP_MLA_DECODE), 3);
    assert_int_equal(count(op, n, OP_MLA_WRITE), 3);
    assert_int_equal(count(op, n, OP_ROUTE), 8);
    assert_int_equal(count(op, n, OP_EXPERTS_UP), 8);
    assert_int_equal(count(op, n, OP_EXPERTS_DOWN), 8);
    assert_int_equal(count(op, n, OP_GLU), 9);
    assert_int_equal(count(op, n, OP_NORM), 8 + 3);
    /* KDA: in, low rank, out; MLA: in, q_b, out; dense: in, out; MoE: in, out; head */
    assert_int_equal(count(op, n, OP_LINEAR), 6 * 3 + 3 * 3 + 9 * 2 + 1);
    assert_int_equal(count(op, n, OP_SAMPLE), 1);
    assert_int_equal(op[0].kind, OP_EMBED);
    assert_int_equal(op[n - 1].kind, OP_SAMPLE);
    rig_close(&g);
}

/* Banks of attention residuals: which sublayers push, how many entries each one sees. */
static void the_bank_grows_at_block_borders_only(void **state) {
    struct rig g;
    struct runner_options o = small(&column_ref);
    rig_open(&g, "models/tiny-k3", &o);
    uint32_t n, sublayer = 0;
    const struct op *op = program_ops(runner_program(g.r), &n);
    for (uint32_t i = 0; i < n; i++) {
        if (op[i].kind != OP_MIX_NORM)
            continue;
        const struct op_mix_norm *m = &op[i].u.mix_norm;
        uint32_t layer = sublayer / 2;
        bool attention = sublayer % 2 == 0, last = sublayer == 18;
        assert_int_equal(m->push, attention && !last && layer % 4 == 0);
        assert_int_equal(m->replace, !attention && layer % 4 == 0);
        /* before attention of layer l: ceil(l/4) entries; before its FFN: floor(l/4) + 1 */
        assert_int_equal(m->n_bank, last ? 3 : attention ? (layer + 3) / 4 : layer / 4 + 1);
        assert_int_equal(m->gather, last);
        sublayer++;
    }
    assert_int_equal(sublayer, 19);
    rig_close(&g);
}

static void a_missing_operation_is_found_when_the_program_is_built(void **state) {
    struct column holed = column_ref;
    holed.name = "holed";
    holed.mla_decode = NULL;
    struct model m;
    struct weights *w;
    struct runner *r;
    weir_error err;
    char dir[4096];
    snprintf(dir, sizeof dir, "%s", source_path("models/micro-k3-odd"));
    assert_int_equal(model_open(dir, &m, &err), WEIR_OK);
    assert_int_equal(weights_open(dir, &m, &w, &err), WEIR_OK);
    struct runner_options o = small(&holed);
    assert_int_equal(runner_open(&m, w, &o, &r, &err), WEIR_UNSUPPORTED);
    assert_null(r);
    assert_string_equal(err.where, "holed");
    assert_non_null(strstr(err.message, "mla_decode"));
    o.column = &column_ref;
    assert_int_equal(runner_open(&m, w, &o, &r, &err), WEIR_OK);
    runner_close(r);
    weights_close(w);
}

static void steps_that_cannot_be_held_are_refused_with_their_size(void **state) {
    struct model m;
    struct weights *w;
    struct runner *r;
    weir_error err;
    char dir[4096];
    snprintf(dir, sizeof dir, "%s", source_path("models/micro-k3-odd"));
    assert_int_equal(model_open(dir, &m, &err), WEIR_OK);
    assert_int_equal(weights_open(dir, &m, &w, &err), WEIR_OK);
    struct runner_options o = small(&column_ref);
    o.rows = UINT32_MAX / 2;
    assert_int_equal(runner_open(&m, w, &o, &r, &err), WEIR_NO_MEMORY);
    assert_null(r);
    weights_close(w);
}

/* The checkpoint's kimi_linear layout builds from the same structures: no bank, low-rank output
 * gate, no latent. */
static void kimi_linear_builds_from_the_same_records(void **state) {
    struct rig g;
    struct runner_options o = small(&column_ref);
    rig_open(&g, "models/micro-kimi-linear", &o);
    uint32_t n;
    const struct op *op = program_ops(runner_program(g.r), &n);
    for (uint32_t i = 0; i < n; i++) {
        if (op[i].kind == OP_MIX_NORM)
            assert_true(op[i].u.mix_norm.n_bank == 0 && !op[i].u.mix_norm.push);
        if (op[i].kind == OP_KDA_DECODE)
            assert_true(op[i].u.kda.lower_bound == 0);
        if (op[i].kind == OP_MLA_DECODE)
            assert_null(op[i].u.mla.g.data);
        if (op[i].kind == OP_EXPERTS_DOWN)
            assert_int_equal(op[i].u.experts.out.cols, g.m.hidden);
    }
    assert_int_equal(count(op, n, OP_NORM), 0);
    rig_close(&g);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_layer_has_its_operations_and_no_more),
        cmocka_unit_test(the_bank_grows_at_block_borders_only),
        cmocka_unit_test(a_missing_operation_is_found_when_the_program_is_built),
        cmocka_unit_test(steps_that_cannot_be_held_are_refused_with_their_size),
        cmocka_unit_test(kimi_linear_builds_from_the_same_records),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
