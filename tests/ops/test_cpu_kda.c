/* Kimi Delta Attention in its two forms on every fast column, against the exact recurrence: states
 * that move between slots, checkpoints on and off multiples of 64, dims that do not fill a vector,
 * gates at their extremes. */
#include "ops_case.h"

struct kda_shape {
    uint32_t heads, dim;
};
static const struct kda_shape shapes[] = {{3, 8}, {2, 16}, {2, 24}, {3, 32}, {2, 128}};
enum { SHAPES = 5, TAPS = 4, LAYERS = 2 };

enum gates { GATES_RANDOM, GATES_LOWEST, GATES_OPEN, GATES_SOFTPLUS, GATES_SOFTPLUS_HUGE };
static const char *const gate_names[] = {"random", "at the lower bound", "without decay",
                                         "softplus", "softplus with huge decay"};

struct kda_case {
    struct heap heap;
    struct dice dice;
    struct test_batch t;
    struct op op;
    struct state_pool pool;
    size_t pool_floats;
};

static const struct {
    uint32_t n;
    struct seq_shape seq[MAX_SEQS];
} batches[] = {
    {3, {{0, 1}, {5, 1}, {64, 1}}},
    {1, {{0, 2}}},
    {1, {{0, 15}}},
    {1, {{0, 16}}},
    {1, {{0, 17}}},
    {1, {{0, 63}}},
    {1, {{0, 64}}},
    {1, {{0, 65}}},
    {1, {{64, 64}}},
    {1, {{60, 70}}},
    {1, {{3, 129}}},
    {4, {{9, 1}, {7, 40}, {0, 127}, {128, 128}}},
    {2, {{1, 3}, {33, 31}}},
    {1, {{0, 200}}},
};
enum { BATCHES = sizeof batches / sizeof *batches };

static void kda_open(struct kda_case *c, struct kda_shape s, size_t batch, enum gates gates,
                     bool move, uint64_t seed) {
    memset(c, 0, sizeof *c);
    c->dice.seed = seed;
    make_batch(&c->t, &c->heap, batches[batch].seq, batches[batch].n, move);
    uint32_t n = c->t.b.n_rows, width = s.heads * s.dim, slots = c->t.slots + 3 * c->t.b.n_seqs;
    size_t layer = (size_t)width * s.dim + 3 * (TAPS - 1) * (size_t)width;
    c->pool_floats = slots * LAYERS * layer;
    c->pool = (struct state_pool){heap_take(&c->heap, c->pool_floats * sizeof(float)),
                                  layer * LAYERS, layer};
    dice_fill(&c->dice, c->pool.data, c->pool_floats, 0.5f);
    for (uint32_t i = 0; i < c->t.b.n_seqs; i++) { /* nothing may leak from a slot's last owner */
        struct batch_seq *q = &c->t.seqs[i];
        for (size_t k = 0; q->slot != q->from && k < c->pool.slot_floats; k++)
            if (k / layer == 1)
                c->pool.data[(size_t)q->slot * c->pool.slot_floats + k] = NAN;
    }
    bool soft = gates >= GATES_SOFTPLUS;
    float dt = gates == GATES_LOWEST          ? 60.0f
               : gates == GATES_OPEN          ? -60.0f
               : gates == GATES_SOFTPLUS_HUGE ? 300.0f
                                              : 0.0f;
    c->op.u.kda =
        (struct op_kda){.which = SEQ_ALL,
                        .q = random_tensor(&c->heap, &c->dice, n, width, 1),
                        .k = random_tensor(&c->heap, &c->dice, n, width, 1),
                        .v = random_tensor(&c->heap, &c->dice, n, width, 1),
                        .z = random_tensor(&c->heap, &c->dice, n, width, 2),
                        .b = random_tensor(&c->heap, &c->dice, n, s.heads, 2),
                        .go = random_tensor(&c->heap, &c->dice, n, width, 1),
                        .out = random_tensor(&c->heap, &c->dice, n, width, 1),
                        .q_taps = random_vector(&c->heap, &c->dice, width * TAPS, 0.5f, 0.1f),
                        .k_taps = random_vector(&c->heap, &c->dice, width * TAPS, 0.5f, 0.1f),
                        .v_taps = random_vector(&c->heap, &c->dice, width * TAPS, 0.5f, 0.1f),
                        .ea = random_vector(&c->heap, &c->dice, s.heads, 0.2f, 1),
                        .dt = random_vector(&c->heap, &c->dice, width, 1, dt),
                        .o_norm = random_vector(&c->heap, &c->dice, s.dim, 0.2f, 1),
                        .lower_bound = soft ? 0 : -5.0f,
                        .eps = 1e-5f,
                        .heads = s.heads,
                        .dim = s.dim,
                        .taps = TAPS,
                        .pool = &c->pool,
                        .layer = 1};
}

