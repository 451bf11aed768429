/* bench_args.h: the options that say what is replayed, how, against which server, and what it is
 * called in results; shared by `bench replay` and `bench sweep`. */
#ifndef WEIR_CLI_BENCH_ARGS_H
#define WEIR_CLI_BENCH_ARGS_H

#include "bench/replay.h"
#include "cli/options.h"
#include "trace/run.h"

struct bench_args {
    /* trace */
    char *trace;
    int format;
    uint32_t block_size;
    uint64_t random_in, random_out, random_prefix;
    uint32_t random_prefixes, num_prompts;
    double random_range;
    double length_scale, time_scale;
    uint64_t max_tokens;
    /* load */
    double duration;
    uint64_t seed, salt;
    double start_min, start_max;
    uint32_t warmup;
    double warmup_grace, idle_cap, system_idle_cap;
    bool no_warmup, once, share_sessions, unsafe_override;
    double request_rate;
    int arrivals;
    uint32_t max_concurrency;
    /* server */
    char *url, *api_key, *ca, *model_name, *extra_body, *tokenizer;
    int server, endpoint;
    uint32_t token_low, token_high;
    uint64_t max_context;
    double metrics_interval, connect_timeout, silence_timeout, request_timeout;
    /* subject */
    char *hardware, *framework, *framework_version, *precision, *spec_decoding, *kv_offloading,
        *offload_backend, *offload_version, *image, *model_prefix, *label;
    uint32_t tp, ep, pp, dcp, pcp;
    bool dp_attention, disagg, multinode;
    double dram_gb;
    /* output */
    char *out, *history;
    bool no_history, json;

    bool given[96]; /* which options any source gave, in the order of the table */
};

/* The rows, for a command whose record begins with struct bench_args. */
extern const struct option_spec bench_trace_options[], bench_load_options[], bench_server_options[],
    bench_subject_options[], bench_output_options[];
enum {
    N_BENCH_TRACE = 12,
    N_BENCH_LOAD = 16,
    N_BENCH_SERVER = 15,
    N_BENCH_SUBJECT = 20,
    N_BENCH_OUTPUT = 4,
    N_BENCH_OPTIONS =
        N_BENCH_TRACE + N_BENCH_LOAD + N_BENCH_SERVER + N_BENCH_SUBJECT + N_BENCH_OUTPUT,
};
#define BENCH_GIVEN(FROM) (offsetof(struct bench_args, given) + (FROM))
#define BENCH_GROUPS                                                                               \
    {"Workload", bench_trace_options, N_BENCH_TRACE, 0, BENCH_GIVEN(0)},                           \
        {"Load", bench_load_options, N_BENCH_LOAD, 0, BENCH_GIVEN(N_BENCH_TRACE)},                 \
        {"Server", bench_server_options, N_BENCH_SERVER, 0,                                        \
         BENCH_GIVEN(N_BENCH_TRACE + N_BENCH_LOAD)},                                               \
        {"Subject, as results name it", bench_subject_options, N_BENCH_SUBJECT, 0,                 \
         BENCH_GIVEN(N_BENCH_TRACE + N_BENCH_LOAD + N_BENCH_SERVER)},                              \
    {                                                                                              \
        "Output", bench_output_options, N_BENCH_OUTPUT, 0,                                         \
            BENCH_GIVEN(N_BENCH_OPTIONS - N_BENCH_OUTPUT)                                          \
    }

bool bench_given(const struct bench_args *a, const char *name);
/* All options by name, but for those that make no two runs different. */
json_t *bench_config(const struct bench_args *a);

/* Everything a replay needs that does not depend on the concurrency. */
struct bench_job {
    const struct bench_args *args;
    struct trace trace;
    struct tree tree;
    struct tokenizer *tokenizer;
    json_t *extra, *config;
    char **overrides; /* locked parameters that differ */
    uint32_t n_overrides;
    bool open_loop, is_random;
    bool unrecorded; /* a run did not get into the run history */
    double rate; /* calls a second; as many as can be told apart where all are to come at once */
};
#define BENCH_AT_ONCE 1e9
/* bench_job.c. Reads the trace and checks the options against each other; *a must outlive it. */
weir_status bench_job_open(const struct bench_args *a, struct bench_job *out, weir_error *err);
void bench_job_close(struct bench_job *j);

/* Runs one point, with a progress bar on a terminal, writes its files into `dir` and adds it to the
 * run history; where the history cannot be written, a line on standard error says so, the run
 * stands, and j->unrecorded is set. *run is the caller's to free. Ctrl-C ends the run as cancelled.
 */
weir_status bench_job_run(struct bench_job *j, uint32_t concurrency, const char *dir,
                          struct run *run, struct run_summary *summary, weir_error *err);
/* Was Ctrl-C pressed? */
bool bench_interrupted(void);

/* bench_remarks.c. Adds warnings about figures that mislead: lengths that are not those asked for,
 * time behind the last text, a short run. A workload of fixed lengths whose prompts came out
 * otherwise gets their real length as its ISL. */
void bench_remark(const struct bench_args *a, struct run *run, const struct run_summary *s);
/* Do the figures of the run stand: something was kept, no more than RUN_MOST_FAILED failed, it was
 * neither aborted nor cancelled? If not, *out says why in one line. */
bool bench_stands(const struct run *run, const struct run_summary *s, char *out, size_t cap);

/* bench_progress.c: a bar on a terminal; elsewhere a line at each phase and each minute. */
struct bench_progress {
    bool bar;
    int phase;
    double next; /* seconds of profiling at which the next line is due */
};
void bench_progress_begin(struct bench_progress *p, struct replay_options *o);
void bench_progress_end(const struct bench_progress *p);

/* bench_print.c: a summary of one run for a terminal, and the object of --json. */
/* dir NULL: it was not written. */
void bench_print(const struct run *run, const struct run_summary *s, const char *dir);
json_t *bench_json(const struct run *run, const struct run_summary *s, const char *dir);

#endif
