/* weir.h: the public C interface (libweir).
 *
 * An engine is one loaded checkpoint with its caches and its scheduler; a request is one generation
 * in progress. The caller hands over token ids and receives token ids: text, chat markup and HTTP
 * stand above this interface. All functions may be called from any thread; the calls on one request
 * must not overlap. No function but weir_open blocks on computation. */
#ifndef WEIR_H
#define WEIR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum weir_status {
    WEIR_OK = 0,
    WEIR_BAD_FILE,  /* a file is missing, truncated or contradicts itself; where = path */
    WEIR_BAD_VALUE, /* an argument, option or field is out of its range; where = its name */
    WEIR_BAD_ID,    /* a token id is outside the vocabulary; where = its index */
    WEIR_TOO_LONG,  /* prompt + max_tokens exceed the context, or can never fit the cache */
    WEIR_BUSY,      /* the queue is full: try again later */
    WEIR_CLOSED,    /* the engine is draining or has failed */
    WEIR_NO_MEMORY,
    WEIR_UNSUPPORTED, /* a known feature that this build does not offer */
    WEIR_NO_TOKEN,    /* masks left no token to choose, or the logits were not finite */
} weir_status;

/* Filled on failure, untouched on success. `message` reads as a sentence after `where`. */
typedef struct weir_error {
    weir_status code;
    char where[256];
    char message[512];
} weir_error;

typedef struct weir_engine weir_engine;
typedef struct weir_request weir_request;

enum weir_compute { WEIR_COMPUTE_FAST, WEIR_COMPUTE_EXACT, WEIR_COMPUTE_NULL };
enum weir_device { WEIR_DEVICE_CPU, WEIR_DEVICE_CUDA, WEIR_DEVICE_HIP };
/* AUTO: f32 on the CPU, bf16 on a device. */
enum weir_kv_dtype { WEIR_KV_AUTO, WEIR_KV_F32, WEIR_KV_BF16, WEIR_KV_FP8 };
/* How activations enter a product with a weight, on fast columns. */
enum weir_activation_dtype {
    WEIR_ACTIVATION_AUTO, /* the fastest within the bf16 bound on all golden prompts: f32 */
    WEIR_ACTIVATION_F32,
    WEIR_ACTIVATION_BF16,
    WEIR_ACTIVATION_INT8 /* where the weight is MXFP4 or int8, in groups of 32; else bf16 */
};
/* What BF16 matrices other than router and head become when they are loaded, on fast columns. */
enum weir_dense_dtype {
    WEIR_DENSE_BF16, /* as they are */
    WEIR_DENSE_INT8, /* 8 bits and a scale for each 128 values of a row; not on a device */
    WEIR_DENSE_FP8   /* E4M3 and such a scale */
};
enum weir_policy { WEIR_FCFS, WEIR_PRIORITY };

/* How to run a checkpoint. Start from weir_options_default(); 0 means 'choose'. */
typedef struct weir_options {
    enum weir_device device;
    const char *device_library; /* file of the driver; NULL: the usual one */
    const char *device_modules; /* directory of the kernels' modules; NULL: the usual one */
    enum weir_compute compute;
    enum weir_activation_dtype activation_dtype;
    enum weir_dense_dtype dense_dtype;
    enum weir_kv_dtype kv_dtype;
    enum weir_policy policy;
    uint32_t threads;                /* 0: one per core this process may use */
    uint32_t max_model_len;          /* tokens of prompt + answer; 0: from config.json */
    uint32_t max_num_seqs;           /* sequences running at once */
    uint32_t max_num_batched_tokens; /* token budget of one step */
    uint64_t kv_cache_bytes; /* MLA pages + KDA state slots together; 0: fits max_num_seqs at a
                                quarter of the context */
    uint32_t max_queue;      /* waiting requests before WEIR_BUSY; 0: 4096 */
    bool async_scheduling;   /* schedule step k+1 while step k runs */
    bool prefix_caching;     /* reuse history and states of earlier prompts */
    bool log_cache;          /* log for each request what was reused, and why not more */
    const char *checkpoint_policy;  /* which KDA states are kept, docs/cache.md; NULL: default */
    uint32_t max_checkpoints;       /* states kept beyond those of running sequences; 0: choose */
    uint64_t cpu_offload_bytes;     /* host memory for what leaves the pools; 0: no such tier */
    const char *disk_offload_dir;   /* directory for the same; NULL: no such tier */
    uint64_t disk_offload_bytes;    /* bytes used there at most */
    uint64_t expert_cache_bytes;    /* memory for routed experts, which then stay in their files and
                                       are read when chosen; 0: all are mapped */
    const char *tuning;             /* table of what is fastest here (`weir tune`): a file; "auto":
                                       the default place, if it is there; NULL or "none": none */
    const char *remote_store;       /* redis://[:PASSWORD@]HOST[:PORT][/DB]; NULL: no such tier */
    void (*on_progress)(void *arg); /* called on the engine thread after steps that gave output;
                                       must not block */
    void *on_progress_arg;
} weir_options;