static void add_checkpoints(struct kda_case *c) {
    int32_t slot = (int32_t)c->t.slots;
    for (uint32_t i = 0; i < c->t.b.n_seqs; i++) {
        struct batch_seq *s = &c->t.seqs[i];
        struct batch_checkpoint *list = heap_take(&c->heap, 3 * sizeof *list);
        uint32_t at[3] = {s->pos0 + (s->rows + 1) / 3, (s->pos0 + 64) / 64 * 64, s->pos0 + s->rows};
        if (at[0] > at[1]) {
            uint32_t swap = at[0];
            at[0] = at[1];
            at[1] = swap;
        }
        for (int k = 0; k < 3; k++)
            if (at[k] > s->pos0 && at[k] <= s->pos0 + s->rows)
                list[s->n_checkpoints++] = (struct batch_checkpoint){at[k], slot++};
        s->checkpoints = list;
    }
}

/* Outputs, then every written slot's layer. */
struct outcome {
    float *out, *state;
    size_t n_out, n_state;
};
static struct outcome read_outcome(const struct kda_case *c) {
    struct tensor t = c->op.u.kda.out;
    struct outcome o = {.n_out = (size_t)c->t.b.n_rows * t.cols};
    o.out = malloc(o.n_out * sizeof(float));
    for (uint32_t r = 0; r < c->t.b.n_rows; r++)
        memcpy(o.out + (size_t)r * t.cols, tensor_row(t, r), t.cols * sizeof(float));
    o.state = malloc(c->pool_floats * sizeof(float));
    const float *layer = c->pool.data + c->pool.layer_floats;
    for (uint32_t i = 0; i < c->t.b.n_seqs; i++) {
        const struct batch_seq *s = &c->t.seqs[i];
        for (uint32_t k = 0; k <= s->n_checkpoints; k++) {
            int32_t slot = k < s->n_checkpoints ? s->checkpoints[k].slot : s->slot;
            memcpy(o.state + o.n_state, layer + (size_t)slot * c->pool.slot_floats,
                   c->pool.layer_floats * sizeof(float));
            o.n_state += c->pool.layer_floats;
        }
    }
    return o;
}
static void outcome_free(struct outcome o) {
    free(o.out);
    free(o.state);
}

static double largest_seen;

/* Other slots, and the other layer of its own, are nobody's business here. */
static void assert_only_own_slots_written(const struct kda_case *c, const float *before,
                                          const char *name) {
    size_t slots = c->pool_floats / c->pool.slot_floats;
    for (size_t slot = 0; slot < slots; slot++) {
        bool own = false;
        for (uint32_t q = 0; q < c->t.b.n_seqs; q++) {
            own |= (size_t)c->t.seqs[q].slot == slot;
            for (uint32_t p = 0; p < c->t.seqs[q].n_checkpoints; p++)
                own |= (size_t)c->t.seqs[q].checkpoints[p].slot == slot;
        }
        size_t at = slot * c->pool.slot_floats;
        size_t n = own ? c->pool.layer_floats : c->pool.slot_floats;
        if (memcmp(before + at, c->pool.data + at, n * sizeof(float)) != 0)
            fail_msg("%s: slot %zu was written", name, slot);
    }
}

