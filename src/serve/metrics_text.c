/* metrics_text.c: the Prometheus text, format 0.0.4. Called by /metrics. Names beginning with vllm:
 * are those that existing dashboards and autoscalers query; everything of our own begins with
 * weir_. All samples of one name stand together under one HELP and TYPE line, as the format
 * wants. What the prefix cache counts is written by metrics_cache.c. */
#include "serve/metrics_inside.h"
#include "serve/turns.h"

#include <dirent.h>
#include <inttypes.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <unistd.h>

static const struct {
    const char *name, *help;
} histogram_names[N_MODEL_HISTOGRAMS] = {
    [TIME_TO_FIRST_TOKEN] = {"vllm:time_to_first_token_seconds",
                             "Time from the arrival of the whole request to its first token, "
                             "waiting included."},
    [INTER_TOKEN_LATENCY] = {"vllm:inter_token_latency_seconds",
                             "Time between tokens of one answer; tokens that come together share "
                             "their time and count one by one."},
    [TIME_PER_OUTPUT_TOKEN] = {"vllm:time_per_output_token_seconds",
                               "Old name of vllm:inter_token_latency_seconds."},
    [REQUEST_TIME_PER_OUTPUT_TOKEN] = {"vllm:request_time_per_output_token_seconds",
                                       "Mean time per token after the first, one value a request."},
    [E2E_REQUEST_LATENCY] = {"vllm:e2e_request_latency_seconds",
                             "Time from arrival to the last token."},
    [REQUEST_QUEUE_TIME] = {"vllm:request_queue_time_seconds",
                            "Time from arrival to the first scheduling."},
    [REQUEST_INFERENCE_TIME] = {"vllm:request_inference_time_seconds",
                                "Time from the first scheduling to the last token."},
    [REQUEST_PREFILL_TIME] = {"vllm:request_prefill_time_seconds",
                              "Time from the first scheduling to the first token."},
    [REQUEST_DECODE_TIME] = {"vllm:request_decode_time_seconds",
                             "Time from the first token to the last."},
    [REQUEST_PROMPT_TOKENS] = {"vllm:request_prompt_tokens", "Tokens of the prompt."},
    [REQUEST_GENERATION_TOKENS] = {"vllm:request_generation_tokens",
                                   "Tokens generated for a request, all choices together."},
    [REQUEST_MAX_NUM_GENERATION_TOKENS] = {"vllm:request_max_num_generation_tokens",
                                           "Tokens of the longest choice of a request."},
    [REQUEST_PARAMS_N] = {"vllm:request_params_n", "Choices asked for."},
    [REQUEST_PARAMS_MAX_TOKENS] = {"vllm:request_params_max_tokens",
                                   "Token limit asked for, of requests that gave one."},
    [ITERATION_TOKENS] =
        {"vllm:iteration_tokens_total",
         "Tokens worked on in a step, as the mean of the steps between two looks."},
};

void metrics_family(FILE *out, const char *name, const char *type, const char *help) {
    fprintf(out, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, type);
}

struct sample {
    const char *name, *type, *help;
    double value;
};

static void write_samples(FILE *out, const char *labels, const struct sample *s, size_t n) {
    for (size_t i = 0; i < n; i++) {
        metrics_family(out, s[i].name, s[i].type, s[i].help);
        if (labels[0])
            fprintf(out, "%s{%s} %.17g\n", s[i].name, labels, s[i].value);
        else
            fprintf(out, "%s %.17g\n", s[i].name, s[i].value);
    }
}

static double share(uint64_t part, uint64_t whole) {
    return whole ? (double)part / (double)whole : 0;
}

