/* The Prometheus text: which series exist, what they count, and what promtool says of them. */
#include "tests/test.h"

#include "serve/metrics.h"
#include "serve/metrics_histogram.h"
#include "serve/turns.h"

#include <unistd.h>

static const weir_info info = {.max_model_len = 2048, .max_num_seqs = 8};

static struct metrics *open_metrics(const char *name) {
    struct metrics *m = metrics_open(1700000000);
    assert_non_null(m);
    assert_true(metrics_model(m, name, &info, "block_size=\"64\""));
    metrics_http_route(m, "POST", "/v1/chat/completions");
    return m;
}

static char *text_of(struct metrics *m, const weir_stats *stats) {
    const struct turns_stats turns = {.entries = 1};
    struct metrics_now now = {
        .stats = stats, .turns = &turns, .connections = 3, .in_flight = 2, .ready = true};
    size_t bytes;
    char *text = metrics_text(m, &now, &bytes);
    assert_non_null(text);
    assert_int_equal(strlen(text), bytes);
    return text;
}

/* The value behind `series`, which must stand at the beginning of a line. */
static double value_of(const char *text, const char *series) {
    size_t n = strlen(series);
    for (const char *line = text; line; line = strchr(line, '\n') ? strchr(line, '\n') + 1 : NULL)
        if (strncmp(line, series, n) == 0 && line[n] == ' ')
            return strtod(line + n + 1, NULL);
    fail_msg("no series %s", series);
    return 0;
}

#define L               "{model_name=\"m\",engine=\"0\"}"
#define LABELED(reason) "{model_name=\"m\",engine=\"0\"," reason "}"

static void F086_every_series_of_the_dashboards_exists_with_zero(void **state) {
    static const char *const plain[] = {
        "vllm:num_requests_running",     "vllm:num_requests_waiting",
        "vllm:kv_cache_usage_perc",      "vllm:gpu_cache_usage_perc",
        "vllm:num_requests_swapped",     "vllm:prompt_tokens_total",
        "vllm:generation_tokens_total",  "vllm:prefix_cache_queries_total",
        "vllm:prefix_cache_hits_total",  "vllm:num_preemptions_total",
        "vllm:corrupted_requests_total",
    };
    static const char *const histograms[] = {
        "vllm:time_to_first_token_seconds",
        "vllm:inter_token_latency_seconds",
        "vllm:time_per_output_token_seconds",
        "vllm:request_time_per_output_token_seconds",
        "vllm:e2e_request_latency_seconds",
        "vllm:request_queue_time_seconds",
        "vllm:request_inference_time_seconds",
        "vllm:request_prefill_time_seconds",
        "vllm:request_decode_time_seconds",
        "vllm:request_prompt_tokens",
        "vllm:request_generation_tokens",
        "vllm:request_max_num_generation_tokens",
        "vllm:request_params_n",
        "vllm:request_params_max_tokens",
        "vllm:iteration_tokens_total",
    };
    struct metrics *m = open_metrics("m");
    weir_stats stats = {0};
    char *text = text_of(m, &stats), series[256];
    for (size_t i = 0; i < sizeof plain / sizeof *plain; i++) {
        snprintf(series, sizeof series, "%s" L, plain[i]);
        assert_true(value_of(text, series) == 0);
    }
    for (size_t i = 0; i < sizeof histograms / sizeof *histograms; i++) {
        snprintf(series, sizeof series, "%s_count" L, histograms[i]);
        assert_true(value_of(text, series) == 0);
        snprintf(series, sizeof series, "%s_bucket" LABELED("le=\"+Inf\""), histograms[i]);
        assert_true(value_of(text, series) == 0);
    }
    assert_true(value_of(text, "vllm:request_success_total" LABELED("finished_reason=\"abort\"")) ==
                0);
    assert_true(value_of(text, "vllm:cache_config_info" LABELED("block_size=\"64\"")) == 1);
    assert_true(value_of(text, "http_requests_total{method=\"POST\",handler=\"/v1/chat/"
                               "completions\",status=\"200\"}") == 0);
    assert_true(value_of(text, "process_resident_memory_bytes") > 1e5);
    assert_true(value_of(text, "process_start_time_seconds") == 1700000000);
    assert_true(value_of(text, "process_open_fds") >= 3);
    free(text);
    metrics_close(m);
}

