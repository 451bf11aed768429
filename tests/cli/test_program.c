/* test_program.c: the program from outside: exit statuses, one line for a refusal, one object for
 * --json, help and manual pages from one table. */
#include "tests/cli/program.h"

#include "cli/command.h"
#include "cli/version.h"

#include <unistd.h>

static void what_is_typed_wrong_ends_in_2_with_one_line(void **state) {
    fails(2, "nonsense", "nonsense: unknown command");
    fails(2, "serv", "did you mean serve?");
    fails(2, "generate --model @models/tiny-k3 --prompt a --kv-cache-bytes 1",
          "--kv-cache-bytes: ");
    fails(2, "generate --model @models/tiny-k3 --prompt a --max-model-len 1", "--max-model-len: ");
    fails(2, "tokenize", "--model: is missing");
    fails(2, "tokenize --model @models/tiny-k3 --decod", "did you mean --decode?");
    fails(2, "inspect", "DIR: is missing");
    fails(2, "inspect a b", "b: unexpected argument");
    fails(2, "serve models/tiny-k3", "a model is given as --model models/tiny-k3");
    fails(2, "version --json=perhaps", "'perhaps' is not true or false");
    fails(2, "help nonsense", "nonsense: unknown command");
    fails(2, "score --model @models/micro-k3-odd --vectors @vectors --compute null", "null");
    fails(2, "score --model @models/micro-k3-odd --vectors @vectors --compute quick",
          "'quick' is not exact, fast or null");
}

static void features_of_other_builds_are_known_by_name(void **state) {
    static const char *const options[] = {"--tensor-parallel-size 2",
                                          "--tp 8",
                                          "--dcp 2",
                                          "--decode-context-parallel-size=4",
                                          "--enable-expert-parallel",
                                          "--speculative-config {}"};
    for (size_t i = 0; i < sizeof options / sizeof options[0]; i++) {
        char line[256];
        snprintf(line, sizeof line, "score --model @models/micro-k3-odd --vectors @vectors %s",
                 options[i]);
        fails(2, line, "this build");
    }
    succeeds(NULL, "score --model @models/micro-k3-odd --vectors @vectors --case len1 --tp 1 "
                   "--device cpu --cpu-offload-bytes 0 --compute exact --kv-cache-dtype f32");
}

static json_t *planned(const json_t *plan, const char *name, const char *step) {
    size_t i;
    json_t *e, *list = json_object_get(plan, "kernels");
    json_array_foreach(list, i, e) {
        if (!strcmp(json_string_value(json_object_get(e, "name")), name) &&
            !strcmp(json_string_value(json_object_get(e, "step")), step))
            return e;
    }
    fail_msg("no %s in %s", name, step);
    return NULL;
}

static json_t *plan_of(const char *line) {
    succeeds(NULL, line);
    json_t *plan = json_loads(last_outcome()->out, 0, NULL);
    assert_non_null(plan);
    return plan;
}

static json_int_t planned_number(const json_t *e, const char *key) {
    return json_integer_value(json_object_get(e, key));
}

