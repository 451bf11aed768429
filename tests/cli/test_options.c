/* test_options.c: the option table against what people type. Runs without a model. */
#include "tests/test.h"

#include "cli/options.h"

#include <unistd.h>

struct record {
    bool flag;
    char *text;
    int choice;
    uint32_t count, one;
    uint64_t bytes, wide;
    int64_t whole;
    double real;
    struct option_list list;
    uint32_t lone;
    bool none;
    char *positional;
};
#define AT(f) offsetof(struct record, f)

static const struct option_spec rows[] = {
    {.name = "flag", .type = OPTION_FLAG, .offset = AT(flag), .help = "h"},
    {.name = "text-option", .value = "T", .type = OPTION_TEXT, .offset = AT(text), .help = "h"},
    {.name = "choice",
     .value = "C",
     .type = OPTION_CHOICE,
     .offset = AT(choice),
     .choices = "exact|fast|null",
     .fallback = "fast",
     .help = "h"},
    {.name = "count",
     .alias = "c",
     .value = "N",
     .type = OPTION_COUNT,
     .offset = AT(count),
     .min = 1,
     .max = 4294967295.0,
     .fallback = "7",
     .help = "h"},
    {.name = "one",
     .value = "N",
     .type = OPTION_COUNT,
     .offset = AT(one),
     .min = 1,
     .max = 64,
     .fallback = "1",
     .offered = "1",
     .refusal = "only one here",
     .help = "h"},
    {.name = "bytes", .value = "B", .type = OPTION_BYTES, .offset = AT(bytes), .help = "h"},
    {.name = "wide", .value = "W", .type = OPTION_WIDE, .offset = AT(wide), .help = "h"},
    {.name = "whole",
     .value = "I",
     .type = OPTION_INT,
     .offset = AT(whole),
     .min = -5,
     .max = 5,
     .help = "h"},
    {.name = "real",
     .value = "R",
     .type = OPTION_REAL,
     .offset = AT(real),
     .min = 0,
     .max = 1,
     .help = "h"},
    {.name = "list", .value = "L", .type = OPTION_LIST, .offset = AT(list), .help = "h"},
    {.name = "lone",
     .value = "N",
     .type = OPTION_COUNT,
     .offset = AT(lone),
     .max = 9,
     .against = "count real text-option list",
     .help = "h"},
    {.name = "none",
     .type = OPTION_FLAG,
     .offset = AT(none),
     .against = "text-option",
     .help = "h"},
};
static const struct option_group groups[] = {{"All", rows, sizeof rows / sizeof rows[0], 0}};
static const struct option_table table = {groups, 1, "DIR", AT(positional), false};

static const char *no_env(const char *name) {
    return NULL;
}

static struct record record;
static weir_error err;

/* Parses a line cut at spaces. */
static weir_status parse_with(const char *line, const char *(*env)(const char *)) {
    char copy[1024], *argv[64];
    int argc = 0;
    bool help;
    snprintf(copy, sizeof copy, "%s", line);
    for (char *p = strtok(copy, " "); p; p = strtok(NULL, " "))
        argv[argc++] = p;
    options_free(&table, &record);
    memset(&record, 0, sizeof record);
    memset(&err, 0, sizeof err);
    weir_status status = options_parse(&table, argc, argv, env, &record, &help, &err);
    assert_int_equal(status, err.code);
    return status;
}

static weir_status parse(const char *line) {
    return parse_with(line, no_env);
}

static void refused(const char *line, const char *where, const char *part) {
    if (parse(line) == WEIR_OK)
        fail_msg("'%s' was taken", line);
    if (strcmp(err.where, where) || !strstr(err.message, part))
        fail_msg("'%s' gave '%s: %s'", line, err.where, err.message);
    assert_null(strchr(err.message, '\n'));
}

static void both_spellings_of_a_value_are_taken(void **state) {
    assert_int_equal(parse("--count 3 --text-option=a=b --flag DIR"), WEIR_OK);
    assert_int_equal(record.count, 3);
    assert_string_equal(record.text, "a=b");
    assert_true(record.flag);
    assert_string_equal(record.positional, "DIR");
    assert_int_equal(record.choice, 1);
    assert_int_equal(parse("--c=4 -- --flag"), WEIR_OK);
    assert_int_equal(record.count, 4);
    assert_false(record.flag);
    assert_string_equal(record.positional, "--flag");
}

