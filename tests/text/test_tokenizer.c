/* The tokenizer: ids against the golden vectors, reading of its files, round trips. */
#include "tests/test.h"

#include "base/rng.h"
#include "text/tokenizer.h"
#include "text/utf8.h"

#include <jansson.h>

enum { VOCAB = 2816, RANKS = 2560 };

static struct tokenizer *open_tiny(void) {
    struct tokenizer *t = NULL;
    weir_error err = {0};
    if (tokenizer_open(source_path("models/tiny-k3"), VOCAB, &t, &err))
        fail_msg("%s: %s", err.where, err.message);
    return t;
}

static void check_ids(const struct tokenizer *t, const char *text, size_t n, const json_t *want) {
    struct ids got = {0};
    tokenizer_encode(t, text, n, &got);
    if (got.n != json_array_size(want))
        fail_msg("%zu ids instead of %zu: %s", got.n, json_array_size(want), text);
    for (size_t i = 0; i < got.n; i++)
        if (got.data[i] != json_integer_value(json_array_get(want, i)))
            fail_msg("id %zu is %d: %s", i, got.data[i], text);
    struct text back = {0};
    tokenizer_decode(t, got.data, got.n, false, &back);
    assert_int_equal(back.n, n);
    assert_memory_equal(back.data, text, n);
    text_free(&back);
    ids_free(&got);
}

static void check_rows(const char *file, const char *member, size_t at_least) {
    struct tokenizer *t = open_tiny();
    json_error_t fault;
    json_t *root = json_load_file(source_path(file), 0, &fault);
    assert_non_null(root);
    const json_t *rows = json_object_get(root, member);
    assert_true(json_array_size(rows) >= at_least);
    size_t i;
    json_t *row;
    json_array_foreach(rows, i, row) {
        const json_t *text = json_object_get(row, "text");
        check_ids(t, json_string_value(text), json_string_length(text),
                  json_object_get(row, "ids"));
    }
    json_decref(root);
    tokenizer_close(t);
}

/* F-010: the directory holds a rank file and its configuration, nothing converted. */
static void F010_ids_from_the_rank_file_equal_the_reference(void **state) {
    check_rows("vectors/tiny-k3/manifest.json", "tokenizer_plain_text", 10);
}

static void ids_of_mixed_scripts_equal_the_reference(void **state) {
    check_rows("vectors/tiny-k3/tokenizer_fuzz.json", "rows", 700);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(F010_ids_from_the_rank_file_equal_the_reference),
        cmocka_unit_test(ids_of_mixed_scripts_equal_the_reference),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