/* Shapes of one rank of Kimi K3, against published counts and weir's own rules of launches. */
static void a_plan_of_kernels_says_what_each_takes_and_what_is_missing(void **state) {
    json_t *p = plan_of("plan kernels --machine mi355x --tp 8 --draft 3 --prompt 8192 --json");
    json_t *e = planned(p, "kda_verify", "verify");
    assert_string_equal(json_string_value(json_object_get(e, "kernel")), "weir_kda_verify_128");
    assert_int_equal(planned_number(e, "workgroups"), 12);
    e = json_object_get(e, "no_kernel_yet");
    assert_int_equal(planned_number(e, "workgroups"), 384);
    e = json_object_get(planned(p, "kda_prefill_chunks", "prefill"), "no_kernel_yet");
    assert_int_equal(planned_number(e, "resident"), 2); /* 79.5 KiB of 160 */
    assert_int_equal(planned_number(e, "workgroups"), 128 * 12);
    e = json_object_get(planned(p, "kda_prefill_states", "prefill"), "no_kernel_yet");
    assert_int_equal(planned_number(e, "workgroups"), 2 * 12 * 10);
    e = planned(p, "kda_prefill_out", "prefill");
    assert_int_equal(planned_number(e, "launches"), 69);
    e = planned(p, "experts_group", "prefill"); /* 8192 times 16 choices of 896 */
    assert_int_equal(planned_number(e, "launches"), 92);
    e = planned(p, "mla_verify", "verify");
    assert_string_equal(json_string_value(json_object_get(e, "kernel")), "weir_mla_split");
    assert_int_equal(planned_number(e, "heads"), 12);
    assert_int_equal(planned_number(e, "padded_heads"), 16);
    assert_true(json_real_value(json_object_get(e, "padding_waste")) == 0.25);
    assert_int_equal(planned_number(e, "workgroups"), 256); /* 64 shares of 4 rows */
    assert_int_equal(planned_number(json_object_get(e, "no_kernel_yet"), "workgroups"), 16);
    json_decref(p);

    p = plan_of("plan kernels --machine h200 --tp 8 --dcp 8 --context 142000 --json");
    e = planned(p, "mla_decode", "decode");
    assert_int_equal(planned_number(e, "heads"), 96);
    assert_non_null(
        strstr(json_string_value(json_object_get(json_object_get(e, "no_kernel_yet"), "variant")),
               "heads_128_zero"));
    assert_true(json_is_null(json_object_get(planned(p, "dcp_merge", "decode"), "kernel")));
    json_decref(p);

    /* 12 heads of one query: what the rules name is weir's kernel, with FP8 on Hopper alone. */
    p = plan_of("plan kernels --machine h200 --tp 8 --kv-cache-dtype fp8 --json");
    e = planned(p, "mla_decode", "decode");
    assert_true(json_is_null(json_object_get(e, "no_kernel_yet")));
    assert_int_equal(planned_number(e, "workgroups"), 132);
    json_decref(p);
    p = plan_of("plan kernels --machine b300 --tp 8 --kv-cache-dtype fp8 --json");
    e = planned(p, "mla_decode", "decode");
    assert_false(json_is_null(json_object_get(e, "no_kernel_yet")));
    json_decref(p);
    p = plan_of("plan kernels --machine b300 --tp 8 --json");
    e = planned(p, "mla_decode", "decode");
    assert_true(json_is_null(json_object_get(e, "no_kernel_yet")));
    assert_int_equal(planned_number(e, "workgroups"), 148);
    json_decref(p);

    /* Router and dense matrices go together, the head stays as it is. */
    p = plan_of("plan kernels --machine h200 --tp 8 --dense-dtype fp8 --prompt 8192 --json");
    static const char *const kernels_of_fp8[][3] = {
        {"moe_in", "decode", "weir_gemv_fp8_1"}, {"moe_out", "decode", "weir_gemv_fp8_1"},
        {"head", "decode", "weir_gemv_1"},       {"mla_values", "decode", "weir_gemv_1"},
        {"kda_in", "prefill", "weir_gemm_wg"},   {"mla_expand", "prefill", "weir_gemm_wg"},
        {"widen", "prefill", "weir_widen"},      {"moe_out", "prefill", "weir_gemm_wg"},
    };
    for (size_t i = 0; i < sizeof kernels_of_fp8 / sizeof *kernels_of_fp8; i++) {
        e = planned(p, kernels_of_fp8[i][0], kernels_of_fp8[i][1]);
        const char *kernel = json_string_value(json_object_get(e, "kernel"));
        /* weir_gemv_1_more is one of those */
        assert_memory_equal(kernel, kernels_of_fp8[i][2], strlen(kernels_of_fp8[i][2]));
    }
    json_decref(p);

    succeeds(NULL, "plan kernels --machine MI355X --model @models/tiny-k3 --prompt 100");
    assert_non_null(strstr(last_outcome()->out, "no kernel yet"));
    succeeds(NULL, "plan kernels --machine h200 --preset kimi-linear --tp 4 --batch 300");
}