static void run_and_compare(struct kda_case *c, const char *name, enum op_kind kind,
                            double tolerance) {
    float *before = malloc(c->pool_floats * sizeof(float));
    memcpy(before, c->pool.data, c->pool_floats * sizeof(float));
    c->op.kind = OP_KDA_DECODE;
    run_op(&column_ref, &c->op, &c->t.b, c->t.longest, 1);
    struct outcome want = read_outcome(c);
    for (size_t i = 0; i < want.n_state; i++)
        assert_false(isnan(want.state[i]));
    const struct column *columns[CPU_COLUMNS];
    uint32_t n_columns = fast_columns(columns);
    c->op.kind = kind;
    for (uint32_t k = 0; k < n_columns; k++) {
        struct outcome first = {0};
        for (uint32_t threads = 1; threads <= 3; threads++) {
            memcpy(c->pool.data, before, c->pool_floats * sizeof(float));
            run_op(columns[k], &c->op, &c->t.b, c->t.longest, threads);
            struct outcome got = read_outcome(c);
            double e = difference(got.out, want.out, want.n_out);
            double s = difference(got.state, want.state, want.n_state);
            largest_seen = fmax(largest_seen, fmax(e, s));
            if (!(e <= tolerance && s <= tolerance))
                fail_msg("%s, %s, %s, seed %llu, %u threads: output off by %g, state by %g", name,
                         op_name(kind), columns[k]->name, (unsigned long long)c->dice.seed, threads,
                         e, s);
            assert_true(gaps_untouched(c->op.u.kda.out, c->t.b.n_rows));
            if (threads == 1) {
                first = got;
                assert_only_own_slots_written(c, before, name);
                continue;
            }
            assert_memory_equal(first.out, got.out, want.n_out * sizeof(float));
            assert_memory_equal(first.state, got.state, want.n_state * sizeof(float));
            outcome_free(got);
        }
        outcome_free(first);
    }
    outcome_free(want);
    free(before);
}

static void both_forms_equal_the_exact_recurrence(void **state) {
    for (size_t s = 0; s < SHAPES; s++)
        for (size_t b = 0; b < BATCHES; b++)
            for (int gates = GATES_RANDOM; gates <= GATES_SOFTPLUS_HUGE; gates++) {
                if (shapes[s].dim == 128 && b % 3 != 0 && b < 9)
                    continue;
                char name[120];
                snprintf(name, sizeof name, "%u heads of %u, batch %zu, gates %s", shapes[s].heads,
                         shapes[s].dim, b, gate_names[gates]);
                for (int kind = OP_KDA_DECODE; kind <= OP_KDA_PREFILL; kind++) {
                    struct kda_case c;
                    kda_open(&c, shapes[s], b, (enum gates)gates, (b + s) % 2, b * 100 + s);
                    if (b % 3 != 1)
                        add_checkpoints(&c);
                    run_and_compare(&c, name, (enum op_kind)kind, 4e-5);
                    heap_free(&c.heap);
                }
            }
}

/* The state after chunked prefill serves the recurrence, and the other way round: a sequence cut
 * anywhere ends the same within rounding. */
static void a_sequence_may_be_cut_anywhere(void **state) {
    const struct column *columns[CPU_COLUMNS];
    static const uint32_t cuts[] = {1, 15, 16, 40, 63, 64, 65, 100, 128, 199};
    for (uint32_t k = fast_columns(columns); k-- > 0;)
        for (size_t i = 0; i < sizeof cuts / sizeof *cuts; i++) {
            struct kda_case c;
            kda_open(&c, shapes[3], 13, GATES_RANDOM, false, 4);
            c.op.kind = OP_KDA_PREFILL;
            run_op(columns[k], &c.op, &c.t.b, c.t.longest, 1);
            struct outcome whole = read_outcome(&c);
            struct batch_seq full = c.t.seqs[0], *s = &c.t.seqs[0];
            s->rows = cuts[i];
            run_op(columns[k], &c.op, &c.t.b, c.t.longest, 1);
            s->row0 = s->pos0 = cuts[i];
            s->rows = full.rows - cuts[i];
            s->from = s->slot;
            run_op(columns[k], &c.op, &c.t.b, c.t.longest, 2);
            struct outcome cut = read_outcome(&c);
            assert_true(difference(cut.out, whole.out, whole.n_out) < 4e-5);
            assert_true(difference(cut.state, whole.state, whole.n_state) < 4e-5);
            outcome_free(whole);
            outcome_free(cut);
            heap_free(&c.heap);
        }
}

/* Chunks end on absolute multiples of 64, so a cut there does not show at all: a resumed prefill
 * has the bits of one that was never interrupted. */
