/* test_run.c: the summary of a run, its files, and reading them back. */
#include "tests/test.h"
#include "tests/trace/invented_run.h"

#include "base/file.h"
#include "trace/run.h"

#include <math.h>
#include <sys/stat.h>
#include <unistd.h>

static void near(double a, double b) {
    if (!(fabs(a - b) <= 1e-6 * fabs(b)))
        fail_msg("%.12g is not %.12g", a, b);
}

static char dir[64];

static int make_dir(void **state) {
    strcpy(dir, "/tmp/weir-run-XXXXXX");
    return !mkdtemp(dir);
}

static int drop_dir(void **state) {
    static const char *const names[] = {"profile_export.jsonl",
                                        "profile_export_aiperf.json",
                                        "profile_export_aiperf.csv",
                                        "inferencex.json",
                                        "run.json",
                                        "timeline.jsonl"};
    char path[256];
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        snprintf(path, sizeof path, "%s/%s", dir, names[i]);
        unlink(path);
    }
    return rmdir(dir);
}

static char *slurp(const char *name) {
    char path[256], *text;
    size_t bytes;
    weir_error err;
    snprintf(path, sizeof path, "%s/%s", dir, name);
    if (file_read(path, 64 << 20, &text, &bytes, &err))
        fail_msg("%s: %s", err.where, err.message);
    return text;
}

static void put_line(const char *text) {
    char path[256];
    snprintf(path, sizeof path, "%s/profile_export.jsonl", dir);
    FILE *f = fopen(path, "w");
    fputs(text, f);
    fclose(f);
    snprintf(path, sizeof path, "%s/run.json", dir);
    unlink(path);
    snprintf(path, sizeof path, "%s/timeline.jsonl", dir);
    unlink(path);
}

static void write_run(const struct run *r) {
    weir_error err;
    if (run_write(r, dir, &err))
        fail_msg("%s: %s", err.where, err.message);
}

static void read_run(struct run *r) {
    weir_error err;
    if (run_read(dir, r, &err))
        fail_msg("%s: %s", err.where, err.message);
}

static void what_is_read_back_writes_the_same_files(void **state) {
    static const char *const names[] = {"profile_export.jsonl",
                                        "profile_export_aiperf.json",
                                        "profile_export_aiperf.csv",
                                        "inferencex.json",
                                        "run.json",
                                        "timeline.jsonl"};
    enum { FILES = sizeof names / sizeof *names };
    for (uint64_t seed = 1; seed <= 12; seed++) {
        struct run r, again;
        char *before[FILES];
        invent_run(&r, seed, 40 + 20 * (uint32_t)seed);
        write_run(&r);
        for (int i = 0; i < FILES; i++)
            before[i] = slurp(names[i]);
        read_run(&again);
        assert_int_equal(again.n_records, r.n_records);
        write_run(&again);
        for (int i = 0; i < FILES; i++) {
            char *after = slurp(names[i]);
            if (strcmp(before[i], after))
                fail_msg("seed %d: %s differs", (int)seed, names[i]);
            free(after);
            free(before[i]);
        }
        run_free(&again);
        run_free(&r);
    }
}

static void a_summary_read_back_equals_the_one_written_to_the_last_bit(void **state) {
    struct run r, again;
    struct run_summary a, b;
    invent_run(&r, 99, 300);
    write_run(&r);
    read_run(&again);
    assert_int_equal(run_summarise(&r, &a, NULL), WEIR_OK);
    assert_int_equal(run_summarise(&again, &b, NULL), WEIR_OK);
    assert_memory_equal(&a.itl, &b.itl, sizeof a.itl);
    assert_memory_equal(&a.ttft, &b.ttft, sizeof a.ttft);
    assert_memory_equal(&a.icl, &b.icl, sizeof a.icl);
    assert_memory_equal(&a.intvty, &b.intvty, sizeof a.intvty);
    assert_true(a.kept == b.kept && a.failed == b.failed && a.duration == b.duration);
    assert_true(a.theoretical_hit_rate == b.theoretical_hit_rate);
    assert_true(a.valid == b.valid && a.n_invalid == b.n_invalid);
    run_free(&again);
    run_free(&r);
}