static void a_plan_of_kernels_refuses_what_does_not_divide(void **state) {
    fails(2, "plan kernels", "--machine: is missing");
    fails(2, "plan kernels --machine h100", "rules of dispatch: h200, b300, mi355x");
    fails(2, "plan kernels --machine h200 --tp 7",
          "--tensor-parallel-size: is 7, but 96 KDA heads");
    fails(2, "plan kernels --machine h200 --tp 8 --dcp 3",
          "--decode-context-parallel-size: is 3, which does not divide the 8 ranks");
    fails(2, "plan kernels --machine h200 --preset kimi-k2", "does not run that family");
    fails(2, "plan kernels --machine h200 --kv-cache-dtype f32", "'f32' is not bf16 or fp8");
    fails(2, "plan kernels --machine h200 --dense-dtype int8", "'int8' is not bf16 or fp8");
    fails(2, "plan kernels --machine h200 --preset kimi-linear --dense-dtype fp8",
          "--dense-dtype: is fp8, but experts of this model are bf16");
}

/* On a machine without one, or with the library of something else. */
static void a_device_that_is_not_there_is_one_line(void **state) {
    static const char *const devices[] = {"cuda", "hip"};
    for (int i = 0; i < 2; i++) {
        char line[256];
        snprintf(line, sizeof line,
                 "generate --model @models/tiny-k3 --prompt-ids 1 --device %s --device-library "
                 "/nowhere/driver.so",
                 devices[i]);
        fails(1, line, "/nowhere/driver.so: cannot be loaded: no ");
        snprintf(line, sizeof line,
                 "score --model @models/tiny-k3 --vectors @vectors --device %s --device-library "
                 "libm.so.6",
                 devices[i]);
        fails(1, line, "libm.so.6: has no ");
    }
    static const char *const refused[][2] = {
        {"--compute exact", "the exact column runs on the CPU alone"},
        {"--kv-cache-dtype f32", "history on a device is bf16 or fp8"},
        {"--dense-dtype int8", "a device takes dense weights as bf16 or fp8"},
        {"--activation-dtype int8", "activations on a device are bf16"},
        {"--remote-store redis://localhost", "below a device are host memory and disk"},
        {"--expert-cache-bytes 1G", "a device holds all experts"},
    };
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        char line[256];
        snprintf(line, sizeof line,
                 "generate --model @models/tiny-k3 --prompt-ids 1 --device cuda %s", refused[i][0]);
        fails(1, line, refused[i][1]);
    }
}

static void options_that_do_nothing_are_told_so(void **state) {
    static const struct {
        const char *options, *says;
    } idle[] = {
        {"--disk-offload-bytes 1G",
         "--disk-offload-bytes has no effect without --disk-offload-dir"},
        {"--no-enable-prefix-caching --max-checkpoints 3 --enable-prefix-caching",
         "--max-checkpoints has no effect with --no-enable-prefix-caching"},
        {"--checkpoint-policy none --cpu-offload-bytes 64M",
         "--cpu-offload-bytes has no effect with --checkpoint-policy none"},
        {"--device-modules /nowhere", "--device-modules has no effect with --device cpu"},
        {"--enable-prefix-caching --checkpoint-policy default+interval:64", NULL},
    };
    for (size_t i = 0; i < sizeof idle / sizeof idle[0]; i++) {
        char line[256];
        snprintf(line, sizeof line,
                 "generate --model @models/micro-k3-odd --prompt-ids 1 --max-tokens 1 %s",
                 idle[i].options);
        succeeds(NULL, line);
        const char *err = last_outcome()->err;
        if (idle[i].says ? !strstr(err, idle[i].says) : strstr(err, "no effect") != NULL)
            fail_msg("%s: %s", idle[i].options, err);
    }
    fails(2, "serve --model @models/tiny-k3 --cpu-offload-gb 4", "--cpu-offload-bytes");
    fails(2, "serve --model @models/tiny-k3 --disk-offload-dir ''", "--disk-offload-dir: is empty");
}