static void a_cut_on_a_multiple_of_64_gives_the_same_bits(void **state) {
    const struct column *columns[CPU_COLUMNS];
    for (uint32_t k = fast_columns(columns); k-- > 0;)
        for (uint32_t pos0 = 0; pos0 <= 33; pos0 += 33)
            for (uint32_t cut = 64; cut <= 128; cut += 64) {
                struct kda_case c;
                kda_open(&c, shapes[3], 13, GATES_RANDOM, false, 4);
                struct batch_seq *s = &c.t.seqs[0];
                c.op.kind = OP_KDA_PREFILL;
                s->pos0 = pos0;
                run_op(columns[k], &c.op, &c.t.b, 256, 1);
                struct outcome whole = read_outcome(&c);
                uint32_t rows = s->rows;
                s->rows = cut - pos0;
                run_op(columns[k], &c.op, &c.t.b, 256, 1);
                s->row0 = cut - pos0;
                s->pos0 = cut;
                s->rows = rows - s->row0;
                s->from = s->slot;
                run_op(columns[k], &c.op, &c.t.b, 256, 1);
                struct outcome again = read_outcome(&c);
                assert_memory_equal(again.out, whole.out, whole.n_out * sizeof(float));
                assert_memory_equal(again.state, whole.state, whole.n_state * sizeof(float));
                outcome_free(whole);
                outcome_free(again);
                heap_free(&c.heap);
            }
}

/* All the column's variants of the operation beside the truth, and its default to the bit. */
static void check_variants(struct kda_case *c, const struct column *column, struct outcome want,
                           struct outcome usual) {
    struct variant v = {0}, all[OP_VARIANTS];
    uint32_t rows = op_rows(&c->op, &c->t.b);
    uint32_t n = rows ? column_variants(column, &c->op, row_class_of(rows), all) : 0;
    for (uint32_t turn = 0; turn < n; turn++) {
        if (!take_variant(column, &c->op, &c->t.b, turn, &v))
            return;
        run_op(column, &c->op, &c->t.b, 256, 1);
        struct outcome got = read_outcome(c);
        double e = fmax(difference(got.out, want.out, want.n_out),
                        difference(got.state, want.state, want.n_state));
        if (!(e < 4e-5))
            fail_msg("%s %s, %u rows: off by %g", column->name, v.name, c->t.b.n_rows, e);
        if (v.same_bits && (memcmp(usual.out, got.out, want.n_out * sizeof(float)) != 0 ||
                            memcmp(usual.state, got.state, want.n_state * sizeof(float)) != 0))
            fail_msg("%s %s, %u rows: other bits", column->name, v.name, c->t.b.n_rows);
        outcome_free(got);
    }
}

/* Which form serves how many tokens, and where whole vectors and tiles end, shows at no length. */
static void every_length_equals_the_exact_recurrence(void **state) {
    const struct column *columns[CPU_COLUMNS];
    static const struct kda_shape some[] = {{2, 20}, {1, 64}};
    for (uint32_t n = fast_columns(columns), rows = 1; rows <= 70; rows++)
        for (uint32_t k = 0; k < n; k++)
            for (uint32_t pos0 = 0; pos0 <= 5; pos0 += 5) {
                struct kda_case c;
                kda_open(&c, some[rows % 2], 13, GATES_RANDOM, false, rows);
                struct batch_seq *s = &c.t.seqs[0];
                s->rows = c.t.b.n_rows = rows;
                s->pos0 = pos0;
                c.op.kind = OP_KDA_DECODE;
                run_op(&column_ref, &c.op, &c.t.b, 256, 1);
                struct outcome want = read_outcome(&c);
                c.op.kind = OP_KDA_PREFILL;
                run_op(columns[k], &c.op, &c.t.b, 256, 1);
                struct outcome got = read_outcome(&c);
                double e = fmax(difference(got.out, want.out, want.n_out),
                                difference(got.state, want.state, want.n_state));
                if (!(e < 4e-5))
                    fail_msg("%s, %u rows from %u: off by %g", columns[k]->name, rows, pos0, e);
                check_variants(&c, columns[k], want, got);
                outcome_free(want);
                outcome_free(got);
                heap_free(&c.heap);
            }
}

/* A checkpoint is what a prefill that ends there leaves, to the bit, wherever it lies in a chunk.
 */