weir_options weir_options_default(void);

/* Loads the checkpoint directory `dir`, allocates pools, starts the engine thread. WEIR_BAD_FILE,
 * WEIR_BAD_VALUE, WEIR_NO_MEMORY or WEIR_UNSUPPORTED on failure, and *out is NULL. */
weir_status weir_open(const char *dir, const weir_options *options, weir_engine **out,
                      weir_error *err);
/* Stops the engine thread, aborting what still runs, and frees everything. Requests must have been
 * released. */
void weir_close(weir_engine *e);

typedef struct weir_bias {
    int32_t id;
    float value; /* added to the logit; -INFINITY forbids the id */
} weir_bias;

enum { WEIR_MAX_LOGPROBS = 20 };

/* How to continue a prompt. Start from weir_params_default(). Arrays are copied by weir_submit. */
typedef struct weir_params {
    uint32_t max_tokens; /* 0: to the end of the context */
    uint32_t min_tokens; /* eos and stop ids are masked before */
    float temperature;   /* 0: argmax, ties to the lowest id */
    float top_p;         /* (0, 1] */
    int32_t top_k;       /* 0 or -1: off */
    float min_p;         /* [0, 1] */
    float repetition_penalty, frequency_penalty, presence_penalty; /* 1, 0, 0 */
    bool has_seed;
    uint64_t seed;
    uint32_t choice;  /* which of n: choices of one seed draw from different streams, and the prompt
                         is counted in weir_stats with choice 0 alone */
    int64_t priority; /* lower runs earlier, under WEIR_PRIORITY */
    bool ignore_eos;
    int32_t logprobs;        /* -1: none; k: the chosen token's and the k best */
    int32_t prompt_logprobs; /* -1: none; as above for prompt tokens 1.. */
    const int32_t *stop_ids;
    size_t n_stop_ids;
    const weir_bias *bias;
    size_t n_bias;
    const int32_t *allowed_ids; /* none: all */
    size_t n_allowed_ids;
    const int32_t *const *bad_words; /* sequences that must not appear */
    const size_t *bad_word_lengths;
    size_t n_bad_words;
    /* Null column only: the ids to answer with, and how many each step yields (default 1 each). */
    const int32_t *scripted_ids;
    size_t n_scripted_ids;
    const uint32_t *scripted_steps;
    size_t n_scripted_steps;
    const char *cache_salt; /* NULL: the common space */
    const char *name;       /* what logs call the request; NULL: a number */
} weir_params;

weir_params weir_params_default(void);

typedef struct weir_logprob {
    int32_t id;
    float logprob; /* natural log, of the raw distribution before any rule */
} weir_logprob;

/* One generated token, or one scored prompt token. */
typedef struct weir_token {
    int32_t id;
    float logprob;
    uint32_t rank;  /* 1 = most likely */
    uint32_t n_top; /* entries of top, by falling logprob, ties by lower id */
    weir_logprob top[WEIR_MAX_LOGPROBS];
} weir_token;