static void F086_prefix_cache_counters_grow_by_tokens(void **state) {
    struct metrics *m = open_metrics("m");
    weir_stats stats = {
        .queried_tokens = 1000, .cached_tokens = 640, .pages_used = 3, .pages_total = 12};
    char *text = text_of(m, &stats);
    assert_true(value_of(text, "vllm:prefix_cache_queries_total" L) == 1000);
    assert_true(value_of(text, "vllm:prefix_cache_hits_total" L) == 640);
    assert_true(value_of(text, "vllm:kv_cache_usage_perc" L) == 0.25);
    assert_non_null(strstr(text, "# TYPE vllm:prefix_cache_hits_total counter\n"));
    free(text);
    metrics_close(m);
}

/* A snapshot in which every figure differs. */
static weir_stats busy_cache(void) {
    weir_stats s = {.queried_tokens = 1000,
                    .cached_tokens = 700,
                    .sourced_tokens = {400, 200, 0, 100},
                    .stateless_tokens = 128,
                    .pages_used = 3,
                    .pages_cached = 5,
                    .pages_total = 12,
                    .slots_used = 2,
                    .slots_cached = 4,
                    .slots_total = 7,
                    .checkpoints_unplaced = 11,
                    .pages_evicted = 12,
                    .states_evicted = 13,
                    .shared_waits = 14,
                    .tag_mismatches = 15};
    for (int i = 0; i < WEIR_CHECKPOINT_REASONS; i++) {
        s.checkpoints_stored[i] = 20 + (uint64_t)i;
        s.checkpoints_resumed[i] = 30 + (uint64_t)i;
    }
    s.tier[WEIR_HOST] = (weir_tier_stats){.open = true,
                                          .up = true,
                                          .takes_stores = true,
                                          .bytes_used = 1 << 20,
                                          .bytes_total = 1 << 21,
                                          .pages = 41,
                                          .states = 42,
                                          .pages_evicted = 43,
                                          .states_evicted = 44,
                                          .damaged = 45,
                                          .loads = {46, 47, 48, 49, 50},
                                          .stores = {51, 52, 53, 54, 55},
                                          .loaded_bytes = 1000,
                                          .stored_bytes = 2000,
                                          .load_seconds = 0.5,
                                          .store_seconds = 0.25};
    s.tier[WEIR_REMOTE] = (weir_tier_stats){.open = true, .bytes_used = 7};
    return s;
}

static void prompt_tokens_by_source_sum_to_those_looked_up(void **state) {
    static const struct {
        const char *series;
        double value;
    } expected[] = {
        {"weir_prompt_tokens_by_source_total" LABELED("source=\"device\""), 400},
        {"weir_prompt_tokens_by_source_total" LABELED("source=\"host\""), 200},
        {"weir_prompt_tokens_by_source_total" LABELED("source=\"remote\""), 100},
        {"weir_prompt_tokens_by_source_total" LABELED("source=\"computed\""), 300},
        {"vllm:prefix_cache_queries_total" L, 1000},
        {"weir_stateless_tokens_total" L, 128},
        {"weir_prefix_waits_total" L, 14},
        {"weir_state_mismatches_total" L, 15},
    };
    struct metrics *m = open_metrics("m");
    const weir_stats stats = busy_cache();
    char *text = text_of(m, &stats);
    for (size_t i = 0; i < sizeof expected / sizeof *expected; i++)
        assert_true(value_of(text, expected[i].series) == expected[i].value);
    free(text);
    metrics_close(m);
}