static void many_positional_arguments_are_kept_in_order(void **state) {
    static const struct option_table several = {groups,   1,    "DIR...",
                                                AT(list), true, .positional_many = true};
    static char *argv[] = {(char *)(uintptr_t) "one", (char *)(uintptr_t) "--flag",
                           (char *)(uintptr_t) "two"};
    struct record r = {0};
    bool help;
    assert_int_equal(options_parse(&several, 3, argv, no_env, &r, &help, &err), WEIR_OK);
    assert_true(r.flag);
    assert_int_equal(r.list.n, 2);
    assert_string_equal(r.list.item[0], "one");
    assert_string_equal(r.list.item[1], "two");
    options_free(&several, &r);
    assert_int_equal(options_parse(&several, 0, argv, no_env, &r, &help, &err), WEIR_BAD_VALUE);
    assert_string_equal(err.where, "DIR...");
}

static void sizes_take_binary_suffixes(void **state) {
    static const struct {
        const char *text;
        uint64_t bytes;
    } good[] = {{"0", 0},           {"4096", 4096},     {"512MiB", 512ull << 20},
                {"2G", 2ull << 30}, {"1k", 1024},       {"1.5GiB", 3ull << 29},
                {"7B", 7},          {"3TB", 3ull << 40}};
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        char line[64];
        snprintf(line, sizeof line, "--bytes %s", good[i].text);
        assert_int_equal(parse(line), WEIR_OK);
        assert_int_equal(record.bytes, good[i].bytes);
    }
    static const char *const bad[] = {"",    "-1",  "G",    "2X",    "2GiBs",
                                      "0.3", "inf", "1e30", "2 GiB", "16777216T"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        char line[64];
        snprintf(line, sizeof line, "--bytes=%s", bad[i]);
        if (parse(line) == WEIR_OK && !strchr(bad[i], ' '))
            fail_msg("size '%s' was taken", bad[i]);
    }
}

static void numbers_are_checked_against_their_range(void **state) {
    refused("--count 0", "--count", "'0' is not a whole number from 1 to 4294967295");
    refused("--count 4294967296", "--count", "from 1 to");
    refused("--count 99999999999999999999999", "--count", "from 1 to");
    refused("--count -1", "--count", "from 1 to");
    refused("--count 1x", "--count", "'1x'");
    refused("--count=", "--count", "''");
    refused("--whole -6", "--whole", "from -5 to 5");
    refused("--real 1.5", "--real", "a number from 0 to 1");
    refused("--real nan", "--real", "'nan'");
    refused("--wide 18446744073709551616", "--wide", "18446744073709551615");
    assert_int_equal(parse("--whole -5 --wide 18446744073709551615 --real 0.25"), WEIR_OK);
    assert_int_equal(record.whole, -5);
    assert_true(record.wide == UINT64_MAX);
    assert_true(record.real == 0.25);
}

static void unknown_options_are_named_with_the_nearest_one(void **state) {
    refused("--txt-option a", "--txt-option", "did you mean --text-option?");
    refused("--zzzzzzzzzz", "--zzzzzzzzzz", "--help");
    refused("-x", "-x", "two dashes");
    refused("--choice quick", "--choice", "'quick' is not exact, fast or null");
    refused("--flag=maybe", "--flag", "true or false");
    refused("--text-option", "--text-option", "needs a value");
    refused("A B", "B", "unexpected argument");
}

static void known_options_of_other_builds_are_refused_by_a_sentence(void **state) {
    assert_int_equal(parse("--one 01"), WEIR_OK);
    refused("--one 2", "--one", "'2': only one here");
    assert_int_equal(err.code, WEIR_UNSUPPORTED);
    refused("--one two", "--one", "'two' is not a whole number");
    assert_int_equal(err.code, WEIR_BAD_VALUE);
}

