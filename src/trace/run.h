/* run.h: one finished (or cancelled) replay in memory: its configuration, its records, what the
 * server told of itself; the files it is written to, and reading those back.
 *
 *     DIR/profile_export.jsonl          one object per call
 *     DIR/profile_export_aiperf.json    summary, and .csv
 *     DIR/inferencex.json               InferenceX aggregate
 *     DIR/run.json                      configuration, server, client's own overhead, validity
 *     DIR/timeline.jsonl                one sample of the server's metrics a line
 */
#ifndef WEIR_TRACE_RUN_H
#define WEIR_TRACE_RUN_H

#include "trace/distribution.h"
#include "trace/record.h"

#include <jansson.h>

/* Who was measured. Texts may be NULL: unknown. Owned by the run. */
struct run_subject {
    char *hardware, *framework, *framework_version, *model, *model_prefix, *image, *precision;
    char *spec_decoding; /* "none", "mtp" */
    char *kv_offloading; /* "none", "dram" */
    char *offload_name, *offload_version;
    char *label;                   /* of the configuration: runs with the same label are repeats */
    uint32_t tp, ep, pp, dcp, pcp; /* 0: unknown, counts as 1 */
    bool dp_attention, disagg, is_multinode;
    double allocated_dram_gb; /* NAN: unknown */
};
/* TP x PP x PCP, UINT32_MAX where that is more. */
uint32_t run_gpus(const struct run_subject *s);

/* Counters of a server at one moment; NAN: it does not tell. */
struct server_sample {
    int64_t at; /* Unix time in ns */
    double prompt_tokens, generated_tokens, requests_done;
    double hit_tokens, query_tokens; /* prefix cache */
    double external_hit_tokens, external_query_tokens;
    double device_tokens, host_tokens, disk_tokens, remote_tokens, computed_tokens;
    double running, waiting; /* requests */
    double kv_usage;         /* 0..1 */
    double kv_total_tokens;
    double host_usage, host_used_tokens, host_total_tokens;
    double bytes_out, bytes_in, seconds_out, seconds_in; /* device to host, host to device */
    double drafts, drafted_tokens, accepted_tokens;
    double power_watts;
};
void server_sample_clear(struct server_sample *s); /* all NAN */

/* How true the client's own clock was. */
struct client_overhead {
    struct distribution turn_us; /* length of a turn of the event loop: how late a chunk may have
                                    been stamped */
    struct distribution late_us; /* sent behind the time it could be: the planned one, or with a
                                    limit on calls in flight the end of the one it waited for */
    struct distribution held_ms; /* waited for that limit; n = 0: there was none */
    double busy;                 /* share of one core that the loop's thread used, 0..1 */
    uint32_t most_streams;
};

struct run {
    struct run_subject subject;
    json_t *config;       /* every option of the run by its name; what makes a run comparable */
    json_t *server;       /* what its info endpoints said, or NULL */
    uint32_t concurrency; /* lanes; open loop: the limit on calls in flight, 0: none */
    uint64_t max_context; /* tokens of prompt and answer beyond which calls are skipped; 0: none */
    char *scenario, *dataset, *url;
    uint64_t salt;     /* of the tokens of prompts, as drawn; 0: unknown */
    uint64_t isl, osl; /* of fixed-length workloads; 0: as the trace */
    double time_scale, length_scale;
    int64_t started, profiling_started, profiling_ended, ended; /* Unix time in ns */
    struct call_record *records;
    uint32_t n_records, record_room;
    struct server_sample *samples; /* first and last frame the profiling */
    uint32_t n_samples, sample_room;
    char *metrics_adapter; /* which names the samples were read by; NULL: none */
    struct client_overhead overhead;
    bool was_cancelled;
    char *abort_reason; /* NULL: none */
    char **warnings;
    uint32_t n_warnings;
    /* Locked parameters that were overridden; see run_summary.invalid. */
    char **overrides;
    uint32_t n_overrides;
    char *strings; /* memory of texts that were read back */
};
void run_free(struct run *r);
/* The next record, zeroed; NULL without memory. */
struct call_record *run_record(struct run *r);
/* Names come from servers, files and options, and are printed on terminals and into tables: control
 * characters in the texts of a run become '?'. */
void run_clean(struct run *r);
bool run_warn(struct run *r, const char *format, ...) __attribute__((format(printf, 2, 3)));

enum { RUN_REASONS = 16, RUN_ERROR_TYPES = 16 };
/* Share of answered and failed calls above which the figures say nothing. */
#define RUN_MOST_FAILED 0.10

/* By which share answers may be longer or shorter than was asked for, all together, before a run is
 * one of another workload. */
#define RUN_LENGTH_SLACK 0.02