static void what_is_read_wrong_ends_in_1_with_one_line(void **state) {
    fails(1, "inspect %nothing-here", "nothing-here");
    fails(1, "tokenize --model @models/micro-k3-odd", "tiktoken.model");
    fails(1, "score --model @models/micro-k3-odd --vectors @models", "no case belongs");
    fails(1, "score --model @models/micro-k3-odd --vectors @vectors/tiny-k3", "no case belongs");
    fails(1, "score --model @models/micro-k3-odd --vectors @vectors --case len2", "no case 'len2'");
    run("1,2,x", "tokenize --model @models/tiny-k3 --decode");
    assert_int_equal(last_outcome()->status, 1);
    assert_non_null(strstr(last_outcome()->err, "id 2 is 'x', not a number from 0 to 2815"));
}

/* As its page is called: with a dash where the name has a space. */
static const char *page_of(const struct command *c) {
    static char page[64];
    snprintf(page, sizeof page, "%s", c->name);
    for (char *p = page; *p; p++)
        *p = *p == ' ' ? '-' : *p;
    return page;
}

static void help_and_manual_know_every_option_of_every_command(void **state) {
    size_t n;
    const struct command *const *list = command_list(&n);
    assert_true(n >= 6);
    /* The first word of several commands lists those. */
    succeeds(NULL, "help bench");
    assert_non_null(strstr(last_outcome()->out, "bench sweep"));
    fails(2, "help benches", "unknown command");
    for (size_t i = 0; i < n; i++) {
        char line[128];
        const struct option_spec *s;
        snprintf(line, sizeof line, "help %s", list[i]->name);
        succeeds(NULL, line);
        for (size_t k = 0; (s = options_at(&list[i]->options, k, NULL)); k++) {
            char name[80];
            snprintf(name, sizeof name, "--%s", s->name);
            if (!strstr(last_outcome()->out, name))
                fail_msg("help of %s lacks %s", list[i]->name, name);
            assert_true(strlen(s->help) > 10);
            if (s->type != OPTION_FLAG)
                assert_non_null(s->value);
            if (s->required)
                assert_null(s->fallback);
        }
        char *help = strdup(last_outcome()->out);
        snprintf(line, sizeof line, "%s --help", list[i]->name);
        succeeds(NULL, line);
        assert_string_equal(last_outcome()->out, help);
        free(help);
        snprintf(line, sizeof line, "help --man %s", page_of(list[i]));
        succeeds(NULL, line);
        assert_non_null(strstr(last_outcome()->out, ".Sh DESCRIPTION"));
        for (size_t k = 0; (s = options_at(&list[i]->options, k, NULL)); k++) {
            char env[96];
            option_env_name(s, env, sizeof env);
            if (!strstr(last_outcome()->out, env))
                fail_msg("manual of %s lacks %s", list[i]->name, env);
        }
    }
}

static void help_marks_what_this_build_lacks(void **state) {
    succeeds(NULL, "serve --help");
    const char *out = last_outcome()->out;
    size_t marks = 0;
    for (const char *p = out; (p = strstr(p, "not in this build)")); p++)
        marks++;
    assert_true(marks >= 3);
    succeeds(NULL, "help --man serve");
    assert_non_null(strstr(last_outcome()->out, "not in this build)"));
    succeeds(NULL, "help --man synth");
    assert_non_null(strstr(last_outcome()->out, "kimi\\-k2: not in this build)"));
}