static void write_engine(FILE *out, const struct metrics *m, const weir_stats *s) {
    const struct sample samples[] = {
        {"vllm:num_requests_running", "gauge", "Sequences in the running batch.",
         (double)s->running},
        {"vllm:num_requests_waiting", "gauge", "Sequences that wait to be scheduled.",
         (double)s->waiting},
        {"vllm:num_requests_swapped", "gauge", "Always 0: preempted sequences are recomputed.", 0},
        {"vllm:kv_cache_usage_perc", "gauge", "Share of MLA pages in use, 0 to 1.",
         share(s->pages_used, s->pages_total)},
        {"vllm:gpu_cache_usage_perc", "gauge", "Old name of vllm:kv_cache_usage_perc.",
         share(s->pages_used, s->pages_total)},
        {"vllm:prompt_tokens_total", "counter", "Prompt tokens worked on or reused.",
         (double)s->prompt_tokens},
        {"vllm:generation_tokens_total", "counter", "Tokens generated.",
         (double)s->generated_tokens},
        {"vllm:prefix_cache_queries_total", "counter",
         "Prompt tokens looked up in the prefix cache at first admission.",
         (double)s->queried_tokens},
        {"vllm:prefix_cache_hits_total", "counter",
         "Prompt tokens found in the prefix cache at first admission.", (double)s->cached_tokens},
        {"vllm:num_preemptions_total", "counter", "Sequences put back to waiting for memory.",
         (double)s->preemptions},
        {"vllm:corrupted_requests_total", "counter",
         "Requests ended because their logits were not finite.", (double)s->nan_guards},
        {"weir_steps_total", "counter", "Steps done.", (double)s->steps},
        {"weir_failed_steps_total", "counter",
         "Steps whose requests ended with an error because weights could not be read.",
         (double)s->failed_steps},
        {"weir_step_tokens_total", "counter", "Tokens worked on in all steps.",
         (double)s->step_rows},
        {"weir_busy_seconds_total", "counter", "Time spent in steps.", s->busy_seconds},
        {"weir_tool_parse_failures_total", "counter", "Tool calls whose text did not parse.",
         (double)m->tool_parse_failures},
    };
    write_samples(out, m->labels, samples, sizeof samples / sizeof *samples);
}

static void write_experts(FILE *out, const struct metrics *m, const weir_expert_stats *s) {
    const struct sample samples[] = {
        {"weir_expert_cache_used_bytes", "gauge", "Memory that holds experts read from files.",
         (double)s->bytes_used},
        {"weir_expert_cache_limit_bytes", "gauge", "Memory for them.", (double)s->bytes_total},
        {"weir_expert_cache_hits_total", "counter",
         "Units (w1 and w3, or w2, of an expert) that were in memory when they were chosen.",
         (double)s->hits},
        {"weir_expert_cache_misses_total", "counter", "Units that were not.", (double)s->misses},
        {"weir_expert_cache_evictions_total", "counter", "Units given up for others.",
         (double)s->evictions},
        {"weir_expert_cache_reads_total", "counter", "Units read.", (double)s->reads},
        {"weir_expert_cache_read_bytes_total", "counter", "Bytes read.", (double)s->read_bytes},
        {"weir_expert_cache_read_seconds_total", "counter",
         "Time during which something was being read.", s->read_seconds},
        {"weir_expert_cache_read_errors_total", "counter", "Units that could not be read.",
         (double)s->read_errors},
        {"weir_expert_cache_stall_seconds_total", "counter",
         "Time that threads waited for reads, the average thread's.", s->stall_seconds},
        {"weir_expert_cache_guesses_total", "counter", "Units expected of the next layer.",
         (double)s->guesses},
        {"weir_expert_cache_guesses_right_total", "counter", "Those that it chose.",
         (double)s->guesses_right},
        {"weir_expert_cache_ahead_reads_total", "counter", "Units read because they were expected.",
         (double)s->ahead_reads},
        {"weir_expert_cache_ahead_used_total", "counter", "Those that were chosen then.",
         (double)s->ahead_used},
    };
    write_samples(out, m->labels, samples, sizeof samples / sizeof *samples);
}

static void write_turns(FILE *out, const struct metrics *m, const struct turns_stats *s) {
    const struct sample samples[] = {
        {"weir_turn_replay_entries", "gauge", "Generated turns kept to be replayed.",
         (double)s->entries},
        {"weir_turn_replay_bytes", "gauge", "Memory that they take.", (double)s->bytes},
        {"weir_turn_replay_limit_bytes", "gauge", "Memory that they may take.",
         (double)s->limit_bytes},
        {"weir_turn_replay_hits_total", "counter",
         "Assistant messages of requests that were replayed with the ids they were generated as.",
         (double)s->hits},
        {"weir_turn_replay_misses_total", "counter",
         "Assistant messages of requests that were encoded anew.", (double)s->misses},
        {"weir_turn_replay_evictions_total", "counter", "Turns dropped for newer ones.",
         (double)s->evictions},
    };
    write_samples(out, m->labels, samples, sizeof samples / sizeof *samples);
}