typedef enum weir_finish {
    WEIR_RUNNING = 0,
    WEIR_FINISH_STOP,   /* eos or a stop id; stop_id says which */
    WEIR_FINISH_LENGTH, /* max_tokens or the context is full */
    WEIR_FINISH_ABORT,  /* cancelled, or the engine closed */
    WEIR_FINISH_ERROR,  /* see error */
} weir_finish;

/* What a request has come to. Times are seconds of the monotonic clock (weir_now); 0 = not yet. */
typedef struct weir_progress {
    weir_finish finish;
    int32_t stop_id; /* -1: none */
    weir_status error;
    uint32_t prompt_tokens, cached_tokens, generated_tokens, preemptions;
    double arrived, scheduled, first_token, last_token;
} weir_progress;

/* Queues a prompt. `ids` (n of them, n >= 1) and everything `p` points to are copied. Never blocks
 * on computation. WEIR_OK and *out; or WEIR_TOO_LONG, WEIR_BUSY, WEIR_CLOSED, WEIR_BAD_VALUE, or
 * WEIR_BAD_ID (err->where holds its index). On failure nothing was queued and *out is NULL. `user`
 * is kept for weir_user. */
weir_status weir_submit(weir_engine *e, const int32_t *ids, size_t n, const weir_params *p,
                        void *user, weir_request **out, weir_error *err);
/* Moves up to `cap` new tokens into `out`; returns how many. *progress is of the moment after those
 * tokens: its finish is WEIR_RUNNING as long as tokens are left to take. progress may be NULL. */
size_t weir_poll(weir_request *r, weir_token *out, size_t cap, weir_progress *progress);
/* Scored prompt tokens 1..n-1, once the first token is there; returns n-1, or 0 when not asked for
 * or not yet. */
size_t weir_prompt_logprobs(weir_request *r, const weir_token **out);
/* Requests with unread output or a new finish, each at most once until polled; returns how many
 * were written. */
size_t weir_ready(weir_engine *e, weir_request **out, size_t cap);
/* Why the request's step failed, where its progress has the error WEIR_BAD_FILE (weights that are
 * read while it runs could not be): fills *out and returns that; otherwise WEIR_OK. Of several
 * failures within a moment the last one is told. */
weir_status weir_failure(const weir_request *r, weir_error *out);
void *weir_user(const weir_request *r);
/* Ends the request once the steps in flight are done (two at most); finish becomes
 * WEIR_FINISH_ABORT unless it had ended. Pages and slot are freed. */
void weir_cancel(weir_request *r);
/* Frees the request, cancelling it first where needed. The handle is dead afterwards. */
void weir_release(weir_request *r);

double weir_now(void);

/* Where reused tokens came from; the last three are the tiers below the device pools. */
enum weir_source { WEIR_DEVICE, WEIR_HOST, WEIR_DISK, WEIR_REMOTE, WEIR_SOURCES };
/* "device", "host", "disk", "remote" */
const char *weir_source_name(enum weir_source s);

/* What the loaded model is. Strings live as long as the engine. */
typedef struct weir_info {
    const char *family;   /* "kimi_k3", "kimi_linear" */
    char fingerprint[65]; /* of all that kept history depends on, hexadecimal; names its caches */
    const char *column;   /* which operations run: "exact", "avx512", "avx2", "portable", "gpu",
                             "null" */
    enum weir_kv_dtype kv_dtype; /* never AUTO */
    uint32_t vocab_size, max_model_len, max_num_seqs, max_num_batched_tokens, page_tokens, threads;
    uint32_t kv_pages, state_slots;
    uint64_t kv_page_bytes, state_slot_bytes, weight_bytes;
    bool prefix_caching;
    char checkpoint_policy[96];        /* in full: "end-of-prompt+junction", "none" */
    bool tier_open[WEIR_SOURCES];      /* [WEIR_DEVICE] stays false */
    uint64_t tier_bytes[WEIR_SOURCES]; /* held there at most; 0: the tier's own affair */
} weir_info;
void weir_get_info(const weir_engine *e, weir_info *out);