static void pools_split_into_used_cached_and_free(void **state) {
    struct metrics *m = open_metrics("m");
    const weir_stats stats = busy_cache();
    char *text = text_of(m, &stats);
    assert_true(value_of(text, "weir_kv_pages_used" L) == 3);
    assert_true(value_of(text, "weir_kv_pages_cached" L) == 5);
    assert_true(value_of(text, "weir_kv_pages_free" L) == 4);
    assert_true(value_of(text, "weir_kv_pages" L) == 12);
    assert_true(value_of(text, "weir_state_slots_used" L) == 2);
    assert_true(value_of(text, "weir_state_slots_cached" L) == 4);
    assert_true(value_of(text, "weir_state_slots_free" L) == 1);
    assert_true(value_of(text, "weir_state_slots" L) == 7);
    assert_true(value_of(text, "vllm:kv_cache_usage_perc" L) == 0.25); /* in use alone */
    assert_true(value_of(text, "weir_cache_evictions_total" LABELED("kind=\"page\"")) == 12);
    assert_true(value_of(text, "weir_cache_evictions_total" LABELED("kind=\"state\"")) == 13);
    free(text);
    metrics_close(m);
}

static void every_reason_for_a_state_has_a_series(void **state) {
    struct metrics *m = open_metrics("m");
    const weir_stats stats = busy_cache();
    char *text = text_of(m, &stats), series[256];
    for (int i = 0; i < WEIR_CHECKPOINT_REASONS; i++) {
        snprintf(series, sizeof series, "weir_checkpoints_stored_total" LABELED("reason=\"%s\""),
                 weir_checkpoint_reason(i));
        assert_true(value_of(text, series) == 20 + i);
        snprintf(series, sizeof series, "weir_checkpoints_resumed_total" LABELED("reason=\"%s\""),
                 weir_checkpoint_reason(i));
        assert_true(value_of(text, series) == 30 + i);
    }
    assert_true(value_of(text, "weir_checkpoints_unplaced_total" L) == 11);
    free(text);
    metrics_close(m);
}

#define HOST(name, labels) "weir_tier_" name LABELED("tier=\"host\"" labels)

static void an_open_tier_tells_what_it_holds_and_moves(void **state) {
    static const struct {
        const char *series;
        double value;
    } expected[] = {
        {HOST("up", ""), 1},
        {"weir_tier_up" LABELED("tier=\"remote\""), 0},
        {"weir_tier_takes_stores" LABELED("tier=\"remote\""), 0},
        {HOST("used_bytes", ""), 1 << 20},
        {HOST("limit_bytes", ""), 1 << 21},
        {HOST("records", ",kind=\"page\""), 41},
        {HOST("records", ",kind=\"state\""), 42},
        {HOST("evictions_total", ",kind=\"page\""), 43},
        {HOST("evictions_total", ",kind=\"state\""), 44},
        {HOST("damaged_records_total", ""), 45},
        {HOST("moves_total", ",task=\"load\",result=\"ok\""), 46},
        {HOST("moves_total", ",task=\"load\",result=\"gone\""), 47},
        {HOST("moves_total", ",task=\"load\",result=\"damaged\""), 48},
        {HOST("moves_total", ",task=\"load\",result=\"failed\""), 49},
        {HOST("moves_total", ",task=\"load\",result=\"declined\""), 50},
        {HOST("moves_total", ",task=\"store\",result=\"ok\""), 51},
        {HOST("moves_total", ",task=\"store\",result=\"declined\""), 55},
        {HOST("moved_bytes_total", ",task=\"load\""), 1000},
        {HOST("moved_bytes_total", ",task=\"store\""), 2000},
        {HOST("move_seconds_total", ",task=\"load\""), 0.5},
        {HOST("move_seconds_total", ",task=\"store\""), 0.25},
    };
    struct metrics *m = open_metrics("m");
    const weir_stats stats = busy_cache();
    char *text = text_of(m, &stats);
    for (size_t i = 0; i < sizeof expected / sizeof *expected; i++)
        assert_true(value_of(text, expected[i].series) == expected[i].value);
    /* A limit that is not known is no limit of 0. */
    assert_null(
        strstr(text, "weir_tier_limit_bytes{model_name=\"m\",engine=\"0\",tier=\"remote\""));
    free(text);
    metrics_close(m);
}