/* Everything that follows from a run. Rates and latencies over kept records only. */
struct run_summary {
    uint32_t total, profiled, kept, warmup, failed, skipped, cancelled;
    uint32_t length_missed;
    double answer_share; /* tokens of answers / those asked for, where both are known; NAN: nowhere
                          */
    double answer_miss;  /* sum of the differences / those asked for: too long does not make up for
                            too short */
    uint32_t assumed;    /* answers counted as one token a chunk: nobody told their length */
    struct {
        char type[32];
        uint32_t n;
    } errors[RUN_ERROR_TYPES];
    uint32_t n_errors;
    /* seconds; interactivities in tokens/s/user. The percentiles of interactivity are those of the
     * slow tail: 1 / percentile of ITL. */
    struct distribution ttft, ttst, latency, itl, full_itl, icl, e2e_norm;
    struct distribution intvty, full_intvty, e2e_norm_intvty;
    struct distribution in, out, out_expected, prefill_rate, user_rate;
    struct distribution text_out; /* out without reasoning tokens */
    struct distribution qps;      /* completions in windows of one second */
    double duration;
    double in_rate, out_rate, total_rate, request_rate; /* a second */
    double per_gpu_in, per_gpu_out, per_gpu_total;
    uint64_t sum_in, sum_out, sum_cached;
    double theoretical_hit_rate, theoretical_hit_tokens; /* fractions; NAN: no blocks */
    double joules;       /* by the samples of power over all GPUs; NAN: unknown */
    double cached_share; /* of usage; NAN: the server does not tell */
    double coverage;     /* share of the profiling phase that TTFT and ITL observations span */
    bool valid;
    char invalid[RUN_REASONS][512];
    uint32_t n_invalid;
};
/* Why a run may not be set beside others, in one word: "cancelled", "aborted", "scaled" (in time or
 * length), "invalid" (by the rules of publishing); "": it may. The first of these that holds. */
const char *run_state(const struct run *r, const struct run_summary *s);
/* WEIR_NO_MEMORY. */
weir_status run_summarise(const struct run *r, struct run_summary *out, weir_error *err);

/* Fills blocks, hit_blocks and hit_tokens of every record by walking the calls in order of sending:
 * a play is a name space, and what a call of a play brought is there for the later ones of it,
 * whether it was sent before or while profiling; failed and skipped calls bring nothing. `t` is the
 * trace that was played. WEIR_NO_MEMORY. */
weir_status run_count_hits(struct run *r, const struct trace *t, weir_error *err);

/* Makes `dir` and sees that files can be written into it, before a run whose result would be lost
 * otherwise. WEIR_BAD_FILE. */
weir_status run_prepare(const char *dir, weir_error *err);
/* Writes all files into `dir`, which is made; existing ones are replaced. WEIR_BAD_FILE. */
weir_status run_write(const struct run *r, const char *dir, weir_error *err);
/* Reads DIR back: records, run.json and timeline. A summary made from it equals the one written.
 * WEIR_BAD_FILE names file, line and field. */
weir_status run_read(const char *dir, struct run *out, weir_error *err);

/* Fails with what became of a path that was given as an input (errno). LABEL:PATH is no form of
 * one: a path with a colon is quoted, and the line says where labels come from. */
weir_status run_input_absent(const char *path, weir_error *err);
/* Does `dir` hold the records of a run? */
bool run_is_dir(const char *dir);
/* A directory holds one run or a folder of runs: who is given one that holds both reads the run
 * alone, and nothing would say so. Before a run is written into `dir`, or a sweep: WEIR_BAD_FILE
 * names what of the other kind is there. It is not moved aside: it may be hours of measuring. */
weir_status run_folder_refuse(const char *dir, weir_error *err);
weir_status run_dir_refuse(const char *dir, weir_error *err);
/* The runs directly in `dir`, by name. Where a sweep wrote its summary there (sweep.json), those of
 * it alone: directories that an earlier sweep left are said in a warning and left out.
 * WEIR_BAD_FILE: no directory, no run, a summary that is none or lists what is not there. */
struct run_folder {
    char **dir;
    size_t n;
};
weir_status run_folder_read(const char *dir, struct run_folder *out, weir_error *err);
void run_folder_free(struct run_folder *f);

/* The objects behind the files, for those who embed them. NULL without memory. */
json_t *run_summary_json(const struct run *r, const struct run_summary *s);    /* aiperf */
json_t *run_inferencex_json(const struct run *r, const struct run_summary *s); /* section 7.3 */
/* The flat row charts use: tput_per_gpu, {mean,median,p75,...}_{ttft,...}, hw, conc, date ... */
json_t *run_row_json(const struct run *r, const struct run_summary *s);

#endif