/* Every name of an object, in order of the text below; those with a slash are inside. */
static void has_all(const json_t *o, const char *names) {
    char list[2048], *save = NULL;
    snprintf(list, sizeof list, "%s", names);
    for (char *name = strtok_r(list, " ", &save); name; name = strtok_r(NULL, " ", &save)) {
        const json_t *at = o;
        char *inside = NULL;
        for (char *part = strtok_r(name, "/", &inside); part; part = strtok_r(NULL, "/", &inside)) {
            at = json_object_get(at, part);
            if (!at)
                fail_msg("no %s", part);
        }
    }
}

static void every_key_is_there_even_of_a_run_without_records(void **state) {
    struct run r = {.subject.allocated_dram_gb = NAN};
    struct run_summary s;
    assert_int_equal(run_summarise(&r, &s, NULL), WEIR_OK);
    json_t *o = run_inferencex_json(&r, &s);
    has_all(o, "hw conc image recipe_fingerprint model infmax_model_prefix framework precision "
               "spec_decoding disagg scenario_type is_multinode tp ep dp_attention pp dcp_size "
               "pcp_size kv_offloading kv_offload_backend/name kv_offload_backend/version "
               "allocated_cpu_dram_gb num_requests_total num_requests_successful "
               "kv_cache_pool_tokens warnings dataset");
    has_all(json_object_get(o, "request_accounting"),
            "records_total records_profiled records_dropped_total records_warmup_dropped "
            "records_error_dropped error_categories");
    const json_t *m = json_object_get(o, "request_metrics");
    has_all(m, "qps tokens/input tokens/output_actual tokens/output_expected "
               "throughput/input/tokens_per_second throughput/output/tokens_per_second "
               "throughput/total/tokens_per_second throughput/duration_seconds "
               "throughput/per_gpu/total_tput_tps throughput/per_gpu/output_tput_tps "
               "throughput/per_gpu/input_tput_tps cache/theoretical_cache_hit_rate");
    static const char *const latencies[] = {"ttft",
                                            "e2el",
                                            "itl",
                                            "tpot",
                                            "intvty",
                                            "e2e_norm_intvty",
                                            "full_response_itl",
                                            "full_response_intvty"};
    for (int i = 0; i < 8; i++)
        has_all(json_object_get(json_object_get(m, "latency"), latencies[i]),
                "mean p50 p75 p90 p95 std");
    const json_t *v = json_object_get(o, "server_metrics");
    has_all(v, "present adapter metric_count cache kv_cache kv_offload tokens sources "
               "cache/gpu_cache_hit_rate cache/cpu_cache_hit_rate cache/external_cache_hit_rate "
               "cache/overall_cache_hit_rate cache/prefix_cache_hits cache/prefix_cache_queries "
               "cache/external_prefix_cache_hits cache/external_prefix_cache_queries "
               "cache/cached_tokens_by_source cache/frontend_cache_hit_rate "
               "cache/router_kv_hit_rate cache/router_shared_cache_hit_rate "
               "cache/frontend_cached_tokens cache/frontend_input_tokens kv_cache/gpu_usage_pct "
               "kv_cache/gpu_total_tokens kv_cache/cpu_usage_pct kv_cache/cpu_used_tokens "
               "kv_cache/cpu_total_tokens kv_offload/bytes_gpu_to_cpu kv_offload/bytes_cpu_to_gpu "
               "kv_offload/time_gpu_to_cpu kv_offload/time_cpu_to_gpu "
               "kv_offload/bandwidth_gpu_to_cpu_bytes_per_second "
               "kv_offload/bandwidth_cpu_to_gpu_bytes_per_second tokens/prompt_total "
               "tokens/generation_total tokens/requests_completed "
               "tokens/prompt_by_source/gpu_cache_hit "
               "tokens/prompt_by_source/cpu_or_external_cache_hit "
               "tokens/prompt_by_source/computed tokens/prompt_by_source/raw");
    /* Unknown is null, not 0. */
    assert_true(json_is_null(json_object_get(o, "tp")));
    assert_true(json_is_null(json_object_get(json_object_get(v, "cache"), "prefix_cache_hits")));
    assert_true(json_is_null(
        json_object_get(json_object_get(json_object_get(m, "latency"), "ttft"), "mean")));
    json_decref(o);
    o = run_summary_json(&r, &s);
    static const char *const metrics[] = {"request_throughput",
                                          "request_latency",
                                          "request_count",
                                          "time_to_first_token",
                                          "time_to_second_token",
                                          "inter_token_latency",
                                          "inter_chunk_latency",
                                          "output_token_throughput",
                                          "output_token_throughput_per_user",
                                          "prefill_throughput",
                                          "total_token_throughput",
                                          "output_sequence_length",
                                          "output_token_count",
                                          "input_sequence_length",
                                          "total_isl",
                                          "total_osl",
                                          "goodput",
                                          "good_request_count",
                                          "benchmark_duration",
                                          "error_request_count"};
    for (size_t i = 0; i < sizeof metrics / sizeof *metrics; i++)
        has_all(json_object_get(o, metrics[i]),
                "unit avg min max p1 p5 p10 p25 p50 p75 p90 p95 p99 std");
    has_all(o, "input_config was_cancelled error_summary start_time end_time metadata/scenario "
               "metadata/submission_valid metadata/submission_invalid_reasons metadata/dataset");
    json_decref(o);
    run_free(&r);
}