static void the_manual_names_the_product_and_its_pages(void **state) {
    succeeds(NULL, "help --man");
    assert_non_null(strstr(last_outcome()->out, "\n.Os weir " WEIR_VERSION "\n"));
    assert_non_null(strstr(last_outcome()->out, ".Sh EXAMPLES\n"));
    const char *also = strstr(last_outcome()->out, ".Sh SEE ALSO\n");
    assert_non_null(also);
    size_t n;
    const struct command *const *list = command_list(&n);
    for (size_t i = 0; i < n; i++) {
        char page[96];
        snprintf(page, sizeof page, ".Xr weir-%s 1", page_of(list[i]));
        assert_non_null(strstr(also, page));
    }
}

/* Group records must not overlap others, and every default must pass its own check. */
static void every_default_is_a_good_value(void **state) {
    size_t n;
    const struct command *const *list = command_list(&n);
    for (size_t i = 0; i < n; i++) {
        const struct option_spec *s;
        for (size_t k = 0; (s = options_at(&list[i]->options, k, NULL)); k++) {
            union {
                struct option_list list;
                char *text;
                uint64_t wide;
            } target = {0};
            weir_error err = {0};
            if (s->fallback && option_set(s, &target, s->fallback, s->name, &err))
                fail_msg("%s --%s: default %s: %s", list[i]->name, s->name, s->fallback,
                         err.message);
            if (s->fallback && s->type == OPTION_TEXT)
                free(target.text);
        }
    }
}

/* `want`: how the line goes on; "": there is none. */
static void assert_warned(const char *variable, const char *line, const char *want) {
    char said[256] = "";
    setenv(variable, "1", 1);
    const struct outcome *r = run(NULL, line);
    unsetenv(variable);
    if (want[0])
        snprintf(said, sizeof said, "weir: warning: %s in the environment is no option%s\n",
                 variable, want);
    if (strncmp(r->err, said, strlen(said)) || (!want[0] && strstr(r->err, variable)))
        fail_msg("`weir %s` with %s said '%s', not '%s'", line, variable, r->err, said);
}

static void a_misspelt_name_in_the_environment_is_told_by_every_command(void **state) {
    assert_warned("WEIR_MAX_MODLE_LEN", "version", "; did you mean WEIR_MAX_MODEL_LEN?");
    assert_warned("WEIR_MODLE", "tokenize", "; did you mean WEIR_MODEL?");
    assert_warned("WEIR_MODLE", "bench inspect", "; did you mean WEIR_MODEL?");
    assert_warned("WEIR_TP", "generate", "; did you mean WEIR_TENSOR_PARALLEL_SIZE?");
    assert_warned("WEIR_max_model_len", "version", "; did you mean WEIR_MAX_MODEL_LEN?");
    assert_warned("WEIR_QQQQQQQQQQQQQQQQ", "version", " of any command");
    /* Options of other commands, what is no option but read, and what Kubernetes sets. */
    static const char *const known[] = {
        "WEIR_MODEL", "WEIR_CPU", "WEIR_SERVICE_HOST", "WEIR_PORT_8000_TCP_ADDR",
        "WEIRD",      "WEIR_TP",  "WEIR_REMOTE_STORE"};
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
        assert_warned(known[i], "version", "");
}

static void the_environment_and_a_file_give_options(void **state) {
    setenv("WEIR_JSON", "true", 1);
    run(NULL, "version");
    assert_int_equal(last_outcome()->out[0], '{');
    unsetenv("WEIR_JSON");
    write_scratch("good.yaml", "json: true\n", 11);
    succeeds(NULL, "version --config %good.yaml");
    assert_int_equal(last_outcome()->out[0], '{');
    write_scratch("bad.yaml", "json: true\njsno: true\n", 22);
    fails(2, "version --config %bad.yaml", "line 2: Unexpected key: jsno");
    fails(1, "version --config %none.yaml", "none.yaml");
}