static void a_checkpoint_is_the_state_of_a_prefill_that_ends_there(void **state) {
    const struct column *columns[CPU_COLUMNS];
    for (uint32_t k = fast_columns(columns); k-- > 0;)
        for (uint32_t at = 1; at <= 130; at += at % 7 == 3 ? 5 : 1) {
            struct kda_case c;
            kda_open(&c, shapes[3], 13, GATES_RANDOM, false, at);
            struct batch_seq *s = &c.t.seqs[0];
            struct batch_checkpoint list[2] = {{at, (int32_t)c.t.slots},
                                               {at + 2, (int32_t)c.t.slots + 1}};
            s->checkpoints = list;
            s->n_checkpoints = 2;
            c.op.kind = OP_KDA_PREFILL;
            run_op(columns[k], &c.op, &c.t.b, 256, 2);
            size_t floats = c.pool.layer_floats;
            float *kept = malloc(floats * sizeof *kept);
            const float *layer = c.pool.data + c.pool.layer_floats;
            memcpy(kept, layer + (size_t)list[0].slot * c.pool.slot_floats, floats * sizeof *kept);
            s->n_checkpoints = 0;
            s->rows = at;
            run_op(columns[k], &c.op, &c.t.b, 256, 1);
            assert_memory_equal(kept, layer + (size_t)s->slot * c.pool.slot_floats,
                                floats * sizeof *kept);
            free(kept);
            heap_free(&c.heap);
        }
}

/* Subnormal numbers count as zero inside these operations, and nowhere else. */
static void subnormal_numbers_are_back_behind_the_operation(void **state) {
    const struct column *columns[CPU_COLUMNS];
    for (uint32_t k = fast_columns(columns); k-- > 0;)
        for (int kind = OP_KDA_DECODE; kind <= OP_KDA_PREFILL; kind++) {
            struct kda_case c;
            kda_open(&c, shapes[1], 6, GATES_RANDOM, false, 8);
            c.op.kind = (enum op_kind)kind;
            run_op(columns[k], &c.op, &c.t.b, c.t.longest, 1);
            volatile float least = 0x1p-126f;
            assert_true(least * 0.5f > 0);
            heap_free(&c.heap);
        }
}

/* A member of a batch gets the bits it gets alone. */
static void a_sequence_does_not_depend_on_its_batch(void **state) {
    const struct column *columns[CPU_COLUMNS];
    for (uint32_t k = fast_columns(columns); k-- > 0;)
        for (int kind = OP_KDA_DECODE; kind <= OP_KDA_PREFILL; kind++) {
            struct kda_case c;
            kda_open(&c, shapes[3], 11, GATES_RANDOM, true, 6);
            c.op.kind = (enum op_kind)kind;
            run_op(columns[k], &c.op, &c.t.b, c.t.longest, 3);
            struct outcome together = read_outcome(&c);
            for (uint32_t i = 0; i < c.t.b.n_seqs; i++) {
                struct batch one = c.t.b;
                one.seqs = &c.t.seqs[i];
                one.n_seqs = 1;
                run_op(columns[k], &c.op, &one, c.t.longest, 1);
            }
            struct outcome alone = read_outcome(&c);
            assert_memory_equal(together.out, alone.out, together.n_out * sizeof(float));
            assert_memory_equal(together.state, alone.state, together.n_state * sizeof(float));
            outcome_free(together);
            outcome_free(alone);
            heap_free(&c.heap);
        }
}

/* A row without a slot does not exist for the state. */
static void a_sequence_without_a_slot_is_skipped(void **state) {
    const struct column *columns[CPU_COLUMNS];
    for (uint32_t k = fast_columns(columns); k-- > 0;)
        for (int kind = OP_KDA_DECODE; kind <= OP_KDA_PREFILL; kind++) {
            struct kda_case c;
            kda_open(&c, shapes[1], 6, GATES_RANDOM, false, 8);
            c.t.seqs[0].slot = -1;
            c.op.kind = (enum op_kind)kind;
            float *before = malloc(c.pool_floats * sizeof(float));
            memcpy(before, c.pool.data, c.pool_floats * sizeof(float));
            run_op(columns[k], &c.op, &c.t.b, c.t.longest, 2);
            assert_memory_equal(before, c.pool.data, c.pool_floats * sizeof(float));
            free(before);
            heap_free(&c.heap);
        }
}

static void report(void **state) {
    print_message("largest error seen, relative to the root mean square: %.2e\n", largest_seen);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(both_forms_equal_the_exact_recurrence),
        cmocka_unit_test(report),
        cmocka_unit_test(a_sequence_may_be_cut_anywhere),
        cmocka_unit_test(a_cut_on_a_multiple_of_64_gives_the_same_bits),
        cmocka_unit_test(every_length_equals_the_exact_recurrence),
        cmocka_unit_test(a_checkpoint_is_the_state_of_a_prefill_that_ends_there),
        cmocka_unit_test(subnormal_numbers_are_back_behind_the_operation),
        cmocka_unit_test(a_sequence_does_not_depend_on_its_batch),
        cmocka_unit_test(a_sequence_without_a_slot_is_skipped),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