static void an_itl_of_some_milliseconds_keeps_its_digits(void **state) {
    struct run r = {0};
    struct run_summary s;
    invent_call(&r, 1000000000, 100000000, 8712345, 10, 5);
    assert_int_equal(run_summarise(&r, &s, NULL), WEIR_OK);
    json_t *o = run_inferencex_json(&r, &s);
    char *text = json_dumps(o, JSON_REAL_PRECISION(15));
    assert_non_null(strstr(text, "\"mean\": 0.008712345,"));
    free(text);
    json_decref(o);
    run_free(&r);
}

static void rates_are_of_kept_calls_over_their_own_time_and_all_gpus(void **state) {
    struct run r = {.subject = {.tp = 8, .pp = 2, .dcp = 8}};
    struct run_summary s;
    invent_call(&r, 1000000000, 100000000, 10000000, 700, 11);
    struct call_record *c = invent_call(&r, 3000000000, 100000000, 10000000, 300, 21);
    c->end = 5000000000;
    invent_call(&r, 9000000000, 100000000, 10000000, 9999, 21)->phase = PHASE_WARMUP;
    strcpy(invent_call(&r, 9000000000, 100000000, 10000000, 9999, 21)->error_type, "closed");
    assert_int_equal(run_summarise(&r, &s, NULL), WEIR_OK);
    assert_int_equal(s.kept, 2);
    near(s.duration, 4.0);
    near(s.total_rate, 1032 / 4.0);
    near(s.per_gpu_total, 1032 / 4.0 / 16);
    near(s.per_gpu_out, 32 / 4.0 / 16);
    near(s.request_rate, 0.5);
    assert_int_equal(s.qps.n, 5); /* seconds 0 to 4 of the run, two of them with a completion */
    near(s.qps.mean, 0.4);
    assert_int_equal(s.failed, 1);
    assert_string_equal(s.errors[0].type, "closed");
    run_free(&r);
}

static double delta_of(const double *counter, uint32_t n) {
    struct server_sample x[8];
    struct run r = {.samples = x, .n_samples = n};
    for (uint32_t i = 0; i < n; i++) {
        server_sample_clear(&x[i]);
        x[i].prompt_tokens = counter[i];
    }
    struct run_summary s;
    assert_int_equal(run_summarise(&r, &s, NULL), WEIR_OK);
    json_t *o = run_inferencex_json(&r, &s);
    const json_t *tokens = json_object_get(json_object_get(o, "server_metrics"), "tokens");
    const json_t *v = json_object_get(tokens, "prompt_total");
    double delta = json_is_null(v) ? NAN : json_number_value(v);
    json_decref(o);
    return delta;
}

/* A server that was started anew in the midst of a run may count beyond where it began. */
static void a_counter_that_fell_on_the_way_is_unknown(void **state) {
    near(delta_of((const double[]){10, 20, 50}, 3), 40);
    near(delta_of((const double[]){10, NAN, 50}, 3), 40);
    assert_true(isnan(delta_of((const double[]){0, 1000, 0, 500}, 4)));
    assert_true(isnan(delta_of((const double[]){0, 1000, NAN, 500}, 4)));
    assert_true(isnan(delta_of((const double[]){10, 20, NAN}, 3)));
    assert_true(isnan(delta_of((const double[]){10}, 1)));
}

/* --------------------------------------------------------------------------------------- validity
 */

