/* `weir tune`: a variant that is faster wins and one that is slower does not, the command, and a
 * start that uses what it wrote. */
#include "tests/test.h"

#include "bench/tune.h"
#include "ops/cpu/cpu.h"
#include "tests/cli/program.h"

#include <time.h>

/* A column whose products wait: by default, or in the variant. */
enum { SLEEPY = 1, AWAKE = 2, WAIT_NS = 4000000 };
static struct column dozing;

static uint32_t dozing_variants(const struct op *op, enum row_class rows,
                                struct variant out[OP_VARIANTS]) {
    if (op->kind != OP_EXPERTS_UP && op->kind != OP_EXPERTS_DOWN)
        return 0;
    out[0] = (struct variant){"sleepy", SLEEPY, true};
    out[1] = (struct variant){"awake", AWAKE, true};
    return 2;
}

/* Up is slow by default, down only where it is chosen to be. */
static void doze(bool so) {
    if (so)
        nanosleep(&(struct timespec){.tv_nsec = WAIT_NS}, NULL);
}
static void dozing_up(const struct op_experts *a, const struct batch *b, struct work w) {
    doze(w.variant != AWAKE);
    w.variant = 0;
    column_cpu(CPU_PORTABLE, ACTIVATION_F32)->experts_up(a, b, w);
}
static void dozing_down(const struct op_experts *a, const struct batch *b, struct work w) {
    doze(w.variant == SLEEPY);
    w.variant = 0;
    column_cpu(CPU_PORTABLE, ACTIVATION_F32)->experts_down(a, b, w);
}

static void the_faster_variant_wins_and_the_slower_never(void **state) {
    char model[4096];
    weir_error err;
    struct tune_report r;
    snprintf(model, sizeof model, "%s", source_path("models/tiny-k3"));
    dozing = *column_cpu(CPU_PORTABLE, ACTIVATION_F32);
    dozing.name = "dozing";
    dozing.variants = dozing_variants;
    dozing.experts_up = dozing_up;
    dozing.experts_down = dozing_down;
    const struct tune_options o = {.of = {model, &dozing, DENSE_BF16, DTYPE_F32, 1},
                                   .prompt_tokens = 3,
                                   .sequences = 1,
                                   .rows = 2,
                                   .rounds = 9};
    if (tune_measure(&o, &r, &err))
        fail_msg("%s: %s", err.where, err.message);
    assert_int_equal(r.n, 4); /* up and down, one row and two */
    assert_int_equal(r.n_steps, 2);
    for (uint32_t i = 0; i < r.n; i++) {
        const struct tune_row *row = &r.row[i];
        assert_int_equal(row->rows, i < 2 ? ROWS_1 : ROWS_2);
        assert_int_equal(row->tried, 2);
        assert_true(row->calls > 0 && row->shape[0]);
        if (row->kind == OP_EXPERTS_DOWN) {
            assert_true(!row->variant || strcmp(row->variant, "sleepy") != 0);
            continue;
        }
        assert_non_null(row->variant);
        assert_string_equal(row->variant, "awake");
        assert_true(row->default_us >= row->calls * (WAIT_NS / 1000));
        assert_true(row->best_us < row->default_us);
    }
    uint32_t up = 0;
    for (uint32_t i = 0; i < r.table->n; i++)
        up += r.table->row[i].kind == OP_EXPERTS_UP && !strcmp(r.table->row[i].column, "dozing") &&
              !strcmp(r.table->row[i].variant, "awake");
    assert_int_equal(up, 2);
    for (uint32_t i = 0; i < 2; i++)
        assert_true(r.steps[i].tuned_ms < r.steps[i].default_ms);
    tune_free(&r);
}

#define QUICK                                                                                      \
    "--model @models/tiny-k3 --threads 1 --rounds 1 --prompt-tokens 5 --max-num-seqs 2 "           \
    "--max-num-batched-tokens 9"

static void the_command_prints_the_documented_keys_and_writes_its_table(void **state) {
    json_t *o = run_json(NULL, "tune " QUICK " --json --out %new/t.json"), *row;
    static const char *const texts[] = {"operation", "shape", "rows", "best"};
    size_t i;
    json_array_foreach(json_object_get(o, "rows"), i, row) {
        for (size_t k = 0; k < sizeof texts / sizeof *texts; k++)
            assert_true(json_is_string(json_object_get(row, texts[k])));
        assert_true(json_real_value(json_object_get(row, "default_us")) > 0);
        assert_true(json_real_value(json_object_get(row, "best_us")) > 0);
        assert_true(json_integer_value(json_object_get(row, "tried")) > 0);
        assert_true(json_is_string(json_object_get(row, "variant")) ||
                    json_is_null(json_object_get(row, "variant")));
    }
    assert_true(i > 20);
    /* Decode steps of 1 and 2 sequences, prompts of 2, 4, 8 and 9 rows. */
    assert_int_equal(json_array_size(json_object_get(o, "steps")), 6);
    assert_string_equal(json_string_value(json_object_get(o, "file")), scratch("new/t.json"));
    assert_true(json_is_boolean(json_object_get(o, "quiet")));
    assert_true(json_is_object(json_object_get(o, "machine")));
    json_decref(o);
    weir_error err;
    struct tuning *t;
    char why[TUNING_WHY];
    assert_int_equal(tuning_read(scratch("new/t.json"), &t, &err), WEIR_OK);
    assert_true(tuning_is_ours(t, 1, NULL, why));
    tuning_free(t);
}