static void tokenize_gives_the_golden_ids_and_takes_them_back(void **state) {
    json_error_t fault;
    json_t *manifest = json_load_file(source_path("vectors/tiny-k3/manifest.json"), 0, &fault);
    json_t *texts = json_object_get(manifest, "tokenizer_plain_text"), *entry;
    size_t i;
    assert_true(json_array_size(texts) >= 5);
    json_array_foreach(texts, i, entry) {
        const char *text = json_string_value(json_object_get(entry, "text"));
        if (!text || !*text)
            continue;
        json_t *got = run_json(text, "tokenize --model @models/tiny-k3 --json");
        assert_true(json_equal(json_object_get(got, "ids"), json_object_get(entry, "ids")));
        char *ids = json_dumps(json_object_get(got, "ids"), JSON_COMPACT);
        ids[strlen(ids) - 1] = 0;
        json_t *back = run_json(ids + 1, "tokenize --model @models/tiny-k3 --decode --json");
        assert_string_equal(json_string_value(json_object_get(back, "text")), text);
        free(ids);
        json_decref(got);
        json_decref(back);
    }
    json_decref(manifest);
}

static void inspect_says_what_is_missing(void **state) {
    json_t *whole = run_json(NULL, "inspect @models/tiny-k3 --json");
    assert_int_equal(last_outcome()->status, 0);
    assert_true(json_is_true(json_object_get(whole, "complete")));
    json_decref(whole);
    copy_scratch("models/tiny-k3", "part");
    unlink(scratch("part/model-00002-of-000002.safetensors"));
    json_t *part = run_json(NULL, "inspect %part --json");
    assert_int_equal(last_outcome()->status, 1);
    assert_false(json_is_true(json_object_get(part, "complete")));
    json_decref(part);
    run(NULL, "inspect %part");
    assert_int_equal(last_outcome()->status, 1);
    assert_non_null(strstr(last_outcome()->out, "missing"));
}

static void synth_writes_a_checkpoint_that_inspects(void **state) {
    json_t *made = run_json(NULL, "synth --preset tiny --seed 3 --out %made --json");
    assert_int_equal(last_outcome()->status, 0);
    json_t *seen = run_json(NULL, "inspect %made --json");
    assert_int_equal(last_outcome()->status, 0);
    assert_true(json_equal(json_object_get(made, "bytes"), json_object_get(seen, "stored_bytes")));
    json_decref(made);
    json_decref(seen);
    fails(2, "synth --preset tiny --seed 3 --out %made --tp 3", "does not divide num_heads, 8");
    fails(2, "synth --preset huge --seed 3 --out %other", "'huge' is not kimi-k3, kimi-linear");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_typed_wrong_ends_in_2_with_one_line),
        cmocka_unit_test(features_of_other_builds_are_known_by_name),
        cmocka_unit_test(a_plan_of_kernels_says_what_each_takes_and_what_is_missing),
        cmocka_unit_test(a_plan_of_kernels_refuses_what_does_not_divide),
        cmocka_unit_test(a_device_that_is_not_there_is_one_line),
        cmocka_unit_test(options_that_do_nothing_are_told_so),
        cmocka_unit_test(what_is_read_wrong_ends_in_1_with_one_line),
        cmocka_unit_test(help_and_manual_know_every_option_of_every_command),
        cmocka_unit_test(help_marks_what_this_build_lacks),
        cmocka_unit_test(the_manual_names_the_product_and_its_pages),
        cmocka_unit_test(every_default_is_a_good_value),
        cmocka_unit_test(a_misspelt_name_in_the_environment_is_told_by_every_command),
        cmocka_unit_test(the_environment_and_a_file_give_options),
        cmocka_unit_test(tokenize_gives_the_golden_ids_and_takes_them_back),
        cmocka_unit_test(inspect_says_what_is_missing),
        cmocka_unit_test(synth_writes_a_checkpoint_that_inspects),
    };
    return cmocka_run_group_tests_name("program", tests, program_setup, program_teardown);
}