static void valid_run(struct run *r) {
    *r = (struct run){.time_scale = 1, .length_scale = 1, .scenario = strdup("agentic-coding")};
    r->profiling_started = 1000000000;
    r->profiling_ended = r->profiling_started + 1000000000000;
    for (int i = 0; i < 100; i++)
        invent_call(r, r->profiling_started + i * 10000000000ll, 100000000, 1000000000, 10, 10);
}

static void expect_reason(struct run *r, const char *reason) {
    struct run_summary s;
    assert_int_equal(run_summarise(r, &s, NULL), WEIR_OK);
    if (!reason && s.n_invalid)
        fail_msg("invalid: %s", s.invalid[0]);
    assert_int_equal(s.valid, !reason);
    bool found = !reason;
    for (uint32_t i = 0; i < s.n_invalid; i++)
        found = found || !strncmp(s.invalid[i], reason, strlen(reason));
    if (!found)
        fail_msg("not among the reasons: %s", reason);
    run_free(r);
}

static void a_run_is_invalid_for_each_reason(void **state) {
    struct run r;
    valid_run(&r);
    expect_reason(&r, NULL);
    valid_run(&r);
    r.was_cancelled = true;
    expect_reason(&r, "cancelled");
    valid_run(&r);
    r.time_scale = 0.1;
    expect_reason(&r, "time_scale");
    valid_run(&r);
    r.length_scale = 0.5;
    expect_reason(&r, "length_scale");
    valid_run(&r);
    r.overrides = calloc(1, sizeof *r.overrides);
    r.overrides[r.n_overrides++] = strdup("idle_gap_cap");
    expect_reason(&r, "unsafe_override: idle_gap_cap");
    valid_run(&r);
    r.profiling_ended = r.profiling_started + 899000000000;
    expect_reason(&r, "profiling_too_short");
    valid_run(&r);
    for (int i = 0; i < 6; i++) /* half of some answers: 3 % of the tokens */
        r.records[i].out = 5;
    expect_reason(&r, "answer_lengths");
    valid_run(&r);
    for (int i = 0; i < 6; i++) /* others that are too long do not make up for them */
        r.records[i].out = i % 2 ? 5 : 15;
    expect_reason(&r, "answer_lengths");
    valid_run(&r);
    for (int i = 0; i < 10; i++) /* one token in a hundred */
        r.records[i].out = 9;
    expect_reason(&r, NULL);
    valid_run(&r);
    for (int i = 40; i < 100; i++) /* the server died half-way */
        strcpy(r.records[i].error_type, "connect");
    expect_reason(&r, "insufficient_profile_metric_coverage");
    valid_run(&r);
    for (int i = 1; i < 13; i++)
        strcpy(r.records[7 * i].error_type, "http");
    expect_reason(&r, "failed_request_rate: 0.1200");
    valid_run(&r);
    for (int i = 1; i < 11; i++)
        strcpy(r.records[7 * i].error_type, "http");
    expect_reason(&r, NULL); /* 0.10 is allowed */
    valid_run(&r);
    r.records[50].skipped = r.records[51].skipped = true;
    expect_reason(&r, "context_overflow_rate: 0.0200");
    valid_run(&r);
    for (int i = 50; i < 52; i++) {
        r.records[i].error_code = 400;
        strcpy(r.records[i].error_type, "http");
        strcpy(r.records[i].error_message, "This model's maximum context length is 10 tokens");
    }
    expect_reason(&r, "context_overflow_rate: 0.0200");
    valid_run(&r);
    r.records[50].skipped = true;
    expect_reason(&r, NULL); /* 0.01 is allowed */
    valid_run(&r);
    r.records[50].out_source = r.records[51].out_source = COUNT_CHUNKS;
    expect_reason(&r, "answer_tokens_assumed: one token a chunk in 2 of 100 answers");
    valid_run(&r);
    r.records[50].out_source = COUNT_CHUNKS;
    expect_reason(&r, NULL);
}

static void reasons_beyond_the_room_for_them_are_said_to_be_there(void **state) {
    struct run r;
    struct run_summary s;
    valid_run(&r);
    r.overrides = calloc(40, sizeof *r.overrides);
    for (int i = 0; i < 40; i++)
        r.overrides[r.n_overrides++] = strdup("a_very_long_name_of_a_parameter_that_was_changed_by_"
                                              "somebody_who_likes_long_names_and_more_of_them");
    assert_int_equal(run_summarise(&r, &s, NULL), WEIR_OK);
    assert_int_equal(s.n_invalid, RUN_REASONS);
    assert_string_equal(s.invalid[RUN_REASONS - 1], "and others");
    run_free(&r);
}