/* A table of whatever was fastest in a run, by noise or not, of variants that keep the bits. */
static void write_fastest(const char *path) {
    json_t *o = run_json(NULL, "tune " QUICK " --json --out %unused.json"), *row;
    struct tuning *t = tuning_new(1, NULL);
    weir_error err;
    size_t i;
    json_array_foreach(json_object_get(o, "rows"), i, row) {
        const char *best = json_string_value(json_object_get(row, "best"));
        struct tuning_row r = {
            .kind = op_named(json_string_value(json_object_get(row, "operation"))),
            .rows = row_class_named(json_string_value(json_object_get(row, "rows")))};
        if (!strcmp(best, "default") || !strcmp(best, "chunks") || !strcmp(best, "tokens"))
            continue;
        snprintf(r.column, sizeof r.column, "%s", json_string_value(json_object_get(o, "column")));
        snprintf(r.shape, sizeof r.shape, "%s", json_string_value(json_object_get(row, "shape")));
        snprintf(r.variant, sizeof r.variant, "%s", best);
        assert_true(tuning_add(t, &r));
    }
    assert_true(t->n > 0);
    assert_int_equal(tuning_write(t, path, &err), WEIR_OK);
    tuning_free(t);
    json_decref(o);
}

static json_t *ids_of(const char *options) {
    char line[1200];
    snprintf(line, sizeof line,
             "generate --model @models/tiny-k3 --threads 1 --prompt-ids 5,6,7,8,9 --max-tokens 6 "
             "--temperature 0 --json %s",
             options);
    json_t *o = run_json(NULL, line), *ids = json_incref(json_object_get(o, "ids"));
    assert_int_equal(json_array_size(ids), 6);
    json_decref(o);
    return ids;
}

static void a_later_start_uses_the_table_and_answers_the_same(void **state) {
    char path[1100];
    snprintf(path, sizeof path, "%s", scratch("forced.json"));
    write_fastest(path);
    json_t *usual = ids_of("--tuning none");
    assert_null(strstr(last_outcome()->err, "tuning"));
    json_t *tuned = ids_of("--tuning %forced.json");
    assert_non_null(strstr(last_outcome()->err, path));
    assert_non_null(strstr(last_outcome()->err, "go by what was measured"));
    assert_null(strstr(last_outcome()->err, ": 0 of"));
    assert_true(json_equal(usual, tuned));
    json_decref(tuned);
    /* The exact column has one way of everything, and says that the option does nothing. */
    json_t *exact = ids_of("--compute exact --tuning %forced.json");
    assert_non_null(strstr(last_outcome()->err, "--tuning has no effect"));
    assert_null(strstr(last_outcome()->err, "go by"));
    json_decref(exact);
    json_decref(usual);
    succeeds(NULL,
             "bench step --model @models/tiny-k3 --threads 1 --prompt-tokens 4 --max-tokens 1 "
             "--rounds 0 --tuning %forced.json");
    assert_non_null(strstr(last_outcome()->err, "go by what was measured"));
    fails(1, "generate --model @models/tiny-k3 --prompt-ids 1 --tuning %none.json", "none.json");
    write_scratch("bad.json", "{}", 2);
    fails(1, "generate --model @models/tiny-k3 --prompt-ids 1 --tuning %bad.json",
          "bad.json: field weir_tuning: is missing");
}

static void without_a_name_the_table_is_where_starts_look(void **state) {
    json_t *o = run_json(NULL, "tune " QUICK " --json"), *ids;
    char path[1100];
    snprintf(path, sizeof path, "%s", json_string_value(json_object_get(o, "file")));
    json_decref(o);
    assert_memory_equal(path, scratch("weir/tuning/"), strlen(scratch("weir/tuning/")));
    ids = ids_of("");
    assert_non_null(strstr(last_outcome()->err, path));
    json_decref(ids);
    ids = ids_of("--kv-cache-dtype bf16"); /* another table would be its own */
    assert_null(strstr(last_outcome()->err, path));
    json_decref(ids);
}

static void a_place_that_cannot_be_written_ends_in_1_behind_the_table(void **state) {
    write_scratch("plain", "", 0);
    const struct outcome *o = run(NULL, "tune " QUICK " --out %plain/t.json");
    assert_int_equal(o->status, 1);
    assert_non_null(strstr(o->out, "whole steps"));
    assert_non_null(strstr(o->err, scratch("plain")));
    assert_non_null(strstr(o->err, "cannot be"));
    fails(2, "tune", "--model");
    fails(2, "tune --model @models/tiny-k3 --rounds 0", "--rounds");
    fails(1, "tune --model @models/none", "models/none");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_faster_variant_wins_and_the_slower_never),
        cmocka_unit_test(the_command_prints_the_documented_keys_and_writes_its_table),
        cmocka_unit_test(a_later_start_uses_the_table_and_answers_the_same),
        cmocka_unit_test(without_a_name_the_table_is_where_starts_look),
        cmocka_unit_test(a_place_that_cannot_be_written_ends_in_1_behind_the_table),
    };
    return cmocka_run_group_tests(tests, program_setup, program_teardown);
}
