/* replay.h: plays a trace against a server and records what was seen: a schedule says what is sent
 * when, a client sends it, the run keeps it. One loop on the calling thread; a second thread
 * composes bodies. */
#ifndef WEIR_BENCH_REPLAY_H
#define WEIR_BENCH_REPLAY_H

#include "bench/body.h"
#include "bench/client.h"
#include "bench/probe.h"
#include "trace/run_log.h"

#include <signal.h>

/* What a progress bar wants to know. */
struct replay_progress {
    enum phase phase;
    const char *model, *server; /* as found */
    uint32_t alive, in_flight;  /* session trees; calls */
    uint64_t done, failed;      /* calls that have ended, of this phase: warm-up or profiling */
    double tokens_per_second;   /* prompts of calls that ended and pieces of answers, of the last
                                   seconds of this phase */
    double seconds, left;       /* of profiling; left: NAN: not known */
};

struct replay_options {
    const struct trace *trace;
    const struct tree *tree;
    bool open_loop;
    struct lanes_options lanes;       /* closed loop */
    struct arrivals_options arrivals; /* open loop */
    double length_scale;
    uint64_t salt;        /* of the tokens of prompts: runs with different ones share no block */
    int64_t warmup_grace; /* ns that primer and warm-up may take; 0: no limit */

    struct client_options client;
    enum server_kind server;
    enum endpoint endpoint;
    const char *model_name;            /* NULL: the first that the server serves */
    const json_t *extra;               /* fields for all bodies; NULL: none */
    const struct tokenizer *tokenizer; /* NULL: none. Counts answers, makes exact chat prompts */
    const char *tokenizer_dir;         /* for messages */
    int32_t token_low, token_high;     /* of synthetic prompts; both 0: by the vocabulary */
    uint64_t max_tokens;               /* of calls without a recorded length */
    uint64_t max_context;              /* tokens of a call; 0: as the server says */
    double sample_seconds;             /* between looks at the server's metrics; 0: none */
    size_t body_budget;                /* bytes of bodies composed ahead; 0: 256 MiB */
    struct run_log *log;               /* gets each record as its call ends; NULL: none */
    const volatile sig_atomic_t *stop; /* not 0: end as cancelled; may be NULL */
    void (*progress)(void *user, const struct replay_progress *p); /* may be NULL */
    void *progress_user;
};

/* Fills the records, samples, times, overhead, warnings and what the server said of itself of the
 * zeroed *run; subject, config and the like are the caller's, and must be NULL or allocated. The
 * trace must outlive the run. Fails only where nothing was measured: no server, no memory, bad
 * options. A run that was cancelled or ended early is WEIR_OK and says so in *run. */
weir_status replay_run(const struct replay_options *o, struct run *run, weir_error *err);

#endif