/* ---------------------------------------------------------------------------------- foreign files
 */

static void records_of_other_tools_are_read_without_their_gaps(void **state) {
    struct run r;
    struct run_summary s;
    put_line(
        "{\"metadata\":{\"session_num\":3,\"x_request_id\":\"r-17\",\"x_correlation_id\":\"s1-p0\","
        "\"conversation_id\":\"s1\",\"turn_index\":2,\"request_start_ns\":1000000000,"
        "\"request_ack_ns\":1000200000,\"request_end_ns\":3100000000,\"worker_id\":\"w0\","
        "\"record_processor_id\":\"p0\",\"benchmark_phase\":\"profiling\",\"was_cancelled\":false,"
        "\"cancellation_time_ns\":null,\"some_new_field\":[1]},\"metrics\":{"
        "\"time_to_first_token\":{\"value\":400.0,\"unit\":\"ms\"},"
        "\"request_latency\":{\"value\":2080.00001,\"unit\":\"ms\"},"
        "\"inter_token_latency\":{\"value\":16.8,\"unit\":\"ms\"},"
        "\"input_sequence_length\":{\"value\":300,\"unit\":\"tokens\"},"
        "\"output_sequence_length\":{\"value\":101.0,\"unit\":\"tokens\"},"
        "\"unheard_of\":{\"value\":\"x\"}},\"error\":null}\r\n\n");
    read_run(&r);
    assert_int_equal(run_summarise(&r, &s, NULL), WEIR_OK);
    assert_int_equal(s.kept, 1);
    near(s.itl.mean, 0.0168);
    near(s.ttft.mean, 0.4);
    near(s.full_itl.mean, 0.017);
    assert_true(s.sum_in == 300 && s.sum_out == 101);
    assert_int_equal(s.icl.n, 0); /* unknown, not one gap of 1.68 s */
    assert_int_equal(s.ttst.n, 0);
    assert_string_equal(r.records[0].conversation, "s1");
    assert_int_equal(r.records[0].turn, 2);
    run_free(&r);
}

static void refuse(const char *line, const char *where, const char *message) {
    struct run r;
    weir_error err = {0};
    put_line(line);
    assert_int_equal(run_read(dir, &r, &err), WEIR_BAD_FILE);
    if (!strstr(err.where, where) || !strstr(err.message, message))
        fail_msg("%s: %s", err.where, err.message);
}

static void faulty_records_are_refused_by_file_line_and_field(void **state) {
    refuse("{\"metadata\":{},\"metrics\":{}}\n[]\n", "profile_export.jsonl:2", "not a JSON object");
    refuse("\n{\"metrics\":{}}\n", "profile_export.jsonl:2", "metadata");
    refuse("{\"metadata\":{\"request_start_ns\":-1}}\n", "profile_export.jsonl:1",
           "metadata.request_start_ns");
    refuse("{\"metadata\":{\"benchmark_phase\":\"later\"}}\n", "jsonl:1",
           "metadata.benchmark_phase");
    refuse("{\"metadata\":{\"request_start_ns\":5},\"metrics\":{\"time_to_first_token\":"
           "{\"value\":\"x\"}}}\n",
           "jsonl:1", "time_to_first_token");
    /* Sums of times that 64 bits do not hold. */
    refuse("{\"metadata\":{\"request_start_ns\":4611686018427387904},\"metrics\":"
           "{\"time_to_first_token\":{\"value\":9e12}}}\n",
           "jsonl:1", "time_to_first_token");
    refuse("{\"metadata\":{\"request_start_ns\":5},\"metrics\":{\"time_to_first_token\":"
           "{\"value\":1e12},\"inter_chunk_latency\":{\"value\":[1e12]}}}\n",
           "jsonl:1", "inter_chunk_latency");
    refuse("{\"metadata\":{},\"error\":\"no\"}\n", "jsonl:1", "error");
    refuse("{\"metadata\":{},\"weir\":{\"blocks\":1,\"hit_blocks\":2}}\n", "jsonl:1",
           "weir.hit_blocks");
    refuse("{\"metadata\":{\n", "jsonl:1", "not valid JSON");
    /* Times run forwards; an end before the start was once counted before the first second. */
    refuse("{\"metadata\":{\"request_start_ns\":2000000000,\"request_end_ns\":5}}\n", "jsonl:1",
           "metadata.request_end_ns: must not lie before request_start_ns");
    refuse("{\"metadata\":{\"request_start_ns\":2000,\"request_ack_ns\":5}}\n", "jsonl:1",
           "metadata.request_ack_ns");
    refuse("{\"metadata\":{\"request_start_ns\":1000,\"request_end_ns\":2000},\"metrics\":"
           "{\"time_to_first_token\":{\"value\":1}},\"weir\":{}}\n",
           "jsonl:1", "must not lie before the answer's last chunk");
    refuse("{\"metadata\":{\"request_start_ns\":5},\"metrics\":{\"time_to_first_token\":"
           "{\"value\":-1}}}\n",
           "jsonl:1", "field metrics.time_to_first_token.value: ");
    refuse("{\"metadata\":{\"request_start_ns\":5},\"metrics\":{\"time_to_first_token\":"
           "{\"value\":3},\"inter_chunk_latency\":{\"value\":[-2]}}}\n",
           "jsonl:1", "inter_chunk_latency");
    refuse("{\"metadata\":{},\"metrics\":{\"output_sequence_length\":{\"value\":\"x\"}}}\n",
           "jsonl:1", "field metrics.output_sequence_length.value: ");
}

