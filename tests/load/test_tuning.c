/* The table of what is fastest on a machine: what is written is read again, what is wrong is named,
 * and a table of elsewhere is left. */
#include "tests/test.h"

#include "base/log.h"
#include "load/tuning.h"
#include "ops/cpu/cpu.h"

#include <sys/stat.h>
#include <unistd.h>

static char dir[256];

static int make_dir(void **state) {
    const char *tmp = getenv("TMPDIR");
    snprintf(dir, sizeof dir, "%s/weir-tuning-XXXXXX", tmp ? tmp : "/tmp");
    log_set_level(LOG_ERROR);
    return mkdtemp(dir) && !setenv("XDG_CACHE_HOME", dir, 1) ? 0 : -1;
}

static const char *in_dir(const char *name) {
    static char path[600];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    return path;
}

static int remove_dir(void **state) {
    static const char *const files[] = {"t.json", "weir/tuning", "weir", "a/b/t.json", "a/b", "a"};
    for (size_t i = 0; i < sizeof files / sizeof *files; i++)
        remove(in_dir(files[i]));
    return rmdir(dir);
}

static void write_text(const char *path, const char *text) {
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

static const struct tuning_row one = {.column = "avx2",
                                      .kind = OP_LINEAR,
                                      .shape = "64x32 bf16",
                                      .rows = ROWS_4,
                                      .variant = "fixed",
                                      .us = 12.5,
                                      .default_us = 15};

static void what_is_written_is_read_again(void **state) {
    weir_error err;
    struct tuning *t = tuning_new(3, NULL), *back;
    char why[TUNING_WHY], path[600];
    assert_non_null(t);
    for (enum op_kind k = 0; k < OP_COUNT; k++)
        for (enum row_class c = 0; c < ROW_CLASSES; c++) {
            struct tuning_row r = one;
            r.kind = k;
            r.rows = c;
            assert_true(tuning_add(t, &r));
        }
    snprintf(path, sizeof path, "%s", in_dir("a/b/t.json"));
    for (int again = 0; again < 2; again++) /* over the file before, too */
        assert_int_equal(tuning_write(t, path, &err), WEIR_OK);
    assert_int_equal(tuning_read(path, &back, &err), WEIR_OK);
    assert_string_equal(back->path, path);
    assert_int_equal(back->n, t->n);
    assert_memory_equal(back->row, t->row, t->n * sizeof *t->row);
    assert_true(tuning_is_ours(back, 3, NULL, why));
    tuning_free(back);
    tuning_free(t);
}

static void a_table_that_cannot_be_written_leaves_nothing(void **state) {
    weir_error err;
    struct tuning *t = tuning_new(1, NULL);
    write_text(in_dir("t.json"), "a file, no directory");
    char path[600];
    snprintf(path, sizeof path, "%s", in_dir("t.json/x.json"));
    assert_int_equal(tuning_write(t, path, &err), WEIR_BAD_FILE);
    assert_non_null(strstr(err.message, "cannot be"));
    tuning_free(t);
}

#define HEAD                                                                                       \
    "{\"weir_tuning\": 1, \"weir\": \"0\", \"processor\": \"p\", \"level\": \"avx2\", "            \
    "\"threads\": 1, "
#define ROW(COLUMN, OPERATION, SHAPE, ROWS, VARIANT, US)                                           \
    HEAD "\"rows\": [{\"column\": " COLUMN ", \"operation\": " OPERATION ", \"shape\": " SHAPE     \
         ", \"rows\": " ROWS ", \"variant\": " VARIANT ", \"us\": " US ", \"default_us\": 2}]}"

static void what_is_wrong_in_a_file_is_named_with_its_rule(void **state) {
    static const struct {
        const char *text, *part;
    } wrong[] = {
        {"{\"weir_tuning\": 1", "is not valid JSON: line 1"},
        {"[1]", "must be a JSON object"},
        {"{}", "field weir_tuning: is missing"},
        {"{\"weir_tuning\": 2}", "field weir_tuning: must be an integer from 1 to 1, not 2"},
        {"{\"weir_tuning\": 1, \"weir_tuning\": 1}", "\"weir_tuning\" stands twice"},
        {"{\"weir_tuning\": 1, \"weir\": 3}", "field weir: must be a string, not 3"},
        {"{\"weir_tuning\": 1, \"weir\": \"0123456789012345678901234567890123456789\"}",
         "field weir: has more than 31 letters"},
        {HEAD "\"rows\": {}}", "field rows: must be an array, not {}"},
        {HEAD "\"rows\": [1]}", "field rows[0]: must be an object"},
        {ROW("1", "\"linear\"", "\"\"", "\"1\"", "\"v\"", "1"), "field rows[0].column: must be"},
        {ROW("\"c\"", "\"square\"", "\"\"", "\"1\"", "\"v\"", "1"),
         "field rows[0].operation: must be the name of an operation, not \"square\""},
        {ROW("\"c\"", "\"linear\"", "null", "\"1\"", "\"v\"", "1"),
         "field rows[0].shape: is missing"},
        {ROW("\"c\"", "\"linear\"", "\"\"", "\"3\"", "\"v\"", "1"),
         "field rows[0].rows: must be 1, 2, 3-4, 5-8, 9-16, 17-64 or 65-, not \"3\""},
        {ROW("\"c\"", "\"linear\"", "\"\"", "\"1\"", "{}", "1"),
         "field rows[0].variant: must be a string, not {}"},
        {ROW("\"c\"", "\"linear\"", "\"\"", "\"1\"", "\"v\"", "-1"),
         "field rows[0].us: must be a number from 0 to 1e+12, not -1"},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        weir_error err = {0};
        struct tuning *t;
        write_text(in_dir("t.json"), wrong[i].text);
        assert_int_equal(tuning_read(in_dir("t.json"), &t, &err), WEIR_BAD_FILE);
        assert_null(t);
        assert_string_equal(err.where, in_dir("t.json"));
        if (!strstr(err.message, wrong[i].part))
            fail_msg("'%s': '%s' without '%s'", wrong[i].text, err.message, wrong[i].part);
    }
}

static void a_table_of_elsewhere_is_left_with_the_reason(void **state) {
    static const char *const reason[] = {"weir 9 made it", "made on 'PDP-11'",
                                         "instructions of vax",
                                         "made with 5 threads, and there are 4"};
    for (int i = 0; i < 4; i++) {
        weir_error err;
        char why[TUNING_WHY] = "", path[600];
        struct tuning *t = tuning_new(4, NULL), *used;
        const struct tuning_for of = {"", column_cpu(CPU_PORTABLE, ACTIVATION_F32), DENSE_BF16,
                                      DTYPE_F32, 4};
        assert_true(tuning_is_ours(t, 4, NULL, why));
        if (i == 0)
            snprintf(t->weir, sizeof t->weir, "9");
        else if (i == 1)
            snprintf(t->processor, sizeof t->processor, "PDP-11");
        else if (i == 2)
            snprintf(t->level, sizeof t->level, "vax");
        else
            t->threads = 5;
        assert_false(tuning_is_ours(t, 4, NULL, why));
        assert_non_null(strstr(why, reason[i]));
        snprintf(path, sizeof path, "%s", in_dir("t.json"));
        assert_int_equal(tuning_write(t, path, &err), WEIR_OK);
        assert_int_equal(tuning_choose(path, &of, &used, &err), WEIR_OK);
        assert_null(used);
        tuning_free(t);
    }
}

/* A named file must be there and sound; the default place may be empty or damaged. */
static void a_start_finds_the_table_of_its_model_and_settings(void **state) {
    weir_error err;
    char model[4096];
    struct tuning *used, *t = tuning_new(2, NULL);
    snprintf(model, sizeof model, "%s", source_path("models/tiny-k3"));
    struct tuning_for of = {model, column_cpu(CPU_PORTABLE, ACTIVATION_F32), DENSE_BF16, DTYPE_F32,
                            2};
    assert_int_equal(tuning_choose("auto", &of, &used, &err), WEIR_OK);
    assert_null(used);
    assert_int_equal(tuning_choose(in_dir("none.json"), &of, &used, &err), WEIR_BAD_FILE);
    char *path = tuning_default_path(&of, &err);
    assert_non_null(path);
    assert_memory_equal(path, dir, strlen(dir));
    assert_int_equal(tuning_write(t, path, &err), WEIR_OK);
    assert_int_equal(tuning_choose("auto", &of, &used, &err), WEIR_OK);
    assert_non_null(used);
    tuning_free(used);
    static const char *const off[] = {NULL, "none"};
    for (int i = 0; i < 2; i++) {
        assert_int_equal(tuning_choose(off[i], &of, &used, &err), WEIR_OK);
        assert_null(used);
    }
    struct tuning_for others[4] = {of, of, of, of};
    others[0].threads = 3;
    others[1].kv = DTYPE_BF16;
    others[2].dense = DENSE_INT8;
    others[3].column = column_cpu(CPU_PORTABLE, ACTIVATION_INT8);
    for (int i = 0; i < 4; i++) {
        char *other = tuning_default_path(&others[i], &err);
        assert_string_not_equal(other, path);
        free(other);
    }
    of.column = &column_ref; /* whose operations have one way each */
    assert_int_equal(tuning_choose(path, &of, &used, &err), WEIR_OK);
    assert_null(used);
    of.column = others[0].column;
    write_text(path, "[]");
    assert_int_equal(tuning_choose("auto", &of, &used, &err), WEIR_OK);
    assert_null(used);
    assert_int_equal(tuning_choose(path, &of, &used, &err), WEIR_BAD_FILE);
    unlink(path);
    free(path);
    tuning_free(t);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_written_is_read_again),
        cmocka_unit_test(a_table_that_cannot_be_written_leaves_nothing),
        cmocka_unit_test(what_is_wrong_in_a_file_is_named_with_its_rule),
        cmocka_unit_test(a_table_of_elsewhere_is_left_with_the_reason),
        cmocka_unit_test(a_start_finds_the_table_of_its_model_and_settings),
    };
    return cmocka_run_group_tests(tests, make_dir, remove_dir);
}