static void a_tier_that_is_not_open_has_no_series(void **state) {
    struct metrics *m = open_metrics("m");
    weir_stats stats = busy_cache();
    char *text = text_of(m, &stats);
    assert_null(strstr(text, "\"disk\""));
    free(text);
    memset(stats.tier, 0, sizeof stats.tier);
    text = text_of(m, &stats);
    assert_null(strstr(text, "weir_tier_"));
    assert_null(strstr(text, "\"host\""));
    assert_non_null(strstr(text, "source=\"device\""));
    free(text);
    metrics_close(m);
}

static void experts_that_are_read_have_series_and_mapped_ones_none(void **state) {
    static const char *const names[] = {
        "used_bytes",      "limit_bytes",         "hits_total",        "misses_total",
        "evictions_total", "reads_total",         "read_bytes_total",  "read_errors_total",
        "guesses_total",   "guesses_right_total", "ahead_reads_total", "ahead_used_total"};
    struct metrics *m = open_metrics("m");
    weir_stats s = {.failed_steps = 3};
    char *text = text_of(m, &s), series[128];
    assert_null(strstr(text, "weir_expert_cache_"));
    assert_true(value_of(text, "weir_failed_steps_total" L) == 3);
    free(text);
    s.experts = (weir_expert_stats){.open = true,
                                    .bytes_used = 1,
                                    .bytes_total = 2,
                                    .hits = 3,
                                    .misses = 4,
                                    .evictions = 5,
                                    .reads = 6,
                                    .read_bytes = 7,
                                    .read_errors = 8,
                                    .guesses = 9,
                                    .guesses_right = 10,
                                    .ahead_reads = 11,
                                    .ahead_used = 12,
                                    .read_seconds = 0.5,
                                    .stall_seconds = 0.25};
    text = text_of(m, &s);
    for (int i = 0; i < 12; i++) {
        snprintf(series, sizeof series, "weir_expert_cache_%s" L, names[i]);
        assert_true(value_of(text, series) == i + 1);
    }
    assert_true(value_of(text, "weir_expert_cache_read_seconds_total" L) == 0.5);
    assert_true(value_of(text, "weir_expert_cache_stall_seconds_total" L) == 0.25);
    free(text);
    metrics_close(m);
}

static void a_finished_request_is_in_every_histogram_once(void **state) {
    struct metrics *m = open_metrics("m");
    weir_stats stats = {0};
    metrics_request_done(m, &(struct metrics_request){.finish = WEIR_FINISH_LENGTH,
                                                      .arrived = 100,
                                                      .scheduled = 100.25,
                                                      .first_token = 100.75,
                                                      .last_token = 102.75,
                                                      .prompt_tokens = 50,
                                                      .generated_tokens = 10,
                                                      .longest_choice = 5,
                                                      .max_tokens = 5,
                                                      .max_tokens_given = true,
                                                      .n = 2});
    char *text = text_of(m, &stats);
    assert_true(value_of(text, "vllm:request_queue_time_seconds_sum" L) == 0.25);
    assert_true(value_of(text, "vllm:time_to_first_token_seconds_sum" L) == 0.75);
    assert_true(value_of(text, "vllm:e2e_request_latency_seconds_sum" L) == 2.75);
    assert_true(value_of(text, "vllm:request_inference_time_seconds_sum" L) == 2.5);
    assert_true(value_of(text, "vllm:request_prefill_time_seconds_sum" L) == 0.5);
    assert_true(value_of(text, "vllm:request_decode_time_seconds_sum" L) == 2);
    assert_true(value_of(text, "vllm:request_time_per_output_token_seconds_sum" L) == 0.5);
    assert_true(value_of(text, "vllm:request_prompt_tokens_sum" L) == 50);
    assert_true(value_of(text, "vllm:request_generation_tokens_sum" L) == 10);
    assert_true(value_of(text, "vllm:request_max_num_generation_tokens_sum" L) == 5);
    assert_true(value_of(text, "vllm:request_params_n_sum" L) == 2);
    assert_true(value_of(text, "vllm:request_params_max_tokens_sum" L) == 5);
    assert_true(
        value_of(text, "vllm:request_success_total" LABELED("finished_reason=\"length\"")) == 1);
    /* An edge belongs to its own bucket: 50 <= 50, and 0.75 <= 0.75. */
    assert_true(value_of(text, "vllm:request_prompt_tokens_bucket" LABELED("le=\"20\"")) == 0);
    assert_true(value_of(text, "vllm:request_prompt_tokens_bucket" LABELED("le=\"50\"")) == 1);
    assert_true(value_of(text, "vllm:request_prompt_tokens_bucket" LABELED("le=\"2000\"")) == 1);
    assert_null(strstr(text, "le=\"5000\""));
    assert_true(value_of(text, "vllm:time_to_first_token_seconds_bucket" LABELED("le=\"0.75\"")) ==
                1);
    free(text);
    metrics_close(m);
}