static const char *some_env(const char *name) {
    return !strcmp(name, "WEIR_COUNT")         ? "11"
           : !strcmp(name, "WEIR_TEXT_OPTION") ? "from env"
           : !strcmp(name, "WEIR_LIST")        ? "e"
                                               : NULL;
}

static const char *write_config(const char *text) {
    static char path[] = "/tmp/weir-config-XXXXXX";
    strcpy(path + sizeof path - 7, "XXXXXX");
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, strlen(text)), (ssize_t)strlen(text));
    close(fd);
    return path;
}

static void the_line_wins_over_the_environment_and_that_over_the_file(void **state) {
    const char *path =
        write_config("count: 5\nchoice: exact\nflag: true\ntext-option: from file\nlist: [a, b]\n");
    char line[128];
    snprintf(line, sizeof line, "--config %s --text-option line", path);
    assert_int_equal(parse_with(line, some_env), WEIR_OK);
    assert_int_equal(record.count, 11);
    assert_int_equal(record.choice, 0);
    assert_true(record.flag);
    assert_string_equal(record.text, "line");
    assert_int_equal(record.list.n, 1);
    assert_string_equal(record.list.item[0], "e");

    snprintf(line, sizeof line, "--config=%s --flag=false --list x --list y", path);
    assert_int_equal(parse(line), WEIR_OK);
    assert_int_equal(record.count, 5);
    assert_false(record.flag);
    assert_int_equal(record.list.n, 2);
    assert_string_equal(record.list.item[1], "y");
    unlink(path);
}

static void config_refused(const char *text, const char *part, weir_status code) {
    const char *path = write_config(text);
    char line[128];
    snprintf(line, sizeof line, "--config %s", path);
    if (parse(line) == WEIR_OK)
        fail_msg("config was taken:\n%s", text);
    if (!strstr(err.message, part) && !strstr(err.where, part))
        fail_msg("config gave '%s: %s', wanted '%s'", err.where, err.message, part);
    assert_non_null(strstr(err.where, path));
    assert_int_equal(err.code, code);
    unlink(path);
}

static void a_config_file_is_refused_with_key_and_line(void **state) {
    config_refused("count: 5\nfoo: 1\n", "foo", WEIR_BAD_VALUE);
    config_refused("count: 5\nfoo: 1\n", "line 2", WEIR_BAD_VALUE);
    config_refused("count: 0\n", "count", WEIR_BAD_VALUE);
    config_refused("count: 0\n", "'0' is not a whole number", WEIR_BAD_VALUE);
    config_refused("one: 2\n", "only one here", WEIR_UNSUPPORTED);
    config_refused("count: [1, 2]\n", "line 1", WEIR_BAD_VALUE);
    config_refused("count: [1, 2]\n", "count is a list where one value is meant", WEIR_BAD_VALUE);
    config_refused("count: {a: 1}\n", "count is a mapping where one value", WEIR_BAD_VALUE);
    config_refused("list: 1\n", "list is one value where a list is meant", WEIR_BAD_VALUE);
    config_refused("flag: true\ncount: 5\n\ncount: 6\n", "line 4", WEIR_BAD_VALUE);
    config_refused("flag: true\ncount: \"1\n", "line", WEIR_BAD_VALUE);
    config_refused("- count\n", "Expecting MAPPING", WEIR_BAD_VALUE);
    assert_int_equal(parse("--config /nonexistent/x.yaml"), WEIR_BAD_FILE);
    assert_string_equal(err.where, "/nonexistent/x.yaml");
}

static const char *lone_and_real_env(const char *name) {
    return !strcmp(name, "WEIR_LONE") ? "3" : !strcmp(name, "WEIR_REAL") ? "0.5" : NULL;
}

static const char *lone_env(const char *name) {
    return strcmp(name, "WEIR_LONE") ? NULL : "3";
}

static const char *none_env(const char *name) {
    return strcmp(name, "WEIR_NONE") ? NULL : "true";
}