static void write_model(FILE *out, const struct metrics *m, const weir_stats *s) {
    static const struct {
        weir_finish finish;
        const char *name;
    } reasons[] = {{WEIR_FINISH_STOP, "stop"},
                   {WEIR_FINISH_LENGTH, "length"},
                   {WEIR_FINISH_ABORT, "abort"},
                   {WEIR_FINISH_ERROR, "error"}};
    write_engine(out, m, s);
    metrics_cache_write(out, m, s);
    if (s->experts.open)
        write_experts(out, m, &s->experts);
    metrics_family(out, "vllm:request_success_total", "counter", "Requests that ended, by reason.");
    for (size_t i = 0; i < sizeof reasons / sizeof *reasons; i++)
        fprintf(out, "vllm:request_success_total{%s,finished_reason=\"%s\"} %" PRIu64 "\n",
                m->labels, reasons[i].name, m->success[reasons[i].finish]);
    metrics_family(out, "vllm:cache_config_info", "gauge", "Settings of the cache, as labels.");
    fprintf(out, "vllm:cache_config_info{%s,%s} 1\n", m->labels, m->settings);
    for (int i = 0; i < N_MODEL_HISTOGRAMS; i++) {
        metrics_family(out, histogram_names[i].name, "histogram", histogram_names[i].help);
        histogram_write(&m->model[i], out, histogram_names[i].name, m->labels);
    }
}

static void write_http(FILE *out, const struct metrics *m, const struct metrics_now *now) {
    const struct sample samples[] = {
        {"weir_http_connections", "gauge", "Open connections.", (double)now->connections},
        {"weir_http_requests_in_flight", "gauge", "Requests for work that have not ended.",
         (double)now->in_flight},
        {"weir_ready", "gauge", "1 when requests are admitted.", now->ready},
    };
    write_samples(out, "", samples, sizeof samples / sizeof *samples);
    if (m->n_http == 0)
        return;
    metrics_family(out, "http_requests_total", "counter",
                   "Answers by method, route and status; 499: the client had gone.");
    for (size_t i = 0; i < m->n_http; i++)
        for (size_t k = 0; k < m->http[i].n_statuses; k++)
            fprintf(out,
                    "http_requests_total{method=\"%s\",handler=\"%s\",status=\"%d\"} %" PRIu64 "\n",
                    m->http[i].method, m->http[i].handler, m->http[i].statuses[k].status,
                    m->http[i].statuses[k].count);
    metrics_family(out, "http_request_duration_seconds", "histogram",
                   "Time from a request's header to the end of its answer.");
    for (size_t i = 0; i < m->n_http; i++) {
        char labels[256];
        snprintf(labels, sizeof labels, "method=\"%s\",handler=\"%s\"", m->http[i].method,
                 m->http[i].handler);
        histogram_write(&m->http[i].seconds, out, "http_request_duration_seconds", labels);
    }
}

static double resident_bytes(void) {
    unsigned long total = 0, resident = 0;
    FILE *f = fopen("/proc/self/statm", "re");
    if (!f)
        return 0;
    if (fscanf(f, "%lu %lu", &total, &resident) != 2)
        resident = 0;
    fclose(f);
    return (double)resident * (double)sysconf(_SC_PAGESIZE);
}

static double open_files(void) {
    double n = 0;
    DIR *d = opendir("/proc/self/fd");
    if (!d)
        return 0;
    for (struct dirent *e = readdir(d); e; e = readdir(d))
        n += e->d_name[0] != '.';
    closedir(d);
    return n - 1; /* without the one that reads */
}

static void write_process(FILE *out, const struct metrics *m) {
    struct rusage usage;
    struct rlimit limit;
    getrusage(RUSAGE_SELF, &usage);
    getrlimit(RLIMIT_NOFILE, &limit);
    double cpu = (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
                 (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1e6;
    const struct sample samples[] = {
        {"process_resident_memory_bytes", "gauge", "Resident memory.", resident_bytes()},
        {"process_cpu_seconds_total", "counter", "Processor time, user and system.", cpu},
        {"process_start_time_seconds", "gauge", "Start of the process, seconds since 1970.",
         (double)m->started_unix},
        {"process_open_fds", "gauge", "Open file descriptors.", open_files()},
        {"process_max_fds", "gauge", "Limit of open file descriptors.", (double)limit.rlim_cur},
    };
    write_samples(out, "", samples, sizeof samples / sizeof *samples);
}

char *metrics_text(struct metrics *m, const struct metrics_now *now, size_t *bytes) {
    char *text = NULL;
    FILE *out = open_memstream(&text, bytes);
    if (!out)
        return NULL;
    if (m->has_model && now->stats)
        write_model(out, m, now->stats);
    if (m->has_model && now->turns)
        write_turns(out, m, now->turns);
    write_http(out, m, now);
    write_process(out, m);
    bool bad = ferror(out);
    if (fclose(out) != 0 || bad) {
        free(text);
        return NULL;
    }
    return text;
}