static void an_aborted_request_is_in_no_latency_but_its_queue_time(void **state) {
    struct metrics *m = open_metrics("m");
    weir_stats stats = {0};
    for (int k = 0; k < 2; k++)
        metrics_request_done(
            m, &(struct metrics_request){.finish = k ? WEIR_FINISH_ERROR : WEIR_FINISH_ABORT,
                                         .arrived = 1,
                                         .scheduled = 2,
                                         .first_token = 3,
                                         .last_token = 4,
                                         .n = 1});
    metrics_request_done(m, &(struct metrics_request){.finish = WEIR_FINISH_ABORT, .arrived = 1});
    char *text = text_of(m, &stats);
    assert_true(value_of(text, "vllm:request_queue_time_seconds_count" L) == 2);
    assert_true(value_of(text, "vllm:e2e_request_latency_seconds_count" L) == 0);
    assert_true(value_of(text, "vllm:time_to_first_token_seconds_count" L) == 0);
    assert_true(value_of(text, "vllm:request_success_total" LABELED("finished_reason=\"abort\"")) ==
                2);
    assert_true(value_of(text, "vllm:request_success_total" LABELED("finished_reason=\"error\"")) ==
                1);
    free(text);
    metrics_close(m);
}

static void tokens_that_come_together_share_their_time(void **state) {
    struct metrics *m = open_metrics("m");
    weir_stats stats = {.steps = 4, .step_rows = 40};
    metrics_tokens(m, 0.4, 4);
    metrics_tokens(m, 1, 0);
    metrics_steps(m, &stats);
    stats.steps = 6;
    stats.step_rows = 1040;
    metrics_steps(m, &stats);
    metrics_steps(m, &stats);
    char *text = text_of(m, &stats);
    assert_true(value_of(text, "vllm:inter_token_latency_seconds_count" L) == 4);
    assert_true(value_of(text, "vllm:inter_token_latency_seconds_bucket" LABELED("le=\"0.1\"")) ==
                4);
    assert_true(value_of(text, "vllm:inter_token_latency_seconds_bucket" LABELED("le=\"0.075\"")) ==
                0);
    assert_true(value_of(text, "vllm:iteration_tokens_total_count" L) == 6);
    assert_true(value_of(text, "vllm:iteration_tokens_total_sum" L) == 1040);
    assert_true(value_of(text, "vllm:iteration_tokens_total_bucket" LABELED("le=\"16\"")) == 4);
    free(text);
    metrics_close(m);
}

static void a_model_name_cannot_break_out_of_its_label(void **state) {
    struct metrics *m = open_metrics("a\"b\\c\nd");
    weir_stats stats = {0};
    char *text = text_of(m, &stats);
    assert_non_null(strstr(text, "{model_name=\"a\\\"b\\\\c\\nd\",engine=\"0\"}"));
    free(text);
    metrics_close(m);
}