static void spoil(const char *name, const char *text) {
    char path[256];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *f = fopen(path, "w");
    fputs(text, f);
    fclose(f);
}

static void refuse_run(const char *where, const char *message) {
    struct run r;
    weir_error err = {0};
    assert_int_equal(run_read(dir, &r, &err), WEIR_BAD_FILE);
    if (!strstr(err.where, where) || !strstr(err.message, message))
        fail_msg("%s: %s", err.where, err.message);
}

/* Records that were doubled, cut or taken from elsewhere give figures of no run at all. */
static void records_are_those_that_run_json_tells_of(void **state) {
    struct run r, other, again;
    weir_error err = {0};
    invent_run(&r, 5, 40);
    invent_run(&other, 5, 40);
    for (uint32_t i = 0; i < other.n_records; i++) { /* the same calls, an hour later */
        struct call_record *c = &other.records[i];
        if (!c->start)
            continue;
        c->start += 3600000000000;
        c->ack += 3600000000000;
        c->end += 3600000000000;
        for (uint32_t k = 0; k < c->n_chunks; k++)
            c->chunk[k] += 3600000000000;
    }
    assert_int_equal(run_write(&other, dir, &err), WEIR_OK);
    char *swapped = slurp("profile_export.jsonl");
    assert_int_equal(run_write(&r, dir, &err), WEIR_OK);
    char *mine = slurp("profile_export.jsonl"), *twice;
    assert_int_equal(run_read(dir, &again, &err), WEIR_OK);
    run_free(&again);
    assert_true(asprintf(&twice, "%s%s", mine, mine) > 0);
    spoil("profile_export.jsonl", twice);
    refuse_run("profile_export.jsonl", "holds 80 calls and run.json beside it says 40");
    *(strchr(twice, '\n') + 1) = 0;
    spoil("profile_export.jsonl", twice);
    refuse_run("profile_export.jsonl", "holds 1 call and");
    spoil("profile_export.jsonl", swapped);
    refuse_run("profile_export.jsonl:1", "does not lie within the run");
    spoil("profile_export.jsonl", mine);
    spoil("timeline.jsonl", "{\"at_ns\":99}\n");
    refuse_run("timeline.jsonl:1", "field at_ns: 99 does not lie within the run");
    free(twice);
    free(mine);
    free(swapped);
    run_free(&r);
    run_free(&other);
}

static void names_that_drive_a_terminal_are_read_without_control_characters(void **state) {
    struct run r = {.subject.model = strdup("m\x1b[31mred\n"), .subject.label = strdup("a\tb")};
    run_clean(&r);
    assert_string_equal(r.subject.model, "m?[31mred?");
    assert_string_equal(r.subject.label, "a?b");
    run_free(&r);
}