/* Why a KDA state was kept; weir_checkpoint_reason gives the names. */
enum { WEIR_CHECKPOINT_REASONS = 6, WEIR_MOVE_RESULTS = 5 };
const char *weir_checkpoint_reason(int reason);
/* How a move between the pools and a tier ended: ok, gone, damaged, failed, declined. */
const char *weir_move_result(int result);

/* One tier; zeros when it is not open. */
typedef struct weir_tier_stats {
    bool open, up, takes_stores;      /* up: answers loads */
    uint64_t bytes_used, bytes_total; /* total 0: not known */
    uint64_t pages, states, pages_evicted, states_evicted, damaged;
    uint64_t loads[WEIR_MOVE_RESULTS], stores[WEIR_MOVE_RESULTS];
    uint64_t loaded_bytes, stored_bytes;
    double load_seconds, store_seconds; /* sums over moves, several of which run at a time */
} weir_tier_stats;

/* Routed experts that are read when they are chosen; zeros where all are mapped. Counted in units:
 * what one of the two operations on an expert reads. */
typedef struct weir_expert_stats {
    bool open;
    uint64_t bytes_used, bytes_total; /* of the memory for them */
    uint64_t hits, misses;            /* chosen and in memory, chosen and not */
    uint64_t evictions, read_errors;
    uint64_t guesses, guesses_right;  /* expected of the next layer, and chosen by it */
    uint64_t ahead_reads, ahead_used; /* those of them that were not in memory and were read */
    uint64_t reads, read_bytes;
    double read_seconds;  /* during which something was being read */
    double stall_seconds; /* that threads waited for reads, by thread on average */
} weir_expert_stats;

/* Counters since the start and gauges of now; one consistent snapshot. */
typedef struct weir_stats {
    uint64_t running, waiting;
    uint64_t pages_used, pages_total, slots_used, slots_total; /* used: by running sequences */
    uint64_t pages_cached, slots_cached;                       /* idle content that may be reused */
    uint64_t prompt_tokens, generated_tokens, queried_tokens;  /* prompts: once for all choices */
    uint64_t cached_tokens, sourced_tokens[WEIR_SOURCES];      /* all reused; by where they were */
    uint64_t stateless_tokens; /* history was there, a state was not: computed again */
    uint64_t checkpoints_stored[WEIR_CHECKPOINT_REASONS],
        checkpoints_resumed[WEIR_CHECKPOINT_REASONS];
    uint64_t checkpoints_unplaced, pages_evicted, states_evicted, shared_waits, tag_mismatches;
    weir_tier_stats tier[WEIR_SOURCES]; /* [WEIR_DEVICE] stays zero */
    weir_expert_stats experts;
    uint64_t finished[5]; /* by weir_finish */
    uint64_t preemptions, steps, step_rows, nan_guards, failed_steps;
    double busy_seconds; /* time in steps */
    double last_step;    /* monotonic time the last step ended, 0 = none yet */
} weir_stats;
void weir_get_stats(const weir_engine *e, weir_stats *out);

/* What weir_reset_prefix_cache gave up, and what it had to leave because sequences use it. */
typedef struct weir_cache_reset {
    uint64_t pages, states, pages_in_use, states_in_use;
    uint64_t records[WEIR_SOURCES];      /* of the tiers, dropped */
    uint64_t records_left[WEIR_SOURCES]; /* that the tiers keep; of WEIR_REMOTE those that this
                                            process knew of: they are other servers', too */
} weir_cache_reset;
/* Gives up all that is kept for reuse and not in use at this moment, `tiers`: also below the device
 * pools; the remote store keeps its records, and this process loads none of them from then on but
 * those it stores itself. Waits for the engine thread, which may be in a step. WEIR_CLOSED when the
 * engine is closing. */
weir_status weir_reset_prefix_cache(weir_engine *e, bool tiers, weir_cache_reset *out);

/* Stop admitting (weir_submit gives WEIR_CLOSED); what runs goes on. */
void weir_drain(weir_engine *e);

#ifdef __cplusplus
}
#endif
#endif