static void answers_are_counted_by_method_route_and_status(void **state) {
    struct metrics *m = open_metrics("m");
    for (int i = 0; i < 3; i++)
        metrics_http(m, "POST", "/v1/chat/completions", i ? 200 : 499, 0.2);
    metrics_http(m, "GET", "none", 404, 0);
    char *text = text_of(m, NULL);
    assert_true(value_of(text, "http_requests_total{method=\"POST\",handler=\"/v1/chat/"
                               "completions\",status=\"200\"}") == 2);
    assert_true(value_of(text, "http_requests_total{method=\"POST\",handler=\"/v1/chat/"
                               "completions\",status=\"499\"}") == 1);
    assert_true(value_of(text, "http_requests_total{method=\"GET\",handler=\"none\",status="
                               "\"404\"}") == 1);
    assert_true(value_of(text, "http_request_duration_seconds_bucket{method=\"POST\",handler="
                               "\"/v1/chat/completions\",le=\"0.25\"}") == 3);
    assert_null(strstr(text, "vllm:")); /* no model yet */
    free(text);
    metrics_close(m);
}

/* Two complaints lie in the names that dashboards know: the colon, and the histogram that ends in
 * _total. Everything else is a fault. */
static bool complaint_is_known(const char *line) {
    return (strncmp(line, "vllm:", 5) == 0 &&
            strstr(line, "metric names should not contain ':'") != NULL) ||
           strncmp(line, "vllm:iteration_tokens_total", 27) == 0;
}

static void promtool_finds_nothing_but_two_known_things(void **state) {
    if (system("command -v promtool >/dev/null 2>&1") != 0) {
        print_message("SKIPPED: promtool (Debian package prometheus) is not installed: the text "
                      "format was not checked by another program\n");
        skip();
    }
    struct metrics *m = open_metrics("a \"quoted\" name");
    metrics_http(m, "POST", "/v1/chat/completions", 200, 0.2);
    metrics_tokens(m, 0.4, 4);
    weir_stats stats = busy_cache();
    stats.steps = 4;
    stats.step_rows = 40;
    stats.busy_seconds = 0.1;
    metrics_steps(m, &stats);
    char *text = text_of(m, &stats), path[] = "/tmp/weir-metrics-XXXXXX", command[128], line[512];
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, strlen(text)), (ssize_t)strlen(text));
    close(fd);
    snprintf(command, sizeof command, "promtool check metrics <%s 2>&1", path);
    FILE *out = popen(command, "r");
    assert_non_null(out);
    unsigned lines = 0, unknown = 0;
    while (fgets(line, sizeof line, out)) {
        lines++;
        if (!complaint_is_known(line)) {
            print_message("promtool: %s", line);
            unknown++;
        }
    }
    int status = pclose(out);
    unlink(path);
    assert_int_equal(unknown, 0);
    /* It did look: the known complaints are there, and end with 3, not with a parse error's 1. */
    assert_true(lines >= 10);
    assert_int_equal(WEXITSTATUS(status), 3);
    free(text);
    metrics_close(m);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(F086_every_series_of_the_dashboards_exists_with_zero),
        cmocka_unit_test(F086_prefix_cache_counters_grow_by_tokens),
        cmocka_unit_test(prompt_tokens_by_source_sum_to_those_looked_up),
        cmocka_unit_test(pools_split_into_used_cached_and_free),
        cmocka_unit_test(every_reason_for_a_state_has_a_series),
        cmocka_unit_test(an_open_tier_tells_what_it_holds_and_moves),
        cmocka_unit_test(a_tier_that_is_not_open_has_no_series),
        cmocka_unit_test(experts_that_are_read_have_series_and_mapped_ones_none),
        cmocka_unit_test(a_finished_request_is_in_every_histogram_once),
        cmocka_unit_test(an_aborted_request_is_in_no_latency_but_its_queue_time),
        cmocka_unit_test(tokens_that_come_together_share_their_time),
        cmocka_unit_test(a_model_name_cannot_break_out_of_its_label),
        cmocka_unit_test(answers_are_counted_by_method_route_and_status),
        cmocka_unit_test(promtool_finds_nothing_but_two_known_things),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