static void a_directory_without_records_is_refused(void **state) {
    struct run r;
    weir_error err = {0};
    assert_int_equal(run_read("/nowhere/at/all", &r, &err), WEIR_BAD_FILE);
    assert_non_null(strstr(err.where, "/nowhere/at/all/profile_export.jsonl"));
    run_free(&r);
}

/* ------------------------------------------------------------------------------------------ reuse
 */

/* Two plays of a session share nothing; what failed brings nothing; warm-up brings what it sent. */
static void hits_are_counted_within_a_play_in_order_of_sending(void **state) {
    static const char text[] =
        "{\"id\":\"s1\",\"block_size\":64,\"requests\":["
        "{\"t\":0,\"type\":\"s\",\"in\":200,\"out\":20,\"hash_ids\":[1,2,3]},"
        "{\"t\":4,\"type\":\"n\",\"in\":260,\"out\":10,\"hash_ids\":[1,2,3,4]},"
        "{\"t\":9,\"type\":\"n\",\"in\":300,\"out\":30,\"hash_ids\":[1,2,3,4,5]}]}\n";
    FILE *in = fmemopen((void *)(uintptr_t)text, sizeof text - 1, "r");
    struct trace t;
    weir_error err;
    if (trace_read_stream(in, "x", TRACE_WEKA, NULL, &t, &err))
        fail_msg("%s", err.message);
    fclose(in);
    struct run r = {0};
    static const struct {
        uint64_t play;
        uint32_t request;
        bool fails;
        uint32_t hits;
    } calls[] = {{0, 0, false, 0}, {1, 0, false, 0}, {0, 1, true, 0},
                 {0, 2, false, 3}, {1, 2, false, 3}, {1, 1, false, 4}};
    for (uint32_t i = 0; i < 6; i++) {
        /* written in another order than sent */
        uint32_t k = (i * 5 + 2) % 6;
        struct call_record *c = invent_call(&r, 1000 + k, 10, 10, 200, 2);
        c->number = k;
        c->play = calls[k].play;
        c->request = calls[k].request;
        if (k == 0)
            c->phase = PHASE_WARMUP;
        if (calls[k].fails)
            strcpy(c->error_type, "closed");
    }
    assert_int_equal(run_count_hits(&r, &t, &err), WEIR_OK);
    for (uint32_t i = 0; i < 6; i++)
        assert_int_equal(r.records[i].hit_blocks, calls[r.records[i].number].hits);
    struct run_summary s;
    assert_int_equal(run_summarise(&r, &s, NULL), WEIR_OK);
    near(s.theoretical_hit_rate, (3 + 3 + 4) / (3 + 5 + 5 + 4.0));
    /* In tokens no more than the prompt has (200), and scaled with it. */
    near(s.theoretical_hit_tokens, (192 + 192 + 200) / 800.0);
    r.length_scale = 0.5;
    assert_int_equal(run_count_hits(&r, &t, &err), WEIR_OK);
    assert_int_equal(run_summarise(&r, &s, NULL), WEIR_OK);
    near(s.theoretical_hit_tokens, (96 + 96 + 128) / 800.0);
    run_free(&r);
    trace_free(&t);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_counter_that_fell_on_the_way_is_unknown),
        cmocka_unit_test(what_is_read_back_writes_the_same_files),
        cmocka_unit_test(a_summary_read_back_equals_the_one_written_to_the_last_bit),
        cmocka_unit_test(every_key_is_there_even_of_a_run_without_records),
        cmocka_unit_test(an_itl_of_some_milliseconds_keeps_its_digits),
        cmocka_unit_test(rates_are_of_kept_calls_over_their_own_time_and_all_gpus),
        cmocka_unit_test(a_run_is_invalid_for_each_reason),
        cmocka_unit_test(reasons_beyond_the_room_for_them_are_said_to_be_there),
        cmocka_unit_test(records_of_other_tools_are_read_without_their_gaps),
        cmocka_unit_test(faulty_records_are_refused_by_file_line_and_field),
        cmocka_unit_test(records_are_those_that_run_json_tells_of),
        cmocka_unit_test(names_that_drive_a_terminal_are_read_without_control_characters),
        cmocka_unit_test(a_directory_without_records_is_refused),
        cmocka_unit_test(hits_are_counted_within_a_play_in_order_of_sending),
    };
    return cmocka_run_group_tests(tests, make_dir, drop_dir);
}