static void of_two_that_exclude_each_other_the_stronger_source_counts(void **state) {
    assert_int_equal(parse_with("--lone 2", some_env), WEIR_OK);
    assert_int_equal(record.lone, 2);
    assert_int_equal(record.count, 7); /* its default again */
    assert_null(record.text);
    assert_int_equal(record.list.n, 0);
    /* What gives way is no half of another pair. */
    assert_int_equal(parse_with("--text-option typed", lone_and_real_env), WEIR_OK);
    assert_int_equal(record.lone, 0);
    assert_string_equal(record.text, "typed");
    assert_true(record.real == 0.5);
    assert_int_equal(parse_with("--text-option typed", none_env), WEIR_OK);
    assert_false(record.none);
    assert_int_equal(parse_with("--none=false", some_env), WEIR_OK); /* asks for nothing */
    assert_string_equal(record.text, "from env");

    const char *path = write_config("lone: 4\nwhole: 2\n");
    char line[128];
    snprintf(line, sizeof line, "--config %s --real 0.25", path);
    assert_int_equal(parse(line), WEIR_OK);
    assert_int_equal(record.lone, 0);
    assert_int_equal(record.whole, 2);
    unlink(path);

    path = write_config("real: 0.25\n"); /* typed > environment > file: the middle one gives way
                                            alone */
    snprintf(line, sizeof line, "--config %s --text-option typed", path);
    assert_int_equal(parse_with(line, lone_env), WEIR_OK);
    assert_int_equal(record.lone, 0);
    assert_true(record.real == 0.25);
    unlink(path);
}

static void two_of_one_source_are_refused_by_their_names(void **state) {
    assert_int_equal(parse_with("--whole 1", lone_and_real_env), WEIR_BAD_VALUE);
    assert_string_equal(err.where, "WEIR_LONE");
    assert_non_null(strstr(err.message, "cannot stand beside WEIR_REAL"));
    const char *path = write_config("lone: 4\nreal: 1\n");
    char line[128];
    snprintf(line, sizeof line, "--config %s", path);
    assert_int_equal(parse(line), WEIR_BAD_VALUE);
    assert_string_equal(err.where, "lone in the file of --config");
    unlink(path);
    assert_int_equal(parse("--lone 1 --real 1"), WEIR_OK); /* the command has words of its own */
}

static void a_line_names_the_variable_that_a_value_came_from(void **state) {
    char text[] = "--text-option=x", end[] = "--", lone[] = "--lone";
    char *const typed[] = {text, end, lone};
    weir_error e = {.code = WEIR_BAD_VALUE, .where = "--lone"};
    options_name_variable(&table, 3, typed, no_env, &e);
    assert_string_equal(e.where, "--lone");
    options_name_variable(&table, 3, typed, lone_and_real_env, &e);
    assert_string_equal(e.where, "WEIR_LONE");
    snprintf(e.where, sizeof e.where, "--text-option");
    options_name_variable(&table, 3, typed, some_env, &e);
    assert_string_equal(e.where, "--text-option");
}

static void an_empty_config_file_changes_nothing(void **state) {
    const char *path = write_config("# nothing\n");
    char line[128];
    snprintf(line, sizeof line, "--config %s", path);
    assert_int_equal(parse(line), WEIR_OK);
    assert_int_equal(record.count, 7);
    unlink(path);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(both_spellings_of_a_value_are_taken),
        cmocka_unit_test(many_positional_arguments_are_kept_in_order),
        cmocka_unit_test(sizes_take_binary_suffixes),
        cmocka_unit_test(numbers_are_checked_against_their_range),
        cmocka_unit_test(unknown_options_are_named_with_the_nearest_one),
        cmocka_unit_test(known_options_of_other_builds_are_refused_by_a_sentence),
        cmocka_unit_test(the_line_wins_over_the_environment_and_that_over_the_file),
        cmocka_unit_test(a_config_file_is_refused_with_key_and_line),
        cmocka_unit_test(of_two_that_exclude_each_other_the_stronger_source_counts),
        cmocka_unit_test(two_of_one_source_are_refused_by_their_names),
        cmocka_unit_test(a_line_names_the_variable_that_a_value_came_from),
        cmocka_unit_test(an_empty_config_file_changes_nothing),
    };
    int failed = cmocka_run_group_tests_name("options", tests, NULL, NULL);
    options_free(&table, &record);
    return failed;
}
